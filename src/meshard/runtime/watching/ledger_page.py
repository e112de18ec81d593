"""Ledgers as pages: which lines moved most, to which devices, along which axes.

In: records of communication. Out: a heat map with a row for each line and a column for each device,
and tables. All is bounded, however many records, lines or devices there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from meshard.plan.captions import amount_text, bytes_text, count_text, size_text
from meshard.plan.show.page import Markup, element, wide
from meshard.plan.show.record import PURPOSE, Record, bytes_by_line, labels, purpose_text
from meshard.plan.show.report import Table
from meshard.plan.show.svg import centred, picture, rect

_MOST_ROWS, _MOST_COLUMNS, _MOST_LINES = 12, 32, 100
_LONGEST = 44
_LETTER = 6.6  # the width of a character of a label
_HIGH, _TOP, _MARGIN = 20.0, 46.0, 14.0


class _Row(NamedTuple):
    """One line of the program: its name, what it does, and the bytes that each device receives."""

    name: str
    does: str
    received: dict[int, int]


def ledger_title(records: Sequence[Record], total: int) -> str:
    """Return what moved, in one line."""
    if not records:
        return "Ledger: no communication"
    return f"Ledger: {count_text(len(records), 'communication')}, {size_text(total)}"


def ledger_parts(records: Sequence[Record], facts: Sequence[str]) -> Iterator[Markup]:
    """Yield the parts of a page on some communications.

    Args:
        records: the communications.
        facts: what else is known of them, for the first line.
    """
    by_axes: dict[str, int] = {}
    for r in records:
        axes = ", ".join(r.axes) or "no axis"
        by_axes[axes] = by_axes.get(axes, 0) + r.total_bytes
    told = [f"{axes}: {size_text(n)}" for axes, n in sorted(by_axes.items(), key=lambda i: -i[1])]
    yield element("p", " · ".join(facts))
    if not records:
        return
    yield element("p", f"by axes: {'; '.join(told[:_MOST_ROWS])}")
    yield wide(ledger_svg(records))
    yield _similar(records).html()


def _similar(records: Sequence[Record]) -> Table:
    """Return a table with a row for all similar communications of a line, the most bytes first."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for r in records:
        key = (r.line, r.what, r.purpose, r.kind, ", ".join(r.axes) or "-", r.array or "-")
        sums = groups.setdefault(key, [0, 0, 0])
        sums[0] += 1
        sums[1] = max(sums[1], r.bytes_per_device)
        sums[2] += r.total_bytes
    found = sorted(groups.items(), key=lambda item: -item[1][2])
    shown = found[:_MOST_LINES]
    names = labels(list(dict.fromkeys(key[0] for key, _ in shown)))
    purposes = any(r.purpose for r in records)
    rows = [
        (
            *(names[key[0]], key[1], *[purpose_text(key[2])] * purposes, *key[3:]),
            *(f"{count:,}", amount_text(most), amount_text(total)),
        )
        for key, (count, most, total) in shown
    ]
    rest = found[len(shown) :]
    more = sum(sums[2] for _, sums in rest)
    notes = [f"and {count_text(len(rest), 'more row')}, {bytes_text(more)}"] * bool(rest)
    words = ("line", "operation", *[PURPOSE] * purposes, "kind", "axes", "array")
    head = (*words, "count", "per device", "total")
    return Table(head, rows, "<" * (5 + purposes) + ">>>", notes)


def ledger_svg(records: Sequence[Record], heading: str = "") -> Markup:
    """Return the heat map of bytes by line and device.

    Args:
        records: the communications.
        heading: a line above, for a drawing that stands alone.
    """
    if not records:
        parts = [centred(_MARGIN, 24, "no communication", color="ink", font_size=12)]
        return picture(180, 46, "no communication", parts, heading=heading)
    rows, rest = _rows(records)
    devices = sorted({d for r in records for d in r.received})
    each = -(-len(devices) // _MOST_COLUMNS)
    groups = [devices[i : i + each] for i in range(0, len(devices), each)]
    left = _MARGIN + _LETTER * max(len(row.name) for row in rows) + 8
    cell = min(38.0, max(16.0, 420 / len(groups)))
    right = left + cell * len(groups)
    parts = [centred(left, 14, "bytes that each device receives, by line")]
    parts.append(centred(left - 8, _TOP - 12, "device", "end"))
    every = max(1, -(-int(_LETTER * len(str(devices[-1])) + 4) // int(cell)))
    for n, group in islice(enumerate(groups), 0, None, every):
        parts.append(centred(left + (n + 0.5) * cell, _TOP - 12, str(group[0]), "middle"))
    amounts = [[sum(row.received.get(d, 0) for d in group) for group in groups] for row in rows]
    # The sums of all lines would make each of them faint: they have a scale of their own.
    most = max(1, *(n for row in amounts[len(rows) > 1 :] for n in row))
    words = 0.0
    for number, (row, own) in enumerate(zip(rows, amounts, strict=True)):
        y = _TOP + number * _HIGH
        parts.append(centred(left - 8, y + _HIGH / 2, row.name, "end", "ink"))
        parts += _cells(
            row,
            list(zip(groups, own, strict=True)),
            (left, y, cell),
            max(own) if number == 0 else most,
        )
        text = f"{size_text(sum(own))}  {row.does}"
        parts.append(centred(right + 8, y + _HIGH / 2, text))
        words = max(words, _LETTER * len(text))
    bottom = _TOP + len(rows) * _HIGH
    notes = [f"and {count_text(rest, 'more line')}"] * bool(rest)
    notes += [f"each column is {each} neighbouring devices"] * (each > 1)
    if notes:
        parts.append(centred(_MARGIN, bottom + 14, "; ".join(notes)))
    told = f"bytes by line (row) and device (column), at most {size_text(most)}"
    width, height = right + 8 + words + _MARGIN, bottom + 8 + 18 * bool(notes)
    return picture(width, height, told, parts, heading=heading)


def _cells(
    row: _Row, amounts: list[tuple[list[int], int]], place: tuple[float, float, float], most: int
) -> Iterator[Markup]:
    """Yield the cells of a row, each as strong as what its devices receive."""
    left, y, cell = place
    for n, (group, amount) in enumerate(amounts):
        spot = (left + n * cell + 0.5, y + 0.5, cell - 1, _HIGH - 1)
        yield rect(*spot, "gap")
        if amount:
            ids = str(group[0]) if len(group) == 1 else f"{group[0]} to {group[-1]}"
            told = f"{row.name}, device {ids}: {bytes_text(amount)}"
            yield rect(*spot, "hot", told, fill_opacity=0.15 + 0.85 * amount / most)


def _cut(name: str) -> str:
    """Return the end of a name that is too long for a label."""
    return name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}"


def _rows(records: Sequence[Record]) -> tuple[list[_Row], int]:
    """Return the lines that moved most, with a row for all of them first if there are several."""
    totals = list(bytes_by_line(records))
    shown = totals[:_MOST_ROWS]
    names = labels(shown)
    received: dict[str, dict[int, int]] = {line: {} for line in shown}
    kinds: dict[str, dict[str, None]] = {line: {} for line in shown}
    every: dict[int, int] = {}
    for r in records:
        drawn = r.line in received
        for sums in (every, received[r.line]) if drawn else (every,):
            for device, count in r.received.items():
                sums[device] = sums.get(device, 0) + count
        if drawn:
            kinds[r.line][r.kind] = None
    rows = [_Row(_cut(names[line]), ", ".join(kinds[line]), received[line]) for line in shown]
    if len(totals) > 1:
        rows.insert(0, _Row("all lines", "", every))
    return rows, len(totals) - len(shown)
