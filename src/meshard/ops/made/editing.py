"""Arrays with parts taken out, put in, put together from nested lists, or cut to a size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshard.algebra.arguments import described, shape_of
from meshard.errors import ArgumentError, DimError, IndexingError, ShapeError
from meshard.ops.array.dynamic import dynamic_update_slice
from meshard.ops.array.join import concatenate, tile
from meshard.ops.array.samplesort import known
from meshard.ops.array.shape import broadcast_to, moveaxis, ravel, reshape
from meshard.ops.checked import Axis, checked, normalised_axes
from meshard.ops.engine.later import concrete, is_array, is_traced
from meshard.ops.reductions.reduce import any as any_
from meshard.ops.reductions.reduce import argmax
from meshard.ops.reductions.sets import compress
from meshard.ops.reductions.sort import searchsorted, sort
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array, as_host, filling
from meshard.runtime.types import ArrayLike

Places = int | slice | ArrayLike | Sequence[int]


def _along(what: str, arr: Any, axis: int | None) -> tuple[Any, int]:
    x = as_array(arr)
    if axis is None:
        return ravel(x), 0
    (dim,) = normalised_axes(axis, x.ndim, what)
    return x, dim


def _part(x: Any, dim: int, start: Any, stop: Any) -> Any:
    return x[(*(slice(None),) * dim, slice(start, stop))]


def _positions(what: str, obj: Any, size: int, most: int) -> Any:
    """Return known positions as NumPy's integers, from 0 to ``most``.

    Raises:
        IndexingError: if one is outside, or they are not integers.
    """
    if isinstance(obj, slice):
        return np.arange(*obj.indices(size))
    places = known(obj) if is_array(obj) else as_host(obj, f"{what}: obj")
    if places.dtype.kind == "b":
        if places.shape != (size,):
            raise IndexingError(f"{what}: a mask of shape {places.shape} for a dim of size {size}.")
        return np.flatnonzero(places)
    typed = places.size or is_array(obj) or isinstance(obj, np.ndarray)
    if places.dtype.kind not in "iu" and typed:  # an empty list says nothing of its dtype
        raise IndexingError(f"{what}: obj must be integers, got {described(obj)}.")
    places = places.astype(np.int64)
    outside = places[(places < -size) | (places > most)]
    if outside.size:
        raise IndexingError(
            f"{what}: position {outside.flat[0]} is out of bounds for a dim of size {size}."
        )
    return np.where(places < 0, places + size, places)


@checked
def delete(
    arr: ArrayLike,
    obj: Places,
    axis: int | None = None,
    *,
    assume_unique_indices: bool = False,
) -> Array:
    """Return the array without some positions of a dim, or of the flat array.

    Args:
        arr: the array.
        obj: a position, a slice, positions, or a mask of what goes.
        axis: the dim; None for the flat array.
        assume_unique_indices: whether positions are known to differ, so that traced ones say how
            many there are, as in JAX.

    Raises:
        IndexingError: if a position is out of bounds.
        ConcretizationError: if traced positions decide the result's size.

    >>> import meshard.numpy as mnp
    >>> mnp.delete(mnp.arange(5), [1, 3]).tolist()
    [0, 2, 4]
    """
    x, dim = _along("delete", arr, axis)
    size = x.shape[dim]
    if is_traced(obj):
        return _deleted_later(x, dim, obj, assume_unique_indices)
    places = _positions("delete", obj, size, size - 1)
    if isinstance(obj, slice) or not places.ndim:
        runs = np.unique(places)
        if runs.size and runs[-1] - runs[0] + 1 == runs.size:
            ends = _part(x, dim, 0, int(runs[0])), _part(x, dim, int(runs[-1]) + 1, None)
            return concatenate(ends, axis=dim)
    keep = np.ones(size, bool)
    keep[places] = False
    return compress(keep, x, dim)


def _deleted_later(x: Any, dim: int, obj: Any, distinct: bool) -> Any:
    """Return an array without traced positions, whose number is known."""
    if obj.dtype.kind == "b" or (obj.ndim and not distinct):
        way_out = (
            "How many positions go is not known. Give assume_unique_indices=True, or keep a known "
            "number with compress(mask, x, axis, size=...)."
        )
        return delete(x, concrete(obj, "delete", way_out), dim)
    size = x.shape[dim]
    places = reshape(bind("where", obj < 0, obj + size, obj), (-1,))
    count = places.shape[0]
    at = np.arange(size - count)
    # Each position that goes moves those behind it by one.
    shifted = sort(places) - np.arange(count)
    steps = searchsorted(shifted, at, "right")
    shape = (-1, *(1,) * (x.ndim - dim - 1))
    found: Any = None
    for step in range(count + 1) if count <= _FEW_STEPS else ():
        part = _part(x, dim, step, step + size - count)
        chosen = reshape(bind("equal", steps, step), shape)
        found = part if found is None else bind("where", chosen, part, found)
    return bind("gather", x, at + steps, dims=(dim,), at=dim) if found is None else found


_FEW_STEPS = 8
"""Positions up to which shifted copies are chosen from, instead of looking up each element."""


@checked
def insert(arr: ArrayLike, obj: Places, values: ArrayLike, axis: int | None = None) -> Array:
    """Return the array with values put before some positions of a dim, or of the flat array.

    Args:
        arr: the array.
        obj: a position, a slice, positions, or a mask.
        values: what is put there, in the array's dtype; broadcast to what is needed.
        axis: the dim; None for the flat array.

    Raises:
        IndexingError: if a position is out of bounds.
        ShapeError: if the values do not fit.

    >>> import meshard.numpy as mnp
    >>> mnp.insert(mnp.arange(4), [1, 3], 9).tolist()
    [0, 9, 1, 2, 9, 3]
    """
    x, dim = _along("insert", arr, axis)
    size = x.shape[dim]
    new = filling(values, x.dtype, "insert: values")
    places: Any = obj
    if is_traced(obj) and places.ndim:
        way_out = "The order of several positions is not known. Insert one by one."
        places = concrete(obj, "insert", way_out)
    later = is_traced(places)
    places = places if later else _positions("insert", places, size, size)
    if later or not places.ndim or places.size == 1:
        if not later and places.ndim and new.ndim:
            fitted = _fitted(new, x, dim, None)
        else:  # as NumPy has it: the values' first dim is that of the array
            new = reshape(new, (1,) * (x.ndim - new.ndim) + new.shape) if new.ndim < x.ndim else new
            single = not later and places.ndim == 1
            fitted = _fitted(new if single else moveaxis(new, 0, dim), x, dim, None)
        return _inserted_at(x, dim, places, fitted)
    count = places.size
    fitted = _fitted(new, x, dim, count)
    order = np.argsort(places, kind="stable")
    both = concatenate([x, fitted], axis=dim)
    at = np.zeros(size + count, np.int64)
    taken = np.zeros(size + count, bool)
    spots = places.copy()
    spots[order] += np.arange(count)
    at[spots], taken[spots] = size + np.arange(count), True
    at[~taken] = np.arange(size)
    return bind("take_positions", both, dims=((dim, (tuple(at.tolist()),)),))


def _fitted(new: Any, x: Any, dim: int, count: int | None) -> Any:
    """Return values in the shape in which they are inserted along a dim.

    Raises:
        ShapeError: if they do not broadcast to it.
    """
    own = new.shape[dim - x.ndim] if new.ndim >= x.ndim - dim else 1
    wanted = (*x.shape[:dim], own if count is None else count, *x.shape[dim + 1 :])
    try:
        return broadcast_to(new, wanted)
    except ShapeError:
        raise ShapeError(
            f"insert: values of shape {new.shape} do not fit along dim {dim} of the shape "
            f"{x.shape}; they must broadcast to {wanted}."
        ) from None


def _inserted_at(x: Any, dim: int, place: Any, new: Any) -> Any:
    """Return an array with values before one position."""
    count, size = new.shape[dim], x.shape[dim]
    if not is_traced(place):
        at = int(place.reshape(()))
        return concatenate([_part(x, dim, 0, at), new, _part(x, dim, at, None)], axis=dim)
    place = bind("where", place < 0, place + size, place)
    ends = [bind("pad_zeros", x, dims=((dim, pair),)) for pair in ((0, count), (count, 0))]
    before = reshape(bind("less", np.arange(size + count), place), (-1, *(1,) * (x.ndim - dim - 1)))
    starts = [place if d == dim else 0 for d in range(x.ndim)]
    return dynamic_update_slice(bind("where", before, *ends), new, starts)


def block(arrays: Any) -> Array:
    """Return an array that is put together from blocks in nested lists.

    Args:
        arrays: an array, or a list of what this takes; the innermost lists are joined along the
            last dim, those around them along the one before, and so on.

    Raises:
        ArgumentError: if lists are empty, or nested to different depths.
        ShapeError: if the blocks do not fit.

    >>> import meshard.numpy as mnp
    >>> mnp.block([[mnp.eye(2), mnp.zeros((2, 1))], [mnp.ones((1, 3))]]).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    """
    depth = _depth(arrays)
    rank = max(depth, *_ranks(arrays)) if depth else as_array(arrays).ndim
    return _joined(arrays, depth, rank)


def _depth(arrays: Any) -> int:
    """Return how deeply lists are nested.

    Raises:
        ArgumentError: if some are empty, or nested less deeply than others.
    """
    if isinstance(arrays, tuple):
        raise ArgumentError("block: blocks are nested in lists, not in tuples.")
    if not isinstance(arrays, list):
        return 0
    if not arrays:
        raise ArgumentError("block: a list of blocks is empty.")
    depths = [_depth(a) for a in arrays]
    if len(set(depths)) > 1:
        raise ArgumentError(
            f"block: lists are nested to different depths, {min(depths) + 1} and {max(depths) + 1}."
        )
    return depths[0] + 1


def _ranks(arrays: Any) -> list[int]:
    if isinstance(arrays, list):
        return [rank for a in arrays for rank in _ranks(a)]
    return [as_array(arrays).ndim]


def _joined(arrays: Any, depth: int, rank: int) -> Any:
    if not depth:
        x = as_array(arrays)
        return reshape(x, (1,) * (rank - x.ndim) + x.shape)
    return concatenate([_joined(a, depth - 1, rank) for a in arrays], axis=-depth)


def resize(a: ArrayLike, new_shape: int | Sequence[int]) -> Array:
    """Return an array of another shape, with the elements repeated as often as need be.

    Raises:
        ArgumentError: if a size is negative.

    >>> import meshard.numpy as mnp
    >>> mnp.resize(mnp.arange(3), (2, 2)).tolist()
    [[0, 1], [2, 0]]
    """
    x = ravel(as_array(a))
    shape = shape_of(new_shape, "resize", "new_shape")
    wanted = math.prod(shape)
    if not x.size:
        return broadcast_to(np.zeros((), x.dtype), shape)
    if wanted > x.size:
        x = tile(x, -(-wanted // x.size))
    return reshape(x[:wanted], shape)


@checked
def trim_zeros(filt: ArrayLike, trim: str = "fb", axis: Axis = None) -> Array:
    """Return the array without the zeros at the ends of dims.

    Args:
        filt: the array.
        trim: ``"f"`` at the front, ``"b"`` at the back, ``"fb"`` at both.
        axis: the dims, all by default.

    Raises:
        ConcretizationError: if the array is traced: values decide the result's shape.

    >>> import meshard.numpy as mnp
    >>> mnp.trim_zeros(mnp.asarray([0, 0, 1, 0, 2, 0])).tolist()
    [1, 0, 2]
    """
    sides = trim.lower()
    if sides not in ("f", "b", "fb", "bf"):
        raise ArgumentError(f"trim_zeros: trim must be 'f', 'b' or 'fb', got {trim!r}.")
    x = concrete(filt, "trim_zeros", "The values decide its shape.")
    filled = bind("not_equal", x, 0)
    for dim in normalised_axes(axis, x.ndim, "trim_zeros"):
        others = tuple([d for d in range(x.ndim) if d != dim])
        line = any_(filled, others) if others else filled
        size = x.shape[dim]
        if not size or not bool(any_(line)):
            first, last = 0, 0
        else:
            first, last = int(argmax(line)), size - int(argmax(line[::-1]))
        start, stop = (first if "f" in sides else 0), (last if "b" in sides else size)
        x, filled = _part(x, dim, start, stop), _part(filled, dim, start, stop)
    return x


@checked
def rollaxis(a: ArrayLike, axis: int, start: int = 0) -> Array:
    """Return the array with a dim moved to before another; see `moveaxis`.

    >>> import meshard.numpy as mnp
    >>> mnp.rollaxis(mnp.ones((3, 4, 5)), 2).shape
    (5, 3, 4)
    """
    x = as_array(a)
    (dim,) = normalised_axes(axis, x.ndim, "rollaxis")
    if not -x.ndim <= start <= x.ndim:
        raise DimError(
            f"rollaxis: start {start} is not from {-x.ndim} to {x.ndim}, the number of dims."
        )
    before = start + x.ndim if start < 0 else start
    return moveaxis(x, dim, before - 1 if dim < before else before)
