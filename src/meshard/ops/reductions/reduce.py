"""Reductions: sums, extremes, tests and their positions over dims.

A split dim that is reduced gives partial results, combined in mesh order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from meshard.algebra.arguments import described
from meshard.errors import ArgumentError, ShapeError
from meshard.ops.checked import Axis, DtypeLike, checked, normalised_axes
from meshard.ops.dtypes.laws import (
    BYTES,
    as_dtype,
    is_float,
    is_whole,
    kind_of,
    operand_dtype,
    weak_kind,
)
from meshard.ops.reductions import short_argmax as narrow
from meshard.ops.row import Bounds, Dtype, Op, Operand, Params, Partial, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array, filling
from meshard.runtime.types import ArrayLike, Block


def reduction_rule(operands: Sequence[Operand], params: Params) -> str:
    """Return the rule of a reduction over ``axis``, with or without ``keepdims``."""
    names = [f"d{i}" for i in range(len(operands[0][0]))]
    axes = params["axis"]
    kept = [
        "1" if i in axes else n for i, n in enumerate(names) if params["keepdims"] or i not in axes
    ]
    return f"{' '.join(names)} -> {' '.join(kept)}"


def sum_dtype(dtype: Dtype) -> Dtype:
    """Return the dtype of sums if none is given: for short integers it is longer."""
    if not is_whole(dtype):
        return dtype
    found: Dtype = np.add.reduce(np.ones(1, BYTES.get(dtype, dtype))).dtype
    return found


def _sum_law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    wanted = params["dtype"]
    return (sum_dtype(operand_dtype(operands[0])) if wanted is None else wanted,)


def _accumulate(ufunc: np.ufunc) -> Callable[..., Any]:
    def kernel(
        x: Block,
        *,
        axis: tuple[int, ...],
        keepdims: bool,
        dtype: Dtype | None,
        accumulator: Dtype,
    ) -> Any:
        x = x.astype(BYTES[x.dtype]) if x.dtype in BYTES else x
        return ufunc.reduce(x, axis=axis, keepdims=keepdims, dtype=accumulator)

    return kernel


def _behind_the_first(params: Params) -> Params:
    """Return the parameters of a reduction over the dims behind one more."""
    return {**params, "axis": tuple([i + 1 for i in params["axis"]])}


def lowest(dtype: Dtype) -> Any:
    """Return the value that no maximum is less than."""
    if dtype.kind == "b":
        return False
    if not is_float(dtype) and dtype.kind != "c":
        return _range(dtype).min
    found = dtype.type(complex(-np.inf, -np.inf) if dtype.kind == "c" else -np.inf)
    return _range(dtype).min if np.isnan(found) else found  # some floats have no infinity


def highest(dtype: Dtype) -> Any:
    """Return the value that no minimum is greater than."""
    if dtype.kind == "b":
        return True
    if not is_float(dtype) and dtype.kind != "c":
        return _range(dtype).max
    found = dtype.type(complex(np.inf, np.inf) if dtype.kind == "c" else np.inf)
    return _range(dtype).max if np.isnan(found) else found


def _missing(dtype: Dtype) -> Any:
    """Return NaN, which every other number replaces."""
    return dtype.type(np.nan)


def _range(dtype: Dtype) -> Any:
    describe: Any = ml_dtypes.finfo if is_float(dtype) else ml_dtypes.iinfo
    return describe(dtype)


def _extreme(ufunc: np.ufunc, neutral: Callable[[Dtype], Any]) -> Callable[..., Any]:
    def kernel(x: Block, *, axis: tuple[int, ...], keepdims: bool) -> Any:
        if x.size:
            return ufunc.reduce(x, axis=axis, keepdims=keepdims)
        return ufunc.reduce(x, axis=axis, keepdims=keepdims, initial=neutral(x.dtype))

    return kernel


def _test(ufunc: np.ufunc) -> Callable[..., Any]:
    def kernel(x: Block, *, axis: tuple[int, ...], keepdims: bool) -> Any:
        return ufunc.reduce(x, axis=axis, keepdims=keepdims)

    return kernel


for _name, _ufunc in (("sum", np.add), ("prod", np.multiply)):
    register(
        Op(
            _name,
            reduction_rule,
            _accumulate(_ufunc),
            dtypes=_sum_law,
            partial=Partial(_ufunc, "wide"),
            sums=True,
            stacked=_behind_the_first,
        )
    )
_selecting: tuple[tuple[str, np.ufunc, Callable[..., Any]], ...] = (
    ("max", np.maximum, _extreme(np.maximum, lowest)),
    ("min", np.minimum, _extreme(np.minimum, highest)),
    ("any", np.logical_or, _test(np.logical_or)),
    ("all", np.logical_and, _test(np.logical_and)),
)
_selecting += (  # of real floats: NaN is left out, unless there is nothing else
    ("nanmax", np.fmax, _extreme(np.fmax, _missing)),
    ("nanmin", np.fmin, _extreme(np.fmin, _missing)),
)
for _name, _selects, _kernel in _selecting:
    register(
        Op(
            _name,
            reduction_rule,
            _kernel,
            partial=Partial(_selects, "selects"),
            alike=0,
            stacked=_behind_the_first,
        )
    )


_NOWHERE = np.iinfo(np.int64).max


def _position(
    find: Callable[..., Any], neutral: Callable[[Dtype], Any], whole: bool
) -> Callable[..., Any]:
    """Return a kernel for the position of an extreme, counted in the global array.

    The whole kernel returns positions, the partial one the extremes as well.
    """

    def kernel(
        x: Block,
        *,
        axis: tuple[int, ...],
        keepdims: bool,
        starts: tuple[int, ...] = (),
        shape: tuple[int, ...] = (),
    ) -> Any:
        over_all = len(axis) != 1
        dim = None if over_all else axis[0]
        if not x.size:
            out = tuple(
                1 if i in axis else n for i, n in enumerate(x.shape) if keepdims or i not in axis
            )
            nothing = np.full(out, neutral(x.dtype), x.dtype), np.full(out, _NOWHERE)
            return nothing[1] if whole else nothing
        if whole:  # no other cell has positions before these
            return np.asarray(find(x, axis=dim, keepdims=keepdims), np.int64)
        at = find(x, axis=dim, keepdims=True)
        if over_all:
            value = x.reshape(-1)[at.reshape(())].reshape(at.shape)
            local = np.unravel_index(at, x.shape)
            offset = starts or (0,) * x.ndim
            place = tuple(a + b for a, b in zip(local, offset, strict=True))
            at = np.ravel_multi_index(place, shape or x.shape)
        else:
            value = np.take_along_axis(x, at, axis=axis[0])
            at = at + (starts[axis[0]] if starts else 0)
        if not keepdims:
            value, at = np.squeeze(value, axis=axis), np.squeeze(at, axis=axis)
        return value, np.asarray(at, np.int64)

    return kernel


def _first(better: np.ufunc) -> Callable[[Sequence[tuple[Block, ...]]], tuple[Block, ...]]:
    """Return what picks, of several extremes and positions, the best one's first position."""

    def combine(parts: Sequence[tuple[Block, ...]]) -> tuple[Block, ...]:
        values = np.stack([p[0] for p in parts])
        places = np.stack([p[1] for p in parts])
        best = better.reduce(values, axis=0)
        match = values == best
        if is_float(values.dtype) or values.dtype.kind == "c":
            match |= np.isnan(values) & np.isnan(best)
        match &= places != _NOWHERE
        return (np.where(match, places, _NOWHERE).min(axis=0),)

    return combine


def _position_cell(params: Params, bounds: Bounds, shape: tuple[int, ...]) -> Params:
    dims = [bounds[f"d{i}"] for i in range(len(params["shape"]))]
    return {**params, "starts": tuple(start for start, _ in dims)}


def _position_law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    return (np.dtype(np.int64),)


def _position_partial(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    return operand_dtype(operands[0]), np.dtype(np.int64)


for _name, _find, _neutral, _better in (
    ("argmax", narrow.argmax, lowest, np.maximum),
    ("argmin", narrow.argmin, highest, np.minimum),
):
    register(
        Op(
            _name,
            reduction_rule,
            _position(_find, _neutral, whole=True),
            dtypes=_position_law,
            partial=Partial(
                _first(_better),
                "selects",
                _position(_find, _neutral, whole=False),
                _position_partial,
            ),
            local=_position_cell,
            alike=0,
        )
    )


def _reduce(name: str, a: Any, axis: Axis, keepdims: bool, **more: Any) -> Any:
    x = as_array(a)
    return bind(name, x, axis=normalised_axes(axis, x.ndim, name), keepdims=bool(keepdims), **more)


def where_of(x: Any, where: Any, what: str) -> Any:
    """Return which elements take part, as an array that broadcasts to another.

    Raises:
        ShapeError: if it does not.
    """
    mask = as_array(where)
    try:
        fits = np.broadcast_shapes(mask.shape, x.shape) == x.shape
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(
            f"{what}: where= of shape {mask.shape} does not broadcast to the array's shape "
            f"{x.shape}."
        )
    return mask


def masked(x: Any, where: Any, value: Any, what: str) -> Any:
    """Return an array with a value where elements take no part; None: all do."""
    if where is None:
        return x
    return bind("where", where_of(x, where, what), x, as_array(value).astype(x.dtype, copy=False))


def _started(row: str, found: Any, initial: Any) -> Any:
    """Combine a reduction with a first value, in the result's dtype."""
    if initial is None:
        return found
    value = as_array(initial)
    if weak_kind(initial) in (int, float) and not value.ndim:
        value = filling(initial, found.dtype, f"{row}: initial")
    if value.ndim or (value.dtype.kind == "c") > (found.dtype.kind == "c"):
        raise ArgumentError(
            f"{row}: initial must be one number that {found.dtype} can hold, got "
            f"{described(initial)}."
        )
    return bind(row, found, value.astype(found.dtype, copy=False))


@checked
def sum(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DtypeLike = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Return the sum over dims, all by default.

    Floats shorter than 32 bits are accumulated in float32. A split dim is summed part by part and
    the parts in mesh order, so that every device holds the same bits.

    Args:
        a: the array.
        axis: the dims.
        dtype: the result's dtype.
        out: None; arrays are immutable.
        keepdims: keep the dims, with size one.
        initial: a value to add.
        where: which elements take part, as bools that broadcast to the array.

    Raises:
        ArgumentError: if ``axis`` names no dim, or one twice.
        ShapeError: if ``where`` does not broadcast to the array.

    >>> import meshard.numpy as mnp
    >>> mnp.sum(mnp.ones((2, 3)), axis=0).tolist()
    [2.0, 2.0, 2.0]
    """
    wanted = None if dtype is None else as_dtype(dtype)
    x = masked(as_array(a), where, 0, "sum")
    found = _started("add", _reduce("sum", x, axis, keepdims, dtype=wanted), initial)
    if not (_is_negative_zero(initial) and kind_of(found.dtype) == "f"):
        return found
    # Sums start from 0, and 0 + -0.0 is 0; nothing but negative zeros stays one.
    own = masked(x, where, -0.0, "sum")
    zeros = bind("logical_and", bind("equal", own, 0), bind("signbit", own))
    none_else = all(zeros, axis, None, keepdims)
    return bind("where", none_else, bind("negative", bind("absolute", found)), found)


def _is_negative_zero(value: Any) -> bool:
    """Whether a known float is -0.0."""
    return isinstance(value, (float, np.floating)) and not value and bool(np.signbit(value))


@checked
def prod(
    a: ArrayLike,
    axis: Axis = None,
    dtype: DtypeLike = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Return the product over dims, all by default; takes what `sum` takes.

    >>> import meshard.numpy as mnp
    >>> mnp.prod(mnp.asarray([[1, 2], [3, 4]]), axis=1).tolist()
    [2, 12]
    """
    wanted = None if dtype is None else as_dtype(dtype)
    x = masked(as_array(a), where, 1, "prod")
    return _started("multiply", _reduce("prod", x, axis, keepdims, dtype=wanted), initial)


def without_nan(name: str, x: Any, axis: Axis, keepdims: bool) -> Any:
    """Return the extreme of real floats over dims, by the row of ``name``, NaN left out."""
    return _reduce(name, _not_empty(x, axis, name.removeprefix("nan")), axis, keepdims)


def _not_empty(a: Any, axis: Axis, what: str) -> Any:
    x = as_array(a)
    for dim in normalised_axes(axis, x.ndim, what):
        if x.shape[dim] == 0:
            raise ShapeError(
                f"{what}: dim {dim} of the shape {x.shape} is empty; the {what} of no "
                "elements is undefined."
            )
    return x


def extreme_of(what: str, a: Any, axis: Axis, keepdims: bool, initial: Any, where: Any) -> Any:
    """Return the ``"max"`` or ``"min"`` over dims, of a first value and of the elements named."""
    if initial is None:
        if where is not None:
            raise ArgumentError(
                f"{what}: where= may leave out all elements, and the {what} of no elements is "
                "undefined; give initial=, a value to start from."
            )
        return _reduce(what, _not_empty(a, axis, what), axis, keepdims)
    x = masked(as_array(a), where, initial, what)
    row = "maximum" if what == "max" else "minimum"
    return _started(row, _reduce(what, x, axis, keepdims), initial)


@checked
def max(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Return the maximum over dims, all by default; NaN where an element is.

    Args:
        a: the array.
        axis: the dims.
        out: None; arrays are immutable.
        keepdims: keep the dims, with size one.
        initial: a value that counts as one more element.
        where: which elements take part; only with ``initial``.

    Raises:
        ShapeError: if a reduced dim is empty and there is no ``initial``.
        ArgumentError: if ``where`` is given without ``initial``.

    >>> import meshard.numpy as mnp
    >>> int(mnp.max(mnp.arange(5)))
    4
    """
    return extreme_of("max", a, axis, keepdims, initial, where)


@checked
def min(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Return the minimum over dims, all by default; NaN where an element is.

    Takes what `max` takes.

    >>> import meshard.numpy as mnp
    >>> mnp.min(mnp.asarray([[3, 1], [0, 2]]), axis=1).tolist()
    [1, 0]
    """
    return extreme_of("min", a, axis, keepdims, initial, where)


@checked
def ptp(a: ArrayLike, axis: Axis = None, out: None = None, keepdims: bool = False) -> Array:
    """Return the difference of maximum and minimum over dims.

    >>> import meshard.numpy as mnp
    >>> mnp.ptp(mnp.asarray([[1, 5], [3, 4]]), axis=1).tolist()
    [4, 1]
    """
    x = _not_empty(a, axis, "ptp")
    return max(x, axis, None, keepdims) - min(x, axis, None, keepdims)


@checked
def any(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
) -> Array:
    """Return whether any element is true over dims, all by default.

    Args:
        a: the array.
        axis: the dims.
        out: None; arrays are immutable.
        keepdims: keep the dims, with size one.
        where: which elements take part, as bools that broadcast to the array.

    >>> import meshard.numpy as mnp
    >>> mnp.any(mnp.asarray([[0, 1], [0, 0]]), axis=1).tolist()
    [True, False]
    """
    return _reduce("any", masked(as_array(a), where, 0, "any"), axis, keepdims)


@checked
def all(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
) -> Array:
    """Return whether all elements are true over dims, all by default; arguments as for `any`.

    >>> import meshard.numpy as mnp
    >>> mnp.all(mnp.asarray([[1, 1], [0, 1]]), axis=1).tolist()
    [True, False]
    """
    return _reduce("all", masked(as_array(a), where, 1, "all"), axis, keepdims)


@checked
def count_nonzero(a: ArrayLike, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return the number of elements that are not zero over dims.

    >>> import meshard.numpy as mnp
    >>> mnp.count_nonzero(mnp.asarray([[0, 1], [2, 3]]), axis=1).tolist()
    [1, 2]
    """
    x = as_array(a)
    dims = normalised_axes(axis, x.ndim, "count_nonzero")
    return sum(bind("not_equal", x, 0), dims, keepdims=keepdims)


def _positions(name: str, a: Any, axis: int | None, keepdims: bool) -> Any:
    if axis is not None and not hasattr(axis, "__index__"):
        raise ArgumentError(
            f"{name}: axis={axis!r} must be one integer, or None for the flat array."
        )
    x = _not_empty(a, axis, name)
    return _reduce(name, x, axis, keepdims, shape=x.shape)


@checked
def argmax(
    a: ArrayLike, axis: int | None = None, out: None = None, *, keepdims: bool = False
) -> Array:
    """Return the position of the first maximum.

    Args:
        a: the array.
        axis: the dim; None for the flat array.
        out: None; arrays are immutable.
        keepdims: keep the dims, with size one.

    Raises:
        ShapeError: if there are no elements to choose from.

    >>> import meshard.numpy as mnp
    >>> int(mnp.argmax(mnp.asarray([3, 9, 9])))
    1
    """
    return _positions("argmax", a, axis, keepdims)


@checked
def argmin(
    a: ArrayLike, axis: int | None = None, out: None = None, *, keepdims: bool = False
) -> Array:
    """Return the position of the first minimum along a dim; without one, in the flat array.

    >>> import meshard.numpy as mnp
    >>> mnp.argmin(mnp.asarray([[3, 1], [0, 2]]), axis=0).tolist()
    [1, 0]
    """
    return _positions("argmin", a, axis, keepdims)
