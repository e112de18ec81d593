"""Moving elements: arrays side by side, flipped, rolled, padded, tiled, as box maps.

Each is a `DimMap` per dim; only what crosses between devices moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import index
from typing import Any

import numpy as np

from meshard.algebra.arguments import choice_of, described
from meshard.algebra.dimmap import DimMap
from meshard.errors import ArgumentError, ShapeError
from meshard.ops.array.samplesort import known
from meshard.ops.array.shape import (
    atleast_1d,
    atleast_2d,
    broadcast_to,
    expand_dims,
    ravel,
    reshape,
)
from meshard.ops.checked import DtypeLike, checked
from meshard.ops.dims import normalised_axes
from meshard.ops.dtypes.laws import as_dtype
from meshard.ops.dtypes.promotion import common_dtype
from meshard.ops.engine.concrete import concrete, is_array, is_traced
from meshard.ops.row import MoveOp, Params, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array, as_host
from meshard.runtime.types import ArrayLike, Block


def _concatenate_maps(
    shapes: Sequence[tuple[int, ...]], params: Params
) -> list[tuple[DimMap, ...]]:
    axis = params["axis"]
    total = sum(s[axis] for s in shapes)
    maps, at = [], 0
    for shape in shapes:
        maps.append(
            tuple(
                DimMap.place(n, total, at) if d == axis else DimMap.identity(n)
                for d, n in enumerate(shape)
            )
        )
        at += shape[axis]
    return maps


def _one_dim(make: Any) -> Any:
    """Return the maps of an operation that maps some dims of one operand."""

    def maps(shapes: Sequence[tuple[int, ...]], params: Params) -> list[tuple[DimMap, ...]]:
        arguments = dict(params["dims"])
        return [
            tuple(
                make(n, *arguments[d]) if d in arguments else DimMap.identity(n)
                for d, n in enumerate(shapes[0])
            )
        ]

    return maps


register(MoveOp("concatenate", _concatenate_maps))
register(MoveOp("flip", _one_dim(DimMap.flip)))
register(MoveOp("roll", _one_dim(DimMap.roll)))
register(MoveOp("pad_zeros", _one_dim(DimMap.pad)))
register(MoveOp("tile", _one_dim(DimMap.tile)))
register(MoveOp("take_positions", _one_dim(lambda n, positions: DimMap.take(n, positions))))


_ONE_SEQUENCE = "All arrays are one argument, a sequence: {0}([a, b])."


@checked(axis=_ONE_SEQUENCE.format("concatenate"), arrays=_ONE_SEQUENCE.format("concatenate"))
def concatenate(
    arrays: Sequence[ArrayLike], /, axis: int | None = 0, *, dtype: DtypeLike = None
) -> Array:
    """Return arrays joined along an existing dim.

    Args:
        arrays: the arrays; their sizes may differ along the dim only.
        axis: the dim; None joins the flat arrays.
        dtype: the result's dtype; by default the one that the arrays' dtypes are promoted to.

    Raises:
        ShapeError: if there are no arrays, or their other dims differ.

    >>> import meshard.numpy as mnp
    >>> mnp.concatenate([mnp.zeros((1, 2)), mnp.ones((2, 2))]).shape
    (3, 2)
    """
    values = [as_array(a) for a in arrays]
    if not values:
        raise ShapeError("concatenate: needs at least one array.")
    if axis is None:
        values, axis = [ravel(x) for x in values], 0
    (dim,) = normalised_axes(axis, values[0].ndim, "concatenate")
    first = values[0].shape
    for number, x in enumerate(values):
        if x.ndim != len(first) or any(
            a != b for d, (a, b) in enumerate(zip(x.shape, first, strict=True)) if d != dim
        ):
            raise ShapeError(
                f"concatenate: array {number} has shape {x.shape}, array 0 {first}; they may "
                f"differ along dim {dim} only."
            )
    wanted = (
        common_dtype("concatenate", [x.dtype for x in values]) if dtype is None else as_dtype(dtype)
    )
    alike = [x if x.dtype == wanted else x.astype(wanted) for x in values]
    return bind("concatenate", *alike, axis=dim)


concat = concatenate


@checked(axis=_ONE_SEQUENCE.format("stack"), arrays=_ONE_SEQUENCE.format("stack"))
def stack(arrays: Sequence[ArrayLike], /, axis: int = 0) -> Array:
    """Return arrays of one shape joined along a new dim.

    Args:
        arrays: the arrays.
        axis: where the new dim goes in the result.

    Raises:
        ShapeError: if there are no arrays, or their shapes differ.

    >>> import meshard, meshard.numpy as mnp
    >>> mesh = meshard.make_mesh((2,), ("i",))
    >>> split = meshard.NamedSharding(mesh, meshard.P("i"))
    >>> rows = [mnp.zeros(4, device=split), mnp.ones(4, device=split)]
    >>> mnp.stack(rows).shape, mnp.stack(rows).sharding.spec
    ((2, 4), P(None, 'i'))
    """
    values = [as_array(a) for a in arrays]
    if not values:
        raise ShapeError("stack: needs at least one array.")
    for number, x in enumerate(values):
        if x.shape != values[0].shape:
            raise ShapeError(
                f"stack: array {number} has shape {x.shape}, array 0 {values[0].shape}."
            )
    (dim,) = normalised_axes(axis, values[0].ndim + 1, "stack")
    return concatenate([expand_dims(x, dim) for x in values], axis=dim)


@checked
def hstack(arrays: Sequence[ArrayLike]) -> Array:
    """Return arrays joined along the second dim, or the first of one-dim arrays.

    >>> import meshard.numpy as mnp
    >>> mnp.hstack([mnp.arange(2), mnp.arange(3)]).tolist()
    [0, 1, 0, 1, 2]
    """
    values = [atleast_1d(a) for a in arrays]
    return concatenate(values, axis=0 if values and values[0].ndim == 1 else 1)


@checked
def vstack(arrays: Sequence[ArrayLike]) -> Array:
    """Return arrays joined along the first dim, one-dim arrays as rows.

    >>> import meshard.numpy as mnp
    >>> mnp.vstack([mnp.arange(2), mnp.arange(2, 4)]).tolist()
    [[0, 1], [2, 3]]
    """
    return concatenate([atleast_2d(a) for a in arrays], axis=0)


@checked
def unstack(x: ArrayLike, /, *, axis: int = 0) -> tuple[Array, ...]:
    """Return the parts along a dim, without it.

    >>> import meshard.numpy as mnp
    >>> [row.tolist() for row in mnp.unstack(mnp.asarray([[1, 2], [3, 4]]))]
    [[1, 2], [3, 4]]
    """
    value = as_array(x)
    (dim,) = normalised_axes(axis, value.ndim, "unstack")
    head = (slice(None),) * dim
    return tuple(value[(*head, i)] for i in range(value.shape[dim]))


@checked
def split(a: ArrayLike, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Array]:
    """Return the parts of the array along a dim.

    Args:
        a: the array.
        indices_or_sections: the number of equal parts, or the positions where they are cut.
        axis: the dim.

    Raises:
        ShapeError: if a number of sections does not divide the dim.

    >>> import meshard.numpy as mnp
    >>> [part.tolist() for part in mnp.split(mnp.arange(5), [2])]
    [[0, 1], [2, 3, 4]]
    """
    x = as_array(a)
    (dim,) = normalised_axes(axis, x.ndim, "split")
    size = x.shape[dim]
    if isinstance(indices_or_sections, (int, np.integer)):
        n = int(indices_or_sections)
        if n < 1 or size % n:
            raise ShapeError(
                f"split: dim {dim} of size {size} cannot be split into {n} equal parts. "
                "Parts that are almost equal come from array_split."
            )
        cuts = [size // n * i for i in range(n + 1)]
    else:
        cuts = [0, *[int(i) for i in indices_or_sections], size]
    head = (slice(None),) * dim
    return [x[(*head, slice(a, b))] for a, b in pairwise(cuts)]


@checked
def flip(m: ArrayLike, axis: int | Sequence[int] | None = None) -> Array:
    """Return the array with some dims reversed, all by default.

    >>> import meshard.numpy as mnp
    >>> mnp.flip(mnp.asarray([[1, 2], [3, 4]]), axis=1).tolist()
    [[2, 1], [4, 3]]
    """
    x = as_array(m)
    dims = normalised_axes(axis, x.ndim, "flip")
    return bind("flip", x, dims=tuple((d, ()) for d in dims)) if dims else x.copy()


@checked
def roll(
    a: ArrayLike, shift: int | Sequence[int], axis: int | Sequence[int] | None = None
) -> Array:
    """Return the array with its elements moved along dims, those that fall out coming back in.

    Args:
        a: the array.
        shift: by how many positions; a number, or one for each of ``axis``.
        axis: the dim or dims, of which one may be named several times; None for the flat array.

    Raises:
        ArgumentError: if a dim does not exist, or the numbers of shifts and of dims differ.

    >>> import meshard.numpy as mnp
    >>> mnp.roll(mnp.arange(4), 1).tolist()
    [3, 0, 1, 2]
    """
    x = as_array(a)
    if axis is None:
        return reshape(roll(ravel(x), shift, 0), x.shape)
    if any(map(is_traced, shift if isinstance(shift, (list, tuple)) else [shift])):
        return _rolled(x, shift, axis)
    try:
        steps = np.asarray(known(shift) if is_array(shift) else shift)
        shifts, axes = np.broadcast_arrays(steps, np.asarray(axis, np.int64))
    except ValueError:
        raise ArgumentError(
            f"roll: shift {shift} and axis {axis} have different lengths."
        ) from None
    if shifts.size and (shifts.ndim > 1 or shifts.dtype.kind not in "biu"):
        raise ArgumentError(f"roll: shift {shift!r} is neither an integer nor a tuple of integers.")
    moves: dict[int, int] = {}
    for d, s in zip(axes.reshape(-1).tolist(), shifts.reshape(-1).tolist(), strict=True):
        (dim,) = normalised_axes(d, x.ndim, "roll")
        moves[dim] = moves.get(dim, 0) + int(s)
    return bind("roll", x, dims=tuple((d, (s,)) for d, s in sorted(moves.items())))


def _rolled(x: Any, shift: Any, axis: Any) -> Any:
    """Return the array rolled by traced shifts: each element looked up at its new place."""
    dims = [axis] if hasattr(axis, "__index__") else list(axis)
    if is_traced(shift):
        shifts = [shift] if not shift.ndim else [shift[i] for i in range(shift.shape[0])]
    else:
        shifts = list(shift) if isinstance(shift, (list, tuple)) else [shift]
    if len(shifts) == 1:
        shifts *= len(dims)
    elif len(dims) == 1:
        dims *= len(shifts)
    if len(shifts) != len(dims):
        raise ArgumentError(f"roll: {len(shifts)} shifts for {len(dims)} axes.")
    for s, d in zip(shifts, dims, strict=True):
        (dim,) = normalised_axes(d, x.ndim, "roll")
        if x.shape[dim]:
            places = bind("subtract", np.arange(x.shape[dim]), s)
            places = bind("remainder", places, x.shape[dim])
            x = bind("gather", x, places, dims=(dim,), at=dim)
    return x


_PAD_MODES = ("edge", "wrap", "reflect", "symmetric")


@checked
def pad(
    array: ArrayLike, pad_width: Any, mode: str = "constant", *, constant_values: Any = 0
) -> Array:
    """Return the array with elements added at the ends of its dims.

    Args:
        array: the array.
        pad_width: a number, a pair for all dims, or a pair per dim.
        mode: ``"constant"``, ``"empty"`` (zeros), ``"edge"``, ``"wrap"``, ``"reflect"`` or
            ``"symmetric"``.
        constant_values: the value of the added elements in mode ``"constant"``; like
            ``pad_width`` a number, a pair or a pair per dim; in corners, the later dim decides.

    Raises:
        ArgumentError: if the widths do not fit the dims, or the mode is unknown.

    >>> import meshard.numpy as mnp
    >>> mnp.pad(mnp.arange(3), (1, 2), mode="edge").tolist()
    [0, 0, 1, 2, 2, 2]
    """
    x = as_array(array)
    added = _added(pad_width, x.ndim)
    if choice_of(mode, ("constant", "empty", *_PAD_MODES), "pad", "mode") in _PAD_MODES:
        return _padded_with_own(x, added, mode)
    values = _border(constant_values, x)
    result = bind("pad_zeros", x, dims=tuple(added.items())) if added else x.copy()
    if mode == "empty" or not (is_traced(values) or values.any()):
        return result
    for d, (low, _) in added.items():
        # Broadcast along the dims behind: of shape (size, 1, ...).
        at = np.arange(result.shape[d]).reshape((-1, *(1,) * (x.ndim - d - 1)))
        border = values if is_traced(values) else np.where(at < low, *values[d]).astype(x.dtype)
        result = bind("where", (at < low) | (at >= low + x.shape[d]), border, result)
    return result


def _added(pad_width: Any, ndim: int) -> dict[int, tuple[int, int]]:
    """Return for each dim that is padded how many elements come before and after."""
    if is_traced(pad_width):
        way_out = "The result's shape depends on pad_width. Give Python integers."
        pad_width = np.asarray(concrete(pad_width, "pad", way_out))
    widths = _per_side("pad_width", pad_width, ndim)
    if widths.size and widths.dtype.kind not in "iu":
        raise ArgumentError(f"pad: pad_width must be integers, got {described(pad_width)}.")
    if (widths < 0).any():
        raise ArgumentError(f"pad: pad_width must not be negative, got {described(pad_width)}.")
    return {d: (low, high) for d, (low, high) in enumerate(widths.tolist()) if low or high}


def _padded_with_own(x: Any, added: Mapping[int, tuple[int, int]], mode: str) -> Any:
    """Return the array padded with elements of its own: NumPy pads the positions along each dim."""
    for d in added:
        if not x.shape[d]:
            raise ArgumentError(f"pad: dim {d} has no elements that mode {mode!r} could use.")
    positions = {
        d: np.pad(np.arange(x.shape[d]), pair, mode=mode)  # type: ignore[call-overload]
        for d, pair in added.items()
    }
    dims = tuple((d, (tuple(p.tolist()),)) for d, p in positions.items())
    return bind("take_positions", x, dims=dims) if dims else x.copy()


def _border(constant_values: Any, x: Any) -> Any:
    """Return what an array is padded with: a traced number, or a pair of values for each dim."""
    if is_traced(constant_values) and not constant_values.ndim:
        return constant_values.astype(x.dtype, copy=False)
    if is_traced(constant_values):
        way_out = "A traced constant_values must be one number. Give one, or pad side by side."
        constant_values = np.asarray(concrete(constant_values, "pad", way_out))
    filler = as_host(constant_values, "pad: constant_values")
    return _per_side("constant_values", filler, x.ndim).astype(x.dtype)


def _per_side(name: str, given: Any, ndim: int) -> Block:
    """Return an argument of `pad` as an array of shape ``(ndim, 2)``."""
    try:
        return np.broadcast_to(as_host(given, f"pad: {name}"), (ndim, 2))
    except ValueError:
        raise ArgumentError(
            f"pad: {name} must be a number, a pair, or a pair for each of the {ndim} dims, got "
            f"{described(given)}."
        ) from None


def _repeated(x: Any, repeats: Any, dim: int, length: int) -> Any:
    """Return elements repeated along a dim to a length that is known."""
    size = x.shape[dim]
    counts = as_array(repeats)
    if counts.ndim > 1 or counts.size not in (1, size) or not size:
        raise ArgumentError(
            f"repeat: dim {dim} has {size} positions, and repeats has shape {counts.shape}."
        )
    ends = broadcast_to(ravel(counts).astype(np.int64, copy=False), (size,))
    ends = bind("scan", ends, dim=0, how="add", dtype=np.dtype(np.int64), whole=True)
    places = bind("searchsorted", ends, np.arange(length), side="right")
    places = bind("minimum", places, size - 1)
    return bind("gather", x, places, dims=(dim,), at=dim)


def tile(A: ArrayLike, reps: Any) -> Array:
    """Return the array repeated as a whole along dims.

    Args:
        A: the array.
        reps: how often along each dim, the last dim last; a number for the last dim alone.

    Raises:
        ArgumentError: if a number of repetitions is negative.

    >>> import meshard.numpy as mnp
    >>> mnp.tile(mnp.asarray([1, 2]), 2).tolist()
    [1, 2, 1, 2]
    """
    x = as_array(A)
    counts = _counts("tile", "reps", reps)
    rank = max(x.ndim, len(counts))
    x = reshape(x, (1,) * (rank - x.ndim) + x.shape)
    counts = [1] * (rank - len(counts)) + counts
    return bind("tile", x, dims=tuple((d, (n,)) for d, n in enumerate(counts) if n != 1))


def _counts(what: str, name: str, given: Any) -> list[int]:
    counts = known(given) if is_array(given) else as_host(given, f"{what}: {name}")
    if counts.size and (counts.dtype.kind not in "biu" or counts.ndim > 1):
        raise ArgumentError(
            f"{what}: {name} must be an integer or a list of integers, got {described(given)}."
        )
    if (counts < 0).any():
        raise ArgumentError(f"{what}: {name} must not be negative, got {described(given)}.")
    return [int(n) for n in counts.reshape(-1).tolist()]


@checked
def repeat(
    a: ArrayLike,
    repeats: ArrayLike | Sequence[int],
    axis: int | None = None,
    *,
    total_repeat_length: int | None = None,
) -> Array:
    """Return the array with each element repeated along a dim, or in the flat array.

    Args:
        a: the array.
        repeats: how often; a number, or one for each position of the dim.
        axis: the dim.
        total_repeat_length: the size of the result's dim, which must be known if the numbers are
            traced: elements beyond it are left out, missing ones repeat the last element.

    Raises:
        ArgumentError: if a number is negative, or their number is not that of the positions.
        ConcretizationError: if the numbers are traced, and no length is given.

    >>> import meshard.numpy as mnp
    >>> mnp.repeat(mnp.asarray([1, 2]), 2).tolist()
    [1, 1, 2, 2]
    """
    x = as_array(a)
    if axis is None:
        x, axis = ravel(x), 0
    (dim,) = normalised_axes(axis, x.ndim, "repeat")
    if total_repeat_length is not None:
        return _repeated(x, repeats, dim, index(total_repeat_length))
    if is_traced(repeats):
        way_out = "The result's shape depends on repeats. Give total_repeat_length=, an integer."
        repeats = np.asarray(concrete(repeats, "repeat", way_out))
    size, counts = x.shape[dim], _counts("repeat", "repeats", repeats)
    if len(counts) == 1:
        spread = (*x.shape[: dim + 1], counts[0], *x.shape[dim + 1 :])
        merged = (*x.shape[:dim], size * counts[0], *x.shape[dim + 1 :])
        return reshape(broadcast_to(expand_dims(x, dim + 1), spread), merged)
    if len(counts) != size:
        raise ArgumentError(
            f"repeat: dim {dim} has {size} positions, and repeats gives {len(counts)} numbers."
        )
    positions = tuple(np.repeat(np.arange(size), counts).tolist())
    return bind("take_positions", x, dims=((dim, (positions,)),))
