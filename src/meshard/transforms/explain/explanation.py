"""Explanations: what a program does step by step, and what it moves; read as a table, JSON, a page.

In: figures, found before anything runs (`explaining`). Out: text.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

from meshard.algebra.arguments import path_of
from meshard.plan.captions import amount_text, size_text, time_text
from meshard.plan.file.files import write_text
from meshard.plan.file.json_values import fields
from meshard.plan.show.page import Markup, element, wide
from meshard.plan.show.pictured import Drawn
from meshard.plan.show.record import PURPOSE, purpose_text
from meshard.plan.show.report import Table
from meshard.plan.show.terminal import line_width
from meshard.runtime.watching.run_pictures import Bar, timeline
from meshard.transforms.explain.reasons import Notice
from meshard.transforms.program.program import short_line

_WIDTH = 120
_ROWS, _PAGE_ROWS = 80, 500
_NAMES = 3
_SPARE = ("memory", "on one device", "per device", "layout")
_WARNINGS, _PAGE_WARNINGS = 20, 100

_FIELDS = (
    *("name", "topology", "devices", "total_bytes", "bytes_per_device", "received", "seconds"),
    *("exact", "argument_bytes", "peak_bytes"),
)
_MOVES = ("kind", "axes", "array", "received", "exact", "total_bytes", "bytes_per_device")


@final
@dataclass(frozen=True, slots=True)
class Communication:
    """What one step moves at a time.

    Attributes:
        kind: ``"all-reduce"``, ``"all-gather"``, ...; ``"move"`` where elements change places.
        axes: the mesh axes that it goes along.
        array: what moves, as in ``"float64[4,8]"``.
        received: for each device id the bytes that it receives from others.
        exact: whether that many bytes move; else at most that many do, and values decide.
    """

    kind: str
    axes: tuple[str, ...]
    array: str
    received: dict[int, int]
    exact: bool = True

    @property
    def total_bytes(self) -> int:
        """Bytes received, summed over the devices."""
        return sum(self.received.values())

    @property
    def bytes_per_device(self) -> int:
        """The most bytes that one device receives."""
        return max(self.received.values(), default=0)


@final
@dataclass(frozen=True, slots=True)
class ExplainedStep:
    """One step of a program: one operation, or several that run as one.

    Attributes:
        number: its place in the program, from 1 on.
        name: the operation, or several joined by ``+``.
        line: where in the program it is written, as ``file:line``.
        depth: how many loops, branches and bodies it is in.
        part: the part of the innermost of these that it belongs to, as in ``"body"``.
        turns: how often it runs; None if values decide.
        counted: how often it counts in totals. Where values decide, a loop's step counts once, and
            of the branches of a condition the one that moves most.
        local: what one device has of the result, as in ``"float64[2,8]"``.
        before: how each operand that is an array is laid out.
        after: how each result is laid out.
        communications: what it moves each time.
        seconds: how long that takes on the topology, each time.
        live_bytes: the memory in use while it runs, on the device that uses most.
        runner: who runs it, if a compiler was asked (`jit_compiler`): ``"LLVM"``, or NumPy and why,
            as in ``"NumPy: complex128 is computed by NumPy"``; else nothing.
        purpose: what it is for, if it is part of a derivative: ``"gradient of w['in']"`` for an
            argument, ``"gradient of tanh at model.py:12"`` for a value on the way, ``"computed
            again"``; else nothing. Its line is then that of the operation whose derivative it is.
    """

    number: int
    name: str
    line: str
    depth: int
    part: str
    turns: int | None
    counted: int
    local: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    communications: tuple[Communication, ...]
    seconds: float
    live_bytes: int
    runner: str = ""
    purpose: str = ""

    @property
    def total_bytes(self) -> int:
        """Bytes that devices receive from others each time, summed over the devices."""
        return sum(c.total_bytes for c in self.communications)

    @property
    def received(self) -> dict[int, int]:
        """For each device id the bytes that it receives from others each time."""
        return _summed((c.received, 1) for c in self.communications)

    @property
    def bytes_per_device(self) -> int:
        """The most bytes that one device receives each time."""
        return max(self.received.values(), default=0)

    @property
    def exact(self) -> bool:
        """Whether the figures are what happens, and not the most that may."""
        return all(c.exact for c in self.communications)


def _summed(parts: Any) -> dict[int, int]:
    found: dict[int, int] = {}
    for received, times in parts:
        for device, count in received.items():
            found[device] = found.get(device, 0) + times * count
    return dict(sorted(found.items()))


@final
@dataclass(frozen=True)
class Explanation(Drawn):
    """What a program does, what it moves, why, and how long that takes: before it runs.

    `meshard.explain` makes it. Printed it is a table with a row for each step, totals, and a
    sentence for each value that was split and is made whole or split otherwise.

    Attributes:
        name: the function.
        topology: the topology's name that times are estimated on.
        devices: the ids of the devices.
        steps: the steps, in order; those of loops, branches and bodies follow the step they are in.
        warnings: a `Notice` wherever something that is split over an axis becomes whole along it,
            or split otherwise, with the reason and what to do; those that nobody asked for first.
        argument_bytes: the bytes of arguments and captured arrays on the device that has most.
        peak_bytes: the most memory in use on one device at any time.

    Bytes are counted as `meshard.debug.ledger` counts them while the program runs: each device has
    a memory of its own. Times are those of communication alone, one step after another, by the
    model of `meshard.resharding.simulate`; computing takes no time in them.
    """

    name: str
    topology: str
    devices: tuple[int, ...]
    steps: tuple[ExplainedStep, ...]
    warnings: tuple[Notice, ...]
    argument_bytes: int
    peak_bytes: int

    @property
    def total_bytes(self) -> int:
        """Bytes that devices receive from others, all turns of loops together."""
        return sum(s.counted * s.total_bytes for s in self.steps)

    @cached_property
    def received(self) -> dict[int, int]:
        """For each device id the bytes that it receives from others."""
        nothing = (dict.fromkeys(self.devices, 0), 1)
        return _summed([nothing, *((s.received, s.counted) for s in self.steps)])

    @property
    def bytes_per_device(self) -> int:
        """The most bytes that one device receives from others."""
        return max(self.received.values(), default=0)

    @property
    def seconds(self) -> float:
        """How long all communication takes on the topology."""
        return sum(s.counted * s.seconds for s in self.steps)

    @property
    def exact(self) -> bool:
        """Whether totals are what happens: no loop or branch depends on values."""
        return all((s.exact and s.turns is not None) or not s.communications for s in self.steps)

    def by_line(self) -> dict[str, int]:
        """Return for each line of the program the bytes that it moves, the most first."""
        found: dict[str, int] = {}
        for s in self.steps:
            if s.communications and s.counted:
                found[s.line] = found.get(s.line, 0) + s.counted * s.total_bytes
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def to_json(self) -> str:
        """Return everything as the text of a JSON object.

        Its keys are ``name``, ``topology``, ``devices``, ``total_bytes``, ``bytes_per_device``,
        ``received``, ``seconds``, ``exact``, ``argument_bytes``, ``peak_bytes``, ``steps`` and
        ``warnings``; steps and warnings have the keys of `ExplainedStep` and `Notice`.
        """
        value = fields(self, *_FIELDS)
        value["steps"] = [_step_value(s) for s in self.steps]
        value["warnings"] = [
            {"text": str(w), **fields(w, *Notice.__dataclass_fields__)} for w in self.warnings
        ]
        return json.dumps(value)

    def to_html(self, path: str | Path | None = None) -> str:
        """Return a page with a timeline for each device, the steps and the warnings.

        Args:
            path: where to write it, too. Nothing is loaded from elsewhere when it is opened.
        """
        target = None if path is None else path_of(path, "Explanation.to_html")
        text = super().to_html()
        if target is not None:
            write_text(target, text, "Explanation.to_html")
        return text

    def _title(self) -> str:
        return self._headline

    def _svg(self) -> Markup:
        return self._timeline(f"{self._headline} of {self.topology!r}")

    def _timeline(self, heading: str = "") -> Markup:
        return timeline(self.devices, [_bar(s) for s in self.steps if s.counted], heading)

    def _parts(self) -> Iterator[Markup]:
        yield self._totals().html()
        if self.warnings:
            yield element("h3", "What becomes whole, or is split otherwise")
            shown = [element("li", _sentence(w)) for w in self.warnings[:_PAGE_WARNINGS]]
            rest = len(self.warnings) - _PAGE_WARNINGS
            yield element("ul", *shown, *[element("li", f"and {rest:,} more")] * (rest > 0))
        if any(s.communications for s in self.steps):
            yield element("h3", "Communication of each device")
            yield wide(self._timeline())
        yield element("h3", "Steps")
        rest = len(self.steps) - _PAGE_ROWS
        notes = [f"and {rest:,} more steps"] if rest > 0 else []
        yield self._table(self.steps[:_PAGE_ROWS], notes=notes).html()

    # text

    @property
    def _headline(self) -> str:
        count = len(self.steps)
        return (
            f"{self.name}: {count:,} step{'s' * (count != 1)} on {len(self.devices)} "
            f"device{'s' * (len(self.devices) != 1)}"
        )

    def _totals(self) -> Table:
        most = "" if all(s.exact for s in self.steps) else "<= "
        decided = any(s.turns is None for s in self.steps)
        more = " (values decide; loops and branches are counted once)" * decided
        memory = f"{size_text(self.peak_bytes)}, of which {size_text(self.argument_bytes)}"
        rows = [
            ("bytes moved", f"{most}{amount_text(self.total_bytes)}{more}"),
            ("most received by a device", amount_text(self.bytes_per_device)),
            ("time of communication", f"{time_text(self.seconds)} on {self.topology!r}"),
            ("peak memory of a device", f"{memory} are arguments"),
        ]
        runners: dict[str, list[str]] = {}
        for s in self.steps:
            if s.runner:
                runners.setdefault(s.runner, []).append(str(s.number))
        for told, numbers in runners.items():
            who, _, why = told.partition(": ")
            what = f"step{'s' * (len(numbers) > 1)} {', '.join(numbers)}"
            rows.append((f"run by {who}", f"{what}, because {why}" if why else what))
        return Table((), rows, "<~")

    def _table(
        self, steps: Sequence[ExplainedStep], *, brief: bool = False, notes: Sequence[str] = ()
    ) -> Table:
        """Return the table of steps; the brief one has sizes for bytes, and no memory."""
        loops = any(s.turns != 1 for s in self.steps)
        purposes = any(s.purpose for s in self.steps)
        numbers = [*["turns"] * loops, "per device", "total", "time", *["memory"] * (not brief)]
        amount = size_text if brief else amount_text
        rows = [
            (
                *_words(s)[:2],
                *[purpose_text(s.purpose)] * purposes,
                *_words(s)[2:],
                *[_turns(s)] * loops,
                *_amounts(s, amount),
                size_text(s.live_bytes),
            )
            for s in steps
        ]
        more = [PURPOSE] * purposes
        head = ("line", "step", *more, "on one device", "layout", "moves", *numbers)
        align = "<<" + "~" * purposes + "<~~" + ">" * len(numbers)
        return Table(head, [r[: len(head)] for r in rows], align, notes, spare=_SPARE)

    def __str__(self) -> str:
        shown, width = self.steps, line_width(_WIDTH)
        if len(shown) > _ROWS:
            shown = tuple([s for s in shown if s.communications])
        rest = len(self.steps) - len(shown)
        notes = [f"and {rest:,} more steps, which move nothing"] * bool(rest)
        lines = [self._headline, *notes]
        if shown:
            table = self._table(shown, notes=notes)
            if table.width > width:  # pages and JSON have all of it
                table = self._table(shown, brief=True, notes=notes)
            lines = [self._headline, table.text(width)]
        lines += ["", self._totals().text(width)]
        if self.warnings:
            told = map(_sentence, self.warnings[:_WARNINGS])
            lines += ["", *(textwrap.fill(t, width, subsequent_indent="  ") for t in told)]
        if len(self.warnings) > _WARNINGS:
            lines.append(f"and {len(self.warnings) - _WARNINGS:,} more")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return (
            f"Explanation({self.name!r}, {len(self.steps)} steps, {self.total_bytes} bytes, "
            f"{len(self.warnings)} warnings)"
        )


def _sentence(notice: Notice) -> str:
    return f"{'note' if notice.asked else 'warning'}: {notice}"


def _words(s: ExplainedStep) -> tuple[str, ...]:
    """Return where a step is written, what it is, how values are laid out, and what moves."""
    names, before, after = s.name.split("+"), *map(_layouts, (s.before, s.after))
    name = s.name if len(names) <= _NAMES else f"{names[0]}+...+{names[-1]}"
    kinds = dict.fromkeys((c.kind, c.axes) for c in s.communications)
    return (
        short_line(s.line) or "-",
        f"{s.number} {'  ' * s.depth}{name}",
        s.local,
        after if before in (after, "") else f"{before} -> {after}",
        ", ".join(f"{kind} {','.join(axes)}".rstrip() for kind, axes in kinds) or "-",
    )


def _layouts(values: Sequence[str]) -> str:
    """Return how values are laid out without quotes, as in ``P(i, -)``."""
    return ", ".join(dict.fromkeys(values)).replace("'", "").replace("None", "-")


def _turns(s: ExplainedStep) -> str:
    return "?" if s.turns is None else f"{s.turns:,}"


def _amounts(s: ExplainedStep, amount: Callable[[int], str]) -> tuple[str, str, str]:
    if not s.communications:
        return "", "", ""
    most = "" if s.exact else "<= "
    own, total = f"{most}{amount(s.bytes_per_device)}", f"{most}{amount(s.total_bytes)}"
    return own, total, time_text(s.seconds)


def _bar(s: ExplainedStep) -> Bar:
    kinds = ", ".join(dict.fromkeys(c.kind for c in s.communications))
    axes = ", ".join(dict.fromkeys(a for c in s.communications for a in c.axes))
    return Bar(
        s.number,
        f"{s.name} at {short_line(s.line)}" + f", {s.purpose}" * bool(s.purpose),
        f"{kinds} over {axes}" if axes else kinds,
        s.counted * s.seconds,
        {d: n * s.counted for d, n in s.received.items()},
    )


def _step_value(s: ExplainedStep) -> dict[str, object]:
    found = fields(s, *ExplainedStep.__dataclass_fields__)
    found |= fields(s, "total_bytes", "bytes_per_device", "received", "exact")
    return found | {"communications": [fields(c, *_MOVES) for c in s.communications]}
