"""The executor: does what a `Part` says, on blocks.

Detours: the layouts that an array passes through where the direct way would burden one host.

In: an array's type, and that of what it becomes. Out: the planner's route, if it pays between
hosts: within one, each sender copies straight to its place, and replicas are one memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, final

import numpy as np

from meshard.algebra.box import Index
from meshard.plan.figures.footprint import between, quota
from meshard.plan.hops.hop import Route, unit_map
from meshard.plan.move.assemble import Source, assemble
from meshard.plan.move.part import Copy, Part, Plain, Recipe, Replicas
from meshard.runtime.memory.memory import Memory, slabs
from meshard.runtime.types import ArrayType, Block, Blocks
from meshard.runtime.watching.profile import timed
from meshard.runtime.world import RuntimeWorld, memoized
from meshard.tuning import DETOUR_GAIN, LARGE, MIN_PINNED_BYTES


def run_part(
    world: RuntimeWorld,
    part: Part,
    operands: Sequence[Blocks],
    dtype: np.dtype[Any],
    fill: object = None,
) -> Blocks:
    """Build the local pieces of a destination.

    Args:
        world: whose memory, workers and transport are used.
        part: what to do.
        operands: each source's blocks.
        dtype: the dtype of all blocks.
        fill: the value of elements that no source gives; None if there are none.
    """
    if world.profiles:
        with timed(world, "move", "move"):
            return _run_part(world, part, operands, dtype, fill)
    return _run_part(world, part, operands, dtype, fill)


def _run_part(
    world: RuntimeWorld,
    part: Part,
    operands: Sequence[Blocks],
    dtype: np.dtype[Any],
    fill: object,
) -> Blocks:
    tasks: list[Callable[[], None]] = []
    part, replicas = with_replicas(world, part, dtype)
    pieces = _Pieces(part, operands, dtype, fill, replicas)
    pieces.begin(world, tasks)
    world.workers.run(tasks)
    pieces.give_up_views(world)
    if part.sends or part.receives:  # after the copies: received elements are written over them
        sends: dict[int, list[Block]] = {}
        receives: dict[int, list[Block]] = {}
        pieces.add_messages(sends, receives)
        world.transport.exchange(list(sends.items()), list(receives.items()))
    if replicas is not None:
        share(world, [(replicas, pieces.results, dtype)])
    return tuple(pieces.results)


def with_replicas(
    world: RuntimeWorld, part: Part, dtype: np.dtype[Any]
) -> tuple[Part, Replicas | None]:
    """Return how to share replicas on a host, if that is worth a message."""
    found = part.replicas
    if found is None or found.volume * dtype.itemsize < world.transport.table.replicas:
        return part, None
    return found.part, found


def share(
    world: RuntimeWorld,
    shared: Sequence[tuple[Replicas, list[Block | None], np.dtype[Any]]],
) -> None:
    """Lend the pieces that are built, and take those that neighbours have built."""
    lent: list[tuple[Block, tuple[int, ...]]] = []
    taken: list[tuple[int, tuple[int, ...], np.dtype[Any]]] = []
    for replicas, results, dtype in shared:
        for piece, takers in replicas.lent:
            block = results[piece]
            assert block is not None
            lent.append((block, takers))
        taken += [(owner, shape, dtype) for _, owner, shape in replicas.taken]
    found = iter(world.transport.share(lent, taken))
    for replicas, results, _ in shared:
        for piece, _, _ in replicas.taken:
            results[piece] = next(found)


def run_parts(
    world: RuntimeWorld,
    part: Part,
    operand_sets: Sequence[Sequence[Blocks]],
    dtype: np.dtype[Any],
    fill: object = None,
) -> list[Blocks]:
    """Run a part without messages once for each set of operands, side by side."""
    tasks: list[Callable[[], None]] = []
    sets = [_Pieces(part, operands, dtype, fill) for operands in operand_sets]
    for pieces in sets:
        pieces.begin(world, tasks)
    world.workers.run(tasks)
    for pieces in sets:
        pieces.give_up_views(world)
    return [tuple(pieces.results) for pieces in sets]


@final
class _Pieces:
    """The local pieces of one destination, while they are built.

    Args:
        part: what to do.
        operands: each source's blocks.
        dtype: the dtype of all blocks.
        fill: the value of elements that no source gives.
        replicas: what is shared with neighbours; None if nothing is.

    Attributes:
        results: the pieces; None for those that are not held here.
    """

    __slots__ = ("_dtype", "_fill", "_operands", "_part", "_replicas", "_views", "results")

    def __init__(
        self,
        part: Part,
        operands: Sequence[Blocks],
        dtype: np.dtype[Any],
        fill: object = None,
        replicas: Replicas | None = None,
    ) -> None:
        self._part = part
        self._operands = operands
        self._dtype = dtype
        self._fill = fill
        self._replicas = replicas
        self._views: dict[int, Block] = {}
        self.results: list[Block | None] = []

    def begin(self, world: RuntimeWorld, tasks: list[Callable[[], None]]) -> None:
        """Make the pieces, which the added tasks fill; small copies are made at once."""
        part, operands, dtype, results = self._part, self._operands, self._dtype, self.results
        memory = world.memory
        allocate: Callable[[tuple[int, ...], np.dtype[Any]], Block] = memory.allocate
        if part.receives or (self._replicas is not None and self._replicas.lent):
            allocate = memory.reachable
        small = part.elements * dtype.itemsize < LARGE
        if small and part.plain is not None:
            self._begin_plain(part.plain, allocate)
            return
        for recipe in part.recipes:
            if recipe is None:
                results.append(None)
                continue
            if recipe.alias is not None:
                block, view = aliased(recipe.alias, operands)
                if view is not block:
                    self._views[len(results)] = view
                results.append(_spread(view, recipe.shape))
                continue
            target = allocate(recipe.shape, dtype)
            results.append(target)
            if not recipe.covered:
                target[...] = self._fill
            if small:
                for copy in recipe.copies:
                    origin = operands[copy.operand][copy.origin]
                    box = target if copy.within is None else _within(target, copy.within)
                    box[copy.target] = origin[copy.region]  # type: ignore[index]
            else:
                tasks += self._copies(memory, recipe, target)

    def _begin_plain(
        self, plain: Plain, allocate: Callable[[tuple[int, ...], np.dtype[Any]], Block]
    ) -> None:
        """Make small pieces that are copied box by box."""
        operands, dtype = self._operands, self._dtype
        results: list[Block | None] = [None] * plain.count
        self.results = results
        for number, shape, boxes in plain.pieces:
            target = results[number] = allocate(shape, dtype)
            for operand, origin, region, place in boxes:
                target[place] = operands[operand][origin][region]  # type: ignore[index]

    def _copies(self, memory: Memory, recipe: Recipe, target: Block) -> list[Callable[[], None]]:
        """Return the tasks that fill a piece: a single one if copies overlap."""
        copies = []
        for copy in recipe.copies:
            origin = self._operands[copy.operand][copy.origin]
            assert origin is not None
            copies.append((_target(target, copy), origin[copy.region]))
        if recipe.layered:
            return [partial(_in_order, memory, copies)]
        return [partial(memory.copy, *c) for c in copies]

    def give_up_views(self, world: RuntimeWorld) -> None:
        """Copy the pieces that would keep a large buffer alive for a small part of it."""
        if not self._views:
            return
        for number in pins_too_much(self._views):
            recipe, view = self._part.recipes[number], self._views[number]
            assert recipe is not None
            own = world.memory.allocate(view.shape, self._dtype)
            world.memory.copy(own, view)
            self.results[number] = _spread(own, recipe.shape)

    def add_messages(self, sends: dict[int, list[Block]], receives: dict[int, list[Block]]) -> None:
        """Add the boxes to send to each peer, and those to be received into."""
        if self._part.plain is not None:
            self._add_plain(self._part.plain, sends, receives)
            return
        for message in self._part.sends:
            boxes = sends.setdefault(message.peer, [])
            for copy in message.copies:
                origin = self._operands[copy.operand][copy.origin]
                assert origin is not None
                box = origin[copy.region]
                boxes.append(box if box.shape == copy.shape else np.broadcast_to(box, copy.shape))
        for message in self._part.receives:
            boxes = receives.setdefault(message.peer, [])
            for copy in message.copies:
                target = self.results[copy.piece]
                assert target is not None
                plain = copy.within is None and copy.target  # NumPy returns a scalar for 0-d
                boxes.append(target[copy.target] if plain else _target(target, copy))

    def _add_plain(
        self, plain: Plain, sends: dict[int, list[Block]], receives: dict[int, list[Block]]
    ) -> None:
        operands, results = self._operands, self.results
        for peer, going in plain.sends:
            boxes = sends.setdefault(peer, [])
            for operand, origin, region, shape in going:
                box = operands[operand][origin][region]  # type: ignore[index]
                boxes.append(box if box.shape == shape else np.broadcast_to(box, shape))
        for peer, coming in plain.receives:
            boxes = receives.setdefault(peer, [])
            boxes += [results[piece][place] for piece, place in coming]  # type: ignore[index]

    def held_bytes(self) -> int:
        """Return the bytes of the pieces, without what is still to be received."""
        arriving = sum(math.prod(c.shape) for m in self._part.receives for c in m.copies)
        held = sum(b.nbytes for b in self.results if b is not None)
        return held - arriving * self._dtype.itemsize


def aliased(alias: Copy, operands: Sequence[Blocks]) -> tuple[Block, Block]:
    """Return the block that a piece is a view of, and that view: the block, if it is all of it."""
    block = operands[alias.operand][alias.origin]
    assert block is not None
    view = view_of(block, alias.region)
    return block, block if view.shape == block.shape else view


def _within(block: Block, place: tuple[int, tuple[int, ...]]) -> Block:
    """Return a run of a flat piece in the shape of the box that it holds in C order."""
    at, shape = place
    return block[at : at + math.prod(shape)].reshape(shape)


def _target(block: Block, copy: Copy) -> Block:
    """Return the place in a piece that a copy is written to."""
    return view_of(block if copy.within is None else _within(block, copy.within), copy.target)


def view_of(block: Block, index: Index) -> Block:
    """Return a box of a block as a view; without the dots NumPy gives a scalar for 0-d."""
    place: tuple[Any, ...] = (*index, ...)
    view: Block = block[place]
    return view


def _spread(view: Block, shape: tuple[int, ...]) -> Block:
    """Return a view in a shape, where several positions may show one element."""
    return view if view.shape == shape else np.broadcast_to(view, shape)


def pins_too_much(views: Mapping[int, Block]) -> list[int]:
    """Return which views to copy: those that keep a large buffer alive for a small part of it.

    The plan prevents that for the source's blocks, but a block may be a view itself.
    """
    buffers: dict[int, Block] = {}
    seen: dict[int, int] = {}
    for number, view in views.items():
        buffer = view
        while isinstance(buffer.base, np.ndarray):
            buffer = buffer.base
        buffers[number] = buffer
        seen[id(buffer)] = seen.get(id(buffer), 0) + view.nbytes
    return [
        n for n, b in buffers.items() if b.nbytes >= MIN_PINNED_BYTES and 3 * seen[id(b)] < b.nbytes
    ]


def _in_order(memory: Memory, copies: Sequence[tuple[Block, Block]]) -> None:
    for target, origin in copies:
        memory.copy(target, origin)


@final
@dataclass(frozen=True)
class ArrayMove:
    """One array's way to another layout: what to do, its blocks, and their dtype."""

    part: Part
    blocks: Blocks
    dtype: np.dtype[Any]


def run_moves(
    world: RuntimeWorld,
    moves: Sequence[ArrayMove],
    window: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Blocks]:
    """Move several arrays together: their copies side by side, their messages in common rounds.

    Args:
        world: whose memory, workers and transport are used.
        moves: the arrays.
        window: the most bytes in flight from and to this process at once.
        progress: called with the bytes that have arrived since the last call.
    """
    tasks: list[Callable[[], None]] = []
    ways = [(m, *with_replicas(world, m.part, m.dtype)) for m in moves]
    begun = [_Pieces(part, (m.blocks,), m.dtype, replicas=replicas) for m, part, replicas in ways]
    for pieces in begun:
        pieces.begin(world, tasks)
    world.workers.run(tasks)
    sends: dict[int, list[Block]] = {}
    receives: dict[int, list[Block]] = {}
    for pieces in begun:
        pieces.give_up_views(world)
        if progress is not None:
            progress(pieces.held_bytes())
        pieces.add_messages(sends, receives)
    exchange_in_rounds(world, sends, receives, window, progress)
    shared = [
        (replicas, pieces.results, m.dtype)
        for (m, _, replicas), pieces in zip(ways, begun, strict=True)
        if replicas is not None
    ]
    if shared:
        share(world, shared)
        if progress is not None:
            progress(sum(math.prod(t[2]) * d.itemsize for r, _, d in shared for t in r.taken))
    return [tuple(pieces.results) for pieces in begun]


def exchange_in_rounds(
    world: RuntimeWorld,
    sends: Mapping[int, list[Block]],
    receives: Mapping[int, list[Block]],
    window: int | None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Send boxes to peers and fill boxes from them, never more than a window of bytes at once."""
    if not (sends or receives):
        return
    most = None if window is None else quota(window, len(world.processes))
    out, back = _rounds(sends, most), _rounds(receives, most)
    for going, coming in zip_longest(out, back, fillvalue=list[tuple[int, list[Block]]]()):
        world.transport.exchange(going, coming)
        if progress is not None:
            progress(sum(b.nbytes for _, boxes in coming for b in boxes))


def _rounds(
    messages: Mapping[int, list[Block]], most: int | None
) -> Iterator[list[tuple[int, list[Block]]]]:
    """Yield, round by round, what passes between this process and each peer.

    Both ends of a pair cut the same boxes in the same way, so that nothing is negotiated.
    """
    if most is None:
        yield [(peer, boxes) for peer, boxes in sorted(messages.items())]
        return
    queues = {peer: list(_portions(boxes, most)) for peer, boxes in sorted(messages.items())}
    for number in range(max(map(len, queues.values()), default=0)):
        yield [(peer, q[number]) for peer, q in queues.items() if number < len(q)]


def _portions(boxes: Sequence[Block], most: int) -> Iterator[list[Block]]:
    """Cut boxes into slabs, and put these into portions of at most that many bytes."""
    portion: list[Block] = []
    size = 0
    for box in boxes:
        for slab in slabs(box, most):
            if portion and size + slab.nbytes > most:
                yield portion
                portion, size = [], 0
            portion.append(slab)
            size += slab.nbytes
    if portion:
        yield portion


def route_between(world: RuntimeWorld, source: ArrayType, type_: ArrayType) -> Route | None:
    """Return the route by which an array of one type becomes another; None for the direct way."""
    if world.process_count == 1 or type_.nbytes < LARGE:
        return None
    return _route(world, source, type_)


@memoized(most=1 << 13)
def _route(world: RuntimeWorld, source: ArrayType, type_: ArrayType) -> Route | None:
    hosts = {d.id: _host(world, d.process_index) for d in world.devices}
    ends = source.layout, type_.layout
    if len({hosts[i] for layout in ends for i in layout.device_ids}) == 1:
        return None
    # A program that moves nothing between hosts does without the planner.
    from meshard.plan.figures.choice import PlanLeaf
    from meshard.plan.planner import PlanCache, make_plan

    if world.plans is None:
        world.plans = PlanCache()
    plan = make_plan([PlanLeaf("x", *ends, type_.dtype.itemsize)], cache=world.plans)
    (route,) = plan.routes
    if len(route.layouts) < 3:
        return None
    units = unit_map(hosts)
    direct, found = [
        sum(max(hop.sent.most, hop.received.most) for hop in way.between(units))
        for way in (Route("direct", ends), route)
    ]
    return route if found < DETOUR_GAIN * direct else None


def _host(world: RuntimeWorld, process: int) -> int:
    """Return the number of a process's host, or its own where no memory is shared."""
    return process if world.sharing is None else world.sharing[process]


@final
@dataclass(frozen=True)
class RoutedMove:
    """One array's way by other layouts.

    Attributes:
        route: the layouts that it passes through.
        blocks: the blocks that this process has of the first one.
        type_: what it becomes.
    """

    route: Route
    blocks: Blocks
    type_: ArrayType


def run_routes(
    world: RuntimeWorld, moves: Sequence[RoutedMove], max_bytes: int | None = None
) -> list[Blocks]:
    """Bring arrays to their destinations hop by hop: their first hops together, and so on.

    Args:
        world: this process.
        moves: the arrays; a single one if there is a limit.
        max_bytes: the most bytes in flight from and to this process at once.
    """
    known = {d.id: d.process_index for d in world.devices}
    window = max_bytes
    if window is not None:
        (move,) = moves
        window -= between(move.route, move.type_.dtype.itemsize, unit_map(known))
    found = [move.blocks for move in moves]
    for number in range(max([len(move.route.layouts) for move in moves], default=1) - 1):
        going = [i for i, move in enumerate(moves) if number + 1 < len(move.route.layouts)]
        hops = []
        for i in going:
            before, after = moves[i].route.layouts[number : number + 2]
            ids = before.device_ids | after.device_ids
            owners = {d: known.get(d, -1) for d in ids}  # of those that are gone nothing is read
            living = moves[i].route.alive if number == 0 else None
            source = Source(before, alive=None if living is None else frozenset(living))
            part = assemble(after, [source], owners, world.process_index, world.sharing)
            hops.append(ArrayMove(part, found[i], moves[i].type_.dtype))
        for i, blocks in zip(going, run_moves(world, hops, window), strict=True):
            found[i] = blocks
    return found
