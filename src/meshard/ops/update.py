"""Updated copies: ``x.at[index].set(value)`` and its kin.

A basic index lays the new values over the array piece by piece; pieces that it does not touch stay
the blocks they are. An index with arrays changes, in each piece, the positions that it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from meshard.algebra.dimmap import DimMap, Segment
from meshard.errors import ArgumentError
from meshard.runtime.array import Array
from meshard.runtime.place import as_array
from meshard.runtime.primitive import bind
from meshard.runtime.types import Block

from .dtypes import same_dtype
from .index import IndexParts, getitem
from .registry import Bounds, MoveOp, Op, Operand, Params, RuleText, register
from .shape import broadcast_to, reshape, transpose

__all__ = ["At", "Place", "at"]


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
) -> Block:
    """Return a copy of the block, changed at the positions that it holds."""
    rank = places[0].ndim
    first = starts or (0,) * len(arrays)
    local = [p - s for p, s in zip(places, first, strict=True)]
    inside = np.ones(places[0].shape, bool)
    for p, d in zip(local, arrays, strict=True):
        inside &= (p >= 0) & (p < x.shape[d])
    result = x.copy()
    kept = [d for d in range(x.ndim) if d not in arrays]
    front = result.transpose([*arrays, *kept])
    where = tuple(p[inside] for p in local)
    given = value.reshape((*inside.shape, *value.shape[rank:]))[inside]
    if how == "set":
        front[where] = given
    else:
        _COMBINE[how].at(front, where, given.astype(x.dtype, copy=False))
    return result


register(Op("scatter", _update_rule, _update, dtypes=same_dtype, local=_update_cell))


@final
class At:
    """What ``x.at`` is: ``x.at[index]`` names a place, whose methods return changed copies."""

    def __init__(self, x: Any) -> None:
        self._x = x

    def __getitem__(self, index: Any) -> Place:
        return Place(self._x, index)

    def __repr__(self) -> str:
        return f"At({self._x!r})"


@final
class Place:
    """A place in an array; each method returns a copy that differs there, laid out alike.

    Values broadcast to the place and take the array's dtype. Where an index array names an element
    twice, ``set`` takes the last value and the others apply all.
    """

    def __init__(self, x: Any, index: Any) -> None:
        self._x = x
        self._index = index

    def set(self, values: Any, **options: Any) -> Any:
        """Return a copy with the values put there."""
        return self._updated(values, "set", options)

    def add(self, values: Any, **options: Any) -> Any:
        """Return a copy with the values added there."""
        return self._updated(values, "add", options)

    def subtract(self, values: Any, **options: Any) -> Any:
        """Return a copy with the values subtracted there."""
        return self._updated(values, "subtract", options)

    def multiply(self, values: Any, **options: Any) -> Any:
        """Return a copy multiplied by the values there."""
        return self._updated(values, "multiply", options)

    mul = multiply

    def divide(self, values: Any, **options: Any) -> Any:
        """Return a copy divided by the values there."""
        return self._updated(values, "divide", options)

    def power(self, values: Any, **options: Any) -> Any:
        """Return a copy raised to the power of the values there."""
        return self._updated(values, "power", options)

    def min(self, values: Any, **options: Any) -> Any:
        """Return a copy with the lesser of element and value there."""
        return self._updated(values, "min", options)

    def max(self, values: Any, **options: Any) -> Any:
        """Return a copy with the greater of element and value there."""
        return self._updated(values, "max", options)

    def apply(self, function: Any, **options: Any) -> Any:
        """Return a copy with a function applied there."""
        return self._updated(function(self.get()), "set", options)

    def get(self, **options: Any) -> Any:
        """Return the elements there."""
        _check_options(options)
        return getitem(as_array(self._x), self._index)

    def _updated(self, values: Any, how: str, options: dict[str, Any]) -> Any:
        _check_options(options)
        x = as_array(self._x)
        found = IndexParts(x, self._index)
        if found.arrays:
            return self._scattered(x, found, values, how)
        place = getitem(x, self._index)
        value = bind("astype", as_array(values), dtype=x.dtype)
        if how != "set":
            names = {"min": "minimum", "max": "maximum"}
            value = bind(names.get(how, how), place, value)
            value = value.astype(x.dtype, copy=False)
        value = broadcast_to(value, place.shape)
        kept = tuple(1 if d in found.dropped else 0 for d in range(x.ndim))
        sizes = iter([n for n, d in zip(place.shape, found.shape, strict=True) if d is not None])
        shape = tuple(1 if gone else next(sizes) for gone in kept)
        value = reshape(value, shape)
        return bind("overlay", x, value, slices=tuple(found.slices))

    def _scattered(self, x: Array, found: IndexParts, values: Any, how: str) -> Any:
        if any(s != (None, None, 1) for s in found.slices):
            inner = At(getitem(x, tuple(slice(*s) for s in found.slices)))
            index = tuple(
                slice(None) if d not in found.arrays else found.arrays[d] for d in range(x.ndim)
            )
            changed = Place(inner._x, index)._updated(values, how, {})
            return Place(x, tuple(slice(*s) for s in found.slices)).set(changed)
        common = np.broadcast_shapes(*[p.shape for p in found.arrays.values()])
        places = [broadcast_to(p, common) for p in found.arrays.values()]
        arrays = tuple(found.arrays)
        free = tuple(n for d, n in enumerate(x.shape) if d not in arrays)
        entries = [d for d in found.shape if d is not None]
        run = [i for i, d in enumerate(entries) if d in arrays]
        at = run[0] if run[-1] - run[0] + 1 == len(run) else 0
        value = bind("astype", as_array(values), dtype=x.dtype)
        value = broadcast_to(value, (*free[:at], *common, *free[at:]))
        n = len(common)
        value = transpose(value, [*range(at, at + n), *range(at), *range(at + n, value.ndim)])
        return bind("scatter", x, value, *places, arrays=arrays, how=how)


def _check_options(options: dict[str, Any]) -> None:
    known = {"indices_are_sorted", "unique_indices", "mode", "fill_value", "wrap_negative_indices"}
    unknown = set(options) - known
    if unknown:
        raise ArgumentError(f"x.at[...]: unknown options {sorted(unknown)}.")


def _overlay_maps(shapes: Sequence[tuple[int, ...]], params: Params) -> list[tuple[DimMap, ...]]:
    """Return maps that lay an array over another, back where slices take it from."""
    maps = []
    for size, n, (start, stop, step) in zip(*shapes, params["slices"], strict=True):
        positions = range(size)[start:stop:step]
        where = sorted((p, i) for i, p in enumerate(positions))
        if abs(step) == 1:
            back = DimMap.identity(n) if step == 1 else DimMap.flip(n)
            maps.append(DimMap.place(n, size, where[0][0] if n else 0).after(back))
        else:
            maps.append(DimMap(size, n, tuple(Segment(p, 1, i, 1) for p, i in where)))
    return [tuple(DimMap.identity(n) for n in shapes[0]), tuple(maps)]


register(MoveOp("overlay", _overlay_maps, follow=True))


def at(x: Any) -> At:
    """Return the helper for updated copies of an array."""
    return At(x)
