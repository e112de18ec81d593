"""Timelines: for each device the communication of a program, step by step, as a drawing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from meshard.plan.captions import PALETTE, time_text
from meshard.plan.show.page import Markup
from meshard.plan.show.svg import centred, picture, rect

_MOST_DEVICES = 64
_LEFT, _WIDTH, _ROW, _TOP = 76.0, 880.0, 18.0, 40.0
_LEAST = 3.0
_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "permute", "reshard", "move")


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


def timeline(devices: Sequence[int], bars: Sequence[Bar], heading: str = "") -> Markup:
    """Return a row for each device, with a box for each step as wide as it takes.

    Args:
        devices: the ids of the devices.
        bars: the steps.
        heading: a line above, for a drawing that stands alone.
    """
    shown = devices[:_MOST_DEVICES]
    seconds = sum(bar.seconds for bar in bars)
    free = max(_WIDTH - _LEAST * len(bars), _WIDTH / 2)
    widths = [_LEAST + free * bar.seconds / (seconds or 1.0) for bar in bars]
    bottom = _TOP + len(shown) * _ROW
    parts = [centred(_LEFT, 14, f"{time_text(seconds)} →")]
    for row, device in enumerate(shown):
        y = _TOP + (row + 0.5) * _ROW
        parts.append(centred(_LEFT - 6, y, f"device {device}", "end"))
    x = _LEFT
    for bar, wide in zip(bars, widths, strict=True):
        if bar.moves and wide > 22:
            parts.append(centred(x + wide / 2, _TOP - 8, str(bar.number), "middle"))
        parts += _boxes(bar, shown, x, max(wide - 1, 1))
        x += wide
    parts += _legend(bars, bottom + 18)
    note = "a sliver stands for computing, which takes no time here"
    if len(devices) > len(shown):
        note += f"; {len(devices) - len(shown):,} more devices are not drawn"
    parts.append(centred(_LEFT, bottom + 38, note))
    told = "time from left to right, a row for each device"
    return picture(_LEFT + sum(widths) + 14, bottom + 52, told, parts, heading=heading)


def _boxes(bar: Bar, devices: Sequence[int], x: float, wide: float) -> Iterator[Markup]:
    told = f"{bar.number}: {bar.name}"
    if not bar.moves:
        high = len(devices) * _ROW - 4
        yield rect(x, _TOP + 2, wide, high, "faint", told, fill_opacity=0.25)
    most = max([1, *bar.received.values()])
    for row, device in enumerate(devices):
        amount = bar.received.get(device, 0)
        if amount:
            text = f"{told}; {bar.moves}; {amount:,} bytes; {time_text(bar.seconds)}"
            y, share = _TOP + row * _ROW + 2, 0.3 + 0.7 * amount / most
            yield rect(x, y, wide, _ROW - 4, _color(bar.kinds), text, fill_opacity=share)


def _color(kinds: str) -> str:
    kind = kinds.split(", ")[0]
    return PALETTE[_KINDS.index(kind) if kind in _KINDS else len(_KINDS)]


def _legend(bars: Sequence[Bar], y: float) -> Iterator[Markup]:
    x = _LEFT
    for kinds in dict.fromkeys(bar.kinds for bar in bars if bar.moves):
        yield rect(x, y - 5, 10, 10, _color(kinds))
        yield centred(x + 15, y, kinds)
        x += 15 + 7 * len(kinds) + 18
