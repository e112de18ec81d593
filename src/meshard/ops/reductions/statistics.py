"""Statistics: order statistics, counts in bins, covariances, and sums that pass over NaN."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from meshard.algebra.arguments import choice_of
from meshard.errors import ArgumentError, DtypeError, ShapeError
from meshard.ops.array.join import concatenate
from meshard.ops.array.samplesort import known
from meshard.ops.array.shape import (
    expand_dims,
    moveaxis,
    reshape,
)
from meshard.ops.array.take import take
from meshard.ops.checked import DtypeLike, checked
from meshard.ops.dims import Axis, normalised_axes
from meshard.ops.dtypes.laws import accumulator, default_float, is_float, is_whole, same_dtype
from meshard.ops.engine.concrete import is_traced
from meshard.ops.reductions.moments import mean
from meshard.ops.reductions.reduce import all as all_
from meshard.ops.reductions.reduce import count_nonzero, highest, lowest, without_nan
from meshard.ops.reductions.reduce import max as max_
from meshard.ops.reductions.reduce import min as min_
from meshard.ops.reductions.reduce import prod as prod_
from meshard.ops.reductions.reduce import sum as sum_
from meshard.ops.reductions.select import selected
from meshard.ops.reductions.sort import sort
from meshard.ops.row import Dtype, Op, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike, Block

# order statistics


class _Ordered(NamedTuple):
    """Elements of an array by their ranks along one last dim, which merges some dims of it.

    Attributes:
        elements: those of the known ranks, in the order of ``ranks``; of all ranks if that is None.
        size: the size of the merged dim.
        ranks: the known ranks, ascending; None for all.
        law: the dtype of what is made of them.
        dims: the dims that were merged.
    """

    elements: Array
    size: int
    ranks: tuple[int, ...] | None
    law: Dtype
    dims: tuple[int, ...]

    def at(self, rank: int) -> Any:
        """Return the element that is at a place when all are sorted."""
        rank %= self.size
        place = rank if self.ranks is None else self.ranks.index(rank)
        return self.elements[(..., place)]

    def finished(self, found: Any, keepdims: bool) -> Any:
        """Put NaN where there was one, restore dims, and give the result its dtype."""
        greatest = self.at(-1)
        found = bind("where", bind("isnan", greatest), greatest, found)
        found = expand_dims(found, self.dims) if keepdims else found
        return found.astype(self.law, copy=False)


def _ordered(
    name: str, a: Any, axis: Axis, needed: Callable[[int], Sequence[int]] | None = None
) -> _Ordered:
    """Return the elements of an array by their ranks along some dims.

    Args:
        name: the function, for errors.
        a: the array.
        axis: the dims.
        needed: from the size of the merged dim to the ranks that will be asked for; None for all
            of them.
    """
    x = as_array(a)
    if x.dtype.kind == "c":
        raise DtypeError(f"{name}: complex numbers have no order; the dtype is {x.dtype}.")
    dims = normalised_axes(axis, x.ndim, name)
    kept = [n for d, n in enumerate(x.shape) if d not in dims]
    size = math.prod(x.shape[d] for d in dims)
    if not size and math.prod(kept):
        raise ShapeError(
            f"{name}: dims {dims} of the shape {x.shape} are empty; the {name} of no "
            "elements is undefined."
        )
    law = x.dtype if is_float(x.dtype) else default_float()
    last = moveaxis(x.astype(accumulator(law), copy=False), dims, range(x.ndim - len(dims), x.ndim))
    last = reshape(last, (*kept, size or 1))
    if needed is None:
        return _Ordered(sort(last), size or 1, None, law, dims)
    ranks = tuple(sorted(set(needed(size or 1))))
    return _Ordered(selected(last, ranks), size or 1, ranks, law, dims)


@checked
def median(a: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the median over dims, all by default; NaN where an element is.

    Of dims that are split nothing is sorted: devices count elements, and bring few together.

    Raises:
        ShapeError: if a dim is empty.
        DtypeError: if the elements are complex.

    >>> import meshard.numpy as mnp
    >>> float(mnp.median(mnp.asarray([4, 1, 2, 3])))
    2.5
    """
    ordered = _ordered("median", a, axis, lambda n: (max(n // 2 - 1, 0), n // 2, n - 1))
    half = ordered.size // 2
    found = ordered.at(half)
    if ordered.size % 2 == 0:
        found = (ordered.at(half - 1) + found) / 2
    return ordered.finished(found, keepdims)


_METHODS = ("linear", "lower", "higher", "midpoint", "nearest")


@checked
def quantile(
    a: ArrayLike, q: ArrayLike, axis: Axis = None, *, method: str = "linear", keepdims: bool = False
) -> Array:
    """Return quantiles over dims, all by default; NaN where an element is.

    Args:
        a: the array.
        q: numbers from 0 to 1; its dims come first in the result.
        axis: the dim or dims.
        method: between two elements: ``"linear"``, ``"lower"``, ``"higher"``, ``"midpoint"`` or
            ``"nearest"``.
        keepdims: whether the dims stay, with size one.

    Raises:
        ArgumentError: if ``q`` is not from 0 to 1, or the method is unknown. Traced ``q`` beyond
            them give the extremes.
        ShapeError: if a dim is empty.
        DtypeError: if the elements are complex.

    >>> import meshard.numpy as mnp
    >>> mnp.quantile(mnp.arange(5), [0.0, 0.3, 1.0]).tolist()
    [0.0, 1.2, 4.0]
    """
    return _quantile("quantile", a, _parts_of(q, 1), axis, method, keepdims)


@checked
def percentile(
    a: ArrayLike, q: ArrayLike, axis: Axis = None, *, method: str = "linear", keepdims: bool = False
) -> Array:
    """Return percentiles over dims: as `quantile`, with ``q`` from 0 to 100.

    >>> import meshard.numpy as mnp
    >>> mnp.percentile(mnp.arange(5.0), 25).item()
    1.0
    """
    return _quantile("percentile", a, _parts_of(q, 100), axis, method, keepdims)


def _parts_of(q: Any, most: int) -> Any:
    if is_traced(q):
        return bind("divide", q.astype(np.float64), most)
    parts = known(q)
    if parts.dtype.kind == "c":
        raise DtypeError(f"quantile: q must be real, but its dtype is {parts.dtype}.")
    return np.asarray(parts, np.float64) / most


def _quantile(name: str, a: Any, q: Any, axis: Axis, method: str, keepdims: bool) -> Any:
    choice_of(method, tuple(_METHODS), name, "method")
    if is_traced(q):
        return _traced_quantile(name, a, q, axis, method, keepdims)
    if not ((q >= 0) & (q <= 1)).all():
        most = 1 if name == "quantile" else 100
        raise ArgumentError(f"{name}: q must be from 0 to {most}; got {(q * most).tolist()}.")
    parts = q.reshape(-1).tolist()
    ordered = _ordered(name, a, axis, partial(_ends, parts))
    results = [ordered.finished(_between(ordered, float(at), method), keepdims) for at in parts]
    if not q.ndim:
        return results[0]
    if not results:
        raise ArgumentError(f"{name}: q is empty.")
    joined = concatenate([expand_dims(r, 0) for r in results], axis=0)
    return reshape(joined, (*q.shape, *results[0].shape))


def _ends(parts: Sequence[float], size: int) -> list[int]:
    """Return the positions between which quantiles are, and the last one."""
    places = [q * (size - 1) for q in parts]
    return [size - 1, *map(math.floor, places), *map(math.ceil, places)]


def _traced_quantile(name: str, a: Any, q: Any, axis: Axis, method: str, keepdims: bool) -> Any:
    """Return quantiles at traced places, which cannot be checked to be inside."""
    given = _ordered(name, a, axis)
    ordered, last = given.elements, given.size - 1
    places = bind("multiply", reshape(q, (-1,)), last)
    low = bind("floor", places)
    part = places - low
    if method == "nearest":
        low, part = bind("rint", places), part * 0
    elif method == "lower":
        part = part * 0
    elif method == "higher":
        part = bind("sign", part)
    elif method == "midpoint":
        part = bind("sign", part) * 0.5
    at = low.astype(np.int64)
    ends = [take(ordered, i, axis=-1, mode="clip") for i in (at, at + 1)]
    found = bind("interpolate_at", *ends, part)
    greatest = ordered[..., -1:]
    found = bind("where", bind("isnan", greatest), greatest, found)
    found = moveaxis(found, -1, 0)
    found = reshape(found, (*q.shape, *found.shape[1:])).astype(given.law, copy=False)
    return expand_dims(found, tuple(d + q.ndim for d in given.dims)) if keepdims else found


def _between(ordered: _Ordered, q: float, method: str) -> Any:
    """Return the quantile of sorted elements, as NumPy interpolates."""
    place = q * (ordered.size - 1)
    low = int(np.floor(place))
    part = place - low
    if method == "nearest":
        return ordered.at(int(np.rint(place)))
    if not part or method == "lower":
        return ordered.at(low)
    above = ordered.at(low + 1)
    if method == "higher":
        return above
    below = ordered.at(low)
    if method == "midpoint":
        part = 0.5
    return bind("interpolate", below, above, part=part)


def _interpolate(below: Block, above: Block, part: Any) -> Any:
    """Return a value between two elements; next to an infinite one it is infinite, too."""
    with np.errstate(invalid="ignore", over="ignore"):
        step = above - below
        found = np.where(part >= 0.5, above - step * (1 - part), below + step * part)
        found = np.where(np.isinf(step), below * (1 - part) + above * part, found)
    found = np.where(part == 1, above, np.where(part == 0, below, found))
    return np.where(above == below, above, found).astype(below.dtype, copy=False)


register(Op("interpolate", "..., ... -> ...", _interpolate, dtypes=same_dtype))
register(Op("interpolate_at", "... s, ... s, s -> ... s", _interpolate, dtypes=same_dtype))


# counts in bins


# sums that pass over NaN


def _nan(a: Any) -> tuple[Array, Any]:
    """Return the array, and where it is NaN; None where it cannot be."""
    x = as_array(a)
    return x, None if is_whole(x.dtype) else bind("isnan", x)


def _filled(x: Array, gaps: Any, value: Any) -> Any:
    return x if gaps is None else bind("where", gaps, np.asarray(value, x.dtype), x)


@checked
def nansum(
    a: ArrayLike, axis: Axis = None, dtype: DtypeLike = None, keepdims: bool = False
) -> Array:
    """Return the sum over dims, NaN counted as zero.

    >>> import meshard.numpy as mnp
    >>> float(mnp.nansum(mnp.asarray([1.0, mnp.nan])))
    1.0
    """
    return sum_(_filled(*_nan(a), 0), axis, dtype, keepdims)


@checked
def nanprod(
    a: ArrayLike, axis: Axis = None, dtype: DtypeLike = None, keepdims: bool = False
) -> Array:
    """Return the product over dims, NaN counted as one.

    >>> import meshard.numpy as mnp
    >>> mnp.nanprod(mnp.asarray([2.0, mnp.nan, 3.0])).item()
    6.0
    """
    return prod_(_filled(*_nan(a), 1), axis, dtype, keepdims)


@checked
def nanmax(a: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the maximum over dims, NaN left out; NaN where all elements are NaN.

    >>> import meshard.numpy as mnp
    >>> mnp.nanmax(mnp.asarray([1.0, mnp.nan, 3.0])).item()
    3.0
    """
    x = as_array(a)
    if is_float(x.dtype):
        return without_nan("nanmax", x, axis, keepdims)
    x, gaps = _nan(x)
    found = max_(_filled(x, gaps, lowest(x.dtype)), axis, keepdims)
    return found if gaps is None else _where_nothing(found, gaps, axis, keepdims)


@checked
def nanmin(a: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the minimum over dims, NaN left out; NaN where all elements are NaN.

    >>> import meshard.numpy as mnp
    >>> mnp.nanmin(mnp.asarray([1.0, mnp.nan, 3.0])).item()
    1.0
    """
    x = as_array(a)
    if is_float(x.dtype):
        return without_nan("nanmin", x, axis, keepdims)
    x, gaps = _nan(x)
    found = min_(_filled(x, gaps, highest(x.dtype)), axis, keepdims)
    return found if gaps is None else _where_nothing(found, gaps, axis, keepdims)


def _where_nothing(found: Any, gaps: Any, axis: Axis, keepdims: bool) -> Any:
    return bind("where", all_(gaps, axis, keepdims), np.asarray(np.nan, found.dtype), found)


@checked
def nanmean(
    a: ArrayLike, axis: Axis = None, dtype: DtypeLike = None, keepdims: bool = False
) -> Array:
    """Return the mean over dims, NaN left out; NaN where all elements are NaN.

    >>> import meshard.numpy as mnp
    >>> mnp.nanmean(mnp.asarray([1.0, mnp.nan, 3.0])).item()
    2.0
    """
    x, gaps = _nan(a)
    if gaps is None:
        return mean(x, axis, dtype, keepdims)
    if dtype is not None and np.dtype(dtype).kind in "biu":
        raise DtypeError(
            f"nanmean: dtype must be a float or complex dtype, since the mean of nothing is NaN; "
            f"got {np.dtype(dtype)}."
        )
    wide = accumulator(x.dtype if dtype is None else np.dtype(dtype))
    total = sum_(_filled(x, gaps, 0), axis, wide, keepdims)
    found = _quotient(total, count_nonzero(bind("logical_not", gaps), axis, keepdims))
    return found.astype(x.dtype if dtype is None else dtype, copy=False)


def _quotient(total: Any, count: Any) -> Any:
    """Divide sums by counts; zero by zero is NaN."""
    safe = bind("maximum", count, 1).astype(total.dtype)
    return bind("where", count > 0, total / safe, np.asarray(np.nan, total.dtype))


@checked
def nanvar(a: ArrayLike, axis: Axis = None, ddof: int = 0, keepdims: bool = False) -> Array:
    """Return the variance over dims of what is not NaN, with ``ddof`` taken off the divisor.

    >>> import meshard.numpy as mnp
    >>> mnp.nanvar(mnp.asarray([1.0, mnp.nan, 3.0])).item()
    1.0
    """
    x, gaps = _nan(a)
    if gaps is None:
        x = x.astype(default_float())
        gaps = bind("isnan", x)
    off = x.astype(accumulator(x.dtype), copy=False)
    off = bind("absolute", off - nanmean(off, axis, keepdims=True))
    squares = sum_(bind("square", _filled(off, gaps, 0)), axis, keepdims=keepdims)
    count = count_nonzero(bind("logical_not", gaps), axis, keepdims) - ddof
    law = np.empty(0, x.dtype).real.dtype if x.dtype.kind == "c" else x.dtype
    return _quotient(squares, count).astype(law, copy=False)


@checked
def nanstd(a: ArrayLike, axis: Axis = None, ddof: int = 0, keepdims: bool = False) -> Array:
    """Return the standard deviation over dims of what is not NaN.

    >>> import meshard.numpy as mnp
    >>> mnp.nanstd(mnp.asarray([1.0, mnp.nan, 3.0])).item()
    1.0
    """
    return bind("sqrt", nanvar(a, axis, ddof, keepdims))


# covariances
