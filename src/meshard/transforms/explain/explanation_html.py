"""Explanations as HTML: a timeline for each device, the steps, what is made whole.

In: the figures of an explanation. Out: text in which everything stands, and nothing is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from meshard.plan.captions import PALETTE
from meshard.plan.figures.simulate import time_text
from meshard.plan.show.plan_html import SHEET, label_svg, open_svg, table_html, whole_page
from meshard.plan.show.svg import xml_text

_MOST_DEVICES = 64
_MOST_ROWS = 500
_LEFT, _WIDTH, _ROW, _TOP = 76.0, 880.0, 18.0, 40.0
_LEAST = 3.0
_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "permute", "reshard", "move")


class Bar(NamedTuple):
    """One step of a timeline.

    Attributes:
        number: its place in the program.
        name: what it is.
        moves: what it moves; nothing where that is nothing.
        counted: how often it counts.
        seconds: how long all of its communication takes.
        received: for each device id the bytes that it receives in all.
    """

    number: int
    name: str
    moves: str
    counted: int
    seconds: float
    received: Mapping[int, int]


def page(title: str, inside: str) -> str:
    """Return an explanation as a whole HTML page."""
    return whole_page(title, inside)


def timeline_html(
    title: str,
    totals: Sequence[tuple[str, str]],
    warnings: Sequence[str],
    devices: Sequence[int],
    bars: Sequence[Bar],
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    texts: int,
) -> str:
    """Return an explanation as one HTML element, for a notebook or a page.

    Args:
        title: the headline.
        totals: what, and how much.
        warnings: sentences.
        devices: the device ids.
        bars: the steps.
        head: the head of the table of steps.
        rows: its rows.
        texts: how many of its columns are text.
    """
    facts = "".join(
        f"<tr><td>{xml_text(name)}</td><td>{xml_text(value)}</td></tr>" for name, value in totals
    )
    parts = [
        f"<style>{SHEET}</style><h2>{xml_text(title)}</h2>",
        f'<div class="wide"><table><tbody>{facts}</tbody></table></div>',
    ]
    if warnings:
        told = "".join(f"<li>{xml_text(w)}</li>" for w in warnings)
        parts.append(f"<h3>What becomes whole, or is split otherwise</h3><ul>{told}</ul>")
    if any(bar.moves for bar in bars):
        parts.append("<h3>Communication of each device</h3>")
        parts.append(f'<div class="wide">{_timeline(devices, bars)}</div>')
    parts.append("<h3>Steps</h3>")
    parts.append(table_html(head, rows[:_MOST_ROWS], texts))
    if len(rows) > _MOST_ROWS:
        parts.append(f"<p>and {len(rows) - _MOST_ROWS:,} more steps</p>")
    return f'<div class="meshard-plan">{"".join(parts)}</div>'


def _color(moves: str) -> str:
    kind = moves.split(" over ")[0].split(", ")[0]
    return PALETTE[_KINDS.index(kind) if kind in _KINDS else len(_KINDS)]


def _timeline(devices: Sequence[int], bars: Sequence[Bar]) -> str:
    """Return a row for each device, with a box for each step as wide as it takes."""
    shown = list(devices)[:_MOST_DEVICES]
    drawn = [bar for bar in bars if bar.counted]
    total = sum(bar.seconds for bar in drawn) or 1.0
    free = max(_WIDTH - _LEAST * len(drawn), _WIDTH / 2)
    widths = [_LEAST + free * bar.seconds / total for bar in drawn]
    width = _LEFT + sum(widths) + 12
    height = _TOP + len(shown) * _ROW + 46
    parts = [open_svg(width, height, "time from left to right, a row for each device")]
    parts.append(label_svg(_LEFT, 12, f"{time_text(sum(b.seconds for b in drawn))} →"))
    for row, device in enumerate(shown):
        y = _TOP + (row + 0.5) * _ROW
        parts.append(label_svg(_LEFT - 6, y, f"device {device}", "end"))
    x = _LEFT
    for bar, wide in zip(drawn, widths, strict=True):
        if bar.moves and wide > 22:
            parts.append(label_svg(x + wide / 2, _TOP - 8, str(bar.number), "middle"))
        parts += _boxes(bar, shown, x, wide)
        x += wide
    parts += _legend(drawn, _TOP + len(shown) * _ROW + 18)
    note = "a sliver stands for computing, which takes no time here"
    if len(devices) > len(shown):
        note += f"; {len(devices) - len(shown):,} more devices are not drawn"
    parts.append(label_svg(_LEFT, height - 8, note))
    return "".join([*parts, "</svg>"])


def _boxes(bar: Bar, devices: Sequence[int], x: float, wide: float) -> list[str]:
    told = f"{bar.number}: {bar.name}"
    if not bar.moves:
        high = len(devices) * _ROW - 4
        return [
            f'<rect x="{x:.2f}" y="{_TOP + 2:.1f}" width="{max(wide - 1, 1):.2f}" '
            f'height="{high:.1f}" fill="#59636e" fill-opacity="0.25">'
            f"<title>{xml_text(told)}</title></rect>"
        ]
    most = max([1, *bar.received.values()])
    found = []
    for row, device in enumerate(devices):
        amount = bar.received.get(device, 0)
        if amount:
            text = f"{told}; {bar.moves}; {amount:,} bytes; {time_text(bar.seconds)}"
            found.append(
                f'<rect x="{x:.2f}" y="{_TOP + row * _ROW + 2:.1f}" '
                f'width="{max(wide - 1, 1):.2f}" height="{_ROW - 4:.1f}" '
                f'fill="{_color(bar.moves)}" fill-opacity="{0.3 + 0.7 * amount / most:.3f}">'
                f"<title>{xml_text(text)}</title></rect>"
            )
    return found


def _legend(bars: Sequence[Bar], y: float) -> list[str]:
    kinds = dict.fromkeys(b.moves.split(" over ")[0] for b in bars if b.moves)
    found, x = [], _LEFT
    for kind in kinds:
        found.append(
            f'<rect x="{x:.1f}" y="{y - 5:.1f}" width="10" height="10" fill="{_color(kind)}"/>'
        )
        found.append(label_svg(x + 15, y, kind))
        x += 15 + 7 * len(kind) + 18
    return found
