"""Which rows positions name: from blocks of positions to pieces of an array and rows in them.

In: the layouts of an array, of positions that count along some of its dims, and of what has an
entry for each position. Out: for each piece of the latter the pieces of the array that it may need,
and, once the positions are known, which rows of which.

Who takes part where rows pass between processes, and who asks whom.

In: layouts, and the process of each device. Out: for each process what it asks each other for, the
same on all of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from meshard.algebra.layout import Cuts, Layout
from meshard.runtime.types import Block, Blocks
from meshard.runtime.world import RuntimeWorld

Ints = NDArray[np.int64]


_COMPARED = 32
"""Pieces up to which those positions that name one are found by comparing, not by sorting.

Of a million, comparing takes half a millisecond for each piece, sorting 17 for all.
"""


@final
class Named:
    """The rows that the positions of one piece name.

    Args:
        lookups: what is known from layouts.
        piece: the piece of the target.
        places: its positions along each dim, in C order.
        source: for each position the number of the piece that it names, among those it may; as
            many as there are for one that is outside of the array.

    Attributes:
        single: the only piece that is named; None if there are several, or some are outside.
        count: how many positions there are.
    """

    def __init__(
        self, lookups: Lookups, piece: int, places: Sequence[Block], source: Block
    ) -> None:
        self._lookups, self._piece = lookups, piece
        self._places, self._source = places, source
        self.count = len(source)
        first = int(source[0]) if self.count else lookups.count
        one = first < lookups.count and first == int(source.min()) == int(source.max())
        self.single = first if one else None
        self._groups: tuple[Ints, Ints] | None = None

    def some(self, number: int) -> Ints:
        """Return which positions name one piece, in order; those outside for the last number."""
        if self._lookups.count <= _COMPARED:
            return np.flatnonzero(self._source == number)
        if self._groups is None:
            order = np.argsort(self._source, kind="stable")
            sizes = np.bincount(self._source, minlength=self._lookups.count + 1)
            self._groups = order, np.concatenate([[0], np.cumsum(sizes)])
        order, starts = self._groups
        return order[starts[number] : starts[number + 1]]

    def rows(self, number: int, some: Ints | None) -> Block:
        """Return the rows of one piece that some positions name; None: all positions do."""
        return self._lookups.rows(self._piece, number, self._places, some)


def _ravelled(parts: Sequence[Ints], shape: Sequence[int]) -> Ints:
    """Return places along dims as numbers in C order."""
    total = parts[0]
    for part, n in zip(parts[1:], shape[1:], strict=True):
        total = total * n + part
    return total


class Lookups:
    """What positions name, as far as it is known from layouts.

    Args:
        x: the layout of the array.
        places: those of the positions along each dim; pieces as in ``target``, or larger ones.
        target: that of what has an entry for each position: the array's dims that are not counted
            along, with the dims of the positions at ``at``; or, ``along`` a dim, the positions'.
        dims: the dims of the array that the positions count along.
        at: where the dims of the positions are in ``target``.
        along: whether there is a position for each element of the other dims.

    Attributes:
        asked: the dtype of what is asked for: numbers of rows.
    """

    def __init__(
        self,
        x: Layout,
        places: tuple[Layout, ...],
        target: Layout,
        dims: tuple[int, ...],
        at: int,
        along: bool,
    ) -> None:
        self.x, self.places, self.target = x, places, target
        self.dims, self.along, self.at = dims, along, at
        self.kept = tuple(d for d in range(x.ndim) if d not in dims)
        self.rank = places[0].ndim
        self.grid = tuple(x.grid[d] for d in dims)
        self.count = math.prod(self.grid)
        self._sources: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._informed: dict[int, frozenset[int]] = {}
        self.asked = np.dtype(np.int64)

    # layouts

    def _coordinates(self, piece: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return where a piece of the target is along the kept dims, and along the positions'."""
        place = self.target.coordinate(piece)
        if self.along:
            return tuple(place[d] for d in self.kept), place
        at, rank = self.at, self.rank
        return (*place[:at], *place[at + rank :]), place[at : at + rank]

    def sources(self, piece: int) -> tuple[int, ...]:
        """Return the pieces of the array that positions of a piece may name, in C order."""
        kept, _ = self._coordinates(piece)
        found = self._sources.get(kept)
        if found is None:
            place = [0] * self.x.ndim
            for d, i in zip(self.kept, kept, strict=True):
                place[d] = i if self.x.grid[d] > 1 else 0
            pieces = []
            for named in product(*map(range, self.grid)):
                for d, i in zip(self.dims, named, strict=True):
                    place[d] = i
                pieces.append(self.x.piece_at(place))
            found = self._sources[kept] = tuple(pieces)
        return found

    def informed(self, piece: int) -> frozenset[int]:
        """Return the devices that have all positions of a piece of the target."""
        found = self._informed.get(piece)
        if found is None:
            holders = [p.holders(self.places_piece(p, piece)) for p in self.places]
            found = frozenset(holders[0]).intersection(*holders[1:])
            self._informed[piece] = found
        return found

    def places_piece(self, places: Layout, piece: int) -> int:
        """Return the piece of some positions that a piece of the target needs."""
        _, place = self._coordinates(piece)
        pairs = zip(place, places.grid, strict=True)
        return places.piece_at([i if n > 1 else 0 for i, n in pairs])

    def places_of(self, piece: int, blocks: Sequence[Blocks]) -> list[Block]:
        """Return the positions of a piece of the target."""
        box, shape = self.target.box(piece), self.target.shape
        first = 0 if self.along else self.at
        found = []
        for layout, own in zip(self.places, blocks, strict=True):
            block = own[self.places_piece(layout, piece)]
            assert block is not None
            index = [
                slice(box.starts[d], box.stops[d])
                if layout.grid[k] == 1 and layout.shape[k] == shape[d]
                else slice(None)
                for k, d in enumerate(range(first, first + self.rank))
            ]
            found.append(block[(*index, ...)])
        return found

    def row_shape(self, piece: int) -> tuple[int, ...]:
        """Return the shape of a row: that of the kept dims in a piece of the target."""
        if self.along:
            return ()
        shape = self.target.box(piece).shape
        return (*shape[: self.at], *shape[self.at + self.rank :])

    def entries(self, piece: int) -> tuple[int, ...]:
        """Return the shape of the positions of a piece of the target."""
        shape = self.target.box(piece).shape
        return shape if self.along else shape[self.at : self.at + self.rank]

    def rows_in(self, source: int) -> int:
        """Return how many rows a piece of the array has."""
        shape = self.x.box(source).shape
        return math.prod(shape) if self.along else math.prod([shape[d] for d in self.dims])

    def table(self, block: Block) -> Table:
        """Return the rows of a piece of the array."""
        return Table(block, range(block.ndim) if self.along else self.dims)

    # values

    def rows(self, piece: int, number: int, places: Sequence[Block], some: Ints | None) -> Block:
        """Return the rows of a source that some positions, in C order, name; None: all do."""
        box = self.x.box(self.sources(piece)[number])
        given = [p if some is None else p.take(some, mode="clip") for p in places]
        if not self.along:
            parts = [p - box.starts[d] for d, p in zip(self.dims, given, strict=True)]
            return _ravelled(parts, [box.shape[d] for d in self.dims])
        (dim,), shape = self.dims, self.entries(piece)
        every = np.arange(math.prod(shape)) if some is None else some
        at = list(np.unravel_index(every, shape))
        at[dim] = given[0] - box.starts[dim]
        pairs = [(i, n) for i, n in zip(at, box.shape, strict=True) if n != 1]
        if not pairs:
            return np.zeros(len(given[0]), np.int64)
        return _ravelled([i for i, _ in pairs], [n for _, n in pairs])

    def distinct(self, source: int, rows: Block) -> Block:
        """Return the distinct ones of some rows of a piece of the array, in order."""
        return distinct(rows, self.rows_in(source))

    def among(self, source: int, rows: Block, some: Block) -> Ints:
        """Return the place of each row of a piece of the array among some distinct ones."""
        return among(rows, some, self.rows_in(source))

    def answer(self, source: int, block: Block, rows: Block, out: Block | None = None) -> Block:
        """Return rows of a piece of the array."""
        return self.table(block).take(rows, out)

    def named(self, piece: int, places: Sequence[Block]) -> Named:
        """Return which rows the positions of a piece of the target name."""
        shape = self.entries(piece)
        source: Block | None = None
        outside: Block | None = None
        flat = []
        for d, n, given in zip(self.dims, self.grid, places, strict=True):
            own, wrong = _inside(np.broadcast_to(given, shape).reshape(-1), self.x.shape[d])
            if wrong is not None:
                outside = wrong if outside is None else outside | wrong
            at = _part_of(own, self.x.cuts[d])
            flat.append(own)
            source = at if source is None else source * n + at
        assert source is not None
        if outside is not None:
            source = np.where(outside, self.count, source)
        return Named(self, piece, flat, self._short(source))

    def _short(self, source: Block) -> Block:
        """Return numbers of sources in a short dtype, which is faster to compare."""
        kind = np.uint8 if self.count < 256 else np.uint16 if self.count < 65536 else np.int64
        return source.astype(kind, copy=False)


@final
class Searched(Lookups):
    """What values find in a sorted array: their places in it, instead of rows.

    Args:
        x: the layout of the array.
        values: that of the values, and of the result.
        asked: the dtype of the values.
        side: ``"left"`` or ``"right"``, as in NumPy.
    """

    def __init__(self, x: Layout, values: Layout, asked: np.dtype[Any], side: Any) -> None:
        super().__init__(x, (values,), values, (0,), 0, False)
        self.asked, self.side = asked, side

    def places_of(self, piece: int, blocks: Sequence[Blocks]) -> list[Block]:
        """Return the values of a piece, and the first element of each piece of the array."""
        values, firsts = blocks
        assert firsts[0] is not None
        return [*super().places_of(piece, [values]), firsts[0]]

    def named(self, piece: int, places: Sequence[Block]) -> Named:
        """Return in which piece of the array each value belongs."""
        values = places[0].reshape(-1)
        # Before the first of a piece there is the end of the one before it.
        source = np.searchsorted(places[1], values, self.side) - 1
        return Named(self, piece, [values], self._short(np.maximum(source, 0)))

    def rows(self, piece: int, number: int, places: Sequence[Block], some: Ints | None) -> Block:
        """Return the values that belong in a source."""
        return places[0] if some is None else places[0].take(some, mode="clip")

    def distinct(self, source: int, rows: Block) -> Block:
        """Return the distinct ones of some values, in order."""
        return np.unique(rows)

    def among(self, source: int, rows: Block, some: Block) -> Ints:
        """Return the place of each value among some distinct ones."""
        return np.searchsorted(some, rows)

    def answer(self, source: int, block: Block, rows: Block, out: Block | None = None) -> Block:
        """Return where values belong, in the whole array."""
        found = np.searchsorted(block, rows, self.side) + self.x.box(source).starts[0]
        if out is None:
            return found
        out[...] = found
        return out


def _inside(places: Block, size: int) -> tuple[Block, Block | None]:
    """Return positions, those outside replaced by 0, and which these are; None if none are."""
    if not places.size or (int(places.min()) >= 0 and int(places.max()) < size):
        return places, None
    wrong = (places < 0) | (places >= size)
    return np.where(wrong, 0, places), wrong


def _part_of(places: Block, cuts: Cuts) -> Block:
    """Return which part of a dim each position is in."""
    count = len(cuts) - 1
    if count == 1:
        return np.zeros(places.shape, np.uint8)
    step = cuts[1] - cuts[0]
    if step and all(c == min(i * step, cuts[-1]) for i, c in enumerate(cuts)):
        found: Block = places // step
        return found
    return np.searchsorted(np.asarray(cuts[1:-1]), places, side="right")


@final
class Table:
    """Rows of a block, by their number in C order of the dims that are counted along."""

    __slots__ = ("_front", "_lead", "_shape")

    def __init__(self, block: Block, dims: Sequence[int]) -> None:
        kept = [d for d in range(block.ndim) if d not in dims]
        front = block.transpose([*dims, *kept])
        self._lead = front.shape[: len(dims)]
        self._shape = front.shape[len(dims) :]
        if len(dims) == 1 or front.flags.c_contiguous:
            front = front.reshape(math.prod(self._lead), *self._shape)
            self._lead = front.shape[:1]
        self._front = front

    def take(self, rows: Block, out: Block | None = None) -> Block:
        """Return some rows."""
        if len(self._lead) == 1 and self._front.flags.c_contiguous:
            taken: Block = self._front.take(rows, axis=0, out=out, mode="clip")
            return taken
        found: Block = self._front[self._where(rows)]
        if out is not None:
            out[...] = found
            return out
        return found

    def _where(self, rows: Block) -> tuple[Block, ...]:
        return (rows,) if len(self._lead) == 1 else np.unravel_index(rows, self._lead)


def distinct(rows: Ints, count: int) -> Ints:
    """Return the distinct ones of some rows below a number, in order."""
    if count > 8 * len(rows) + 1024:
        return np.unique(rows)
    mark = np.zeros(count, bool)
    mark[rows] = True
    return np.flatnonzero(mark)


def among(rows: Ints, some: Ints, count: int) -> Ints:
    """Return the place of each row among some distinct rows below a number, in order."""
    if count > 8 * len(rows) + 1024:
        return np.searchsorted(some, rows)
    place = np.empty(count, np.int64)
    place[some] = np.arange(len(some))
    return place[rows]


@final
class Parties:
    """The processes of some devices.

    Args:
        processes: the process of each device.
    """

    def __init__(self, processes: Mapping[int, int]) -> None:
        self.processes = processes
        self.members = sorted(set(processes.values()))
        self.alone = len(self.members) == 1
        self._asks: dict[tuple[int, int], dict[int, list[int]]] = {}
        self._of: dict[int, list[set[int]]] = {}

    def held(self, layout: Layout, process: int) -> list[int]:
        """Return the pieces that a process has devices for."""
        return [i for i, own in enumerate(self.owners(layout)) if process in own]

    def owners(self, layout: Layout) -> list[set[int]]:
        """Return the processes that hold each piece."""
        found = self._of.get(id(layout))
        if found is None:
            found = self._of[id(layout)] = [
                {self.processes[d] for d in layout.holders(i)} for i in range(layout.piece_count)
            ]
        return found

    def nearest(self, device: int, holders: Sequence[int], knows: Collection[int]) -> int:
        """Return the device that another takes something from: itself if it holds that.

        Of other holders those come first that know the positions; equal ones take turns.
        """
        if device in holders:
            return device
        best = [d for d in holders if d in knows] or holders
        return best[device % len(best)]

    def asks(self, lookups: Lookups, asker: int, owner: int) -> dict[int, list[int]]:
        """Return by piece of the target which of its sources one process asks another for."""
        found = self._asks.get((asker, owner))
        if found is None:
            found = self._asks[asker, owner] = {}
            for piece in self.held(lookups.target, asker):
                some = [
                    i
                    for i, s in enumerate(lookups.sources(piece))
                    if self._sender(lookups, asker, s) == owner
                ]
                if some:
                    found[piece] = some
        return found

    def _sender(self, lookups: Lookups, asker: int, source: int) -> int:
        """Return the process that another takes the rows of a piece from: itself if it can."""
        holders = self.owners(lookups.x)[source]
        if asker in holders:
            return asker
        best = sorted(holders & self._informed(lookups, asker)) or sorted(holders)
        return best[(asker + source) % len(best)]

    def _informed(self, lookups: Lookups, asker: int) -> set[int]:
        """Return the processes that have all positions of the pieces of one."""
        found = set(self.members)
        for piece in self.held(lookups.target, asker):
            found &= self.informed(lookups, piece)
        return found

    def informed(self, lookups: Lookups, piece: int) -> set[int]:
        """Return the processes that have all positions of a piece of the target.

        A process may have them on several devices.
        """
        found = set(self.members)
        for layout in lookups.places:
            found &= self.owners(layout)[lookups.places_piece(layout, piece)]
        return found

    def knows(self, lookups: Lookups, asker: int, owner: int) -> bool:
        """Whether a process has all positions that another looks up in its pieces."""
        asked = self.asks(lookups, asker, owner)
        return all(owner in self.informed(lookups, p) for p in asked)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is known of an exchange before the positions are.

    Attributes:
        names: how ledgers call the operands.
        axes: the mesh axes along which rows pass.
        lookups: what is named by what.
        parties: who takes part.
        dtype: of the rows.
    """

    names: tuple[str, ...]
    axes: tuple[str, ...]
    lookups: Lookups
    parties: Parties
    dtype: np.dtype[Any]


def pass_boxes(
    world: RuntimeWorld, sends: Mapping[int, list[Block]], receives: Mapping[int, list[Block]]
) -> None:
    """Send boxes to peers, and fill boxes from them; those without elements are left out."""
    out = {p: [b for b in boxes if b.size] for p, boxes in sends.items()}
    into = {p: [b for b in boxes if b.size] for p, boxes in receives.items()}
    world.transport.exchange(
        [(p, boxes) for p, boxes in out.items() if boxes],
        [(p, boxes) for p, boxes in into.items() if boxes],
    )


def tell(
    world: RuntimeWorld, letters: Mapping[int, list[int]], lengths: Mapping[int, int]
) -> dict[int, list[int]]:
    """Send a list of numbers to each peer, and return theirs, of which the lengths are known."""
    found: dict[int, Ints] = {p: np.empty(n, np.int64) for p, n in lengths.items()}
    out: dict[int, list[Block]] = {p: [np.asarray(x, np.int64)] for p, x in letters.items()}
    pass_boxes(world, out, {p: [x] for p, x in found.items()})
    return {p: x.tolist() for p, x in found.items()}
