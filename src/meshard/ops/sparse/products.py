"""Products of a sparse matrix that is split by rows: what passes, and what each device computes.

In: a halo, layouts, and the blocks of operands. Out: blocks of the result. `Times` brings each
device the entries of the vector that its rows need; `Back` computes what each device's rows add to
the result and brings that to where it belongs; `Sampled` multiplies rows of one matrix with rows of
another where the sparse one has a value, which is the derivative of both by the values.

The rows of sparse products, and the decisions about them.

In: operands' types and a halo. Out: an `ExchangeDecision`. A sparse matrix stays where it is. A
vector is read split like the matrix's columns; one that every device has all of stays so, and
nothing passes. Columns of a dense matrix stay split over the axes that the rows do not use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, final

import numpy as np

from meshard.algebra.layout import Cuts, Layout
from meshard.algebra.propagate import Placement, Split
from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.ops.engine.decision import ExchangeDecision
from meshard.ops.engine.operand_mesh import OperandMesh, way_to
from meshard.ops.exchange.lookups import Parties
from meshard.ops.row import Dtype, Op, Operand, Params, RuleText, register
from meshard.ops.sparse.halo import (
    Halo,
    Passing,
    Route,
    check_dtype,
    sampled,
    times,
    transposed_times,
)
from meshard.plan.move.wires import Wire
from meshard.runtime.types import ArrayType, Block, Blocks
from meshard.runtime.watching.ledger import wired
from meshard.runtime.world import RuntimeWorld
from meshard.tuning import LARGE


@final
@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is known of a product before it runs.

    Attributes:
        name: how ledgers call the operation.
        array: how they call what passes.
        halo: what passes.
        source: the layout of the operand of which entries pass, or are added up.
        target: the layout of the result; of `Sampled` that of the operand with a row for each row.
        dtype: of all of them.
        parties: who takes part.
    """

    name: str
    array: str
    halo: Halo
    source: Layout
    target: Layout
    dtype: np.dtype[Any]
    parties: Parties

    @property
    def width(self) -> int:
        """How many parts the columns of a dense matrix are split into: one for a vector."""
        return self.target.grid[1] if self.target.ndim > 1 else 1

    def place(self, piece: int) -> tuple[int, int]:
        """Return the part of the rows that a piece of the result is in, and of the columns."""
        return divmod(piece, self.width)

    def piece(self, part: int, column: int) -> int:
        """Return the piece of an operand or result in a part of the rows and of the columns."""
        return part * self.width + column

    def row_shape(self, piece: int) -> tuple[int, ...]:
        """Return the shape of one entry in a piece of the result."""
        return self.target.box(piece).shape[1:]

    def entry_bytes(self) -> int:
        """Return the bytes that pass for an entry, if all columns are together."""
        return self.dtype.itemsize * int(np.prod(self.target.shape[1:]))


def _run(world: RuntimeWorld, tasks: Sequence[Callable[[], None]], blocks: Blocks) -> None:
    """Run tasks, on the workers if there is much to do."""
    if sum([b.nbytes for b in blocks if b is not None]) >= LARGE:
        world.workers.run(tasks)
        return
    for task in tasks:
        task()


class _Product:
    """The base of all: what they have in common.

    Args:
        setting: what is known beforehand.
    """

    transposed = False

    def __init__(self, setting: Setting) -> None:
        self.setting, self.halo = setting, setting.halo

    @cached_property
    def wires(self) -> tuple[Wire, ...]:
        """What passes between devices."""
        if not self.halo.counts:
            return ()
        return (Wire(self.setting.array, "halo", self.halo.axes, self._received),)

    def _received(self) -> dict[int, int]:
        setting = self.setting
        size = setting.entry_bytes() // setting.width
        if not self._even_columns:
            return self._received_by_piece()
        return self.halo.received(size, transposed=self.transposed)

    @property
    def _even_columns(self) -> bool:
        setting = self.setting
        return setting.width == 1 or setting.target.shape[1] % setting.width == 0

    def _received_by_piece(self) -> dict[int, int]:
        """Return the bytes that each device receives where devices have different columns."""
        setting, found = self.setting, {}
        for piece in range(setting.target.piece_count):
            part, _ = setting.place(piece)
            size = setting.dtype.itemsize * int(np.prod(setting.row_shape(piece)))
            given = self.halo.given[part] if self.transposed else self.halo.needs[part]
            count = sum([n for other, n in given if other != part])
            for device in setting.target.holders(piece):
                found[device] = count * size
        return found

    def held(self, world: RuntimeWorld) -> list[int]:
        """Return the pieces of the result that this process holds."""
        return self.setting.parties.held(self.setting.target, world.process_index)

    def noted(self, world: RuntimeWorld) -> None:
        """Tell open ledgers what passes."""
        if world.ledgers and self.wires:
            wired(world, self.setting.name, self.wires)


Came = Mapping[Route, Block]
"""What has come from other processes."""


def _block(blocks: Blocks, piece: int) -> Block:
    found = blocks[piece]
    assert found is not None
    return found


class _Gathering(_Product):
    """A product for which each device gets the entries of a vector that its rows need."""

    whole = False
    """Whether each device has all of the vector, so that nothing passes."""

    @cached_property
    def wires(self) -> tuple[Wire, ...]:
        """What passes between devices."""
        return () if self.whole else super().wires

    @cached_property
    def passing(self) -> Passing:
        """What passes between processes."""
        setting, needs = self.setting, []
        for piece in range(setting.target.piece_count):
            part, column = setting.place(piece)
            own = [] if self.whole else [s for s, n in self.halo.needs[part] if n]
            needs.append([setting.piece(s, column) for s in own])
        return Passing(setting.parties, setting.target, setting.source, needs)

    def came(self, world: RuntimeWorld, sends: Blocks, x: Blocks) -> Came:
        """Exchange entries with other processes; return those that have come."""
        setting = self.setting

        def message(route: Route) -> Block:
            (part, _), (source, _) = map(setting.place, route)
            first = 0
            for other, count in self.halo.given[source]:
                if other == part:
                    rows = _block(sends, source)[first : first + count]
                    return _block(x, route[1]).take(rows, axis=0)
                first += count
            raise AssertionError(route)

        def room(route: Route) -> Block:
            (part, _), (source, _) = map(setting.place, route)
            count = dict(self.halo.needs[part])[source]
            shape = (count, *setting.row_shape(route[0]))
            return world.memory.reachable(shape, setting.dtype)

        return self.passing.passed(world, message, room)

    def entries(
        self, world: RuntimeWorld, piece: int, needed: Block, given: tuple[Blocks, Came]
    ) -> Block:
        """Return the entries that the rows of a piece need, in order."""
        setting, (x, came) = self.setting, given
        part, column = setting.place(piece)
        if self.whole:
            return _block(x, column).take(needed, axis=0)
        shape = (len(needed), *setting.row_shape(piece))
        found = world.memory.allocate(shape, setting.dtype)  # of pages that have been used before
        first = 0
        for source, count in self.halo.needs[part]:
            own = found[first : first + count]
            route = piece, setting.piece(source, column)
            if route in came:
                own[...] = came[route]
            elif count:
                rows, start = needed[first : first + count], self.halo.columns[source]
                _taken(_block(x, route[1]), rows, start, own)
            first += count
        return found


def _taken(x: Block, rows: Block, start: int, out: Block) -> None:
    """Copy rows of a block, of which the first has a number; they are distinct and in order."""
    low, high = int(rows[0]) - start, int(rows[-1]) + 1 - start
    if high - low == len(rows):
        out[...] = x[low:high]
    else:
        x.take(rows - start, axis=0, out=out, mode="clip")


@final
class Times(_Gathering):
    """The product of a sparse matrix and a vector, or a matrix.

    Args:
        setting: what is known beforehand.
        whole: whether each device has all of the vector.
    """

    def __init__(self, setting: Setting, whole: bool) -> None:
        super().__init__(setting)
        self.whole = whole

    def run(self, world: RuntimeWorld, given: Sequence[Blocks]) -> Blocks:
        """Return the blocks of the product."""
        columns, starts, needed, sends, values, x = given
        self.noted(world)
        came = self.came(world, sends, x)
        results: list[Block | None] = [None] * self.setting.target.piece_count

        def one(piece: int) -> None:
            part, _ = self.setting.place(piece)
            own = self.entries(world, piece, _block(needed, part), (x, came))
            block = _block(values, part), _block(columns, part), _block(starts, part)
            results[piece] = times(*block, own)

        _run(world, [partial(one, p) for p in self.held(world)], values)
        return tuple(results)


@final
class Sampled(_Gathering):
    """For each stored value the product of a row of one operand and a row of another."""

    def run(self, world: RuntimeWorld, given: Sequence[Blocks]) -> Blocks:
        """Return the blocks of the products, laid out like the values."""
        columns, starts, needed, sends, y, x = given
        self.noted(world)
        came = self.came(world, sends, x)
        results: list[Block | None] = [None] * self.setting.target.piece_count

        def one(part: int) -> None:
            own = self.entries(world, part, _block(needed, part), (x, came))
            results[part] = sampled(
                _block(columns, part), _block(starts, part), _block(y, part), own
            )

        _run(world, [partial(one, p) for p in self.held(world)], columns)
        return tuple(results)


@final
class Back(_Product):
    """The product of the transpose of a sparse matrix and a vector, or a matrix."""

    transposed = True

    @cached_property
    def passing(self) -> Passing:
        """What passes between processes."""
        setting, needs = self.setting, []
        for piece in range(setting.target.piece_count):
            part, column = setting.place(piece)
            needs.append([setting.piece(other, column) for other, _ in self._adding(part)])
        return Passing(setting.parties, setting.target, setting.source, needs)

    def _adding(self, part: int) -> list[tuple[int, int]]:
        """Return which parts of the rows add to a part of the result: to how many entries."""
        own = dict(self.halo.needs[part])[part]
        every = sorted([*self.halo.given[part], (part, own)])
        return [(other, count) for other, count in every if count]

    def run(self, world: RuntimeWorld, given: Sequence[Blocks]) -> Blocks:
        """Return the blocks of the product."""
        columns, starts, needed, sends, values, y = given
        setting = self.setting
        self.noted(world)
        made: dict[int, Block] = {}

        def make(piece: int) -> None:
            part, _ = setting.place(piece)
            block = _block(values, part), _block(columns, part), _block(starts, part)
            width = len(_block(needed, part))
            made[piece] = transposed_times(*block, _block(y, piece), width)

        here = setting.parties.held(setting.source, world.process_index)
        _run(world, [partial(make, p) for p in here], values)

        def message(route: Route) -> Block:
            return self._part(made[route[1]], route)

        def room(route: Route) -> Block:
            (part, _), (other, _) = map(setting.place, route)
            count = dict(self.halo.given[part])[other]
            return world.memory.reachable((count, *setting.row_shape(route[0])), setting.dtype)

        came = self.passing.passed(world, message, room)
        results: list[Block | None] = [None] * setting.target.piece_count

        def add(piece: int) -> None:
            part, column = setting.place(piece)
            total = np.zeros(setting.target.box(piece).shape, setting.dtype)
            first = 0
            for other, count in self._adding(part):
                route = piece, setting.piece(other, column)
                more = came[route] if route in came else self._part(made[route[1]], route)
                if other == part:
                    begin = self._first(part, part)
                    own = _block(needed, part)[begin : begin + count]
                    total[own - self.halo.columns[part]] += more
                else:
                    total[_block(sends, part)[first : first + count]] += more
                    first += count
            results[piece] = total

        _run(world, [partial(add, p) for p in self.held(world)], values)
        return tuple(results)

    def _first(self, part: int, source: int) -> int:
        """Return where the entries of one part of a vector begin among those that rows need."""
        return sum([count for other, count in self.halo.needs[part] if other < source])

    def _part(self, made: Block, route: Route) -> Block:
        """Return what a part of the rows adds to a piece of the result."""
        (part, _), (other, _) = map(self.setting.place, route)
        first = self._first(other, part)
        return np.ascontiguousarray(made[first : first + dict(self.halo.needs[other])[part]])


STRUCTURE = 4
"""How many operands say where the values are: columns, starts, needed, sends."""


def _rule(operands: Sequence[Operand], params: Params) -> RuleText:
    wide = "k" if len(operands[-1][0]) > 1 else ""
    return f"e, s, d, t, e, c {wide} -> r {wide}", {"r": params["halo"].shape[0]}


def _back_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    wide = "k" if len(operands[-1][0]) > 1 else ""
    return f"e, s, d, t, e, r {wide} -> c {wide}", {"c": params["halo"].shape[1]}


def _sampled_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    wide = "k" if len(operands[-1][0]) > 1 else ""
    return f"e, s, d, t, r {wide}, c {wide} -> e"


def _dtype(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    found = operands[-1][1]
    assert isinstance(found, np.dtype)
    return (found,)


def _times(*blocks: Block, halo: Halo) -> Block:
    """Multiply on one device, which has all rows."""
    columns, starts, needed, _, values, x = blocks
    return times(values, columns, starts, x.take(needed, axis=0))


def _back(*blocks: Block, halo: Halo) -> Block:
    columns, starts, needed, _, values, y = blocks
    found = np.zeros((halo.shape[1], *y.shape[1:]), y.dtype)
    found[needed] = transposed_times(values, columns, starts, y, len(needed))
    return found


def _sampled(*blocks: Block, halo: Halo) -> Block:
    columns, starts, needed, _, y, x = blocks
    return sampled(columns, starts, y, x.take(needed, axis=0))


def _decide(
    world: RuntimeWorld, op: Op, types: Sequence[ArrayType], params: Params
) -> ExchangeDecision:
    """Work out what a product does.

    Raises:
        DtypeError: if SciPy has no products of the dtype.
        IncompatibleDevicesError: if an operand is committed to other devices than the matrix.
    """
    check_dtype(types[-1].dtype, op.name)
    return _Deciding(world, op, types, params["halo"]).decision()


class _Deciding:
    """The decision about one product, part by part."""

    def __init__(self, world: RuntimeWorld, op: Op, types: Sequence[ArrayType], halo: Halo) -> None:
        self.world, self.op, self.types, self.halo = world, op, types, halo
        own = NamedSharding(halo.mesh, PartitionSpec(halo.axes))
        home = world.type_of((halo.parts,), np.dtype(np.int8), own, True)
        OperandMesh(op.name, [home, *types])  # refuses other devices
        self.meets = OperandMesh(op.name, [home])

    def decision(self) -> ExchangeDecision:
        """All parts together."""
        meets, types = self.meets, self.types
        read = self._read()
        ways = [way_to(self.world, meets, t, p) for t, p in zip(types, read, strict=True)]
        kinds = tuple(
            t if part is None else self._type(t.shape, t.dtype, p)
            for t, (part, _), p in zip(types, ways, read, strict=True)
        )
        output = self._output(read)
        product = self._product(kinds, read, output)
        return ExchangeDecision(
            row=self.op,
            operands=kinds,
            moves=tuple([part for part, _ in ways]),
            moved=tuple([wire for _, wire in ways if wire is not None]),
            exchange=product,
            estimated=product.wires,
            outputs=(output,),
        )

    def _type(self, shape: tuple[int, ...], dtype: Dtype, placement: Placement) -> ArrayType:
        return self.world.type_of(shape, dtype, self.meets.sharding(placement), True)

    # how operands are read

    def _read(self) -> list[Placement]:
        halo, name = self.halo, self.op.name
        cuts = [halo.entries, halo.starts, halo.needed, halo.sent]
        found: list[Placement] = [(halo.split(c),) for c in cuts]
        last = self.types[-1]
        if name == "sparse_sampled":
            return [*found, self._whole(-2, halo.rows), self._whole(-1, halo.columns)]
        found.append((halo.split(halo.entries),))
        if name == "sparse_times" and self._everywhere(last):
            return [*found, (Split((), (0, last.shape[0])), *self._columns(last))]
        own = halo.columns if name == "sparse_times" else halo.rows
        return [*found, (halo.split(own), *self._columns(last))]

    def _whole(self, number: int, cuts: Cuts) -> Placement:
        """Return the placement of an operand whose columns are together."""
        shape = self.types[number].shape
        return (self.halo.split(cuts), *[Split((), (0, n)) for n in shape[1:]])

    def _everywhere(self, kind: ArrayType) -> bool:
        """Whether every device has all rows of an operand."""
        placement = self.meets.placement(kind)
        return kind.unplaced or (placement is not None and placement[0].shards == 1)

    def _columns(self, kind: ArrayType) -> Placement:
        """Return how the columns of a dense matrix are split: as they are, if other axes do it."""
        if kind.ndim == 1:
            return ()
        placement = self.meets.placement(kind)
        if placement is None or kind.unplaced or {*placement[1].axes} & {*self.halo.axes}:
            return (Split((), (0, kind.shape[1])),)
        return placement[1:]

    # the result

    def _output(self, read: Sequence[Placement]) -> ArrayType:
        """Return the result's type; with an operand's own sharding where it is laid out alike."""
        halo, last = self.halo, self.types[-1]
        if self.op.name == "sparse_sampled":
            return self._type((halo.entries[-1],), last.dtype, (halo.split(halo.entries),))
        rows = halo.rows if self.op.name == "sparse_times" else halo.columns
        shape = (rows[-1], *last.shape[1:])
        placement = (halo.split(rows), *read[-1][1:])
        if last.shape == shape and self.meets.placement(last) == placement:
            return self.world.type_of(shape, last.dtype, last.sharding, True)
        return self._type(shape, last.dtype, placement)

    def _product(
        self, kinds: Sequence[ArrayType], read: Sequence[Placement], output: ArrayType
    ) -> Times | Back | Sampled:
        meets, last, name = self.meets, kinds[-1], self.op.name
        whole = name == "sparse_times" and read[-1][0].shards == 1 < self.halo.parts
        source = meets.sharding(read[-1]).layout(last.shape)
        target = output.layout
        if name == "sparse_sampled":
            target = meets.sharding(read[-2]).layout(kinds[-2].shape)
        setting = Setting(
            name=self.op.name,
            array=last.str_short(),
            halo=self.halo,
            source=source,
            target=target,
            dtype=last.dtype,
            parties=Parties({d.id: d.process_index for d in meets.mesh.flat_devices}),
        )
        if name == "sparse_times":
            return Times(setting, whole)
        return (Back if name == "sparse_times_transposed" else Sampled)(setting)


register(Op("sparse_times", _rule, _times, dtypes=_dtype, decides=_decide))
register(Op("sparse_times_transposed", _back_rule, _back, dtypes=_dtype, decides=_decide))
register(Op("sparse_sampled", _sampled_rule, _sampled, dtypes=_dtype, decides=_decide))
