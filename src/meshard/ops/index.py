"""Indexing: slices as box maps, arrays of positions as gathers, and updated copies.

A basic index moves only what crosses between devices. In a gather each device looks up the
positions that it holds itself; the parts, which do not overlap, are then joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from meshard.algebra.dimmap import DimMap, Segment
from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import ArgumentError, IndexingError, ShapeError
from meshard.runtime.array import Array
from meshard.runtime.place import as_array, placed
from meshard.runtime.primitive import bind
from meshard.runtime.types import Block

from .dtypes import same_dtype
from .registry import Bounds, MoveOp, Op, Operand, Params, Partial, RuleText, register
from .shape import broadcast_to, reshape, transpose

__all__ = ["At", "at", "getitem", "nonzero", "take", "take_along_axis"]


def _slice_maps(shapes: Sequence[tuple[int, ...]], params: Params) -> list[tuple[DimMap, ...]]:
    return [
        tuple(DimMap.slice(n, *s) for n, s in zip(shapes[0], params["slices"], strict=True))
    ]


def _slice_whole(params: Params) -> frozenset[int]:
    whole: frozenset[int] = frozenset(params["dropped"])
    return whole


register(MoveOp("slice", _slice_maps, _slice_whole))

Span = tuple[int | None, int | None, int]


@final
class _Index:
    """An index taken apart: a slice per dim, what to do with dims afterwards, and the arrays.

    Attributes:
        slices: start, stop, step per dim of the array.
        dropped: dims indexed by a number.
        shape: entries of the result of slicing: a dim's number, or None for a new dim.
        arrays: the positions along each dim that is indexed by an array.
    """

    def __init__(self, x: Array, index: Any) -> None:
        entries = list(index) if isinstance(index, tuple) else [index]
        entries = self._expanded(entries, x)
        self.slices: list[Span] = []
        self.dropped: list[int] = []
        self.shape: list[int | None] = []
        self.arrays: dict[int, Any] = {}
        self.scalars: set[int] = set()
        advanced = any(_is_positions(e) for e in entries)
        dim = 0
        for entry in entries:
            if entry is None:
                self.shape.append(None)
                continue
            if isinstance(entry, slice):
                self.slices.append(_span(entry))
                self.shape.append(dim)
            elif _is_positions(entry):
                self.slices.append((None, None, 1))
                self.shape.append(dim)
                self.arrays[dim] = _positions(entry, x.shape[dim], dim)
            else:
                at = _number(entry, x.shape[dim], dim)
                if advanced:  # NumPy counts it among the arrays
                    self.slices.append((None, None, 1))
                    self.shape.append(dim)
                    self.arrays[dim] = as_array(np.asarray(at))
                else:
                    self.slices.append((at, at + 1, 1))
                    self.dropped.append(dim)
            dim += 1

    @staticmethod
    def _expanded(entries: list[Any], x: Array) -> list[Any]:
        """Replace masks by their positions, and fill up with whole slices."""
        plain: list[Any] = []
        for entry in entries:
            if isinstance(entry, str):
                raise IndexingError(f"An array is not indexed by a string; got {entry!r}.")
            if isinstance(entry, (list, np.ndarray)) or (
                hasattr(entry, "dtype") and not np.isscalar(entry)
            ):
                entry = as_array(entry if not _empty_list(entry) else np.empty(0, np.int64))
            if isinstance(entry, (bool, np.bool_)):
                entry = as_array(np.asarray(entry))
            if isinstance(entry, Array) and entry.dtype.kind == "b":
                dims = sum(_width(e) for e in plain)
                if entry.shape != x.shape[dims : dims + entry.ndim]:
                    raise IndexingError(
                        f"A boolean index of shape {entry.shape} does not fit the dims from "
                        f"{dims} on of an array of shape {x.shape}."
                    )
                if entry.ndim == 0:
                    plain += [None, np.zeros(int(bool(entry)), np.int64)]
                else:
                    plain += list(nonzero(entry))
            else:
                plain.append(entry)
        used = sum(_width(e) for e in plain)
        dots = sum(1 for e in plain if e is Ellipsis)
        if dots > 1:
            raise IndexingError("An index has at most one ellipsis ('...').")
        if used > x.ndim:
            raise IndexingError(
                f"Too many indices: the array has {x.ndim} dims, the index has {used}."
            )
        rest = [slice(None)] * (x.ndim - used)
        if not dots:
            return plain + rest
        place = next(i for i, e in enumerate(plain) if e is Ellipsis)
        return plain[:place] + rest + plain[place + 1 :]


def _empty_list(entry: Any) -> bool:
    return isinstance(entry, list) and not entry


def _width(entry: Any) -> int:
    """Return how many dims an entry takes."""
    return 0 if entry is None or entry is Ellipsis else 1


def _is_positions(entry: Any) -> bool:
    return isinstance(entry, (Array, np.ndarray)) and (
        entry.ndim > 0 or not isinstance(entry, np.ndarray)
    )


def _span(entry: slice) -> Span:
    parts = []
    for part in (entry.start, entry.stop, entry.step):
        if part is not None and not hasattr(part, "__index__"):
            raise IndexingError(f"A slice is made of integers; got {entry!r}.")
        parts.append(None if part is None else part.__index__())
    if parts[2] == 0:
        raise IndexingError("The step of a slice cannot be zero.")
    return parts[0], parts[1], 1 if parts[2] is None else parts[2]


def _number(entry: Any, size: int, dim: int) -> int:
    if not hasattr(entry, "__index__"):
        raise IndexingError(
            f"An index is made of integers, slices, '...', None and arrays of integers or bools; "
            f"got {entry!r} of type {type(entry).__name__}."
        )
    at: int = entry.__index__()
    if not -size <= at < size:
        raise IndexingError(f"Index {at} is out of bounds for dim {dim} with size {size}.")
    return at % size


def _positions(entry: Any, size: int, dim: int) -> Any:
    """Return positions counted from 0, checked against the dim's size."""
    places = as_array(entry)
    if places.dtype.kind not in "iu":
        raise IndexingError(f"An index array holds integers or bools, not {places.dtype}.")
    if places.size:
        low, high = bind("min", places, **_over(places)), bind("max", places, **_over(places))
        if int(low) < -size or int(high) >= size:
            bad = int(low) if int(low) < -size else int(high)
            raise IndexingError(f"Index {bad} is out of bounds for dim {dim} with size {size}.")
        if int(low) < 0:
            places = bind("where", places < 0, places + size, places)
    return places


def _over(x: Array) -> dict[str, Any]:
    return {"axis": tuple(range(x.ndim)), "keepdims": False}


def getitem(x: Any, index: Any) -> Any:
    """Return ``x[index]`` with NumPy's meaning of integers, slices, None, ``...`` and arrays.

    Slices keep the array's cuts, so that no element changes its device without need.

    Raises:
        IndexingError: if an index is out of bounds, of another kind, or there are too many.
    """
    found = _Index(x, index)
    if found.arrays:
        return _gathered(x, found)
    result = x
    if any(s != (None, None, 1) for s in found.slices):
        result = bind("slice", x, slices=tuple(found.slices), dropped=tuple(found.dropped))
    shape = tuple(1 if d is None else result.shape[d] for d in found.shape)
    return reshape(result, shape) if shape != result.shape else result


# gather


def _gather_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    dims = params["dims"]
    rank = len(operands[0][0])
    source = [f"x{d}" for d in range(rank)]
    places = [f"n{i}" for i in range(len(operands[1][0]))]
    kept = [f"x{d}" for d in range(rank) if d not in dims]
    at = params["at"]
    out = [*kept[:at], *places, *kept[at:]]
    terms = [" ".join(source)] + [" ".join(places)] * len(dims)
    return f"{', '.join(terms)} -> {' '.join(out)}"


def _gather_cell(params: Params, bounds: Bounds, shape: tuple[int, ...]) -> Params:
    return {**params, "starts": tuple(bounds[f"x{d}"][0] for d in params["dims"])}


def _gather(
    x: Block,
    *places: Block,
    dims: tuple[int, ...],
    at: int,
    starts: tuple[int, ...] = (),
) -> Block:
    """Look up the positions that the block holds; the others give zeros."""
    first = starts or (0,) * len(dims)
    sizes = [x.shape[d] for d in dims]
    local = [p - s for p, s in zip(places, first, strict=True)]
    inside = np.ones(places[0].shape, bool)
    for p, n in zip(local, sizes, strict=True):
        inside &= (p >= 0) & (p < n)
    kept = [d for d in range(x.ndim) if d not in dims]
    front = x.transpose([*dims, *kept])
    if inside.all():
        found = front[tuple(local)]
    else:
        found = np.zeros((*inside.shape, *front.shape[len(dims) :]), x.dtype)
        found[inside] = front[tuple(p[inside] for p in local)]
    rank = inside.ndim
    order = [*range(rank, rank + at), *range(rank), *range(rank + at, found.ndim)]
    return found.transpose(order)


def _joined(parts: Sequence[tuple[Block, ...]]) -> tuple[Block, ...]:
    """Join results that do not overlap, bit by bit, so that every value stays what it is."""
    total = np.array(parts[0][0])
    bits = total.reshape(-1).view(np.uint8)
    for (part,) in parts[1:]:
        bits |= np.ascontiguousarray(part).reshape(-1).view(np.uint8)
    return (bits.view(total.dtype).reshape(total.shape),)


register(
    Op(
        "gather",
        _gather_rule,
        _gather,
        dtypes=same_dtype,
        partial=Partial(_joined),
        local=_gather_cell,
    )
)


def _gathered(x: Array, index: _Index) -> Any:
    """Return what an index with arrays of positions selects."""
    if any(s != (None, None, 1) for s in index.slices):
        x = bind("slice", x, slices=tuple(index.slices), dropped=())
    shapes = [p.shape for p in index.arrays.values()]
    try:
        common = np.broadcast_shapes(*shapes)
    except ValueError as error:
        raise IndexingError(f"Index arrays of shapes {shapes} do not broadcast.") from error
    places = [broadcast_to(p, common) for p in index.arrays.values()]
    dims = tuple(index.arrays)
    entries = index.shape
    marks = [d in index.arrays for d in entries]
    run = [i for i, m in enumerate(marks) if m]
    together = run[-1] - run[0] + 1 == len(run)
    before = [d for d in entries[: run[0]] if d is not None] if together else []
    found = bind("gather", x, *places, dims=dims, at=len(before))
    if None not in entries:
        return found
    shape: list[int] = []
    for i, d in enumerate(entries):
        if d is None:
            shape.append(1)
        elif not marks[i]:
            shape.append(x.shape[d])
        elif together and i == run[0]:
            shape += common
    return reshape(found, tuple(shape) if together else (*common, *shape))


def take(a: Any, indices: Any, axis: int | None = None, mode: str | None = None) -> Any:
    """Return the elements at positions along a dim, or in the flat array.

    Args:
        a: the array; where the dim is split, each device looks up what it holds.
        indices: integers of any shape.
        axis: the dim.
        mode: None refuses positions out of bounds; ``"clip"`` and ``"wrap"`` bring them inside.

    Raises:
        IndexingError: if a position is out of bounds.

    >>> import meshard.numpy as mnp
    >>> mnp.take(mnp.arange(5) * 10, mnp.asarray([4, 0])).tolist()
    [40, 0]
    """
    x, places = as_array(a), as_array(indices)
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    if not -x.ndim <= axis < x.ndim:
        raise ArgumentError(f"take: axis {axis} is out of bounds for an array with {x.ndim} dims.")
    dim = axis % x.ndim
    if mode == "clip":
        places = bind("minimum", bind("maximum", places, 0), x.shape[dim] - 1)
    elif mode == "wrap":
        places = bind("remainder", places, x.shape[dim])
    elif mode not in (None, "raise"):
        raise ArgumentError(f"take: mode is None, 'raise', 'clip' or 'wrap', not {mode!r}.")
    places = _positions(places, x.shape[dim], dim)
    return bind("gather", x, places, dims=(dim,), at=dim)


def take_along_axis(arr: Any, indices: Any, axis: int = -1) -> Any:
    """Return for each position of ``indices`` the element at it along one dim."""
    x, places = as_array(arr), as_array(indices)
    if places.ndim != x.ndim:
        raise ShapeError(
            f"take_along_axis: indices of shape {places.shape} for an array of shape {x.shape}."
        )
    dim = axis % x.ndim
    index: list[Any] = []
    for d, n in enumerate(x.shape):
        if d == dim:
            index.append(places)
        else:
            shape = [1] * x.ndim
            shape[d] = n
            index.append(np.arange(n).reshape(shape))
    return getitem(x, tuple(index))


def nonzero(a: Any) -> tuple[Any, ...]:
    """Return the positions of the elements that are not zero, one array per dim.

    The result's shape depends on the values: only which elements are zero is brought together.
    """
    x = as_array(a)
    mask = bind("not_equal", x, 0) if x.dtype.kind != "b" else x
    if not mask.is_fully_addressable and isinstance(mask.sharding, NamedSharding):
        mask = placed(mask, NamedSharding(mask.sharding.mesh, PartitionSpec()))
    if not x.ndim:
        raise ShapeError("nonzero: an array without dims has no positions.")
    return tuple(as_array(p, fresh=True) for p in np.nonzero(np.asarray(mask)))


# updated copies


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
    """The helper behind ``x.at``: ``x.at[index]`` names a place, its methods return changed copies."""

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
        found = _Index(x, self._index)
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

    def _scattered(self, x: Array, found: _Index, values: Any, how: str) -> Any:
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
