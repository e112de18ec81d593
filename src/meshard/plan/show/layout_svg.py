"""Drawings of layouts as SVG: for notebooks, HTML pages and files.

The picture is drawn on a card, so that it can be read on any page.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import instance_of, names_of, shape_of, text_of
from meshard.algebra.layout import Layout
from meshard.algebra.sharding import NamedSharding
from meshard.plan.captions import (
    PALETTE,
    check_sharding,
    device_label,
    headline,
    platform_of,
    wrap,
)
from meshard.plan.show.drawing import Drawing, Slab, draw_layout
from meshard.plan.show.page import Markup
from meshard.plan.show.svg import (
    SMALLEST,
    Grid,
    Panel,
    Sheet,
    Ticks,
    centred,
    fit,
    gap,
    lettered,
    middle,
    rect,
    seams,
    steps,
)

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
    drawn = Sheet(*title.splitlines())
    notes = drawing.notes()
    if drawing.slabs:
        panels, notes = _panels(drawing, names, most)
        drawn.panels(panels, drawing.slab_run)
    else:
        empty = 0.0, 0.0, 150.0, 40.0
        words = centred(*middle(empty), "no elements", "middle", font_size=12)
        drawn.panels([Panel([rect(*empty, "gap"), words], *empty[2:])])
    drawn.notes(notes)
    told = " ".join([*title.split(), f"layout of an array of shape {shape}"])
    return drawn.picture(told, sheet=sheet)


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


def _panels(
    drawing: Drawing, names: Sequence[str], most_cells: int
) -> tuple[list[Panel], list[str]]:
    """Return the slabs, and the notes below them."""
    size, most = _size(drawing), _most(drawing, most_cells)
    plots = []
    for whole in drawing.slabs:
        slab = whole.shortened(most, most, apart=False)
        down, across = slab.sizes
        plots.append((slab, Grid(steps(across, size[0]), steps(down, size[1]))))
    level, letters, shown = _level(drawing, plots)
    panels = [
        Panel(
            [*_cells(drawing, slab, grid, (level, letters))],
            *size,
            heading=slab.title,
            names=names[-2:],
            rows=_ticks(grid.ys, slab.rows) if len(names) > 1 else (),
            columns=_ticks(grid.xs, slab.columns) if names else (),
        )
        for slab, grid in plots
    ]
    notes = drawing.notes(
        elided=any(slab.elided for slab, _ in plots),
        numbers=level > 0 and any(shown),
        unlabelled="" if all(shown) else "point at a block to read its devices",
    )
    return panels, notes


def _ticks(borders: Sequence[float], cuts: Sequence[int]) -> Ticks:
    return list(zip(borders, map(str, cuts), strict=True))


def _level(drawing: Drawing, plots: Sequence[tuple[Slab, Grid]]) -> tuple[int, int, list[bool]]:
    """Return how all blocks are labelled: the level, the longest label, and which have room.

    It is the first level at which no label is left out that another level has room for.
    """
    spots = [
        (one.area, grid.place(one.rows, one.columns))
        for slab, grid in plots
        for one in slab.rectangles
        if one.labelled and one.area >= 0
    ]
    ways = []
    for level in (0, 1, 2):
        letters = max(len(drawing.label(area, level)) for area, _ in spots)
        ways.append((level, letters, [fit(place, letters)[0] >= SMALLEST for _, place in spots]))
    return max(ways, key=lambda way: sum(way[2]))


def _cells(drawing: Drawing, slab: Slab, grid: Grid, labels: tuple[int, int]) -> Iterator[Markup]:
    """Yield the blocks of a slab, each with its tooltip and, where there is room, its label."""
    level, letters = labels
    for one in slab.rectangles:
        place = grid.place(one.rows, one.columns)
        if one.area < 0:
            yield from gap(place, down=place[2] > place[3])
            continue
        color = PALETTE[one.area % len(PALETTE)]
        yield rect(*place, color, _tooltip(drawing, one.area), data_area=one.area)
        if one.labelled:
            yield from lettered(place, drawing.label(one.area, level), color, letters)
    if borders := "".join(_borders(slab, grid)):
        fine = min(b - a for ends in (grid.xs, grid.ys) for a, b in pairwise(ends)) < 8
        yield seams(borders, 0.6 if fine else 1.5)


def _borders(slab: Slab, grid: Grid) -> Iterator[str]:
    """Yield the lines between areas, as SVG path commands."""
    rows, columns = slab.areas, list(zip(*slab.areas, strict=True))
    for y, (above, below) in zip(grid.ys[1:], pairwise(rows), strict=False):
        for (left, right), a, b in zip(pairwise(grid.xs), above, below, strict=True):
            if a != b:
                yield f"M{left:.2f} {y:.2f}H{right:.2f}"
    for x, (before, after) in zip(grid.xs[1:], pairwise(columns), strict=False):
        for (top, bottom), a, b in zip(pairwise(grid.ys), before, after, strict=True):
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
