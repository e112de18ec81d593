"""Positions of the elements that are not zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshard.errors import ArgumentError, ShapeError
from meshard.ops.array.samplesort import compress, regular
from meshard.ops.array.shape import ravel, reshape
from meshard.ops.checked import checked
from meshard.ops.engine.later import concrete, eagerly, is_traced
from meshard.ops.row import Dtype, Op, Operand, Params, RuleText, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike, Block

GIVE_SIZE = (
    "The result's shape depends on the values. Give size=, a Python integer, for a result of that "
    "many elements, and fill_value= for those that are missing; or work with "
    "meshard.numpy.where(mask, x, other), which keeps the shape."
)


def _first_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    return "!d -> s", {"s": params["size"]}


def _first_law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    return (np.dtype(np.int64),)


def _first(mask: Block, *, size: int) -> Block:
    found = np.full(size, -1)
    places = np.flatnonzero(mask)[:size]
    found[: len(places)] = places
    return found


register(Op("first_true", _first_rule, _first, dtypes=_first_law))


def mask_of(x: Any) -> Any:
    """Return where an array is not zero."""
    return x if x.dtype.kind == "b" else bind("not_equal", x, 0)


def first_true(mask: Any, size: int) -> Any:
    """Return the first positions where a mask of one dim is true; -1 after the last.

    Raises:
        ArgumentError: if the size is negative or traced.
    """
    if is_traced(size):
        raise ArgumentError("size must be a Python integer, but it is traced.")
    if size < 0:
        raise ArgumentError(f"size must not be negative, got {size}.")
    return bind("first_true", mask, size=int(size))


def filled(places: Any, values: Any, fill_value: Any) -> Any:
    """Return values with another where there was no place for one."""
    missing = bind("less", places, 0)
    missing = reshape(missing, missing.shape + (1,) * (values.ndim - 1))
    other = as_array(fill_value).astype(values.dtype, copy=False)
    return bind("where", missing, other, values)


def _sized(x: Any, size: int, fill_value: Any) -> tuple[Any, ...]:
    """Return a known number of positions, one array per dim."""
    places = first_true(ravel(mask_of(x)), size)
    given = fill_value if isinstance(fill_value, tuple) else (fill_value,) * x.ndim
    if len(given) != x.ndim:
        raise ShapeError(
            f"nonzero: fill_value {fill_value!r} has {len(given)} entries for {x.ndim} dims."
        )
    fills = [0 if fill is None else fill for fill in given]
    dims = _unravelled(places, x.shape)
    return tuple(filled(places, at, fill) for at, fill in zip(dims, fills, strict=True))


def _unravelled(places: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return positions in a flat array as positions in an array of a shape, one array per dim."""
    found = []
    step = 1
    for dim in reversed(range(len(shape))):
        at = places if step == 1 else bind("floor_divide", places, step)
        found.append(bind("remainder", at, max(shape[dim], 1)) if dim else at)
        step *= max(shape[dim], 1)
    return tuple(reversed(found))


@checked
def nonzero(
    a: ArrayLike, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> tuple[Array, ...]:
    """Return the positions of the elements that are not zero, one array per dim.

    The result's shape depends on the values. Each device keeps the positions of its own elements,
    and only their numbers are brought together.

    Args:
        a: the array.
        size: how many positions to return, which also traced values have: those after it are left
            out, and the rest is filled with ``fill_value``.
        fill_value: a number, or one for each dim; 0 by default.

    Raises:
        ShapeError: if the array has no dims.
        ConcretizationError: if it is traced, and no size is given.

    >>> import meshard.numpy as mnp
    >>> mnp.nonzero(mnp.asarray([0, 7, 0, 8]), size=3, fill_value=-1)[0].tolist()
    [1, 3, -1]
    """
    x = as_array(a)
    if not x.ndim:
        raise ShapeError("nonzero: an array without dims has no positions.")
    if size is not None:
        return _sized(x, size, fill_value)
    x = concrete(x, "nonzero", GIVE_SIZE)
    with eagerly():
        mask = regular(ravel(mask_of(x)))
        return _unravelled(compress(mask, bind("positions", mask))[0], x.shape)
