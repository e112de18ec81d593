"""Jobs: the parts of cells that pass between units, and sums over them.

Counting without overflow: 64-bit integers where they suffice, Python's integers beyond.

Amounts are arrays of int64 as long as no figure can leave its range, and arrays of Python integers
(dtype object) otherwise, which are exact and slower. Both support the same arithmetic; this
module decides which of them is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_LARGEST = (1 << 63) - 1
FLOAT_EXACT = 1 << 53
"""Integers up to here are exact as 64-bit floats."""


def counter(most: int) -> type[np.int64]:
    """Return the dtype that can count to a number: int64, or object beyond its range.

    >>> counter(7), counter(1 << 80)
    (<class 'numpy.int64'>, <class 'object'>)
    """
    dtype: type = np.int64 if most <= _LARGEST else object
    return dtype


def total(amounts: Ints) -> int:
    """Return the exact sum of non-negative amounts.

    >>> total(np.array([1 << 62, 1 << 62, 1 << 62]))
    13835058055282163712
    """
    if amounts.dtype == object or int(amounts.max(initial=0)) * amounts.size <= _LARGEST:
        return int(amounts.sum())
    return sum(amounts.reshape(-1).tolist())


def product(amounts: Ints, factor: Ints | int) -> Ints:
    """Return the exact products of non-negative amounts and factors.

    >>> product(np.array([1, 1 << 62]), 4).tolist()
    [4, 18446744073709551616]
    """
    if amounts.dtype != object:
        most = factor if isinstance(factor, int) else int(factor.max(initial=0))
        amounts = amounts.astype(counter(int(amounts.max(initial=0)) * most), copy=False)
    return amounts * factor


def products(lengths: Ints, most: int) -> Ints:
    """Return the products along the first axis, none of which is more than ``most``.

    >>> products(np.array([[2, 3], [5, 7]]), 21).tolist()
    [10, 21]
    """
    found: Ints = np.prod(lengths, axis=0, dtype=counter(most))
    return found


def sums_at(places: Ints, amounts: Ints, count: int) -> Ints:
    """Return the exact sums of non-negative amounts at each place.

    >>> sums_at(np.array([0, 2, 0]), np.array([1, 5, 1 << 62]), 3).tolist()
    [4611686018427387905, 0, 5]
    """
    most = total(amounts)
    if most <= FLOAT_EXACT:  # the float sums of `bincount` are exact
        return np.bincount(places, amounts.astype(np.int64, copy=False), count).astype(np.int64)
    sums = np.zeros(count, counter(most))
    np.add.at(sums, places, amounts.astype(sums.dtype, copy=False))
    return sums


def volumes_of(lengths: Sequence[Ints], most: int) -> Ints:
    """Return the volumes of the cells of a grid, in C order.

    Args:
        lengths: the lengths along each dim.
        most: the largest figure that is computed from the volumes.

    >>> volumes_of((np.array([1, 2]), np.array([3, 4])), 21).tolist()
    [3, 4, 6, 8]
    """
    found: Ints = np.ones(1, counter(most))
    for along in lengths:
        found = np.multiply.outer(found, along).reshape(-1)
    return found


@final
@dataclass(frozen=True)
class Jobs:
    """Parts of cells that pass from one unit to another, one per row.

    Attributes:
        sender: the unit that sends.
        receiver: the unit that receives.
        source: the cell of the source.
        destination: the cell of the destination.
        first: the first element that passes, among those that both cells share, in C order.
        last: one past the last element that passes.
        volume: the number of elements that both cells share.
    """

    sender: Ints
    receiver: Ints
    source: Ints
    destination: Ints
    first: Ints
    last: Ints
    volume: Ints

    def __len__(self) -> int:
        return len(self.sender)

    @property
    def elements(self) -> Ints:
        """The number of elements of each job."""
        return self.last - self.first

    def where(self, wanted: NDArray[np.bool_]) -> Jobs:
        """Return some of the rows."""
        return Jobs(*(column[wanted] for column in self._columns()))

    def beside(self, others: Jobs) -> Jobs:
        """Return these rows and then the others."""
        pairs = zip(self._columns(), others._columns(), strict=True)
        return Jobs(*(np.concatenate(pair) for pair in pairs))

    def in_order(self) -> Jobs:
        """Return the rows in canonical order: by the cells, the receiver, and the part."""
        order = np.lexsort((self.first, self.receiver, self.destination, self.source))
        return Jobs(*(column[order] for column in self._columns()))

    def _columns(self) -> tuple[Ints, ...]:
        return (
            self.sender,
            self.receiver,
            self.source,
            self.destination,
            self.first,
            self.last,
            self.volume,
        )


@final
class Tally:
    """Amounts by unit.

    Args:
        units: the units, ascending.
        amounts: the amount of each.

    Attributes:
        units: the units, ascending.
        uniform: where all amounts are equal but for a few: their amount, the places of the few,
            ascending, and how much less each of them has; otherwise None.
    """

    def __init__(self, units: Ints, amounts: Ints) -> None:
        self.units = units
        self.uniform: tuple[int, Ints, Ints] | None = None
        vars(self)["amounts"] = amounts

    @classmethod
    def alike(cls, units: Ints, each: int, places: Ints, less: Ints) -> Tally:
        """Return equal amounts but for a few places that have less; no list of all is made.

        >>> tally = Tally.alike(np.arange(4), 9, np.array([1, 2]), np.array([3, 8]))
        >>> tally.most, tally.total, tally.as_dict()
        (9, 25, {0: 9, 1: 6, 2: 1, 3: 9})
        """
        found = cls.__new__(cls)
        found.units = units
        found.uniform = each, places, less
        return found

    @cached_property
    def amounts(self) -> Ints:
        """The amount of each unit."""
        assert self.uniform is not None
        each, places, less = self.uniform
        found = np.full(len(self.units), each, counter(each))
        found[places] -= less.astype(found.dtype, copy=False)
        return found

    @property
    def total(self) -> int:
        """The sum of all amounts."""
        if self.uniform is None:
            return total(self.amounts)
        each, _, less = self.uniform
        return each * len(self.units) - total(less)

    @property
    def most(self) -> int:
        """The largest amount; 0 if there is none."""
        if self.uniform is None:
            return int(self.amounts.max(initial=0))
        each, places, less = self.uniform
        if len(places) < len(self.units):
            return each
        return each - int(less.min()) if len(less) else 0

    def __getitem__(self, unit: int) -> int:
        place = int(np.searchsorted(self.units, unit))
        there = place < len(self.units) and self.units[place] == unit
        return int(self.amounts[place]) if there else 0

    def as_dict(self) -> dict[int, int]:
        """Return the amounts by unit."""
        return dict(zip(self.units.tolist(), self.amounts.tolist(), strict=True))

    def less(self, units: Ints, amounts: Ints) -> Tally:
        """Return the amounts that are left after others are subtracted."""
        if len(units) == len(self.units) and np.array_equal(units, self.units):
            return Tally(self.units, self.amounts - amounts)
        left = self.amounts.copy()
        np.subtract.at(left, np.searchsorted(self.units, units), amounts)
        return Tally(self.units, left)


def tallied(every: Ints, units: Ints, amounts: Ints) -> Tally:
    """Return the sums of amounts for each unit; ``every`` lists all units, ascending."""
    known = every if len(every) < 2 or (every[1:] > every[:-1]).all() else np.unique(every)
    if units is every and known is every:
        return Tally(known, amounts)
    sums = np.zeros(len(known), amounts.dtype)
    np.add.at(sums, np.searchsorted(known, units), amounts)
    return Tally(known, sums)


def flat_boxes(
    shape: tuple[int, ...], start: int, stop: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield, in order, the boxes, as starts and stops, that make up ``[start, stop)`` in C order.

    >>> list(flat_boxes((4, 5), 3, 16))
    [((0, 3), (1, 5)), ((1, 0), (3, 5)), ((3, 0), (4, 1))]
    """
    if start >= stop:
        return
    if not shape:
        yield (), ()
        return
    inner = math.prod(shape[1:])
    (row, low), (last, high) = divmod(start, inner), divmod(stop, inner)
    rest = tuple([0] * (len(shape) - 1))
    if low or row == last:  # the rest of a row, or a part of it
        end = high if row == last else inner
        for a, b in flat_boxes(shape[1:], low, end):
            yield (row, *a), (row + 1, *b)
        row += 1
    if row < last:
        yield (row, *rest), (last, *shape[1:])
    if row <= last:
        for a, b in flat_boxes(shape[1:], 0, high):
            yield (last, *a), (last + 1, *b)
