"""Reductions across processes: partial results become whole ones.

Partial results are seen as one array with a leading dim over the reduced cells. Its cells are
brought together (all of them everywhere when small; otherwise each device gets its share of the
result) and combined in mesh order; the shares then go where the result is. Each element is combined
once or by the same steps everywhere, so that all devices hold the same bits, whatever the number of
processes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, final

import numpy as np

from meshard.algebra.box import Index
from meshard.algebra.layout import Layout, balanced_cuts
from meshard.algebra.mesh import Mesh
from meshard.algebra.propagate import Placement
from meshard.algebra.sharding import device_tensor
from meshard.ops.row import Dtype
from meshard.plan.move.assemble import Source, assemble
from meshard.plan.move.part import Part
from meshard.runtime.moving.execute import run_part
from meshard.runtime.types import Block, Blocks
from meshard.runtime.world import RuntimeWorld
from meshard.tuning import CACHE_PIECE, GATHERED_PARTIALS, LARGE, STACKED_CELLS

Shape = tuple[int, ...]


@final
@dataclass(frozen=True)
class Reduction:
    """How partial results of several processes become the result.

    Attributes:
        cells: the number of partial results of each element.
        gather: brings partial results together; the pieces have a leading dim of ``cells``.
        place: from the combined shares to the result's pieces; None if the shares are these pieces.
        dtypes: the dtypes of the partial results.
        pieces: the pieces of the partial layout.
        small: whether every piece of the result gets whole partial results, to be combined there.
    """

    cells: int
    gather: Part
    place: Part | None
    dtypes: tuple[Dtype, ...]
    pieces: int
    small: bool = False

    @cached_property
    def routes(self) -> _Routes:
        """Who sends what to whom, where partial results are small."""
        sends: list[tuple[int, tuple[_Sent, ...]]] = []
        known: dict[Any, tuple[_Sent, ...]] = {}
        for message in self.gather.sends:
            boxes = tuple(
                [
                    (c.origin, k, c.shape[1:], c.region[1:])
                    for k in range(len(self.dtypes))
                    for c in message.copies
                ]
            )
            sends.append((message.peer, known.setdefault(repr(boxes), boxes)))
        receives = []
        for message in self.gather.receives:
            places, size = [], 0
            for k, dtype in enumerate(self.dtypes):
                for c in message.copies:
                    recipe = self.gather.recipes[c.piece]
                    assert recipe is not None
                    shape, whole = c.shape[1:], recipe.shape[1:]
                    box = None if shape == whole else (whole, c.target[1:])
                    places.append((c.piece, c.target[0].start, k, size, shape, box))
                    size += math.prod(shape) * dtype.itemsize
            receives.append((message.peer, size, tuple(places)))
        own = [
            None if recipe is None else [(c.target[0].start, c.origin) for c in recipe.copies]
            for recipe in self.gather.recipes
        ]
        sizes = [(peer, size) for peer, size, _ in receives]
        return _Routes(tuple(sends), tuple(receives), tuple(sizes), tuple(own))


_Sent = tuple[int, int, Shape, Index]
_Place = tuple[int, int, int, int, Shape, tuple[Shape, Index] | None]


@final
@dataclass(frozen=True, slots=True)
class _Routes:
    """How small partial results reach those who combine them.

    Attributes:
        sends: for each peer the boxes that it gets, of one dtype after the other: the piece of the
            partial layout, the dtype's number, the box's shape and place. Peers that get the same
            share one tuple.
        receives: for each peer the bytes that it sends, and what these are, box by box: the
            result's piece, the cell, the dtype's number, where the box begins, and its shape. Where
            several peers have a cell, each sends a box of it: the cell's shape and the place in it.
        sizes: the bytes that each peer sends.
        own: for each piece of the result the cells that are here, and their partial pieces; None
            for a piece that is not held here.
    """

    sends: tuple[tuple[int, tuple[_Sent, ...]], ...]
    receives: tuple[tuple[int, int, tuple[_Place, ...]], ...]
    sizes: tuple[tuple[int, int], ...]
    own: tuple[list[tuple[int, int]] | None, ...]


@final
@dataclass(frozen=True, slots=True)
class Partials:
    """Where partial results are.

    Attributes:
        mesh: the mesh.
        axes: the axes that they are to be combined over.
        placement: how each of them is laid out over the other axes.
        shape: the shape of the result.
        dtypes: their dtypes.
        along: the dim along which they are combined, which is not divided; None if there is none.
    """

    mesh: Mesh
    axes: tuple[str, ...]
    placement: Placement
    shape: tuple[int, ...]
    dtypes: tuple[Dtype, ...]
    along: int | None = None

    @property
    def shared(self) -> list[int]:
        """The dims of the result along which the work may be divided."""
        rank = len(self.shape)
        return [d for d in range(rank) if self.along is None or d != self.along % rank]

    @property
    def nbytes(self) -> int:
        """The bytes of one partial result."""
        return math.prod(self.shape) * sum(d.itemsize for d in self.dtypes)


@final
@dataclass(frozen=True, slots=True)
class Scatter:
    """How a combined result stays divided among the devices that share it.

    Attributes:
        dim: the dim along which it is divided.
        axes: the axes that divide it, of those that partial results are combined over.
        layout: the result's layout, if these are not all of them.
    """

    dim: int
    axes: tuple[str, ...]
    layout: Layout | None = None

    def inward(self, axes: Sequence[str]) -> list[int]:
        """Return the numbers of the axes that are summed over, those first that divide the dim."""
        rest = [a for a in axes if a not in self.axes]
        return [axes.index(a) for a in (*self.axes, *rest)]


def _longest(partials: Partials) -> int:
    """Return the dim whose pieces are longest: shares of it are nearly equal."""
    shape, placement = partials.shape, partials.placement
    return max(partials.shared, key=lambda d: shape[d] // placement[d].shards)


def plan_reduction(
    world: RuntimeWorld, partials: Partials, scatter: Scatter | None = None
) -> Reduction:
    """Plan how partial results are combined.

    With ``scatter`` the result stays divided.
    """
    mesh, placement, shape = partials.mesh, partials.placement, partials.shape
    dims = [partials.axes, *(s.axes for s in placement)]
    tensor = device_tensor(mesh.device_ids, mesh.axis_names, dims)
    cells = tensor.shape[0]
    cuts = tuple(s.cuts for s in placement)
    # The partial results as one array with a leading dim over the cells, each cell on its devices.
    parts = Layout((cells, *shape), (tuple(range(cells + 1)), *cuts), tensor)
    processes = {d.id: d.process_index for d in mesh.flat_devices}
    me = world.process_index
    # All devices that combine one piece of the result hold it afterwards: as replicas.
    outs = np.ascontiguousarray(np.moveaxis(tensor, 0, -2))
    outs = outs.reshape(*outs.shape[:-2], -1)
    if scatter is None and (cells * partials.nbytes <= GATHERED_PARTIALS or not partials.shared):
        whole = Layout((cells, *shape), ((0, cells), *cuts), outs[None])
        gather = assemble(whole, [Source(parts)], processes, me)
        some = all(box.volume for box in whole.boxes)  # nothing is planned for empty pieces
        return Reduction(cells, gather, None, partials.dtypes, parts.piece_count, some)
    own_way = Scatter(_longest(partials), ()) if scatter is None else scatter
    dim = own_way.dim
    inward = own_way.inward(partials.axes)
    # Each shard of the dim is cut once more, a share for each cell: the device of a cell brings
    # together and combines only its share, from all cells.
    own = cuts[dim]
    fine = (
        *(a + c for a, b in pairwise(own) for c in balanced_cuts(b - a, cells)[:-1]),
        own[-1],
    )
    # The cells' axis of the tensor becomes the faster part of that dim's axis.
    # Devices that keep the same part of the result combine shares that lie side by side in it.
    sizes = [mesh.shape[a] for a in partials.axes]
    order = np.arange(cells).reshape(sizes).transpose(inward).ravel()
    shared = np.moveaxis(tensor[order], 0, dim + 1)
    shape_of = (*shared.shape[:dim], shared.shape[dim] * cells, *shared.shape[dim + 2 :])
    shared = np.ascontiguousarray(shared.reshape(shape_of))
    shares = (*cuts[:dim], fine, *cuts[dim + 1 :])
    middle = Layout((cells, *shape), ((0, cells), *shares), shared[None])
    gather = assemble(middle, [Source(parts)], processes, me)
    place = None
    if len(own_way.axes) < len(partials.axes):
        final_layout = own_way.layout or Layout(shape, cuts, outs)
        combined_shares = Source(Layout(shape, shares, shared))
        place = assemble(final_layout, [combined_shares], processes, me, world.sharing)
    return Reduction(cells, gather, place, partials.dtypes, parts.piece_count)


def combined(
    world: RuntimeWorld, combine: Any, parts: Sequence[tuple[Any, ...]]
) -> tuple[Any, ...]:
    """Join the partial results of one piece, the first with the second, and so on."""
    if not parts:
        return ()
    if not isinstance(combine, np.ufunc):
        return tuple(combine(parts))
    blocks = [p[0] for p in parts]
    if len(blocks) == 1:
        return (blocks[0],)
    if np.ndim(blocks[0]) == 0 or blocks[0].nbytes < LARGE:
        if len(blocks) >= STACKED_CELLS and blocks[0].dtype.kind in "iufc":
            return (_stacked(combine, np.array(blocks)),)
        total = combine(blocks[0], blocks[1])
        for block in blocks[2:]:
            total = combine(total, block)
        return (total,)
    total = world.memory.allocate(blocks[0].shape, blocks[0].dtype)
    rows = max(1, CACHE_PIECE * total.shape[0] // total.nbytes)
    spans = [slice(i, i + rows) for i in range(0, total.shape[0], rows)]
    world.workers.run([partial(_fold, combine, total, blocks, span) for span in spans])
    return (total,)


def _stacked(combine: np.ufunc, stack: Block) -> Any:
    """Join the rows of a stack, the first with the second, and so on, in one call.

    NumPy goes through rows in order, but adds up single elements in an order of its own.
    """
    dtype = stack.dtype if combine in (np.add, np.multiply) else None
    if stack[0].size > 1:
        return combine.reduce(stack, axis=0, dtype=dtype)
    return combine.accumulate(stack, axis=0, dtype=dtype)[-1]


def _fold(combine: np.ufunc, total: Block, blocks: Sequence[Block], rows: slice) -> None:
    """Combine some rows of all blocks; few enough to stay in the cache."""
    target = total[rows]
    combine(blocks[0][rows], blocks[1][rows], out=target)
    for block in blocks[2:]:
        combine(target, block[rows], out=target)


def combined_across(
    world: RuntimeWorld,
    reduction: Reduction,
    own: Mapping[int, tuple[Any, ...]],
    count: int,
    combine: Any,
) -> list[tuple[Any, ...]]:
    """Combine partial results that several processes hold.

    Args:
        world: whose transport is used.
        reduction: how.
        own: the partial results of this process, by piece of the partial layout.
        count: the number of the result's pieces.
        combine: joins two partial results, or all.
    """
    if reduction.small:
        return _combined_small(world, reduction, own, combine)
    joined = _combined_shares(world, reduction, own, combine)
    return joined if reduction.place is None else _placed(world, reduction.place, joined, count)


def _combined_shares(
    world: RuntimeWorld, reduction: Reduction, own: Mapping[int, tuple[Any, ...]], combine: Any
) -> list[tuple[Any, ...]]:
    """Combine, on each device, the share of the result that comes to it; empty where none does."""
    stacks: list[Blocks] = []
    for k, dtype in enumerate(reduction.dtypes):
        blocks = tuple(
            np.asarray(own[i][k], dtype)[None] if i in own else None
            for i in range(reduction.pieces)
        )
        stacks.append(run_part(world, reduction.gather, (blocks,), dtype))
    joined: list[tuple[Any, ...]] = []
    for pieces in zip(*stacks, strict=True):
        if pieces[0] is None:
            joined.append(())
            continue
        parts = [
            tuple(np.asarray(b[r]) for b in pieces if b is not None) for r in range(reduction.cells)
        ]
        joined.append(_whole(world, combine, parts))
    return joined


def _placed(
    world: RuntimeWorld, place: Part, joined: Sequence[tuple[Any, ...]], count: int
) -> list[tuple[Any, ...]]:
    """Bring combined shares to the pieces of the result."""
    # The dtypes of what was combined, which may be others than those of the partial results.
    dtypes = [np.asarray(b).dtype for b in next((j for j in joined if j), ())]
    if not dtypes:  # none of the devices is this process's
        return [()] * count
    placed = [
        run_part(world, place, (tuple(j[k] if j else None for j in joined),), dtype)
        for k, dtype in enumerate(dtypes)
    ]
    return [
        () if pieces[0] is None else tuple(b for b in pieces if b is not None)
        for pieces in zip(*placed, strict=True)
    ]


def _whole(world: RuntimeWorld, combine: Any, parts: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    return tuple([np.asarray(b) for b in combined(world, combine, parts)])


def _combined_small(
    world: RuntimeWorld, reduction: Reduction, own: Mapping[int, tuple[Any, ...]], combine: Any
) -> list[tuple[Any, ...]]:
    """Combine partial results where all of them come to all who need the result.

    Each process writes one letter to each other, with the results of all dtypes; what comes is
    combined where it has arrived.
    """
    routes, dtypes = reduction.routes, reduction.dtypes
    mine = {
        i: [np.asarray(x, dtype) for x, dtype in zip(parts, dtypes, strict=True)]
        for i, parts in own.items()
    }
    letters = _letters(routes, mine)
    came = world.transport.swap(letters, routes.sizes) if letters or routes.sizes else {}
    found = _with_own(routes, mine, reduction.cells)
    plain = isinstance(combine, np.ufunc) and reduction.cells > 1
    for peer, _, places in routes.receives:
        letter = came[peer]  # which a ufunc only reads, and the result is no view of it
        _put(found, letter if plain else bytearray(letter), places, dtypes)
    if not plain:
        found = [cells and [tuple(cell) for cell in cells] for cells in found]
    return [() if cells is None else _whole(world, combine, cells) for cells in found]


def _with_own(routes: _Routes, mine: Mapping[int, Sequence[Block]], count: int) -> list[Any]:
    """Return for each piece of the result its cells, those of this process filled in.

    Of a piece that is held here there is a list of cells, each with a block per dtype; else None.
    """
    found: list[Any] = []
    for here in routes.own:
        cells: list[Any] | None = None if here is None else [None] * count
        for cell, origin in here or ():
            assert cells is not None
            cells[cell] = mine[origin]
        found.append(cells)
    return found


def _letters(routes: _Routes, mine: Mapping[int, Sequence[Block]]) -> list[tuple[int, bytes]]:
    """Return what each peer gets of this process's partial results."""
    letters: list[tuple[int, bytes]] = []
    last, letter = None, b""
    for peer, boxes in routes.sends:
        if boxes is not last:  # often all get the same
            last = boxes
            blocks = [
                mine[i][k] if mine[i][k].shape == shape else _box(mine[i][k], box)
                for i, k, shape, box in boxes
            ]
            letter = blocks[0].tobytes() if len(blocks) == 1 else b"".join([*map(_bytes, blocks)])
        letters.append((peer, letter))
    return letters


def _put(
    found: Sequence[Any],
    letter: bytes | bytearray | Block,
    places: Sequence[_Place],
    dtypes: Sequence[Dtype],
) -> None:
    """Put the partial results of a letter in their places.

    Where several peers send one box each of a cell, the first to be seen makes the block.
    """
    for piece, number, k, at, shape, part in places:
        block = np.ndarray(shape, dtypes[k], letter, at)
        cells = found[piece]
        cell = cells[number]
        if cell is None:
            cell = cells[number] = [None] * len(dtypes)
        if part is None:
            cell[k] = block
            continue
        whole, place = part
        if cell[k] is None:
            cell[k] = np.empty(whole, dtypes[k])
        _box(cell[k], place)[...] = block


def _bytes(block: Block) -> bytes:
    return block.tobytes()


def _box(block: Block, index: Index) -> Block:
    place: tuple[Any, ...] = (*index, ...)
    box: Block = block[place]
    return box
