"""A slab of a drawing in units of characters: its width, its height, and its labels' places."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import final

from meshard.plan.show.drawing import Drawing, Rectangle, Slab

# With more rows of blocks than MOST_ROWS, only FEW_ROWS are drawn: a screen has about 50 lines.
MOST_ROWS, FEW_ROWS = 24, 13
# The text for blocks left out, by whether their rows and their columns are left out.
GAPS = {(True, False): "⋮", (False, True): "⋯", (True, True): "⋱"}
# Characters by the arms that meet in a point: up 1, down 2, left 4, right 8.
LINES = " ╵╷│╴┘┐┤╶└┌├─┴┬┼"

# Texts from left to right, each on the background of an area, or on none (None).
Line = list[tuple[str, int | None]]


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
