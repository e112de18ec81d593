"""The executor: does what a `Part` says, on blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, final

import numpy as np

from meshard.algebra.box import Index
from meshard.plan.figures.window import quota
from meshard.plan.move.part import Copy, Part, Replicas
from meshard.runtime.memory.memory import Memory
from meshard.runtime.memory.slabs import slabs
from meshard.runtime.types import Block, Blocks
from meshard.runtime.watching.profile import timed
from meshard.runtime.world import RuntimeWorld
from meshard.tuning import LARGE

_DEAR = 1 << 16


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
    results, views = _begun(world, part, operands, dtype, fill, tasks, replicas)
    world.workers.run(tasks)
    _without_dear_views(world, part, results, views, dtype)
    if part.sends or part.receives:  # after the copies: what is received lies over them
        world.transport.exchange(*_messages(part, operands, results))
    if replicas is not None:
        share(world, [(replicas, results, dtype)])
    return tuple(results)


def with_replicas(
    world: RuntimeWorld, part: Part, dtype: np.dtype[Any]
) -> tuple[Part, Replicas | None]:
    """Return what to do if replicas on a host are one memory, where that is worth a message."""
    found = part.replicas
    if found is None or found.volume * dtype.itemsize < world.transport.table.replicas:
        return part, None
    return found.part, found


def share(
    world: RuntimeWorld,
    shared: Sequence[tuple[Replicas, list[Block | None], np.dtype[Any]]],
) -> None:
    """Lend the pieces that are built, and put those that neighbours have built into their place."""
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
    """Do what a part without messages says once for each set of operands, side by side."""
    tasks: list[Callable[[], None]] = []
    begun = [_begun(world, part, operands, dtype, fill, tasks) for operands in operand_sets]
    world.workers.run(tasks)
    for results, views in begun:
        _without_dear_views(world, part, results, views, dtype)
    return [tuple(results) for results, _ in begun]


def _begun(
    world: RuntimeWorld,
    part: Part,
    operands: Sequence[Blocks],
    dtype: np.dtype[Any],
    fill: object,
    tasks: list[Callable[[], None]],
    replicas: Replicas | None = None,
) -> tuple[list[Block | None], dict[int, Block]]:
    """Return the pieces, to be filled by the tasks that are added, and those that are views."""
    memory = world.memory
    allocate: Callable[[tuple[int, ...], np.dtype[Any]], Block] = memory.allocate
    if part.receives or (replicas is not None and replicas.lent):
        allocate = memory.reachable
    results: list[Block | None] = []
    small = part.elements * dtype.itemsize < LARGE
    views: dict[int, Block] = {}
    for recipe in part.recipes:
        if recipe is None:
            results.append(None)
            continue
        if recipe.alias is not None:
            block, view = aliased(recipe.alias, operands)
            if view is not block:
                views[len(results)] = view
            results.append(_spread(view, recipe.shape))
            continue
        target = allocate(recipe.shape, dtype)
        results.append(target)
        if not recipe.covered:
            target[...] = fill
        if small:
            for copy in recipe.copies:
                origin = operands[copy.operand][copy.origin]
                box = target if copy.within is None else _within(target, copy.within)
                box[copy.target] = origin[copy.region]  # type: ignore[index]
            continue
        copies = []
        for copy in recipe.copies:
            origin = operands[copy.operand][copy.origin]
            assert origin is not None
            copies.append((_target(target, copy), origin[copy.region]))
        if recipe.layered:
            tasks.append(partial(_in_order, memory, copies))
        else:
            tasks += [partial(memory.copy, *c) for c in copies]
    return results, views


def aliased(alias: Copy, operands: Sequence[Blocks]) -> tuple[Block, Block]:
    """Return the block that a piece is a view of, and that view: the block, if it is all of it."""
    block = operands[alias.operand][alias.origin]
    assert block is not None
    view = view_of(block, alias.region)
    return block, block if view.shape == block.shape else view


def _without_dear_views(
    world: RuntimeWorld,
    part: Part,
    results: list[Block | None],
    views: Mapping[int, Block],
    dtype: np.dtype[Any],
) -> None:
    for number in _too_dear(views):
        recipe, own = part.recipes[number], world.memory.allocate(views[number].shape, dtype)
        assert recipe is not None
        world.memory.copy(own, views[number])
        results[number] = _spread(own, recipe.shape)


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
    """Return a view in a shape, in which one position may be read by many."""
    return view if view.shape == shape else np.broadcast_to(view, shape)


def _too_dear(views: Mapping[int, Block]) -> list[int]:
    """Return which views to give up: those that keep a large buffer alive for little of it.

    The plan sees to it that the source's blocks are not kept so, but a block may be a view itself.
    """
    buffers: dict[int, Block] = {}
    seen: dict[int, int] = {}
    for number, view in views.items():
        buffer = view
        while isinstance(buffer.base, np.ndarray):
            buffer = buffer.base
        buffers[number] = buffer
        seen[id(buffer)] = seen.get(id(buffer), 0) + view.nbytes
    return [n for n, b in buffers.items() if b.nbytes >= _DEAR and 3 * seen[id(b)] < b.nbytes]


def _in_order(memory: Memory, copies: Sequence[tuple[Block, Block]]) -> None:
    for target, origin in copies:
        memory.copy(target, origin)


def _messages(
    part: Part, operands: Sequence[Blocks], results: Sequence[Block | None]
) -> tuple[list[tuple[int, list[Block]]], list[tuple[int, list[Block]]]]:
    """Return the boxes to send to each peer, and those to be received into."""
    sends: dict[int, list[Block]] = {}
    receives: dict[int, list[Block]] = {}
    _add_messages(part, operands, results, sends, receives)
    return list(sends.items()), list(receives.items())


def _add_messages(
    part: Part,
    operands: Sequence[Blocks],
    results: Sequence[Block | None],
    sends: dict[int, list[Block]],
    receives: dict[int, list[Block]],
) -> None:
    """Add the boxes to send to each peer, and those to be received into."""
    for message in part.sends:
        boxes = sends.get(message.peer)
        if boxes is None:
            boxes = sends[message.peer] = []
        for copy in message.copies:
            origin = operands[copy.operand][copy.origin]
            assert origin is not None
            box = origin[copy.region]
            boxes.append(box if box.shape == copy.shape else np.broadcast_to(box, copy.shape))
    for message in part.receives:
        boxes = receives.get(message.peer)
        if boxes is None:
            boxes = receives[message.peer] = []
        for copy in message.copies:
            target = results[copy.piece]
            assert target is not None
            plain = copy.within is None and copy.target  # NumPy gives a scalar for 0-d
            boxes.append(target[copy.target] if plain else _target(target, copy))


@final
@dataclass(frozen=True)
class Move:
    """One array's way to another layout: what to do, its blocks, and their dtype."""

    part: Part
    blocks: Blocks
    dtype: np.dtype[Any]


def run_moves(
    world: RuntimeWorld,
    moves: Sequence[Move],
    window: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Blocks]:
    """Move several arrays together: their copies side by side, their messages in common rounds.

    Args:
        world: whose memory, workers and transport are used.
        moves: the arrays.
        window: the most bytes that are on their way from and to this process at once.
        progress: called with the bytes that have arrived since the last call.
    """
    tasks: list[Callable[[], None]] = []
    ways = [with_replicas(world, m.part, m.dtype) for m in moves]
    begun = [
        _begun(world, part, (m.blocks,), m.dtype, None, tasks, replicas)
        for m, (part, replicas) in zip(moves, ways, strict=True)
    ]
    world.workers.run(tasks)
    for move, (part, _), (results, views) in zip(moves, ways, begun, strict=True):
        _without_dear_views(world, part, results, views, move.dtype)
        if progress is not None:
            arriving = sum(_nbytes(c, move.dtype) for m in part.receives for c in m.copies)
            held = sum(b.nbytes for b in results if b is not None)
            progress(held - arriving)
    sends: dict[int, list[Block]] = {}
    receives: dict[int, list[Block]] = {}
    for move, (part, _), (results, _) in zip(moves, ways, begun, strict=True):
        _add_messages(part, (move.blocks,), results, sends, receives)
    exchange_in_rounds(world, sends, receives, window, progress)
    shared = [
        (replicas, results, move.dtype)
        for move, (_, replicas), (results, _) in zip(moves, ways, begun, strict=True)
        if replicas is not None
    ]
    if shared:
        share(world, shared)
        if progress is not None:
            progress(sum(math.prod(t[2]) * d.itemsize for r, _, d in shared for t in r.taken))
    return [tuple(results) for results, _ in begun]


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
    most = None if window is None else quota(window, world.process_count)
    out, back = _rounds(sends, most), _rounds(receives, most)
    for going, coming in zip_longest(out, back, fillvalue=list[tuple[int, list[Block]]]()):
        world.transport.exchange(going, coming)
        if progress is not None:
            progress(sum(b.nbytes for _, boxes in coming for b in boxes))


def _nbytes(copy: Copy, dtype: np.dtype[Any]) -> int:
    return math.prod(copy.shape) * dtype.itemsize


def _rounds(
    messages: Mapping[int, list[Block]], most: int | None
) -> Iterator[list[tuple[int, list[Block]]]]:
    """Yield what passes between this process and each peer in one round after another.

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
