"""Drawings of flows: a band from each sender to each receiver, or a heat map of many.

In: a flow. Out: one ``<svg>`` element. The bands of a sender have its colour. The map has the sums
of its rows and columns as bars at its edges, where an uneven load is seen first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from meshard.plan.captions import PALETTE, bytes_text, size_text
from meshard.plan.figures.plan_figures import Flow
from meshard.plan.show.page import Markup, element
from meshard.plan.show.svg import (
    Panel,
    Place,
    Sheet,
    between,
    centred,
    evenly,
    heat,
    picture,
    rect,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Span = tuple[int, int]

MOST_BANDS = 32  # devices on either side, up to which every band is drawn
CELL, BAR = 12.0, 64.0  # of the map: a row, and the longest bar
SEEN = CELL - 0.8  # of a row, so that equal neighbours stay apart
_FRAME = "fill:none;stroke:var(--meshard-ink);stroke-width:1.5"
BAND_WIDTH, ROW, BLOCK, NAMES, TOP = 380.0, 26.0, 8.0, 104.0, 32.0


def flow_svg(flow: Flow, *, marked: str = "") -> Markup:
    """Return a flow as one ``<svg>`` element: bands between devices, or a heat map of many.

    Args:
        flow: the flow.
        marked: the device or group that limits the move, as in ``"host 3"``; its row is framed.
    """
    single = all(a == b for a, b in (*flow.senders, *flow.receivers))
    few = max(len(flow.senders), len(flow.receivers)) <= MOST_BANDS
    devices = flow.unit == "device" or max(flow.amounts.shape, default=0) <= 4
    if not (single and few and devices):
        return _heat(flow, marked)
    high = ROW * max(len(flow.senders), len(flow.receivers), 1)
    end = NAMES + BAND_WIDTH
    parts = [centred(NAMES, 14, "sends", "end"), centred(end, 14, "receives")]
    parts += banded(flow, colors_of([flow]), (NAMES, TOP, BAND_WIDTH, high), marked=marked)
    told = f"bytes from each {flow.unit} on the left to each on the right"
    return picture(end + NAMES, TOP + high + 14, told, parts)


def ids_text(span: Span) -> str:
    """Return the ids of a device, or of neighbours."""
    return str(span[0]) if span[0] == span[1] else f"{span[0]}-{span[1]}"


def colors_of(flows: Sequence[Flow]) -> Mapping[Span, str]:
    """Return the colour of each device, or group of neighbours."""
    spans = sorted({span for flow in flows for span in (*flow.senders, *flow.receivers)})
    return {span: PALETTE[n % len(PALETTE)] for n, span in enumerate(spans)}


def _moving(flow: Flow) -> Iterator[tuple[int, int, float, str]]:
    """Yield each pair of sender and receiver: row, column, bytes, and a text."""
    for i, j in np.argwhere(flow.amounts > 0).tolist():
        amount = float(flow.amounts[i, j])
        ends = f"{ids_text(flow.senders[i])} to {ids_text(flow.receivers[j])}"
        yield i, j, amount, f"{ends}: {bytes_text(round(amount))}"


def banded(
    flow: Flow,
    colors: Mapping[Span, str],
    place: Place,
    stays: Floats | None = None,
    *,
    marked: str | None = None,
) -> Iterator[Markup]:
    """Yield bands from senders at the left to receivers at the right, as wide as their bytes.

    Args:
        flow: what moves.
        colors: the colours of the devices.
        place: where the bands are; the names stand beside it.
        stays: what stays, which has fainter bands.
        marked: the name of what is emphasized; None for names that are only numbers.
    """
    (x, top, width, high), none = place, np.zeros(flow.amounts.shape)
    layers = np.stack([none if stays is None else stays, flow.amounts], axis=-1)
    sums = [layers.sum(axis=axes).tolist() for axes in ((1, 2), (0, 2))]
    room = high / max([1, *map(len, sums)]) - 4
    scale = room / max([1.0, *sums[0], *sums[1]])
    ys = [[top + (n + 0.5) * high / len(side) for n in range(len(side))] for side in sums]
    used = [
        [y - total * scale / 2 for y, total in zip(*side, strict=True)]
        for side in zip(ys, sums, strict=True)
    ]
    drawn: tuple[list[Markup], list[Markup]] = ([], [])
    for i, j, layer in np.argwhere(layers > 0).tolist():
        amount = float(layers[i, j, layer])
        sender, receiver = ids_text(flow.senders[i]), ids_text(flow.receivers[j])
        told = f"{sender} to {receiver}:" if layer else f"{receiver} keeps"
        title = element("title", f"{flow.unit} {told} {bytes_text(round(amount))}")
        ends = [side[n] + amount * scale / 2 for side, n in zip(used, (i, j), strict=True)]
        used[0][i] += amount * scale
        used[1][j] += amount * scale
        look = {"stroke": colors[flow.senders[i]], "stroke_width": max(amount * scale, 0.6)}
        path = _curve(x + BLOCK, ends[0], x + width - BLOCK, ends[1])
        drawn[layer].append(element("path", title, d=path, **look))
    for bands, opacity in zip(drawn, (0.3, 0.8), strict=True):
        yield element("g", *bands, fill="none", stroke_opacity=opacity)
    end = x + width
    for side, spans, where in (
        (0, flow.senders, (x, x - 5, "end")),
        (1, flow.receivers, (end - BLOCK, end + 5, "start")),
    ):
        blocks = zip(spans, ys[side], sums[side], strict=True)
        yield from _named_blocks(flow.unit, blocks, scale, colors, where, marked)


def _named_blocks(
    unit: str,
    blocks: Iterable[tuple[Span, float, float]],
    scale: float,
    colors: Mapping[Span, str],
    where: tuple[float, float, str],
    marked: str | None,
) -> Iterator[Markup]:
    """Yield the blocks at one end of the bands: devices, their middles, and their bytes."""
    at, beside, anchor = where
    for span, y, amount in blocks:
        tall, name = max(amount * scale, 2.0), f"{unit} {ids_text(span)}"
        told = f"{name}: {bytes_text(round(amount))}"
        yield rect(at, y - tall / 2, BLOCK, tall, colors[span], told, rx=1.5)
        text, bold = ids_text(span) if marked is None else name, name == marked
        weight = "700" if bold else None
        yield centred(beside, y, text, anchor, "ink" if bold else "faint", font_weight=weight)


def _curve(x: float, y: float, end: float, z: float) -> str:
    """Return the path of a band between two places."""
    middle = (x + end) / 2
    return f"M{x:.1f} {y:.1f}C{middle:.1f} {y:.1f} {middle:.1f} {z:.1f} {end:.1f} {z:.1f}"


def _heat(flow: Flow, marked: str) -> Markup:
    """Return a map with a row for each sender and a column for each receiver, or groups of them."""
    rows, columns = flow.amounts.shape
    width, height = columns * CELL, rows * CELL
    most, grid = float(flow.amounts.max(initial=0)), evenly(columns, rows, CELL, CELL)
    cells = [((j * CELL, i * CELL, SEEN, SEEN), n / most, text) for i, j, n, text in _moving(flow)]
    field = rect(0, 0, width, height, "outline")
    panel = Panel(
        [field, heat(cells), *_sums(flow, width, height), *_frame(flow, marked)],
        width,
        height,
        names=(f"from {flow.unit}", f"to {flow.unit}"),
        rows=between(grid.ys, [str(first) for first, _ in flow.senders]),
        columns=between(grid.xs, [str(first) for first, _ in flow.receivers]),
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
            told = f"{flow.unit} {ids_text(span)} {way} {bytes_text(round(total))}"
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
