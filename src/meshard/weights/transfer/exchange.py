"""Exchanges: elements of blocks to their places in other blocks, of any process, by recipes.

In: where the sources' pieces are, and boxes of results with the processes that take each. Out: the
boxes filled, on all processes. All derive the same list of regions, so that nothing is negotiated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise, product
from typing import final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.box import Box
from meshard.algebra.layout import Layout
from meshard.errors import DataLoss
from meshard.plan.hops.cells import loss_text
from meshard.runtime.agree import lost_boxes
from meshard.runtime.array.array import Array
from meshard.runtime.lines.letters import sent
from meshard.runtime.moving.execute import view_of
from meshard.runtime.types import Block
from meshard.runtime.world import RuntimeWorld
from meshard.weights.maps.recipe import Recipe, Term, copy_cast


@sent
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


@sent
@final
@dataclass(frozen=True)
class Held:
    """A tensor in memory.

    Attributes:
        dtype: its dtype.
        parts: parts that together hold every element.
        overlap: whether some elements may be in several parts.
    """

    dtype: np.dtype[np.generic]
    parts: tuple[Part, ...]
    overlap: bool = False

    @cached_property
    def disjoint(self) -> tuple[Part, ...]:
        """Parts that hold each element once, with all processes that have it."""
        if not self.overlap:
            return self.parts
        boxes = [part.box for part in self.parts]
        edges = [
            sorted({edge for box in boxes for edge in (box.starts[d], box.stops[d])})
            for d in range(len(boxes[0].starts))
        ]
        cells = [Box(*zip(*cell, strict=True)) for cell in product(*map(pairwise, edges)) if cell]
        return tuple([self._cell(cell) for cell in cells]) or self.parts[:1]  # without dims

    def _cell(self, cell: Box) -> Part:
        """Return a box that lies within or outside of each part."""
        parts = [part for part in self.parts if part.box.intersect(cell).volume]
        here = next(((part.box, part.block) for part in parts if part.block is not None), None)
        block = None if here is None else view_of(here[1], cell.within(here[0]).slices)
        return Part(cell, tuple(sorted({p for part in parts for p in part.holders})), block)


def held(array: Array, alive: frozenset[int] | None = None) -> Held:
    """Return where the pieces of an array are.

    Args:
        array: the array.
        alive: the devices that still hold their part of it; None for all.

    Raises:
        DataLoss: if none of them holds some box.
    """
    type_, blocks = array._type, array._live()
    lost = () if alive is None else lost_boxes(type_.layout, alive)
    if lost:
        raise DataLoss(loss_text(type_.shape, lost), lost)
    found = [
        Part(box, holders, blocks[number])
        for number, box, holders in pieces_of(type_.layout, type_.sharding, alive)
        if holders
    ]
    return Held(type_.dtype, tuple(found), not type_.layout.regular)


def pieces_of(
    layout: Layout, sharding: Sharding, alive: frozenset[int] | None = None
) -> Iterator[tuple[int, Box, tuple[int, ...]]]:
    """Yield the pieces with elements: number, box, and the processes that hold each.

    Args:
        layout: the layout.
        sharding: the sharding whose layout it is.
        alive: the ids of the devices that still hold theirs; None for all.
    """
    order = sharding.device_order
    processes = {d.id: d.process_index for d in order if alive is None or d.id in alive}
    for number in range(layout.piece_count):
        box = layout.box(number)
        if box.volume:
            ids = layout.holders(number)
            yield number, box, tuple(sorted({processes[i] for i in ids if i in processes}))


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
        fill(recipe, target)
        for term in recipe.terms:
            for region in term.within_target(target.box):
                self.add_region(region, recipe.dtype, target, sources[term.source])

    def add_region(
        self, region: Term, dtype: np.dtype[np.generic], target: Part, source: Held
    ) -> None:
        """Add elements of a result that one source gives; each crosses once, even if repeated.

        Args:
            region: the elements, within the target's box.
            dtype: the result's dtype.
            target: a box of the result, who takes it, and where it is here.
            source: where the source is.
        """
        me, around = self._world.process_index, region.source_box
        for number, piece in enumerate(source.disjoint):
            if not piece.box.intersect(around).volume:
                continue
            if me not in piece.holders and me not in target.holders:
                continue
            for part in region.within_source(piece.box):
                self._add(part, number, piece, target, (source.dtype, dtype))

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
        wired = after if after.itemsize < before.itemsize else before
        for taker in target.holders:
            near = taker in piece.holders
            giver = taker if near else piece.holders[(taker + number) % len(piece.holders)]
            if me not in (giver, taker):
                continue
            place = None
            if taker == me:
                assert target.block is not None
                place = target_view(region, target.block, target.box)
            if giver != me:
                assert place is not None
                self._receive(giver, region, place, wired)
                continue
            assert piece.block is not None
            view = source_view(region, piece.block, piece.box)
            if place is not None:
                self._copies.append(partial(copy_cast, place, view))
                continue
            once = unique_view(region, view)
            if once.dtype != wired:
                once = np.empty(once.shape, wired)
                copy_cast(once, unique_view(region, view))
            self._sends.setdefault(taker, []).append(once)

    def _receive(self, giver: int, region: Term, place: Block, wired: np.dtype[np.generic]) -> None:
        """Receive a region: in its place, or beside it if it is cast or has repeated elements."""
        arriving = unique_view(region, place)
        if arriving is not place or wired != place.dtype:
            arriving = np.empty(arriving.shape, wired)
            shown = repeated_view(region, arriving)
            self._arrived.append(partial(copy_cast, place, shown))
        self._receives.setdefault(giver, []).append(arriving)

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


def fill(recipe: Recipe, target: Part) -> int:
    """Fill what is padding in a box of a result, if it is here, and return the bytes of it."""
    if target.block is None:
        return 0
    boxes = [(f.box.intersect(target.box), f.value) for f in recipe.fills]
    for box, value in boxes:
        if box.volume:
            target.block[box.within(target.box).slices] = value
    return sum(box.volume for box, _ in boxes) * target.block.itemsize


def unique_view(region: Term, view: Block) -> Block:
    """Return the view of a region without the directions in which one element is repeated."""
    if all(s.source is not None for s in region.strides):
        return view
    once: Block = view[(*[0 if s.source is None else slice(None) for s in region.strides], ...)]
    return once


def repeated_view(region: Term, once: Block) -> Block:
    """Return a block that has a region's elements once in a shape that spreads to all of it."""
    if all(s.source is not None for s in region.strides):
        return once
    spread: Block = once[
        tuple([np.newaxis if s.source is None else slice(None) for s in region.strides])
    ]
    return spread


def is_straight(term: Term) -> bool:
    """Whether a term is a box on both sides, of one shape."""
    return len(term.source_start) == len(term.target_start) and all(
        s.source == s.target and s.source_step == s.target_step == 1 for s in term.strides
    )


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
