"""Gradual moves: pages of a donated source are freed as they are read, while the result grows.

In: what to copy and to send, and an array whose blocks are used up. Out: the pieces of its
destination. The array moves in the steps of a `Sweep`; after each step the pages that it has read
are given back, if nothing but the array could see them. So the two layouts together never take much
more memory than the larger one alone.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

from meshard.algebra.layout import Cuts, Layout
from meshard.plan.figures.schedule import Sweep
from meshard.plan.move.part import Copy, Part
from meshard.runtime.array.array import Array
from meshard.runtime.memory.ownership import Memory, held_alone, memory_of
from meshard.runtime.moving.execute import (
    aliased,
    exchange_in_rounds,
    share,
    view_of,
    with_replicas,
)
from meshard.runtime.types import ArrayType, Block, Blocks
from meshard.runtime.world import RuntimeWorld
from meshard.tuning import MOST_SWEPT_BOXES, SLAB

Located = tuple[Copy, tuple[int, ...]]
"""A copy, and where in the array it begins."""


def run_gradually(
    move: Gradual,
    told: Callable[[int], None],
    postponed: Callable[[BaseException], None],
) -> Blocks:
    """Move an array whose blocks are used up, and return the pieces of its destination.

    Every process of the array takes the same steps, whether or not it can give pages back.

    Args:
        move: the move. The array cannot be read after its first step.
        told: called with the bytes that have arrived since the last call.
        postponed: called with an error or interrupt from outside; the move then goes on.

    Raises:
        TransportError: if another process fails; the array is then lost, as after any error.
    """
    step, carried, failures = 0, -1, 0
    while step < move.sweep.steps:
        try:
            if carried < step:
                move.carry(step)
                carried = step
            move.let_go(step)
            step += 1
            told(move.arrived())
        except (
            BaseException
        ) as error:  # a copy that was begun is done again; its source still exists
            failures += 1
            if move.world.process_count > 1 or failures > 3:
                raise
            postponed(error)
    return move.finished(told)


@final
class Gradual:
    """A move under way: the memory to fill, what fills it, and the memory to give back.

    Args:
        world: whose memory, workers and transport are used.
        part: what this process does; without fill values and without layers.
        x: the array.
        type_: what it becomes.
        window: the most bytes in flight from and to this process at once.

    Raises:
        AllocationError: if there is no memory for the result; the array is then as it was.
    """

    def __init__(
        self, world: RuntimeWorld, part: Part, x: Array, type_: ArrayType, window: int | None
    ) -> None:
        source = x._type.layout
        self.world, self._dtype, self._window = world, type_.dtype, window
        self._part, self._replicas = with_replicas(world, part, type_.dtype)
        kept = {r.alias.origin for r in self._part.recipes if r is not None and r.alias is not None}
        self._leaving = _leaving(x, source, kept)
        self._blocks = x._live()
        self.sweep = self._planned(source, type_, window)
        self._results = self._begun()
        self._copies = _located(
            [c for r in self._part.recipes if r is not None for c in r.copies], type_.layout
        )
        self._sends = [(m.peer, _located(m.copies, type_.layout)) for m in self._part.sends]
        self._receives = [(m.peer, _located(m.copies, type_.layout)) for m in self._part.receives]
        self._new = 0

    def _planned(self, source: Layout, type_: ArrayType, window: int | None) -> Sweep:
        slab = (SLAB if window is None else max(1, min(window, SLAB))) * len(self.world.processes)
        jobs = sum(len(r.copies) for r in self._part.recipes if r is not None) + 1
        steps = min(-(-type_.nbytes // slab), max(4, MOST_SWEPT_BOXES // jobs))
        if self.world.process_count == 1:  # one memory: from one end to the other
            cuts: tuple[Cuts, ...] = tuple([(0, n) for n in type_.shape])
        else:
            steps = -(-type_.nbytes // slab)
            cuts = tuple(
                [
                    tuple(sorted({*a, *b}))
                    for a, b in zip(source.cuts, type_.layout.cuts, strict=True)
                ]
            )
        return Sweep.of(type_.shape, cuts, steps)

    def _begun(self) -> list[Block | None]:
        """Return the pieces, uninitialised where they are to be filled."""
        memory, part = self.world.memory, self._part
        shared = bool(part.receives) or (self._replicas is not None and bool(self._replicas.lent))
        results: list[Block | None] = []
        for recipe in part.recipes:
            if recipe is None:
                results.append(None)
            elif recipe.alias is not None:
                results.append(aliased(recipe.alias, (self._blocks,))[1])
            elif shared:
                results.append(memory.reachable(recipe.shape, self._dtype))
            else:
                places = self.sweep.segments
                results.append(memory.allocate(recipe.shape, self._dtype, filled_in=places))
        return results

    def carry(self, step: int) -> None:
        """Copy, send and receive what belongs to a step."""
        new = 0
        tasks = []
        threads = self.world.workers.threads
        for copy, starts in self._copies:
            for at, shape in self.sweep.clipped(step, starts, copy.shape):
                to, origin = self._target(copy, at, shape), self._origin(copy, at, shape)
                new += to.nbytes
                cuts = min(len(to), threads) if to.ndim and to.nbytes > SLAB // 64 else 1
                for i in range(cuts):
                    ends = (len(to) * i // cuts, len(to) * (i + 1) // cuts) if cuts > 1 else ()
                    span = slice(*ends) if ends else ...
                    tasks.append(partial(self.world.memory.copy, to[span], origin[span]))
        self.world.workers.run(tasks)
        sends = self._boxes(step, self._sends, self._origin)
        receives = self._boxes(step, self._receives, self._target)
        exchange_in_rounds(self.world, sends, receives, self._window)
        self._new += new + sum(b.nbytes for boxes in receives.values() for b in boxes)

    def _origin(self, copy: Copy, at: tuple[int, ...], shape: tuple[int, ...]) -> Block:
        block = self._blocks[copy.origin]
        assert block is not None
        return _part_of(block, copy.region, at, shape)

    def _target(self, copy: Copy, at: tuple[int, ...], shape: tuple[int, ...]) -> Block:
        block = self._results[copy.piece]
        assert block is not None
        return _part_of(block, copy.target, at, shape)

    def _boxes(
        self,
        step: int,
        messages: Sequence[tuple[int, Sequence[Located]]],
        block_of: Callable[[Copy, tuple[int, ...], tuple[int, ...]], Block],
    ) -> dict[int, list[Block]]:
        """Return the boxes of a step that pass between this process and each peer."""
        found: dict[int, list[Block]] = {}
        for peer, copies in messages:
            boxes = [
                block_of(copy, at, shape)
                for copy, starts in copies
                for at, shape in self.sweep.clipped(step, starts, copy.shape)
            ]
            if boxes:
                found[peer] = boxes
        return found

    def let_go(self, step: int) -> None:
        """Give back the pages that a step has read."""
        size = self._dtype.itemsize
        for block in self._leaving:
            for first, last in self.sweep.runs(step, block.starts, block.shape):
                # A page that the step before has left half read goes now: a huge page stays while
                # a single page of it does. What comes before that run may still have to be read.
                begin = block.read.pop(first, first)
                block.read[last] = begin
                start, stop = block.address + first * size, block.address + last * size
                start = max(block.address + begin * size, start - start % mmap.PAGESIZE)
                block.memory.give_back(start, stop - start)

    def arrived(self) -> int:
        """Return the bytes that have arrived since this was last asked."""
        new, self._new = self._new, 0
        return new

    def finished(self, told: Callable[[int], None]) -> Blocks:
        """Return the pieces, including those of neighbours."""
        if self._replicas is not None:
            share(self.world, [(self._replicas, self._results, self._dtype)])
            told(sum(_nbytes(self._results[t[0]]) for t in self._replicas.taken))
        told(
            sum(
                _nbytes(block)
                for r, block in zip(self._part.recipes, self._results, strict=True)
                if r is not None and r.alias is not None
            )
        )
        return tuple(self._results)


def _nbytes(block: Block | None) -> int:
    return 0 if block is None else block.nbytes


@final
@dataclass(frozen=True, slots=True)
class _Leaving:
    """A block of the source whose pages can be given back.

    Attributes:
        memory: what gives them back.
        address: of its first byte.
        starts: where in the array it begins.
        shape: its shape.
        read: for each run that was given back where it ends and where it begins, in elements;
            runs that follow each other are one.
    """

    memory: Memory
    address: int
    starts: tuple[int, ...]
    shape: tuple[int, ...]
    read: dict[int, int] = field(default_factory=dict)


def _leaving(x: Array, layout: Layout, kept: set[int]) -> list[_Leaving]:
    """Return the blocks that only the array refers to, and of which no result is a view."""
    found = []
    for piece in x._type.local:
        if piece in kept or not held_alone(x, piece):
            continue
        block: Any = x._live()[piece]
        memory = memory_of(block)
        if memory is not None:
            box = layout.box(piece)
            address = block.__array_interface__["data"][0]
            found.append(_Leaving(memory, address, tuple(box.starts), block.shape))
        del block
    return found


def _located(copies: Sequence[Copy], layout: Layout) -> list[Located]:
    """Return copies into the pieces of a layout, each with where in the array it begins."""
    found = []
    for copy in copies:
        begin = layout.box(copy.piece).starts
        starts = [a + t.start for a, t in zip(begin, copy.target, strict=True)]
        found.append((copy, tuple(starts)))
    return found


def _part_of(
    block: Block, region: Sequence[slice], at: Sequence[int], shape: Sequence[int]
) -> Block:
    """Return a box of a region of a block."""
    parts = zip(region, at, shape, strict=True)
    return view_of(block, tuple([slice(r.start + a, r.start + a + n) for r, a, n in parts]))
