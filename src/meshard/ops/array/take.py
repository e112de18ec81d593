"""Elements at positions along a dim: each device gets those that it lacks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshard.algebra.arguments import choice_of
from meshard.errors import IndexingError, ShapeError
from meshard.ops.array.index import positions, whole_numbers
from meshard.ops.array.shape import reshape
from meshard.ops.checked import checked, normalised_axes
from meshard.ops.dtypes.laws import is_whole, kind_of, limits_of, same_dtype
from meshard.ops.engine.later import concrete, is_traced
from meshard.ops.row import Bounds, Op, Operand, Params, Positions, RuleText, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import KEY, ArrayLike, Block


def gap(dtype: Any, fill_value: Any) -> Any:
    """Return what is put where a position is out of bounds.

    That is NaN, the least signed or the greatest unsigned integer, or True.
    """
    if fill_value is not None:
        return as_array(fill_value).astype(dtype, copy=False)
    if is_whole(dtype):
        return np.asarray(True if dtype.kind == "b" else _farthest(dtype), dtype)
    if dtype == KEY:
        return np.full((2,), 0xFFFFFFFF, np.uint32).view(KEY).reshape(())
    return np.asarray(np.nan, dtype)


def _farthest(dtype: Any) -> int:
    limits = limits_of(dtype)
    return limits.greatest if kind_of(dtype) == "u" else limits.least


def _with_gaps(found: Any, places: Any, size: int, shape: tuple[int, ...], fill: Any) -> Any:
    """Put a value where positions are outside."""
    outside = bind("logical_or", bind("less", places, 0), bind("greater_equal", places, size))
    return bind("where", reshape(outside, shape), gap(found.dtype, fill), found)


@checked
def take(
    a: ArrayLike,
    indices: ArrayLike | Sequence[int],
    axis: int | None = None,
    out: None = None,
    mode: str | None = None,
    *,
    fill_value: ArrayLike | None = None,
) -> Array:
    """Return the elements at positions along a dim, or in the flat array.

    Args:
        a: the array; where the dim is split, each device gets the elements that it lacks.
        indices: integers of any shape.
        axis: the dim.
        out: None; arrays are immutable.
        mode: None refuses positions out of bounds; ``"clip"`` and ``"wrap"`` bring them inside,
            ``"fill"`` gives ``fill_value`` for them. Traced positions cannot be checked in time:
            with None they are filled, as in JAX.
        fill_value: by default NaN; for integers the least one, or the greatest unsigned one.

    Raises:
        IndexingError: if a position is out of bounds.

    >>> import meshard.numpy as mnp
    >>> mnp.take(mnp.arange(5) * 10, mnp.asarray([4, 0])).tolist()
    [40, 0]
    """
    x = as_array(a)
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    (dim,) = normalised_axes(axis, x.ndim, "take")
    size = x.shape[dim]
    if mode is not None:
        choice_of(mode, ("raise", "clip", "wrap", "fill"), "take", "mode")
    places = whole_numbers(indices, "take")
    if mode in ("clip", "wrap"):
        places = bind("astype", as_array(places), dtype=np.dtype(np.int64))
    if places.size and not size:
        raise IndexingError(f"take: dim {dim} has no elements, but {places.size} were requested.")
    if mode == "raise" and is_traced(places):
        way_out = (
            "mode='raise' checks that the positions are in bounds. Give mode='clip', "
            "'wrap' or 'fill'."
        )
        places = concrete(places, "take", way_out)
    if mode == "fill" or (mode is None and is_traced(places)):
        places = bind("positions_within", as_array(places), size=size, clamp=False)
        found = bind("gather", x, places, dims=(dim,), at=dim)
        shape = (*places.shape, *(1,) * (x.ndim - dim - 1))
        return _with_gaps(found, places, size, shape, fill_value)
    if mode == "clip":
        places = bind("minimum", bind("maximum", places, 0), max(size - 1, 0))
    elif mode == "wrap":
        places = bind("remainder", places, max(size, 1))
    else:
        places = positions(places, size, dim)
    return bind("gather", x, places, dims=(dim,), at=dim)


def _along_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    names = [f"d{i}" for i in range(len(operands[0][0]))]
    source, places = list(names), list(names)
    source[params["dim"]], places[params["dim"]] = "x", "n"
    return f"{' '.join(source)}, {' '.join(places)} -> {' '.join(places)}"


def _along_cell(params: Params, bounds: Bounds, shape: tuple[int, ...]) -> Params:
    return {**params, "start": bounds["x"][0]}


_AT_ONCE = 1 << 15
"""Positions looked up at once, so that their numbers stay in the cache."""


def _along(x: Block, places: Block, *, dim: int, start: int = 0) -> Block:
    """Look up the positions that the block holds; the others give zeros."""
    shape = np.broadcast_shapes(
        *[tuple(1 if d == dim else m for d, m in enumerate(b.shape)) for b in (x, places)]
    )
    wide = tuple([places.shape[dim] if d == dim else m for d, m in enumerate(shape)])
    if not x.shape[dim]:
        return np.zeros(wide, x.dtype)
    found = np.empty(wide, x.dtype)
    _look_up(x, np.broadcast_to(places, wide), (dim, start), found)
    return found


def _look_up(x: Block, places: Block, along: tuple[int, int], found: Block) -> None:
    """Fill in what is at positions along a dim, which are counted from a start, part by part."""
    (dim, start), shape = along, places.shape
    flat = x.reshape(-1)
    steps = [math.prod(x.shape[d + 1 :]) if n > 1 else 0 for d, n in enumerate(x.shape)]
    cut = next((d for d in range(len(shape)) if math.prod(shape[d + 1 :]) <= _AT_ONCE), 0)
    width = max(1, _AT_ONCE // max(1, math.prod(shape[cut + 1 :])))
    others = [0 if d == dim else step for d, step in enumerate(steps)]
    line = np.arange(min(width, shape[cut])).reshape(-1, *[1] * (len(shape) - cut - 1))
    rest = _offsets(shape[cut + 1 :], others[cut + 1 :]) + line * others[cut]
    numbers = np.empty((len(line), *shape[cut + 1 :]), np.int64)
    for outer in np.ndindex(shape[:cut]):
        before = sum(i * step for i, step in zip(outer, others, strict=False))
        for first in range(0, shape[cut], width):
            own = (*outer, slice(first, first + width))
            local = places[own] - start if start else places[own]
            local, lost = _held(local.astype(np.int64, copy=False), x.shape[dim])
            at = np.multiply(local, steps[dim], out=numbers[: len(local)])
            at += rest[: len(local)]
            at += before + first * others[cut]
            flat.take(at, out=found[own], mode="clip")
            if lost is not None:
                found[own][lost] = 0


def _held(local: Block, size: int) -> tuple[Block, Block | None]:
    """Return positions, those outside replaced by 0, and which these are; None if none are."""
    # Below zero a position is, without its sign, beyond all sizes.
    signless = local.view(np.uint64)
    if not signless.size or signless.max() < size:
        return local, None
    lost = signless >= size
    return np.where(lost, 0, local), lost


def _offsets(shape: Sequence[int], steps: Sequence[int]) -> Block:
    """Return the sums of places times steps along dims, with one more dim in front."""
    found: Block = np.zeros((1,) * (len(shape) + 1), np.int64)
    for d, (n, step) in enumerate(zip(shape, steps, strict=True)):
        if step:
            found = found + np.arange(n).reshape(-1, *[1] * (len(shape) - d - 1)) * step
    return found


register(
    Op(
        "take_along_axis",
        _along_rule,
        _along,
        dtypes=same_dtype,
        local=_along_cell,
        positions=Positions(lambda params: (params["dim"],), along=True),
    )
)


@checked
def take_along_axis(
    arr: ArrayLike,
    indices: ArrayLike | Sequence[int],
    axis: int | None = -1,
    mode: str | None = None,
    fill_value: ArrayLike | None = None,
) -> Array:
    """Return for each position of ``indices`` the element at it along one dim.

    Args:
        arr: the array.
        indices: integers; the other dims broadcast against those of the array.
        axis: the dim; None for the flat array.
        mode: as of `take`; ``"clip"`` and ``"fill"`` are known.
        fill_value: as of `take`.

    Raises:
        IndexingError: if a position is out of bounds.
        ArgumentError: if the mode is unknown.
        ShapeError: if the ranks differ, or the other dims do not broadcast.

    >>> import meshard.numpy as mnp
    >>> mnp.take_along_axis(mnp.asarray([[10, 30, 20]]), mnp.asarray([[2, 0]]), 1).tolist()
    [[20, 10]]
    """
    x = as_array(arr)
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    (dim,) = normalised_axes(axis, x.ndim, "take_along_axis")
    places = whole_numbers(indices, "take_along_axis")
    if places.ndim != x.ndim:
        raise ShapeError(
            f"take_along_axis: indices of shape {places.shape} for an array of shape {x.shape}; "
            "they must have the same number of dims."
        )
    size = x.shape[dim]
    if mode is not None:
        choice_of(mode, ("clip", "fill"), "take_along_axis", "mode")
    if mode is None and not is_traced(places):
        return bind("take_along_axis", x, positions(places, size, dim), dim=dim)
    places = bind("positions_within", as_array(places), size=size, clamp=mode == "clip")
    found = bind("take_along_axis", x, places, dim=dim)
    return found if mode == "clip" else _with_gaps(found, places, size, places.shape, fill_value)
