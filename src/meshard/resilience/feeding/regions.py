"""Regions: who gives what to whom, derived alike by the job that gives and the one that takes.

In: what is offered and what is wanted. Out: for each process that takes, its regions in one order,
each with the processes that can give it; and slabs of them. The holders of one box give equal
shares of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import xxhash

from meshard.algebra.box import Box
from meshard.plan.captions import count_text, size_unit, whole_text
from meshard.plan.show.report import Table
from meshard.plan.show.summary import Fact, Summarized, Summary
from meshard.resilience.feeding.offer import Offer, Wish
from meshard.runtime.types import Block
from meshard.weights.maps.recipe import Recipe, Term, copy_cast
from meshard.weights.transfer.exchange import Held, Part, source_view, target_view, unique_view
from meshard.weights.transfer.reading import slabs_of

_ROWS = 12


@final
@dataclass(frozen=True, slots=True)
class Region:
    """A region of a piece of a result that lies in one part of a source.

    Attributes:
        result: the result's name.
        piece: the number of its piece.
        part: the number of the source's part.
        term: the region.
        dtypes: those of source and result.
        holders: the processes that can give it.
        first: which of them gives the first slab.
    """

    result: str
    piece: int
    part: int
    term: Term
    dtypes: tuple[np.dtype[Any], np.dtype[Any]]
    holders: tuple[int, ...]
    first: int

    @property
    def wired(self) -> np.dtype[Any]:
        """The dtype in which elements travel: the smaller one."""
        before, after = self.dtypes
        return after if after.itemsize < before.itemsize else before


@final
@dataclass(frozen=True, slots=True)
class Slab:
    """A part of a region that is moved at a time."""

    region: Region
    term: Term

    @property
    def nbytes(self) -> int:
        """Bytes that travel."""
        return self.term.unique * self.region.wired.itemsize

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in which elements travel, each of them once."""
        return tuple([s.size for s in self.term.strides if s.source is not None])


@final
class FeedPlan(Summarized):
    """What one process takes, and from whom; it prints as a table.

    Args:
        offer: what there is.
        wish: what the taking job wants.
        taker: the number of the process in that job.
        recipes: how the results are made.

    Attributes:
        taker: the process.
        regions: its regions, in order.
        digest: a hash of the plan, the same on both sides if they have derived the same.
    """

    def __init__(self, offer: Offer, wish: Wish, taker: int, recipes: Mapping[str, Recipe]) -> None:
        self.taker = taker
        self.slab = wish.slab
        self.regions = tuple(_regions(offer, wish, taker, recipes))
        told = repr((offer.digest, wish.digest, taker, self.slab)) + "".join(
            map(_told, self.regions)
        )
        self.digest = xxhash.xxh3_128_hexdigest(told.encode())
        self._bytes: dict[int, int] | None = None

    def slabs(self, giver: int) -> Iterator[Slab]:
        """Yield what a process gives, in the order in which it does."""
        for region in self.regions:
            if giver in region.holders:
                yield from _slabs(region, self.slab, giver)

    @property
    def bytes_from(self) -> dict[int, int]:
        """The bytes that each process gives, whole versions taken."""
        if self._bytes is None:
            found: dict[int, int] = {}
            for region in self.regions:
                for giver in region.holders:
                    count = sum([slab.nbytes for slab in _slabs(region, self.slab, giver)])
                    if count:
                        found[giver] = found.get(giver, 0) + count
            self._bytes = dict(sorted(found.items()))
        return self._bytes

    @property
    def nbytes(self) -> int:
        """The bytes that the process needs: each element once, in the smaller dtype."""
        return sum([region.term.unique * region.wired.itemsize for region in self.regions])

    def _summary(self) -> Summary:
        given = self.bytes_from
        mean = self.nbytes / max(len(given), 1)
        unit, most = size_unit(given.values()), max(given.values(), default=0)
        title = (
            f"Feed: process {self.taker} takes {whole_text(self.nbytes)} from "
            f"{count_text(len(given), 'process')}"
        )
        balance = f"from one process at most, {most / mean if mean else 1.0:.2f} x the mean"
        facts = [
            Fact("needed", whole_text(self.nbytes), "each element once, in the smaller dtype"),
            Fact("largest", whole_text(most), balance),
            Fact("regions", f"{len(self.regions):,}", "boxes of arrays"),
        ]
        rows = [(f"{giver}", unit.text(n)) for giver, n in list(given.items())[:_ROWS]]
        rest = len(given) - len(rows)
        notes = [f"and {count_text(rest, 'more process')}"] if rest else []
        return Summary(title, facts, [Table(("process", f"gives {unit.name}"), rows, "<>", notes)])

    def __repr__(self) -> str:
        return f"FeedPlan(process {self.taker}, {self.nbytes} bytes of {self.givers})"

    @property
    def givers(self) -> tuple[int, ...]:
        """The processes that give something."""
        return tuple(self.bytes_from)


def _told(region: Region) -> str:
    term = region.term
    strides = [(s.size, s.source, s.source_step, s.target, s.target_step) for s in term.strides]
    where = region.result, region.piece, term.source, region.part
    given = region.holders, region.first, region.wired.itemsize
    return repr((*where, term.source_start, term.target_start, strides, *given))


def _regions(
    offer: Offer, wish: Wish, taker: int, recipes: Mapping[str, Recipe]
) -> Iterator[Region]:
    """Yield the regions that a process takes."""
    for number, (name, pieces) in enumerate(wish.pieces.items()):
        recipe = recipes[name]
        for piece, box, holders in pieces:
            if taker not in holders:
                continue
            for term in recipe.terms:
                source = offer.tensors[term.source]
                for cut in term.within_target(box):
                    for part, region in _in_parts(cut, source.held):
                        own = source.held.disjoint[part].holders
                        dtypes = source.dtype, recipe.dtype
                        first = (taker + number + part) % len(own)
                        yield Region(name, piece, part, region, dtypes, own, first)


def _in_parts(term: Term, source: Held) -> Iterator[tuple[int, Term]]:
    """Yield the parts of a region that lie in each part of its source."""
    around = term.source_box
    for number, part in enumerate(source.disjoint):
        if part.box.intersect(around).volume:
            for region in term.within_source(part.box):
                yield number, region


def _slabs(region: Region, most: int, giver: int) -> Iterator[Slab]:
    """Yield the slabs of a region that one of its holders gives: a run of them."""
    term, count = region.term, len(region.holders)
    box = term.target_box
    elements = max(1, most // region.wired.itemsize)
    if count == 1 and box.volume <= elements:
        yield Slab(region, term)
        return
    if count > 1:  # as many slabs as there are holders, unless they would be tiny
        elements = min(elements, max(_LEAST // region.wired.itemsize, -(-box.volume // count)))
    boxes = list(slabs_of(box, range(len(box.starts)), elements))
    for number, part in enumerate(boxes):
        turn = (region.first + number * count // len(boxes)) % count
        if region.holders[turn] == giver:
            for cut in term.within_target(part):
                yield Slab(region, cut)


_LEAST = 1 << 16
"""Bytes of a slab below which a box is not divided between its holders."""


def gathered(slab: Slab, source: Part) -> Block:
    """Return the elements of a slab as they travel: each once, C-ordered, in the smaller dtype."""
    assert source.block is not None
    view = unique_view(slab.term, source_view(slab.term, source.block, source.box))
    wired = slab.region.wired
    if view.dtype == wired and view.flags.c_contiguous:
        return view
    out = np.empty(view.shape, wired)
    copy_cast(out, view)
    return out


def written(slab: Slab, source: Part, block: Block, box: Box) -> Block:
    """Write a slab to its place in a block that holds a box of the result; return the place."""
    assert source.block is not None
    place = target_view(slab.term, block, box)
    copy_cast(place, source_view(slab.term, source.block, source.box))
    return place


def checksum(block: Block) -> int:
    """Return a checksum of a block's elements, in C order."""
    flat = block if block.flags.c_contiguous else np.ascontiguousarray(block)
    return xxhash.xxh3_64_intdigest(as_bytes(flat))


def as_bytes(block: Block) -> memoryview:
    """Return the bytes of a C-contiguous block, which may be written to if the block may."""
    return block.reshape(-1).view(np.uint8).data


def in_buckets(slabs: Iterator[Slab], most: int) -> Iterator[list[Slab]]:
    """Yield slabs that are moved together: at most so many bytes, or one slab."""
    bucket: list[Slab] = []
    size = 0
    for slab in slabs:
        if bucket and size + slab.nbytes > most:
            yield bucket
            bucket, size = [], 0
        bucket.append(slab)
        size += slab.nbytes
    if bucket:
        yield bucket


def balance(plans: Sequence[FeedPlan]) -> dict[int, int]:
    """Return the bytes that each process gives in all."""
    found: dict[int, int] = {}
    for plan in plans:
        for giver, nbytes in plan.bytes_from.items():
            found[giver] = found.get(giver, 0) + nbytes
    return found
