"""Small charts of results, in the colours of the library's drawings.

In: numbers. Out: an SVG each, without scripts; light or dark as the page is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from meshard.plan.captions import PALETTE
from meshard.plan.show.page import LIGHT, Markup, element, number_text
from meshard.plan.show.svg import centred, label, picture, rect, standalone

WIDTH, HEIGHT = 340, 230
EDGE = 14  # around the content of a chart


def chart(told: str, parts: Sequence[Markup], width: float = WIDTH, height: float = HEIGHT) -> str:
    """Return parts on a card."""
    card = rect(0.5, 0.5, width - 1, height - 1, "card", rx=6)
    return standalone(picture(width, height, told, [card, *parts]), "")


def heat_map(
    values: np.ndarray,
    told: str,
    *,
    cuts: tuple[Sequence[int], Sequence[int]] = ((), ()),
    tell: Callable[[int, int], str] | None = None,
    stretched: bool = False,
) -> str:
    """Return a cell for each number of a matrix, and lines where devices meet.

    Args:
        values: the numbers; NaN is left empty.
        told: a description.
        cuts: the rows and the columns before which a line is drawn.
        tell: the text inside a cell.
        stretched: whether the cells fill the chart; otherwise they are squares.
    """
    rows, columns = values.shape
    wide, high = (WIDTH - 2 * EDGE) / columns, (HEIGHT - 2 * EDGE) / rows
    if not stretched:
        wide = high = min(wide, high)
    left, top = (WIDTH - columns * wide) / 2, (HEIGHT - rows * high) / 2
    low, span = np.nanmin(values), np.ptp(values[~np.isnan(values)]) or 1
    shares = (values - low) / span
    least = 0.0 if tell else 0.01  # what is less has the colour of the ground, NaN too
    paths: dict[float, list[str]] = {}
    for i, row in enumerate(shares):
        steps = [round(float(v) * 40) / 40 if v >= least else -1.0 for v in row]
        # Neighbours of one colour are one rectangle; all of a colour are one element.
        ends = [j for j in range(1, columns + 1) if j == columns or steps[j] != steps[j - 1]]
        for start, end in pairwise([0, *ends]):
            x, y = number_text(left + start * wide), number_text(top + i * high)
            across, down = number_text((end - start) * wide), number_text(high)
            paths.setdefault(steps[start], []).append(f"M{x} {y}h{across}v{down}h-{across}z")
    paths.pop(-1.0, None)
    parts = [rect(left, top, columns * wide, rows * high, "gap")]
    for share, shapes in paths.items():
        # A deeper colour on light ground, a brighter one on dark ground.
        look = {"class_": "meshard-hot", "fill": LIGHT["hot"], "fill_opacity": 0.1 + 0.9 * share}
        parts.append(element("path", d="".join(shapes), shape_rendering="crispEdges", **look))
    for i, j in np.ndindex(values.shape) if tell else ():
        ink = "gap" if shares[i, j] > 0.45 else "ink"
        place = left + (j + 0.5) * wide, top + (i + 0.5) * high
        parts.append(centred(*place, tell(i, j), "middle", ink))
    for cut in cuts[0]:
        parts.append(rect(left, top + cut * high - 0.75, columns * wide, 1.5, "card"))
    for cut in cuts[1]:
        parts.append(rect(left + cut * wide - 0.75, top, 1.5, rows * high, "card"))
    return chart(told, parts)


def scatter(points: np.ndarray, groups: Sequence[int], told: str) -> str:
    """Return points in the plane, coloured by group."""
    place = _placed(points)
    return chart(
        told,
        [
            element("circle", cx=x, cy=y, r=2.6, fill=PALETTE[group % len(PALETTE)])
            for (x, y), group in zip(place, groups, strict=True)
        ],
    )


def curves(lines: Sequence[np.ndarray], told: str, *, marks: bool = False) -> str:
    """Return lines of numbers over their places."""
    every = np.concatenate([np.stack([np.arange(len(y)), y], 1) for y in lines])
    place = _placed(every)
    parts, start = [], 0
    for number, line in enumerate(lines):
        points = place[start : start + len(line)]
        start += len(line)
        text = " ".join(f"{number_text(x)},{number_text(y)}" for x, y in points)
        stroke = PALETTE[number % len(PALETTE)]
        parts.append(element("polyline", points=text, fill="none", stroke=stroke, stroke_width=1.4))
        if marks:
            parts += [element("circle", cx=x, cy=y, r=2, fill=stroke) for x, y in points]
    return chart(told, parts)


def bars(amounts: Mapping[str, float], told: str, unit: str) -> str:
    """Return a bar for each amount, with its name and number."""
    high = (HEIGHT - 2 * EDGE) / len(amounts)
    most = max(amounts.values())
    parts = []
    for number, (name, amount) in enumerate(amounts.items()):
        y = EDGE + number * high
        wide = (WIDTH - 2 * EDGE) * amount / most
        parts.append(label(EDGE, y + 14, name, "ink", font_size=13))
        parts.append(rect(EDGE, y + 21, wide, min(high - 34, 30), PALETTE[number]))
        text = f"{amount:,.0f} {unit}"
        parts.append(label(WIDTH - EDGE, y + 14, text, "faint", text_anchor="end"))
    return chart(told, parts)


def _placed(points: np.ndarray) -> np.ndarray:
    """Return points on the chart, y upwards."""
    low, high = points.min(axis=0), points.max(axis=0)
    share = (points - low) / np.where(high > low, high - low, 1)
    inner = np.array([WIDTH, HEIGHT]) - 2 * EDGE
    return EDGE + np.stack([share[:, 0], 1 - share[:, 1]], axis=1) * inner
