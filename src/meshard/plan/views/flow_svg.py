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
from meshard.plan.show.page import Markup, element, number_text
from meshard.plan.show.svg import Panel, Place, Sheet, centred, heat, picture, rect

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MOST_BANDS = 32  # devices on either side, up to which every band is drawn
CELL, BAR = 12.0, 64.0  # of the map: a row, and the longest bar
SEEN = CELL - 0.8  # of a row, so that equal neighbours stay apart
_FRAME = "fill:none;stroke:var(--meshard-ink);stroke-width:1.5"
BAND_WIDTH, ROW, BLOCK, TOP = 380.0, 26.0, 104.0, 32.0


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
        [TOP + (n + 0.5 + (rows - len(side)) / 2) * ROW for n in range(len(side))]
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
    return picture(BAND_WIDTH + 2 * BLOCK, TOP + rows * ROW + 14, told_all, parts)


def _heat(flow: Flow, marked: str) -> Markup:
    """Return a map with a row for each sender and a column for each receiver, or groups of them."""
    rows, columns = flow.amounts.shape
    width, height = columns * CELL, rows * CELL
    most, middles = (
        float(flow.amounts.max(initial=0)),
        [(n + 0.5) * CELL for n in range(max(rows, columns))],
    )
    cells = [
        ((j * CELL, i * CELL, SEEN, SEEN), amount / most, text)
        for i, j, amount, text in _moving(flow)
    ]
    panel = Panel(
        [
            rect(0, 0, width, height, "outline"),
            heat(cells),
            *_sums(flow, width, height),
            *_frame(flow, marked),
        ],
        width,
        height,
        names=(f"from {flow.unit}", f"to {flow.unit}"),
        rows=[(y, str(first)) for y, (first, _) in zip(middles, flow.senders, strict=False)],
        columns=[(x, str(first)) for x, (first, _) in zip(middles, flow.receivers, strict=False)],
        right=BAR + 4,
        below=BAR + 4,
    )
    sheet = Sheet()
    sheet.panels([panel])
    sheet.legend([(share, size_text(round(most * share))) for share in (0.0, 0.5, 1.0)])
    grouped = any(a != b for a, b in (*flow.senders, *flow.receivers))
    sheet.notes([f"neighbouring {flow.unit}s stand together"] * grouped)
    sheet.notes(["estimated from some of the receivers"] * flow.estimated)
    return sheet.picture(f"bytes from each {flow.unit} (row) to each (column)")


def _sums(flow: Flow, right: float, bottom: float) -> Iterator[Markup]:
    """Yield what each row sends, and each column receives, as bars beside the map."""
    for way, spans, axis in (("sends", flow.senders, 1), ("receives", flow.receivers, 0)):
        sums = flow.amounts.sum(axis=axis)
        for n, (total, span) in enumerate(zip(sums.tolist(), spans, strict=True)):
            long, at = BAR * total / max(float(sums.max()), 1.0), n * CELL + 2
            told = f"{flow.unit} {_ids(span)} {way} {bytes_text(round(total))}"
            across: Place = (right + 4, at, long, CELL - 4)
            down: Place = (at, bottom + 4, CELL - 4, long)
            yield rect(*(across if axis else down), "faint", told)


def _frame(flow: Flow, marked: str) -> Iterator[Markup]:
    """Yield a frame around the row and the column of what limits the move."""
    unit, _, number = marked.rpartition(" ")
    if unit != flow.unit or not number.isdecimal():
        return
    rows, columns = flow.amounts.shape
    for n, (first, last) in enumerate(flow.senders):
        if first <= int(number) <= last and flow.amounts[n].sum() >= flow.amounts.sum(axis=1).max():
            yield rect(0, n * CELL, columns * CELL, CELL, "outline", marked, style=_FRAME)
    for n, (first, last) in enumerate(flow.receivers):
        if first <= int(number) <= last and flow.amounts[:, n].sum() > 0:
            yield rect(n * CELL, 0, CELL, rows * CELL, "outline", marked, style=_FRAME)
