"""Shapes and places by the names of ``jax.lax``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from meshard.algebra.arguments import described
from meshard.errors import ArgumentError, IndexingError, ShapeError
from meshard.ops.array import create
from meshard.ops.array import join as move
from meshard.ops.array import shape as shapes
from meshard.ops.array.index import getitem
from meshard.ops.engine.arguments import AnyDtypeLike, DtypeLike, checked
from meshard.ops.engine.dims import normalised_axes
from meshard.ops.engine.dtypes import as_dtype
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array

_slice = slice


def _sizes(what: str, name: str, given: Any) -> tuple[int, ...]:
    try:
        return tuple(map(index, given))
    except TypeError as error:
        raise ArgumentError(
            f"{what}: {name} must be a tuple of integers, got {described(given)}."
        ) from error


# made


@checked
def full(shape: Any, fill_value: Any, dtype: AnyDtypeLike = None, *, sharding: Any = None) -> Any:
    """Make an array of one value.

    Args:
        shape: the shape.
        fill_value: the value.
        dtype: the dtype, by default the value's.
        sharding: a Sharding or Device to lie on.

    >>> full((2,), 7).tolist()
    [7, 7]
    """
    return create.full(shape, fill_value, dtype, device=sharding)


@checked
def full_like(
    x: Any, fill_value: Any, dtype: AnyDtypeLike = None, shape: Any = None, sharding: Any = None
) -> Any:
    """Make an array of one value with the shape, dtype and sharding of another.

    >>> import meshard.numpy as mnp
    >>> full_like(mnp.ones(2), 7).tolist()
    [7.0, 7.0]
    """
    return create.full_like(x, fill_value, dtype, shape=shape, device=sharding)


@checked
def iota(dtype: DtypeLike, size: int) -> Any:
    """Make an array that counts from 0 on.

    >>> iota("int32", 3).tolist()
    [0, 1, 2]
    """
    return create.arange(index(size)).astype(as_dtype(dtype), copy=False)


@checked
def broadcasted_iota(dtype: DtypeLike, shape: Sequence[int], dimension: int) -> Any:
    """Make an array whose elements are their positions along one dim.

    >>> broadcasted_iota("int32", (2, 2), 1).tolist()
    [[0, 1], [0, 1]]
    """
    sizes = _sizes("broadcasted_iota", "shape", shape)
    (dim,) = normalised_axes((dimension,), len(sizes), "broadcasted_iota")
    return broadcast_in_dim(iota(dtype, sizes[dim]), sizes, (dim,))


# regrouped


@checked
def reshape(operand: Any, new_sizes: Sequence[int], dimensions: Sequence[int] | None = None) -> Any:
    """Return the array in another shape with the same elements.

    Args:
        operand: the array.
        new_sizes: the new shape.
        dimensions: an order of dims to put the array's into first.

    >>> import meshard.numpy as mnp
    >>> reshape(mnp.arange(6), (2, 3)).shape
    (2, 3)
    """
    x = as_array(operand)
    return shapes.reshape(x if dimensions is None else shapes.transpose(x, dimensions), new_sizes)


@checked
def collapse(operand: Any, start_dimension: int, stop_dimension: int | None = None) -> Any:
    """Return the array with the dims from one to before another merged.

    >>> import meshard.numpy as mnp
    >>> collapse(mnp.ones((2, 3, 4)), 0, 2).shape
    (6, 4)
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


@checked
def expand_dims(array: Any, dimensions: Sequence[int]) -> Any:
    """Return the array with dims of size one, which stand where ``dimensions`` says.

    >>> import meshard.numpy as mnp
    >>> expand_dims(mnp.ones(3), (0, 2)).shape
    (1, 3, 1)
    """
    return shapes.expand_dims(array, tuple(dimensions))


@checked
def squeeze(array: Any, dimensions: Sequence[int]) -> Any:
    """Return the array without some dims, whose size is one.

    >>> import meshard.numpy as mnp
    >>> squeeze(mnp.ones((1, 3)), (0,)).shape
    (3,)
    """
    return shapes.squeeze(array, tuple(dimensions))


@checked
def transpose(operand: Any, permutation: Sequence[int]) -> Any:
    """Return the array with its dims permuted.

    >>> import meshard.numpy as mnp
    >>> transpose(mnp.ones((2, 3)), (1, 0)).shape
    (3, 2)
    """
    return shapes.transpose(operand, tuple(int(d) for d in permutation))


@checked
def broadcast(operand: Any, sizes: Sequence[int]) -> Any:
    """Return the array repeated along new leading dims.

    >>> import meshard.numpy as mnp
    >>> broadcast(mnp.ones(3), (2,)).shape
    (2, 3)
    """
    x = as_array(operand)
    return shapes.broadcast_to(x, (*_sizes("broadcast", "sizes", sizes), *x.shape))


@checked
def broadcast_in_dim(operand: Any, shape: Sequence[int], broadcast_dimensions: Any) -> Any:
    """Return the array repeated to a shape.

    Args:
        operand: the array.
        shape: the result's shape.
        broadcast_dimensions: for each dim of the array, rising, which dim of the result it is.

    Raises:
        ShapeError: if a dim has neither size one nor the result's.

    >>> import meshard.numpy as mnp
    >>> broadcast_in_dim(mnp.arange(2), (2, 3), (0,)).tolist()
    [[0, 0, 0], [1, 1, 1]]
    """
    what = "broadcast_in_dim"
    x = as_array(operand)
    sizes = _sizes(what, "shape", shape)
    dims = _sizes(what, "broadcast_dimensions", broadcast_dimensions)
    fits = len(dims) == x.ndim and all(0 <= d < len(sizes) for d in dims)
    fits = fits and list(dims) == sorted(set(dims))
    if not fits or any(n not in (1, sizes[d]) for n, d in zip(x.shape, dims, strict=True)):
        raise ShapeError(
            f"{what}: an array of shape {x.shape} cannot become {sizes} with its dims at {dims}: "
            "each dim has a place, in rising order, and size one or that of the result."
        )
    spread = [1] * len(sizes)
    for n, d in zip(x.shape, dims, strict=True):
        spread[d] = n
    return shapes.broadcast_to(shapes.reshape(x, tuple(spread)), sizes)


# moved


@checked
def rev(operand: Any, dimensions: Sequence[int]) -> Any:
    """Return the array with some dims reversed.

    >>> import meshard.numpy as mnp
    >>> rev(mnp.arange(3), (0,)).tolist()
    [2, 1, 0]
    """
    return move.flip(operand, tuple(dimensions))


@checked
def concatenate(operands: Sequence[Any], dimension: int) -> Any:
    """Return arrays joined along an existing dim.

    >>> import meshard.numpy as mnp
    >>> concatenate([mnp.ones(2), mnp.zeros(1)], 0).tolist()
    [1.0, 1.0, 0.0]
    """
    return move.concatenate(operands, axis=dimension)


@checked
def stack(operands: Sequence[Any], axis: int = 0) -> Any:
    """Return arrays of one shape joined along a new dim.

    >>> import meshard.numpy as mnp
    >>> stack([mnp.ones(2), mnp.zeros(2)]).shape
    (2, 2)
    """
    return move.stack(operands, axis=axis)


@checked
def unstack(x: Any, axis: int = 0) -> tuple[Any, ...]:
    """Return the parts along a dim, without it.

    >>> import meshard.numpy as mnp
    >>> [part.tolist() for part in unstack(mnp.arange(2))]
    [0, 1]
    """
    return move.unstack(x, axis=axis)


@checked
def tile(operand: Any, reps: Sequence[int]) -> Any:
    """Return the array repeated as a whole along dims.

    >>> import meshard.numpy as mnp
    >>> tile(mnp.arange(2), (2,)).tolist()
    [0, 1, 0, 1]
    """
    return move.tile(operand, tuple(reps))


@checked
def split(operand: Any, sizes: Sequence[int], axis: int = 0) -> list[Any]:
    """Return the parts of these sizes along a dim.

    Raises:
        ShapeError: if the sizes do not add up to the dim's.

    >>> import meshard.numpy as mnp
    >>> [part.tolist() for part in split(mnp.arange(3), (1, 2))]
    [[0], [1, 2]]
    """
    x, parts = as_array(operand), _sizes("split", "sizes", sizes)
    (dim,) = normalised_axes((axis,), x.ndim, "split")
    if sum(parts) != x.shape[dim] or any(n < 0 for n in parts):
        raise ShapeError(
            f"split: sizes {parts} add up to {sum(parts)}; dim {dim} of the shape {x.shape} has "
            f"{x.shape[dim]}."
        )
    ends = np.cumsum(parts)[:-1].tolist()
    return move.split(x, ends, dim)


@checked
def pad(operand: Any, padding_value: Any, padding_config: Sequence[tuple[int, int, int]]) -> Any:
    """Return the array with elements added at the ends of its dims and between its elements.

    Args:
        operand: the array.
        padding_value: the value of the added elements.
        padding_config: for each dim how many come before, after, and between two elements; those
            at the ends may be negative, and then take elements away.

    Raises:
        ShapeError: if the configuration is not one, or takes away more than there is.

    >>> import meshard.numpy as mnp
    >>> pad(mnp.asarray([1, 2, 3]), 0, [(1, -1, 1)]).tolist()
    [0, 1, 0, 2, 0]
    """
    x = as_array(operand)
    try:
        config = [tuple(map(index, entry)) for entry in padding_config]
    except TypeError:
        config = []
    sizes = [
        n + low + high + max(n - 1, 0) * between
        for n, (low, high, between) in zip(x.shape, config, strict=False)
    ]
    wrong = len(config) != x.ndim or any(len(e) != 3 or e[2] < 0 for e in config)
    if wrong or any(n < 0 for n in sizes):
        raise ShapeError(
            f"pad: padding_config {padding_config!r} for an array of shape {x.shape} would give "
            f"{tuple(sizes)}; it needs three integers for each dim: how many before, after and "
            "between, of which the last is not negative."
        )
    found = x
    for d, (low, high, between) in enumerate(config):
        found = _spread(found, d, low, high, between)
    zero = isinstance(padding_value, (int, float, complex)) and padding_value == 0
    if found is x or zero:
        return found
    value = as_array(padding_value).astype(x.dtype, copy=False)
    for d, (low, _, between) in enumerate(config):
        at = np.arange(sizes[d]) - low
        own = (at >= 0) & (at < x.shape[d] + max(x.shape[d] - 1, 0) * between)
        own &= at % (between + 1) == 0
        if not own.all():
            line = own.reshape((-1, *(1,) * (x.ndim - d - 1)))
            found = bind("where", line, found, value)
    return found


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
        head = (_slice(None),) * dim
        x = getitem(x, (*head, _slice(0, 0)))
        low, high = n + low + high, 0
    return bind("pad_zeros", x, dims=((dim, (low, high)),)) if low or high else x


# taken out


@checked
def slice(
    operand: Any,
    start_indices: Sequence[int],
    limit_indices: Sequence[int],
    strides: Sequence[int] | None = None,
) -> Any:
    """Return the elements from some positions to before others, along all dims.

    Raises:
        IndexingError: if the positions are not those of a slice inside the array.

    >>> import meshard.numpy as mnp
    >>> slice(mnp.arange(6), (1,), (6,), (2,)).tolist()
    [1, 3, 5]
    """
    x = as_array(operand)
    starts = _sizes("slice", "start_indices", start_indices)
    limits = _sizes("slice", "limit_indices", limit_indices)
    steps = (1,) * x.ndim if strides is None else _sizes("slice", "strides", strides)
    fits = len(starts) == len(limits) == len(steps) == x.ndim and all(
        0 <= a <= b <= n and s > 0
        for a, b, s, n in zip(starts, limits, steps, x.shape, strict=True)
    )
    if not fits:
        raise IndexingError(
            f"slice: from {starts} to {limits} in steps of {steps} in an array of shape {x.shape}: "
            "each dim has a start, a limit from there to the dim's size, and a step above zero."
        )
    spans = zip(starts, limits, steps, strict=True)
    return getitem(x, tuple(_slice(a, b, s) for a, b, s in spans))


@checked
def slice_in_dim(
    operand: Any,
    start_index: int | None,
    limit_index: int | None,
    stride: int = 1,
    axis: int = 0,
) -> Any:
    """Return the elements from one position to before another along one dim.

    >>> import meshard.numpy as mnp
    >>> slice_in_dim(mnp.arange(6), 1, -1).tolist()
    [1, 2, 3, 4]
    """
    x = as_array(operand)
    (dim,) = normalised_axes((axis,), x.ndim, "slice_in_dim")
    size = x.shape[dim]
    ends = [0 if start_index is None else index(start_index)]
    ends.append(size if limit_index is None else index(limit_index))
    start, limit = (at + size if at < 0 else at for at in ends)
    starts = [start if d == dim else 0 for d in range(x.ndim)]
    limits = [limit if d == dim else n for d, n in enumerate(x.shape)]
    strides = [stride if d == dim else 1 for d in range(x.ndim)]
    return slice(x, starts, limits, strides)


@checked
def index_in_dim(operand: Any, index: int, axis: int = 0, keepdims: bool = True) -> Any:
    """Return the elements at one position along a dim, which stays with size one, or goes.

    >>> import meshard.numpy as mnp
    >>> index_in_dim(mnp.arange(6), -1).tolist()
    [5]
    """
    x = as_array(operand)
    (dim,) = normalised_axes((axis,), x.ndim, "index_in_dim")
    found = getitem(x, (*(_slice(None),) * dim, index))
    return shapes.expand_dims(found, dim) if keepdims else found


@checked
def index_take(src: Any, idxs: Sequence[Any], axes: Sequence[int]) -> Any:
    """Return the elements at positions along some dims, which become one leading dim.

    Args:
        src: the array.
        idxs: for each dim positions of one dim; they go round the end.
        axes: the dims.

    >>> import meshard.numpy as mnp
    >>> index_take(mnp.arange(6).reshape(2, 3), (mnp.asarray([1, 0]),), (0,)).tolist()
    [[3, 4, 5], [0, 1, 2]]
    """
    x = as_array(src)
    dims = [normalised_axes((d,), x.ndim, "index_take")[0] for d in axes]
    if len(idxs) != len(dims) or not dims:
        raise ArgumentError(f"index_take: {len(idxs)} arrays of positions for axes {tuple(axes)}.")
    places = [bind("remainder", as_array(i), x.shape[d]) for i, d in zip(idxs, dims, strict=True)]
    return getitem(shapes.moveaxis(x, dims, range(len(dims))), tuple(places))
