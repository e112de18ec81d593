"""Indexing: slices as box maps, arrays of positions as gathers.

A basic index moves only what crosses between devices, and so does a gather: each device gets the
rows that its positions name and that it does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, final

import numpy as np

from meshard.algebra.dimmap import DimMap
from meshard.algebra.sharding import NamedSharding
from meshard.errors import IndexingError
from meshard.ops.array.dynamic import window
from meshard.ops.array.nonzero import nonzero
from meshard.ops.array.shape import broadcast_to, reshape
from meshard.ops.dtypes.laws import promoted, same_dtype
from meshard.ops.engine.later import concrete, eagerly, is_array, is_traced
from meshard.ops.row import (
    Bounds,
    MoveOp,
    Op,
    Operand,
    Params,
    Positions,
    RuleText,
    register,
)
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array, as_host
from meshard.runtime.types import Block


def _slice_maps(shapes: Sequence[tuple[int, ...]], params: Params) -> list[tuple[DimMap, ...]]:
    return [tuple(DimMap.slice(n, *s) for n, s in zip(shapes[0], params["slices"], strict=True))]


def _slice_whole(params: Params) -> frozenset[int]:
    whole: frozenset[int] = frozenset(params["dropped"])
    return whole


register(MoveOp("slice", _slice_maps, _slice_whole))

Span = tuple[int | None, int | None, int]
_ALL: Span = (None, None, 1)


def sizes_of(entries: Sequence[int | tuple[()] | None], shape: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of the dims that entries of `IndexParts.shape` stand for."""
    return tuple([1 if d is None else shape[d] for d in entries if not isinstance(d, tuple)])


@final
class IndexParts:
    """An index taken apart: a slice per dim, what to do with dims afterwards, and the arrays.

    Attributes:
        x: the array; for each boolean scalar of the index it has one more dim of size one.
        slices: start, stop, step per dim of the array.
        dropped: dims indexed by a number.
        shape: entries of the result of slicing: a dim's number, or None for a new dim; an empty
            tuple stands for an ellipsis without dims, which yet separates arrays.
        arrays: the positions along each dim that is indexed by an array. Traced ones that lie
            outside are moved inside, or left to be passed over if ``clamp`` is False; so are
            others, if they are not ``checked``.
        clamp: whether positions are moved inside.
    """

    def __init__(self, x: Any, index: Any, clamp: bool = True, checked: bool = True) -> None:
        self.clamp = clamp
        entries = list(index) if isinstance(index, tuple) else [index]
        self.x, entries, of_masks = _expanded(x, [_entry(e) for e in entries])
        self.slices: list[Span] = []
        self.dropped: list[int] = []
        self.shape: list[int | tuple[()] | None] = []
        self.arrays: dict[int, Any] = {}
        if not checked:
            entries = [_unchecked(e) for e in entries]
        advanced = any(_is_positions(e) for e in entries)
        dim = 0
        for entry in entries:
            if entry is None or entry is Ellipsis:
                self.shape.append(() if entry is Ellipsis else None)
                continue
            size = self.x.shape[dim]
            if isinstance(entry, slice):
                self.slices.append(_span(entry))
                self.shape.append(dim)
            elif _is_positions(entry):
                self.slices.append(_ALL)
                self.shape.append(dim)
                found = any(entry is p for p in of_masks)  # and so within the dim
                self.arrays[dim] = (
                    as_array(entry) if found else positions(entry, size, dim, clamp, checked)
                )
            else:
                at = _number(entry, size, dim)
                if advanced:  # NumPy counts it among the arrays
                    self.slices.append(_ALL)
                    self.shape.append(dim)
                    self.arrays[dim] = as_array(np.asarray(at))
                else:
                    self.slices.append((at, at + 1, 1))
                    self.dropped.append(dim)
            dim += 1

    @property
    def moves(self) -> bool:
        """Whether slicing changes anything."""
        return any(s != _ALL for s in self.slices)

    def common_shape(self) -> tuple[int, ...]:
        """Return the shape that the arrays of positions broadcast to.

        Raises:
            IndexingError: if they do not.
        """
        shapes = [p.shape for p in self.arrays.values()]
        try:
            return np.broadcast_shapes(*shapes)
        except ValueError as error:
            told = ", ".join(map(str, shapes))
            raise IndexingError(f"Index arrays of shapes {told} do not broadcast.") from error

    def gathered_shape(
        self, shape: tuple[int, ...], common: tuple[int, ...]
    ) -> tuple[int, tuple[int, ...]]:
        """Return where the dims of the arrays come among the others, and the result's shape.

        ``shape`` is that of the sliced array. Arrays that are side by side are replaced by their
        common dims; where something is between them these come first.
        """
        marks = [d in self.arrays for d in self.shape]
        first, last = marks.index(True), len(marks) - marks[::-1].index(True)
        before = self.shape[:first] if all(marks[first:last]) else []
        rest = [d for d in self.shape[len(before) :] if d not in self.arrays]
        at = sum(isinstance(d, int) for d in before)
        return at, (*sizes_of(before, shape), *common, *sizes_of(rest, shape))


_DEEPEST = 64
"""The most dims of a NumPy array."""


def _entry(entry: Any) -> Any:
    """Return an entry of an index as None, an ellipsis, a slice, a number or an array."""
    if entry is None or entry is Ellipsis or type(entry) is Array:
        return entry
    if isinstance(entry, (slice, np.ndarray)):
        return entry
    if is_traced(entry):
        return entry
    if isinstance(entry, str):
        raise IndexingError(f"An array cannot be indexed by a string; got {entry!r}.")
    if isinstance(entry, (bool, np.bool_)):
        return np.asarray(entry)
    if isinstance(entry, (list, tuple, range)):
        if _holds_array(entry):
            return stacked(entry)
        value = as_host(entry, "index")
        return value if value.size or value.dtype.kind == "b" else value.astype(np.int64)
    if hasattr(entry, "dtype") and not np.isscalar(entry):
        return as_array(entry)
    return entry


def _holds_array(entry: Any, depth: int = 0) -> bool:
    if not isinstance(entry, (list, tuple)):
        return is_array(entry)
    if depth > _DEEPEST:
        raise IndexingError(
            f"A list of an index is nested more than {_DEEPEST} deep, or contains itself."
        )
    return any(_holds_array(e, depth + 1) for e in entry)


def stacked(entries: Sequence[Any]) -> Any:
    """Return scalars or nested sequences of them, of which some are arrays, as one array.

    Raises:
        IndexingError: if the sequences have different lengths.
    """
    values = [stacked(e) if _holds_array(e) and not is_array(e) else as_array(e) for e in entries]
    if len({v.shape for v in values}) > 1:
        told = ", ".join(str(v.shape) for v in values)
        raise IndexingError(
            f"A list of an index holds parts of shapes {told}; they must have one shape."
        )
    dtype = promoted([v.dtype for v in values])
    lines = [reshape(bind("astype", v, dtype=dtype), (1, *v.shape)) for v in values]
    return bind("concatenate", *lines, axis=0)


def _is_mask(entry: Any) -> bool:
    return (isinstance(entry, np.ndarray) or is_array(entry)) and entry.dtype == np.bool_


def _is_positions(entry: Any) -> bool:
    """Whether an entry is an array of positions; NumPy's own without dims are numbers."""
    return is_array(entry) or (isinstance(entry, np.ndarray) and entry.ndim > 0)


def _width(entry: Any) -> int:
    """Return how many dims an entry takes."""
    if entry is None or entry is Ellipsis:
        return 0
    return entry.ndim if _is_mask(entry) else 1


_WITHOUT_MASK = (
    "How many elements a mask selects depends on its values. meshard.numpy.where(mask, x, other) "
    "keeps the shape, x.at[mask].set(value) changes the elements, and "
    "meshard.numpy.nonzero(mask, size=n) gives the positions of n of them."
)


def _expanded(x: Array, entries: list[Any]) -> tuple[Array, list[Any], list[Any]]:
    """Fill an index up with whole slices, and replace masks by their positions, told besides.

    A boolean scalar is a mask of a dim of size one, which the array gets at that place.
    """
    used = sum(map(_width, entries))
    dots = [i for i, e in enumerate(entries) if e is Ellipsis]
    if len(dots) > 1:
        raise IndexingError("An index can have at most one ellipsis ('...').")
    if used > x.ndim:
        raise IndexingError(f"Too many indices: the array has {x.ndim} dims, the index has {used}.")
    place = dots[0] if dots else len(entries)
    rest: list[Any] = [slice(None)] * (x.ndim - used) or [Ellipsis] * len(dots)
    plain: list[Any] = []
    of_masks: list[Any] = []
    shape: list[int] = []
    dim = 0
    for entry in (*entries[:place], *rest, *entries[place + 1 :]):
        width = _width(entry)
        sizes = x.shape[dim : dim + width]
        if not _is_mask(entry):
            plain.append(entry)
            shape += sizes
            dim += width
            continue
        if is_traced(entry):
            entry = _known_mask(entry)
        if entry.shape != sizes and entry.ndim:
            raise IndexingError(
                f"A boolean index of shape {entry.shape} does not fit the dims from {dim} on of an "
                f"array of shape {x.shape}."
            )
        if not entry.ndim:
            sizes = (1,)
            plain.append(np.zeros(int(bool(entry)), np.int64))
        else:
            of_masks += np.nonzero(entry) if isinstance(entry, np.ndarray) else nonzero(entry)
            plain += of_masks[-entry.ndim :]
        shape += sizes
        dim += width
    return reshape(x, tuple(shape)) if len(shape) > x.ndim else x, plain, of_masks


def _known_mask(mask: Any) -> Any:
    """Return a traced mask that has a value: where it is laid out, else on the host."""
    found = concrete(mask, "x[mask]", _WITHOUT_MASK)
    return found if isinstance(found.sharding, NamedSharding) else np.asarray(found)


def _span(entry: slice) -> Span:
    parts = []
    for part in (entry.start, entry.stop, entry.step):
        if is_traced(part):
            part = concrete(
                part,
                "x[start:stop]",
                "The size of a slice depends on the values of its ends. Write "
                "meshard.lax.dynamic_slice_in_dim(x, start, size), whose size is fixed.",
            ).item()
        if part is not None and not hasattr(part, "__index__"):
            raise IndexingError(f"A slice must be made of integers; got {entry!r}.")
        parts.append(None if part is None else part.__index__())
    if parts[2] == 0:
        raise IndexingError("The step of a slice cannot be zero.")
    return parts[0], parts[1], 1 if parts[2] is None else parts[2]


def _number(entry: Any, size: int, dim: int) -> int:
    try:
        at: int = entry.__index__()
    except (AttributeError, TypeError) as error:
        raise IndexingError(
            "An index must be made of integers, slices, '...', None and arrays of integers or "
            f"bools; got {entry!r} of type {type(entry).__name__}."
        ) from error
    _check_bounds(at, at, size, dim)
    return at % size


def _check_bounds(low: int, high: int, size: int, dim: int) -> None:
    if low < -size or high >= size:
        bad = low if low < -size else high
        raise IndexingError(f"Index {bad} is out of bounds for dim {dim} with size {size}.")


def _within(places: Block, *, size: int, clamp: bool) -> Block:
    """Count negative positions from the end; move those outside inside if asked to."""
    found = places.astype(np.int64)
    found = np.where(found < 0, found + size, found)
    return np.clip(found, 0, max(size - 1, 0)) if clamp else found


def _int_law(operands: Sequence[Operand], params: Params) -> tuple[np.dtype[Any], ...]:
    return (np.dtype(np.int64),)


register(Op("positions_within", "... -> ...", _within, dtypes=_int_law))


def _unchecked(entry: Any) -> Any:
    """Return a number as an array of positions, which need not be inside."""
    return as_array(np.asarray(entry)) if isinstance(entry, (int, np.integer)) else entry


_LONG = np.dtype(np.int64)


def positions(entry: Any, size: int, dim: int, clamp: bool = True, checked: bool = True) -> Any:
    """Return positions counted from 0, checked against the dim's size.

    They are made 64 bits wide, since a short integer may not be able to count the dim. Traced ones
    cannot be checked: they are moved inside, or left outside for an operation that passes over
    them; so are others that are not to be ``checked``.
    """
    if entry.dtype.kind not in "iu":
        raise IndexingError(f"An index array must hold integers or bools, not {entry.dtype}.")
    if checked and not size and entry.size:
        raise IndexingError(f"An index into dim {dim}, which is empty: no position is in it.")
    if is_traced(entry) or not checked:
        return bind("positions_within", as_array(entry), size=size, clamp=clamp)
    if isinstance(entry, np.ndarray):
        if entry.size:
            _check_bounds(int(entry.min()), int(entry.max()), size, dim)
        places = entry.astype(np.int64)
        places[places < 0] += size
        return as_array(places, fresh=True)
    if entry.size:
        every = {"axis": tuple(range(entry.ndim)), "keepdims": False}
        with eagerly():
            low, high = bind("min", entry, **every), bind("max", entry, **every)
        if low._type.local:  # else other processes hold it all, and check
            _check_bounds(int(low), int(high), size, dim)
            if int(low) >= 0:
                return entry if entry.dtype == np.int64 else bind("astype", entry, dtype=_LONG)
    long = bind("astype", entry, dtype=_LONG)
    return bind("where", bind("less", long, 0), bind("add", long, size), long)


def getitem(x: Any, index: Any) -> Any:
    """Return ``x[index]`` with NumPy's meaning of integers, slices, None, ``...`` and arrays.

    Slices keep the array's cuts, so that no element changes its device without need.

    Raises:
        IndexingError: if an index is out of bounds, of another kind, or there are too many.
    """
    return taken_apart(IndexParts(x, index))


def taken_apart(found: IndexParts) -> Any:
    """Return what an index selects; zeros for positions that were left outside."""
    x = found.x
    if found.arrays:
        return _gathered(found)
    result = x
    if found.moves:
        result = bind("slice", x, slices=tuple(found.slices), dropped=tuple(found.dropped))
    shape = sizes_of(found.shape, result.shape)
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


def _inside(
    x: Block, places: Sequence[Block], dims: tuple[int, ...], starts: tuple[int, ...]
) -> tuple[list[Block], Block]:
    """Return positions as the block counts them, and which of them it holds."""
    first = starts or (0,) * len(dims)
    local = [p - s if s else p for p, s in zip(places, first, strict=True)]
    # Below zero a position is, without its sign, beyond all sizes.
    tests = [p.view(np.uint64) < x.shape[d] for p, d in zip(local, dims, strict=True)]
    return local, reduce(np.logical_and, tests)


def _front(x: Block, dims: tuple[int, ...]) -> Block:
    """Return a block with some dims first."""
    if dims == tuple(range(len(dims))):
        return x
    found: Block = x.transpose([*dims, *[d for d in range(x.ndim) if d not in dims]])
    return found


def _placed_back(found: Block, rank: int, at: int) -> Block:
    """Return what was found with the dims of the positions, which are first, at their place."""
    if not at:
        return found
    order = [*range(rank, rank + at), *range(rank), *range(rank + at, found.ndim)]
    result: Block = found.transpose(order)
    return result


def _gather(
    x: Block, *places: Block, dims: tuple[int, ...], at: int, starts: tuple[int, ...] = ()
) -> Block:
    """Look up the positions that the block holds; the others give zeros."""
    local, inside = _inside(x, places, dims, starts)
    front = _front(x, dims)
    count = np.count_nonzero(inside)
    if count == inside.size and len(dims) == 1 and x.flags.c_contiguous:
        # Twice as fast as an index, since nothing is checked again.
        taken: Block = x.take(local[0], axis=dims[0], mode="clip")
        found = np.moveaxis(taken, range(dims[0], dims[0] + inside.ndim), range(inside.ndim))
    elif count == inside.size:
        found = front[tuple(local)]
    else:
        found = np.zeros((*inside.shape, *front.shape[len(dims) :]), x.dtype)
        if count:
            found[inside] = front[tuple(p[inside] for p in local)]
    return _placed_back(found, inside.ndim, at)


register(
    Op(
        "gather",
        _gather_rule,
        _gather,
        dtypes=same_dtype,
        local=_gather_cell,
        positions=Positions(lambda params: params["dims"]),
    )
)


def _is_plain(x: Any, arrays: dict[int, Any]) -> bool:
    """Whether single traced positions name a place in blocks that have their dims whole."""
    cuts = x.aval.layout.cuts
    return is_traced(*arrays.values()) and all(
        p.ndim == 0 and len(cuts[d]) == 2 and x.shape[d] for d, p in arrays.items()
    )


def _cut_out(index: IndexParts) -> Any:
    """Return what an index with single traced positions selects: a view of each block."""
    x = index.x
    if index.moves:
        x = bind("slice", x, slices=tuple(index.slices), dropped=())
    starts = [index.arrays.get(d, 0) for d in range(x.ndim)]
    sizes = tuple([1 if d in index.arrays else n for d, n in enumerate(x.shape)])
    _, shape = index.gathered_shape(x.shape, ())
    found = window(x, starts, sizes, (False,) * x.ndim)
    return reshape(found, shape)


def _gathered(index: IndexParts) -> Any:
    """Return what an index with arrays of positions selects."""
    x, common = index.x, index.common_shape()
    if index.clamp and not common and _is_plain(x, index.arrays):
        return _cut_out(index)
    if index.moves:
        x = bind("slice", x, slices=tuple(index.slices), dropped=())
    places = [broadcast_to(p, common) for p in index.arrays.values()]
    at, shape = index.gathered_shape(x.shape, common)
    found = bind("gather", x, *places, dims=tuple(index.arrays), at=at)
    return reshape(found, shape) if shape != found.shape else found


def whole_numbers(indices: Any, what: str) -> Any:
    """Return positions, checked to be integers; values of the host stay there for now."""
    if isinstance(indices, list) and not indices:
        return np.empty(0, np.int64)
    if isinstance(indices, (list, tuple)) and any(map(is_array, indices)):
        indices = stacked([as_array(i) for i in indices])
    places = indices if is_array(indices) else as_host(indices, what)
    if places.dtype.kind not in "iu":
        raise IndexingError(f"{what}: positions must be integers, not {places.dtype}.")
    return places
