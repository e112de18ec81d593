"""Mapped moves: tensors made of others by recipes, between the memories of processes.

In: recipes, where their sources are, and how the results are to be laid out. Out: arrays. The
results are filled slab by slab, so that no more is on its way than is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

from meshard.algebra.box import Box
from meshard.runtime.array.array import Array
from meshard.runtime.types import ArrayType, Block
from meshard.runtime.world import RuntimeWorld
from meshard.weights.maps.recipe import Recipe, Term
from meshard.weights.transfer.exchange import Exchange, Held, Part, fill, pieces_of

_TOGETHER = 64 << 20
"""Bytes of results that are exchanged together, if memory is not limited."""


@final
@dataclass(frozen=True)
class Result:
    """A tensor to be made: its name, how, and its type with the layout that it is to have."""

    name: str
    recipe: Recipe
    type_: ArrayType

    @cached_property
    def pieces(self) -> tuple[tuple[int, Box, tuple[int, ...]], ...]:
        """The pieces with elements: number, box, and the processes that hold each."""
        return tuple(pieces_of(self.type_.layout, self.type_.sharding))


@final
@dataclass(frozen=True)
class _Slab:
    """Elements of one piece of a result that one source gives."""

    result: Result
    target: Part
    region: Term


def move(
    world: RuntimeWorld,
    results: Sequence[Result],
    sources: Mapping[str, Held],
    window: int | None = None,
    told: Callable[[int], None] | None = None,
) -> list[Array]:
    """Return the results; all processes of the world take part.

    Args:
        world: this process's world.
        results: the tensors to be made.
        sources: where the recipes' sources are.
        window: the most bytes on their way to and from one process at once.
        told: called with the bytes of results that have been filled here since the last call.
    """
    allocate = world.memory.reachable if world.process_count > 1 else world.memory.allocate
    blocks: list[list[Block | None]] = []
    for result in results:
        type_ = result.type_
        mine: list[Block | None] = [None] * type_.layout.piece_count
        for number in type_.local:
            mine[number] = allocate(type_.layout.box(number).shape, type_.dtype)
        blocks.append(mine)
    targets = [
        (result, Part(box, holders, own[number]))
        for result, own in zip(results, blocks, strict=True)
        for number, box, holders in result.pieces
    ]
    filled = sum([fill(result.recipe, target) for result, target in targets])
    for group in _groups(targets, sources, window):
        exchange = Exchange(world)
        for slab in group:
            dtype, source = slab.result.recipe.dtype, sources[slab.region.source]
            exchange.add_region(slab.region, dtype, slab.target, source)
            filled += 0 if slab.target.block is None else slab.region.volume * dtype.itemsize
        exchange.run()
        if told is not None and filled:
            told(filled)
        filled = 0
    if told is not None and filled:
        told(filled)
    return [Array(r.type_, tuple(b)) for r, b in zip(results, blocks, strict=True)]


def _groups(
    targets: Sequence[tuple[Result, Part]], sources: Mapping[str, Held], window: int | None
) -> Iterator[list[_Slab]]:
    """Yield slabs that are exchanged together, the same groups on all processes."""
    most = _TOGETHER if window is None else max(1, window // 2)
    group: list[_Slab] = []
    size = 0
    for result, target in targets:
        for term in result.recipe.terms:
            itemsize = min(sources[term.source].dtype.itemsize, result.recipe.dtype.itemsize)
            each = itemsize * len(target.holders)  # bytes that cross for an element, at most
            for part in term.within_target(target.box):
                for region in part.slabs(max(1, most // each)):
                    nbytes = region.unique * each
                    if group and size + nbytes > most:
                        yield group
                        group, size = [], 0
                    group.append(_Slab(result, target, region))
                    size += nbytes
    if group:
        yield group


def received(results: Sequence[Result], sources: Mapping[str, Array]) -> Iterator[dict[int, int]]:
    """Yield for each result the bytes that each device takes from others.

    Args:
        results: the tensors to be made.
        sources: the arrays that the recipes name.
    """
    for result in results:
        found: dict[int, int] = {}
        layout = result.type_.layout
        for piece in range(layout.piece_count):
            box = layout.box(piece)
            parts = [p for t in result.recipe.terms for p in t.within_target(box)]
            for device in layout.holders(piece):
                found[device] = found.get(device, 0)
                for part in parts:
                    source = sources[part.source]
                    itemsize = min(source.dtype.itemsize, result.recipe.dtype.itemsize)
                    found[device] += _lacked(part, source, device) * itemsize
        yield found


def _lacked(part: Term, source: Array, device: int) -> int:
    """Return how many elements of a region a device does not hold, each counted once."""
    layout = source._type.layout
    needed = part.unique
    own = layout.piece_of.get(device)
    if own is not None:
        inside = part.within_source(layout.box(own))
        needed -= sum([p.unique for p in inside])
    return needed
