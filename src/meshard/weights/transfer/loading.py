"""Loading: what a reading plan says, done.

In: a reading plan and its files. Out: arrays, laid out as they are wanted. Besides the arrays a
process holds one slab for each of its threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

import numpy as np

from meshard.algebra.box import Box
from meshard.runtime.array.array import Array
from meshard.runtime.moving.execute import view_of
from meshard.runtime.types import ArrayType, Block
from meshard.runtime.world import RuntimeWorld
from meshard.weights.catalogue.stored import Catalogue
from meshard.weights.maps.recipe import identity
from meshard.weights.transfer.exchange import Exchange, Held, Part
from meshard.weights.transfer.gather import Gatherer, Scratch
from meshard.weights.transfer.reading import ReadingPlan, Slab, Wanted, marks_of, slabs_of

_TASK = 8 << 20
"""Bytes that one thread reads to their places at a time, if memory is not limited further."""

Told = Callable[[int], None] | None


def load(
    world: RuntimeWorld, plan: ReadingPlan, catalogue: Catalogue, told: Told = None
) -> list[Array]:
    """Return the arrays that a plan makes.

    Args:
        world: this process's world.
        plan: who reads what; the same on all processes.
        catalogue: the files.
        told: called with the bytes that have been read here since the last call.

    Raises:
        CheckpointError: if a file cannot be read.
    """
    run = _Loading(world, plan, catalogue, told)
    run.read_direct()
    run.read_slabs()
    run.share()
    return run.arrays()


@final
class _Loading:
    """One load: the blocks, while they are filled."""

    def __init__(
        self, world: RuntimeWorld, plan: ReadingPlan, catalogue: Catalogue, told: Told
    ) -> None:
        self._world = world
        self._plan = plan
        self._gatherer, self._tensors = Gatherer(catalogue), catalogue.tensors
        self._told = told
        self._scratch = Scratch()
        self._types = [
            world.type_of(w.recipe.shape, w.recipe.dtype, w.sharding, True) for w in plan.wanted
        ]
        passed_on = {slab.tensor for slab in plan.slabs}
        self._blocks = [
            self._allocated(w, type_, number in passed_on)
            for number, (w, type_) in enumerate(zip(plan.wanted, self._types, strict=True))
        ]

    def _allocated(self, wanted: Wanted, type_: ArrayType, passed_on: bool) -> list[Block | None]:
        """Return the blocks of a tensor that this process fills; others will be shared."""
        world = self._world
        blocks: list[Block | None] = [None] * type_.layout.piece_count
        builders = {n: self._builders(wanted, box, holders) for n, box, holders in wanted.pieces}
        for number in type_.local:
            shape = type_.layout.box(number).shape
            if number in builders and world.process_index not in builders[number]:
                continue
            if passed_on and world.process_count > 1:
                blocks[number] = world.memory.reachable(shape, type_.dtype)
            else:
                blocks[number] = world.memory.allocate(shape, type_.dtype)
        return blocks

    def _builders(self, wanted: Wanted, box: Box, holders: tuple[int, ...]) -> tuple[int, ...]:
        """Return the processes that fill a piece themselves: one on each host if it is shared."""
        hosts = self._world.sharing
        nbytes = box.volume * wanted.recipe.dtype.itemsize
        if hosts is None or nbytes < self._world.transport.table.replicas:
            return holders
        first: dict[int, int] = {}
        for process in holders:
            first.setdefault(hosts[process], process)
        return tuple(first.values())

    def read_direct(self) -> None:
        """Read the pieces that stay where they are read."""
        me, plan = self._world.process_index, self._plan
        task = min(_TASK, max(1, 2 * plan.round_bytes // self._world.workers.threads))
        tasks: list[Callable[[], None]] = []
        for read in plan.direct_of(me):
            block = self._blocks[read.tensor][read.piece]
            assert block is not None
            most = max(1, task // block.itemsize)
            marks = marks_of(plan.wanted[read.tensor].recipe, self._tensors)
            for part in slabs_of(read.box, range(len(read.box.starts)), most, marks):
                place = view_of(block, part.within(read.box).slices)
                tasks.append(partial(self._fill, plan.wanted[read.tensor], part, place))
        self._world.workers.run(tasks)

    def _fill(self, wanted: Wanted, box: Box, place: Block) -> None:
        self._gatherer.fill(wanted.recipe, box, place)
        if self._told is not None:
            self._told(place.nbytes)

    def read_slabs(self) -> None:
        """Read the other elements, round by round, and pass them on."""
        if self._world.process_count == 1:
            self._world.workers.run([partial(self._scatter, slab) for slab in self._plan.slabs])
            return
        for slabs in self._plan.rounds():
            self._round(slabs)

    def _scatter(self, slab: Slab) -> None:
        """Read a slab and copy it to its places; all of them are here."""
        wanted = self._plan.wanted[slab.tensor]
        with self._scratch.block(slab.box.shape, wanted.recipe.dtype) as read:
            self._fill(wanted, slab.box, read)
            for number, box, _ in wanted.pieces:
                part = slab.box.intersect(box)
                block = self._blocks[slab.tensor][number]
                if part.volume and block is not None:
                    block[part.within(box).slices] = read[part.within(slab.box).slices]

    def _round(self, slabs: Sequence[Slab]) -> None:
        """Read this process's slabs of a round, and exchange those of all processes."""
        me, plan = self._world.process_index, self._plan
        read: dict[int, Block] = {}
        tasks: list[Callable[[], None]] = []
        for k, slab in enumerate(slabs):
            if slab.reader == me:
                wanted = plan.wanted[slab.tensor]
                read[k] = np.empty(slab.box.shape, wanted.recipe.dtype)
                tasks.append(partial(self._fill, wanted, slab.box, read[k]))
        self._world.workers.run(tasks)
        exchange = Exchange(self._world)
        for k, slab in enumerate(slabs):
            wanted = plan.wanted[slab.tensor]
            self._pass_on(exchange, wanted, slab, read.get(k))
        exchange.run()

    def _pass_on(self, exchange: Exchange, wanted: Wanted, slab: Slab, block: Block | None) -> None:
        recipe = identity(wanted.name, wanted.recipe.shape, wanted.recipe.dtype)
        part = Part(slab.box, (slab.reader,), block)
        sources = {wanted.name: Held(wanted.recipe.dtype, (part,))}
        for number, box, holders in wanted.pieces:
            common = box.intersect(slab.box)
            if common.volume:
                whole = self._blocks[slab.tensor][number]
                place = None if whole is None else view_of(whole, common.within(box).slices)
                takers = self._builders(wanted, box, holders)
                exchange.add(recipe, Part(common, takers, place), sources)

    def share(self) -> None:
        """Lend complete pieces to the neighbours that hold them too."""
        lent: list[tuple[Block, tuple[int, ...]]] = []
        taken: list[tuple[int, tuple[int, ...], np.dtype[Any]]] = []
        places: list[tuple[int, int]] = []
        me = self._world.process_index
        for tensor, wanted in enumerate(self._plan.wanted):
            for number, box, holders in wanted.pieces:
                builder, near = self._neighbours(wanted, box, holders)
                if builder == me and near:
                    block = self._blocks[tensor][number]
                    assert block is not None
                    lent.append((block, near))
                elif me in near:
                    taken.append((builder, box.shape, wanted.recipe.dtype))
                    places.append((tensor, number))
        if lent or taken:
            found = self._world.transport.share(lent, taken)
            for (tensor, number), block in zip(places, found, strict=True):
                self._blocks[tensor][number] = block

    def _neighbours(
        self, wanted: Wanted, box: Box, holders: tuple[int, ...]
    ) -> tuple[int, tuple[int, ...]]:
        """Return who fills a piece on this host, and who looks at that memory."""
        hosts, builders = self._world.sharing, self._builders(wanted, box, holders)
        if hosts is None or builders == holders:
            return -1, ()
        near = [p for p in holders if hosts[p] == hosts[self._world.process_index]]
        builder = next((p for p in near if p in builders), -1)
        return builder, tuple([p for p in near if p != builder])

    def arrays(self) -> list[Array]:
        """Return the arrays."""
        return [
            Array(type_, tuple(blocks))
            for type_, blocks in zip(self._types, self._blocks, strict=True)
        ]
