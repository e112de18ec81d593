"""Diagonals, traces, cross products and norms: computed where the elements are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from meshard.errors import ArgumentError, ShapeError, did_you_mean
from meshard.ops.array.diagonals import diagonal_of
from meshard.ops.array.shape import expand_dims, moveaxis
from meshard.ops.checked import Axis, DtypeLike, checked, normalised_axes
from meshard.ops.dtypes.laws import accumulator, default_float, is_float, operand_dtype, promoted
from meshard.ops.linalg.decompose import svdvals
from meshard.ops.reductions.reduce import max as max_
from meshard.ops.reductions.reduce import min as min_
from meshard.ops.reductions.reduce import sum as sum_
from meshard.ops.row import Dtype, Op, Operand, Params, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike, Block

# diagonals


def _two_dims(name: str, ndim: int, axis1: int, axis2: int) -> tuple[int, int]:
    if ndim < 2:
        raise ShapeError(f"{name}: needs at least two dims, got {ndim}.")
    (first,) = normalised_axes(axis1, ndim, name)
    (second,) = normalised_axes(axis2, ndim, name)
    if first == second:
        raise ArgumentError(f"{name}: axis1 and axis2 are both dim {first}.")
    return first, second


@checked
def diagonal(a: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """Return the diagonal of two dims, as a last dim.

    Args:
        a: the array; each device looks up the elements that it holds.
        offset: which diagonal: above the main one if positive.
        axis1: the dim of rows.
        axis2: the dim of columns.

    Raises:
        ShapeError: if there are less than two dims.
        ArgumentError: if the dims are the same, or there is no such dim.

    >>> import meshard.numpy as mnp
    >>> mnp.diagonal(mnp.asarray([[1, 2], [3, 4]])).tolist()
    [1, 4]
    """
    x = as_array(a)
    dims = _two_dims("diagonal", x.ndim, axis1, axis2)
    return diagonal_of(x, offset, *dims)


@checked
def trace(
    a: ArrayLike,
    offset: int = 0,
    axis1: int = 0,
    axis2: int = 1,
    dtype: DtypeLike = None,
    out: None = None,
) -> Array:
    """Return the sum of the diagonal of two dims; takes what `diagonal` takes.

    >>> import meshard.numpy as mnp
    >>> int(mnp.trace(mnp.asarray([[1, 2], [3, 4]])))
    5
    """
    return sum_(diagonal(a, offset, axis1, axis2), axis=-1, dtype=dtype)


# cross products


def _cross(x: Block, y: Block) -> Block:
    found = np.empty(np.broadcast_shapes(x.shape, y.shape), promoted((x.dtype, y.dtype)))
    for i, (j, k) in enumerate(((1, 2), (2, 0), (0, 1))):
        found[..., i] = x[..., j] * y[..., k] - x[..., k] * y[..., j]
    return found


def _cross_law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    return (promoted([operand_dtype(x) for x in operands]),)


register(Op("cross", "... !c, ... !c -> ... c", _cross, dtypes=_cross_law, alike=0))


@checked
def cross(
    a: ArrayLike,
    b: ArrayLike,
    axisa: int = -1,
    axisb: int = -1,
    axisc: int = -1,
    axis: int | None = None,
) -> Array:
    """Return the cross products of vectors with three elements.

    Args:
        a: the first vectors.
        b: the second vectors; other dims broadcast.
        axisa: the dim of ``a``, of size three, that holds a vector; counted from the end if
            negative.
        axisb: that of ``b``.
        axisc: that of the result.
        axis: the same for all three, instead.

    Raises:
        ShapeError: if that dim has another size.

    >>> import meshard.numpy as mnp
    >>> mnp.cross(mnp.asarray([1, 0, 0]), mnp.asarray([0, 1, 0])).tolist()
    [0, 0, 1]
    """
    first, second, third = (axisa, axisb, axisc) if axis is None else (axis,) * 3
    vectors = []
    for given, at in ((a, first), (b, second)):
        value = as_array(given)
        dims = normalised_axes(at, value.ndim, "cross")
        if value.shape[dims[0]] != 3:
            raise ShapeError(
                f"cross: vectors must have three elements, but dim {dims[0]} of the shape "
                f"{value.shape} has {value.shape[dims[0]]}."
            )
        vectors.append(moveaxis(value, at, -1))
    return moveaxis(bind("cross", *vectors), -1, third)


# norms


def _floats(x: Any) -> Any:
    value = as_array(x)
    if value.dtype.kind == "c" or is_float(value.dtype):
        return value.astype(accumulator(value.dtype), copy=False)
    return value.astype(default_float())


def _greatest(x: Any, axis: Axis, keepdims: bool = False) -> Any:
    """Return the greatest of sizes; that of none is 0, as in NumPy."""
    return max_(x, axis, None, keepdims, None if x.size else 0.0)


def _law(x: Any) -> Any:
    dtype = as_array(x).dtype
    if dtype.kind == "c":
        return np.empty(0, dtype).real.dtype
    return dtype if is_float(dtype) else default_float()


@checked
def vector_norm(
    x: ArrayLike, /, *, axis: Axis = None, keepdims: bool = False, ord: float = 2
) -> Array:
    """Return the norm of vectors over dims, all by default.

    A split dim is reduced part by part.

    Args:
        x: the array.
        axis: the dim or dims that hold a vector.
        keepdims: whether they stay, with size one.
        ord: the order: a number, ``inf`` or ``-inf``.

    >>> import meshard.numpy as mnp
    >>> float(mnp.linalg.vector_norm(mnp.asarray([3.0, 4.0])))
    5.0
    """
    ord = float(ord)
    value = _floats(x)
    if ord == 2:
        if value.dtype.kind == "c":
            real, imag = bind("real", value), bind("imag", value)
            squares = real * real + imag * imag
        else:
            squares = value * value
        found = bind("sqrt", sum_(squares, axis, keepdims=keepdims))
        return found.astype(_law(x), copy=False)
    size = bind("absolute", value)
    if ord == np.inf:
        found = _greatest(size, axis, keepdims)
    elif ord == -np.inf:
        found = min_(size, axis, None, keepdims)
    elif ord == 0:
        found = sum_(bind("not_equal", size, 0).astype(size.dtype), axis, keepdims=keepdims)
    elif ord == 1:
        found = sum_(size, axis, keepdims=keepdims)
    else:
        found = bind("power", sum_(size**ord, axis, keepdims=keepdims), 1.0 / ord)
    return found.astype(_law(x), copy=False)


@checked
def matrix_norm(
    x: ArrayLike, /, *, keepdims: bool = False, ord: float | str | None = "fro"
) -> Array:
    """Return the norms of matrices, the last two dims.

    Args:
        x: the array.
        keepdims: whether the last two dims stay, with size one.
        ord: ``"fro"``, 1, -1, ``inf`` or ``-inf``, computed part by part where dims are split; or
            ``"nuc"``, 2 or -2, for which each matrix is made whole.

    Raises:
        ShapeError: if there are less than two dims.
        ArgumentError: if the order is not known.
    """
    if as_array(x).ndim < 2:
        raise ShapeError(f"matrix_norm: takes matrices, got shape {as_array(x).shape}.")
    if ord in ("fro", None):
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    value = _floats(x)
    if ord in ("nuc", 2, -2):
        s = svdvals(value)
        found = sum_(s, axis=-1) if ord == "nuc" else (min_ if ord == -2 else _greatest)(s, axis=-1)
        found = expand_dims(found, (-2, -1)) if keepdims else found
    elif ord in (1, -1, np.inf, -np.inf):
        down = abs(ord) == 1
        totals = sum_(bind("absolute", value), axis=-2 if down else -1, keepdims=True)
        pick = _greatest if ord > 0 else min_
        found = pick(totals, axis=(-2, -1), keepdims=keepdims)
    else:
        raise ArgumentError(
            f"matrix_norm: ord must be 'fro', 'nuc', 1, -1, 2, -2, inf or -inf, not {ord!r}."
            f"{did_you_mean(ord, ('fro', 'nuc'))}"
        )
    return found.astype(_law(x), copy=False)


@checked
def norm(
    x: ArrayLike, ord: float | str | None = None, axis: Axis = None, keepdims: bool = False
) -> Array:
    """Return the norm of vectors or matrices, as ``numpy.linalg.norm``.

    Args:
        x: the array.
        ord: the order; None for the root of the sum of squares.
        axis: one dim for vectors, two for matrices; None for the flat array, or, with an order,
            for the one or two dims that the array has.
        keepdims: whether the dims stay, with size one.

    Raises:
        ArgumentError: if the order does not fit, or the dims are more than two.

    >>> import meshard.numpy as mnp
    >>> float(mnp.linalg.norm(mnp.asarray([[3.0, 0.0], [0.0, 4.0]])))
    5.0
    """
    value = as_array(x)
    if axis is None and ord is None:
        return vector_norm(value, keepdims=keepdims)
    dims: tuple[int, ...]
    if axis is None:
        dims = tuple(range(value.ndim))
    else:
        given = (axis,) if isinstance(axis, (int, np.integer)) else tuple(axis)
        dims = tuple(normalised_axes(d, value.ndim, "norm")[0] for d in given)
    if len(dims) == 1:
        return vector_norm(
            value, axis=dims, keepdims=keepdims, ord=2 if ord is None else cast(float, ord)
        )
    if len(dims) != 2:
        raise ArgumentError(
            f"norm: takes one dim for vectors or two for matrices, but axis={axis!r} of an array "
            f"of shape {value.shape} names {len(dims)}."
        )
    found = matrix_norm(moveaxis(value, dims, (-2, -1)), ord=ord)
    return expand_dims(found, tuple(sorted(dims))) if keepdims else found
