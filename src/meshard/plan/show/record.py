"""Records of communication, and tables of them.

In: the array, axes and bytes of a communication, and the line of a program. Out: text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from meshard.plan.captions import amount_text, bytes_text
from meshard.plan.show.report import Table

_LINES = 10


@final
@dataclass(frozen=True, slots=True)
class Record:
    """One communication.

    Attributes:
        what: the operation that caused it.
        kind: ``"all-reduce"``, ``"all-gather"``, ``"permute"``, ...
        axes: the mesh axes that it goes along; none if several meshes take part.
        array: what moves, as in ``"float64[4,8]"``.
        received: the bytes that each device, by its id, receives from other devices.
        line: file and line of the user's program.
        purpose: what it is for, if it is part of a derivative, as in ``"gradient of w"``.
    """

    what: str
    kind: str
    axes: tuple[str, ...]
    array: str
    received: Mapping[int, int]
    line: str
    purpose: str = ""

    @property
    def total_bytes(self) -> int:
        """Bytes received, summed over the devices."""
        return sum(self.received.values())

    @property
    def bytes_per_device(self) -> int:
        """The most bytes that one device receives."""
        return max(self.received.values(), default=0)


PURPOSE = "gradient of"
"""The head of the column with what `purpose_text` returns."""


def purpose_text(purpose: str) -> str:
    """Return what something is for, as a table shows it."""
    return purpose.replace("gradient of ", "").replace("gradients of ", "") or "-"


@final
@dataclass(frozen=True, slots=True)
class HostRecord:
    """One array that was put together on the host.

    Attributes:
        what: who asked for it, as in ``"np.asarray"``.
        array: what it was, as in ``"float64[4,8]"``.
        nbytes: its bytes.
        line: file and line of the user's program.
    """

    what: str
    array: str
    nbytes: int
    line: str


def labels(lines: Sequence[str]) -> dict[str, str]:
    """Return the names of lines in a table, with as few folders as distinguish the files."""
    paths = {line: re.split(r"[/\\]", line.rpartition(":")[0]) for line in lines}
    files, length = {tuple(p) for p in paths.values()}, 1
    while len({p[-length:] for p in files}) < len(files):
        length += 1
    return {
        line: f"{'/'.join(path[-length:])}:{line.rpartition(':')[2]}"
        for line, path in paths.items()
    }


def records_table(records: Sequence[Record], *notes: str) -> str:
    """Return a table with one row for all similar communications of one line."""
    groups: dict[tuple[object, ...], list[Record]] = {}
    for r in records:
        alike = (
            *(r.line, r.what, r.purpose, r.kind, r.axes, r.array),
            *(r.total_bytes, r.bytes_per_device),
        )
        groups.setdefault(alike, []).append(r)
    told = labels([r.line for r in records])
    purposes = any(r.purpose for r in records)
    rows = [
        (
            told[r.line],
            r.what,
            *[purpose_text(r.purpose)] * purposes,
            r.kind,
            ", ".join(r.axes) or "-",
            r.array or "-",
            f"{len(group):,}",
            amount_text(r.bytes_per_device),
            amount_text(len(group) * r.total_bytes),
        )
        for group in groups.values()
        for r in group[:1]
    ]
    more = [PURPOSE] * purposes
    head = ("line", "operation", *more, "kind", "axes", "array", "count", "per device", "total")
    align = "<" * (5 + purposes) + ">>>"
    return Table(head, rows, align, notes, spare=("axes", "array", "per device")).text()


def host_table(records: Sequence[HostRecord]) -> str:
    """Return a table of what went to the host, with one row for all alike of one line."""
    groups: dict[HostRecord, int] = {}
    for r in records:
        groups[r] = groups.get(r, 0) + 1
    told = labels([r.line for r in records])
    rows = [
        (told[r.line], r.what, r.array, f"{count:,}", amount_text(count * r.nbytes))
        for r, count in groups.items()
    ]
    total = bytes_text(sum(r.nbytes for r in records))
    note = f"{len(records):,} put together on the host, {total}"
    return Table(
        ("line", "to the host by", "array", "count", "total"), rows, "<<<>>", (note,)
    ).text()


def bytes_by_line(records: Sequence[Record]) -> dict[str, int]:
    """Return the bytes that each line moved, the most first."""
    found: dict[str, int] = {}
    for record in records:
        found[record.line] = found.get(record.line, 0) + record.total_bytes
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def lines_table(records: Sequence[Record]) -> str:
    """Return a table of the lines that moved most."""
    totals = bytes_by_line(records)
    told = labels(list(totals))
    rows, notes = [], []
    for line in list(totals)[:_LINES]:
        own = [r for r in records if r.line == line]
        names = ", ".join(dict.fromkeys(f"{r.what} ({r.kind})" for r in own))
        rows.append((told[line], names, f"{len(own):,}", amount_text(totals[line])))
    more = len(totals) - _LINES
    if more > 0:
        rest = bytes_text(sum(list(totals.values())[_LINES:]))
        notes = [f"and {more} more line{'s' * (more > 1)}, {rest}"]
    return Table(("line", "operations", "count", "total"), rows, "<<>>", notes).text()
