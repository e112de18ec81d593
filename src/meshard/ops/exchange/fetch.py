"""Rows that positions name, brought to where the positions are.

Each device looks up which rows of which pieces it needs; what another process holds it asks for,
each row once, and gets in the order in which it asked. Where all know the positions nobody asks.
Within a process nothing is sent: rows are looked up in the pieces themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import final

import numpy as np

from meshard.ops.exchange.lookups import Lookups, Named, Searched, Setting, pass_boxes, tell
from meshard.ops.row import Op, Params
from meshard.plan.move.wires import Wire
from meshard.runtime.types import Block, Blocks
from meshard.runtime.watching.ledger import communicated
from meshard.runtime.world import RuntimeWorld
from meshard.tuning import LARGE


@final
class Fetch:
    """The rows that positions name, as an array laid out like the positions.

    Args:
        op: the operation.
        params: its parameters.
        setting: what is named by what, and who takes part.
    """

    def __init__(self, op: Op, params: Params, setting: Setting) -> None:
        self.op, self.params = op, params
        self.names, self.axes = setting.names, setting.axes
        self.lookups, self.dtype, self.parties = setting.lookups, setting.dtype, setting.parties
        self._out, self._x = self.lookups.target, self.lookups.x

    # what passes, beforehand

    @cached_property
    def wires(self) -> tuple[Wire, ...]:
        """What passes between devices at most."""
        rows = Wire(self.names[0], "all-to-all", self.axes, partial(self._most, 0), exact=False)
        asked = Wire(self.names[-1], "all-to-all", self.axes, partial(self._most, 1), exact=False)
        return (rows,) if self.known_to_all else (asked, rows)

    @cached_property
    def known_to_all(self) -> bool:
        """Whether each device has all positions."""
        return all(p.replicated for p in self.lookups.places)

    def _most(self, which: int) -> dict[int, int]:
        """Return the bytes that each device receives at most: of rows, or of what is asked for."""
        found: list[dict[int, int]] = [dict.fromkeys(self.parties.processes, 0) for _ in range(2)]
        for piece in range(self._out.piece_count):
            entries, row = math.prod(self.lookups.entries(piece)), self._row_bytes(piece)
            for device in self._out.holders(piece):
                far = self._far(piece, device)
                rows = [self.lookups.rows_in(s) for s in far]
                found[0][device] += min(entries, sum(rows)) * row
                for s, n in zip(far, rows, strict=True):
                    owner = self._owner(piece, device, s)
                    if owner is not None:
                        found[1][owner] += min(entries, n) * self.lookups.asked.itemsize
        return found[which]

    def _row_bytes(self, piece: int) -> int:
        return math.prod(self.lookups.row_shape(piece)) * self.dtype.itemsize

    def _far(self, piece: int, device: int) -> list[int]:
        """Return the pieces that a device may need for a piece of the result, and lacks."""
        own = self._x.piece_of.get(device)
        return [s for s in self.lookups.sources(piece) if s != own]

    def _owner(self, piece: int, device: int, source: int) -> int | None:
        """Return the device that is asked for rows; None if it knows the positions itself."""
        knows = self.lookups.informed(piece)
        owner = self.parties.nearest(device, self._x.holders(source), knows)
        return None if owner in knows else owner

    # running

    def run(self, world: RuntimeWorld, given: Sequence[Blocks]) -> Blocks:
        """Return the blocks of the result.

        Args:
            world: this process's world.
            given: the blocks of the rows, and of the positions.
        """
        held = self.parties.held(self._out, world.process_index)
        if world.process_count == 1 or self.parties.alone:
            named = self._all_named(given, held) if world.ledgers else {}
            if named:
                self._communicated(world, self._counted(named))
            return self._run_here(world, given, held)
        if world.process_index not in self.parties.members:
            return (None,) * self._out.piece_count
        return _Among(self, world, given, held).run()

    def _all_named(self, given: Sequence[Blocks], held: Sequence[int]) -> dict[int, Named]:
        places = given[1:]
        return {p: self.lookups.named(p, self.lookups.places_of(p, places)) for p in held}

    def _counted(
        self, named: Mapping[int, Named], process: int | None = None
    ) -> list[dict[int, int]]:
        """Return the bytes that each device receives: of rows, and of what is asked for."""
        found: list[dict[int, int]] = [{}, {}]
        for piece, own in named.items():
            sources, row = self.lookups.sources(piece), self._row_bytes(piece)
            counts = {
                s: len(self.lookups.distinct(s, own.rows(i, own.some(i))))
                for i, s in enumerate(sources)
            }
            for device in self._out.holders(piece):
                if process not in (None, self.parties.processes[device]):
                    continue
                for s in self._far(piece, device):
                    if not counts[s]:
                        continue
                    found[0][device] = found[0].get(device, 0) + counts[s] * row
                    owner = self._owner(piece, device, s)
                    if owner is not None:
                        asked = counts[s] * self.lookups.asked.itemsize
                        found[1][owner] = found[1].get(owner, 0) + asked
        return found

    def _communicated(self, world: RuntimeWorld, received: Sequence[Mapping[int, int]]) -> None:
        """Record what passes, before it does."""
        for number, found in ((-1, received[1]), (0, received[0])):
            passed = {d: n for d, n in found.items() if n}
            name, array = self.op.name, self.names[number]
            communicated(world, "all-to-all", self.axes, passed, name, array=array)

    # in one process

    def _run_here(
        self, world: RuntimeWorld, given: Sequence[Blocks], held: Sequence[int]
    ) -> Blocks:
        """Look rows up in the pieces, or in a copy of all of them that is not larger than these."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for piece in held:
            groups.setdefault(self.lookups.sources(piece), []).append(piece)
        results: list[Block | None] = [None] * self._out.piece_count
        nbytes = math.prod(self._out.shape) * self.dtype.itemsize
        large = nbytes >= LARGE
        tasks = []
        for sources, pieces in groups.items():
            apart = pieces
            size = sum(math.prod(self._x.box(s).shape) for s in sources) * self.dtype.itemsize
            most = sum(math.prod(self._out.box(p).shape) for p in pieces) * self.dtype.itemsize
            if large:
                apart = self._local(world, given, pieces, results)
            if apart and size <= max(LARGE, most):
                slab = self._slab(world, given[0], sources)
                tasks += [partial(self._by_kernel, slab, 0, given, p, results) for p in apart]
            else:
                tasks += [partial(self._from_pieces, world, given, p, results) for p in apart]
        if large:
            world.workers.run(tasks)
        else:
            for task in tasks:
                task()
        return tuple(results)

    def _local(
        self,
        world: RuntimeWorld,
        given: Sequence[Blocks],
        pieces: Sequence[int],
        results: list[Block | None],
    ) -> list[int]:
        """Look up what is all in one piece; return the pieces of the result that are left."""
        if len(self.lookups.dims) > 1 or isinstance(self.lookups, Searched):
            return list(pieces)
        (dim,), rest = self.lookups.dims, []
        cuts = np.asarray(self._x.cuts[dim])

        def one(piece: int) -> None:
            (places,) = self.lookups.places_of(piece, given[1:])
            low, high = (int(places.min()), int(places.max())) if places.size else (0, 0)
            first, last = np.searchsorted(cuts, [low, high], side="right") - 1
            if first == last and low >= 0 and high < cuts[-1]:
                source = self.lookups.sources(piece)[int(first)]
                block = given[0][source]
                assert block is not None
                self._by_kernel(block, int(cuts[first]), given, piece, results)
            else:
                rest.append(piece)

        world.workers.run([partial(one, p) for p in pieces])
        return sorted(rest)

    def _slab(self, world: RuntimeWorld, blocks: Blocks, sources: Sequence[int]) -> Block:
        """Return pieces of the array side by side."""
        if len(self.lookups.dims) == 1:
            (dim,) = self.lookups.dims
            parts = [blocks[s] for s in sources]
            if sum(b.nbytes for b in parts if b is not None) < LARGE:
                return np.concatenate(parts, axis=dim)  # type: ignore[arg-type]
        boxes = [self._x.box(s) for s in sources]
        start, stop = boxes[0].starts, boxes[-1].stops
        first = blocks[sources[0]]
        assert first is not None
        shape = [b - a for a, b in zip(start, stop, strict=True)]
        slab = world.memory.allocate(shape, first.dtype)

        def put(source: int, index: tuple[slice, ...]) -> None:
            block = blocks[source]
            assert block is not None
            world.memory.copy(slab[index], block)

        tasks = []
        for source, box in zip(sources, boxes, strict=True):
            ends = zip(box.starts, box.stops, start, strict=True)
            tasks.append(partial(put, source, tuple(slice(a - s, b - s) for a, b, s in ends)))
        world.workers.run(tasks)
        return slab

    def _by_kernel(
        self,
        block: Block,
        start: int,
        given: Sequence[Blocks],
        piece: int,
        results: list[Block | None],
    ) -> None:
        """Let the operation's kernel look the positions of a piece up in a block."""
        places = self.lookups.places_of(piece, given[1:])
        params = self.params
        if start:
            assert self.op.local is not None
            (dim,) = self.lookups.dims
            name = "x" if self.lookups.along else f"x{dim}"
            params = self.op.local(params, {name: (start, start)}, ())
        results[piece] = np.asarray(self.op.kernel(block, *places, **params))

    def _from_pieces(
        self,
        world: RuntimeWorld,
        given: Sequence[Blocks],
        piece: int,
        results: list[Block | None],
    ) -> None:
        named = self.lookups.named(piece, self.lookups.places_of(piece, given[1:]))
        results[piece] = self.filled(world, piece, named, given[0], {})

    def filled(
        self,
        world: RuntimeWorld,
        piece: int,
        named: Named,
        blocks: Blocks,
        came: Mapping[int, tuple[Block, Block]],
    ) -> Block:
        """Return a piece of the result.

        Args:
            world: whose memory is used.
            piece: its number.
            named: the rows that it is made of.
            blocks: the pieces of the array that are here.
            came: of others the rows that have come, and their numbers.
        """
        lookups = self.lookups
        sources, shape = lookups.sources(piece), lookups.row_shape(piece)
        total = world.memory.allocate((named.count, *shape), self.dtype)
        if named.single is not None:
            rows = named.rows(named.single, None)
            self._take(sources[named.single], rows, blocks, came, total)
            return _shaped(total, lookups, piece)
        for i, s in enumerate(sources):
            some = named.some(i)
            if len(some):
                total[some] = self._take(s, named.rows(i, some), blocks, came, None)
        total[named.some(len(sources))] = np.zeros((), self.dtype)
        return _shaped(total, lookups, piece)

    def _take(
        self,
        source: int,
        rows: Block,
        blocks: Blocks,
        came: Mapping[int, tuple[Block, Block]],
        out: Block | None,
    ) -> Block:
        block = blocks[source]
        if block is not None:
            return self.lookups.answer(source, block, rows, out)
        numbers, found = came[source]
        where = self.lookups.among(source, rows, numbers)
        return found.take(where, axis=0, out=out, mode="clip")


def _shaped(total: Block, lookups: Lookups, piece: int) -> Block:
    """Return rows in the shape of a piece of the result."""
    entries, shape = lookups.entries(piece), lookups.row_shape(piece)
    found = total.reshape((*entries, *shape))
    if lookups.along or not lookups.at:
        return found
    rank, at = len(entries), lookups.at
    order = [*range(rank, rank + at), *range(rank), *range(rank + at, found.ndim)]
    moved: Block = found.transpose(order)
    return moved


@final
class _Among:
    """One run among several processes."""

    def __init__(
        self, fetch: Fetch, world: RuntimeWorld, given: Sequence[Blocks], held: Sequence[int]
    ) -> None:
        self.fetch, self.world, self.given, self.held = fetch, world, given, held
        self.me = world.process_index
        self.members = [p for p in fetch.parties.members if p != self.me]
        self._named: dict[int, Named] = {}

    def run(self) -> Blocks:
        """Ask for rows, answer the others, and return the blocks of the result."""
        fetch, world = self.fetch, self.world
        needs = {r: self._wanted(self.me, r) for r in self.members}
        asked = self._asked(needs)
        came = {
            s: (rows, world.memory.reachable((len(rows), *self._row_shape(s)), fetch.dtype))
            for wanted in needs.values()
            for s, rows in wanted.items()
        }
        sends = {r: [self._rows(s, n) for s, n in own.items()] for r, own in asked.items()}
        pass_boxes(world, sends, {r: [came[s][1] for s in own] for r, own in needs.items()})
        results: list[Block | None] = [None] * fetch.lookups.target.piece_count

        def fill(piece: int) -> None:
            named = self._of(piece)
            results[piece] = fetch.filled(world, piece, named, self.given[0], came)

        world.workers.run([partial(fill, p) for p in self.held])
        return tuple(results)

    def _of(self, piece: int) -> Named:
        found = self._named.get(piece)
        if found is None:
            lookups = self.fetch.lookups
            places = lookups.places_of(piece, self.given[1:])
            found = self._named[piece] = lookups.named(piece, places)
        return found

    def _row_shape(self, source: int) -> tuple[int, ...]:
        lookups = self.fetch.lookups
        shape = lookups.x.box(source).shape
        return () if lookups.along else tuple(shape[d] for d in lookups.kept)

    def _rows(self, source: int, rows: Block) -> Block:
        block = self.given[0][source]
        assert block is not None
        return np.ascontiguousarray(self.fetch.lookups.answer(source, block, rows))

    def _wanted(self, asker: int, owner: int) -> dict[int, Block]:
        """Return of each piece that one process asks another for the rows that it needs."""
        fetch, lookups = self.fetch, self.fetch.lookups
        found: dict[int, list[Block]] = {}
        for piece, some in fetch.parties.asks(fetch.lookups, asker, owner).items():
            named = self._of(piece)
            sources = lookups.sources(piece)
            for number in some:
                rows = named.rows(number, named.some(number))
                found.setdefault(sources[number], []).append(rows)
        return {s: lookups.distinct(s, np.concatenate(rows)) for s, rows in sorted(found.items())}

    def _asked(self, needs: Mapping[int, Mapping[int, Block]]) -> dict[int, dict[int, Block]]:
        """Return what each other process needs of this one; tell them what this one needs."""
        fetch, parties, lookups = self.fetch, self.fetch.parties, self.fetch.lookups
        if fetch.known_to_all:
            if self.world.ledgers:
                every = range(lookups.target.piece_count)
                fetch._communicated(self.world, fetch._counted({p: self._of(p) for p in every}))
            return {r: self._wanted(r, self.me) for r in self.members}
        sizes = self._sizes(needs)
        sends = {
            r: list(own.values())
            for r, own in needs.items()
            if not parties.knows(lookups, self.me, r)
        }
        asked: dict[int, dict[int, Block]] = {}
        receives: dict[int, list[Block]] = {}
        for r in self.members:
            if parties.knows(lookups, r, self.me):
                asked[r] = self._wanted(r, self.me)
            else:
                asked[r] = {s: np.empty(n, lookups.asked) for s, n in sizes[r].items()}
                receives[r] = list(asked[r].values())
        pass_boxes(self.world, sends, receives)
        return asked

    def _sources(self, asker: int) -> list[int]:
        """Return the pieces of this process of which another needs rows."""
        lookups = self.fetch.lookups
        asks = self.fetch.parties.asks(lookups, asker, self.me)
        return sorted({lookups.sources(p)[i] for p, some in asks.items() for i in some})

    def _sizes(self, needs: Mapping[int, Mapping[int, Block]]) -> dict[int, dict[int, int]]:
        """Tell all how many rows are needed; return how many of each piece each other asks for."""
        fetch, world = self.fetch, self.world
        devices = sorted(fetch.parties.processes)
        received: list[dict[int, int]] = [{}, {}]
        if world.ledgers:
            received = fetch._counted({p: self._of(p) for p in self.held}, self.me)
        own = [found.get(d, 0) for found in received for d in devices]
        sources = {r: self._sources(r) for r in self.members}
        told = tell(
            world,
            {r: [*own, *map(len, wanted.values())] for r, wanted in needs.items()},
            {r: len(own) + len(some) for r, some in sources.items()},
        )
        if world.ledgers:
            sums = np.asarray([own, *[x[: len(own)] for x in told.values()]]).sum(axis=0)
            halves = sums.reshape(2, -1).tolist()
            fetch._communicated(world, [dict(zip(devices, x, strict=True)) for x in halves])
        return {r: dict(zip(some, told[r][len(own) :], strict=True)) for r, some in sources.items()}
