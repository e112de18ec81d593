"""Running totals, and differences between neighbours.

A split dim is scanned in two phases, without bringing it together: each cell scans its own block,
then adds what the cells before it come to, of which only the last elements move. Differences move
the elements at the edges of blocks only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np

from meshard.errors import ArgumentError, DtypeError, ShapeError
from meshard.ops.array.join import concatenate
from meshard.ops.array.shape import broadcast_to, ravel, reshape
from meshard.ops.checked import DtypeLike, checked, normalised_axes
from meshard.ops.dtypes.laws import accumulator, as_dtype, default_float, is_whole, same_kind
from meshard.ops.engine.later import relaid, when_laid_out
from meshard.ops.reductions.reduce import sum as sum_
from meshard.ops.reductions.reduce import sum_dtype
from meshard.ops.row import Bounds, Dtype, Op, Operand, Params, RuleText, register
from meshard.runtime.array.array import Array
from meshard.runtime.array.at import At
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike, Block
from meshard.tuning import SHIFTED_TOTALS

_UFUNCS: dict[str, np.ufunc] = {
    "add": np.add,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "logaddexp": np.logaddexp,
}


_NEAR = 512
"""Bytes between neighbours along a dim beyond which a scan adds whole rows to each other."""


def _scan_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    names = [f"d{i}" for i in range(len(operands[0][0]))]
    marked = [f"!{n}" if params["whole"] and i == params["dim"] else n for i, n in enumerate(names)]
    return f"{' '.join(marked)} -> {' '.join(names)}"


def _scan_law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    return (params["dtype"],)


def _scan(x: Block, *, dim: int, how: str, dtype: Dtype, whole: bool) -> Block:
    given, ufunc = x.astype(dtype, copy=False), _UFUNCS[how]
    if given.ndim < 2 or given.strides[dim] <= _NEAR or not given.size:
        found: Block = ufunc.accumulate(given, dim, dtype)
        return found
    # NumPy goes along the dim, and so from row to row for each element.
    found = np.empty_like(given)
    rows, made = np.moveaxis(given, dim, 0), np.moveaxis(found, dim, 0)
    made[0] = rows[0]
    for i in range(1, len(rows)):
        ufunc(made[i - 1], rows[i], out=made[i])
    return found


def _shift_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    names = [f"d{i}" for i in range(len(operands[0][0]))]
    totals = ["!c" if i == params["dim"] else n for i, n in enumerate(names)]
    return f"{' '.join(names)}, {' '.join(totals)} -> {' '.join(names)}"


def _shift_cell(params: Params, bounds: Bounds, shape: tuple[int, ...]) -> Params:
    start = bounds[f"d{params['dim']}"][0]
    before = bisect_right(params["starts"], start) - 1
    return {"dim": params["dim"], "how": params["how"], "before": before}


def _shift(x: Block, totals: Block, *, dim: int, how: str, before: int) -> Block:
    """Combine a cell's own scan with the totals of the cells before it, in mesh order."""
    if before < 1 or not x.size:
        return x
    head = np.moveaxis(totals, dim, 0)[:before]
    base = reduce(_UFUNCS[how], list(head))
    found: Block = _UFUNCS[how](np.expand_dims(base, dim), x)
    return found


def _shift_law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    dtype = operands[0][1]
    assert isinstance(dtype, np.dtype)
    return (dtype,)


def _whole_cell(params: Params, bounds: Bounds, shape: tuple[int, ...]) -> Params:
    """Return the parameters; that there is such a function says that a cell is one stretch."""
    return params


register(Op("scan", _scan_rule, _scan, dtypes=_scan_law, local=_whole_cell))
register(Op("scan_shift", _shift_rule, _shift, dtypes=_shift_law, local=_shift_cell))


def _scanned(name: str, a: Any, axis: int | None, how: str, dtype: Dtype | None) -> Any:
    """Scan along a dim, or the flat array without one; the result is laid out like the operand."""
    x = as_array(a)
    if axis is None:
        x, axis = ravel(x), 0
    (dim,) = normalised_axes(axis, x.ndim, name)
    law = x.dtype if dtype is None else dtype
    wide = accumulator(law)
    found = when_laid_out(name, _along, x, dim=dim, how=how, dtype=wide)
    return found if wide == law else found.astype(law)


def _along(x: Array, *, dim: int, how: str, dtype: Dtype) -> Any:
    """Scan along a dim in the way that the layout calls for."""
    found = bind("scan", x, dim=dim, how=how, dtype=dtype, whole=False)
    # Cells without elements have no total.
    cuts = found.aval.layout.cuts[dim]
    starts = tuple(a for a, b in pairwise(cuts) if a < b)
    if len(starts) > 1:
        count = len(starts)
        volume = found.nbytes // x.shape[dim] * count
        if volume <= SHIFTED_TOTALS or x.shape[dim] >= count * count:
            ends = (*(s - 1 for s in starts[1:]), x.shape[dim] - 1)
            totals = bind("take_positions", found, dims=((dim, (ends,)),))
            found = bind("scan_shift", found, totals, dim=dim, how=how, starts=starts)
        else:  # the totals would outweigh a block: the axes move to another dim and back
            kind = found.aval
            turned = bind("scan", x, dim=dim, how=how, dtype=dtype, whole=True)
            found = relaid(turned, kind, "scan")
    return found


def _summed(x: Array, dtype: Any) -> Dtype:
    """Return the dtype of sums: the one asked for; that of bools and short integers is longer."""
    if dtype is not None:
        return as_dtype(dtype)
    return sum_dtype(x.dtype)


@checked
def cumsum(
    a: ArrayLike, axis: int | None = None, dtype: DtypeLike = None, out: None = None
) -> Array:
    """Return the running sums along a dim, or in the flat array.

    Along a split dim each device sums its own block; of each block only the total moves. The
    result is laid out like the array, and its bits depend on the mesh, not on the number of
    processes. Floats shorter than 32 bits are accumulated in float32.

    Args:
        a: the array.
        axis: the dim; None for the flat array.
        dtype: the result's dtype; by default the array's, at least int64 for integers.
        out: None; arrays are immutable.

    Raises:
        ArgumentError: if ``axis`` names no dim.

    >>> import meshard.numpy as mnp
    >>> mnp.cumsum(mnp.arange(5)).tolist()
    [0, 1, 3, 6, 10]
    """
    x = as_array(a)
    return _scanned("cumsum", x, axis, "add", _summed(x, dtype))


@checked
def cumprod(
    a: ArrayLike, axis: int | None = None, dtype: DtypeLike = None, out: None = None
) -> Array:
    """Return the running products along a dim, or in the flat array; laid out as by `cumsum`.

    >>> import meshard.numpy as mnp
    >>> mnp.cumprod(mnp.arange(1, 5)).tolist()
    [1, 2, 6, 24]
    """
    x = as_array(a)
    return _scanned("cumprod", x, axis, "multiply", _summed(x, dtype))


def cummax(a: Any, axis: int | None = None) -> Any:
    """Return the greatest element so far along a dim, or in the flat array; NaN stays."""
    return _scanned("cummax", a, axis, "maximum", None)


def cummin(a: Any, axis: int | None = None) -> Any:
    """Return the least element so far along a dim, or in the flat array; NaN stays."""
    return _scanned("cummin", a, axis, "minimum", None)


def cumlogsumexp(a: Any, axis: int | None = None) -> Any:
    """Return the logarithm of the running sum of exponentials, safely."""
    x = as_array(a)
    floats = x if not is_whole(x.dtype) else x.astype(default_float())
    if floats.dtype.kind == "c":
        raise DtypeError(f"cumlogsumexp: the elements must be real; the dtype is {floats.dtype}.")
    return _scanned("cumlogsumexp", floats, axis, "logaddexp", None)


@checked
def nancumsum(
    a: ArrayLike, axis: int | None = None, dtype: DtypeLike = None, out: None = None
) -> Array:
    """Return the running sums, NaN counted as zero.

    >>> import meshard.numpy as mnp
    >>> mnp.nancumsum(mnp.asarray([2.0, mnp.nan, 3.0])).tolist()
    [2.0, 2.0, 5.0]
    """
    return cumsum(_without_nan(a, 0), axis, dtype)


@checked
def nancumprod(
    a: ArrayLike, axis: int | None = None, dtype: DtypeLike = None, out: None = None
) -> Array:
    """Return the running products, NaN counted as one.

    >>> import meshard.numpy as mnp
    >>> mnp.nancumprod(mnp.asarray([2.0, mnp.nan, 3.0])).tolist()
    [2.0, 2.0, 6.0]
    """
    return cumprod(_without_nan(a, 1), axis, dtype)


def _without_nan(a: Any, value: int) -> Any:
    x = as_array(a)
    if is_whole(x.dtype):
        return x
    return bind("where", bind("isnan", x), np.asarray(value, x.dtype), x)


_CUMULATIVE = {"cumulative_sum": ("add", 0), "cumulative_prod": ("multiply", 1)}
"""How these functions of the Array API standard scan, and the initial value."""


def _cumulative(name: str, x: Any, axis: int | None, dtype: Any, include_initial: bool) -> Any:
    value, (how, first) = as_array(x), _CUMULATIVE[name]
    if axis is None:
        if value.ndim != 1:
            raise ArgumentError(
                f"{name}: axis may be left out for arrays of one dim only; this one has "
                f"{value.ndim}, its shape is {value.shape}. Give axis=, or flatten it."
            )
        axis = 0
    found = _scanned(name, value, axis, how, _summed(value, dtype))
    if not include_initial:
        return found
    dim = axis % value.ndim
    longer = bind("pad_zeros", found, dims=((dim, (1, 0)),))
    return longer if not first else At(longer)[(*(slice(None),) * dim, slice(0, 1))].set(first)


@checked
def cumulative_sum(
    x: ArrayLike,
    /,
    *,
    axis: int | None = None,
    dtype: DtypeLike = None,
    out: None = None,
    include_initial: bool = False,
) -> Array:
    """Return the running sums along a dim, as the Array API standard has it.

    Args:
        x: the array.
        axis: the dim; needed unless there is only one.
        dtype: the result's dtype; by default as of `cumsum`.
        out: None; arrays are immutable.
        include_initial: whether to begin with a zero, so that the dim is longer by one.

    Raises:
        ArgumentError: if ``axis`` names no dim, or is missing for several.

    >>> import meshard.numpy as mnp
    >>> mnp.cumulative_sum(mnp.arange(1, 4), include_initial=True).tolist()
    [0, 1, 3, 6]
    """
    return _cumulative("cumulative_sum", x, axis, dtype, include_initial)


@checked
def cumulative_prod(
    x: ArrayLike,
    /,
    *,
    axis: int | None = None,
    dtype: DtypeLike = None,
    out: None = None,
    include_initial: bool = False,
) -> Array:
    """Return the running products along a dim, as the Array API standard has it.

    Takes what `cumulative_sum` takes; the initial value is a one.

    >>> import meshard.numpy as mnp
    >>> mnp.cumulative_prod(mnp.arange(2, 5), include_initial=True).tolist()
    [1, 2, 6, 24]
    """
    return _cumulative("cumulative_prod", x, axis, dtype, include_initial)


# differences


@checked
def diff(
    a: ArrayLike,
    n: int = 1,
    axis: int = -1,
    prepend: ArrayLike | None = None,
    append: ArrayLike | None = None,
) -> Array:
    """Return the differences between neighbours along a dim; only elements at edges move.

    Args:
        a: the array.
        n: how many times to take differences.
        axis: the dim, which becomes shorter by ``n``.
        prepend: values to put before the array first: a scalar or an array.
        append: values to put after it.

    Raises:
        ArgumentError: if ``n`` is negative or ``axis`` names no dim.

    >>> import meshard.numpy as mnp
    >>> mnp.diff(mnp.asarray([1, 4, 9])).tolist()
    [3, 5]
    """
    x = as_array(a)
    if n < 0:
        raise ArgumentError(f"diff: n must be a non-negative integer, not {n}.")
    (dim,) = normalised_axes(axis, x.ndim, "diff")
    if not n:
        return x
    ends = [None if e is None else _end(x, e, dim) for e in (prepend, append)]
    parts = [ends[0], x, ends[1]]
    if any(e is not None for e in ends):
        x = concatenate([p for p in parts if p is not None], axis=dim)
    how = "not_equal" if x.dtype.kind == "b" else "subtract"
    head = (slice(None),) * dim
    for _ in range(n):
        x = bind(how, x[(*head, slice(1, None))], x[(*head, slice(None, -1))])
    return x


def _end(x: Array, value: Any, dim: int) -> Any:
    end = as_array(value)
    if end.ndim:
        return end
    return broadcast_to(end, (*x.shape[:dim], 1, *x.shape[dim + 1 :]))


def ediff1d(
    ary: ArrayLike, to_end: ArrayLike | None = None, to_begin: ArrayLike | None = None
) -> Array:
    """Return the differences between neighbours of the flat array, between two given ends.

    Raises:
        DtypeError: if an end is of another kind than the array, such as a float for integers.

    >>> import meshard.numpy as mnp
    >>> mnp.ediff1d(mnp.asarray([1, 4, 9])).tolist()
    [3, 5]
    """
    x = diff(ravel(as_array(ary)))
    ends = {"to_begin": to_begin, "to_end": to_end}
    made = {name: ravel(as_array(end)) for name, end in ends.items() if end is not None}
    for name, end in made.items():
        if not same_kind(end.dtype, x.dtype):
            raise DtypeError(
                f"ediff1d: {name} has dtype {end.dtype}, which is not converted to {x.dtype}, that "
                "of the differences. Convert the array first."
            )
    parts = [made.get("to_begin"), x, made.get("to_end")]
    given = [p.astype(x.dtype, copy=False) for p in parts if p is not None]
    return concatenate(given, axis=0) if len(given) > 1 else x


@checked
def trapezoid(
    y: ArrayLike, x: ArrayLike | None = None, dx: ArrayLike = 1.0, axis: int = -1
) -> Array:
    """Return the integral along a dim by the trapezoidal rule.

    Args:
        y: the values to integrate.
        x: the points that they belong to: one dim, or several that broadcast with the values;
            None for even ones.
        dx: the distance of even points.
        axis: the dim.

    Raises:
        ShapeError: if the points do not fit the values.

    >>> import meshard.numpy as mnp
    >>> float(mnp.trapezoid(mnp.asarray([1.0, 2.0, 3.0])))
    4.0
    """
    values = as_array(y)
    (dim,) = normalised_axes(axis, values.ndim, "trapezoid")
    # A Python number leaves the values their dtype.
    width = dx if isinstance(dx, (int, float, complex)) else as_array(dx)
    if x is not None:
        points = as_array(x)
        alone = points.ndim == 1
        along = normalised_axes(0 if alone else axis, points.ndim, "trapezoid")[0]
        if points.shape[along] != values.shape[dim]:
            raise ShapeError(
                f"trapezoid: points of shape {points.shape} for values of shape {values.shape}; "
                f"there must be {values.shape[dim]} points along the dim, one for each value."
            )
        width = diff(points, axis=along)
        if alone:
            width = reshape(width, (-1,) + (1,) * (values.ndim - dim - 1))
    head = (slice(None),) * dim
    both = values[(*head, slice(1, None))] + values[(*head, slice(None, -1))]
    return sum_(width * both / 2.0, axis=axis)
