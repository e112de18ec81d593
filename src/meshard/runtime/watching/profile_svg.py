"""Profiles as timelines: a lane for each thread and each device, a box for each event.

In: events. Out: a drawing. Of many events the longest are drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import nlargest
from typing import NamedTuple

from meshard.plan.captions import PALETTE, bytes_text, count_text, ink, time_text
from meshard.plan.show.page import Markup
from meshard.plan.show.svg import centred, label, picture, rect
from meshard.runtime.watching.trace_file import Event

_MOST_BOXES, _MOST_THREADS, _MOST_DEVICES = 400, 8, 16
_LEFT, _WIDTH, _ROW, _TOP, _MARGIN = 84.0, 860.0, 22.0, 34.0, 14.0
_LEAST, _WORDS = 0.75, 6.4  # the least width of a box; the width of a character
_STEP_IN, _DEEPEST = 3.0, 3  # how much smaller an event inside another is, and how often
_CATEGORIES = ("step", "operation", "body", "move", "kernel")
_COLORS = dict(zip(_CATEGORIES, PALETTE, strict=False))
_TICKS = 4


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


def lanes_svg(lanes: Sequence[Lane], first: int, last: int, heading: str = "") -> Markup:
    """Return a timeline.

    Args:
        lanes: its rows.
        first: when it begins, in nanoseconds.
        last: when it ends.
        heading: a line above, for a drawing that stands alone.
    """
    span = max(1, last - first)
    if not lanes:
        parts = [centred(_MARGIN, 24, "nothing ran", color="ink", font_size=12)]
        return picture(180, 46, "nothing ran", parts, heading=heading)
    bottom = _TOP + _ROW * len(lanes)
    right = _LEFT + _WIDTH
    parts = []
    for tick in range(_TICKS + 1):
        x = _LEFT + _WIDTH * tick / _TICKS
        parts.append(rect(x, _TOP - 6, 1, bottom - _TOP + 6, "gap"))
        anchor = "start" if tick == 0 else "end" if tick == _TICKS else "middle"
        parts.append(centred(x, 16, time_text(span * tick / _TICKS / 1e9), anchor))
    each, hidden = max(8, _MOST_BOXES // len(lanes)), 0
    for number, lane in enumerate(lanes):
        y = _TOP + number * _ROW
        parts.append(centred(_LEFT - 8, y + _ROW / 2, lane.name, "end"))
        longest = nlargest(each, lane.events, key=lambda e: e.stop - e.start)
        hidden += len(lane.events) - len(longest)
        parts += _boxes(longest, y, first, _WIDTH / span)
    bottom += 18
    x = _LEFT
    for category in dict.fromkeys(e.category for lane in lanes for e in lane.events):
        parts.append(rect(x, bottom - 9, 10, 10, _COLORS.get(category, PALETTE[7])))
        parts.append(label(x + 15, bottom, category))
        x += 15 + _WORDS * len(category) + 16
    if hidden:
        parts.append(label(x, bottom, f"of each lane the {each:,} longest; {hidden:,} not drawn"))
    told = f"events of {count_text(len(lanes), 'thread or device')} over {time_text(span / 1e9)}"
    return picture(right + _MARGIN, bottom + 14, told, parts, heading=heading)


def _nested(events: Sequence[Event]) -> Iterator[tuple[Event, int]]:
    """Yield events in order, each with the number of events around it."""
    around: list[Event] = []
    for event in sorted(events, key=lambda e: (e.start, -e.stop)):
        while around and around[-1].stop <= event.start:
            around.pop()
        yield event, min(len(around), _DEEPEST)
        around.append(event)


def _boxes(events: Sequence[Event], y: float, first: int, scale: float) -> Iterator[Markup]:
    """Yield the events of a lane, and then the names of those with room for one."""
    names: list[Markup] = []
    free = 0.0  # where the last box with a name is hidden by no other
    for event, depth in _nested(events):
        x = _LEFT + max(0.0, (event.start - first) * scale)
        wide = min(max(_LEAST, (event.stop - event.start) * scale), _LEFT + _WIDTH - x + _LEAST)
        moved = f", {bytes_text(event.total_bytes)} moved" * bool(event.total_bytes)
        line = f" at {event.line}" * bool(event.line) + f", {event.purpose}" * bool(event.purpose)
        inset = 1 + _STEP_IN * depth
        color = _COLORS.get(event.category, PALETTE[7])
        told = f"{event.name}{line}: {time_text(event.seconds)}{moved}"
        yield rect(x, y + inset, wide, _ROW - 2 * inset, color, told)
        if names and x < free:
            names.pop()
        free = 0.0
        if not depth and wide > _WORDS * len(event.name) + 6:
            free = x + _WORDS * len(event.name) + 6
            spot = (x + 4, y + _ROW / 2)
            names.append(centred(*spot, event.name, color=ink(color), pointer_events="none"))
    yield from names
