"""Values that positions send to rows of an array, brought to where the rows are.

Each device that has values looks up which rows of which pieces they go to, and sends them there
with the rows' numbers; what changes a piece is applied in the order of the positions, as on one
device, so that the bits are the same. Where the owner of the rows knows the positions it is sent
values only, and where it has the values too, nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, final

import numpy as np

from meshard.ops.exchange.lookups import Ints, Named, Setting, pass_boxes, tell
from meshard.ops.row import Op, Params
from meshard.plan.move.wires import Wire
from meshard.runtime.types import Block, Blocks
from meshard.runtime.watching.ledger import communicated
from meshard.runtime.world import RuntimeWorld
from meshard.tuning import LARGE

_ROW = np.dtype(np.int64)


@final
@dataclass(frozen=True, slots=True)
class _Change:
    """What one piece of the values does to one piece of the array.

    Attributes:
        rows: the rows that it changes, in the order of the positions.
        values: what comes to each.
    """

    rows: Ints
    values: Block


@final
class Deliver:
    """An array some of whose rows are changed by values, as positions say.

    Args:
        op: the operation.
        params: its parameters.
        setting: what is named by what, the target being the values; and who takes part.
    """

    def __init__(self, op: Op, params: Params, setting: Setting) -> None:
        self.op, self.params = op, params
        self.names, self.axes = setting.names, setting.axes
        self.lookups, self.dtype, self.parties = setting.lookups, setting.dtype, setting.parties
        self._values, self._x = self.lookups.target, self.lookups.x
        # Behind a dim that is split, the positions of a piece are not one stretch of all of them.
        self.in_order = all(n == 1 for n in self._values.grid[1 : self.lookups.rank])

    # what passes, beforehand

    @cached_property
    def wires(self) -> tuple[Wire, ...]:
        """What passes between devices at most."""
        if self.known_to_all:
            return ()
        return (Wire(self.names[1], "all-to-all", self.axes, self._most, exact=False),)

    @cached_property
    def known_to_all(self) -> bool:
        """Whether each device has all values and positions."""
        whole = all(p.replicated for p in self.lookups.places)
        return whole and all(n == 1 for n in self._values.grid[: self.lookups.rank])

    @cached_property
    def sources(self) -> dict[int, list[int]]:
        """For each piece of the array the pieces of the values that may change it, in order."""
        found: dict[int, list[int]] = {i: [] for i in range(self._x.piece_count)}
        for u in range(self._values.piece_count):
            for t in self.lookups.sources(u):
                found[t].append(u)
        return found

    def _most(self) -> dict[int, int]:
        every = {
            (u, t): math.prod(self.lookups.entries(u))
            for t, some in self.sources.items()
            for u in some
        }
        return self._received(every)

    def _received(self, counts: Mapping[tuple[int, int], int]) -> dict[int, int]:
        """Return the bytes that each device receives.

        Args:
            counts: for each piece of the values, and of the array, how many rows one changes.
        """
        found = dict.fromkeys(self.parties.processes, 0)
        for (u, t), count in counts.items():
            for device in self._x.holders(t):
                if device not in self._values.holders(u):
                    row = self._row_bytes(u)
                    if device not in self.lookups.informed(u):
                        row += self._number_bytes
                    found[device] += count * row
        return found

    def _row_bytes(self, piece: int) -> int:
        return math.prod(self.lookups.row_shape(piece)) * self.dtype.itemsize

    @property
    def _number_bytes(self) -> int:
        """The bytes that say where a value goes, and when."""
        return _ROW.itemsize * (1 if self.in_order else 2)

    # running

    def run(self, world: RuntimeWorld, given: Sequence[Blocks]) -> Blocks:
        """Return the blocks of the result.

        Args:
            world: this process's world.
            given: the blocks of the array, of the values, and of the positions.
        """
        me = world.process_index
        if world.process_count > 1 and me not in self.parties.members:
            return (None,) * self._x.piece_count
        found = _Deliveries(self, world, given)
        if world.process_count == 1 or self.parties.alone:
            if world.ledgers and not self.known_to_all:
                found.group(range(self._values.piece_count))
                self._communicated(world, found.counts())
            return found.apply(range(self._x.piece_count), {})
        came = found.exchanged()
        return found.apply(self.parties.held(self._x, me), came)

    def _communicated(self, world: RuntimeWorld, counts: Mapping[tuple[int, int], int]) -> None:
        received = {d: n for d, n in self._received(counts).items() if n}
        communicated(world, "all-to-all", self.axes, received, self.op.name, array=self.names[1])

    def sender(self, receiver: int, values: int) -> int:
        """Return the process that another gets a piece of the values from: itself if it can."""
        owners = self.parties.owners(self._values)[values]
        both = sorted(owners & self.parties.informed(self.lookups, values))
        return receiver if receiver in both else both[(receiver + values) % len(both)]

    def knows(self, receiver: int, values: int) -> bool:
        """Whether a process has the positions of a piece of the values."""
        return receiver in self.parties.informed(self.lookups, values)


@final
class _Deliveries:
    """One run: the positions of each piece of the values, grouped by the pieces they name."""

    def __init__(self, deliver: Deliver, world: RuntimeWorld, given: Sequence[Blocks]) -> None:
        self.deliver, self.world, self.given = deliver, world, given
        self._named: dict[int, Named] = {}
        self._some: dict[tuple[int, int], Ints] = {}

    def group(self, pieces: Sequence[int]) -> None:
        """Find out where some pieces of the values go, side by side."""
        lookups = self.deliver.lookups

        def one(piece: int) -> None:
            named = lookups.named(piece, lookups.places_of(piece, self.given[2:]))
            for number, target in enumerate(lookups.sources(piece)):
                self._some[piece, target] = named.some(number)
            self._named[piece] = named

        missing = [p for p in pieces if p not in self._named]
        entries = sum(math.prod(lookups.entries(p)) for p in missing)
        self._run([partial(one, p) for p in missing], entries * _ROW.itemsize)

    def _run(self, tasks: Sequence[Any], nbytes: int) -> None:
        if nbytes >= LARGE:
            self.world.workers.run(tasks)
            return
        for task in tasks:
            task()

    def some(self, values: int, target: int) -> Ints:
        """Return the positions' numbers, of a piece of the values, that name a piece."""
        self.group([values])
        return self._some[values, target]

    def counts(self) -> dict[tuple[int, int], int]:
        """Return how many rows each grouped piece of the values changes in each piece."""
        return {route: len(some) for route, some in self._some.items()}

    def _rows(self, values: int, target: int) -> Ints:
        """Return the rows of a piece of the array that a piece of the values goes to."""
        number = self.deliver.lookups.sources(values).index(target)
        return self._named[values].rows(number, self.some(values, target))

    def change(self, values: int, target: int) -> _Change:
        """Return what a piece of the values, which is here, does to a piece of the array."""
        lookups = self.deliver.lookups
        some = self.some(values, target)
        block = self.given[1][values]
        assert block is not None
        entries = lookups.entries(values)
        own = block.reshape((math.prod(entries), *block.shape[len(entries) :]))
        return _Change(self._rows(values, target), own.take(some, axis=0, mode="clip"))

    def times(self, values: int, some: Ints) -> Ints:
        """Return when entries of a piece of the values come, among all of them."""
        lookups, layout = self.deliver.lookups, self.deliver.lookups.target
        box = layout.box(values)
        at = np.unravel_index(some, lookups.entries(values))
        found = np.zeros(len(some), np.int64)
        for d, own in enumerate(at):
            found = found * layout.shape[d] + own + box.starts[d]
        return found

    def apply(
        self, pieces: Sequence[int], came: Mapping[tuple[int, int], tuple[_Change, Ints | None]]
    ) -> Blocks:
        """Return the blocks of the result.

        Args:
            pieces: those that are made here.
            came: what other processes sent, and when that comes.
        """
        deliver = self.deliver
        blocks = self.given[0]
        results: list[Block | None] = [None] * len(blocks)
        here = {u for t in pieces for u in deliver.sources[t] if (u, t) not in came}
        self.group(sorted(here))

        def one(target: int) -> None:
            block = blocks[target]
            assert block is not None
            found = [self._of(u, target, came) for u in deliver.sources[target]]
            changes = [(c, times) for c, times in found if len(c.rows)]
            results[target] = self._changed(block, changes)

        self._run([partial(one, t) for t in pieces], sum(b.nbytes for b in blocks if b is not None))
        return tuple(results)

    def _of(
        self,
        values: int,
        target: int,
        came: Mapping[tuple[int, int], tuple[_Change, Ints | None]],
    ) -> tuple[_Change, Ints | None]:
        found = came.get((values, target))
        if found is not None:
            return found
        change = self.change(values, target)
        if self.deliver.in_order:
            return change, None
        return change, self.times(values, self.some(values, target))

    def _changed(self, block: Block, changes: Sequence[tuple[_Change, Ints | None]]) -> Block:
        """Return a copy of a piece to which all changes are made."""
        if not changes:
            return block
        deliver, parts = self.deliver, [c for c, _ in changes]
        if len(parts) > 1 and not deliver.in_order:
            order = np.argsort(np.concatenate([t for _, t in changes]), kind="stable")
            rows = np.concatenate([c.rows for c in parts])[order]
            parts = [_Change(rows, np.concatenate([c.values for c in parts])[order])]
        dims = deliver.lookups.dims
        shape = [block.shape[d] for d in dims]
        assert deliver.op.local is not None
        whole = {f"x{d}": (0, n) for d, n in zip(dims, shape, strict=True)}
        params = deliver.op.local(deliver.params, whole, ())
        out = self.world.memory.allocate(block.shape, block.dtype)
        for part in parts:
            places = np.unravel_index(part.rows, shape) if dims[1:] else [part.rows]
            block = deliver.op.kernel(block, part.values, *places, **params, out=out)
        return block

    # between processes

    def _routes(self, sender: int, receiver: int) -> list[tuple[int, int]]:
        """Return which pieces of values one process sends another for which pieces of the array."""
        deliver = self.deliver
        return [
            (u, t)
            for t in deliver.parties.held(deliver.lookups.x, receiver)
            for u in deliver.sources[t]
            if deliver.sender(receiver, u) == sender
        ]

    def exchanged(self) -> dict[tuple[int, int], tuple[_Change, Ints | None]]:
        """Send what other processes need of the values here; return what they send."""
        deliver, world = self.deliver, self.world
        if deliver.known_to_all:
            return {}
        me = world.process_index
        others = [p for p in deliver.parties.members if p != me]
        going = {p: self._routes(me, p) for p in others}
        coming = {p: self._routes(p, me) for p in others}
        self.group(sorted({u for routes in going.values() for u, _ in routes}))
        sizes = self._sizes(going, coming)
        sends = {p: [b for r in routes for b in self._boxes(p, *r)] for p, routes in going.items()}
        receives: dict[int, list[Block]] = {p: [] for p in others}
        found = {}
        for peer, routes in coming.items():
            for route, count in zip(routes, sizes[peer], strict=True):
                boxes, change, times = self._arriving(*route, count)
                found[route] = change, times
                receives[peer] += boxes
        pass_boxes(world, sends, receives)
        return found

    def _boxes(self, peer: int, values: int, target: int) -> list[Block]:
        """Return what is sent: the values, and where and when they go unless that is known."""
        change = self.change(values, target)
        boxes = [np.ascontiguousarray(change.values)]
        if not self.deliver.knows(peer, values):
            boxes.append(np.ascontiguousarray(change.rows))
            if not self.deliver.in_order:
                boxes.append(self.times(values, self.some(values, target)))
        return boxes

    def _arriving(
        self, values: int, target: int, count: int
    ) -> tuple[list[Block], _Change, Ints | None]:
        deliver = self.deliver
        block = self._value_dims(values)
        own = self.world.memory.reachable((count, *block), deliver.dtype)
        boxes: list[Block] = [own]
        times = None
        if deliver.knows(self.world.process_index, values):
            some = self.some(values, target)
            rows = self._rows(values, target)
            times = None if deliver.in_order else self.times(values, some)
        else:
            rows = np.empty(count, np.int64)
            boxes.append(rows)
            if not deliver.in_order:
                times = np.empty(count, np.int64)
                boxes.append(times)
        return boxes, _Change(rows, own), times

    def _value_dims(self, values: int) -> tuple[int, ...]:
        layout = self.deliver.lookups.target
        return tuple(layout.box(values).shape[self.deliver.lookups.rank :])

    def _sizes(
        self,
        going: Mapping[int, Sequence[tuple[int, int]]],
        coming: Mapping[int, Sequence[tuple[int, int]]],
    ) -> dict[int, list[int]]:
        """Tell the others how much they get, and return how much comes, in order."""
        deliver, world = self.deliver, self.world
        counted = {p: self._counted_by(p) if world.ledgers else [] for p in coming}
        mine = self._counted_by(world.process_index) if world.ledgers else []
        self.group(sorted({u for u, _ in mine}))
        own = [len(self.some(*route)) for route in mine]
        told = tell(
            world,
            {p: [*own, *[len(self.some(*r)) for r in routes]] for p, routes in going.items()},
            {p: len(counted[p]) + len(routes) for p, routes in coming.items()},
        )
        if world.ledgers:
            counts = dict(zip(mine, own, strict=True))
            for p, x in told.items():
                counts.update(zip(counted[p], x, strict=False))
            deliver._communicated(world, counts)
        return {p: x[len(counted[p]) :] for p, x in told.items()}

    def _counted_by(self, process: int) -> list[tuple[int, int]]:
        """Return the pieces of values and of the array whose counts a process tells all others."""
        deliver = self.deliver
        first = [min(own) for own in deliver.parties.owners(deliver.lookups.target)]
        return [(u, t) for t, some in deliver.sources.items() for u in some if first[u] == process]
