"""Indexing: slices as box maps, arrays of positions as gathers, and updated copies.

A basic index moves only what crosses between devices. In a gather each device looks up the
positions that it holds itself; the parts, which do not overlap, are then joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from meshard.algebra.dimmap import DimMap
from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import ArgumentError, IndexingError, ShapeError
from meshard.runtime.array import Array
from meshard.runtime.place import as_array, placed
from meshard.runtime.primitive import bind
from meshard.runtime.types import Block

from .dtypes import same_dtype
from .registry import Bounds, MoveOp, Op, Operand, Params, Partial, RuleText, register
from .shape import broadcast_to, reshape

__all__ = ["IndexParts", "getitem", "nonzero", "take", "take_along_axis"]


def _slice_maps(shapes: Sequence[tuple[int, ...]], params: Params) -> list[tuple[DimMap, ...]]:
    return [tuple(DimMap.slice(n, *s) for n, s in zip(shapes[0], params["slices"], strict=True))]


def _slice_whole(params: Params) -> frozenset[int]:
    whole: frozenset[int] = frozenset(params["dropped"])
    return whole


register(MoveOp("slice", _slice_maps, _slice_whole))

Span = tuple[int | None, int | None, int]


@final
class IndexParts:
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
    found = IndexParts(x, index)
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
    result: Block = found.transpose(order)
    return result


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


def _gathered(x: Array, index: IndexParts) -> Any:
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
