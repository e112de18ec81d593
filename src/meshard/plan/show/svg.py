"""Drawings of layouts as SVG: for notebooks, HTML pages and files.

The picture stands on a card of its own, light or dark as the reader's system is, so that it can be
read on any page. It holds no script; what is too small for a label says what it is as a tooltip.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
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
from meshard.plan.show.drawing import (
    Drawing,
    Rectangle,
    Slab,
    cuts_shown,
    draw_layout,
    kept,
    split_rectangles,
)

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

# Every class begins with the library's name: in a notebook a style sheet holds for the whole page.
SHEET = (
    ".meshard-card{fill:#ffffff;stroke:#d0d7de}.meshard-ink{fill:#1f2328}"
    ".meshard-faint{fill:#59636e}.meshard-gap{fill:#eff2f5}.meshard-line{stroke:#ffffff}"
    "@media (prefers-color-scheme:dark){"
    ".meshard-card{fill:#15181d;stroke:#3d444d}.meshard-ink{fill:#f0f3f6}"
    ".meshard-faint{fill:#a5adb7}.meshard-gap{fill:#2b3138}.meshard-line{stroke:#15181d}}"
)


def drawing_svg(
    layout: Layout, *, title: str = "", platform: str = "CPU", dim_names: Sequence[str] = ()
) -> str:
    """Return a layout drawn as one self-contained ``<svg>`` element.

    Args:
        layout: the layout.
        title: text above the picture, in one or more lines.
        platform: the word before device ids.
        dim_names: what to call each dim; ``dim 0``, ``dim 1``, ... by default.

    Within a slab the area of a block is proportional to its number of elements. From rank three on
    there is a grid of slabs, one for each block of the leading dims.

    >>> import numpy as np
    >>> drawing_svg(Layout((4,), ((0, 1, 4),), np.array([[0], [1]])))[:46]
    '<svg xmlns="http://www.w3.org/2000/svg" class='
    """
    what = "drawing_svg"
    instance_of(
        layout, Layout, what, "layout", advice="A sharding makes one: sharding.layout(shape)."
    )
    title, platform = text_of(title, what, "title"), text_of(platform, what, "platform")
    names = [*names_of(dim_names, what, "dim_names", "names of dims")]
    names += [f"dim {dim}" for dim in range(len(names), len(layout.shape))]
    drawing = draw_layout(layout, platform=platform, max_slabs=MOST_SLABS)
    top = MARGIN
    parts: list[str] = []
    wide = 0.0
    for number, line in enumerate(title.splitlines()):
        top += LINE
        weight = "700" if number == 0 else "400"
        parts.append(_text(MARGIN, top - 4, line, 13, "ink", f'font-weight="{weight}"'))
        wide = max(wide, 13 * LETTER * len(line))
    top += 6 if title else 0
    notes = []
    if drawing.slabs:
        body, width, top, labels = _slabs(drawing, names, top)
        parts += body
        hidden = drawing.slab_count - len(drawing.slabs)
        if hidden:
            notes.append(f"and {hidden} more slabs like these, {drawing.slab_count} in all")
        if labels.elided:
            ids = device_label(layout.device_ids, platform)
            notes.append(f"not all blocks are shown: there are {layout.piece_count}, on {ids}")
        if labels.level and labels.some:
            notes.append(f"numbers are {platform} ids")
        if not labels.all:
            notes.append("point at a block to read its devices")
    else:
        width = 150.0
        parts.append(_rect(MARGIN, top + 4, width, 40, 'class="meshard-gap" fill="#eff2f5"'))
        parts.append(_text(MARGIN + width / 2, top + 24, "no elements", 12, "faint", MIDDLE))
        top += 48
    if drawing.empty:
        notes.append(f"empty on: {device_label(drawing.empty, platform)}")
    for note in notes:
        top += LINE
        parts.append(_text(MARGIN, top, note, 11, "faint"))
        wide = max(wide, 11 * LETTER * len(note))
    right, bottom = 2 * MARGIN + max(width, wide), top + MARGIN
    label = xml_text(" ".join([*title.split(), f"layout of an array of shape {layout.shape}"]))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="meshard-drawing" role="img" '
        f'aria-label="{label}" width="{right:.0f}" height="{bottom:.0f}" '
        f'viewBox="0 0 {right:.0f} {bottom:.0f}" style="max-width:100%" '
        f'font-family="system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif">'
        f"<style>{SHEET}</style>"
        f'<rect class="meshard-card" x="0.5" y="0.5" width="{right - 1:.0f}" '
        f'height="{bottom - 1:.0f}" rx="8" fill="#ffffff" stroke="#d0d7de"/>'
        f"{''.join(parts)}</svg>"
    )


def sharding_svg(shape: tuple[int, ...], sharding: Sharding, *, dtype: str = "") -> str:
    """Return how an array of ``shape`` lies under ``sharding`` as one ``<svg>`` element.

    Args:
        shape: the shape.
        sharding: the sharding; where it has a spec, its axes name the dims.
        dtype: the name of the dtype.

    Raises:
        ArgumentError: if ``sharding`` is none.
        ShardingError: if ``sharding`` cannot lay out an array of this shape.
    """
    check_sharding(sharding, "sharding_svg")
    shape = shape_of(shape, "sharding_svg")
    dtype = text_of(dtype, "sharding_svg", "dtype")
    layout = sharding.layout(shape)
    names = [f"dim {dim}" for dim in range(len(shape))]
    if isinstance(sharding, NamedSharding):
        axes = sharding.spec.axes(len(shape))
        names = [
            f"{name} over {', '.join(dim)}" if dim else name
            for name, dim in zip(names, axes, strict=True)
        ]
    first, *rest = headline(shape, sharding, dtype)
    title = "\n".join([first, *wrap(rest, 96, between=" · ")])
    platform = platform_of(sharding)
    return drawing_svg(layout, title=title, platform=platform, dim_names=names)


@final
@dataclass(frozen=True)
class _Plot:
    """One slab in pixels, its upper left corner at the origin."""

    slab: Slab
    rows: tuple[int | None, ...]
    columns: tuple[int | None, ...]
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    areas: tuple[tuple[int, ...], ...]
    rectangles: tuple[Rectangle, ...]

    def place(self, one: Rectangle) -> tuple[float, float, float, float]:
        """Return the left, top, width and height of a rectangle."""
        left, right = (self.xs[i] for i in one.columns)
        top, bottom = (self.ys[i] for i in one.rows)
        return left, top, right - left, bottom - top


def _size(drawing: Drawing) -> tuple[float, float]:
    """Return the width and height of a slab: in the array's own ratio, within reason."""
    shape = drawing.layout.shape
    columns = max(len(slab.columns) for slab in drawing.slabs) - 1
    if len(shape) < 2:
        return min(max(120.0, 76.0 * columns), WIDEST_SLAB), 56.0
    ratio = min(max(shape[-1] / shape[-2], 0.5), 2.4)
    full = 320.0 if len(drawing.slabs) == 1 else 170.0 if len(drawing.slabs) <= 8 else 110.0
    width = full * min(ratio, 1.7)
    height = width / ratio
    if len(drawing.slabs) == 1:
        # A block has room for its label, as long as there are not too many.
        rows = len(drawing.slabs[0].rows) - 1
        width = max(width, min(LABEL * columns, WIDEST_SLAB))
        height = max(height, min(LABEL * rows, WIDEST_SLAB))
    return width, height


def _most(drawing: Drawing) -> int:
    """Return how many blocks to show along each dim of a slab; of more, the middle is left out."""
    cells = sum(
        min(len(slab.rows) - 1, MOST_ALONG) * min(len(slab.columns) - 1, MOST_ALONG)
        for slab in drawing.slabs
    )
    few = max(6, math.isqrt(MOST_CELLS // len(drawing.slabs)))
    return MOST_ALONG if cells <= MOST_CELLS else few


def _plot(slab: Slab, width: float, height: float, most: int) -> _Plot:
    def axis(
        cuts: Sequence[int], length: float
    ) -> tuple[tuple[int | None, ...], tuple[float, ...]]:
        shown = kept(len(cuts) - 1, most)
        sizes = [0 if i is None else cuts[i + 1] - cuts[i] for i in shown]
        scale = (length - GAP * (None in shown)) / sum(sizes)
        steps = (GAP if i is None else n * scale for i, n in zip(shown, sizes, strict=True))
        return shown, tuple(accumulate(steps, initial=0.0))

    (columns, xs), (rows, ys) = axis(slab.columns, width), axis(slab.rows, height)
    areas = tuple(
        tuple(-1 if i is None or j is None else slab.areas[i][j] for j in columns) for i in rows
    )
    down = [0 if i is None else slab.rows[i + 1] - slab.rows[i] for i in rows]
    across = [0 if j is None else slab.columns[j + 1] - slab.columns[j] for j in columns]
    return _Plot(slab, rows, columns, xs, ys, areas, split_rectangles(areas, down, across))


def _slabs(
    drawing: Drawing, names: Sequence[str], top: float
) -> tuple[list[str], float, float, _Labels]:
    """Return the slabs' elements, their width, where they end, and how they are labelled."""
    (width, height), most = _size(drawing), _most(drawing)
    plots = [_plot(slab, width, height, most) for slab in drawing.slabs]
    labels = _Labels.fitting(drawing, plots)
    rank = len(drawing.layout.shape)
    digits = max(len(str(cut)) for plot in plots for cut in plot.slab.rows)
    # To the left the row ruler and the dim's name, above the title, the name and the ruler.
    left = (LINE + DIGIT * digits + 8) if rank > 1 else 0.0
    above = LINE * ((rank > 2) + 2 * (rank > 0))
    words = max(LETTER * 12 * len(slab.title) for slab in drawing.slabs)
    step = max(left + width, words) + BETWEEN
    fit = max(1, int((WIDEST + BETWEEN) // step))
    run = drawing.slab_run
    per_row = max(n for n in range(1, fit + 1) if n == 1 or run % n == 0)
    per_row = fit if per_row == 1 else per_row
    parts = []
    for number, plot in enumerate(plots):
        line, place = divmod(number, per_row)
        x = MARGIN + place * step + left
        y = top + line * (above + height + BETWEEN) + above
        parts.append(f'<g transform="translate({x:.2f} {y:.2f})">')
        if plot.slab.title:
            parts.append(_text(-left, LINE - above - 3, plot.slab.title, 12, "ink"))
        parts += _rulers(plot, names, left, width, height)
        parts += _cells(drawing, plot, labels)
        parts.append("</g>")
    lines = -(-len(plots) // per_row)
    across = min(len(plots), per_row) * step - BETWEEN
    return parts, across, top + lines * (above + height + BETWEEN) - BETWEEN + 4, labels


@final
@dataclass(frozen=True)
class _Labels:
    """How blocks are labelled, alike in all slabs.

    Attributes:
        level: 0 with the platform, 1 without it, 2 as short as can be.
        letters: the length of the longest label, which decides what fits.
        some: whether any block has room for its label.
        all: whether every block has.
        elided: whether blocks were left out.
    """

    level: int
    letters: int
    some: bool
    all: bool
    elided: bool

    @classmethod
    def fitting(cls, drawing: Drawing, plots: Sequence[_Plot]) -> _Labels:
        """Return the first level at which no label is left out that the last one has room for."""
        spots = [
            (one.area, *plot.place(one)[2:])
            for plot in plots
            for one in plot.rectangles
            if one.labelled and one.area >= 0
        ]
        elided = any(None in (*plot.rows, *plot.columns) for plot in plots)
        ways = []
        for level in (0, 1, 2):
            letters = max(len(_label(drawing, area, level)) for area, _, _ in spots)
            fit = [_fit_label(width, height, letters)[0] >= SMALLEST for _, width, height in spots]
            ways.append((sum(fit), cls(level, letters, any(fit), all(fit), elided)))
        most = max(count for count, _ in ways)
        return next(labels for count, labels in ways if count == most)


def _label(drawing: Drawing, area: int, level: int) -> str:
    word = "" if level else drawing.platform
    return device_label(drawing.devices(area), word, most=1 if level > 1 else 6)


def _fit_label(width: float, height: float, letters: int) -> tuple[float, bool]:
    """Return the size at which a label fits, and whether it stands upright."""
    flat = min(LARGEST, 0.8 * height, 0.9 * width / (LETTER * letters))
    upright = min(LARGEST, 0.8 * width, 0.9 * height / (LETTER * letters))
    return (upright, True) if flat < SMALLEST <= upright else (flat, False)


MIDDLE = 'text-anchor="middle" dominant-baseline="central"'


def _cells(drawing: Drawing, plot: _Plot, labels: _Labels) -> Iterator[str]:
    """Yield the blocks of a slab, each with its tooltip and, where there is room, its label."""
    for one in plot.rectangles:
        x, y, width, height = plot.place(one)
        middle = x + width / 2, y + height / 2
        if one.area < 0:
            yield _rect(x, y, width, height, 'class="meshard-gap" fill="#eff2f5"')
            yield _text(*middle, "⋮" if width > height else "⋯", 12, "faint", MIDDLE)
            continue
        color = PALETTE[one.area % len(PALETTE)]
        yield f"<g><title>{xml_text(_tooltip(drawing, one.area))}</title>"
        yield _rect(x, y, width, height, f'fill="{color}" data-area="{one.area}"')
        size, upright = _fit_label(width, height, labels.letters)
        if one.labelled and size >= SMALLEST:
            turn = f' transform="rotate(-90 {middle[0]:.2f} {middle[1]:.2f})"' if upright else ""
            yield (
                f'<text x="{middle[0]:.2f}" y="{middle[1]:.2f}" font-size="{size:.1f}" '
                f'fill="{ink(color)}" {MIDDLE}{turn}>'
                f"{xml_text(_label(drawing, one.area, labels.level))}</text>"
            )
        yield "</g>"
    if borders := "".join(_borders(plot)):
        fine = min(b - a for steps in (plot.xs, plot.ys) for a, b in pairwise(steps)) < 8
        yield (
            f'<path class="meshard-line" d="{borders}" fill="none" stroke="#ffffff" '
            f'stroke-width="{0.6 if fine else 1.5}" pointer-events="none"/>'
        )


def _borders(plot: _Plot) -> Iterator[str]:
    """Yield the lines between areas, as SVG path commands."""
    for y, (above, below) in zip(plot.ys[1:], pairwise(plot.areas), strict=False):
        for (left, right), a, b in zip(pairwise(plot.xs), above, below, strict=True):
            if a != b:
                yield f"M{left:.2f} {y:.2f}H{right:.2f}"
    for x, (before, after) in zip(
        plot.xs[1:], pairwise(zip(*plot.areas, strict=True)), strict=False
    ):
        for (top, bottom), a, b in zip(pairwise(plot.ys), before, after, strict=True):
            if a != b:
                yield f"M{x:.2f} {top:.2f}V{bottom:.2f}"


def _tooltip(drawing: Drawing, area: int) -> str:
    """Return what a block says when pointed at: its box, its size and its devices."""
    boxes = [drawing.layout.box(piece) for piece in drawing.pieces(area)]
    devices = device_label(drawing.devices(area), drawing.platform, most=32)
    if len(boxes) > 1:
        return f"on {devices}, where {' and '.join(map(str, boxes))} overlap"
    box = boxes[0]
    if not box.shape:
        return f"a scalar on {devices}"
    size = f"{' x '.join(map(str, box.shape))} = " if len(box.shape) > 1 else ""
    return f"{box} on {devices}: {size}{box.volume} element{'s' * (box.volume != 1)}"


def _rulers(
    plot: _Plot, names: Sequence[str], left: float, width: float, height: float
) -> Iterator[str]:
    """Yield the cut points along the edges, as far as there is room, and the dims' names."""
    if names:
        yield _text(width / 2, -LINE - 2, f"{names[-1]} →", 11, "faint", 'text-anchor="middle"')
        yield from _ticks(plot.slab.columns, plot.columns, plot.xs, vertical=False)
    if len(names) > 1:
        x = -left + 9
        turned = f'text-anchor="middle" transform="rotate(-90 {x:.2f} {height / 2:.2f})"'
        yield _text(x, height / 2, f"← {names[-2]}", 11, "faint", turned)
        yield from _ticks(plot.slab.rows, plot.rows, plot.ys, vertical=True)


def _ticks(
    cuts: Sequence[int], shown: Sequence[int | None], steps: Sequence[float], *, vertical: bool
) -> Iterator[str]:
    spots = [(at, str(cut)) for at, cut in zip(steps, cuts_shown(cuts, shown), strict=True)]
    free = float("-inf")
    final_room = spots[-1][0] - (12 if vertical else DIGIT * len(spots[-1][1]))
    for at, text in spots:
        half = 6 if vertical else DIGIT * len(text) / 2 + 3
        last = at == spots[-1][0]
        if at - half < free or (not last and at + half > final_room and at > 0):
            continue
        free = at + half
        if vertical:
            yield _text(-5, at + 3.5, text, 10, "faint", 'text-anchor="end"')
        else:
            anchor = "start" if at == 0 else "end" if last else "middle"
            yield _text(at, -5, text, 10, "faint", f'text-anchor="{anchor}"')


def xml_text(text: str) -> str:
    """Return text as XML can hold it: markup escaped, control characters replaced."""
    return escape(
        "".join(c if c >= " " and not "\ud800" <= c <= "\udfff" else "\ufffd" for c in text)
    )


def _text(x: float, y: float, text: str, size: float, kind: str, more: str = "") -> str:
    fill = {"ink": "#1f2328", "faint": "#59636e"}[kind]
    return (
        f'<text class="meshard-{kind}" x="{x:.2f}" y="{y:.2f}" font-size="{size:g}" '
        f'fill="{fill}" {more}>{xml_text(text)}</text>'
    )


def _rect(x: float, y: float, width: float, height: float, more: str) -> str:
    return f'<rect x="{x:.3f}" y="{y:.3f}" width="{width:.3f}" height="{height:.3f}" {more}/>'
