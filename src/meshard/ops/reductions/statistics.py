"""Sums, extremes and moments that pass over NaN."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshard.errors import DtypeError, ShapeError
from meshard.ops.checked import Axis, DtypeLike, checked
from meshard.ops.dtypes.laws import accumulator, as_dtype, is_float, is_whole
from meshard.ops.engine.later import is_array, is_traced
from meshard.ops.reductions.moments import (
    corrected,
    fitting,
    mean,
    var,
    warn_of_few,
    warn_where,
)
from meshard.ops.reductions.reduce import all as all_
from meshard.ops.reductions.reduce import (
    argmax,
    argmin,
    count_nonzero,
    extreme_of,
    highest,
    lowest,
    where_of,
    without_nan,
)
from meshard.ops.reductions.reduce import prod as prod_
from meshard.ops.reductions.reduce import sum as sum_
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike


def _nan(a: Any) -> tuple[Array, Any]:
    """Return the array, and where it is NaN; None where it cannot be."""
    x = as_array(a)
    return x, None if is_whole(x.dtype) else bind("isnan", x)


def _filled(x: Array, gaps: Any, value: Any) -> Any:
    return x if gaps is None else bind("where", gaps, np.asarray(value, x.dtype), x)


@checked
def nansum(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DtypeLike = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Return the sum over dims, NaN counted as zero; takes what `sum` takes.

    >>> import meshard.numpy as mnp
    >>> float(mnp.nansum(mnp.asarray([1.0, mnp.nan])))
    1.0
    """
    return sum_(_filled(*_nan(a), 0), axis, dtype, None, keepdims, initial, where)


@checked
def nanprod(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DtypeLike = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Return the product over dims, NaN counted as one; takes what `prod` takes.

    >>> import meshard.numpy as mnp
    >>> mnp.nanprod(mnp.asarray([2.0, mnp.nan, 3.0])).item()
    6.0
    """
    return prod_(_filled(*_nan(a), 1), axis, dtype, None, keepdims, initial, where)


def _extreme(what: str, a: Any, axis: Axis, keepdims: bool, initial: Any, where: Any) -> Any:
    """Return an extreme of what is not NaN."""
    x, gaps = _nan(a)
    if initial is not None or where is not None or gaps is None:
        end = lowest if what == "max" else highest
        number = x if gaps is None else _filled(x, gaps, end(x.dtype))
        return extreme_of(what, number, axis, keepdims, initial, where)
    if is_float(x.dtype):
        return without_nan(f"nan{what}", x, axis, keepdims)
    end = lowest if what == "max" else highest
    found = extreme_of(what, _filled(x, gaps, end(x.dtype)), axis, keepdims, None, None)
    nothing = all_(gaps, axis, None, keepdims)
    return bind("where", nothing, np.asarray(np.nan, found.dtype), found)


def _told(found: Any, a: Any) -> Any:
    """Return an extreme, and warn where it is NaN; NumPy says so in other words of lists."""
    if not is_whole(found.dtype):
        kind = "slice" if is_array(a) or isinstance(a, np.ndarray) else "axis"
        warn_where(found, np.isnan, f"All-NaN {kind} encountered")
    return found


@checked
def nanmax(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Return the maximum over dims, NaN left out; NaN where all elements are NaN.

    Takes what `max` takes; with ``initial``, that is the result where all elements are NaN.

    Warns:
        RuntimeWarning: if the result has NaN, as far as this process has the result; never inside
            transformations.

    >>> import meshard.numpy as mnp
    >>> mnp.nanmax(mnp.asarray([1.0, mnp.nan, 3.0])).item()
    3.0
    """
    return _told(_extreme("max", a, axis, keepdims, initial, where), a)


@checked
def nanmin(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Return the minimum over dims, NaN left out; NaN where all elements are NaN.

    Takes what `min` takes; with ``initial``, that is the result where all elements are NaN. Warns
    as `nanmax` does.

    >>> import meshard.numpy as mnp
    >>> mnp.nanmin(mnp.asarray([1.0, mnp.nan, 3.0])).item()
    1.0
    """
    return _told(_extreme("min", a, axis, keepdims, initial, where), a)


def _place(what: str, a: Any, axis: int | None, keepdims: bool) -> Any:
    """Return the position of an extreme of what is not NaN.

    Raises:
        ShapeError: if there is nothing else, as far as values may be looked at.
    """
    x, gaps = _nan(a)
    find, end = (argmax, lowest) if what == "nanargmax" else (argmin, highest)
    found = find(_filled(x, gaps, end(x.dtype)), axis, keepdims=keepdims)
    if gaps is None:
        return found
    nothing = all_(gaps, axis, None, keepdims)
    if not is_traced(nothing):
        if bool(nothing.any()):
            raise ShapeError(
                f"{what}: all elements of a slice of the array of shape {x.shape} are NaN, and "
                "none is left to have a position."
            )
        return found
    return bind("where", nothing, -1, found)


@checked
def nanargmax(
    a: ArrayLike, axis: int | None = None, out: None = None, *, keepdims: bool = False
) -> Array:
    """Return the position of the first maximum, NaN left out; takes what `argmax` takes.

    Raises:
        ShapeError: if all elements of a slice are NaN; of traced arrays the position is then -1.

    >>> import meshard.numpy as mnp
    >>> mnp.nanargmax(mnp.asarray([1.0, mnp.nan, 3.0])).item()
    2
    """
    return _place("nanargmax", a, axis, keepdims)


@checked
def nanargmin(
    a: ArrayLike, axis: int | None = None, out: None = None, *, keepdims: bool = False
) -> Array:
    """Return the position of the first minimum, NaN left out; takes what `nanargmax` takes.

    >>> import meshard.numpy as mnp
    >>> mnp.nanargmin(mnp.asarray([mnp.nan, 4.0, 3.0])).item()
    2
    """
    return _place("nanargmin", a, axis, keepdims)


def _float_dtype(what: str, x: Any, dtype: Any) -> Any:
    """Return the dtype of a mean that may be NaN.

    Raises:
        DtypeError: if it has none.
    """
    wanted = x.dtype if dtype is None else as_dtype(dtype)
    if is_whole(wanted):
        raise DtypeError(
            f"{what}: dtype must be a float or complex dtype, since the mean of nothing is NaN; "
            f"got {wanted}."
        )
    return wanted


def _part(what: str, x: Any, gaps: Any, where: Any) -> Any:
    """Return which elements take no part, in the array's shape."""
    if where is None:
        return gaps
    return bind("logical_or", gaps, bind("logical_not", where_of(x, where, what)))


@checked
def nanmean(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DtypeLike = None,
    out: None = None,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
) -> Array:
    """Return the mean over dims, NaN left out; NaN where all elements are. Arguments as `mean`.

    Warns:
        RuntimeWarning: if nothing is left, as far as this process has the result; never inside
            transformations.

    >>> import meshard.numpy as mnp
    >>> mnp.nanmean(mnp.asarray([1.0, mnp.nan, 3.0])).item()
    2.0
    """
    x, gaps = _nan(a)
    if gaps is None:
        return mean(x, axis, dtype, None, keepdims, where=where)
    law = _float_dtype("nanmean", x, dtype)
    found, counted = _mean_left(x, _part("nanmean", x, gaps, where), axis, law, keepdims)
    warn_of_few(counted, 0, "Mean of empty slice")
    return found


def _mean_left(x: Any, gaps: Any, axis: Axis, law: Any, keepdims: bool) -> tuple[Any, Any]:
    """Return the mean of what is not left out, and how many elements that are."""
    total = sum_(_filled(x, gaps, 0), axis, accumulator(law), None, keepdims)
    counted = count_nonzero(bind("logical_not", gaps), axis, keepdims=keepdims)
    return _quotient(total, counted).astype(law, copy=False), counted


def _quotient(total: Any, count: Any) -> Any:
    """Divide sums by counts; zero by zero is NaN."""
    safe = bind("maximum", count, 1).astype(total.dtype)
    missing = complex(np.nan, np.nan) if total.dtype.kind == "c" else np.nan
    return bind("where", count > 0, total / safe, np.asarray(missing, total.dtype))


@checked
def nanvar(
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
    """Return the variance over dims of what is not NaN; takes what `var` takes.

    Warns:
        RuntimeWarning: if no more than ``ddof`` elements are left, as far as this process has the
            result; never inside transformations.

    >>> import meshard.numpy as mnp
    >>> mnp.nanvar(mnp.asarray([1.0, mnp.nan, 3.0])).item()
    1.0
    """
    x, gaps = _nan(a)
    less = corrected("nanvar", ddof, correction)
    if gaps is None:
        return var(x, axis, dtype, None, less, keepdims, where=where, mean=mean)
    law = _float_dtype("nanvar", x, dtype)
    gaps = _part("nanvar", x, gaps, where)
    off = x.astype(accumulator(law), copy=False)
    if mean is None:
        middle, _ = _mean_left(off, gaps, axis, off.dtype, True)
    else:
        middle = fitting("nanvar", x, mean)
    off = bind("absolute", off - middle)
    squares = sum_(bind("square", _filled(off, gaps, 0)), axis, keepdims=keepdims)
    count = count_nonzero(bind("logical_not", gaps), axis, keepdims=keepdims) - less
    warn_of_few(count, 0, "Degrees of freedom <= 0 for slice.")
    real = np.empty(0, law).real.dtype if law.kind == "c" else law
    return _quotient(squares, count).astype(real, copy=False)


@checked
def nanstd(
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
    """Return the standard deviation over dims of what is not NaN; takes what `var` takes.

    >>> import meshard.numpy as mnp
    >>> mnp.nanstd(mnp.asarray([1.0, mnp.nan, 3.0])).item()
    1.0
    """
    less = corrected("nanstd", ddof, correction)
    return bind("sqrt", nanvar(a, axis, dtype, None, less, keepdims, where=where, mean=mean))
