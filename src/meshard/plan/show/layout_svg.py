"""Drawings of layouts as SVG: for notebooks, HTML pages and files.

The picture is drawn on a card, so that it can be read on any page.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import final

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import instance_of, names_of, shape_of, text_of
from meshard.algebra.layout import Layout
from meshard.algebra.sharding import NamedSharding
from meshard.plan.captions import (
    PALETTE,
    check_sharding,
    device_label,
    headline,
    ink,
    platform_of,
    wrap,
)
from meshard.plan.show.drawing import Drawing, Rectangle, Slab, draw_layout
from meshard.plan.show.page import LIGHT, Markup, element, number_text
from meshard.plan.show.svg import centred, label, picture, rect, upright

MARGIN, BETWEEN, GAP = 14.0, 20.0, 18.0  # around the card, between slabs, for blocks left out
LINE = 17.0  # from one line of text to the next
DIGIT = 6.2  # the width of one character of a ruler
LETTER = 0.62  # the width of one character of a label, in units of its size
LARGEST, SMALLEST = 13.0, 8.0  # sizes of labels
WIDEST = 900.0  # of the slabs that stand side by side
WIDEST_SLAB = 680.0
LABEL = 10.5  # the height of a block with a label
MOST_SLABS = 36
MOST_CELLS = 2048  # in all slabs together
MOST_ALONG = 64  # along each dim
FEW_SLABS, FEW_CELLS = 8, 64  # in notebooks and on pages that show other things too


def drawing_svg(
    layout: Layout, *, title: str = "", platform: str = "CPU", dim_names: Sequence[str] = ()
) -> str:
    """Return a layout drawn as one self-contained ``<svg>`` element.

    Args:
        layout: the layout.
        title: text above the picture, in one or more lines.
        platform: the word before device ids.
        dim_names: the name of each dim; ``dim 0``, ``dim 1``, ... by default.

    Within a slab the area of a block is proportional to its number of elements. For rank three
    and higher there is a grid of slabs, one for each block of the leading dims.

    >>> import numpy as np
    >>> from meshard.algebra.layout import Layout
    >>> from meshard.debug import drawing_svg
    >>> drawing_svg(Layout((4,), ((0, 1, 4),), np.array([[0], [1]])))[:46]
    '<svg xmlns="http://www.w3.org/2000/svg" class='
    """
    what = "drawing_svg"
    instance_of(
        layout, Layout, what, "layout", advice="A sharding makes one: sharding.layout(shape)."
    )
    title, platform = text_of(title, what, "title"), text_of(platform, what, "platform")
    names = names_of(dim_names, what, "dim_names", "names of dims")
    drawing = draw_layout(layout, platform=platform, max_slabs=MOST_SLABS)
    return layout_picture(drawing, title, names, sheet=True)


def layout_picture(
    drawing: Drawing,
    title: str = "",
    dim_names: Sequence[str] = (),
    *,
    sheet: bool = False,
    most: int = MOST_CELLS,
) -> Markup:
    """Return the picture of a drawing, for a page that may already have the style sheet.

    Args:
        drawing: the drawing.
        title: text above the picture, in one or more lines.
        dim_names: the name of each dim; ``dim 0``, ``dim 1``, ... by default.
        sheet: whether it brings the style sheet.
        most: how many blocks may be drawn; of more, the first and last along each dim.
    """
    shape = drawing.layout.shape
    names = [*dim_names, *(f"dim {dim}" for dim in range(len(dim_names), len(shape)))]
    lines = title.splitlines()
    parts = []
    for number, line in enumerate(lines):
        weight = None if number else "700"
        y = MARGIN + LINE * (number + 1) - 4
        parts.append(label(MARGIN, y, line, "ink", font_size=13, font_weight=weight))
    top = MARGIN + LINE * len(lines) + (6 if lines else 0)
    if drawing.slabs:
        body, width, top, notes = _slabs(drawing, names, top, most)
        parts += body
    else:
        width, notes = 150.0, drawing.notes()
        parts.append(rect(MARGIN, top + 4, width, 40, "gap"))
        parts.append(centred(MARGIN + width / 2, top + 24, "no elements", "middle", font_size=12))
        top += 48
    for note in notes:
        top += LINE
        parts.append(label(MARGIN, top, note))
    words = [13 * LETTER * len(line) for line in lines] + [11 * LETTER * len(n) for n in notes]
    right, bottom = round(2 * MARGIN + max([width, *words])), round(top + MARGIN)
    told = " ".join([*title.split(), f"layout of an array of shape {shape}"])
    return picture(right, bottom, told, parts, sheet=sheet)


def schematic(
    layout: Layout, title: str, dim_names: Sequence[str], *, platform: str = "CPU"
) -> Markup:
    """Return the picture of a layout for a page: of many blocks and slabs the first and last."""
    drawing = draw_layout(layout, platform=platform, max_slabs=FEW_SLABS)
    return layout_picture(drawing, title, dim_names, most=FEW_CELLS)


def dims_of(sharding: Sharding, ndim: int) -> list[str]:
    """Return the names of dims with the mesh axes that split them.

    >>> from meshard.algebra.sharding import SingleDeviceSharding
    >>> from meshard.algebra.device import Device
    >>> dims_of(SingleDeviceSharding(Device(0)), 2)
    ['dim 0', 'dim 1']
    """
    names = [f"dim {dim}" for dim in range(ndim)]
    if not isinstance(sharding, NamedSharding):
        return names
    axes = sharding.spec.axes(ndim)
    return [f"{n} over {', '.join(a)}" if a else n for n, a in zip(names, axes, strict=False)]


def sharding_svg(shape: tuple[int, ...], sharding: Sharding, *, dtype: str = "") -> str:
    """Return how ``sharding`` lays out an array of ``shape``, drawn as one ``<svg>`` element.

    Args:
        shape: the shape.
        sharding: the sharding; if it has a spec, its axes name the dims.
        dtype: the name of the dtype.

    Raises:
        ArgumentError: if ``sharding`` is not a sharding.
        ShardingError: if ``sharding`` cannot lay out an array of this shape.

    >>> import meshard
    >>> meshard.config.update("num_devices", 8)
    >>> tiles = meshard.NamedSharding(meshard.make_mesh((4, 2), ("x", "y")), meshard.P("x", "y"))
    >>> svg = meshard.debug.sharding_svg((8, 8), tiles)
    >>> svg.startswith("<svg"), svg.count("CPU 7")
    (True, 2)
    """
    check_sharding(sharding, "sharding_svg")
    shape = shape_of(shape, "sharding_svg")
    dtype = text_of(dtype, "sharding_svg", "dtype")
    layout = sharding.layout(shape)
    first, *rest = headline(shape, sharding, dtype)
    title = "\n".join([first, *wrap(rest, 96, between=" · ")])
    platform = platform_of(sharding)
    return drawing_svg(
        layout, title=title, platform=platform, dim_names=dims_of(sharding, len(shape))
    )


@final
@dataclass(frozen=True)
class _Plot:
    """The geometry of one slab in pixels, with its upper left corner at the origin."""

    slab: Slab
    xs: tuple[float, ...]
    ys: tuple[float, ...]

    def place(self, one: Rectangle) -> tuple[float, float, float, float]:
        """Return the left, top, width and height of a rectangle."""
        left, right = (self.xs[i] for i in one.columns)
        top, bottom = (self.ys[i] for i in one.rows)
        return left, top, right - left, bottom - top


def _size(drawing: Drawing) -> tuple[float, float]:
    """Return the width and height of a slab: in the array's ratio, within limits."""
    shape = drawing.layout.shape
    columns = max(len(slab.columns) for slab in drawing.slabs) - 1
    if len(shape) < 2:
        return min(max(120.0, 76.0 * columns), WIDEST_SLAB), 56.0
    ratio = min(max(shape[-1] / shape[-2], 0.5), 2.4)
    full = 320.0 if len(drawing.slabs) == 1 else 170.0 if len(drawing.slabs) <= 4 else 110.0
    width = full * min(ratio, 1.7)
    height = width / ratio
    if len(drawing.slabs) == 1:
        # A block has room for its label, unless there are too many.
        rows = len(drawing.slabs[0].rows) - 1
        width = max(width, min(LABEL * columns, WIDEST_SLAB))
        height = max(height, min(LABEL * rows, WIDEST_SLAB))
    return width, height


def _most(drawing: Drawing, most: int) -> int:
    """Return how many blocks to show along each dim of a slab; further ones are left out."""
    grids = [(len(slab.rows) - 1, len(slab.columns) - 1) for slab in drawing.slabs]
    along = min(MOST_ALONG, most // 4)
    if sum(map(math.prod, grids)) <= most:
        return MOST_ALONG
    if sum(min(rows, along) * min(columns, along) for rows, columns in grids) <= most:
        return along
    return max(6, math.isqrt(most // len(grids)))


def _steps(sizes: Sequence[int], length: float) -> tuple[float, ...]:
    """Return the borders between rows or columns of these sizes; a size of 0 means a gap."""
    scale = (length - GAP * (0 in sizes)) / sum(sizes)
    return tuple(accumulate((n * scale if n else GAP for n in sizes), initial=0.0))


def _slabs(
    drawing: Drawing, names: Sequence[str], top: float, most_cells: int
) -> tuple[list[Markup], float, float, list[str]]:
    """Return the slabs' elements, their width, where they end, and the notes below them."""
    (width, height), most = _size(drawing), _most(drawing, most_cells)
    plots = []
    for whole in drawing.slabs:
        slab = whole.shortened(most, most, apart=False)
        down, across = slab.sizes
        plots.append(_Plot(slab, _steps(across, width), _steps(down, height)))
    level, letters, fit = _level(drawing, plots)
    rank = len(drawing.layout.shape)
    digits = max(len(str(cut)) for slab in drawing.slabs for cut in slab.rows)
    # To the left the row ruler and the dim's name, above the title, the name and the ruler.
    left = (LINE + DIGIT * digits + 8) if rank > 1 else 0.0
    above = LINE * ((rank > 2) + 2 * (rank > 0))
    words = max(LETTER * 12 * len(slab.title) for slab in drawing.slabs)
    step = max(left + width, words) + BETWEEN
    per_row = _per_row(len(plots), max(1, int((WIDEST + BETWEEN) // step)), drawing.slab_run)
    parts = []
    for number, plot in enumerate(plots):
        line, place = divmod(number, per_row)
        x = MARGIN + place * step + left
        y = top + line * (above + height + BETWEEN) + above
        title = plot.slab.title
        heading = [label(-left, LINE - above - 3, title, "ink", font_size=12)] if title else []
        rulers, cells = _rulers(plot, names, left), _cells(drawing, plot, level, letters)
        move = f"translate({number_text(x)} {number_text(y)})"
        parts.append(element("g", *heading, *rulers, *cells, transform=move))
    lines = -(-len(plots) // per_row)
    wide = min(len(plots), per_row) * step - BETWEEN
    notes = drawing.notes(
        elided=any(plot.slab.elided for plot in plots),
        numbers=level > 0 and any(fit),
        unlabelled="" if all(fit) else "point at a block to read its devices",
    )
    return parts, wide, top + lines * (above + height + BETWEEN) - BETWEEN + 4, notes


def _per_row(slabs: int, most: int, run: int) -> int:
    """Return how many slabs stand in a row: they end where a leading dim does, if that is not few.

    Args:
        slabs: the number of slabs.
        most: how many have room in a row.
        run: how many there are along the last of the leading dims.
    """
    found = max(n for n in range(1, most + 1) if n == 1 or run % n == 0)
    found = most if found == 1 else found
    while 2 * found <= most and 2 * found < slabs:  # so that the picture is not tall
        found *= 2
    return found


def _level(drawing: Drawing, plots: Sequence[_Plot]) -> tuple[int, int, list[bool]]:
    """Return how all blocks are labelled: the level, the longest label, and which have room.

    It is the first level at which no label is left out that another level has room for.
    """
    spots = [
        (one.area, *plot.place(one)[2:])
        for plot in plots
        for one in plot.slab.rectangles
        if one.labelled and one.area >= 0
    ]
    ways = []
    for level in (0, 1, 2):
        letters = max(len(drawing.label(area, level)) for area, _, _ in spots)
        fit = [_fit_label(width, height, letters)[0] >= SMALLEST for _, width, height in spots]
        ways.append((level, letters, fit))
    return max(ways, key=lambda way: sum(way[2]))


def _fit_label(width: float, height: float, letters: int) -> tuple[float, bool]:
    """Return the size at which a label fits, and whether it is upright."""
    flat = min(LARGEST, 0.8 * height, 0.9 * width / (LETTER * letters))
    upright = min(LARGEST, 0.8 * width, 0.9 * height / (LETTER * letters))
    return (upright, True) if flat < SMALLEST <= upright else (flat, False)


def _cells(drawing: Drawing, plot: _Plot, level: int, letters: int) -> Iterator[Markup]:
    """Yield the blocks of a slab, each with its tooltip and, where there is room, its label."""
    for one in plot.slab.rectangles:
        x, y, width, height = plot.place(one)
        middle = x + width / 2, y + height / 2
        if one.area < 0:
            yield rect(x, y, width, height, "gap")
            yield centred(*middle, "⋮" if width > height else "⋯", "middle", font_size=12)
            continue
        color = PALETTE[one.area % len(PALETTE)]
        parts = [element("title", _tooltip(drawing, one.area))]
        parts.append(rect(x, y, width, height, color, data_area=one.area))
        size, turned = _fit_label(width, height, letters)
        if one.labelled and size >= SMALLEST:
            text = drawing.label(one.area, level)
            turn = upright(*middle) if turned else None
            own = centred(
                *middle, text, "middle", ink(color), font_size=f"{size:.1f}", transform=turn
            )
            parts.append(own)
        yield element("g", *parts)
    if borders := "".join(_borders(plot)):
        fine = min(b - a for steps in (plot.xs, plot.ys) for a, b in pairwise(steps)) < 8
        yield element(
            "path",
            class_="meshard-seam",
            d=borders,
            fill="none",
            stroke=LIGHT["card"],
            stroke_width=0.6 if fine else 1.5,
            pointer_events="none",
        )


def _borders(plot: _Plot) -> Iterator[str]:
    """Yield the lines between areas, as SVG path commands."""
    rows, columns = plot.slab.areas, list(zip(*plot.slab.areas, strict=True))
    for y, (above, below) in zip(plot.ys[1:], pairwise(rows), strict=False):
        for (left, right), a, b in zip(pairwise(plot.xs), above, below, strict=True):
            if a != b:
                yield f"M{left:.2f} {y:.2f}H{right:.2f}"
    for x, (before, after) in zip(plot.xs[1:], pairwise(columns), strict=False):
        for (top, bottom), a, b in zip(pairwise(plot.ys), before, after, strict=True):
            if a != b:
                yield f"M{x:.2f} {top:.2f}V{bottom:.2f}"


def _tooltip(drawing: Drawing, area: int) -> str:
    """Return the tooltip of a block: its box, its size and its devices."""
    boxes = [drawing.layout.box(piece) for piece in drawing.pieces(area)]
    devices = device_label(drawing.devices(area), drawing.platform, most=32)
    if len(boxes) > 1:
        return f"on {devices}, where {' and '.join(map(str, boxes))} overlap"
    box = boxes[0]
    if not box.shape:
        return f"a scalar on {devices}"
    size = f"{' x '.join(map(str, box.shape))} = " if len(box.shape) > 1 else ""
    return f"{box} on {devices}: {size}{box.volume} element{'s' * (box.volume != 1)}"


def _rulers(plot: _Plot, names: Sequence[str], left: float) -> Iterator[Markup]:
    """Yield the cut points along the edges, as far as there is room, and the dims' names."""
    if names:
        yield label(plot.xs[-1] / 2, -LINE - 2, f"{names[-1]} →", text_anchor="middle")
        for at, text, anchor in _ticks(plot.slab.columns, plot.xs, down=False):
            yield label(at, -5, text, font_size=10, text_anchor=anchor)
    if len(names) > 1:
        x, y = 9 - left, plot.ys[-1] / 2
        yield label(x, y, f"← {names[-2]}", text_anchor="middle", transform=upright(x, y))
        for at, text, _ in _ticks(plot.slab.rows, plot.ys, down=True):
            yield label(-5, at + 3.5, text, font_size=10, text_anchor="end")


def _ticks(
    cuts: Sequence[int], steps: Sequence[float], *, down: bool
) -> Iterator[tuple[float, str, str]]:
    """Yield the cut points that fit along a ruler: position, text and anchor."""
    spots = [(at, str(cut)) for at, cut in zip(steps, cuts, strict=True)]
    end, final = spots[-1]
    free, final_room = -math.inf, end - (12 if down else DIGIT * len(final))
    for at, text in spots:
        half = 6 if down else DIGIT * len(text) / 2 + 3
        last = at == end
        # The first and the last are always shown; a label that would touch another is left out.
        if at - half < free or (not last and at + half > final_room and at > 0):
            continue
        free = at + half
        yield at, text, "start" if at == 0 else "end" if last else "middle"
