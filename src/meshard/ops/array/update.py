"""Updated copies: ``x.at[index].set(value)`` and the like.

A basic index lays the new values over the array piece by piece; pieces that it does not touch stay
the blocks they are. An index with arrays changes, in each piece, the positions that it holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from meshard.algebra.arguments import choice_of, described
from meshard.algebra.dimmap import DimMap
from meshard.errors import (
    ArgumentError,
    DtypeError,
    IndexingError,
    ShapeError,
    did_you_mean,
)
from meshard.ops.array.create import full_like
from meshard.ops.array.index import IndexParts, getitem, sizes_of, taken_apart
from meshard.ops.array.shape import broadcast_to, reshape, transpose
from meshard.ops.array.take import gap
from meshard.ops.dtypes.laws import is_whole, same_dtype
from meshard.ops.engine.later import concrete, is_traced
from meshard.ops.row import (
    Bounds,
    Dtype,
    MoveOp,
    Onto,
    Op,
    Operand,
    Params,
    Positions,
    RuleText,
    register,
)
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array, placed
from meshard.runtime.types import Block


def _update_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    rank = len(operands[0][0])
    dims = " ".join(f"x{d}" for d in range(rank))
    extra = params["arrays"]
    count = len(operands[2][0]) if extra else 0
    places = " ".join(f"!n{i}" for i in range(count))
    free = [f"x{d}" for d in range(rank) if d not in extra]
    value = f"{places} {' '.join(free)}"
    return ", ".join([dims, value] + [places] * len(extra)) + f" -> {dims}"


def _update_cell(params: Params, bounds: Bounds, shape: tuple[int, ...]) -> Params:
    return {**params, "starts": tuple(bounds[f"x{d}"][0] for d in params["arrays"])}


_COMBINE: dict[str, np.ufunc] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "power": np.power,
    "min": np.minimum,
    "max": np.maximum,
}


def _update(
    x: Block,
    value: Block,
    *places: Block,
    arrays: tuple[int, ...],
    how: str,
    starts: tuple[int, ...] = (),
    out: Block | None = None,
) -> Block:
    """Return a copy of the block, or the block ``out``, changed at the positions that it holds."""
    places = tuple(map(np.asarray, places))  # Python numbers, in a program
    rank = places[0].ndim
    first = starts or (0,) * len(arrays)
    local = [p - s if s else p for p, s in zip(places, first, strict=True)]
    # Below zero a position is, without its sign, beyond all sizes.
    inside = np.ones(places[0].shape, bool)
    for p, d in zip(local, arrays, strict=True):
        inside &= p.astype(np.int64, copy=False).view(np.uint64) < x.shape[d]
    if not inside.any():
        return x
    result = np.empty(x.shape, x.dtype) if out is None else out
    if result is not x:
        np.copyto(result, x)
    kept = [d for d in range(x.ndim) if d not in arrays]
    front = result.transpose([*arrays, *kept])
    where, given = tuple(local), value.reshape((*inside.shape, *value.shape[rank:]))
    if not inside.all():
        where, given = tuple([p[inside] for p in local]), given[inside]
    if how == "set":
        front[where] = given
    else:
        _COMBINE[how].at(front, where, given.astype(x.dtype, copy=False))
    return result


register(
    Op(
        "scatter",
        _update_rule,
        _update,
        dtypes=same_dtype,
        local=_update_cell,
        positions=Positions(lambda params: params["arrays"], updates=True),
    )
)


def update_at(x: Any, index: Any, values: Any, how: str, options: dict[str, Any]) -> Any:
    """Return a copy in which values are combined with the elements that an index names."""
    mode = _check_options(options)
    x = given = as_array(x)
    if how == "divide" and is_whole(x.dtype):
        x = bind("divide", x, 1)
    if how != "set":
        _check_dtype(how, x.dtype)
    mask, given_values = _traced_mask(x, index), as_array(values)
    if mask is not None:
        if mask.takes(given_values):
            return mask.changed(x, given_values, how)
        concrete(
            mask.mask,
            f"x.at[mask].{how}",
            "Which element gets which value depends on the mask's values. Write "
            "meshard.numpy.where(mask, values, x), for values of x's shape.",
        )
    found = IndexParts(x, index, clamp=mode == "clip", checked=mode is None)
    value = bind("astype", given_values, dtype=x.dtype)
    changed = (_scattered if found.arrays else _laid)(found, value, how)
    if changed.shape != x.shape:
        changed = reshape(changed, x.shape)
    if is_traced(changed) or not given.committed:
        return changed
    return placed(changed, given.sharding)


def apply_at(x: Any, index: Any, function: Any, options: dict[str, Any]) -> Any:
    """Return a copy with a function applied there, as often as the index names the element."""
    _check_options(options)
    if not callable(function):
        raise ArgumentError(
            f"x.at[...].apply: function must be a function, got {described(function)}."
        )
    x = as_array(x)
    mask = _traced_mask(x, index)
    if mask is not None:
        return bind("where", mask.mask, function(x), x)
    found, value = IndexParts(x, index), function(get_at(x, index, {}))
    if found.arrays and value.size:
        ones = full_like(x, 1, np.int64)
        times = getitem(update_at(ones, index, 1, "add", {}), index) - 1
        # How often an element is named may be unknown; at most as often as there are places.
        most = math.prod(found.common_shape())
        turns = most if most < 2 or is_traced(times) else int(times.max())
        for turn in range(2, turns + 1):
            value = bind("where", times >= turn, function(value), value)
    return update_at(x, index, value, "set", options)


def get_at(x: Any, index: Any, options: dict[str, Any]) -> Any:
    """Return the elements there; with ``mode="fill"``, ``fill_value`` for those outside."""
    x, mode = as_array(x), _check_options(options)
    if mode is None:
        return getitem(x, index)
    found = taken_apart(IndexParts(x, index, mode == "clip", checked=False))
    if mode == "clip":
        return found
    ones = full_like(x, 1, np.bool_)
    inside = taken_apart(IndexParts(ones, index, clamp=False, checked=False))
    return bind("where", inside, found, gap(x.dtype, options.get("fill_value")))


@final
class _Mask:
    """A traced mask that is all that an index says.

    Attributes:
        mask: the mask in the array's rank.
        width: how many dims it takes.
        after: how many dims of the array come after those.
    """

    def __init__(self, mask: Any, first: int, ndim: int) -> None:
        self.width, self.after = mask.ndim, ndim - first - mask.ndim
        self.mask = reshape(mask, (1,) * first + mask.shape + (1,) * self.after)

    def takes(self, value: Any) -> bool:
        """Whether values are the same for all elements that the mask selects."""
        return bool(value.ndim <= self.after or value.shape[value.ndim - self.after - 1] == 1)

    def changed(self, x: Any, value: Any, how: str) -> Any:
        """Return the array changed where the mask is true."""
        head = value.shape[: max(value.ndim - self.after - 1, 0)]
        if head:
            tail = value.shape[value.ndim - self.after :]
            value = reshape(value, (*head, *(1,) * self.width, *tail))
        value = bind("astype", value, dtype=x.dtype)
        if how != "set":
            value = bind(_COMBINE[how].__name__, x, value)
        return bind("where", self.mask, value, x)


def _traced_mask(x: Any, index: Any) -> _Mask | None:
    """Return the traced mask that is all that an index says; None where something else is there.

    Raises:
        ConcretizationError: if there is a traced mask, and more.
        IndexingError: if the mask does not fit the array.
    """
    entries = index if isinstance(index, tuple) else (index,)
    place = next((i for i, e in enumerate(entries) if is_traced(e) and e.dtype.kind == "b"), None)
    if place is None:
        return None
    mask, before, behind = entries[place], entries[:place], entries[place + 1 :]
    if not all(e is Ellipsis or _takes_all(e) for e in (*before, *behind)):
        way_out = "It must be the only index. Combine all indices into one of the array's shape."
        concrete(mask, "x.at[mask, ...]", way_out)
        return None
    # Behind an ellipsis, dims are counted from the end.
    dotted = any(e is Ellipsis for e in before)
    first = x.ndim - mask.ndim - len(behind) if dotted else place
    if first < 0 or x.shape[first : first + mask.ndim] != mask.shape:
        raise IndexingError(
            f"A boolean index of shape {mask.shape} does not fit the dims from {first} on of an "
            f"array of shape {x.shape}."
        )
    return _Mask(mask, first, x.ndim)


def _takes_all(entry: Any) -> bool:
    return isinstance(entry, slice) and entry == slice(None)


def _check_dtype(how: str, dtype: Dtype) -> None:
    """Refuse what gives a dtype other than the array's, or is not possible."""
    try:
        given = _COMBINE[how](np.ones(1, dtype), np.ones(1, dtype)).dtype
    except TypeError:
        given = None
    if given is None or given != dtype:
        became = "is not possible" if given is None else f"would make it {given}"
        raise DtypeError(
            f"x.at[...].{how}: for an array of {dtype} this {became}; convert it first with "
            "x.astype(...)."
        )


def _fitted(value: Array, shape: tuple[int, ...], how: str) -> Any:
    """Return values broadcast to the shape of their place."""
    try:
        fits = np.broadcast_shapes(value.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(
            f"x.at[...].{how}: values of shape {value.shape} do not broadcast to their place, "
            f"whose shape is {shape}."
        )
    return broadcast_to(value, shape)


def _laid(found: IndexParts, value: Array, how: str) -> Any:
    """Lay values over the place that slices name."""
    x = found.x
    lengths = [len(range(n)[slice(*s)]) for n, s in zip(x.shape, found.slices, strict=True)]
    shape = sizes_of(found.shape, lengths)
    value = _fitted(value, shape, how)
    if how != "set":
        place = bind("slice", x, slices=tuple(found.slices), dropped=tuple(found.dropped))
        value = bind(_COMBINE[how].__name__, reshape(place, shape), value)
    return bind("overlay", x, reshape(value, tuple(lengths)), slices=tuple(found.slices))


def _scattered(found: IndexParts, value: Array, how: str) -> Any:
    """Put values at the positions that arrays name, in what slices leave of the array."""
    x = whole = found.x
    if found.moves:
        x = bind("slice", x, slices=tuple(found.slices), dropped=())
    common = found.common_shape()
    at, shape = found.gathered_shape(x.shape, common)
    kept = [n for d, n in enumerate(x.shape) if d not in found.arrays]
    value = reshape(_fitted(value, shape, how), (*kept[:at], *common, *kept[at:]))
    n = len(common)
    value = transpose(value, [*range(at, at + n), *range(at), *range(at + n, value.ndim)])
    places = [broadcast_to(p, common) for p in found.arrays.values()]
    changed = bind("scatter", x, value, *places, arrays=tuple(found.arrays), how=how)
    return bind("overlay", whole, changed, slices=tuple(found.slices)) if found.moves else changed


def _check_options(options: dict[str, Any]) -> str | None:
    """Return what happens to positions outside: ``"clip"``, ``"drop"``; None: they are refused."""
    known = ("indices_are_sorted", "unique_indices", "mode", "fill_value", "wrap_negative_indices")
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ArgumentError(
            f"x.at[...]: there is no option {unknown[0]!r}; the options are {', '.join(known)}."
            f"{did_you_mean(unknown[0], known)}"
        )
    if options.get("wrap_negative_indices") is False:
        raise ArgumentError(
            "x.at[...]: wrap_negative_indices=False is not supported: negative positions count "
            "from the end. To name positions outside the array, add the dim's size."
        )
    mode = options.get("mode")
    if mode is None or choice_of(mode, _MODES, "x.at[...]", "mode") == "promise_in_bounds":
        return None
    return "clip" if mode == "clip" else "drop"


_MODES = ("clip", "drop", "fill", "promise_in_bounds")


def _overlay_maps(shapes: Sequence[tuple[int, ...]], params: Params) -> list[tuple[DimMap, ...]]:
    """Return the maps of an array and of what is laid over it, in rising order."""
    flips = [s[2] < 0 for s in params["slices"]]
    values = [
        (DimMap.flip if flip else DimMap.identity)(n)
        for n, flip in zip(shapes[1], flips, strict=True)
    ]
    return [tuple(DimMap.identity(n) for n in shapes[0]), tuple(values)]


def _overlay_onto(shapes: Sequence[tuple[int, ...]], params: Params) -> list[Onto]:
    """Return where the values go: along each dim the lowest position, and the step."""
    ranges = [range(n)[slice(*s)] for n, s in zip(shapes[0], params["slices"], strict=True)]
    return [None, tuple((min(r[0], r[-1]) if r else 0, abs(r.step)) for r in ranges)]


register(MoveOp("overlay", _overlay_maps, follow=True, onto=_overlay_onto))
