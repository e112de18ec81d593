"""Sorting along one split dim, without bringing it together.

Each cell sorts its own block. From samples, which are few, splitters are chosen that cut the sorted
whole into nearly equal parts; each cell counts its elements before each splitter, and the counts
say what goes where. Each device receives its part as sorted runs, merges them, and gives what is
too much to its neighbours, so that the result is laid out like the operand. An element crosses
between devices about once. Elements that compare equal are distinguished by their place, so that
the sort is stable and equal elements spread over the parts like others.

Whatever depends on values (samples and counts) is the same on every process, and so is the plan.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.dimmap import DimMap
from meshard.algebra.layout import Cuts, Layout
from meshard.algebra.propagate import Split
from meshard.algebra.sharding import BoxSharding, NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.ops.engine.later import at_run_time, is_traced, relaid
from meshard.ops.engine.operand_mesh import named_sharding
from meshard.ops.ordering import argsort_block, pack, packable, sort_block, sort_keys, unpack
from meshard.ops.row import Bounds, Op, Operand, Params, Partial, RuleText, register
from meshard.plan.move.assemble import Source, assemble
from meshard.plan.move.wires import Move, Wire, move_wire
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.execute import run_part
from meshard.runtime.moving.place import as_array, placed
from meshard.runtime.types import ArrayType, Block, Blocks
from meshard.runtime.watching.ledger import wired
from meshard.runtime.world import RuntimeWorld, here
from meshard.tuning import GATHERED_SORT, LARGE, SORT_SAMPLES


def known(x: Any) -> Block:
    """Return the value of a small array, the same on every process of its mesh.

    Raises:
        NotAddressableError: on a process that has no device of the mesh.
        ConcretizationError: if it is traced and does not stand for one value.
    """
    array = as_array(x)
    if is_traced(array):
        return np.asarray(array)
    # Where one process holds it, an open ledger still sees what bringing it together moves.
    if isinstance(array.sharding, NamedSharding) and (
        not array.is_fully_addressable or here().ledgers
    ):
        target = NamedSharding(array.sharding.mesh, PartitionSpec())
        array = placed(array, target, what="read")
    return np.asarray(array)


def on_pieces(x: Array, function: Callable[[int, Block], Block]) -> list[Block | None]:
    """Call a function with the number and the block of each piece that is here.

    Returns:
        Its results; None for pieces that are elsewhere.
    """
    blocks = x._live()
    found: list[Block | None] = [None] * len(blocks)

    def one(piece: int, block: Block) -> None:
        found[piece] = function(piece, block)

    tasks = [partial(one, i, b) for i, b in enumerate(blocks) if b is not None]
    _run_tasks(here(), tasks, x.nbytes)
    return found


def everywhere(
    x: Array, parts: Sequence[Block | None], counts: Sequence[int], dtype: np.dtype[Any]
) -> list[Block]:
    """Bring something of each piece of an array on a mesh to all of its devices.

    Args:
        x: the array.
        parts: blocks of one dim; None for those of pieces that are elsewhere.
        counts: their lengths, the same on all processes.
        dtype: their dtype.
    """
    sharding: Any = x.sharding
    cuts = (0, *np.cumsum(counts).tolist())
    axes = tuple([a for dim in sharding.spec.axes(x.ndim) for a in dim])
    own = named_sharding(sharding.mesh, (Split(axes, cuts),), sharding.memory_kind)
    kind = here().type_of((cuts[-1],), dtype, own, x.committed)
    whole = known(Array(kind, tuple(parts)))
    return [whole[a:b] for a, b in pairwise(cuts)]


def regular(x: Array) -> Array:
    """Return the array on a mesh or one device; only an array laid out by boxes is moved."""
    boxed = isinstance(x.sharding, BoxSharding)  # which is of one shape
    if isinstance(x.sharding, NamedSharding) or (x.aval.layout.piece_count == 1 and not boxed):
        return x
    found: Array = bind("astype", x, dtype=x.dtype)
    return found


# counts of cells: each cell fills its own row of a small matrix


def _count_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    return "d, !s, !s, !s -> c s", {"c": len(params["cuts"]) - 1}


def _true_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    return "d -> c", {"c": len(params["cuts"]) - 1}


def _cell(params: Params, bounds: Bounds, shape: tuple[int, ...]) -> Params:
    """Give the kernel its cell and the number of cells instead of all cuts."""
    cuts = params["cuts"]
    others = {name: value for name, value in params.items() if name != "cuts"}
    return {**others, "row": (bisect_right(cuts, bounds["d"][0]) - 1, len(cuts) - 1)}


def _int_law(operands: Sequence[Operand], params: Params) -> tuple[np.dtype[Any], ...]:
    return (np.dtype(np.int64),)


def _search(run: Block, values: Block, side: Any, descending: bool) -> Block:
    """Return how many elements of a sorted run come before each value."""
    keys, wanted = sort_keys(run), sort_keys(values)
    if not descending:
        return np.searchsorted(keys, wanted, side)
    other: Any = "left" if side == "right" else "right"
    return len(keys) - np.searchsorted(keys[::-1], wanted, other)


def _count(
    run: Block,
    values: Block,
    cells: Block,
    offsets: Block,
    *,
    row: tuple[int, int],
    descending: bool,
) -> Block:
    """Count the run's elements before each splitter, in the cell's row of a matrix of zeros.

    Elements equal to a splitter come before it if they are in an earlier cell, or in its own cell
    at an earlier position.
    """
    cell, count = row
    found = np.zeros((count, len(values)), np.int64)
    if len(run):
        before = _search(run, values, "left", descending)
        after = _search(run, values, "right", descending)
        found[cell] = np.where(cells < cell, before, np.where(cells > cell, after, offsets))
    return found


def _true(mask: Block, *, row: tuple[int, int]) -> Block:
    cell, count = row
    found = np.zeros(count, np.int64)
    if len(mask):
        found[cell] = np.count_nonzero(mask)
    return found


register(
    Op(
        "sort_counts",
        _count_rule,
        _count,
        dtypes=_int_law,
        partial=Partial(np.add, "counts"),
        local=_cell,
    )
)
register(
    Op(
        "true_counts",
        _true_rule,
        _true,
        dtypes=_int_law,
        partial=Partial(np.add, "counts"),
        local=_cell,
    )
)


def _positions_cell(params: Params, bounds: Bounds, shape: tuple[int, ...]) -> Params:
    return {"start": bounds["d"][0]}


def _positions(x: Block, *, start: int) -> Block:
    return np.arange(start, start + len(x))


register(Op("positions", "d -> d", _positions, dtypes=_int_law, local=_positions_cell))


def _pack_cell(params: Params, bounds: Bounds, shape: tuple[int, ...]) -> Params:
    return {"start": bounds["d"][0], "descending": params["descending"]}


def _pack(x: Block, *, start: int, descending: bool) -> Block:
    return pack(x, start, descending)


def _packed_law(operands: Sequence[Operand], params: Params) -> tuple[np.dtype[Any], ...]:
    return (np.dtype(np.uint64),)


register(Op("sort_pack", "d -> d", _pack, dtypes=_packed_law, local=_pack_cell))
register(Op("sort_unpack", "d -> d", unpack, dtypes=_int_law))


# the sort


def _run(x: Block, *, descending: bool) -> Block:
    return sort_block(x, dim=0, descending=descending)


def _run_with(x: Block, other: Block, *, descending: bool) -> tuple[Block, Block]:
    order = argsort_block(x, dim=0, descending=descending)
    return x[order], other[order]


def _with_law(operands: Sequence[Operand], params: Params) -> tuple[np.dtype[Any], ...]:
    return tuple(d for _, d in operands if isinstance(d, np.dtype))


def _whole_run(params: Params, bounds: Bounds, shape: tuple[int, ...]) -> Params:
    """Return the parameters; that there is such a function says that a cell is sorted as one."""
    return params


register(Op("sort_runs", "d -> d", _run, dtypes=_with_law, local=_whole_run))
register(
    Op("sort_runs_with", "d, d -> d, d", _run_with, dtypes=_with_law, outputs=2, local=_whole_run)
)
register(Op("sort_whole", "!d -> d", _run, dtypes=_with_law))
register(Op("sort_whole_with", "!d, !d -> d, d", _run_with, dtypes=_with_law, outputs=2))


def sort_split(x: Array, other: Array | None = None, *, descending: bool = False) -> list[Array]:
    """Sort an array of one dim that is split over a mesh.

    Args:
        x: the array, on a mesh.
        other: an array of the same length whose elements go along; ``None`` for none.
        descending: whether the greatest comes first; equal elements keep their order.

    Returns:
        The sorted array, and the other one in the same order; both are laid out like ``x``.
    """
    given = (x,) if other is None else (x, other)
    found: list[Array] = at_run_time("sort", _sort_split, *given, descending=descending)
    return found


def argsort_split(x: Array, *, descending: bool = False) -> Array:
    """Return the positions that sort an array of one dim that is split over a mesh, stably.

    An element of up to 32 bits and its position are sorted as one number, so that 8 bytes of each
    pass between devices, and no two numbers are equal.
    """
    if packable(x.dtype) and x.nbytes > GATHERED_SORT and x.shape[0] < 1 << 32:
        (found,) = sort_split(bind("sort_pack", x, descending=descending))
        result: Array = bind("sort_unpack", found)
        return result
    return sort_split(x, bind("positions", x), descending=descending)[1]


def _sort_split(x: Array, other: Array | None = None, *, descending: bool) -> list[Array]:
    x = regular(x)
    shards = sum(a < b for a, b in pairwise(x.aval.layout.cuts[0]))
    if shards > 1 and x.nbytes <= GATHERED_SORT and not is_traced(x):
        return _sort_gathered(x, other, descending)
    if other is None:
        runs = [bind("sort_runs", x, descending=descending)]
    else:
        runs = list(bind("sort_runs_with", x, other, descending=descending))
    layout: Layout = runs[0].aval.layout
    cuts = layout.cuts[0]
    held = runs[0].aval.local  # nothing, where the mesh has no device of this process
    if is_traced(*runs) or not held or sum(a < b for a, b in pairwise(cuts)) < 2:
        return runs  # traced: only the type is asked for, and it is that of the runs
    splitters = _splitters(runs[0], cuts, descending)
    counts = known(bind("sort_counts", runs[0], *splitters, cuts=cuts, descending=descending))
    return _exchanged(here(), runs, counts, descending)


def _sort_gathered(x: Array, other: Array | None, descending: bool) -> list[Array]:
    """Let each device sort all of a small array, and keep its part."""
    if other is None:
        found = [bind("sort_whole", x, descending=descending)]
    else:
        found = list(bind("sort_whole_with", x, other, descending=descending))
    return [
        relaid(f, here().type_of(x.shape, f.dtype, x.sharding, x.committed), "sort") for f in found
    ]


def _splitters(run: Array, cuts: Cuts, descending: bool) -> tuple[Any, Block, Block]:
    """Choose elements that cut the whole nearly where the cuts are.

    Returns:
        Their values, and to tell equal ones apart, the cell and the position in it of each.
    """
    size, cells = cuts[-1], len(cuts) - 1
    gap = max(1, size // min(8 * cells * cells, SORT_SAMPLES))
    places = [
        (k, at) for k, (a, b) in enumerate(pairwise(cuts)) for at in range(gap - 1, b - a, gap)
    ]
    where = tuple(cuts[k] + at for k, at in places)
    values = known(bind("take_positions", run, dims=((0, (where,)),)))
    order = argsort_block(values, dim=0, descending=descending)
    # The sample of rank r has about (r + 1) * gap elements before it, those between samples too.
    between = (cells - 1) * (gap - 1) // 2
    ranks = [min(max((c - between) // gap, 0), len(order) - 1) for c in cuts[1:-1]]
    chosen = order[np.asarray(ranks, np.int64)]
    origins = np.asarray(places, np.int64)[chosen]
    return values[chosen], origins[:, 0], origins[:, 1]


def _exchanged(
    world: RuntimeWorld, runs: Sequence[Array], counts: Block, descending: bool
) -> list[Array]:
    """Bring each part of the sorted whole together, merge it, and lay the result like the runs."""
    kind = runs[0].aval
    layout = kind.layout
    cuts = layout.cuts[0]
    cells, size = len(cuts) - 1, cuts[-1]
    lengths = np.diff(np.asarray(cuts))[:, None]
    bounds = np.concatenate([np.zeros((cells, 1), np.int64), counts, lengths], axis=1)
    parts = tuple(bounds.sum(axis=0).tolist())
    segments: list[tuple[int, int, int, int]] = []
    at = 0
    for part in range(cells):
        for cell in range(cells):
            start, stop = int(bounds[cell, part]), int(bounds[cell, part + 1])
            segments.append((at, stop - start, cuts[cell] + start, 1))
            at += stop - start
    middle = Layout(layout.shape, (parts,), layout.tensor)
    processes = world.process_map(kind.sharding)
    me = world.process_index
    source = Source(layout, (DimMap(size, size, segments),))
    if world.ledgers:
        wired(world, "sort", [w for r in runs for w in _wires(r.aval, middle, source)])
    gather = assemble(middle, [source], processes, me)
    blocks = [run_part(world, gather, (r._live(),), r.dtype) for r in runs]
    merged = _merged(world, blocks, kind.nbytes, descending)
    if parts == cuts:
        return [Array(r.aval, b) for r, b in zip(runs, merged, strict=True)]
    settle = assemble(layout, [Source(middle)], processes, me)
    return [
        Array(r.aval, run_part(world, settle, (b,), r.dtype))
        for r, b in zip(runs, merged, strict=True)
    ]


def _wires(kind: ArrayType, middle: Layout, source: Source) -> tuple[Wire, Wire]:
    """Return what passes between devices to the parts, and then between neighbours."""
    name, own, itemsize = kind.str_short(), kind.sharding, kind.dtype.itemsize
    return (
        move_wire(name, Move(own, (own,), middle, (source,), itemsize)),
        move_wire(name, Move(own, (own,), kind.layout, (Source(middle),), itemsize)),
    )


def _merged(
    world: RuntimeWorld, blocks: Sequence[Blocks], nbytes: int, descending: bool
) -> list[Blocks]:
    """Merge the runs of each piece, in all arrays alike."""
    results: list[list[Block | None]] = [[None] * len(blocks[0]) for _ in blocks]

    def merge(piece: int) -> None:
        given = [b[piece] for b in blocks]
        first = given[0]
        assert first is not None
        if len(given) == 1:
            results[0][piece] = sort_block(first, dim=0, descending=descending)
            return
        order = argsort_block(first, dim=0, descending=descending)
        for result, block in zip(results, given, strict=True):
            assert block is not None
            result[piece] = block[order]

    tasks = [partial(merge, i) for i, b in enumerate(blocks[0]) if b is not None]
    _run_tasks(world, tasks, nbytes)
    return [tuple(r) for r in results]


def told(numbers: Sequence[Sequence[int] | None], x: Array, axes: tuple[str, ...]) -> Block:
    """Tell all processes some numbers of each part of a dim, one row for each part.

    Args:
        numbers: those of the parts that are here.
        x: an array on the devices that take part.
        axes: the axes that split the dim.
    """
    blocks = [None if n is None else np.asarray(n, np.int64)[None] for n in numbers]
    width = next((b.shape[1] for b in blocks if b is not None), 0)
    sharding, count = x.sharding, len(numbers)
    if isinstance(sharding, NamedSharding):
        placement = (Split(axes, tuple(range(count + 1))), Split((), (0, width)))
        sharding = named_sharding(sharding.mesh, placement, sharding.memory_kind)
    kind = here().type_of((count, width), np.dtype(np.int64), sharding, x.committed)
    return known(Array(kind, tuple(blocks)))


# the elements where a mask is true


def count_true(mask: Array) -> Block:
    """Return for each cell of a mask of one dim how many elements are true."""
    return known(bind("true_counts", mask, cuts=mask.aval.layout.cuts[0]))


def _beside(mask: Block, x: Block) -> tuple[Block, Block]:
    return mask, x


register(Op("beside", "d, d -> d, d", _beside, dtypes=_with_law, outputs=2, style="view"))


def compress(mask: Array, *arrays: Array) -> list[Array]:
    """Return the elements of arrays of one dim where a mask is true, each on its device.

    The result's shape depends on the values; only the counts of the cells are brought together.
    Nothing else moves, so that the result may be uneven.

    Args:
        mask: the mask.
        arrays: arrays of the same length.
    """
    world, found = here(), []
    counts: dict[Sharding, Block] = {}
    for array in arrays:
        keep, x = mask, array
        if keep.sharding != x.sharding:
            keep, x = bind("beside", mask, array)
        sharding = keep.sharding
        if sharding not in counts:
            counts[sharding] = count_true(keep)
        cuts = (0, *np.cumsum(counts[sharding]).tolist())
        if isinstance(sharding, NamedSharding):
            split = Split(sharding.spec.axes(1)[0], cuts)
            sharding = named_sharding(sharding.mesh, (split,), sharding.memory_kind)
        blocks = _compressed(world, x._live(), keep._live(), x.nbytes)
        own = world.type_of((cuts[-1],), x.dtype, sharding, keep.committed or x.committed)
        found.append(Array(own, blocks))
    return found


def _compressed(world: RuntimeWorld, blocks: Blocks, masks: Blocks, nbytes: int) -> Blocks:
    """Return of each block the elements where its mask is true."""
    found: list[Block | None] = [None] * len(blocks)

    def one(piece: int, block: Block, mask: Block) -> None:
        # Where a mask changes often, looking up its positions first takes a fifth of the time.
        found[piece] = block.compress(mask)

    pairs = enumerate(zip(blocks, masks, strict=True))
    tasks = [partial(one, i, b, m) for i, (b, m) in pairs if b is not None and m is not None]
    _run_tasks(world, tasks, nbytes)
    return tuple(found)


def _run_tasks(world: RuntimeWorld, tasks: Sequence[Callable[[], None]], nbytes: int) -> None:
    """Run tasks on the workers if the arrays that they read are large."""
    if nbytes >= LARGE:
        world.workers.run(tasks)
        return
    for task in tasks:
        task()
