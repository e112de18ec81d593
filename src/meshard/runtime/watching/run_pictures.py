"""Pictures of what ran: a heat map of bytes by line and device, and timelines.

In: records of communication, events, or the steps of a program. Out: drawings, and the parts of a
ledger's page. All is bounded, however many records, lines, events or devices there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import nlargest
from typing import NamedTuple

from meshard.plan.captions import (
    PALETTE,
    amount_text,
    bytes_text,
    count_text,
    ink,
    size_text,
    time_text,
)
from meshard.plan.show.page import Markup, element, wide
from meshard.plan.show.record import PURPOSE, Record, bytes_by_line, labels, purpose_text
from meshard.plan.show.report import Table
from meshard.plan.show.svg import (
    LETTER,
    SIZE,
    Panel,
    Sheet,
    between,
    centred,
    evenly,
    heat,
    rect,
    steps,
)
from meshard.runtime.watching.trace_file import Event

_MOST_ROWS, _MOST_COLUMNS, _MOST_LINES = 12, 32, 100  # of a heat map, and of its table
_LONGEST = 44  # characters of a name
_MOST_BOXES, _MOST_THREADS, _MOST_DEVICES, _MOST_LANES = 400, 8, 16, 64
_WIDTH, _ROW, _BAR, _HIGH = 860.0, 22.0, 18.0, 20.0  # of timelines, and of a heat map's rows
_LEAST, _SLIVER = 0.75, 3.0  # the least width of an event, and of a step
_STEP_IN, _DEEPEST = 3.0, 3  # how much smaller an event inside another is, and how often
_CATEGORIES = ("step", "operation", "body", "move", "kernel")
_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "permute", "reshard", "move")
_TICKS = 4


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


def ledger_svg(records: Sequence[Record], *heading: str) -> Markup:
    """Return the heat map of bytes by line and device.

    Args:
        records: the communications.
        heading: lines above, for a drawing that stands alone.
    """
    sheet = Sheet(*heading)
    if not records:
        sheet.notes(["no communication"])
        return sheet.picture("no communication")
    rows, rest = _rows(records)
    devices = sorted({d for r in records for d in r.received})
    each = -(-len(devices) // _MOST_COLUMNS)
    groups = [devices[i : i + each] for i in range(0, len(devices), each)]
    amounts = [[sum(row.received.get(d, 0) for d in group) for group in groups] for row in rows]
    # The sums of all lines would make each of them faint: they have a scale of their own.
    most = max(1, *(n for own in amounts[len(rows) > 1 :] for n in own))
    scales = [max(amounts[0]), *[most] * len(rows)]
    sheet.notes(["bytes that each device receives, by line"])
    sheet.panels([_heat_map(rows, groups, amounts, scales)])
    sheet.notes([f"and {count_text(rest, 'more line')}"] * bool(rest))
    sheet.notes([f"each column is {each} neighbouring devices"] * (each > 1))
    return sheet.picture(f"bytes by line (row) and device (column), at most {size_text(most)}")


def _heat_map(
    rows: Sequence[_Row],
    groups: Sequence[Sequence[int]],
    amounts: Sequence[Sequence[int]],
    scales: Sequence[int],
) -> Panel:
    """Return a row for each line, whose cells are the stronger the nearer they are to its scale."""
    cell = min(38.0, max(16.0, 420 / len(groups)))
    width, height = cell * len(groups), _HIGH * len(rows)
    grid = evenly(len(groups), len(rows), cell, _HIGH)
    ids = [str(g[0]) if len(g) == 1 else f"{g[0]} to {g[-1]}" for g in groups]
    cells = [
        (
            grid.place((r, r + 1), (c, c + 1)),
            amount / scales[r],
            f"{rows[r].name}, device {ids[c]}: {bytes_text(amount)}",
        )
        for r, own in enumerate(amounts)
        for c, amount in enumerate(own)
        if amount
    ]
    texts = [f"{size_text(sum(own))}  {row.does}" for row, own in zip(rows, amounts, strict=True)]
    beside = [centred(width + 8, y, text) for y, text in between(grid.ys, texts)]
    return Panel(
        [rect(0, 0, width, height, "gap"), heat(cells), grid.lines(), *beside],
        width,
        height,
        names=("device",),
        rows=between(grid.ys, [row.name for row in rows]),
        columns=between(grid.xs, [str(group[0]) for group in groups]),
        ink="ink",
        right=8 + LETTER * SIZE * max(map(len, texts)),
    )


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


# Timelines: a lane for each thread or device, a box for each event or step.


class Lane(NamedTuple):
    """One row of a timeline: its name, and its events."""

    name: str
    events: Sequence[Event]


def lanes_of(events: Sequence[Event], devices: Mapping[int, str]) -> list[Lane]:
    """Return a lane for each thread, and one for each device for which steps ran."""
    threads: dict[int, list[Event]] = {}
    ran: dict[int, list[Event]] = {}
    for event in events:
        threads.setdefault(event.thread, []).append(event)
        for device in event.devices:
            ran.setdefault(device, []).append(event)
    lanes = [Lane(f"thread {n}", threads[n]) for n in sorted(threads)[:_MOST_THREADS]]
    shown = sorted(d for d in ran if d in devices)[:_MOST_DEVICES]
    return [*lanes, *(Lane(devices[d], ran[d]) for d in shown)]


def lanes_svg(lanes: Sequence[Lane], first: int, last: int, *heading: str) -> Markup:
    """Return a timeline of events.

    Args:
        lanes: its rows.
        first: when it begins, in nanoseconds.
        last: when it ends.
        heading: lines above, for a drawing that stands alone.
    """
    sheet, span = Sheet(*heading), max(1, last - first)
    if not lanes:
        sheet.notes(["nothing ran"])
        return sheet.picture("nothing ran")
    height = _ROW * len(lanes)
    times = steps([1] * _TICKS, _WIDTH)
    parts = [rect(min(x, _WIDTH - 1), 0, 1, height, "gap") for x in times]
    each, hidden = max(8, _MOST_BOXES // len(lanes)), 0
    for number, lane in enumerate(lanes):
        longest = nlargest(each, lane.events, key=lambda e: e.stop - e.start)
        hidden += len(lane.events) - len(longest)
        parts += _events(longest, number * _ROW, first, _WIDTH / span)
    columns = [(x, time_text(span * x / _WIDTH / 1e9)) for x in times]
    rows = [((n + 0.5) * _ROW, lane.name) for n, lane in enumerate(lanes)]
    sheet.panels([Panel(parts, _WIDTH, height, rows=rows, columns=columns)])
    names = dict.fromkeys(e.category for lane in lanes for e in lane.events)
    sheet.legend([(_color(name, _CATEGORIES), name) for name in names])
    sheet.notes([f"of each lane the {each:,} longest; {hidden:,} not drawn"] * bool(hidden))
    told = f"events of {count_text(len(lanes), 'thread or device')} over {time_text(span / 1e9)}"
    return sheet.picture(told)


def _color(name: str, names: Sequence[str]) -> str:
    """Return the colour of one of some names; of all others the next."""
    return PALETTE[names.index(name) if name in names else len(_KINDS)]


def _nested(events: Sequence[Event]) -> Iterator[tuple[Event, int]]:
    """Yield events in order, each with the number of events around it."""
    around: list[Event] = []
    for event in sorted(events, key=lambda e: (e.start, -e.stop)):
        while around and around[-1].stop <= event.start:
            around.pop()
        yield event, min(len(around), _DEEPEST)
        around.append(event)


def _events(events: Sequence[Event], y: float, first: int, scale: float) -> Iterator[Markup]:
    """Yield the events of a lane, and then the names of those with room for one."""
    names: list[Markup] = []
    free = 0.0  # where the last box with a name is hidden by no other
    for event, depth in _nested(events):
        x = max(0.0, (event.start - first) * scale)
        wide = min(max(_LEAST, (event.stop - event.start) * scale), _WIDTH - x + _LEAST)
        moved = f", {bytes_text(event.total_bytes)} moved" * bool(event.total_bytes)
        line = f" at {event.line}" * bool(event.line) + f", {event.purpose}" * bool(event.purpose)
        inset = 1 + _STEP_IN * depth
        color = _color(event.category, _CATEGORIES)
        told = f"{event.name}{line}: {time_text(event.seconds)}{moved}"
        yield rect(x, y + inset, wide, _ROW - 2 * inset, color, told)
        if names and x < free:
            names.pop()
        free, room = 0.0, LETTER * SIZE * len(event.name) + 6
        if not depth and wide > room:
            free = x + room
            spot = (x + 4, y + _ROW / 2)
            names.append(centred(*spot, event.name, color=ink(color), pointer_events="none"))
    yield from names


class Bar(NamedTuple):
    """One step of a timeline.

    Attributes:
        number: its place in the program.
        name: what it is.
        moves: what it moves; nothing where that is nothing.
        seconds: how long all of its communication takes.
        received: for each device id the bytes that it receives in all.
    """

    number: int
    name: str
    moves: str
    seconds: float
    received: Mapping[int, int]

    @property
    def kinds(self) -> str:
        """What it moves, without the axes."""
        return self.moves.split(" over ")[0]


def timeline(devices: Sequence[int], bars: Sequence[Bar], *heading: str) -> Markup:
    """Return a timeline of steps: a row for each device, with a box as wide as each step takes.

    Args:
        devices: the ids of the devices.
        bars: the steps.
        heading: lines above, for a drawing that stands alone.
    """
    shown = devices[:_MOST_LANES]
    seconds, height = sum(bar.seconds for bar in bars), _BAR * len(shown)
    free = max(_WIDTH - _SLIVER * len(bars), _WIDTH / 2)
    widths = [_SLIVER + free * bar.seconds / (seconds or 1.0) for bar in bars]
    parts: list[Markup] = []
    numbers, x = [], 0.0
    for bar, width in zip(bars, widths, strict=True):
        if bar.moves and width > 22:
            numbers.append((x + width / 2, str(bar.number)))
        parts += _boxes(bar, shown, x, max(width - 1, 1))
        x += width
    rows = [((n + 0.5) * _BAR, f"device {device}") for n, device in enumerate(shown)]
    sheet, names = Sheet(*heading), (time_text(seconds),)
    sheet.panels([Panel(parts, x, height, names=names, rows=rows, columns=numbers)])
    kinds = dict.fromkeys(bar.kinds for bar in bars if bar.moves)
    sheet.legend([(_color(k.split(", ")[0], _KINDS), k) for k in kinds])
    sheet.notes(["a sliver stands for computing, which takes no time here"])
    hidden = len(devices) - len(shown)
    sheet.notes([f"{hidden:,} more devices are not drawn"] * bool(hidden))
    return sheet.picture("time from left to right, a row for each device")


def _boxes(bar: Bar, devices: Sequence[int], x: float, width: float) -> Iterator[Markup]:
    told = f"{bar.number}: {bar.name}"
    if not bar.moves:
        high = len(devices) * _BAR - 4
        yield rect(x, 2, width, high, "faint", told, fill_opacity=0.25)
    color, most = _color(bar.kinds.split(", ")[0], _KINDS), max([1, *bar.received.values()])
    for row, device in enumerate(devices):
        amount = bar.received.get(device, 0)
        if amount:
            text = f"{told}; {bar.moves}; {amount:,} bytes; {time_text(bar.seconds)}"
            place, share = (x, row * _BAR + 2, width, _BAR - 4), 0.3 + 0.7 * amount / most
            yield rect(*place, color, text, fill_opacity=share)
