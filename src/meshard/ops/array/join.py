"""Moving elements: arrays side by side, flipped, rolled, padded, tiled, as box maps.

Each is a `DimMap` per dim; only what crosses between devices moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import numpy as np

from meshard.algebra.arguments import choice_of, described
from meshard.algebra.dimmap import DimMap
from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import ArgumentError, DtypeError, ShapeError
from meshard.ops.array.samplesort import known
from meshard.ops.array.shape import (
    atleast_1d,
    atleast_2d,
    broadcast_to,
    expand_dims,
    ravel,
    reshape,
)
from meshard.ops.checked import DtypeLike, checked, normalised_axes
from meshard.ops.dtypes.laws import EXTENDED, as_dtype, common_dtype, weak_kind
from meshard.ops.engine.later import Advised, is_array, is_traced, relaid, when_laid_out
from meshard.ops.row import Dtype, MoveOp, Params, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array, as_host
from meshard.runtime.types import ArrayLike
from meshard.runtime.world import here


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
    arrays: Sequence[ArrayLike],
    /,
    axis: int | None = 0,
    out: None = None,
    *,
    dtype: DtypeLike = None,
    casting: str = "same_kind",
) -> Array:
    """Return arrays joined along an existing dim.

    Args:
        arrays: the arrays; their sizes may differ along the dim only.
        axis: the dim; None joins the flat arrays.
        out: None; arrays are immutable.
        dtype: the result's dtype; by default the one that the arrays' dtypes are promoted to.
        casting: which conversions to ``dtype`` are allowed, as in NumPy.

    Raises:
        ShapeError: if there are no arrays, or their other dims differ.
        DtypeError: if a conversion is not allowed.

    >>> import meshard.numpy as mnp
    >>> mnp.concatenate([mnp.zeros((1, 2)), mnp.ones((2, 2))]).shape
    (3, 2)
    """
    values = [as_array(a) for a in arrays]
    if not values:
        raise ShapeError("concatenate: needs at least one array.")
    kinds: list[Any] = [x.dtype for x in values]
    if axis is None:  # then Python's numbers take the others' dtype, as NumPy has it
        kinds = [weak_kind(a) or x.dtype for a, x in zip(arrays, values, strict=True)]
        values, axis = [ravel(x) for x in values], 0
    (dim,) = normalised_axes(axis, values[0].ndim, "concatenate")
    _check_sizes([x.shape for x in values], dim)
    common = common_dtype("concatenate", kinds)
    wanted = common if dtype is None else _cast_to(common, as_dtype(dtype), casting)
    alike = [x if x.dtype == wanted else x.astype(wanted) for x in values]
    return bind("concatenate", *alike, axis=dim)


concat = concatenate


def _check_sizes(shapes: Sequence[tuple[int, ...]], dim: int) -> None:
    """Refuse shapes that differ elsewhere than along the dim to be joined."""
    first = shapes[0]
    for number, shape in enumerate(shapes):
        if len(shape) != len(first) or any(
            a != b for d, (a, b) in enumerate(zip(shape, first, strict=True)) if d != dim
        ):
            raise ShapeError(
                f"concatenate: array {number} has shape {shape}, array 0 {first}; they may "
                f"differ along dim {dim} only."
            )


def _cast_to(own: Dtype, wanted: Dtype, casting: str) -> Dtype:
    """Return the dtype that was asked for, if the rule for conversions allows it.

    Raises:
        DtypeError: if it does not.
    """
    choice_of(casting, _CASTINGS, "concatenate", "casting")
    if not {own, wanted} & EXTENDED and not np.can_cast(own, wanted, casting):  # type: ignore[arg-type]
        raise DtypeError(
            f"concatenate: arrays of dtype {own} are not converted to {wanted} with "
            f"casting={casting!r}; casting='unsafe' converts any numbers."
        )
    return wanted


_CASTINGS = ("no", "equiv", "safe", "same_kind", "unsafe")


@checked(axis=_ONE_SEQUENCE.format("stack"), arrays=_ONE_SEQUENCE.format("stack"))
def stack(
    arrays: Sequence[ArrayLike],
    axis: int = 0,
    out: None = None,
    *,
    dtype: DtypeLike = None,
    casting: str = "same_kind",
) -> Array:
    """Return arrays of one shape joined along a new dim.

    Args:
        arrays: the arrays.
        axis: where the new dim goes in the result.
        out: None; arrays are immutable.
        dtype: the result's dtype; by default that of all arrays together.
        casting: which conversions to ``dtype`` are allowed, as in NumPy.

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
    parts = [expand_dims(x, dim) for x in values]
    return concatenate(parts, axis=dim, dtype=dtype, casting=casting)


@checked
def hstack(
    tup: Sequence[ArrayLike], *, dtype: DtypeLike = None, casting: str = "same_kind"
) -> Array:
    """Return arrays joined along the second dim, or the first of one-dim arrays.

    ``dtype`` and ``casting`` mean what they do to `stack`.

    >>> import meshard.numpy as mnp
    >>> mnp.hstack([mnp.arange(2), mnp.arange(3)]).tolist()
    [0, 1, 0, 1, 2]
    """
    values = [atleast_1d(a) for a in tup]
    dim = 0 if values and values[0].ndim == 1 else 1
    return concatenate(values, axis=dim, dtype=dtype, casting=casting)


@checked
def vstack(
    tup: Sequence[ArrayLike], *, dtype: DtypeLike = None, casting: str = "same_kind"
) -> Array:
    """Return arrays joined along the first dim, one-dim arrays as rows.

    ``dtype`` and ``casting`` mean what they do to `stack`.

    >>> import meshard.numpy as mnp
    >>> mnp.vstack([mnp.arange(2), mnp.arange(2, 4)]).tolist()
    [[0, 1], [2, 3]]
    """
    return concatenate([atleast_2d(a) for a in tup], axis=0, dtype=dtype, casting=casting)


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
def split(ary: ArrayLike, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Array]:
    """Return the parts of the array along a dim.

    Args:
        ary: the array.
        indices_or_sections: the number of equal parts, or the positions where they are cut.
        axis: the dim.

    Raises:
        ShapeError: if a number of sections does not divide the dim.

    >>> import meshard.numpy as mnp
    >>> [part.tolist() for part in mnp.split(mnp.arange(5), [2])]
    [[0, 1], [2, 3, 4]]
    """
    x = as_array(ary)
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
    if max(counts, default=1) <= _FEW_TILES:
        return bind("tile", x, dims=tuple((d, (n,)) for d, n in enumerate(counts) if n != 1))
    return when_laid_out("tile", _Tiled(tuple(counts)), x)


_FEW_TILES = 16
"""Repetitions up to which each is a box of its own; more are one broadcast array."""


@final
@dataclass(frozen=True)
class _Tiled(Advised):
    """An array repeated many times: whole on each device, which has some of the repetitions."""

    counts: tuple[int, ...]

    def __call__(self, *operands: Any) -> Any:
        """Return the array."""
        (x,), counts = operands, self.counts
        kind, shape = x.aval, tuple([n * m for n, m in zip(counts, x.shape, strict=True)])
        x, split = _whole_tiles(x, counts)
        wide = tuple([n for pair in zip(counts, x.shape, strict=True) for n in pair])
        apart = reshape(x, tuple([n for m in x.shape for n in (1, m)]))
        found = broadcast_to(apart, wide)
        if split:
            spec = [axes for pair in split for axes in pair]
            sharding = NamedSharding(
                kind.sharding.mesh,
                PartitionSpec(*spec),
                memory_kind=kind.sharding.memory_kind,
                uneven="balanced",
            )
            target = here().type_of(wide, kind.dtype, sharding, found.aval.committed)
            found = relaid(found, target, "tile")
        return reshape(found, shape)


def _whole_tiles(x: Any, counts: Sequence[int]) -> tuple[Any, list[tuple[Any, Any]]]:
    """Return an array whose repeated dims are whole, and by which axes to split repetitions.

    Returns:
        The array, and for each dim the axes of its repetitions and its own; empty if no repeated
        dim was split.
    """
    kind, own = x.aval, x.aval.sharding
    if not isinstance(own, NamedSharding):
        return x, []
    axes = own.spec.axes(kind.ndim)
    moved = [n > 1 and len(c) > 2 for n, c in zip(counts, kind.layout.cuts, strict=True)]
    if not any(moved):
        return x, []
    spec = PartitionSpec(*[() if m else a for m, a in zip(moved, axes, strict=True)])
    uneven: Any = own.uneven
    if isinstance(uneven, tuple):
        cuts = [*uneven, *[None] * (kind.ndim - len(uneven))]
        uneven = tuple([None if m else c for m, c in zip(moved, cuts, strict=True)])
    whole = NamedSharding(own.mesh, spec, memory_kind=own.memory_kind, uneven=uneven)
    found = relaid(x, here().type_of(kind.shape, kind.dtype, whole, kind.committed), "tile")
    return found, [(a, ()) if m else ((), a) for m, a in zip(moved, axes, strict=True)]


def _counts(what: str, name: str, given: Any) -> list[int]:
    counts = known(given) if is_array(given) else as_host(given, f"{what}: {name}")
    if counts.size and (counts.dtype.kind not in "biu" or counts.ndim > 1):
        raise ArgumentError(
            f"{what}: {name} must be an integer or a list of integers, got {described(given)}."
        )
    if (counts < 0).any():
        raise ArgumentError(f"{what}: {name} must not be negative, got {described(given)}.")
    return [int(n) for n in counts.reshape(-1).tolist()]


def each_repeated(x: Any, dim: int, count: int) -> Any:
    """Return an array with each element repeated along a dim as often as the others."""
    spread = (*x.shape[: dim + 1], count, *x.shape[dim + 1 :])
    merged = (*x.shape[:dim], x.shape[dim] * count, *x.shape[dim + 1 :])
    return reshape(broadcast_to(expand_dims(x, dim + 1), spread), merged)
