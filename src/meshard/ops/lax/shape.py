"""Shapes and places by the names of ``jax.lax``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshard.errors import ArgumentError, IndexingError, ShapeError
from meshard.ops.array import create
from meshard.ops.array import join as move
from meshard.ops.array import shape as shapes
from meshard.ops.array.index import getitem
from meshard.ops.checked import AnyDtypeLike, DtypeLike, normalised_axes
from meshard.ops.dtypes.laws import as_dtype
from meshard.ops.lax.table import named
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike, DeviceLike, ShapeLike

_slice = slice

# made


@named("lax.full((2,), 7).tolist()", "[7, 7]")
def full(
    shape: ShapeLike,
    fill_value: ArrayLike,
    dtype: AnyDtypeLike = None,
    *,
    sharding: DeviceLike = None,
) -> Array:
    """Make an array of one value."""
    return create.full(shape, fill_value, dtype, device=sharding)


@named("lax.full_like(mnp.ones(2), 7).tolist()", "[7.0, 7.0]")
def full_like(
    x: ArrayLike,
    fill_value: ArrayLike,
    dtype: AnyDtypeLike = None,
    shape: ShapeLike | None = None,
    sharding: DeviceLike = None,
) -> Array:
    """Make an array of one value with the shape, dtype and sharding of another."""
    return create.full_like(x, fill_value, dtype, shape=shape, device=sharding)


@named('lax.iota("int32", 3).tolist()', "[0, 1, 2]", dtype="the dtype.")
def iota(dtype: DtypeLike, size: int) -> Array:
    """Make an array that counts from 0."""
    return create.arange(size).astype(as_dtype(dtype), copy=False)


@named('lax.broadcasted_iota("int32", (2, 2), 1).tolist()', "[[0, 1], [0, 1]]", dtype="the dtype.")
def broadcasted_iota(dtype: DtypeLike, shape: Sequence[int], dimension: int) -> Array:
    """Make an array whose elements are their positions along one dim."""
    (dim,) = normalised_axes((dimension,), len(shape), "broadcasted_iota")
    return broadcast_in_dim(iota(dtype, shape[dim]), shape, (dim,))


# regrouped


@named(
    "lax.reshape(mnp.arange(6), (2, 3)).shape",
    "(2, 3)",
    dimensions="an order of dims to put those of the array into first.",
)
def reshape(
    operand: ArrayLike, new_sizes: Sequence[int], dimensions: Sequence[int] | None = None
) -> Array:
    """Return the array in another shape with the same elements."""
    x = as_array(operand)
    return shapes.reshape(x if dimensions is None else shapes.transpose(x, dimensions), new_sizes)


@named("lax.collapse(mnp.ones((2, 3, 4)), 0, 2).shape", "(6, 4)")
def collapse(operand: ArrayLike, start_dimension: int, stop_dimension: int | None = None) -> Array:
    """Return the array with neighbouring dims merged.

    Raises:
        ArgumentError: if there is no dim to merge.
    """
    x = as_array(operand)
    low, high, _ = _slice(start_dimension, stop_dimension).indices(x.ndim)
    if low >= high:
        raise ArgumentError(
            f"collapse: there is no dim from {start_dimension} up to, but not including, "
            f"{stop_dimension} in an array with {x.ndim} dims."
        )
    sizes = x.shape
    return shapes.reshape(x, (*sizes[:low], math.prod(sizes[low:high]), *sizes[high:]))


@named("lax.expand_dims(mnp.ones(3), (0, 2)).shape", "(1, 3, 1)")
def expand_dims(array: ArrayLike, dimensions: Sequence[int]) -> Array:
    """Return the array with dims of size one, which are these dims of the result."""
    return shapes.expand_dims(array, dimensions)


@named("lax.squeeze(mnp.ones((1, 3)), (0,)).shape", "(3,)")
def squeeze(array: ArrayLike, dimensions: Sequence[int]) -> Array:
    """Return the array without some dims, whose size is one."""
    return shapes.squeeze(array, dimensions)


@named("lax.transpose(mnp.ones((2, 3)), (1, 0)).shape", "(3, 2)")
def transpose(operand: ArrayLike, permutation: Sequence[int]) -> Array:
    """Return the array with its dims permuted."""
    return shapes.transpose(operand, permutation)


@named("lax.broadcast(mnp.ones(3), (2,)).shape", "(2, 3)")
def broadcast(operand: ArrayLike, sizes: Sequence[int]) -> Array:
    """Return the array repeated along new leading dims of these sizes."""
    x = as_array(operand)
    return shapes.broadcast_to(x, (*sizes, *x.shape))


@named("lax.broadcast_in_dim(mnp.arange(2), (2, 3), (0,)).tolist()", "[[0, 0, 0], [1, 1, 1]]")
def broadcast_in_dim(
    operand: ArrayLike, shape: Sequence[int], broadcast_dimensions: Sequence[int]
) -> Array:
    """Return the array repeated to a shape.

    Raises:
        ShapeError: if a dim has neither size one nor that of the result.
    """
    x, sizes, dims = as_array(operand), shape, broadcast_dimensions
    fits = len(dims) == x.ndim and all(0 <= d < len(sizes) for d in dims)
    fits = fits and list(dims) == sorted(set(dims))
    if not fits or any(n not in (1, sizes[d]) for n, d in zip(x.shape, dims, strict=True)):
        raise ShapeError(
            f"broadcast_in_dim: an array of shape {x.shape} cannot become {sizes} with its dims at "
            f"{dims}: each dim has a place, in rising order, and size one or that of the result."
        )
    spread = [1] * len(sizes)
    for n, d in zip(x.shape, dims, strict=True):
        spread[d] = n
    return shapes.broadcast_to(shapes.reshape(x, tuple(spread)), sizes)


# moved


@named("lax.rev(mnp.arange(3), (0,)).tolist()", "[2, 1, 0]")
def rev(operand: ArrayLike, dimensions: Sequence[int]) -> Array:
    """Return the array with some dims reversed."""
    return move.flip(operand, dimensions)


@named("lax.concatenate([mnp.ones(2), mnp.zeros(1)], 0).tolist()", "[1.0, 1.0, 0.0]")
def concatenate(operands: Sequence[Any], dimension: int) -> Array:
    """Return arrays joined along an existing dim."""
    return move.concatenate(operands, axis=dimension)


@named("lax.stack([mnp.ones(2), mnp.zeros(2)]).shape", "(2, 2)")
def stack(operands: Sequence[Any], axis: int = 0) -> Array:
    """Return arrays of one shape joined along a new dim of the result."""
    return move.stack(operands, axis=axis)


@named("[part.tolist() for part in lax.unstack(mnp.arange(2))]", "[0, 1]")
def unstack(x: ArrayLike, axis: int = 0) -> tuple[Array, ...]:
    """Return the parts along a dim, without it."""
    return move.unstack(x, axis=axis)


@named("lax.tile(mnp.arange(2), (2,)).tolist()", "[0, 1, 0, 1]")
def tile(operand: ArrayLike, reps: Sequence[int]) -> Array:
    """Return the array repeated as a whole along dims."""
    return move.tile(operand, reps)


@named("[part.tolist() for part in lax.split(mnp.arange(3), (1, 2))]", "[[0], [1, 2]]")
def split(operand: ArrayLike, sizes: Sequence[int], axis: int = 0) -> list[Array]:
    """Return the parts of these sizes along a dim.

    Raises:
        ShapeError: if the sizes do not add up to that of the dim.
    """
    x = as_array(operand)
    (dim,) = normalised_axes((axis,), x.ndim, "split")
    if sum(sizes) != x.shape[dim] or any(n < 0 for n in sizes):
        raise ShapeError(
            f"split: sizes {sizes} add up to {sum(sizes)}; dim {dim} of the shape {x.shape} has "
            f"{x.shape[dim]}."
        )
    return move.split(x, np.cumsum(sizes)[:-1].tolist(), dim)


@named("lax.pad(mnp.asarray([1, 2, 3]), 0, [(1, -1, 1)]).tolist()", "[0, 1, 0, 2, 0]")
def pad(
    operand: ArrayLike, padding_value: ArrayLike, padding_config: Sequence[tuple[int, int, int]]
) -> Array:
    """Return the array with elements added at the ends of its dims and between its elements.

    Raises:
        ShapeError: if the configuration is not one, or takes away more than there is.
    """
    x = as_array(operand)
    sizes = [
        n + low + high + max(n - 1, 0) * between
        for n, (low, high, between) in zip(x.shape, padding_config, strict=False)
    ]
    wrong = len(padding_config) != x.ndim or any(between < 0 for *_, between in padding_config)
    if wrong or any(n < 0 for n in sizes):
        raise ShapeError(
            f"pad: padding_config {padding_config!r} for an array of shape {x.shape} would give "
            f"{tuple(sizes)}; it needs three integers for each dim: how many before, after and "
            "between, of which the last is not negative."
        )
    found = x
    for d, (low, high, between) in enumerate(padding_config):
        found = _spread(found, d, low, high, between)
    if found is x or _is_zero(padding_value):
        return found
    value = as_array(padding_value).astype(x.dtype, copy=False)
    for d, (low, _, between) in enumerate(padding_config):
        at = np.arange(sizes[d]) - low
        own = (at >= 0) & (at < x.shape[d] + max(x.shape[d] - 1, 0) * between)
        own &= at % (between + 1) == 0
        if not own.all():
            line = own.reshape((-1, *(1,) * (x.ndim - d - 1)))
            found = bind("where", line, found, value)
    return found


def _is_zero(value: Any) -> bool:
    """Whether a value is a known number of which all bits are zero."""
    return isinstance(value, (int, float, complex, np.number)) and not any(
        np.asarray(value).tobytes()
    )


def _spread(x: Any, dim: int, low: int, high: int, between: int) -> Any:
    """Return the array with zeros in and around one dim."""
    n = x.shape[dim]
    if between and n > 1:
        before, after = x.shape[:dim], x.shape[dim + 1 :]
        wide = bind(
            "pad_zeros", shapes.reshape(x, (*before, n, 1, *after)), dims=((dim + 1, (0, between)),)
        )
        x = shapes.reshape(wide, (*before, n * (1 + between), *after))
        high -= between
        n = n * (1 + between)
    if -low > n or -high > n:  # nothing of the dim is left
        x = getitem(x, (*(_slice(None),) * dim, _slice(0, 0)))
        low, high = n + low + high, 0
    return bind("pad_zeros", x, dims=((dim, (low, high)),)) if low or high else x


# taken out


@named("lax.slice(mnp.arange(6), (1,), (6,), (2,)).tolist()", "[1, 3, 5]")
def slice(
    operand: ArrayLike,
    start_indices: Sequence[int],
    limit_indices: Sequence[int],
    strides: Sequence[int] | None = None,
) -> Array:
    """Return the elements from some positions to before others, along all dims.

    Raises:
        IndexingError: if the positions are not those of a slice inside the array.
    """
    x = as_array(operand)
    starts, limits = start_indices, limit_indices
    steps = (1,) * x.ndim if strides is None else strides
    fits = len(starts) == len(limits) == len(steps) == x.ndim and all(
        0 <= a <= b <= n and s > 0
        for a, b, s, n in zip(starts, limits, steps, x.shape, strict=True)
    )
    if not fits:
        raise IndexingError(
            f"slice: from {starts} to {limits} in steps of {steps} in an array of shape {x.shape}: "
            "each dim has a start, a limit from there to the dim's size, and a step above zero."
        )
    return getitem(x, tuple(map(_slice, starts, limits, steps)))


@named("lax.slice_in_dim(mnp.arange(6), 1, -1).tolist()", "[1, 2, 3, 4]")
def slice_in_dim(
    operand: ArrayLike,
    start_index: int | None,
    limit_index: int | None,
    stride: int = 1,
    axis: int = 0,
) -> Array:
    """Return the elements from one position to before another along one dim."""
    x = as_array(operand)
    (dim,) = normalised_axes((axis,), x.ndim, "slice_in_dim")
    size = x.shape[dim]
    ends = 0 if start_index is None else start_index, size if limit_index is None else limit_index
    start, limit = (at + size if at < 0 else at for at in ends)
    spans = [(0, n, 1) for n in x.shape]
    spans[dim] = (start, limit, stride)
    return slice(x, *zip(*spans, strict=True))


@named("lax.index_in_dim(mnp.arange(6), -1).tolist()", "[5]")
def index_in_dim(operand: ArrayLike, index: int, axis: int = 0, keepdims: bool = True) -> Array:
    """Return the elements at one position along a dim."""
    x = as_array(operand)
    (dim,) = normalised_axes((axis,), x.ndim, "index_in_dim")
    found = getitem(x, (*(_slice(None),) * dim, index))
    return shapes.expand_dims(found, dim) if keepdims else found


@named(
    "lax.index_take(mnp.arange(6).reshape(2, 3), (mnp.asarray([1, 0]),), (0,)).tolist()",
    "[[3, 4, 5], [0, 1, 2]]",
)
def index_take(src: ArrayLike, idxs: Sequence[Any], axes: Sequence[int]) -> Array:
    """Return the elements at positions along some dims, which become one leading dim.

    Raises:
        ArgumentError: if there are no dims, or not as many arrays of positions as dims.
    """
    x = as_array(src)
    dims = [normalised_axes((d,), x.ndim, "index_take")[0] for d in axes]
    if len(idxs) != len(dims) or not dims:
        raise ArgumentError(f"index_take: {len(idxs)} arrays of positions for axes {tuple(axes)}.")
    places = [bind("remainder", as_array(i), x.shape[d]) for i, d in zip(idxs, dims, strict=True)]
    return getitem(shapes.moveaxis(x, dims, range(len(dims))), tuple(places))
