"""Exchanges: elements of blocks to their places in other blocks, of any process, by recipes.

In: where the sources' pieces are, and boxes of results with the processes that take each. Out: the
boxes filled, on all processes. All derive the same list of regions, so that nothing is negotiated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.box import Box
from meshard.algebra.layout import Layout
from meshard.runtime.array.array import Array
from meshard.runtime.moving.execute import view_of
from meshard.runtime.types import Block
from meshard.runtime.world import RuntimeWorld
from meshard.weights.maps.recipe import Recipe, Term


@final
@dataclass(frozen=True)
class Part:
    """A box of a tensor in the memory of some processes.

    Attributes:
        box: the elements.
        holders: the processes that have it, or are to get it, in order.
        block: its elements, if this process is one of them.
    """

    box: Box
    holders: tuple[int, ...]
    block: Block | None


@final
@dataclass(frozen=True)
class Held:
    """A tensor in memory: its dtype, and parts that together hold every element."""

    dtype: np.dtype[np.generic]
    parts: tuple[Part, ...]


def held(array: Array) -> Held:
    """Return where the pieces of an array are."""
    type_, blocks = array._type, array._live()
    found = [
        Part(box, holders, blocks[number])
        for number, box, holders in pieces_of(type_.layout, type_.sharding)
    ]
    return Held(type_.dtype, tuple(found))


def pieces_of(layout: Layout, sharding: Sharding) -> Iterator[tuple[int, Box, tuple[int, ...]]]:
    """Yield the pieces with elements: number, box, and the processes that hold each."""
    processes = {d.id: d.process_index for d in sharding.device_order}
    for number in range(layout.piece_count):
        box = layout.box(number)
        if box.volume:
            yield number, box, tuple(sorted({processes[i] for i in layout.holders(number)}))


@final
class Exchange:
    """Regions that are exchanged together.

    Args:
        world: whose workers and transport are used.
    """

    def __init__(self, world: RuntimeWorld) -> None:
        self._world = world
        self._copies: list[Callable[[], None]] = []
        self._sends: dict[int, list[Block]] = {}
        self._receives: dict[int, list[Block]] = {}
        self._arrived: list[Callable[[], None]] = []

    def add(self, recipe: Recipe, target: Part, sources: Mapping[str, Held]) -> None:
        """Add a box of a result.

        Args:
            recipe: how the result is made.
            target: the box, who takes it, and where it goes here.
            sources: where the recipe's sources are.
        """
        me = self._world.process_index
        if target.block is not None:
            for fill in recipe.fills:
                filled = fill.box.intersect(target.box)
                if filled.volume:
                    target.block[filled.within(target.box).slices] = fill.value
        for term in recipe.terms:
            source = sources[term.source]
            for part in term.within_target(target.box):
                around = part.source_box
                for number, piece in enumerate(source.parts):
                    if not piece.box.intersect(around).volume:
                        continue
                    if me not in piece.holders and me not in target.holders:
                        continue
                    for region in part.within_source(piece.box):
                        self._add(region, number, piece, target, (source.dtype, recipe.dtype))

    def _add(
        self,
        region: Term,
        number: int,
        piece: Part,
        target: Part,
        dtypes: tuple[np.dtype[np.generic], np.dtype[np.generic]],
    ) -> None:
        """Add a region that lies in one piece of its source."""
        me, (before, after) = self._world.process_index, dtypes
        for taker in target.holders:
            near = taker in piece.holders
            giver = taker if near else piece.holders[(taker + number) % len(piece.holders)]
            if me not in (giver, taker):
                continue
            if giver == me:
                assert piece.block is not None
                view = source_view(region, piece.block, piece.box)
                if taker != me:
                    narrow = view.astype(after) if after.itemsize < before.itemsize else view
                    self._sends.setdefault(taker, []).append(narrow)
                    continue
                assert target.block is not None
                place = target_view(region, target.block, target.box)
                self._copies.append(partial(np.copyto, place, view, casting="unsafe"))
                continue
            assert target.block is not None
            place = target_view(region, target.block, target.box)
            if before != after and after.itemsize >= before.itemsize:
                wire = np.empty(place.shape, before)
                self._arrived.append(partial(np.copyto, place, wire, casting="unsafe"))
                place = wire
            self._receives.setdefault(giver, []).append(place)

    def run_here(self) -> None:
        """Copy, in this thread, what is all here."""
        for copy in self._copies:
            copy()

    def run(self) -> None:
        """Copy what is here, and exchange the rest."""
        self._world.workers.run(self._copies)
        if self._sends or self._receives:
            self._world.transport.exchange(
                sorted(self._sends.items()), sorted(self._receives.items())
            )
        self._world.workers.run(self._arrived)


def is_straight(term: Term) -> bool:
    """Whether a term is a box on both sides, its dims in the same order."""
    return all(s.source == s.target and s.source_step == s.target_step == 1 for s in term.strides)


def source_view(term: Term, block: Block, box: Box) -> Block:
    """Return a region as a view of a block that holds a box of the source."""
    if is_straight(term):
        return _boxed(block, term.source_box, box)
    return term.source_view(block, box.starts)


def target_view(term: Term, block: Block, box: Box) -> Block:
    """Return a region as a view of a block that holds a box of the target."""
    if is_straight(term):
        return _boxed(block, term.target_box, box)
    return term.target_view(block, box.starts)


def _boxed(block: Block, part: Box, box: Box) -> Block:
    return view_of(block, part.within(box).slices)
