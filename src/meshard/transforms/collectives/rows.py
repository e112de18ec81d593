"""Collectives as operations of a body: from a grid and some axes to a grid.

Each collective is a row: what it does to the type of a value (over which axes the result varies),
and the plan for its cells (`exchanges`). Around the plan is what all have in common:
the mask of the code at hand, groups within an axis, and axes that stay automatic.

What processes agree on when they run collectives.

In: a collective of a body, and the groups of devices that take part. Out: a step for each set of
processes whose devices do: all of the mesh, or under a condition those of each group by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, final

import numpy as np

from meshard.algebra.layout import Layout
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import ArgumentError
from meshard.plan.move.wires import Wire, collective_wire
from meshard.runtime.agree import agreed
from meshard.runtime.array.array import Array
from meshard.runtime.processes.agreement import call_text
from meshard.runtime.types import ArrayType, Block, Blocks
from meshard.runtime.watching.ledger import communicated
from meshard.runtime.world import memoized
from meshard.transforms.body.body import COLLECTIVES, Body, Decided, Kinds
from meshard.transforms.body.boundary import cell_type
from meshard.transforms.body.grid import Grid
from meshard.transforms.body.scope import Extent, GridKind, Scope, lay_out, laying_wires
from meshard.transforms.collectives.exchanges import (
    Active,
    Axes,
    Exchange,
    Field,
    FoldExchange,
    picked,
    plan_all_to_all,
    plan_fold,
    plan_gather,
    plan_permute,
    plan_source,
)

Members = tuple[int, ...]


def agree_on_collective(
    scope: Scope, told: str, rest: Axes, active: Collection[int] | None
) -> None:
    """Say that devices run a collective now.

    Args:
        scope: the axes that the body runs along.
        told: the collective, its parameters and what it is given.
        rest: the axes that number the groups.
        active: the groups that take part; None for all.

    Raises:
        AgreementError: if each step is compared, and another process runs another operation.
    """
    world = scope.world
    if world.agreement is None:
        return
    if active is None:
        (members,) = _processes(scope, ())
        agreed(world, members, told, told)
        return
    groups = _processes(scope, rest)
    for group in sorted(active):
        agreed(world, groups[group], told, told)


@memoized(most=1 << 8)
def _processes(scope: Scope, rest: Axes) -> list[Members]:
    """Return for each position along some axes the processes that have devices there."""
    names = scope.mesh.axis_names
    places = [names.index(a) for a in rest]
    order = [*places, *(i for i in range(len(names)) if i not in places)]
    devices = scope.mesh.devices.transpose(order)
    rows = devices.reshape(scope.count(rest), -1).tolist()
    return [tuple(sorted({d.process_index for d in row})) for row in rows]


Groups = tuple[tuple[int, ...], ...] | None
Plan = Callable[[Field, Axes], Exchange | FoldExchange]


@final
class Receipts:
    """What each device receives in one collective; counted when it is first asked for.

    Args:
        plans: its plans, with the axes that number the groups of each.
    """

    def __init__(self, plans: Sequence[tuple[Exchange | FoldExchange, Axes]]) -> None:
        self._plans = plans
        self.kind = plans[0][0].kind

    @cached_property
    def _received(self) -> Mapping[int, tuple[int, int]]:
        """By device its group and the bytes that it receives."""
        found: dict[int, tuple[int, int]] = {}
        for plan, rest in self._plans:
            groups = plan.field.numbers(rest)
            for device, count in plan.received().items():
                before = found.get(device, (0, 0))[1]
                found[device] = groups[device], before + count
        return found

    def of(self, active: Active) -> Mapping[int, int]:
        """Return the bytes that each device receives where only some groups take part.

        Groups in which this process has no device count as not taking part.
        """
        return {
            device: count
            for device, (group, count) in self._received.items()
            if active is None or group in active
        }


@final
@dataclass(frozen=True)
class _Planned:
    """A collective on blocks.

    Attributes:
        extent: the axes of the result's cells.
        shape: the shape of a cell of the result.
        parts: for each group the plan, its cells, and the result's cells that its own are.
        count: the number of the result's cells.
        rest: the axes that number the plans' groups.
    """

    extent: Axes
    shape: tuple[int, ...]
    parts: tuple[tuple[Exchange | FoldExchange, tuple[int, ...], tuple[tuple[int, ...], ...]], ...]
    count: int
    rest: Axes

    @cached_property
    def everywhere(self) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
        """What runs it where all groups take part: from its cells to those of the result."""
        (plan, inputs, outputs), *more = self.parts
        if more or inputs != tuple(range(len(inputs))):
            return partial(self.run, active=None)
        origins = [0] * self.count
        for number, places in enumerate(outputs):
            for place in places:
                origins[place] = number
        if origins == list(range(len(outputs))):
            return plan.everywhere
        spread, every = picked(origins), plan.everywhere
        return lambda cells: spread(every(cells))

    def run(self, cells: Sequence[Any], active: Active) -> tuple[Any, ...]:
        """Return the cells of the result."""
        found: list[Any] = [None] * self.count
        for plan, inputs, outputs in self.parts:
            for cell, places in zip(
                plan.run([cells[i] for i in inputs], active), outputs, strict=True
            ):
                for place in places:
                    found[place] = cell
        return tuple(found)


def _planned(
    field: Field, axes: Axes, groups: Groups, plan: Plan, order: Sequence[str]
) -> _Planned:
    """Plan a collective on the cells of a field; its result's extent is in the given order."""
    rest = tuple(a for a in field.extent if a not in axes)
    if groups is not None:
        return _planned_groups(field, axes, groups, plan, order)
    sizes = field.mesh.shape
    made = plan(field, axes)
    extent = tuple(a for a in order if a in made.extent)
    numbers = np.arange(field.count(made.extent)).reshape([sizes[a] for a in made.extent])
    places = np.argsort(
        numbers.transpose([made.extent.index(a) for a in extent]).ravel(), kind="stable"
    )
    cells = tuple(range(field.count(field.extent)))
    outputs = tuple(zip(places.tolist(), strict=True))
    return _Planned(extent, made.shape, ((made, cells, outputs),), len(outputs), rest)


def _planned_groups(
    field: Field,
    axes: Axes,
    groups: Sequence[tuple[int, ...]],
    plan: Plan,
    order: Sequence[str],
) -> _Planned:
    """Plan a collective in groups of positions along its axes, seen as one axis.

    The groups know nothing of each other: each is a collective over the whole axis of a smaller
    mesh.
    """
    rest = tuple(a for a in field.extent if a not in axes)
    sizes = field.mesh.shape
    others = tuple(a for a in field.mesh.axis_names if a not in axes)
    names = field.mesh.axis_names
    devices = field.mesh.devices.transpose([names.index(a) for a in (*others, *axes)])
    devices = devices.reshape(*devices.shape[: len(others)], -1)
    full = field.order((*rest, *axes))
    table = np.array(full).reshape(field.count(rest), -1)
    extent = tuple(a for a in order if a in (*rest, *axes))
    back = np.arange(len(full)).reshape([sizes[a] for a in extent])
    back = back.transpose([extent.index(a) for a in (*rest, *axes)]).reshape(table.shape)
    parts = []
    shape: tuple[int, ...] = ()
    for group in groups:
        mesh = Mesh(devices.take(group, axis=-1), (*others, "members of a group"))
        own = ("members of a group",) if len(group) > 1 else ()
        made = plan(Field(field.world, mesh, (*rest, *own), field.shape, field.dtype), own)
        inputs = table[:, list(group)].ravel()
        kept = back[:, list(group)]
        if own and made.extent[-1:] == own:
            kept = kept.reshape(-1, 1)
        parts.append((made, tuple(inputs.tolist()), tuple(map(tuple, kept.tolist()))))
        shape = made.shape
    return _Planned(extent, shape, tuple(parts), len(full), rest)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """A collective.

    Attributes:
        name: what `bind` is given.
        plan: from the parameters to the plan of its cells.
        varies: from the operand's varying axes and the collective's to the result's.
        folds: whether axes along which nothing differs need no communication.
        scales: whether such an axis multiplies the result by its size.
        whole: the dims that must not be split over automatic axes.
        dims: from an entry per dim of a cell to an entry per dim of the result's.
    """

    name: str
    plan: Callable[[Mapping[str, Any]], Plan]
    varies: Callable[[frozenset[str], frozenset[str]], frozenset[str]]
    folds: bool = False
    scales: bool = False
    whole: Callable[[Mapping[str, Any]], Sequence[int]] = lambda params: ()
    dims: Callable[[list[Any], Mapping[str, Any]], list[Any]] = lambda dims, params: dims

    def decide(self, scope: Scope, kinds: Kinds, params: dict[str, Any]) -> Decided:
        """Return what runs it on grids of a kind."""
        (kind,) = kinds
        assert isinstance(kind, GridKind)
        return _Collective(self, scope, kind, params).decided


def register(row: CollectiveRow) -> None:
    """Add a collective to those that bodies know."""
    assert row.name not in COLLECTIVES, row.name
    COLLECTIVES[row.name] = row.decide


@final
@dataclass(frozen=True, slots=True)
class _Way:
    """What a collective does where the code at hand runs under a condition over some axes, or none.

    Attributes:
        extent: the axes of the cells that it is given.
        pieces: its plans, one for each piece of the automatic axes; one where there are none.
        out: the kind of the result.
        run: from the cells and the groups that take part to the result's cells.
        shardings: how each cell is laid out first on its own part of the mesh; nothing where cells
            are blocks.
        receipts: what each device receives.
    """

    extent: Extent
    pieces: Sequence[_Planned]
    out: GridKind
    run: Callable[[Sequence[Any], Active], tuple[Any, ...]]
    shardings: Sequence[NamedSharding]
    receipts: Receipts


@final
class _Collective:
    """A collective on grids of one kind."""

    def __init__(
        self, row: CollectiveRow, scope: Scope, kind: GridKind, params: dict[str, Any]
    ) -> None:
        self.row, self.scope, self.kind, self.params = row, scope, kind, params
        self.axes: Axes = params["axes"]
        self.groups: Groups = params.get("groups")
        self.real = tuple(a for a in self.axes if scope.sizes[a] > 1)
        self.factor = 1
        if self.groups is None:
            if row.folds:
                self.real = tuple(a for a in self.real if a in kind.extent)
            if row.scales:
                idle = [a for a in self.axes if a not in self.real]
                self.factor = math.prod(scope.sizes[a] for a in idle)
        whole_axis = self.groups is None
        axes = frozenset(self.axes)
        self.varies = row.varies(kind.varies, axes) if whole_axis else kind.varies
        self.plan = row.plan(params)
        self.call = f"{call_text(row.name, tuple(params.items()))} of {kind.str_short()}"
        self._ways: dict[Extent, _Way] = {}

    @property
    def decided(self) -> Decided:
        """What it does on grids of the kind, on nothing but their cells too if it can."""
        scope = self.scope
        if scope.auto or self.factor != 1:
            return Decided(self._run)
        way = self._ways[()] = self._way(())
        every, onto = way.pieces[0].everywhere, scope.onto(self.kind.extent, way.extent)
        if onto != tuple(range(scope.count(self.kind.extent))):
            return Decided(self._run)
        world, out = scope.world, way.out
        if world.agreement is not None:
            every = self._agreed(every, way.pieces[0].rest)

        def run(body: Body, values: Sequence[Grid]) -> Grid:
            if body.mask is not None or body.notes is not None or world.ledgers:
                return self._run(body, values)
            x = values[0]
            return Grid(body, out, every(x._blocks or x._live()))

        return Decided(run, (out,), lambda where, given: every(given[0]))

    def _agreed(
        self, every: Callable[[Sequence[Any]], tuple[Any, ...]], rest: Axes
    ) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
        """Return what runs it on all cells, as a step that all of its processes run."""
        scope, call = self.scope, self.call

        def run(cells: Sequence[Any]) -> tuple[Any, ...]:
            agree_on_collective(scope, call, rest, None)
            return every(cells)

        return run

    def _run(self, body: Body, values: Sequence[Grid]) -> Grid:
        """Run it, or only say what it moves."""
        (x,) = values
        scope, world, mask = self.scope, self.scope.world, body.mask
        if mask is not None:
            check_mask(self.row.name, self.axes, body)
        over = () if mask is None else mask.axes
        way = self._ways.get(over)
        if way is None:
            way = self._ways[over] = self._way(over)
        held, rest = x.cells, way.pieces[0].rest
        cells = [held[i] for i in scope.onto(self.kind.extent, way.extent)]
        active: Active = None
        if mask is not None:
            active = frozenset(active_groups(scope, mask.grid, rest))
        if body.notes is not None:
            body.notes += self._told(way, cells)
        if world.ledgers and (active is None or active):
            received, array = way.receipts.of(active), self.kind.type.str_short()
            communicated(world, way.receipts.kind, self.axes, received, self.row.name, array=array)
        if world.agreement is not None:
            agree_on_collective(scope, self.call, rest, active)
        found = way.run(cells, active)
        return Grid(body, way.out, found if self.factor == 1 else _scaled(found, self.factor))

    def _told(self, way: _Way, cells: Sequence[Any]) -> list[Wire]:
        """Return what it moves, where only types are known."""
        scope, kind, receipts = self.scope, self.kind, way.receipts
        laid = laying_wires(scope, kind, cells, way.shardings) if way.shardings else []
        received = partial(receipts.of, None)
        array = kind.type.str_short()
        return [*laid, collective_wire(array, receipts.kind, self.axes, scope.mesh, received)]

    def _way(self, over: Extent) -> _Way:
        """Plan it, where the code runs under a condition that differs along some axes."""
        scope, kind = self.scope, self.kind
        extent = scope.extent((*kind.extent, *self.real, *over))
        if scope.auto:
            return self._way_of_arrays(extent)
        field = Field(scope.world, scope.mesh, extent, kind.shape, kind.dtype)
        made = _planned(field, self.real, self.groups, self.plan, scope.manual)
        out = scope.kind(cell_type(scope, made.shape, kind.dtype), made.extent, self.varies)
        return _Way(extent, [made], out, made.run, (), _receipts([made]))

    def _way_of_arrays(self, extent: Extent) -> _Way:
        """Plan it on cells that are Arrays: piece by piece of the automatic axes."""
        scope, kind = self.scope, self.kind
        world, submeshes = scope.world, scope.submeshes
        own = kept_axes(scope, kind)
        for dim in self.row.whole(self.params):
            own[dim] = ()
        inputs = [
            world.type_of(kind.shape, kind.dtype, NamedSharding(m, PartitionSpec(*own)), True)
            for m in submeshes
        ]
        layouts = [t.layout for t in inputs]
        pieces = []
        for number, mesh in enumerate(piece_meshes(scope, layouts)):
            field = Field(world, mesh, extent, layouts[0].box(number).shape, kind.dtype)
            pieces.append(_planned(field, self.real, self.groups, self.plan, scope.manual))
        after = PartitionSpec(*self.row.dims([*own], self.params))
        shape = tuple(
            n * math.prod(scope.mesh.shape[a] for a in dim)
            for n, dim in zip(pieces[0].shape, after.axes(len(pieces[0].shape)), strict=True)
        )
        outputs = [
            world.type_of(shape, kind.dtype, NamedSharding(m, after), True) for m in submeshes
        ]
        out = scope.kind(outputs[0], scope.extent(scope.manual), self.varies)
        shardings = [NamedSharding(m, PartitionSpec(*own)) for m in submeshes]
        run = partial(self._run_arrays, pieces, outputs, shardings)
        return _Way(extent, pieces, out, run, shardings, _receipts(pieces))

    def _run_arrays(
        self,
        pieces: Sequence[_Planned],
        outputs: Sequence[ArrayType],
        shardings: Sequence[NamedSharding],
        cells: Sequence[Any],
        active: Active,
    ) -> tuple[Any, ...]:
        scope, full = self.scope, self.scope.extent(self.scope.manual)
        everywhere = active is None
        arrays = lay_out(scope, self.kind, cells, shardings, self.row.name, everywhere=everywhere)
        given = [None if x is None else x._live() for x in arrays]
        found = []
        for number, piece in enumerate(pieces):
            results = piece.run([None if b is None else b[number] for b in given], active)
            found.append([results[i] for i in scope.onto(piece.extent, full)])
        made = [tuple(blocks) for blocks in zip(*found, strict=True)]
        return tuple(map(_array_or_none, outputs, made, given))


def _array_or_none(
    type_: ArrayType, blocks: Blocks, given: Sequence[Block | None] | None
) -> Array | None:
    """Return a cell of a result; None where the cell was none, or its device did not take part."""
    nothing = all(b is None for b in blocks)
    if given is None or (nothing and any(b is not None for b in given)):
        return None
    return Array(type_, blocks)


def _receipts(pieces: Sequence[_Planned]) -> Receipts:
    return Receipts([(part[0], piece.rest) for piece in pieces for part in piece.parts])


def active_groups(scope: Scope, grid: Any, rest: Axes) -> list[int]:
    """Return the groups with an active device, numbered in the order of axes."""
    names = [a for a in scope.manual if a in rest]
    flags = np.zeros(scope.count(names), bool)
    flags[list(scope.within(np.broadcast_to(grid, scope.here.shape), tuple(names)))] = True
    flags = flags.reshape([scope.sizes[a] for a in names])
    found: list[int] = np.flatnonzero(flags.transpose([names.index(a) for a in rest])).tolist()
    return found


def check_mask(name: str, axes: Axes, body: Body) -> None:
    """Refuse a collective where some of its devices may not come.

    Raises:
        ArgumentError: if the code runs under a condition that varies over one of its axes.
    """
    mask = body.mask
    assert mask is not None
    crossing = [a for a in axes if a in mask.varies]
    if crossing:
        named = ", ".join(map(repr, crossing))
        raise ArgumentError(
            f"{name} over {_named(axes)} is inside code that runs under a condition which varies "
            f"over the mesh axis {named}: some of the devices that should take part would not get "
            "here. Move the collective out of the cond, switch or while_loop, or make the "
            f"condition the same along {named}, for example with lax.pmax(condition, ...)."
        )


def _named(axes: Axes) -> str:
    return repr(axes[0]) if len(axes) == 1 else repr(axes)


def _scaled(cells: Sequence[Any], factor: int) -> tuple[Any, ...]:
    return tuple(
        [
            None if c is None else (c * factor if type(c) is Array else _times(c, factor))
            for c in cells
        ]
    )


def _times(block: Any, factor: int) -> Any:
    return np.asarray(np.multiply(block, block.dtype.type(factor)), block.dtype)


# axes that stay automatic


def kept_axes(scope: Scope, kind: GridKind) -> list[tuple[str, ...]]:
    """Return the automatic axes that can go on splitting each dim of cells: evenly, if at all."""
    sharding = kind.type.sharding
    if (
        isinstance(sharding, NamedSharding)
        and sharding.mesh == scope.submeshes[0]
        and sharding.uneven is None
    ):
        return list(sharding.spec.axes(kind.ndim))
    return [()] * kind.ndim


def piece_meshes(scope: Scope, layouts: Sequence[Layout]) -> list[Mesh]:
    """Return the devices that hold each piece of cells of one layout, by manual axes."""
    by_id = {d.id: d for d in scope.mesh.flat_devices}
    found = []
    for piece in range(layouts[0].piece_count):
        held = np.array([[by_id[i] for i in own.holders(piece)] for own in layouts], object)
        sizes = [scope.sizes[a] for a in scope.manual]
        found.append(Mesh(held.reshape(*sizes, -1), (*scope.manual, "replicas of a piece")))
    return found


# the collectives


def _without(before: frozenset[str], axes: frozenset[str]) -> frozenset[str]:
    return before - axes


def _with(before: frozenset[str], axes: frozenset[str]) -> frozenset[str]:
    return before | axes


def _folding(combine: np.ufunc) -> Callable[[Mapping[str, Any]], Plan]:
    return lambda params: partial(plan_fold, combine=combine)


register(
    CollectiveRow(name="psum", plan=_folding(np.add), varies=_without, folds=True, scales=True)
)
register(CollectiveRow(name="pmax", plan=_folding(np.maximum), varies=_without, folds=True))
register(CollectiveRow(name="pmin", plan=_folding(np.minimum), varies=_without, folds=True))
register(
    CollectiveRow(
        name="psum_scatter",
        plan=lambda params: partial(
            plan_fold, combine=np.add, scatter=params["dim"], tiled=params["tiled"]
        ),
        varies=_with,
        whole=lambda params: [params["dim"]],
        dims=lambda dims, params: [
            e for d, e in enumerate(dims) if params["tiled"] or d != params["dim"]
        ],
    )
)


def _gathering(params: Mapping[str, Any]) -> Plan:
    return partial(plan_gather, dim=params["dim"], tiled=params["tiled"])


def _gathered_dims(dims: list[Any], params: Mapping[str, Any]) -> list[Any]:
    at = params["dim"]
    return dims if params["tiled"] else [*dims[:at], (), *dims[at:]]


for _name, _varies in (("all_gather", _with), ("all_gather_invariant", _without)):
    register(
        CollectiveRow(
            name=_name,
            plan=_gathering,
            varies=_varies,
            whole=lambda params: [params["dim"]] if params["tiled"] else [],
            dims=_gathered_dims,
        )
    )


def _exchanged_dims(dims: list[Any], params: Mapping[str, Any]) -> list[Any]:
    if params["tiled"]:
        return dims
    kept = [e for d, e in enumerate(dims) if d != params["split"]]
    return [*kept[: params["concat"]], (), *kept[params["concat"] :]]


register(
    CollectiveRow(
        name="all_to_all",
        plan=lambda params: partial(
            plan_all_to_all,
            split=params["split"],
            concat=params["concat"],
            tiled=params["tiled"],
        ),
        varies=_with,
        whole=lambda params: (
            [params["split"], params["concat"]] if params["tiled"] else [params["split"]]
        ),
        dims=_exchanged_dims,
    )
)
register(
    CollectiveRow(
        name="ppermute",
        plan=lambda params: partial(plan_permute, sources=params["sources"]),
        varies=_with,
    )
)
register(
    CollectiveRow(
        name="pbroadcast",
        plan=lambda params: partial(plan_source, source=params["source"]),
        varies=_without,
    )
)


def _axis_index(scope: Scope, kinds: Kinds, params: dict[str, Any]) -> Decided:
    axes: Axes = params["axes"]
    real = [a for a in axes if scope.sizes[a] > 1]
    extent = scope.extent(scope.manual if scope.auto else real)
    numbers = np.arange(math.prod(scope.sizes[a] for a in real), dtype=np.int32)
    numbers = numbers.reshape([scope.sizes[a] for a in real])
    named = scope.extent(real)
    flat = numbers.transpose([real.index(a) for a in named]).ravel()
    blocks = [np.asarray(flat[i]) for i in scope.onto(named, extent)]
    varies = frozenset(axes)
    world, dtype = scope.world, np.dtype(np.int32)
    if not scope.auto:
        kind = scope.kind(cell_type(scope, (), dtype), extent, varies)
        cells: tuple[Any, ...] = tuple(blocks)
    else:
        types = [
            world.type_of((), dtype, NamedSharding(m, PartitionSpec()), True)
            for m in scope.submeshes
        ]
        kind = scope.kind(types[0], extent, varies)
        cells = tuple(Array(t, (b,)) for t, b in zip(types, blocks, strict=True))
    return Decided(
        lambda body, values: Grid(body, kind, cells), (kind,), lambda where, given: cells
    )


COLLECTIVES["axis_index"] = _axis_index


def _pcast(scope: Scope, kinds: Kinds, params: dict[str, Any]) -> Decided:
    (kind,) = kinds
    assert isinstance(kind, GridKind)
    now = scope.kind(kind.type, kind.extent, kind.varies | frozenset(params["axes"]))
    return Decided(
        lambda body, values: Grid(body, now, values[0].cells), (now,), lambda where, given: given[0]
    )


COLLECTIVES["pcast"] = _pcast
