"""Sets: the distinct elements of arrays, and what is in both, either or one.

All stands on the spread sort: equal elements become neighbours, and only marks cross devices.
The results' shapes depend on the values; each piece stays where the sort has brought it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from meshard.errors import ArgumentError, ShapeError
from meshard.runtime.array import Array
from meshard.runtime.place import as_array
from meshard.runtime.primitive import bind
from meshard.runtime.types import Block

from .dtypes import SMALL_FLOATS
from .move import concatenate, stack
from .nonzero import nonzero
from .reduce import normalised_axes
from .registry import Dtype, Op, Operand, Params, Partial, RuleText, register
from .samplesort import compress as kept
from .samplesort import regular, sort_split
from .scan import cumsum
from .shape import ravel, reshape
from .take import take

__all__ = [
    "UniqueAllResult",
    "UniqueCountsResult",
    "UniqueInverseResult",
    "argwhere",
    "compress",
    "extract",
    "flatnonzero",
    "intersect1d",
    "isin",
    "setdiff1d",
    "setxor1d",
    "union1d",
    "unique",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
]


class UniqueAllResult(NamedTuple):
    """What `unique_all` returns."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCountsResult(NamedTuple):
    """What `unique_counts` returns."""

    values: Any
    counts: Any


class UniqueInverseResult(NamedTuple):
    """What `unique_inverse` returns."""

    values: Any
    inverse_indices: Any


def _unique(x: Array, equal_nan: bool, index: bool, inverse: bool, counts: bool) -> list[Any]:
    """Return the distinct elements, and those of the other three that are wanted."""
    flat = regular(ravel(x))
    if index or inverse:
        values, order = sort_split(flat, bind("positions", flat))
    else:
        (values,) = sort_split(flat)
        order = values
    place = bind("positions", values)
    # Each element beside the one before it; only the elements at edges move.
    before = bind("pad_zeros", values, dims=((0, (1, -1)),)) if values.size else values
    first = bind("not_equal", values, before)
    if equal_nan and values.dtype.kind not in "biu":
        both = bind("logical_and", bind("isnan", values), bind("isnan", before))
        first = bind("logical_and", first, bind("logical_not", both))
    first = bind("logical_or", first, bind("equal", place, 0))
    found = kept(first, values, place, order)
    results: list[Any] = [found[0]]
    if index:
        results.append(found[2])
    if inverse:
        rank = cumsum(first) - 1
        back = sort_split(order, rank)[1]
        results.append(reshape(back, x.shape))
    if counts:
        starts = found[1]
        after = bind("pad_zeros", starts, dims=((0, (-1, 1)),)) if starts.size else starts
        results.append(bind("where", bind("equal", after, 0), values.size, after) - starts)
    return results


def unique(
    ar: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: None = None,
    *,
    equal_nan: bool = True,
    sorted: bool = True,
) -> Any:
    """Return the distinct elements of the flat array, sorted.

    The array is sorted where it lies; of a split array the result is split, too, each device
    keeping what the sort has brought there. The shape depends on the values.

    Args:
        ar: the array.
        return_index: also return where each value first stands in the flat array.
        return_inverse: also return, in the array's shape, each element's place among the values.
        return_counts: also return how often each value stands there.
        axis: None; distinct slices along a dim are not supported.
        equal_nan: whether all NaN count as one value.
        sorted: accepted as in NumPy; the result is sorted.

    Raises:
        ArgumentError: if ``axis`` is given.

    >>> import meshard.numpy as mnp
    >>> [found.tolist() for found in mnp.unique(mnp.asarray([3, 1, 3]), return_counts=True)]
    [[1, 3], [1, 2]]
    """
    if axis is not None:
        raise ArgumentError(
            f"unique: axis={axis!r} asks for distinct slices, which is not supported; only the "
            "distinct elements of the flat array are: leave out axis."
        )
    wanted = (bool(return_index), bool(return_inverse), bool(return_counts))
    found = _unique(as_array(ar), equal_nan, *wanted)
    return tuple(found) if any(wanted) else found[0]


def unique_values(x: Any, /) -> Any:
    """Return the distinct elements of the flat array; each NaN is distinct.

    >>> import meshard.numpy as mnp
    >>> mnp.unique_values(mnp.asarray([[2, 1], [1, 2]])).tolist()
    [1, 2]
    """
    return _unique(as_array(x), False, False, False, False)[0]


def unique_counts(x: Any, /) -> UniqueCountsResult:
    """Return the distinct elements of the flat array, and how often each stands there."""
    return UniqueCountsResult(*_unique(as_array(x), False, False, False, True))


def unique_inverse(x: Any, /) -> UniqueInverseResult:
    """Return the distinct elements, and each element's place among them, in the array's shape."""
    return UniqueInverseResult(*_unique(as_array(x), False, False, True, False))


def unique_all(x: Any, /) -> UniqueAllResult:
    """Return the distinct elements, where each first stands, each element's place, and counts.

    >>> import meshard.numpy as mnp
    >>> [found.tolist() for found in mnp.unique_all(mnp.asarray([3, 1, 3]))]
    [[1, 3], [1, 0], [1, 0, 1], [1, 2]]
    """
    return UniqueAllResult(*_unique(as_array(x), False, True, True, True))


# membership


def _in_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    names = " ".join(f"v{i}" for i in range(len(operands[0][0])))
    return f"{names}, t -> {names}"


def _in_law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    return (np.dtype(bool),)


def _in(x: Block, test: Block) -> Block:
    if x.dtype in SMALL_FLOATS or test.dtype in SMALL_FLOATS:
        x, test = x.astype(np.float64), test.astype(np.float64)
    return np.isin(x, test)


register(Op("isin", _in_rule, _in, dtypes=_in_law, partial=Partial(np.logical_or)))


def isin(
    element: Any,
    test_elements: Any,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    kind: str | None = None,
) -> Any:
    """Return where the elements are among the test elements; laid out like the elements.

    Args:
        element: the array to test.
        test_elements: what to look for; where it is split, each device looks at its own part.
        assume_unique: accepted as in NumPy.
        invert: whether to return where they are not.
        kind: accepted as in NumPy.

    >>> import meshard.numpy as mnp
    >>> mnp.isin(mnp.arange(4), mnp.asarray([1, 9])).tolist()
    [False, True, False, False]
    """
    found = bind("isin", as_array(element), ravel(as_array(test_elements)))
    return bind("logical_not", found) if invert else found


def _both(ar1: Any, ar2: Any) -> tuple[Any, Any]:
    """Return two flat arrays of one dtype."""
    x, y = ravel(as_array(ar1)), ravel(as_array(ar2))
    common = np.result_type(x.dtype, y.dtype)
    return x.astype(common, copy=False), y.astype(common, copy=False)


def union1d(ar1: Any, ar2: Any) -> Any:
    """Return the distinct elements that are in either array, sorted.

    >>> import meshard.numpy as mnp
    >>> mnp.union1d(mnp.asarray([3, 1]), mnp.asarray([2, 3])).tolist()
    [1, 2, 3]
    """
    return unique(concatenate(_both(ar1, ar2)))


def intersect1d(ar1: Any, ar2: Any, assume_unique: bool = False) -> Any:
    """Return the distinct elements that are in both arrays, sorted."""
    x, y = _both(ar1, ar2)
    values = unique(x)
    return kept(isin(values, y), values)[0]


def setdiff1d(ar1: Any, ar2: Any, assume_unique: bool = False) -> Any:
    """Return the distinct elements of the first array that are not in the second, sorted."""
    x, y = _both(ar1, ar2)
    values = unique(x)
    return kept(isin(values, y, invert=True), values)[0]


def setxor1d(ar1: Any, ar2: Any, assume_unique: bool = False) -> Any:
    """Return the distinct elements that are in one of two arrays only, sorted."""
    return unique(concatenate([setdiff1d(ar1, ar2), setdiff1d(ar2, ar1)]))


# the elements and positions that a mask selects


def _mask(x: Array) -> Array:
    found: Array = x if x.dtype.kind == "b" else bind("not_equal", x, 0)
    return found


def flatnonzero(a: Any) -> Any:
    """Return the positions in the flat array of the elements that are not zero.

    The result stays split where the array was, each device keeping its own positions.

    >>> import meshard.numpy as mnp
    >>> mnp.flatnonzero(mnp.asarray([0, 7, 0, 8])).tolist()
    [1, 3]
    """
    mask = regular(_mask(ravel(as_array(a))))
    return kept(mask, bind("positions", mask))[0]


def argwhere(a: Any) -> Any:
    """Return the positions of the elements that are not zero, a row of numbers for each."""
    x = as_array(a)
    if not x.ndim:
        raise ShapeError("argwhere: an array without dims has no positions.")
    return stack(list(nonzero(x)), axis=1)


def extract(condition: Any, arr: Any) -> Any:
    """Return the elements of the flat array where a condition of the same size is true.

    Raises:
        ShapeError: if the sizes differ.
    """
    mask, x = as_array(condition), as_array(arr)
    if mask.size != x.size:
        raise ShapeError(
            f"extract: a condition of shape {mask.shape} for an array of shape {x.shape}; they "
            f"have {mask.size} and {x.size} elements."
        )
    return kept(regular(_mask(ravel(mask))), ravel(x))[0]


def compress(condition: Any, a: Any, axis: int | None = None) -> Any:
    """Return the slices along a dim where a condition is true, or elements of the flat array.

    Args:
        condition: one dim, at most as long as the dim; what it does not reach is left out.
        a: the array.
        axis: the dim; None for the flat array.

    Raises:
        ShapeError: if the condition has not one dim, or is too long.
    """
    x, mask = as_array(a), _mask(as_array(condition))
    if axis is None:
        x, axis = ravel(x), 0
    (dim,) = normalised_axes(axis, x.ndim, "compress")
    if mask.ndim != 1 or mask.size > x.shape[dim]:
        raise ShapeError(
            f"compress: a condition of shape {mask.shape} for dim {dim} of an array of shape "
            f"{x.shape}; it has one dim, at most as long."
        )
    if x.ndim == 1 and mask.size == x.size:
        return kept(regular(mask), x)[0]
    return take(x, flatnonzero(mask), axis=dim)
