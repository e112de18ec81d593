"""Drawings of layouts as text: boxes with device names, in colour if the terminal supports it.

The picture looks like that of `jax.debug.visualize_sharding` and supports more: any rank, uneven
and irregular layouts, cut points along the edges, thousands of devices.
"""

from __future__ import annotations

import math
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Protocol, final

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import (
    count_of,
    flag_of,
    function_of,
    instance_of,
    number_of,
    refusal,
    shape_of,
    shown,
    text_of,
)
from meshard.algebra.layout import Layout
from meshard.errors import ArgumentError
from meshard.plan.captions import (
    PALETTE,
    check_sharding,
    headline,
    ink,
    platform_of,
    wrap,
)
from meshard.plan.show.drawing import Drawing, Rectangle, Slab, draw_layout
from meshard.plan.show.terminal import ASCII, columns, has_colors, is_encodable, replaced

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


# With more rows of blocks than MOST_ROWS, only FEW_ROWS are drawn: a screen has about 50 lines.
MOST_ROWS, FEW_ROWS = 24, 13
# The text for blocks left out, by whether their rows and their columns are left out.
GAPS = {(True, False): "⋮", (False, True): "⋯", (True, True): "⋱"}
# Characters by the arms that meet in a point: up 1, down 2, left 4, right 8.
LINES = " ╵╷│╴┘┐┤╶└┌├─┴┬┼"

# Texts from left to right, each on the background of an area, or on none (None).
Line = list[tuple[str, int | None]]

BETWEEN = 2  # blanks between slabs that stand side by side
_BLANKS = (" " * BETWEEN, None)
LEAST_WIDTH = 30  # room for a ruler of 18 digits and three columns of blocks
MOST_SLABS = 12
MOST_SCALE = 100  # a thousand lines
MOST_WIDTH = 10_000
LAYOUTS = "A sharding makes one for a shape: sharding.layout(shape)."

Color = str | Sequence[float]


class Laid(Protocol):
    """The properties that `visualize_array_sharding` reads from an array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""

    @property
    def dtype(self) -> object:
        """The type of its elements."""

    @property
    def sharding(self) -> Sharding:
        """How it is laid out over devices."""


def drawing_text(
    layout: Layout,
    *,
    platform: str = "CPU",
    scale: float = 1.0,
    min_width: int = 9,
    max_width: int = 80,
    rulers: bool = True,
    ascii_only: bool = False,
) -> str:
    """Return a layout drawn with box characters, one box for each piece.

    Args:
        layout: the layout.
        platform: the word before device ids.
        scale: 1 for about ten lines; widths follow.
        min_width: the least width of a box, its frame included, where there is room for it.
        max_width: the greatest width of the whole.
        rulers: whether the cut points stand along the edges.
        ascii_only: whether frames consist of ``+``, ``-`` and ``|``.

    The size of a box is proportional to its elements, if that leaves room for its label. For rank
    three and higher there is one picture for each block of the leading dims. If there are more
    boxes than fit, those in the middle are left out, and a line below says what is missing.

    >>> import numpy as np
    >>> from meshard.algebra.layout import Layout
    >>> from meshard.debug import drawing_text
    >>> print(drawing_text(Layout((8, 8), ((0, 2, 8), (0, 8)), np.arange(4).reshape(2, 1, 2))))
      0                       8
    0 ┌───────────────────────┐
      │        CPU 0,1        │
    2 ├───────────────────────┤
      │                       │
      │                       │
      │        CPU 2,3        │
      │                       │
      │                       │
      │                       │
    8 └───────────────────────┘
    """
    what = "drawing_text"
    instance_of(layout, Layout, what, "layout", advice=LAYOUTS)
    text_of(platform, what, "platform")
    style = _style(what, scale, min_width, max_width, rulers)
    style = replace(style, max_width=max(style.max_width, LEAST_WIDTH))
    text = _plain(_compose(draw_layout(layout, platform=platform, max_slabs=MOST_SLABS), style))
    return text.translate(ASCII) if flag_of(ascii_only, what, "ascii_only") else text


def _style(
    what: str,
    scale: object,
    min_width: object,
    max_width: object,
    rulers: object,
    use_color: object = False,
) -> Style:
    """Return the style of a picture, from the arguments of a function.

    Raises:
        ArgumentError: if an argument is invalid, or is too large for a picture of characters.
    """
    size = number_of(scale, what, "scale", open_below=True)
    if size > MOST_SCALE:
        raise ArgumentError(refusal(what, "scale", f"at most {MOST_SCALE}", scale))
    return Style(
        size,
        count_of(min_width, what, "min_width", most=MOST_WIDTH),
        count_of(max_width, what, "max_width", most=MOST_WIDTH),
        flag_of(rulers, what, "rulers"),
        flag_of(use_color, what, "use_color"),
    )


def visualize_sharding(
    shape: Sequence[int],
    sharding: Sharding,
    *,
    use_color: bool = True,
    scale: float = 1.0,
    min_width: int = 9,
    max_width: int = 80,
    color_map: Callable[[float], Color] | None = None,
    header: bool = True,
    rulers: bool = True,
) -> None:
    """Print how an array of ``shape`` is laid out over devices by ``sharding``.

    Args:
        shape: the shape, of any rank.
        sharding: the sharding.
        use_color: whether to fill blocks with colour on a terminal that has colours; otherwise, and
            if ``NO_COLOR`` is set, lines frame them. Each set of devices has its own colour, as
            long as there are enough. An encoding without such lines gets ``+``, ``-`` and ``|``.
        scale: 1 for about ten lines; widths follow.
        min_width: the least width of a block, its frame included, where there is room for it.
        max_width: the greatest width of the whole; never wider than the terminal.
        color_map: maps a number in [0, 1] to ``"#rrggbb"`` or three floats, as in matplotlib.
        header: whether to begin with a line on the array and its uneven blocks.
        rulers: whether the cut points stand along the edges.

    Raises:
        ArgumentError: if ``sharding`` is not a sharding.
        ShardingError: if ``sharding`` cannot lay out an array of this shape.

    >>> import meshard
    >>> meshard.config.update("num_devices", 8)
    >>> rows = meshard.NamedSharding(meshard.make_mesh((4,), ("x",)), meshard.P("x"))
    >>> meshard.debug.visualize_sharding((8,), rows)
    [8]  P('x',) over Mesh('x': 4)  4 blocks of [2]
    0       2       4       6       8
    ┌───────┬───────┬───────┬───────┐
    │ CPU 0 │ CPU 1 │ CPU 2 │ CPU 3 │
    └───────┴───────┴───────┴───────┘
    """
    what = "visualize_sharding"
    check_sharding(sharding, what)
    size = shape_of(shape, what)
    words = headline(size, sharding) if flag_of(header, what, "header") else ()
    style = _style(what, scale, min_width, max_width, rulers, use_color)
    colors = None if color_map is None else function_of(color_map, what, "color_map")
    _print(sharding.layout(size), platform_of(sharding), words, style, colors)


def visualize_array_sharding(
    arr: Laid,
    *,
    use_color: bool = True,
    scale: float = 1.0,
    min_width: int = 9,
    max_width: int = 80,
    color_map: Callable[[float], Color] | None = None,
    header: bool = True,
    rulers: bool = True,
) -> None:
    """Print how an array is laid out over its devices; see `visualize_sharding` for the arguments.

    Raises:
        ArgumentError: if ``arr`` has no sharding.

    >>> import meshard, numpy as np
    >>> meshard.config.update("num_devices", 8)
    >>> mesh = meshard.make_mesh((2, 4), ("x", "y"))
    >>> x = meshard.device_put(np.ones((4, 8)), meshard.NamedSharding(mesh, meshard.P("x")))
    >>> meshard.debug.visualize_array_sharding(x, scale=0.5)
    float64[4,8]  P('x',) over Mesh('x': 2, 'y': 4)
    2 blocks of [2,8], each on 4 devices
      0                       8
    0 ┌───────────────────────┐
      │        CPU 0-3        │
    2 ├───────────────────────┤
      │        CPU 4-7        │
    4 └───────────────────────┘
    """
    what = "visualize_array_sharding"
    if not isinstance(getattr(arr, "sharding", None), Sharding):
        raise ArgumentError(
            f"{what}: arr is a {type(arr).__name__}, which is not laid out over devices. Place it "
            "with device_put first, or draw a shape with visualize_sharding."
        )
    size = tuple(arr.shape)
    words: tuple[str, ...] = ()
    if flag_of(header, what, "header"):
        words = headline(size, arr.sharding, str(arr.dtype))
    style = _style(what, scale, min_width, max_width, rulers, use_color)
    colors = None if color_map is None else function_of(color_map, what, "color_map")
    _print(arr.sharding.layout(size), platform_of(arr.sharding), words, style, colors)


def _print(
    layout: Layout,
    platform: str,
    words: Sequence[str],
    style: Style,
    color_map: Callable[[float], Color] | None,
) -> None:
    """Print a layout in the style that the terminal supports."""
    from rich.text import Text

    console = _console()
    width = columns(console.file) or style.max_width
    filled = style.filled and not console.no_color and console.color_system is not None
    style = replace(style, max_width=max(min(width, style.max_width), LEAST_WIDTH), filled=filled)
    drawing = draw_layout(layout, platform=platform, max_slabs=MOST_SLABS)
    lines, above = _compose(drawing, style), wrap(words, style.max_width)
    if not is_encodable("\n".join([*above, _plain(lines)]), console.encoding):
        above = [replaced(line, console.encoding) for line in above]
        lines = [[(replaced(text, console.encoding), area) for text, area in x] for x in lines]
    picture = _colored(drawing, lines, color_map) if filled else Text(_plain(lines))
    titles = [Text(line, style="bold" if filled else "") for line in above]
    console.print(Text("\n").join([*titles, picture]), soft_wrap=True)


def _console() -> Console:
    """Return a console for standard output, with colours if the environment says so."""
    from rich.console import Console

    console = Console(highlight=False)
    colored = has_colors(console.file) or (console.is_jupyter and not os.environ.get("NO_COLOR"))
    return Console(highlight=False, force_terminal=colored, no_color=not colored)


def _plain(lines: Sequence[Line]) -> str:
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


def _colored(
    drawing: Drawing, lines: Sequence[Line], color_map: Callable[[float], Color] | None
) -> Text:
    from rich.style import Style as Look
    from rich.text import Text

    def look(area: int | None) -> Look:
        if area is None:
            return Look()
        color = PALETTE[area % len(PALETTE)]
        if color_map is not None:
            color = _color(color_map(area / max(1, drawing.area_count - 1)))
        return Look(bgcolor=color, color=ink(color))

    return Text("\n").join(
        Text.assemble(*((text, look(area)) for text, area in line)) for line in lines
    )


def _color(given: object) -> str:
    """Return the result of a colour map as ``#rrggbb``."""
    if isinstance(given, str) and re.fullmatch("#[0-9a-fA-F]{6}", given):
        return given
    channels: list[float] = []
    with suppress(TypeError, ValueError):
        channels = [] if isinstance(given, str) else [float(c) for c in given]  # type: ignore[attr-defined]
    if len(channels) < 3 or not all(map(math.isfinite, channels)):
        raise ArgumentError(
            f"color_map returned {shown(given)} of type {type(given).__name__}; it must return a "
            "colour: a string such as '#56b4e9', or three floats from 0 to 1."
        )
    return "#" + "".join(f"{round(255 * min(max(c, 0.0), 1.0)):02x}" for c in channels[:3])


def _compose(drawing: Drawing, style: Style) -> list[Line]:
    """Return the picture of all slabs, and notes on what it does not show."""
    if not drawing.slabs:
        lines = ["┌─────────────┐", "│ no elements │", "└─────────────┘"]
        return [*map(_line, lines), *map(_line, drawing.notes())]
    attempt, rasters = _fit(drawing, style)
    blocks = [_with_rulers(drawing, raster, style) for raster in rasters]
    complete = all(raster.complete for raster in rasters)
    notes = drawing.notes(
        elided=any(raster.slab.elided for raster in rasters),
        numbers=attempt.level > 0 and any(raster.labels for raster in rasters),
        unlabelled="" if complete else "labels that find no room are left out",
    )
    return [*_side_by_side(blocks, style.max_width, drawing.slab_run), *map(_line, notes)]


def _line(text: str) -> Line:
    return [(text, None)]


def _gutter(drawing: Drawing, style: Style) -> int:
    """Return the width of the ruler at the left, which shows rows."""
    if len(drawing.layout.shape) < 2 or not style.rulers:
        return 0
    return 1 + max(len(str(cut)) for slab in drawing.slabs for cut in slab.rows)


def _fit(drawing: Drawing, style: Style) -> tuple[Attempt, list[Raster]]:
    """Return the best way in which all slabs fit, and the slabs."""
    gutter = _gutter(drawing, style)
    width, half = style.max_width - gutter, (style.max_width - BETWEEN) // 2 - gutter
    columns = max(len(slab.columns) - 1 for slab in drawing.slabs)
    ways: list[Attempt] = []
    for attempt in attempts(width, style.min_width, columns):
        # Prefer slabs side by side, as long as every block is shown.
        beside = len(drawing.slabs) > 1 and attempt.most >= columns
        ways += [replace(attempt, width=half), attempt] if beside else [attempt]
    for attempt in ways:
        tried = [rasterize(drawing, slab, style, attempt) for slab in drawing.slabs]
        rasters = [raster for raster in tried if raster is not None]
        if len(rasters) == len(tried):
            return attempt, rasters
    raise AssertionError("the last way, which leaves out labels, cannot fail")


def _with_rulers(drawing: Drawing, raster: Raster, style: Style) -> list[Line]:
    """Return a slab's lines, with its title and the cut points along its edges."""
    lines = raster.filled() if style.filled else raster.framed()
    gutter = _gutter(drawing, style)
    if gutter:
        at = dict(zip(raster.ys, raster.slab.rows, strict=True))
        lines = [
            [(str(at.get(y, "")).rjust(gutter - 1) + " ", None), *line]
            for y, line in enumerate(lines)
        ]
    elif style.filled:
        lines.pop()
    if style.rulers and drawing.layout.shape:
        lines.insert(0, _line(" " * gutter + raster.column_ruler()))
    title = raster.slab.title
    return [_line(title), *lines] if title else lines


def _side_by_side(blocks: Sequence[list[Line]], width: int, run: int) -> list[Line]:
    """Return blocks from left to right and from top to bottom, ``run`` in a row if they fit."""
    widths = [max(map(_length, block)) for block in blocks]
    fits = sum(widths[:run]) + BETWEEN * (run - 1) <= width
    rows: list[list[list[Line]]] = []
    used = width
    for block, wide in zip(blocks, widths, strict=True):
        if used + BETWEEN + wide > width or (fits and len(rows[-1]) == run):
            rows.append([])
            used = -BETWEEN
        used += BETWEEN + wide
        rows[-1].append([[*line, (" " * (wide - _length(line)), None)] for line in block])
    lines: list[Line] = []
    for row in rows:
        lines += [[]] if lines else []
        high = max(map(len, row))
        for block in row:
            block += [_line(" " * _length(block[0])) for _ in range(high - len(block))]
        for parts in zip(*row, strict=True):
            first, *others = parts
            lines.append([*first, *(span for o in others for span in (_BLANKS, *o))])
    return lines


def _length(line: Line) -> int:
    return sum(len(text) for text, _ in line)


# Slabs in units of characters.


@final
@dataclass(frozen=True)
class Style:
    """How large a picture may be, and whether areas are filled with colour or framed by lines.

    Attributes:
        scale: 1 for about ten lines.
        min_width: the least width of a block, including its frame, if there is room for it.
        max_width: the greatest width of the whole.
        rulers: whether cut points are shown along the edges.
        filled: whether areas are filled with colour; otherwise lines separate them.
    """

    scale: float = 1.0
    min_width: int = 9
    max_width: int = 80
    rulers: bool = True
    filled: bool = False


@final
@dataclass(frozen=True)
class Attempt:
    """One way to make a slab fit.

    Attributes:
        width: the greatest width of the slab, without its ruler.
        level: of labels: with the platform (0), without it (1), or as short as possible (2).
        floor: the least inner width of a block.
        margin: blanks around a label.
        alike: give the shortest label as much room as the longest.
        most: the most columns of blocks; if there are more, the middle ones are left out.
        forced: leave out the labels that do not fit.
    """

    width: int
    level: int
    floor: int = 0
    margin: int = 0
    alike: bool = True
    most: int = 1 << 62
    forced: bool = False


def attempts(width: int, min_width: int, columns: int) -> list[Attempt]:
    """Return the ways to fit ``columns`` blocks in ``width`` characters, the best first."""
    last = Attempt(width, 2, most=3, forced=True)
    fewer = [Attempt(width, 2, most=n) for n in range(min(columns, width // 2), 3, -1)]
    if 2 * columns >= width:
        return [*fewer, last]
    whole = [Attempt(width, level, margin=blank) for level in (0, 1, 2) for blank in (1, 0)]
    narrow = [Attempt(width, level, alike=False) for level in (0, 1, 2)]
    return [Attempt(width, 0, floor=min_width - 2), *whole, *narrow, *fewer, last]


@final
@dataclass(frozen=True)
class Raster:
    """One slab in units of characters; the borders are at ``xs`` and ``ys``.

    Attributes:
        slab: the part of the slab that is shown.
        xs: the column of each vertical border.
        ys: the line of each horizontal border.
        labels: column, line and text of each label.
        complete: whether no label was left out.
    """

    slab: Slab
    xs: tuple[int, ...]
    ys: tuple[int, ...]
    labels: tuple[tuple[int, int, str], ...]
    complete: bool

    def framed(self) -> list[Line]:
        """Return the lines of the picture with a frame around each area."""
        across, down = len(self.xs) - 1, len(self.ys) - 1

        def area(i: int, j: int) -> int | None:
            return self.slab.areas[i][j] if 0 <= i < down and 0 <= j < across else None

        # Where borders may cross, an arm goes each way on whose two sides the areas differ; outside
        # of the slab there is None, which differs from all. Arms to the right and down are drawn
        # up to the next crossing.
        canvas = [[" "] * (self.xs[-1] + 1) for _ in range(self.ys[-1] + 1)]
        for i, y in enumerate(self.ys):
            for j, x in enumerate(self.xs):
                up = area(i - 1, j - 1) != area(i - 1, j)
                low = area(i, j - 1) != area(i, j)
                left = area(i - 1, j - 1) != area(i, j - 1)
                right = area(i - 1, j) != area(i, j)
                canvas[y][x] = LINES[up + 2 * low + 4 * left + 8 * right]
                if low:
                    for line in canvas[y + 1 : self.ys[i + 1]]:
                        line[x] = "│"
                if right:
                    canvas[y][x + 1 : self.xs[j + 1]] = "─" * (self.xs[j + 1] - x - 1)
        for x, y, text in self.labels:
            canvas[y][x : x + len(text)] = text
        return [[("".join(line), None)] for line in canvas]

    def filled(self) -> list[Line]:
        """Return the lines of the picture with each area on a background, without the upper frame.

        The last line is empty, so that there are as many lines as in `framed` for a ruler.
        """
        canvas = [" " * (self.xs[-1] + 1)] * (self.ys[-1] + 1)
        for x, y, text in self.labels:
            canvas[y] = canvas[y][:x] + text + canvas[y][x + len(text) :]
        lines: list[Line] = []
        for row, (top, bottom) in zip(self.slab.areas, pairwise(self.ys), strict=True):
            # Neighbouring cells of one area are one span, so that a label may go across them.
            spans: list[tuple[int, int, int]] = []
            for area, (left, right) in zip(row, pairwise(self.xs), strict=True):
                start = spans.pop()[1] if spans and spans[-1][0] == area else left
                spans.append((area, start, right))
            for line in canvas[top + 1 : bottom + 1]:
                lines.append(
                    [(line[a + 1 : b + 1], None if area < 0 else area) for area, a, b in spans]
                )
        return [*lines, []]

    def column_ruler(self) -> str:
        """Return the cut points of the columns, each as near to its border as possible."""
        line, *inner, last = map(str, self.slab.columns)
        end = max(self.xs[-1] + 1 - len(last), len(line) + 1)
        for x, cut in zip(self.xs[1:-1], inner, strict=True):
            start = max(x - (len(cut) - 1) // 2, 0)
            if len(line) < start and start + len(cut) < end:
                line = line.ljust(start) + cut
        return line.ljust(end) + last


def _widths(
    sizes: Sequence[int], needs: Sequence[tuple[int, int, int]], natural: int, width: int
) -> list[int] | None:
    """Return the inner width of each column, as proportional as possible; None if nothing fits.

    Args:
        sizes: the elements of each column.
        needs: first column, column after the last, and the inner width that these need together.
        natural: the width of the whole if there is room for it.
        width: the greatest width of the whole.

    >>> _widths((1, 3), [(0, 1, 5), (1, 2, 5)], 40, 80), _widths((1, 3), [(0, 1, 5)], 40, 20)
    ([8, 28], [5, 12])
    """
    least = [1] * len(sizes)
    # Narrow needs first: what they took counts towards the wider ones that they are part of. A
    # lack is shared out evenly, its remainder to the columns on the left.
    for first, last, need in sorted(needs, key=lambda n: n[1] - n[0]):
        lack = need - sum(least[first:last]) - (last - first - 1)
        for place in range(first, last):
            share = max(0, -(-lack // (last - place)))
            least[place] += share
            lack -= share
    total, frame = sum(sizes), len(sizes) + 1
    if sum(least) + frame > width:
        return None

    def widths(whole: int) -> list[int]:
        return [max(m, n * whole // total - 2) for m, n in zip(least, sizes, strict=True)]

    # Columns at their least width make the whole wider than its share says, so the largest scale
    # that still fits is searched for; it grows with `whole`, and 0 always fits.
    scales = range(1, min(natural, width + 3 * len(sizes)) + 1)
    return widths(bisect_right(scales, width, key=lambda whole: sum(widths(whole)) + frame))


def _heights(sizes: Sequence[int], height: int, style: Style, rank: int) -> list[int]:
    """Return the height of each row in lines, about proportional to its size."""
    least = 2 if not style.filled else 3 if len(sizes) <= 8 else 1
    if rank < 2:
        return [least]
    return [max(least if n else 2 - style.filled, n * height // sum(sizes)) for n in sizes]


def rasterize(drawing: Drawing, slab: Slab, style: Style, attempt: Attempt) -> Raster | None:
    """Return a slab as characters, or None if its labels do not fit."""
    rank, count = len(drawing.layout.shape), len(slab.rows) - 1
    # Each cell of a gap is an area of its own, so that it joins no other.
    most_rows = count if count <= MOST_ROWS else FEW_ROWS
    shown = slab.shortened(most_rows, attempt.most, apart=True)
    down, across = shown.sizes
    labels = _labels(drawing, shown, attempt)
    height = int((10 if rank < 3 else 6) * style.scale)
    if rank < 2:
        # The narrowest block gets its least width, and the others follow in proportion.
        least = min(n for n in across if n)
        natural = -(-int(style.min_width * style.scale) * sum(across) // least)
    else:
        # A character is about two and a half times as high as wide.
        natural = int(2.5 * height * sum(across) / sum(down))
    needs = [] if attempt.forced else _needs(labels, attempt)
    widths = _widths(across, needs, natural, attempt.width)
    if widths is None:
        if not attempt.forced:
            return None
        widths = [3] * len(across)
    xs = tuple(accumulate((n + 1 for n in widths), initial=0))
    ys = tuple(accumulate(_heights(down, height, style, rank), initial=0))
    placed = []
    for one, text in labels:
        left, right = (xs[i] for i in one.columns)
        top, bottom = (ys[i] for i in one.rows)
        # Between two borders there is one place less than their distance, unless they are not
        # drawn: a filled area goes up to the next.
        room, lines = right - left - 1 + style.filled, bottom - top - 1 + style.filled
        if len(text) <= room:
            x, y = left + 1 + (room - len(text)) // 2, top + 1 + (lines - 1) // 2
            placed.append((x, y, text))
    return Raster(shown, xs, ys, tuple(placed), len(placed) == len(labels))


def _labels(drawing: Drawing, shown: Slab, attempt: Attempt) -> list[tuple[Rectangle, str]]:
    """Return each rectangle with a text, and the text; that of a gap is dots."""
    return [
        (one, drawing.label(one.area, attempt.level))
        if one.area >= 0
        else (one, GAPS[one.rows[0] == shown.gaps[0], one.columns[0] == shown.gaps[1]])
        for one in shown.rectangles
        if one.labelled
    ]


def _needs(labels: Sequence[tuple[Rectangle, str]], attempt: Attempt) -> list[tuple[int, int, int]]:
    """Return the columns of each label and the inner width that it needs, as `_widths` takes it."""
    longest = max(len(text) for _, text in labels)
    found = []
    for one, text in labels:
        room = max(attempt.floor, (longest if attempt.alike else len(text)) + 2 * attempt.margin)
        found.append((*one.columns, room if one.area >= 0 else 3))
    return found
