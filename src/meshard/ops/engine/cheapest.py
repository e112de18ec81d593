"""The way to run an operation that moves least, of those that the layouts leave open.

In: what decides one way, and how results should be laid out. Out: a `Decision`. All processes
find the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from meshard.algebra.abstract import Sharding
from meshard.ops.engine.decision import Decision, KernelDecision, MoveDecision
from meshard.runtime.moving.place import wires_between
from meshard.runtime.world import RuntimeWorld

Preferred = Sequence[Sharding | None]
"""For each result how it should be laid out; None where it does not matter."""
Way = Callable[[Preferred, int | None], Decision]
"""From results' preferred layouts, and the operand that leads, to a decision."""


def cheapest(
    world: RuntimeWorld, way: Way, preferred: Preferred, arrays: Sequence[int]
) -> Decision:
    """Return the way to run an operation that moves least, with its results' way to where they go.

    Args:
        world: whose devices are used.
        way: decides one way.
        preferred: how the results should be laid out.
        arrays: the operands that are arrays: each may lead.
    """
    best = way((), None)
    if isinstance(best, MoveDecision):
        return best
    least = _bytes(world, best, preferred)
    for followed, leading in _ways(preferred, arrays if best.wires else ()):
        decision = way(followed, leading)
        cost = _bytes(world, decision, preferred)
        # What is split costs less work than what every device computes.
        if cost < least or (cost == least and followed):
            best, least = decision, cost
    return best


def cheapest_in_place(
    world: RuntimeWorld, way: Way, preferred: Preferred, arrays: Sequence[int]
) -> Decision:
    """Return the way to run an operation that moves least, wherever its results go from there.

    Of what is preferred only that counts for which no operand moves: that a sum is scattered. The
    arguments are those of `cheapest`.
    """
    best, leader = way((), None), None
    if isinstance(best, MoveDecision):
        return best
    for leading in arrays if best.wires and len(arrays) > 1 else ():
        decision = way((), leading)
        if _bytes(world, decision) < _bytes(world, best):
            best, leader = decision, leading
    if not isinstance(best, KernelDecision) or best.combination is None or not any(preferred):
        return best
    found = way(preferred, leader)
    assert isinstance(found, KernelDecision)
    stays = found.operands == best.operands and found.combination is not None
    return found if stays and _bytes(world, found) < _bytes(world, best) else best


def _ways(preferred: Preferred, arrays: Sequence[int]) -> Iterator[tuple[Preferred, int | None]]:
    """Yield the ways to run an operation besides that which follows its operands.

    Args:
        preferred: how its results should be laid out.
        arrays: its operands that are arrays, if something moves: each may lead where several are.

    Yields:
        How results should be laid out, if that is followed, and the operand that leads.
    """
    known = any(p is not None for p in preferred)
    if known:
        yield preferred, None
    if len(arrays) > 1:
        yield from (((), i) for i in arrays)
        if known:
            yield from ((preferred, i) for i in arrays)


def _bytes(world: RuntimeWorld, decision: Decision, preferred: Preferred = ()) -> int:
    """Return the bytes that an operation moves, and its results' way to where they go."""
    wires = list(decision.wires)
    for kind, sharding in zip(decision.outputs, preferred, strict=False):
        if sharding is not None and sharding != kind.sharding:
            target = world.type_of(kind.shape, kind.dtype, sharding, True)
            if not kind.unplaced and target.layout != kind.layout:
                wires += wires_between(world, kind, target)
    return sum(w.total for w in wires)
