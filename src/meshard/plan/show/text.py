"""Drawings of layouts as text: boxes with device names, in colour if the terminal supports it.

The picture looks like that of `jax.debug.visualize_sharding` and supports more: any rank, uneven
and irregular layouts, cut points along the edges, thousands of devices.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

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
from meshard.plan.show.drawing import Drawing, draw_layout
from meshard.plan.show.raster import Attempt, Line, Raster, Style, attempts, rasterize
from meshard.plan.show.terminal import ASCII, columns, has_colors, is_encodable, replaced

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


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
