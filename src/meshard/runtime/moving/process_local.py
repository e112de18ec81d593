"""Arrays from the parts that processes hold: `make_array_from_process_local_data`.

Along each dim a process gives either the whole dim, or the shards that its devices hold, joined.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, overload

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import shape_of
from meshard.algebra.layout import Layout
from meshard.algebra.sharding import NamedSharding
from meshard.errors import CoverageError
from meshard.runtime.agree import meet
from meshard.runtime.array.array import Array
from meshard.runtime.moving.make import needed_sharding, prefix_leaves
from meshard.runtime.moving.place import as_host, filled
from meshard.runtime.trees.trees import flatten_with_none, unflatten
from meshard.runtime.types import ArrayLike, Block
from meshard.runtime.world import here

_WHAT = "make_array_from_process_local_data"
Shape = tuple[int, ...]
Intervals = list[tuple[int, int]]


@overload
def make_array_from_process_local_data(
    sharding: Any, local_data: ArrayLike, global_shape: Any = None
) -> Array: ...
@overload
def make_array_from_process_local_data(
    sharding: Any, local_data: Any, global_shape: Any = None
) -> Any: ...
def make_array_from_process_local_data(
    sharding: Any, local_data: Any, global_shape: Any = None
) -> Any:
    """Make global arrays from the part that each process holds.

    Args:
        sharding: how the global array is laid out; or a tree of shardings that is a prefix of
            ``local_data``.
        local_data: this process's part, or a tree of parts. Along each dim it is either the whole
            dim, or the shards that this process's devices hold, joined in order.
        global_shape: the global shape; or a tree of shapes that is a prefix of ``local_data``. By
            default the shape that the parts join to; all processes must then make the call.

    Returns:
        The tree of arrays.

    Raises:
        CoverageError: if the data does not fill this process's shards exactly, or the parts do not
            determine the global shape.
        TreeError: if a tree is not a prefix of ``local_data``.

    >>> import meshard, numpy as np
    >>> from meshard.testing import simulate
    >>> def program():
    ...     rows = meshard.NamedSharding(meshard.make_mesh((4,), ("x",)), meshard.P("x"))
    ...     mine = np.full((4, 3), float(meshard.process_index()))
    ...     x = meshard.make_array_from_process_local_data(rows, mine)
    ...     return x.shape, x.sum(axis=0).tolist()
    >>> simulate(2, 2, program)[0]
    ((8, 3), [4.0, 4.0, 4.0])
    """
    leaves, structure = flatten_with_none(local_data)
    shardings = prefix_leaves(sharding, local_data, _WHAT, "shardings")
    given, prefix = flatten_with_none(global_shape, _is_shape)
    wanted = unflatten(prefix, map(_leaf, given))
    shapes = prefix_leaves(wanted, local_data, _WHAT, "global shapes")
    made = [
        None if leaf is None else _made(needed_sharding(place, _WHAT), as_host(leaf, _WHAT), shape)
        for leaf, place, shape in zip(leaves, shardings, shapes, strict=True)
    ]
    return unflatten(structure, made)


def _is_shape(given: object) -> bool:
    numbers = (int, np.integer)
    return isinstance(given, (tuple, list)) and all(isinstance(n, numbers) for n in given)


def _leaf(shape: Any) -> Any:
    """Return a shape as an object that is not a container, so that it is a leaf of its tree."""
    return None if shape is None else np.asarray(shape_of(shape, _WHAT, "global_shape"), np.int64)


def _made(sharding: Sharding, value: Block, global_shape: Any) -> Array:
    world = here()
    me = world.process_index
    process_of = {d.id: d.process_index for d in sharding.device_order}
    if global_shape is None:
        shape = _joined_shape(sharding, value, process_of)
    else:
        shape = shape_of(global_shape, _WHAT)
        if len(shape) != value.ndim:
            raise CoverageError(
                f"{_WHAT}: the data of process {me} has shape {value.shape}, of rank {value.ndim}, "
                f"and the global shape {shape} has rank {len(shape)}."
            )
    type_ = world.type_of(shape, value.dtype, sharding, True)
    starts: list[Mapping[int, int] | None] = []
    for dim, spans in enumerate(_held(type_.layout, process_of, me)):
        if value.shape[dim] == shape[dim]:
            starts.append(None)
            continue
        own = _length(spans)
        if type_.local and value.shape[dim] != own:
            raise CoverageError(
                f"{_WHAT}: the data of process {me} has shape {value.shape}. Along dim {dim} it "
                f"must have all {shape[dim]} elements of the global shape {shape}, or the {own} "
                f"of this process's shards, {_text(spans)}; it has {value.shape[dim]}."
            )
        starts.append(_starts(spans, dim))

    def part(piece: int) -> Block:
        index: list[Any] = []
        for a, b, known in zip(*type_.layout.box(piece), starts, strict=True):
            at = a if known is None else known[a]
            index.append(slice(at, at + b - a))
        cut: Block = value[(*index, ...)]
        return cut

    return filled(world, type_, part, _WHAT)


def _held(layout: Layout, process_of: Mapping[int, int], process: int) -> list[Intervals]:
    """Return for each dim the spans that a process's devices hold, in order."""
    boxes = [
        box
        for i, box in enumerate(layout.boxes)
        if any(process_of[d] == process for d in layout.holders(i))
    ]
    return [sorted({(b.starts[dim], b.stops[dim]) for b in boxes}) for dim in range(layout.ndim)]


def _length(spans: Intervals) -> int:
    return sum(b - a for a, b in spans)


def _text(spans: Intervals) -> str:
    shown = ", ".join(f"{a}:{b}" for a, b in spans[:8])
    return f"{shown}, ..." if len(spans) > 8 else shown or "none"


def _starts(spans: Intervals, dim: int) -> dict[int, int]:
    """Return where each span begins in the data that joins them."""
    at, end, known = 0, 0, {}
    for a, b in spans:
        if a < end:
            raise CoverageError(
                f"{_WHAT}: this process's shards overlap along dim {dim}: {_text(spans)}. They "
                "cannot be joined; give all of that dim."
            )
        known[a] = at
        at, end = at + b - a, b
    return known


def _joined_shape(sharding: Sharding, value: Block, process_of: Mapping[int, int]) -> Shape:
    """Return the global shape that the parts of all processes join to.

    All processes learn all shapes, so that they refuse together or not at all.
    """
    world = here()
    processes = sorted(set(process_of.values()))
    if processes == [world.process_index]:
        own: Shape = value.shape
        return own
    if world.process_index not in processes:
        raise CoverageError(
            f"{_WHAT}: process {world.process_index} has no device of {sharding!r}; "
            "pass global_shape=."
        )
    meet(world, processes, _WHAT)
    told: list[Any] = world.transport.all_gather((value.shape, str(value.dtype)), processes)
    shapes: dict[int, Shape] = {p: s for p, (s, _) in zip(processes, told, strict=True)}
    if len({(len(shape), dtype) for shape, dtype in told}) > 1:
        parts = ", ".join(
            f"{dtype}{shape} on process {p}"
            for p, (shape, dtype) in zip(processes, told, strict=True)
        )
        raise CoverageError(f"{_WHAT}: the parts differ in rank or dtype: {parts}.")
    if not isinstance(sharding, NamedSharding):
        raise CoverageError(f"{_WHAT}: for a sharding without a mesh, pass global_shape=.")
    grid = sharding.shards(value.ndim)
    probe = NamedSharding(sharding.mesh, sharding.spec).layout(grid)
    held = {p: _held(probe, process_of, p) for p in processes}
    shape = tuple(
        _joined_dim(dim, {p: (tuple(held[p][dim]), shapes[p][dim]) for p in processes})
        for dim in range(value.ndim)
    )
    layout = sharding.layout(shape)
    for p in processes:
        needed = tuple(map(_length, _held(layout, process_of, p)))
        if shapes[p] != needed:
            raise CoverageError(
                f"{_WHAT}: the parts join to the global shape {shape}, of which process {p} holds "
                f"{needed}, but its data has shape {shapes[p]}. Pass global_shape=, or give each "
                "process the data of its own shards."
            )
    return shape


def _joined_dim(dim: int, parts: Mapping[int, tuple[tuple[tuple[int, int], ...], int]]) -> int:
    """Return the size of one dim, from the shards that each process holds and their length."""
    lengths: dict[tuple[tuple[int, int], ...], tuple[int, int]] = {}
    for process, (shards, length) in parts.items():
        first, known = lengths.setdefault(shards, (process, length))
        if known != length:
            raise CoverageError(
                f"{_WHAT}: processes {first} and {process} hold the same shards of dim {dim}, but "
                f"their data has {known} and {length} elements along it."
            )
    every = [shard for shards in lengths for shard in shards]
    if len(set(every)) != len(every):
        raise CoverageError(
            f"{_WHAT}: along dim {dim} processes share some of their shards but not all, so that "
            "the global shape does not follow from the parts; pass global_shape=."
        )
    return sum(length for _, length in lengths.values())
