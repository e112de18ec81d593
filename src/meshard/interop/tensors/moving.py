"""Moving tensors as a plan says, within a process group.

In: for each tensor how it is laid out before and after, and its local tensor. Out: new local
tensors. A tensor goes as one *passage*, or as several where a local tensor is made of several
boxes; each follows its route of the plan, hop by hop, batch by batch, in an order that all ranks
derive alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, final

from meshard.algebra.layout import Layout
from meshard.errors import AllocationError
from meshard.interop.tensors.agreeing import Ranks, gathered, lost, wait_for
from meshard.interop.tensors.carrying import (
    MOST,
    Boxed,
    Carrier,
    LostError,
    Memory,
    memory_of,
    wire_kind,
)
from meshard.interop.tensors.near import Near
from meshard.interop.tensors.placed import Segment, local_index
from meshard.interop.tensors.specs import distributed, torch
from meshard.interop.tensors.wanted import Entry, Goal, dtype_of, group_ranks
from meshard.plan.figures.footprint import quota
from meshard.plan.figures.schedule import batches
from meshard.plan.hops.hop import Route
from meshard.plan.move.assemble import Source, assemble
from meshard.plan.move.part import Part
from meshard.plan.plan import Plan


@final
@dataclass
class Travel:
    """One tensor on its way.

    Attributes:
        entry: the tensor.
        goal: where it goes.
        local: the local tensor before; None on ranks that hold nothing of it.
        result: the local tensor after; None on ranks that are to hold nothing.
        waiting: how many of its passages have not arrived.
    """

    entry: Entry
    goal: Goal
    local: Any = None
    result: Any = None
    waiting: int = 0

    @property
    def wire(self) -> Any:
        """The dtype in which it travels: the smaller of the two."""
        before, after = dtype_of(self.entry.dtype), dtype_of(self.goal.dtype)
        return after if after.itemsize < before.itemsize else before


@final
@dataclass
class Passage:
    """A box of a tensor on its way, of which each rank holds one box, before and after."""

    travel: Travel
    number: int
    segment: Segment
    route: Route
    block: Any = field(default=None)


@lru_cache(maxsize=1 << 13)
def part_between(before: Layout, after: Layout, rank: int) -> Part:
    """Return what a rank does so that one layout becomes another."""
    ids = before.device_ids | after.device_ids
    return assemble(after, [Source(before)], {i: i for i in ids}, rank)


@final
class Mover:
    """One move of several tensors.

    Args:
        group: the process group; None for that of the whole job.
        plan: the routes, a leaf for each passage.
        passages: the passages, in the order of the plan's leaves.
        known: who the ranks are.
        near: the memory through which boxes go; None if they are sent.
        what: the function that was called, for messages.
    """

    def __init__(
        self,
        group: Any,
        plan: Plan,
        passages: Sequence[Passage],
        known: Ranks,
        near: Near | None,
        what: str,
    ) -> None:
        self._group, self._plan, self._passages = group, plan, passages
        self._known, self._near = known, near
        # What stays within the ranks needs no agreement on the way.
        self._together = any(hop.moved for p in passages for hop in p.route.hops)
        self._what = what
        kinds = {
            *[p.travel.goal.mesh.device_type for p in passages],
            *[p.travel.local.device.type for p in passages if p.travel.local is not None],
        }
        self._wire = memory_of(wire_kind(group, sorted(kinds)))
        self._carrier = Carrier(group, self._wire)
        self._ranks = group_ranks(group)
        self._rank = distributed.get_rank()
        self._memories: dict[str, Memory] = {}

    def run(self, told: Callable[[int], None], arrived: Callable[[Travel], None]) -> None:
        """Move everything, and tell of each tensor when all ranks have it.

        Raises:
            AllocationError: on all ranks, if one has no memory for what it is to hold.
            ProcessLostError: if a rank fails.
        """
        leaves, donate = self._plan.leaves, self._plan.donate
        for numbers in batches(leaves, donate=donate) if leaves else ():
            some = [self._passages[n] for n in numbers]
            for hop in range(max([len(p.route.layouts) - 1 for p in some])):
                going = [p for p in some if hop + 1 < len(p.route.layouts)]
                self._hop(going, hop, told)
            for passage in some:
                passage.travel.waiting -= 1
                if not passage.travel.waiting:
                    arrived(passage.travel)
        if self._together:  # else some would return and others raise
            self._settled(None)

    def _hop(self, some: Sequence[Passage], hop: int, told: Callable[[int], None]) -> None:
        """Bring passages to the next layout of their routes."""
        failure: BaseException | None = None
        targets: list[Any] = []
        parts = [part_between(*p.route.layouts[hop : hop + 2], self._rank) for p in some]
        try:
            targets = [self._target(p, hop) for p in some]
        except (RuntimeError, MemoryError) as error:  # PyTorch raises RuntimeError for memory
            failure = error
        if self._together:
            self._settled(failure)
        elif failure is not None:
            raise failure
        sends: dict[int, list[Boxed]] = {}
        receives: dict[int, list[Boxed]] = {}
        for passage, part, target in zip(some, parts, targets, strict=True):
            source, dtype = self._source(passage, hop), passage.travel.wire
            told(self._copied(part, source, target))
            for message in part.sends:
                boxes = sends.setdefault(message.peer, [])
                boxes += [Boxed(_box(source, c.region), dtype) for c in message.copies]
            for message in part.receives:
                boxes = receives.setdefault(message.peer, [])
                boxes += [Boxed(_box(target, c.target), dtype) for c in message.copies]
        self._exchange(sends, receives, told)
        for passage, target in zip(some, targets, strict=True):
            passage.block = target

    def _exchange(
        self,
        sends: Mapping[int, Sequence[Boxed]],
        receives: Mapping[int, Sequence[Boxed]],
        told: Callable[[int], None],
    ) -> None:
        window = self._plan.max_bytes
        most = MOST if window is None else min(quota(window, len(self._ranks)), MOST)
        try:
            if self._near is None:
                self._carrier.exchange(sends, receives, most, told)
            elif self._together:
                self._near.exchange(sends, receives, most, told)
        except LostError as error:
            raise lost(self._what, self._known, error, error.rank) from error

    def _settled(self, failure: BaseException | None) -> None:
        """Wait for all ranks, and raise on all of them if one has failed.

        Raises:
            AllocationError: naming the ranks that have no memory left.
        """
        every = self._failures(failure is not None)
        failed = [r for r, bad in zip(self._ranks, every, strict=True) if bad]
        if not failed:
            return
        raise AllocationError(
            f"{self._what}: ranks {failed} could not take part in the next step: "
            f"{failure or 'they have no memory for their part, or cannot reach others'}. Tensors "
            "that were not donated are as they were."
        ) from failure

    def _failures(self, failed: bool) -> list[bool]:
        """Return for each rank whether it has failed, once all have said so."""
        if self._known.near is not None:
            return gathered(failed, self._group, self._what)
        flag = self._wire.empty((len(self._ranks),), torch.uint8).zero_()
        flag[self._ranks.index(self._rank)] = failed
        try:
            work = distributed.all_reduce(flag, group=self._group, async_op=True)
            if self._wire.device.type == "cpu":
                wait_for(work, self._known)
            work.wait()
        except (RuntimeError, ProcessLookupError) as error:
            raise lost(self._what, self._known, error) from error
        return [bool(bad) for bad in flag.tolist()]

    def _target(self, passage: Passage, hop: int) -> Any:
        """Return what this rank fills; None if it is to hold nothing."""
        after = passage.route.layouts[hop + 1]
        piece = after.piece_of.get(self._rank)
        if piece is None:
            return None
        travel, goal = passage.travel, passage.travel.goal
        kind = goal.mesh.device_type
        if kind not in self._memories:
            self._memories[kind] = memory_of(kind)
        memory = self._memories[kind]
        if hop + 2 < len(passage.route.layouts):
            return memory.empty(after.box(piece).shape, travel.wire)
        if travel.result is None:
            shape = goal.after.local_shape(self._rank)
            travel.result = memory.empty(shape, dtype_of(goal.dtype))
        return _box(travel.result, local_index(goal.after, self._rank, passage.segment.box))

    def _source(self, passage: Passage, hop: int) -> Any:
        """Return what this rank holds; None if it holds nothing."""
        if hop:
            return passage.block
        travel = passage.travel
        if travel.local is None:
            return None
        return _box(travel.local, local_index(travel.entry.before, self._rank, passage.segment.box))

    def _copied(self, part: Part, source: Any, target: Any) -> int:
        """Copy what this rank holds already; return the bytes."""
        nbytes = 0
        for recipe in part.recipes:
            if recipe is None or target is None:
                continue
            for copy in recipe.copies:
                box = _box(target, copy.target)
                box.copy_(_box(source, copy.region))
                nbytes += box.nbytes
        return nbytes


def _box(x: Any, index: Sequence[slice]) -> Any:
    """Return a box of a tensor as a view."""
    for dim, part in enumerate(index):
        if part.start or part.stop != x.shape[dim]:
            x = x.narrow(dim, part.start, part.stop - part.start)
    return x
