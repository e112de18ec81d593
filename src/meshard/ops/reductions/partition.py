"""Elements of given ranks put in place, and the greatest elements, without sorting the others.

A dim that is whole is partitioned by NumPy's own kernel. Of an array of one dim that is split the
elements of the given ranks are looked for (`select`); each device partitions its block by them, and
what belongs to another device goes there, nothing else. Of the greatest elements along a split dim
each device finds its own, and few pass between devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import numpy as np

from meshard.algebra.arguments import choice_of
from meshard.algebra.dimmap import DimMap
from meshard.errors import ArgumentError
from meshard.ops.array.join import stack
from meshard.ops.array.samplesort import on_pieces, regular
from meshard.ops.array.shape import moveaxis, reshape
from meshard.ops.array.take import take
from meshard.ops.checked import checked
from meshard.ops.dtypes.laws import SMALL_FLOATS, same_dtype
from meshard.ops.engine.later import ByValues, at_run_time, is_traced, when_laid_out
from meshard.ops.ordering import (
    argpartition_block,
    argsort_block,
    partition_block,
    top_block,
)
from meshard.ops.reductions.select import MOST_RANKS, Bag, brought, of_ranks
from meshard.ops.reductions.sort import (
    Way,
    argsort,
    as_laid_out,
    operand_of,
    position_law,
    sort,
    sort_rule,
    way_to_sort,
)
from meshard.ops.row import Bounds, Dtype, Op, Operand, Params, Partial, RuleText, register
from meshard.plan.move.assemble import Source, assemble
from meshard.plan.move.wires import Move, move_wire
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.execute import run_part
from meshard.runtime.types import ArrayLike, ArrayType, Block
from meshard.runtime.watching.ledger import wired
from meshard.runtime.world import here

register(Op("partition", sort_rule, partition_block, dtypes=same_dtype))
register(Op("argpartition", sort_rule, argpartition_block, dtypes=position_law))


# partitions


def _partitioned(name: str, a: Any, kth: Any, axis: int | None) -> Any:
    x, dim = operand_of(name, a, axis)
    size = x.shape[dim]
    places = np.atleast_1d(np.asarray(kth, np.int64)).reshape(-1).tolist()
    for k in places:
        if not -size <= k < size:
            raise ArgumentError(f"{name}: kth {k} is out of bounds for dim {dim} with size {size}.")
    ranks = tuple(sorted({k % size for k in places}))
    return when_laid_out(name, _along, x, dim=dim, kth=ranks, name=name)


def _along(x: Array, *, dim: int, kth: tuple[int, ...], name: str) -> Any:
    """Partition along a dim in the way that the layout calls for."""
    x = regular(x)
    way = way_to_sort(x, dim)
    if way is Way.WHOLE:
        return bind(name, x, dim=dim, kth=kth)
    if way is Way.GATHERED:
        return as_laid_out(bind(name, x, dim=dim, kth=kth), x, name)
    if way is Way.SPREAD:
        if len(kth) <= MOST_RANKS and (x.dtype.kind in "biuf" or x.dtype in SMALL_FLOATS):
            return at_run_time(name, _Spread(name, kth), x)
        return (argsort if name == "argpartition" else sort)(x)
    last = moveaxis(x, dim, -1)
    rows = reshape(last, (-1, x.shape[dim]))
    if way is Way.MERGED:
        # The merged dim is split, which the dims that it is made of may be too short to be.
        found = as_laid_out(bind(name, rows, dim=1, kth=kth), rows, name)
    else:
        parts = [_along(rows[i], dim=0, kth=kth, name=name) for i in range(len(rows))]
        found = stack(parts)
    return moveaxis(reshape(found, last.shape), -1, dim)


@final
@dataclass(frozen=True)
class _Spread(ByValues):
    """An array of one dim that is split, partitioned on all devices of its mesh.

    Attributes:
        name: whether its elements are wanted (``"partition"``), or their positions.
        kth: the ranks, ascending.
    """

    name: str
    kth: tuple[int, ...]

    def __call__(self, x: Array) -> Any:
        """Return the array, or the positions, laid out like the array."""
        if is_traced(x) or not x.aval.local:  # only the type is asked for
            if self.name == "argpartition":
                return bind("positions", x)
            return bind("sort_runs", x, descending=False)
        cuts = x.aval.layout.cuts[0]
        ranks, bounds = self._bounds(x)

        def parted(piece: int, block: Block) -> Block:
            inside = sorted({int(b) for b in bounds[piece] if 0 < b < len(block)})
            if self.name == "partition":
                return partition_block(block, dim=0, kth=inside)
            found = argpartition_block(block, dim=0, kth=inside)
            found += cuts[piece]
            return found

        blocks = on_pieces(x, parted)
        kind = x.aval
        if self.name == "argpartition":
            kind = here().type_of(x.shape, np.dtype(np.int64), x.sharding, x.committed)
        return _settled(self.name, kind, tuple(blocks), ranks, bounds)

    def _bounds(self, x: Array) -> tuple[list[int], Block]:
        """Return ranks that divide the sorted array, and how many elements of each piece are below.

        An element of a wanted rank is alone between two of them. Equal elements come from the
        first pieces.
        """
        size = x.shape[0]
        bag = Bag(x, (0,))
        values = of_ranks(bag, np.asarray(self.kth)[None])
        below = np.stack(bag.below(values[0]))  # by piece and value: before it, and up to it
        totals = below.sum(0)
        ranks, bounds = [0], [np.zeros(len(below), np.int64)]
        for i, k in enumerate(self.kth):
            equal = below[:, i, 1] - below[:, i, 0]
            earlier = np.cumsum(equal) - equal
            for rank in (k, k + 1):
                if ranks[-1] < rank < size:
                    ranks.append(rank)
                    taken = np.clip(rank - totals[i, 0] - earlier, 0, equal)
                    bounds.append(below[:, i, 0] + taken)
        ranks.append(size)
        bounds.append(np.diff(np.asarray(x.aval.layout.cuts[0])))
        return ranks, np.stack(bounds, 1)

    def most(self, kinds: Sequence[ArrayType]) -> Mapping[int, int]:
        """Return by device how many bytes it gets at most: its part, and what tells the ranks."""
        kind = kinds[0]
        layout, item = kind.layout, kind.dtype.itemsize
        told = brought(kind.shape[0], 1, self.kth) * item
        told += 48 * len(self.kth) * layout.piece_count
        moved = 8 if self.name == "argpartition" else item
        # Of those below a rank as many are on the wrong side as of those above it.
        wrong = sum(2 * min(k + 1, kind.shape[0] - k) for k in self.kth)
        return {
            int(d): min(layout.box(p).volume, wrong) * moved + told
            for p in range(layout.piece_count)
            for d in layout.holders(p)
        }


def _settled(
    name: str,
    kind: ArrayType,
    blocks: tuple[Block | None, ...],
    ranks: Sequence[int],
    bounds: Block,
) -> Array:
    """Bring the elements of partitioned blocks to where their ranks are.

    What is between two ranks stays on its device as far as there is room for it; the rest fills,
    in order, what room there is elsewhere.

    Args:
        name: what ledgers call it.
        kind: the array's type.
        blocks: its blocks, each partitioned.
        ranks: ranks from 0 to the size.
        bounds: for each piece how many elements come before each of these ranks.
    """
    world, layout = here(), kind.layout
    cuts, size = layout.cuts[0], kind.shape[0]
    segments: list[tuple[int, int, int, int]] = []
    for i, (low, high) in enumerate(pairwise(ranks)):
        surplus: list[tuple[int, int]] = []
        room: list[tuple[int, int]] = []
        for piece, (first, last) in enumerate(pairwise(cuts)):
            start, stop = max(low, first), max(min(high, last), max(low, first))
            at, end = (first + int(bounds[piece, i + n]) for n in (0, 1))
            stays = min(stop - start, end - at)
            segments.append((start, stays, at, 1))
            surplus.append((at + stays, end - at - stays))
            room.append((start + stays, stop - start - stays))
        segments += _matched(room, surplus)
    source = Source(layout, (DimMap(size, size, [s for s in segments if s[1]]),))
    if world.ledgers:
        own = kind.sharding
        move = Move(own, (own,), layout, (source,), kind.dtype.itemsize)
        wired(world, name, [move_wire(kind.str_short(), move)])
    part = assemble(layout, [source], world.process_map(kind.sharding), world.process_index)
    return Array(kind, run_part(world, part, (blocks,), kind.dtype))


def _matched(
    room: Sequence[tuple[int, int]], surplus: Sequence[tuple[int, int]]
) -> list[tuple[int, int, int, int]]:
    """Return segments that fill room with what is left over, both as starts and lengths."""
    found = []
    rest = iter([(at, n) for at, n in surplus if n])
    at, left = next(rest, (0, 0))
    for start, length in room:
        while length:
            many = min(length, left)
            found.append((start, many, at, 1))
            start, length, at, left = start + many, length - many, at + many, left - many
            if not left:
                at, left = next(rest, (0, 0))
    return found


@checked
def partition(
    a: ArrayLike,
    kth: int | Sequence[int],
    axis: int | None = -1,
    kind: str = "introselect",
    order: None = None,
) -> Array:
    """Return the array with its kth element where sorting puts it, and the lesser ones before it.

    The order of the others depends on how the array is laid out, not on the number of processes.
    Of an array of one dim that is split, only elements move that are on the wrong side.

    Args:
        a: the array.
        kth: the position, or several.
        axis: the dim; None for the flat array.
        kind: ``"introselect"``, the only one that NumPy knows.
        order: accepted as in NumPy; arrays have no fields.

    Raises:
        ArgumentError: if ``kth`` is not a position of the dim.

    >>> import meshard.numpy as mnp
    >>> int(mnp.partition(mnp.asarray([3, 9, 5, 1]), 1)[1])
    3
    """
    choice_of(kind, ("introselect",), "partition", "kind")
    return _partitioned("partition", a, kth, axis)


@checked
def argpartition(
    a: ArrayLike,
    kth: int | Sequence[int],
    axis: int | None = -1,
    kind: str = "introselect",
    order: None = None,
) -> Array:
    """Return the positions that would `partition` the array.

    >>> import meshard.numpy as mnp
    >>> mnp.argpartition(mnp.asarray([30, 10, 20]), 0)[0].item()
    1
    """
    choice_of(kind, ("introselect",), "argpartition", "kind")
    return _partitioned("argpartition", a, kth, axis)


# the greatest


def _top_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    names = [f"d{i}" for i in range(len(operands[0][0]))]
    kept = names[:-1]
    read = [*kept, f"!{names[-1]}" if params["whole"] else names[-1]]
    made = " ".join([*kept, "k"])
    return f"{' '.join(read)} -> {made}, {made}", {"k": params["k"]}


def _top_law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    return (*same_dtype(operands, params), np.dtype(np.int64))


def _top_cell(params: Params, bounds: Bounds, shape: tuple[int, ...]) -> Params:
    last = f"d{len(shape) - 1}"
    return {"k": params["k"], "start": bounds[last][0]}


def _top(x: Block, *, k: int, start: int) -> tuple[Block, Block]:
    return top_block(x, dim=x.ndim - 1, k=k)


def _top_part(x: Block, *, k: int, start: int) -> tuple[Block, Block]:
    """Return the greatest elements of one cell; positions of -1 are filled up with."""
    own = min(k, x.shape[-1])
    values, places = top_block(x, dim=x.ndim - 1, k=own)
    wide = [(0, 0)] * (x.ndim - 1) + [(0, k - own)]
    return np.pad(values, wide), np.pad(places + start, wide, constant_values=-1)


def _top_joined(parts: Sequence[tuple[Block, ...]]) -> tuple[Block, ...]:
    """Return the greatest of all cells' elements; equal ones in the order of their cells."""
    values, places = (np.concatenate(column, -1) for column in zip(*parts, strict=True))
    k = parts[0][0].shape[-1]
    order = argsort_block(values, dim=values.ndim - 1, descending=True)
    filled = np.take_along_axis(places, order, -1) < 0
    if filled.any():
        order = np.take_along_axis(order, np.argsort(filled, -1, kind="stable"), -1)
    order = order[..., :k]
    return np.take_along_axis(values, order, -1), np.take_along_axis(places, order, -1)


register(
    Op(
        "top_k",
        _top_rule,
        _top,
        dtypes=_top_law,
        outputs=2,
        local=_top_cell,
        partial=Partial(_top_joined, "selects", _top_part, along=-1),
    )
)


def _tops(x: Array, *, dim: int, k: int) -> Any:
    """Find the greatest elements: those of each cell, unless these are most of the dim."""
    x = regular(x)
    cuts = x.aval.layout.cuts[dim]
    cells, item = sum(a < b for a, b in pairwise(cuts)), x.dtype.itemsize
    few = cells > 1 and k * cells * (item + 8) < x.shape[dim] * item
    if few or way_to_sort(x, dim) in (Way.WHOLE, Way.GATHERED):
        found = bind("top_k", moveaxis(x, dim, -1), k=k, whole=not few)
        return [moveaxis(f, -1, dim) for f in found]
    if x.ndim == 1:
        places = argsort(x, descending=True)[:k]
        return [take(x, places), places]
    head = (*(slice(None),) * dim, slice(0, k))
    return [f(x, dim, descending=True)[head] for f in (sort, argsort)]


@checked
def top_k(operand: ArrayLike, k: int, *, axis: int = -1) -> tuple[Array, Array]:
    """Return the k greatest elements along a dim, the greatest first, and their positions.

    Along a split dim each device finds its own, and these alone pass between devices.

    Args:
        operand: the array.
        k: how many.
        axis: the dim.

    Raises:
        ArgumentError: if the dim has fewer than ``k`` elements.

    >>> import meshard.numpy as mnp
    >>> from meshard.lax import top_k
    >>> [found.tolist() for found in top_k(mnp.asarray([3, 9, 5]), 2)]
    [[9, 5], [1, 2]]
    """
    x, dim = operand_of("top_k", operand, axis)
    if not 0 <= k <= x.shape[dim]:
        raise ArgumentError(
            f"top_k: k must be from 0 to the size of dim {dim}, {x.shape[dim]}, got {k}."
        )
    values, places = when_laid_out("top_k", _tops, x, dim=dim, k=int(k))
    return values, places
