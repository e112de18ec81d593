"""Drawings as values: the content of a picture of a layout, without the form of text or SVG.

A drawing is a sequence of *slabs*, each the last two dims of the array at one block of the dims
before them. A slab is a grid of cells between cut points; every cell names its *area*: the part of
the array that one set of devices holds. An area is usually a piece of the layout; where the
boxes of an irregular layout overlap, it stands for several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise, product
from typing import TYPE_CHECKING, final

import numpy as np

from meshard.algebra.box import Box
from meshard.algebra.layout import Cuts, Layout
from meshard.plan.captions import device_label

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Areas = NDArray[np.int64]
    Spans = Sequence[Sequence[tuple[int, int]]]
    Look = Callable[[tuple[int, ...], Box], tuple[Sequence[Cuts], Areas]]


@final
@dataclass(frozen=True)
class Slab:
    """The last two dims of the array, at one block of the dims before them.

    Attributes:
        leading: the block of the dims before the last two.
        title: that block as an index, such as ``[0:4, 2:4, :, :]``; empty up to rank two.
        rows: cut points of the last dim but one; ``(0, 1)`` below rank two.
        columns: cut points of the last dim; ``(0, 1)`` for a scalar.
        areas: for each row and column the number of the area; below zero in a gap.
        gaps: the row and the column that stand for those left out; -1 if there are none.
    """

    leading: Box
    title: str
    rows: Cuts
    columns: Cuts
    areas: tuple[tuple[int, ...], ...]
    gaps: tuple[int, int] = (-1, -1)

    @property
    def elided(self) -> bool:
        """Whether anything is left out."""
        return self.gaps != (-1, -1)

    @cached_property
    def sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The elements along each row and each column; 0 for a gap."""
        heights, widths = (
            tuple([0 if n == gap else b - a for n, (a, b) in enumerate(pairwise(cuts))])
            for cuts, gap in zip((self.rows, self.columns), self.gaps, strict=True)
        )
        return heights, widths

    @cached_property
    def rectangles(self) -> tuple[Rectangle, ...]:
        """The areas and the gaps, in rectangles."""
        return split_rectangles(self.areas, *self.sizes)

    def shortened(self, most_rows: int, most_columns: int, *, apart: bool) -> Slab:
        """Return the slab with a gap in place of rows and columns that do not fit.

        Args:
            most_rows: how many rows there may be, including the gap.
            most_columns: the same for columns.
            apart: whether each cell of a gap is its own area; otherwise a gap is one area.
        """
        if len(self.rows) - 1 <= most_rows and len(self.columns) - 1 <= most_columns:
            return self
        rows = kept(len(self.rows) - 1, most_rows)
        columns = kept(len(self.columns) - 1, most_columns)
        areas = tuple(
            tuple(
                -1 - apart * (r * len(columns) + c) if i is None or j is None else self.areas[i][j]
                for c, j in enumerate(columns)
            )
            for r, i in enumerate(rows)
        )
        # A gap begins where the row before it ends.
        ends = [
            tuple(sorted({cuts[i + end] for i in shown if i is not None for end in (0, 1)}))
            for cuts, shown in ((self.rows, rows), (self.columns, columns))
        ]
        gaps = [shown.index(None) if None in shown else -1 for shown in (rows, columns)]
        return replace(self, rows=ends[0], columns=ends[1], areas=areas, gaps=(gaps[0], gaps[1]))


@final
@dataclass(frozen=True)
class Drawing:
    """What a picture of a layout shows.

    Attributes:
        layout: the layout.
        platform: the word before device ids.
        slabs: the slabs that are shown, in index order.
        slab_counts: the number of blocks of each dim before the last two.
        overlaps: the pieces of each area that stands for several.
        empty: ids of the devices whose piece has no element, ascending.

    An area below ``layout.piece_count`` is the piece of that number; the others follow in the
    order of ``overlaps``.
    """

    layout: Layout
    platform: str
    slabs: tuple[Slab, ...]
    slab_counts: tuple[int, ...]
    overlaps: tuple[tuple[int, ...], ...]
    empty: tuple[int, ...]

    def pieces(self, area: int) -> tuple[int, ...]:
        """Return the pieces that cover an area."""
        count = self.layout.piece_count
        return (area,) if area < count else self.overlaps[area - count]

    def devices(self, area: int) -> tuple[int, ...]:
        """Return the ids of the devices that hold an area, piece by piece in replica order."""
        return tuple([int(i) for piece in self.pieces(area) for i in self.layout.holders(piece)])

    def label(self, area: int, level: int) -> str:
        """Return an area's label: with the platform (level 0), without it (1), or short (2)."""
        word = "" if level else self.platform
        return device_label(self.devices(area), word, most=1 if level > 1 else 6)

    def notes(
        self, *, elided: bool = False, numbers: bool = False, unlabelled: str = ""
    ) -> list[str]:
        """Return the notes below a picture.

        Args:
            elided: whether areas are left out within slabs.
            numbers: whether labels are shown without the platform.
            unlabelled: the note on areas without a label.
        """
        hidden, platform = self.slab_count - len(self.slabs), self.platform
        said = []
        if hidden:
            said.append(f"and {hidden} more slabs like these, {self.slab_count} in all")
        if elided:
            ids = device_label(self.layout.device_ids, platform)
            said.append(f"not all blocks are shown: there are {self.layout.piece_count}, on {ids}")
        said += [f"numbers are {platform} ids"] * numbers + [unlabelled] * bool(unlabelled)
        if self.empty:
            said.append(f"empty on: {device_label(self.empty, platform)}")
        return said

    @property
    def slab_count(self) -> int:
        """The number of slabs, including those that are not shown."""
        return math.prod(self.slab_counts)

    @property
    def slab_run(self) -> int:
        """The number of slabs along the last dim that divides them: a row of a grid."""
        return next((n for n in reversed(self.slab_counts) if n > 1), 1)

    @property
    def area_count(self) -> int:
        """The number of areas, including those without elements."""
        return self.layout.piece_count + len(self.overlaps)


def draw_layout(layout: Layout, *, platform: str = "CPU", max_slabs: int = 12) -> Drawing:
    """Return the drawing of a layout.

    Args:
        layout: the layout.
        platform: the word before device ids.
        max_slabs: from rank three on, show at most this many slabs; of more, only the first half
            of them.

    >>> ids = np.arange(4).reshape(2, 2, 1)
    >>> drawing = draw_layout(Layout((4, 6), ((0, 2, 4), (0, 3, 6)), ids))
    >>> drawing.slabs[0].areas, drawing.devices(3)
    (((0, 1), (2, 3)), (3,))
    """
    empty = tuple(sorted([int(d) for i in _without_elements(layout) for d in layout.holders(i)]))
    if not math.prod(layout.shape):
        return Drawing(layout, platform, (), (0,), (), empty)
    overlaps: dict[tuple[int, ...], int] = {}
    spans, look = _regular(layout) if layout.regular else _irregular(layout, overlaps)
    counts = tuple(map(len, spans))
    shown = max_slabs if math.prod(counts) <= max_slabs else max(1, max_slabs // 2)
    slabs = []
    for place in islice(product(*map(range, counts)), shown):
        block = [dim[i] for dim, i in zip(spans, place, strict=True)]
        leading = Box(tuple([a for a, _ in block]), tuple([b for _, b in block]))
        slabs.append(_slab(layout.shape, leading, *look(place, leading)))
    return Drawing(layout, platform, tuple(slabs), counts, tuple(overlaps), empty)


def _without_elements(layout: Layout) -> Iterator[int]:
    """Yield the pieces that have no element."""
    if layout.regular and all(a < b for cuts in layout.cuts for a, b in pairwise(cuts)):
        return iter(())  # thousands of pieces need not be visited
    return (i for i in range(layout.piece_count) if not layout.box(i).volume)


def _slab(shape: tuple[int, ...], leading: Box, cuts: Sequence[Cuts], areas: Areas) -> Slab:
    rows, columns = ((0, 1), (0, 1), *cuts)[-2:]
    spans = zip(leading.starts, leading.stops, shape, strict=False)
    words = [":" if (a, b) == (0, n) else f"{a}:{b}" for a, b, n in spans]
    title = f"[{', '.join([*words, ':', ':'])}]" if words else ""
    grid = areas.reshape(len(rows) - 1, len(columns) - 1)
    return Slab(leading, title, rows, columns, tuple(map(tuple, grid.tolist())))


def _regular(layout: Layout) -> tuple[Spans, Look]:
    """Return the blocks of a grid's leading dims, and a function that makes a block's slab."""
    taken = [[i for i, (a, b) in enumerate(pairwise(c)) if a < b] for c in layout.cuts]
    spans = [
        [(cuts[i], cuts[i + 1]) for i in dim] for cuts, dim in zip(layout.cuts, taken, strict=True)
    ]
    numbers = np.arange(layout.piece_count).reshape(layout.grid)
    numbers = numbers[np.ix_(*taken)] if taken else numbers
    cuts = [(0, *(b for _, b in dim)) for dim in spans[-2:]]
    return spans[:-2], lambda place, _: (cuts, numbers[place])


def _irregular(layout: Layout, overlaps: dict[tuple[int, ...], int]) -> tuple[Spans, Look]:
    """Do the same for a list of boxes; overlaps are numbered in ``overlaps`` as they are found."""
    boxes = {i: box for i in range(layout.piece_count) if (box := layout.box(i)).volume}
    dims = range(len(layout.shape))

    def cuts_of(pieces: Iterable[int], dim: int) -> Cuts:
        ends = {end for i in pieces for end in (boxes[i].starts[dim], boxes[i].stops[dim])}
        return tuple(sorted(ends))

    def look(_: tuple[int, ...], leading: Box) -> tuple[Sequence[Cuts], Areas]:
        # Leading blocks are cut at all borders of boxes, so a box contains all of one or nothing.
        inside = [
            i
            for i, box in boxes.items()
            if all(
                a <= at < b for at, a, b in zip(leading.starts, box.starts, box.stops, strict=False)
            )
        ]
        cuts = [cuts_of(inside, dim) for dim in dims[-2:]]
        areas = np.full([len(c) - 1 for c in cuts], -1)
        for piece in inside:
            ends = zip(boxes[piece].starts[-2:], boxes[piece].stops[-2:], cuts, strict=True)
            where = tuple([slice(c.index(a), c.index(b)) for a, b, c in ends])
            _paint(areas[where], piece, layout.piece_count, overlaps)
        return cuts, areas

    return [list(pairwise(cuts_of(boxes, dim))) for dim in dims[:-2]], look


def _paint(
    cells: Areas, piece: int, piece_count: int, overlaps: dict[tuple[int, ...], int]
) -> None:
    """Add a piece to the areas of ``cells``, in place."""
    # The cells may belong to several areas already: with each the piece makes another overlap,
    # unless the same pieces overlap elsewhere too.
    before = cells.copy()
    known = list(overlaps)
    for area in np.unique(before).tolist():
        if area < 0:
            new = piece
        else:
            under = known[area - piece_count] if area >= piece_count else (area,)
            new = overlaps.setdefault((*under, piece), piece_count + len(overlaps))
        cells[before == area] = new


@final
@dataclass(frozen=True)
class Rectangle:
    """Neighbouring cells of one area, which are drawn together.

    Attributes:
        area: the area's number.
        rows: the half-open range of rows.
        columns: the half-open range of columns.
        labelled: whether the label goes here: an area that is not a rectangle has several.
    """

    area: int
    rows: tuple[int, int]
    columns: tuple[int, int]
    labelled: bool = True

    def touches(self, other: Rectangle) -> bool:
        """Return whether the two share more than a corner."""
        high = min(self.rows[1], other.rows[1]) - max(self.rows[0], other.rows[0])
        wide = min(self.columns[1], other.columns[1]) - max(self.columns[0], other.columns[0])
        return min(high, wide) >= 0 < max(high, wide)

    def measure(self, heights: Sequence[int], widths: Sequence[int]) -> int:
        """Return the number of elements inside, given those of each row and column."""
        return sum(heights[slice(*self.rows)]) * sum(widths[slice(*self.columns)])


def split_rectangles(
    areas: Sequence[Sequence[int]], heights: Sequence[int], widths: Sequence[int]
) -> tuple[Rectangle, ...]:
    """Return rectangles that together contain each cell once, in the order of their first cells.

    Args:
        areas: for each row and column the number of its area.
        heights: the size of each row.
        widths: the size of each column.

    Among touching rectangles of one area, the largest gets the label.

    >>> for r in split_rectangles([[0, 0, 1], [0, 2, 2]], (3, 1), (1, 1, 1)):
    ...     print(r.area, r.rows, r.columns, r.labelled)
    0 (0, 1) (0, 2) True
    1 (0, 1) (2, 3) True
    0 (1, 2) (0, 1) False
    2 (1, 2) (1, 3) True
    """
    order: list[Rectangle] = []
    rest: list[list[int | None]] = [list(row) for row in areas]
    for i, row in enumerate(rest):
        for j, area in enumerate(row):
            if area is None:
                continue
            # Extend to the right as far as the area goes, and then down as far as all of that goes.
            right = next((k for k in range(j, len(row)) if row[k] != area), len(row))
            alike = row[j:right]
            low = next((k for k in range(i, len(rest)) if rest[k][j:right] != alike), len(rest))
            for line in rest[i:low]:
                line[j:right] = [None] * (right - j)
            order.append(Rectangle(area, (i, low), (j, right)))
    chosen = {max(g, key=lambda r: r.measure(heights, widths)) for g in _islands(order)}
    return tuple([replace(r, labelled=r in chosen) for r in order])


def _islands(rectangles: Iterable[Rectangle]) -> list[list[Rectangle]]:
    """Return the rectangles in connected groups: of one area, and touching."""
    found: dict[int, list[list[Rectangle]]] = {}
    for one in rectangles:
        groups = found.setdefault(one.area, [])
        # A rectangle that touches several groups merges them into one.
        near = [g for g in groups if any(one.touches(other) for other in g)]
        apart = [g for g in groups if g not in near]
        found[one.area] = [*apart, [one, *(r for g in near for r in g)]]
    return [group for groups in found.values() for group in groups]


def kept(count: int, most: int) -> tuple[int | None, ...]:
    """Return which of ``count`` positions to show in ``most`` places, with None for the gap.

    >>> kept(4, 4), kept(9, 4)
    ((0, 1, 2, 3), (0, 1, None, 8))
    """
    if count <= most:
        return tuple(range(count))
    last = (most - 1) // 2
    return (*range(most - 1 - last), None, *range(count - last, count))
