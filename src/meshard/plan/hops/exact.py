"""Counting without overflow: 64-bit integers where they suffice, Python's integers beyond.

Amounts are arrays of int64 as long as no figure can leave its range, and arrays of Python integers
(dtype object) otherwise, which are exact and slower. Both support the same arithmetic; this
module decides which of them is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

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
