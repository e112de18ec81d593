"""Collectives over the dim of the examples: reductions, moves and new dims of what is mapped.

In: a collective that was written down for one example, and its operand, which has the dim or is the
same for all. Out: what it is for all, and whether that differs between examples. Axes that are not
the dim's own, of meshes and of vmaps around, take part by collectives over them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshard.ops.array.create import arange, zeros_like
from meshard.ops.array.shape import moveaxis, reshape
from meshard.ops.derivatives.elementwise import o
from meshard.runtime.doors import bind
from meshard.transforms.batching.rows import ROWS, spread
from meshard.transforms.body.mapped_axes import Examples, MappedAxis, are_mapped, count_of

Params = Mapping[str, Any]
Found = tuple[Any, bool]


class _Split:
    """The axes of a collective as the dim's own, and those before and after it.

    Attributes:
        rest: the others.
        before: how many positions those before it have.
        after: how many those behind it have.
    """

    def __init__(self, axes: Sequence[Any], own: MappedAxis) -> None:
        at = axes.index(own)
        self.rest = (*axes[:at], *axes[at + 1 :])
        self.before, self.after = count_of(axes[:at]), count_of(axes[at + 1 :])


def is_over(name: str, params: Params, size: int) -> bool:
    """Whether an operation is a collective over the dim, or one without operands over another."""
    if not are_mapped(params):
        return False
    own = size.axis if isinstance(size, Examples) else None
    return own is not None and own in params["axes"]


def over_examples(
    name: str, operands: Sequence[Any], flags: Sequence[bool], params: Params, size: int
) -> Found:
    """Do a collective over the dim of the examples.

    Args:
        name: the collective.
        operands: its operand, if it has one.
        flags: whether that has the dim, in front.
        params: its parameters.
        size: the number of examples, with their axis.
    """
    assert isinstance(size, Examples)
    assert size.axis is not None
    axes = _Split(params["axes"], size.axis)
    if name == "axis_index":
        return arange(int(size), dtype=np.int32), True
    return _OVER[name](name, operands[0], flags[0], params, axes, size)


def _beyond(name: str, x: Any, axes: _Split, **params: Any) -> Any:
    """Do a collective over the other axes."""
    return bind(name, x, axes=axes.rest, **params) if axes.rest else x


def _summed(x: Any, has: bool, size: int) -> Any:
    if has:
        return bind("sum", x, axis=(0,), keepdims=False, dtype=x.dtype)
    return o.multiply(x, int(size))


def _fold(name: str, x: Any, has: bool, params: Params, axes: _Split, size: Examples) -> Found:
    if name == "psum":
        found = _summed(x, has, size)
    else:
        found = bind(name[1:], x, axis=(0,), keepdims=False) if has else x
    return _beyond(name, found, axes), False


def _gather(name: str, x: Any, has: bool, params: Params, axes: _Split, size: Examples) -> Found:
    x = x if has else spread(x, size)
    dim, tiled, own = params["dim"], params["tiled"], x.shape[1:]
    if axes.rest:  # [before x after, size, ...]
        x = _beyond(name, x, axes, dim=0, tiled=False)
        x = moveaxis(reshape(x, (axes.before, axes.after, size, *own)), 2, 1)
    x = moveaxis(reshape(x, (axes.before * size * axes.after, *own)), 0, dim)
    if tiled:
        x = reshape(x, (*own[:dim], x.shape[dim] * own[dim], *own[dim + 1 :]))
    return x, False


def _apart(x: Any, dim: int, axes: _Split, size: int, tiled: bool) -> tuple[Any, bool]:
    """Return a value with its parts for the examples in front, and whether there are others.

    These are behind the dims before ``dim``.
    """
    n = x.shape[dim] // (axes.before * size * axes.after)
    parts = (axes.before, size, axes.after, *((n,) if tiled else ()))
    x = reshape(x, (*x.shape[:dim], *parts, *x.shape[dim + 1 :]))
    x = moveaxis(x, dim + 1, 0)
    shape = x.shape
    others = (axes.before * axes.after,) if axes.rest else ()
    own = shape[dim + 3 :]
    return reshape(x, (*shape[: dim + 1], *others, *own)), bool(others)


def _scatter(name: str, x: Any, has: bool, params: Params, axes: _Split, size: Examples) -> Found:
    dim, tiled = params["dim"], params["tiled"]
    x, others = _apart(_summed(x, has, size), dim, axes, size, tiled)
    if others:
        x = bind(name, x, axes=axes.rest, dim=dim + 1, tiled=False)
    return x, True


def _exchange(name: str, x: Any, has: bool, params: Params, axes: _Split, size: Examples) -> Found:
    split, concat, tiled = params["split"], params["concat"], params["tiled"]
    x = x if has else spread(x, size)  # [from, ...]
    x, others = _apart(x, split + 1, axes, size, tiled)  # [to, from, ..., others, ...]
    if others:  # [to, others, from, ...]
        x = bind(name, x, axes=axes.rest, split=split + 2, concat=1, tiled=False)
        x = reshape(x, (size, axes.before, axes.after, *x.shape[2:]))
        x = moveaxis(x, 3, 2)
        x = reshape(x, (size, axes.before * size * axes.after, *x.shape[4:]))
    x = moveaxis(x, 1, concat + 1)
    if tiled:
        shape = x.shape
        x = reshape(
            x, (*shape[: concat + 1], shape[concat + 1] * shape[concat + 2], *shape[concat + 3 :])
        )
    return x, True


def _permute(name: str, x: Any, has: bool, params: Params, axes: _Split, size: Examples) -> Found:
    sources = params["sources"]
    x = x if has else spread(x, size)
    found = bind("take_positions", x, dims=((0, (tuple([s or 0 for s in sources]),)),))
    if None not in sources:
        return found, True
    missing = np.asarray([s is None for s in sources]).reshape((-1, *[1] * (x.ndim - 1)))
    return o.where(missing, zeros_like(x), found), True


def _source(name: str, x: Any, has: bool, params: Params, axes: _Split, size: Examples) -> Found:
    first, last = divmod(params["source"], axes.after)
    first, own = divmod(first, size)
    found = x[own] if has else x
    return _beyond(name, found, axes, source=first * axes.after + last), False


_OVER: dict[str, Callable[..., Found]] = {
    **dict.fromkeys(["psum", "pmax", "pmin"], _fold),
    "all_gather": _gather,
    "psum_scatter": _scatter,
    "all_to_all": _exchange,
    "ppermute": _permute,
    "pbroadcast": _source,
}
"""What each collective is over the dim of the examples."""

assert set(_OVER) <= set(ROWS)
