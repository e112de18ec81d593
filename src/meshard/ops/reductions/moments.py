"""Means and deviations over dims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshard.errors import ShapeError
from meshard.ops.array.shape import broadcast_to
from meshard.ops.checked import DtypeLike, checked
from meshard.ops.dims import Axis, normalised_axes
from meshard.ops.dtypes.laws import accumulator, as_dtype, default_float, is_float
from meshard.ops.reductions.reduce import sum, where_of
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike


def _count(x: Array, dims: Sequence[int]) -> int:
    return int(np.prod([x.shape[d] for d in dims], dtype=np.int64))


def _counted(x: Any, dims: Sequence[int], keepdims: bool, where: Any, what: str) -> Any:
    """Return how many elements take part: a number, or an array where that differs."""
    if where is None:
        return _count(x, dims)
    return sum(broadcast_to(where_of(x, where, what), x.shape), dims, np.int64, keepdims)


@checked
def mean(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DtypeLike = None,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
) -> Array:
    """Return the mean over dims, all by default; of integers in the default float.

    Args:
        a: the array.
        axis: the dims.
        dtype: the result's dtype.
        keepdims: keep the dims, with size one.
        where: which elements take part, as bools that broadcast to the array.

    >>> import meshard.numpy as mnp
    >>> float(mnp.mean(mnp.arange(4)))
    1.5
    """
    x = as_array(a)
    own = x.dtype if is_float(x.dtype) or x.dtype.kind == "c" else default_float()
    wanted = own if dtype is None else as_dtype(dtype)
    dims = normalised_axes(axis, x.ndim, "mean")
    total = sum(x, dims, accumulator(wanted), keepdims, where=where)
    found = bind("divide", total, _counted(x, dims, keepdims, where, "mean"))
    return found if found.dtype == wanted else found.astype(wanted)


@checked
def var(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DtypeLike = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    correction: float | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Return the variance over dims, all by default.

    Args:
        a: the array.
        axis: the dims.
        dtype: the result's dtype; by default the array's, for integers the default float.
        ddof: what is subtracted from the divisor, the number of elements.
        keepdims: keep the dims, with size one.
        correction: the Array API standard's name of ``ddof``.
        where: which elements take part, as bools that broadcast to the array.

    >>> import meshard.numpy as mnp
    >>> float(mnp.var(mnp.asarray([1, 2, 3]), ddof=1))
    1.0
    """
    ddof = ddof if correction is None else correction
    x = as_array(a)
    own = x.dtype if is_float(x.dtype) or x.dtype.kind == "c" else default_float()
    wanted = own if dtype is None else as_dtype(dtype)
    wide = accumulator(wanted)
    dims = normalised_axes(axis, x.ndim, "var")
    off = bind("subtract", x, mean(x, dims, wide, keepdims=True, where=where))
    real_dtype = np.empty(0, wanted).real.dtype if wanted.kind == "c" else wanted
    squares = bind("square", bind("absolute", off) if wide.kind == "c" else off)
    divisor = _counted(x, dims, keepdims, where, "var") - ddof
    divisor = max(divisor, 0.0) if where is None else bind("maximum", divisor, 0)
    found = bind("divide", sum(squares, dims, keepdims=keepdims, where=where), divisor)
    return found if found.dtype == real_dtype else found.astype(real_dtype)


@checked
def std(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DtypeLike = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    correction: float | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Return the standard deviation over dims, all by default; takes what `var` takes.

    >>> import meshard.numpy as mnp
    >>> mnp.std(mnp.asarray([1.0, 3.0])).item()
    1.0
    """
    x = as_array(a)
    dims = normalised_axes(axis, x.ndim, "std")
    return bind("sqrt", var(x, dims, dtype, ddof, keepdims, correction=correction, where=where))


@checked
def average(
    a: ArrayLike, axis: Axis = None, weights: ArrayLike | None = None, keepdims: bool = False
) -> Array:
    """Return the mean over dims, all by default.

    Args:
        a: the array.
        axis: the dims.
        weights: how much each element counts: of the array's shape, or of the shape of the dims
            that ``axis`` names; equally by default.
        keepdims: keep the dims, with size one.

    Raises:
        ShapeError: if the weights have neither shape.

    >>> import meshard.numpy as mnp
    >>> mnp.average(mnp.asarray([[1.0, 5.0], [2.0, 4.0]]), axis=1, weights=[3, 1]).tolist()
    [2.0, 2.5]
    """
    x = as_array(a)
    dims = normalised_axes(axis, x.ndim, "average")
    if weights is None:
        return mean(x, dims, keepdims=keepdims)
    w = as_array(weights)
    if w.shape != x.shape:
        w = _weights_along(x, w, axis)
    if not is_float(x.dtype) and x.dtype.kind != "c":
        x = x.astype(default_float())  # products of small integers would wrap
    weighted = sum(bind("multiply", x, w), axis, keepdims=keepdims)
    return weighted / sum(w, axis, weighted.dtype, keepdims)


def _weights_along(x: Any, w: Any, axis: Axis) -> Any:
    """Return weights of the shape of the dims that ``axis`` names, broadcast over the others.

    Raises:
        ShapeError: if they do not have that shape.
    """
    if axis is None:
        raise _misshapen(x, w, axis, x.shape)
    order = [d % x.ndim for d in ((axis,) if hasattr(axis, "__index__") else axis)]
    wanted = tuple([x.shape[d] for d in order])
    if w.shape != wanted:
        raise _misshapen(x, w, axis, wanted)
    # The weights' dims come in the order in which `axis` names them.
    w = w.transpose([order.index(d) for d in sorted(order)])
    return w.reshape(tuple(n if d in order else 1 for d, n in enumerate(x.shape)))


def _misshapen(x: Any, w: Any, axis: Axis, wanted: tuple[int, ...]) -> ShapeError:
    return ShapeError(
        f"average: weights of shape {w.shape} for an array of shape {x.shape}, over "
        f"axis={axis}; they must have the array's shape, or {wanted}."
    )
