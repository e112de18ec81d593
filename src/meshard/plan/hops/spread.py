"""Amounts on the cells of one layout, summed over the cells of another, without pairs of cells.

Values on one grid (elements wanted, copies, shares) are carried over to another dim by dim with
running sums, in the order of dims that keeps intermediate arrays no larger than the two grids.
The same is done for groups of units, such as hosts: only the cells that a group holds count, and
for small groups it is quicker to compare pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar, final

import numpy as np

from meshard.plan.hops.cells import CellGrid, Units, consecutive
from meshard.plan.hops.jobs import counter
from meshard.tuning import GROUP_COST, PAIRS_AT_ONCE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Number = TypeVar("Number", Floats, Ints)
    Spans = tuple[Ints, Ints]


# One group's grids cost about as much as this many pairs, besides their cells.


def spans_of(grid: CellGrid) -> tuple[Spans, ...]:
    """Return for each dim where the cells of a grid start and stop."""
    return tuple([(c[:-1], c[1:]) for c in grid.cuts])


def spread(
    values: Number, spans: Sequence[Spans], onto: Sequence[Spans], *, counting: bool = False
) -> Number:
    """Sum the values on one grid of cells over each cell of another.

    Args:
        values: a number for each cell, as an array of the grid's rank. Sums have its dtype, so
            that those of integers are exact.
        spans: for each dim where the cells start and stop; they ascend and are disjoint, and may
            leave gaps.
        onto: the same for the other grid.
        counting: whether each cell that shares elements counts once; otherwise it counts once for
            each element shared.

    >>> halves = (np.array([0, 3]), np.array([3, 6]))
    >>> thirds = (np.array([0, 2, 4]), np.array([2, 4, 6]))
    >>> spread(np.array([1.0, 10.0]), [halves], [thirds]).tolist()
    [2.0, 11.0, 20.0]
    >>> spread(np.array([1.0, 10.0]), [halves], [thirds], counting=True).tolist()
    [1.0, 11.0, 10.0]
    """
    # Dims that shrink come first: no array on the way is larger than the first or the last.
    growth = [len(b[0]) / max(len(a[0]), 1) for a, b in zip(spans, onto, strict=True)]
    along = _counted if counting else _measured
    for dim in sorted(range(len(growth)), key=growth.__getitem__):
        values = along(values, dim, spans[dim], onto[dim])
    return values


def _running(values: Number, dim: int) -> Number:
    """Return the sums of the first 0, 1, ... values along a dim."""
    shape = list(values.shape)
    shape[dim] += 1
    sums = np.zeros(shape, values.dtype)
    inner = [slice(None)] * values.ndim
    inner[dim] = slice(1, None)
    np.cumsum(values, axis=dim, out=sums[tuple(inner)])
    return sums


def _along(numbers: Ints, dim: int, values: Number) -> Number:
    shape = [1] * values.ndim
    shape[dim] = len(numbers)
    found: Number = numbers.reshape(shape).astype(values.dtype)
    return found


def _measured(values: Number, dim: int, spans: Spans, onto: Spans) -> Number:
    starts, stops = spans
    if not len(starts):
        shape = list(values.shape)
        shape[dim] = len(onto[0])
        return np.zeros(shape, values.dtype)
    # The sum up to a point takes all cells that begin before it, and of the last of them only the
    # part up to the point. A cell's sum is that at its stop less that at
    # its start, so that it takes two look-ups however many cells it overlaps.
    lengths = stops - starts
    sums = _running(values * _along(lengths, dim, values), dim)

    def up_to(points: Ints) -> Number:
        cell = np.maximum(np.searchsorted(starts, points, side="right") - 1, 0)
        part = np.clip(points - starts[cell], 0, lengths[cell])
        found: Number = np.take(sums, cell, axis=dim) + np.take(values, cell, axis=dim) * _along(
            part, dim, values
        )
        return found

    return up_to(onto[1]) - up_to(onto[0])


def _counted(values: Number, dim: int, spans: Spans, onto: Spans) -> Number:
    starts, stops = spans
    # Those that share an element are all that begin before the stop, less all that stop at or
    # before the start. Empty cells share nothing, wherever they are; an empty cell of the other
    # grid gets nothing, though its start and stop fall into some cell.
    sums = _running(values * _along((stops > starts).astype(np.int64), dim, values), dim)
    before = np.searchsorted(stops, onto[0], side="right")
    after = np.searchsorted(starts, onto[1], side="left")
    after = np.where(onto[1] > onto[0], np.maximum(after, before), before)
    return np.take(sums, after, axis=dim) - np.take(sums, before, axis=dim)


@final
class HeldCells:
    """The cells that groups of units hold, one row for each group and cell.

    Sorted by group and then by cell. Units in group -1 are left out.

    Args:
        grid: the cells and the units that hold them.
        group_of: maps units to groups.

    Attributes:
        group: the group of each row.
        cell: its cell.
        count: how many units of the group hold the cell.
    """

    def __init__(self, grid: CellGrid, group_of: Units) -> None:
        self.grid = grid
        units, cells, _ = grid.held
        keys = group_of(units) * max(grid.count, 1) + cells
        self.keys, counts = np.unique(keys[keys >= 0], return_counts=True)
        self.group: Ints = self.keys // max(grid.count, 1)
        self.cell: Ints = self.keys % max(grid.count, 1)
        self.count: Floats = counts.astype(np.float64)
        self.places = grid.places(self.cell)

    def at(self, groups: Ints, cells: Ints) -> Ints:
        """Return the rows of some groups and cells, all of which must exist."""
        return np.searchsorted(self.keys, groups * max(self.grid.count, 1) + cells)

    @property
    def spans(self) -> tuple[Spans, ...]:
        """For each dim the starts and stops of the rows' cells."""
        return tuple([(c[p], c[p + 1]) for c, p in zip(self.grid.cuts, self.places, strict=True)])

    @property
    def volumes(self) -> Ints:
        """The number of elements of each row's cell."""
        found = np.ones(len(self.cell), counter(math.prod(self.grid.layout.shape)))
        for lengths, place in zip(self.grid.lengths, self.places, strict=True):
            found *= lengths[place]
        return found

    def packed(self, rows: slice) -> tuple[list[Spans], tuple[Ints, ...]]:
        """Return the grid of the places that occur in some rows, and each row's place in it."""
        spans, found = [], []
        for cuts, place in zip(self.grid.cuts, self.places, strict=True):
            used, inverse = np.unique(place[rows], return_inverse=True)
            spans.append((cuts[used], cuts[used + 1]))
            found.append(inverse)
        return spans, tuple(found)


def shared(mine: HeldCells, other: HeldCells, weights: Number, *, counting: bool = False) -> Number:
    """Sum, for each row, the elements that it shares with the rows of its group in another grid.

    Args:
        mine: rows of one grid.
        other: rows of another grid of the same array.
        weights: the weight of each of the other rows; sums have its dtype.
        counting: whether rows that share elements count once; otherwise once per shared element.
    """
    result = np.zeros(len(mine.group), weights.dtype)
    first: Ints = np.searchsorted(other.group, mine.group)
    counts: Ints = np.searchsorted(other.group, mine.group, side="right") - first
    _, begin, sizes = np.unique(mine.group, return_index=True, return_counts=True)
    # A group with many rows on both sides is summed as two grids of its own: of 256 rows and 256
    # columns of a matrix there are 65,536 pairs, and 512 cells. But the grid of the places that
    # occur can be larger than all pairs, as for cells on a diagonal.
    near = np.ones(len(mine.group), bool)
    for at in np.flatnonzero(counts[begin] * sizes > GROUP_COST):
        low, size = int(begin[at]), int(sizes[at])
        start, many = int(first[low]), int(counts[low])
        mine_at, theirs = slice(low, low + size), slice(start, start + many)
        to, places = mine.packed(mine_at)
        spans, at_place = other.packed(theirs)
        cells = sum(math.prod([len(s[0]) for s in x]) for x in (to, spans))
        if 2 * cells + GROUP_COST > size * many:
            continue
        values = np.zeros([len(s[0]) for s in spans], weights.dtype)
        values[at_place] = weights[theirs]
        result[mine_at] = spread(values, spans, to, counting=counting)[places]
        near[mine_at] = False
    rows = np.flatnonzero(near & (counts > 0))
    ends = np.cumsum(counts[rows])
    chunk = 0
    while chunk < len(rows):
        done = int(ends[chunk - 1]) if chunk else 0
        stop = max(int(np.searchsorted(ends, done + PAIRS_AT_ONCE, side="right")), chunk + 1)
        some = rows[chunk:stop]
        pairs = _paired(some, first[some], counts[some])
        result[some] = _by_pairs(mine, other, weights, pairs, counting=counting)
        chunk = stop
    return result


def _paired(rows: Ints, first: Ints, counts: Ints) -> tuple[Ints, Ints, Ints]:
    """Return all pairs of a row and another of its group, and where each row's pairs begin.

    >>> a, b, begin = _paired(np.array([4, 7]), np.array([0, 5]), np.array([2, 3]))
    >>> a.tolist(), b.tolist(), begin.tolist()
    ([4, 4, 7, 7, 7], [0, 1, 5, 6, 7], [0, 2])
    """
    begin = np.cumsum(counts) - counts
    return np.repeat(rows, counts), consecutive(first, counts), begin


def _by_pairs(
    mine: HeldCells,
    other: HeldCells,
    weights: Number,
    pairs: tuple[Ints, Ints, Ints],
    *,
    counting: bool,
) -> Number:
    """Sum over pairs of rows, as `_paired` returns them."""
    a, b, begin = pairs
    volume = np.ones(len(a), weights.dtype)
    for (start, stop), (low, high) in zip(mine.spans, other.spans, strict=True):
        volume *= np.maximum(np.minimum(stop[a], high[b]) - np.maximum(start[a], low[b]), 0)
    amount: Number = weights[b] * ((volume > 0) if counting else volume)
    found: Number = np.add.reduceat(amount, begin)
    return found
