"""Means and deviations over dims."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import numpy as np

from meshard.errors import ArgumentError, ShapeError
from meshard.ops.array.create import full_like
from meshard.ops.array.shape import broadcast_to
from meshard.ops.checked import Axis, DtypeLike, checked, normalised_axes
from meshard.ops.dtypes.laws import (
    accumulator,
    as_dtype,
    common_dtype,
    default_float,
    is_float,
    is_whole,
)
from meshard.ops.reductions.reduce import sum, where_of
from meshard.runtime.array.array import Array
from meshard.runtime.callers import frames_below_user
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike, Block


def _count(x: Array, dims: Sequence[int]) -> int:
    return int(np.prod([x.shape[d] for d in dims], dtype=np.int64))


def _counted(x: Any, dims: Sequence[int], keepdims: bool, where: Any, what: str) -> Any:
    """Return how many elements take part: a number, or an array where that differs."""
    if where is None:
        return _count(x, dims)
    return sum(broadcast_to(where_of(x, where, what), x.shape), dims, np.int64, None, keepdims)


def warn_of_few(count: Any, most: float, text: str) -> None:
    """Warn, as NumPy does, where no more elements than a number take part in a statistic.

    Args:
        count: how many do: a number, or an array where that differs.
        most: the number.
        text: NumPy's.
    """
    if isinstance(count, int):
        if count <= most:
            _warn(text)
    else:
        warn_where(count, lambda block: block <= most, text)


def warn_where(found: Any, condition: Callable[[Block], Any], text: str) -> None:
    """Warn where a condition holds of an element that this process has of an array.

    Of a traced array, and of what other processes hold, nothing is said: nobody computes or moves
    anything for the sake of a warning.
    """
    if type(found) is not Array:
        return
    own = {id(block): block for block in found._live() if block is not None}  # replicas share one
    if any(bool(np.any(condition(block))) for block in own.values()):
        _warn(text)


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=frames_below_user())


@checked
def mean(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DtypeLike = None,
    out: None = None,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
) -> Array:
    """Return the mean over dims, all by default; of integers in the default float.

    Args:
        a: the array.
        axis: the dims.
        dtype: the result's dtype.
        out: None; arrays are immutable.
        keepdims: keep the dims, with size one.
        where: which elements take part, as bools that broadcast to the array.

    Warns:
        RuntimeWarning: if it is the mean of nothing. What ``where`` leaves is looked at outside
            transformations only, by each process in its own part of the result.

    >>> import meshard.numpy as mnp
    >>> float(mnp.mean(mnp.arange(4)))
    1.5
    """
    x = as_array(a)
    dims = normalised_axes(axis, x.ndim, "mean")
    counted = _counted(x, dims, keepdims, where, "mean")
    warn_of_few(counted, 0, "Mean of empty slice")
    return _mean(x, dims, _moment_dtype(x, dtype), counted, keepdims, where)


def _mean(
    x: Any, dims: Sequence[int], wanted: Any, counted: Any, keepdims: bool, where: Any
) -> Any:
    """Return the mean of as many elements as there are known to be."""
    total = sum(x, dims, accumulator(wanted), None, keepdims, where=where)
    found = bind("divide", total, counted)
    return found if found.dtype == wanted else found.astype(wanted)


@checked
def var(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DtypeLike = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
    mean: ArrayLike | None = None,
    correction: float | None = None,
) -> Array:
    """Return the variance over dims, all by default.

    Args:
        a: the array.
        axis: the dims.
        dtype: the result's dtype; by default the array's, for integers the default float.
        out: None; arrays are immutable.
        ddof: what is subtracted from the divisor, the number of elements.
        keepdims: keep the dims, with size one.
        where: which elements take part, as bools that broadcast to the array.
        mean: the mean, if it is known, as `mean` gives it with ``keepdims=True``.
        correction: the Array API standard's name of ``ddof``.

    Raises:
        ShapeError: if ``where`` or ``mean`` does not broadcast to the array.
        ArgumentError: if both ``ddof`` and ``correction`` are given.

    Warns:
        RuntimeWarning: if the divisor is not above zero; what ``where`` leaves is looked at as by
            `mean`.

    >>> import meshard.numpy as mnp
    >>> float(mnp.var(mnp.asarray([1, 2, 3]), ddof=1))
    1.0
    """
    x = as_array(a)
    wanted = _moment_dtype(x, dtype)
    wide = accumulator(wanted)
    dims = normalised_axes(axis, x.ndim, "var")
    counted = _counted(x, dims, keepdims, where, "var")
    less = corrected("var", ddof, correction)
    warn_of_few(counted, less, "Degrees of freedom <= 0 for slice")
    off = bind("subtract", x, _mean_of("var", x, dims, wide, where, mean))
    real_dtype = np.empty(0, wanted).real.dtype if wanted.kind == "c" else wanted
    squares = bind("square", bind("absolute", off) if wide.kind == "c" else off)
    divisor = counted - less
    divisor = max(divisor, 0.0) if where is None else bind("maximum", divisor, 0)
    found = bind("divide", sum(squares, dims, keepdims=keepdims, where=where), divisor)
    return found if found.dtype == real_dtype else found.astype(real_dtype)


def corrected(what: str, ddof: float, correction: float | None) -> float:
    """Return what is subtracted from a divisor, by either of its names.

    Raises:
        ArgumentError: if both are given.
    """
    if correction is None:
        return ddof
    if ddof:
        raise ArgumentError(
            f"{what}: ddof={ddof} and correction={correction} are two names of one number; give "
            "one of them."
        )
    return correction


def _moment_dtype(x: Any, dtype: Any) -> Any:
    if dtype is not None:
        return as_dtype(dtype)
    return x.dtype if is_float(x.dtype) or x.dtype.kind == "c" else default_float()


def _mean_of(what: str, x: Any, dims: Sequence[int], wide: Any, where: Any, given: Any) -> Any:
    """Return the mean with its dims kept: the one that was given, or what the elements say."""
    if given is None:
        return _mean(x, dims, wide, _counted(x, dims, True, where, what), True, where)
    return fitting(what, x, given)


def fitting(what: str, x: Any, given: Any) -> Any:
    """Return a mean that was given as an array.

    Raises:
        ShapeError: if it does not broadcast to an array.
    """
    value = as_array(given)
    try:
        fits = np.broadcast_shapes(value.shape, x.shape) == x.shape
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(
            f"{what}: mean= of shape {value.shape} does not broadcast to the array's shape "
            f"{x.shape}; give what mean(x, axis, keepdims=True) returns."
        )
    return value


@checked
def std(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DtypeLike = None,
    out: None = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
    mean: ArrayLike | None = None,
    correction: float | None = None,
) -> Array:
    """Return the standard deviation over dims, all by default; takes what `var` takes.

    >>> import meshard.numpy as mnp
    >>> mnp.std(mnp.asarray([1.0, 3.0])).item()
    1.0
    """
    x = as_array(a)
    dims = normalised_axes(axis, x.ndim, "std")
    more: dict[str, Any] = {"correction": correction, "where": where, "mean": mean}
    return bind("sqrt", var(x, dims, dtype, None, ddof, keepdims, **more))


@overload
def average(
    a: ArrayLike,
    axis: Axis = None,
    weights: ArrayLike | None = None,
    returned: Literal[False] = False,
    *,
    keepdims: bool = False,
) -> Array: ...
@overload
def average(
    a: ArrayLike,
    axis: Axis = None,
    weights: ArrayLike | None = None,
    *,
    returned: Literal[True],
    keepdims: bool = False,
) -> tuple[Array, Array]: ...
@checked
def average(
    a: ArrayLike,
    axis: Axis = None,
    weights: ArrayLike | None = None,
    returned: bool = False,
    *,
    keepdims: bool = False,
) -> Any:
    """Return the mean over dims, all by default.

    Args:
        a: the array.
        axis: the dims.
        weights: how much each element counts: of the array's shape, or of the shape of the dims
            that ``axis`` names; equally by default.
        returned: whether to return the sums of the weights, too.
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
        found = mean(x, dims, keepdims=keepdims)
        return (found, full_like(found, _count(x, dims))) if returned else found
    w = as_array(weights)
    if w.shape != x.shape:
        w = _weights_along(x, w, axis)
    # Products of small integers would wrap.
    own = default_float() if is_whole(x.dtype) else x.dtype
    wanted = common_dtype("average", (own, w.dtype))
    weighted = bind("multiply", x.astype(wanted, copy=False), w)
    total = sum(w, axis, accumulator(wanted), None, keepdims)
    quotient = sum(weighted, axis, accumulator(wanted), None, keepdims) / total
    found = quotient.astype(wanted, copy=False)
    if not returned:
        return found
    return found, broadcast_to(total.astype(wanted, copy=False), found.shape)


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
