"""Layouts as grids of cells with holders, ready for arithmetic on whole arrays of them.

A *cell* is one element of the product of a layout's cuts; of a regular layout it is a shard. In an
irregular layout, whose boxes are not a product of cuts, a cell is a part of one or more boxes. A
*unit* sends and receives: it is a device, or a process that holds several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, final

import numpy as np

from meshard.algebra.box import Box
from meshard.algebra.layout import Layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

Units = Callable[["Ints"], "Ints"]
"""From device ids to units; -1 for devices that are gone."""


def each_device(ids: Ints) -> Ints:
    """Return every device as a unit of its own."""
    return ids


@final
class CellGrid:
    """A layout's cells, and the units that hold each.

    Args:
        layout: the layout.
        units: maps device ids to units.

    Attributes:
        sizes: the number of cells along each dim.
        plain: whether units are devices, all of them there, and each holds one cell.
        holders: unit numbers ``[cell, holder]``, each unit once per cell in replica order; -1 fills
            the rows up.
    """

    def __init__(self, layout: Layout, units: Units = each_device) -> None:
        self.layout = layout
        self.cuts: tuple[Ints, ...] = layout.points
        self.lengths: tuple[Ints, ...] = layout.lengths
        self.sizes = tuple(map(len, self.lengths))
        self.count = math.prod(self.sizes)
        self.plain = units is each_device and layout.slots is not None
        ids = layout.tensor.reshape(self.count, -1) if layout.regular else self._gathered()
        if self.plain:
            self.holders = ids
            return
        found = np.where(ids < 0, -1, units(np.maximum(ids, 0)))
        self.holders = found if units is each_device and layout.regular else _once(found)

    def _gathered(self) -> Ints:
        """Return the devices that hold each cell of an irregular layout."""
        rows: list[list[int]] = [[] for _ in range(self.count)]
        for piece in range(self.layout.piece_count):
            for cell in self.cells_of(piece):
                rows[cell] += self.layout.holders(piece)
        most = max(map(len, rows), default=1)
        padded = [row + [-1] * (most - len(row)) for row in rows]
        return np.array(padded, np.int64).reshape(self.count, most)

    def cells_of(self, piece: int) -> list[int]:
        """Return the cells that make up a piece of the layout."""
        if self.layout.regular:
            return [piece]
        box = self.layout.box(piece)
        spans = [
            range(int(np.searchsorted(c, a)), int(np.searchsorted(c, b)))
            for c, a, b in zip(self.cuts, box.starts, box.stops, strict=True)
        ]
        return [self.number(place) for place in product(*spans)]

    @cached_property
    def pieces_of(self) -> list[list[int]]:
        """For each cell the pieces of the layout that cover it."""
        found: list[list[int]] = [[] for _ in range(self.count)]
        for piece in range(self.layout.piece_count):
            for cell in self.cells_of(piece):
                found[cell].append(piece)
        return found

    def box(self, cell: int) -> Box:
        """Return the region of a cell."""
        places = [int(p[0]) for p in self.places(np.array([cell]))]
        return Box(
            tuple([int(c[i]) for c, i in zip(self.cuts, places, strict=True)]),
            tuple([int(c[i + 1]) for c, i in zip(self.cuts, places, strict=True)]),
        )

    @cached_property
    def lost(self) -> tuple[Box, ...]:
        """The regions of the cells with elements that no unit holds."""
        if self.plain:
            return ()
        boxes = [self.box(int(cell)) for cell in np.flatnonzero(self.copies == 0)]
        return tuple([box for box in boxes if box.volume])

    @cached_property
    def copies(self) -> Ints:
        """The number of units that hold each cell."""
        if self.plain:
            return np.broadcast_to(np.int64(self.holders.shape[1]), self.count)
        counts: Ints = (self.holders >= 0).sum(axis=1)
        return counts

    def number(self, place: Iterable[int]) -> int:
        """Return the number of the cell at a position."""
        found = 0
        for i, n in zip(place, self.sizes, strict=True):
            found = found * n + i
        return found

    def places(self, cells: Ints) -> tuple[Ints, ...]:
        """Return the positions of cells along each dim."""
        found = []
        for n in reversed(self.sizes):
            outer = cells // max(n, 1)
            found.append(cells - outer * max(n, 1))
            cells = outer
        return tuple(reversed(found))

    def held_by(self, units: Ints) -> Ints:
        """Return the cells that any of some units holds, ascending."""
        return np.flatnonzero(np.isin(self.holders, units).any(axis=1))

    @cached_property
    def held(self) -> tuple[Ints, Ints, Ints]:
        """All pairs of a unit and a cell that it holds, and the unit's column among the holders.

        Sorted by unit and then by cell.
        """
        if self.plain and self.layout.slots is not None:
            units, place = self.layout.slots
            width = self.holders.shape[1]
            if width == 1:
                return units, place, np.zeros_like(place)
            cells = place // width
            return units, cells, place - cells * width
        cells, columns = np.nonzero(self.holders >= 0)
        units = self.holders[cells, columns]
        order = np.lexsort((cells, units))
        return units[order], cells[order], columns[order]


def loss_text(shape: tuple[int, ...], boxes: Sequence[Box]) -> str:
    """Return a sentence on the boxes of an array that no live device holds.

    >>> loss_text((8,), [Box((0,), (4,))])
    'No live device holds [0:4] of an array of shape (8,): 4 elements in 1 box are lost.'
    """
    told = ", ".join(map(str, boxes[:8])) + (", ..." if len(boxes) > 8 else "")
    return (
        f"No live device holds {told} of an array of shape {shape}: "
        f"{sum(b.volume for b in boxes):,} elements in {len(boxes)} "
        f"{'box' if len(boxes) == 1 else 'boxes'} are lost."
    )


def _once(rows: Ints) -> Ints:
    """Keep the first of equal entries in each row, and move the kept ones to the front."""
    if rows.shape[1] < 2:
        return rows
    order = np.argsort(rows, axis=1, kind="stable")
    ranked = np.take_along_axis(rows, order, axis=1)
    again = np.zeros(rows.shape, bool)
    again[:, 1:] = ranked[:, 1:] == ranked[:, :-1]
    kept = np.array(rows)
    flags = np.empty(rows.shape, bool)
    np.put_along_axis(flags, order, again, axis=1)
    kept[flags] = -1
    front = np.argsort(kept < 0, axis=1, kind="stable")
    kept = np.take_along_axis(kept, front, axis=1)
    most = max(1, int((kept >= 0).sum(axis=1).max(initial=0)))
    return np.ascontiguousarray(kept[:, :most])


def distinct(numbers: Ints) -> Ints:
    """Return the distinct values of some numbers, ascending.

    It sorts, which is quick if parts of the numbers ascend; `numpy.unique` hashes, which is slower.

    >>> distinct(np.array([0, 4, 8, 0, 2, 4])).tolist()
    [0, 2, 4, 8]
    """
    ascending = len(numbers) < 2 or bool((numbers[1:] >= numbers[:-1]).all())
    ranked = numbers if ascending else np.sort(numbers, kind="stable")
    new = np.ones(len(ranked), bool)
    np.not_equal(ranked[1:], ranked[:-1], out=new[1:])
    return ranked if new.all() else ranked[new]


def consecutive(first: Ints, counts: Ints) -> Ints:
    """Return, row after row, consecutive numbers: each row's first number and count are given.

    So a list of ranges becomes an array without a loop; `numpy.repeat` with the same counts puts a
    row's other values beside each of its numbers.

    >>> consecutive(np.array([10, 20, 30]), np.array([2, 0, 3])).tolist()
    [10, 11, 30, 31, 32]
    """
    ends = np.cumsum(counts)
    found: Ints = np.arange(int(counts.sum())) + np.repeat(first - (ends - counts), counts)
    return found


@final
class Merge:
    """The common refinement of two layouts' cuts along one dim.

    Attributes:
        starts: where each stretch begins.
        lengths: how long it is; none is empty.
        source: the source's cell that contains it.
        destination: the destination's cell that contains it.
        of_source: for each source cell the first of its stretches, and one past the last.
        of_destination: the same for each destination cell.
    """

    def __init__(self, source: Ints, destination: Ints) -> None:
        points = distinct(np.concatenate((source, destination)))
        self.starts: Ints = points[:-1]
        self.lengths: Ints = np.diff(points)
        # The cell that holds a point is the last that begins at or before it and is not empty.
        self.source: Ints = np.searchsorted(source, self.starts, side="right") - 1
        self.destination: Ints = np.searchsorted(destination, self.starts, side="right") - 1
        self.of_source = self._spans(self.source, len(source) - 1)
        self.of_destination = self._spans(self.destination, len(destination) - 1)

    @staticmethod
    def _spans(owner: Ints, count: int) -> tuple[Ints, Ints]:
        cells = np.arange(count)
        return np.searchsorted(owner, cells), np.searchsorted(owner, cells, side="right")


def stretches(source: Ints, destination: Ints) -> int:
    """Return how many stretches the common refinement of two layouts' cuts along a dim has.

    >>> stretches(np.array([0, 4, 8]), np.array([0, 2, 4, 4, 8]))
    3
    """
    few, many = sorted([distinct(source), distinct(destination)], key=len)
    if len(few) == len(many) and np.array_equal(few, many):
        return len(many) - 1
    place = np.searchsorted(many, few)  # both have the same ends
    return len(many) + int(np.count_nonzero(many[place] != few)) - 1


def merged_cuts(source: CellGrid, destination: CellGrid) -> tuple[Merge, ...]:
    """Return for each dim the common refinement of two grids."""
    return tuple([Merge(a, b) for a, b in zip(source.cuts, destination.cuts, strict=True)])
