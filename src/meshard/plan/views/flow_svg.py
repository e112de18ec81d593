"""Drawings of flows: a band from each sender to each receiver, or a heat map of many.

In: a flow. Out: one ``<svg>`` element. The bands of a sender have its colour. The map has the sums
of its rows and columns as bars at its edges, where an uneven load is seen first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np

from meshard.plan.captions import PALETTE, bytes_text, size_text
from meshard.plan.figures.flow import Flow
from meshard.plan.show.page import LIGHT, Markup, element, number_text
from meshard.plan.show.svg import centred, picture, rect, upright

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MOST_BANDS = 32  # devices on either side, up to which every band is drawn
CELL, LEFT, TOP, BAR = 12.0, 98.0, 64.0, 64.0  # of the map: a row, the margins, the longest bar
SEEN = CELL - 0.8  # of a row, so that equal neighbours stay apart
BAND_WIDTH, ROW, BLOCK = 380.0, 26.0, 104.0


def flow_svg(flow: Flow, *, marked: str = "") -> Markup:
    """Return a flow as one ``<svg>`` element: bands between devices, or a heat map of many.

    Args:
        flow: the flow.
        marked: the device or group that limits the move, as in ``"host 3"``; its row is framed.
    """
    single = all(a == b for a, b in (*flow.senders, *flow.receivers))
    few = max(len(flow.senders), len(flow.receivers)) <= MOST_BANDS
    devices = flow.unit == "device" or max(flow.amounts.shape, default=0) <= 4
    return _bands(flow, marked) if single and few and devices else _heat(flow, marked)


def _ids(span: tuple[int, int]) -> str:
    return str(span[0]) if span[0] == span[1] else f"{span[0]}-{span[1]}"


def _moving(flow: Flow) -> Iterator[tuple[int, int, float, str]]:
    """Yield each pair of sender and receiver: row, column, bytes, and a text."""
    for i, j in np.argwhere(flow.amounts > 0).tolist():
        amount = float(flow.amounts[i, j])
        ends = f"{_ids(flow.senders[i])} to {_ids(flow.receivers[j])}"
        yield i, j, amount, f"{ends}: {bytes_text(round(amount))}"


@final
@dataclass(frozen=True)
class Bands:
    """Bands between two columns of blocks: each block is as high as what passes it.

    Attributes:
        left: the middle of each block on the left.
        right: the same on the right.
        scale: the height of one byte.
        x: the right edge of the blocks on the left, and the left edge of those on the right.
    """

    left: Sequence[float]
    right: Sequence[float]
    scale: float
    x: tuple[float, float]

    def drawn(self, layers: Sequence[Floats], colors: Sequence[str]) -> Iterator[Drawn]:
        """Yield all bands.

        Args:
            layers: amounts of several kinds, each ``[left, right]``.
            colors: the colour of each block on the left.
        """
        amounts = np.stack([*layers], axis=-1)
        from_, to = (
            [y - total * self.scale / 2 for y, total in zip(ys, sums.tolist(), strict=True)]
            for ys, sums in (
                (self.left, amounts.sum(axis=(1, 2))),
                (self.right, amounts.sum(axis=(0, 2))),
            )
        )
        start, end = self.x
        middle = (start + end) / 2
        for i, j, layer in np.argwhere(amounts > 0).tolist():
            high = float(amounts[i, j, layer]) * self.scale
            y, z = from_[i] + high / 2, to[j] + high / 2
            from_[i] += high
            to[j] += high
            d = f"M{start:.1f} {y:.1f}C{middle:.1f} {y:.1f} {middle:.1f} {z:.1f} {end:.1f} {z:.1f}"
            wide = number_text(max(high, 0.6))
            yield Drawn(i, j, layer, f'd="{d}" stroke="{colors[i]}" stroke-width="{wide}"')


class Drawn(NamedTuple):
    """One band: its sender and receiver, its layer, and the attributes of its path."""

    sender: int
    receiver: int
    layer: int
    shape: str


def band(shape: str, told: str) -> Markup:
    """Return one band of `Bands`, with a tooltip; it belongs into `banded`."""
    return Markup(f"<path {shape}>{element('title', told)}</path>")


def banded(bands: Iterable[Markup], opacity: float) -> Markup:
    """Return bands as one group."""
    return element("g", *bands, fill="none", stroke_opacity=opacity)


def _bands(flow: Flow, marked: str) -> Markup:
    """Return a band from each sender to each receiver, as wide as its bytes."""
    sent, received = flow.amounts.sum(axis=1), flow.amounts.sum(axis=0)
    rows = max(len(sent), len(received), 1)
    end = BLOCK + BAND_WIDTH
    left, right = (
        [TOP / 2 + (n + 0.5 + (rows - len(side)) / 2) * ROW for n in range(len(side))]
        for side in (sent, received)
    )
    scale = (ROW - 8) / max([1.0, *sent.tolist(), *received.tolist()])
    bands = Bands(left, right, scale, (BLOCK + 6, end - 6))
    parts = [centred(BLOCK, 14, "sends", "end"), centred(end, 14, "receives")]
    told = {(i, j): text for i, j, _, text in _moving(flow)}
    colors = [PALETTE[n % len(PALETTE)] for n in range(len(sent))]
    drawn = bands.drawn([flow.amounts], colors)
    parts.append(banded([band(x.shape, told[x.sender, x.receiver]) for x in drawn], 0.75))
    sides = (
        (left, sent, flow.senders, BLOCK, BLOCK - 6, "end"),
        (right, received, flow.receivers, end - 6, end + 6, "start"),
    )
    for ys, sums, spans, x, at, anchor in sides:
        for n, (y, total, span) in enumerate(zip(ys, sums.tolist(), spans, strict=True)):
            high = max(total * scale, 1.0)
            color = colors[n] if anchor == "end" else "faint"
            name = f"{flow.unit} {_ids(span)}"
            parts.append(rect(x, y - high / 2, 6, high, color, bytes_text(round(total))))
            weight = "700" if name == marked else None
            ink = "ink" if name == marked else "faint"
            parts.append(centred(at, y, name, anchor, ink, font_weight=weight))
    told_all = f"bytes from each {flow.unit} on the left to each on the right"
    return picture(BAND_WIDTH + 2 * BLOCK, TOP / 2 + rows * ROW + 14, told_all, parts)


def _heat(flow: Flow, marked: str) -> Markup:
    """Return a map with a row for each sender and a column for each receiver, or groups of them."""
    rows, columns = flow.amounts.shape
    right, bottom = LEFT + columns * CELL, TOP + rows * CELL
    most = float(flow.amounts.max(initial=0))
    told = f"bytes from each {flow.unit} (row) to each (column)"
    parts = [
        centred(LEFT, 14, f"to {flow.unit} \u2192", color="ink"),
        centred(8, TOP - 12, f"from {flow.unit} \u2193", color="ink"),
        rect(LEFT, TOP, columns * CELL, rows * CELL, "outline"),
    ]
    every = max(1, -(-max(rows, columns) // 16))
    for i in range(0, rows, every):
        y = TOP + (i + 0.5) * CELL
        parts.append(centred(LEFT - 6, y, str(flow.senders[i][0]), "end"))
    for j in range(0, columns, every):
        x, y = LEFT + (j + 0.5) * CELL, TOP - 6
        parts.append(centred(x, y, str(flow.receivers[j][0]), transform=upright(x, y)))
    parts.append(_cells(flow, most))
    parts += _sums(flow, right, bottom)
    parts += _frame(flow, marked)
    legend = right + BAR + 24
    for step, share in enumerate((1.0, 0.5, 0.0)):
        y = TOP + step * 18
        parts.append(rect(legend, y, CELL, CELL, "hot", fill_opacity=_shade(share, 1.0)))
        parts.append(centred(legend + 18, y + CELL / 2, size_text(round(most * share))))
    grouped = any(a != b for a, b in (*flow.senders, *flow.receivers))
    notes = [f"neighbouring {flow.unit}s stand together"] * grouped
    notes += ["estimated from some of the receivers"] * flow.estimated
    foot = bottom + BAR + 12
    if notes:
        parts.append(centred(8, foot, "; ".join(notes)))
        foot += 18
    return picture(max(legend + 90, 360), max(foot, TOP + 60), told, parts)


def _cells(flow: Flow, most: float) -> Markup:
    """Return the cells of the map, which have their colour from their group."""
    cells = [
        element(
            "rect",
            element("title", text),
            x=LEFT + j * CELL,
            y=TOP + i * CELL,
            width=SEEN,
            height=SEEN,
            fill_opacity=_shade(amount, most),
        )
        for i, j, amount, text in _moving(flow)
    ]
    return element("g", *cells, class_="meshard-hot", fill=LIGHT["hot"])


def _shade(amount: float, most: float) -> float:
    return 0.08 + 0.92 * amount / most if most else 0.08


def _sums(flow: Flow, right: float, bottom: float) -> Iterator[Markup]:
    """Yield what each row sends, and each column receives, as bars beside the map."""
    sent, received = flow.amounts.sum(axis=1), flow.amounts.sum(axis=0)
    for n, (total, span) in enumerate(zip(sent.tolist(), flow.senders, strict=True)):
        long = BAR * total / max(float(sent.max()), 1.0)
        told = f"{flow.unit} {_ids(span)} sends {bytes_text(round(total))}"
        yield rect(right + 4, TOP + n * CELL + 2, long, CELL - 4, "faint", told)
    for n, (total, span) in enumerate(zip(received.tolist(), flow.receivers, strict=True)):
        long = BAR * total / max(float(received.max()), 1.0)
        told = f"{flow.unit} {_ids(span)} receives {bytes_text(round(total))}"
        yield rect(LEFT + n * CELL + 2, bottom + 4, CELL - 4, long, "faint", told)


def _frame(flow: Flow, marked: str) -> Iterator[Markup]:
    """Yield a frame around the row and the column of what limits the move."""
    unit, _, number = marked.rpartition(" ")
    if unit != flow.unit or not number.isdecimal():
        return
    rows, columns = flow.amounts.shape
    for n, (first, last) in enumerate(flow.senders):
        if first <= int(number) <= last and flow.amounts[n].sum() >= flow.amounts.sum(axis=1).max():
            yield _outlined(LEFT, TOP + n * CELL, columns * CELL, CELL, marked)
    for n, (first, last) in enumerate(flow.receivers):
        if first <= int(number) <= last and flow.amounts[:, n].sum() > 0:
            yield _outlined(LEFT + n * CELL, TOP, CELL, rows * CELL, marked)


def _outlined(x: float, y: float, width: float, height: float, told: str) -> Markup:
    style = "fill:none;stroke:var(--meshard-ink);stroke-width:1.5"
    return rect(x, y, width, height, "outline", told, style=style, pointer_events="none")
