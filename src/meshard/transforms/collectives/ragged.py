"""The collective whose parts have sizes of their own: ``ragged_all_to_all``.

In: for each device rows to send, an array to receive into, and four small lists that say which rows
go where. The lists are gathered first. From them each process derives the same copies and
messages, a `Part`, so that nothing but the rows that are wanted elsewhere is moved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, final

import numpy as np

from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import ArgumentError, DtypeError, ShapeError
from meshard.ops.array.join import stack
from meshard.plan.move.part import Copy, Message, Part, Recipe
from meshard.plan.move.wires import Wire, collective_wire
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.execute import run_part
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike, ArrayType
from meshard.runtime.watching.ledger import communicated
from meshard.transforms.body.body import COLLECTIVES, Body, Decided, Kinds
from meshard.transforms.body.boundary import cell_type
from meshard.transforms.body.grid import Grid
from meshard.transforms.body.scope import Extent, GridKind, Scope, lay_out, laying_wires
from meshard.transforms.collectives.axis_arguments import (
    AxisName,
    Groups,
    bound_axes,
    index_groups,
    members,
    mesh_axes_only,
)
from meshard.transforms.collectives.exchanges import Active, Exchange, Field, plan_gather
from meshard.transforms.collectives.rows import (
    Receipts,
    active_groups,
    agree_on_collective,
    check_mask,
    kept_axes,
    piece_meshes,
)

Axes = tuple[str, ...]
Tables = Mapping[int, Any]
"""By cell: where the parts begin that it sends, their sizes, where they land, what it receives."""


_NAME = "ragged_all_to_all"


@final
@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a cell's result that one cell gives: its own ``output`` where that is None."""

    start: int
    stop: int
    source: int | None
    at: int


@final
class _Holders:
    """The cells of a grid, and the devices and processes that hold each of them."""

    def __init__(self, scope: Scope, mesh: Mesh, extent: Extent) -> None:
        names = mesh.axis_names
        order = [names.index(a) for a in (*extent, *(a for a in names if a not in extent))]
        devices = mesh.devices.transpose(order).reshape(scope.count(extent), -1)
        self.devices = [[d.id for d in row] for row in devices]
        self.processes = [sorted({d.process_index for d in row}) for row in devices]
        self._me = scope.world.process_index

    def part(
        self, runs: Mapping[int, Sequence[_Rows]], shape: tuple[int, ...], volume: int
    ) -> Part:
        """Return what this process does so that each cell gets its rows.

        Args:
            runs: what the rows of each cell of the result are.
            shape: the shape of a cell of the result.
            volume: the elements of a row.
        """
        me = self._me
        recipes: list[Recipe | None] = [None] * len(self.processes)
        sends: dict[int, list[Copy]] = {}
        receives: dict[int, list[Copy]] = {}
        for cell, found in runs.items():
            local: list[Copy] = []
            for run in found if volume else ():
                copy = _copy(run, cell, shape)
                owners = self.processes[copy.origin]
                for receiver in self.processes[cell]:
                    mine = receiver in owners
                    sender = receiver if mine else owners[receiver % len(owners)]
                    if sender == receiver == me:
                        local.append(copy)
                    elif receiver == me:
                        receives.setdefault(sender, []).append(copy)
                    elif sender == me:
                        sends.setdefault(receiver, []).append(copy)
            if me in self.processes[cell]:
                alone = len(local) == 1 and local[0].shape == shape
                recipes[cell] = Recipe(
                    shape, local[0] if alone else None, tuple(local), True, False
                )
        return Part(
            tuple(recipes),
            tuple(Message(p, tuple(c)) for p, c in sorted(sends.items())),
            tuple(Message(p, tuple(c)) for p, c in sorted(receives.items())),
        )

    def received(self, runs: Mapping[int, Sequence[_Rows]], row: int) -> dict[int, int]:
        """Return the bytes that each device receives, of rows of that many bytes."""
        found: dict[int, int] = {}
        for cell, parts in runs.items():
            rows = sum(r.stop - r.start for r in parts if r.source not in (None, cell))
            found.update((device, rows * row) for device in self.devices[cell])
        return found


def _copy(run: _Rows, cell: int, shape: tuple[int, ...]) -> Copy:
    rest, rows = tuple(slice(0, n) for n in shape[1:]), run.stop - run.start
    return Copy(
        0 if run.source is not None else 1,
        cell if run.source is None else run.source,
        (slice(run.at, run.at + rows), *rest),
        cell,
        (slice(run.start, run.stop), *rest),
        (rows, *shape[1:]),
    )


# from the lists to runs


def _runs(
    tables: Tables, cells: Sequence[int], rows: tuple[int, int], examples: int, told: str
) -> dict[int, list[_Rows]]:
    """Return where the rows of each cell of one group come from.

    Args:
        tables: the lists of each cell.
        cells: the members of the group, in order.
        rows: the rows that a cell has for each example, and those that its result has.
        examples: how many examples of `vmap` a cell has the rows of, one after the other. Of the
            parts for one receiver, the first are those of the first example.
        told: how to call the axis.

    Raises:
        ShapeError: if rows are sent or land outside of an array.
        ArgumentError: if sizes are negative, or one side tells others than the other.
    """
    each = tables[cells[0]].shape[1] // len(cells)
    found: dict[int, list[_Rows]] = {}
    for receiver, cell in enumerate(cells):
        landed: list[_Rows] = []
        for sender, source in enumerate(cells):
            for k in range(each):
                sent, got = receiver * each + k, sender * each + k
                at, size, start = (int(tables[source][row, sent]) for row in range(3))
                wanted = int(tables[cell][3, got])
                place = f"ragged_all_to_all along {told}: position {sender} sends position"
                if size != wanted:
                    raise ArgumentError(
                        f"{place} {receiver} {size} rows (send_sizes[{sent}]), but that one "
                        f"expects {wanted} (recv_sizes[{got}]). recv_sizes must be "
                        "all_to_all(send_sizes, axis_name, 0, 0, tiled=True)."
                    )
                if size < 0:
                    raise ArgumentError(
                        f"{place} {receiver} {size} rows (send_sizes[{sent}]); a size must be at "
                        "least 0."
                    )
                for begin, most, array, name in (
                    (at, rows[0], "operand", "input_offsets"),
                    (start, rows[1], "output", "output_offsets"),
                ):
                    if size and not 0 <= begin <= most - size:
                        raise ShapeError(
                            f"{place} {receiver} {size} rows, and {name}[{sent}] is {begin}: rows "
                            f"{begin} to {begin + size} of {array}, which has {most}."
                        )
                if size:
                    example = k * examples // each
                    at, start = at + example * rows[0], start + example * rows[1]
                    landed.append(_Rows(start, start + size, source, at))
        found[cell] = _filled(_settled(landed), rows[1] * examples)
    return found


def _settled(runs: list[_Rows]) -> list[_Rows]:
    """Return runs in the order of their rows; where they overlap the last one wins."""
    ordered = sorted(runs, key=lambda r: r.start)
    if all(a.stop <= b.start for a, b in pairwise(ordered)):
        return ordered
    points = sorted({*(r.start for r in runs), *(r.stop for r in runs)})
    found: list[_Rows] = []
    for start, stop in pairwise(points):
        last = next((r for r in reversed(runs) if r.start <= start < r.stop), None)
        if last is not None:
            found.append(_Rows(start, stop, last.source, last.at + start - last.start))
    return found


def _filled(runs: Sequence[_Rows], rows: int) -> list[_Rows]:
    """Return runs with those between them, which stay as they are in the array itself."""
    found, at = [], 0
    for run in (*runs, _Rows(rows, rows, None, rows)):
        if run.start > at:
            found.append(_Rows(at, run.start, None, at))
        if run.stop > run.start:
            found.append(run)
        at = run.stop
    return found


# the collective


@final
@dataclass(frozen=True)
class _RaggedPlan:
    """All that does not depend on values.

    Attributes:
        extent: the axes along which cells differ.
        members: for each group its number by the axes that are not the collective's, and its cells.
        rest: those axes.
        gather: brings the lists together.
        receipts: what devices receive then.
        sites: the pieces of the automatic axes; one where there are none.
        out: the kind of the result.
    """

    extent: Extent
    members: tuple[tuple[int, tuple[int, ...]], ...]
    rest: Axes
    gather: Exchange
    receipts: Receipts
    sites: tuple[_Holders, ...]
    out: GridKind

    def tables(self, cells: Sequence[Any], active: Active) -> dict[int, Any]:
        """Return the lists of all cells of the groups that take part."""
        found = self.gather.run(cells, active)
        order = self.gather.field.order((*self.gather.extent, *self.gather.axes))
        numbers = np.array(order).reshape(len(found), -1)
        return {
            int(cell): table
            for row, tables in zip(numbers, found, strict=True)
            if tables is not None
            for cell, table in zip(row, tables, strict=True)
        }


def _ragged(scope: Scope, kinds: Kinds, params: dict[str, Any]) -> Decided:
    return Decided(_Ragged(scope, kinds, params).run)


@final
class _Ragged:
    """The collective on grids of some kinds: the operand, the output, the lists of sizes."""

    def __init__(self, scope: Scope, kinds: Kinds, params: dict[str, Any]) -> None:
        grids = [k for k in kinds if isinstance(k, GridKind)]
        self.scope, self.kinds = scope, grids
        operand, output, _ = grids
        self.axes: Axes = params["axes"]
        every = (tuple(range(math.prod(scope.sizes[a] for a in self.axes))),)
        self.groups: tuple[tuple[int, ...], ...] = params.get("groups") or every
        self.real = tuple(a for a in self.axes if scope.sizes[a] > 1)
        self.varies = frozenset(self.axes).union(*(k.varies for k in grids))
        self.examples: int = params.get("examples", 1)
        self.rows = operand.shape[0] // self.examples, output.shape[0] // self.examples
        self.array = output.type.str_short()
        self.told = repr(self.axes[0]) if len(self.axes) == 1 else repr(self.axes)
        of = ", ".join([k.str_short() for k in grids])
        self.text = f"`{_NAME}` over {self.told} of {of}"
        self.laying = _ArrayCells(scope, *grids) if scope.auto else None
        self._plans: dict[Any, _RaggedPlan] = {}

    def run(self, body: Body, values: Sequence[Grid]) -> Grid:
        """Run it, or only say what it moves."""
        scope, mask, laying = self.scope, body.mask, self.laying
        if mask is not None:
            check_mask(_NAME, self.axes, body)
        plan = self._plan(None if mask is None else mask.axes)
        given = [[x.cells[i] for i in scope.onto(x.kind.extent, plan.extent)] for x in values]
        if body.notes is not None:
            body.notes += self._wires(plan, given)
        active: Active = None
        if mask is not None:
            active = frozenset(active_groups(scope, mask.grid, plan.rest))
            if not active:
                return Grid(body, plan.out, (None,) * scope.count(plan.extent))
        agree_on_collective(scope, self.text, plan.rest, active)
        runs = self._runs(plan, given[2], active)
        pieces = [given[:2]] if laying is None else laying.pieces(given[:2], mask is None)
        found = self._exchanged(plan, runs, pieces)
        cells = tuple(found[0]) if laying is None else laying.joined(found)
        return Grid(body, plan.out, cells)

    def _plan(self, over: Extent | None) -> _RaggedPlan:
        """Return what is known before the sizes are, where the code runs under a condition or not.

        Args:
            over: the axes along which the condition differs; None if there is no condition.
        """
        found = self._plans.get(over)
        if found is not None:
            return found
        scope, (_, output, table) = self.scope, self.kinds
        axes = [a for k in self.kinds for a in k.extent]
        extent = scope.extent((*axes, *self.real, *(over or ())))
        rest = tuple(a for a in extent if a not in self.real)
        if self.laying is None:
            meshes: Sequence[Mesh] = (scope.mesh,)
            own = cell_type(scope, output.shape, output.dtype)
        else:
            meshes, own = self.laying.meshes, self.laying.outputs[0]
        # All processes learn all lists, and so note and refuse alike; under a condition that
        # differs between devices only those that take part are there to tell.
        field = Field(scope.world, scope.mesh, extent, table.shape, table.dtype)
        gather = plan_gather(field, extent if over is None else self.real, 0, False)
        numbers = np.array(field.order((*rest, *self.real))).reshape(field.count(rest), -1)
        members = tuple(
            (number, tuple(int(row[i]) for i in group))
            for number, row in enumerate(numbers)
            for group in self.groups
        )
        found = self._plans[over] = _RaggedPlan(
            extent,
            members,
            rest,
            gather,
            Receipts([(gather, rest)]),
            tuple(_Holders(scope, m, extent) for m in meshes),
            scope.kind(own, extent, self.varies),
        )
        return found

    def _wires(self, plan: _RaggedPlan, given: Sequence[Sequence[Any]]) -> list[Wire]:
        """Return what it moves at most, where only types are known."""
        mesh = self.scope.mesh
        laid = [] if self.laying is None else self.laying.wires(given)
        lists = partial(plan.receipts.of, None)
        devices = map(int, mesh.device_ids.ravel())
        most = dict.fromkeys(devices, self.kinds[1].nbytes)
        return [
            *laid,
            collective_wire(self.array, "all-gather", self.axes, mesh, lists),
            collective_wire(self.array, "all-to-all", self.axes, mesh, most.copy, exact=False),
        ]

    def _runs(
        self, plan: _RaggedPlan, tables: Sequence[Any], active: Active
    ) -> dict[int, list[_Rows]]:
        """Bring the lists of sizes together; return for each cell the rows that it gets."""
        world = self.scope.world
        if world.ledgers:
            self._communicated("all-gather", plan.receipts.of(active))
        lists = tables if self.laying is None else self.laying.tables(tables, active is None)
        known = plan.tables(lists, active)
        runs: dict[int, list[_Rows]] = {}
        for number, cells in plan.members:
            if (active is None or number in active) and cells[0] in known:
                runs.update(_runs(known, cells, self.rows, self.examples, self.told))
        return runs

    def _exchanged(
        self,
        plan: _RaggedPlan,
        runs: dict[int, list[_Rows]],
        pieces: Sequence[Sequence[Sequence[Any]]],
    ) -> list[Sequence[Any]]:
        """Send the rows where they go; return for each piece the cells' blocks."""
        world, output, laying = self.scope.world, self.kinds[1], self.laying
        shapes = [output.shape] if laying is None else laying.shapes
        volumes = [_volume(shape) for shape in shapes]
        if world.ledgers:
            moved: dict[int, int] = {}
            for site, volume in zip(plan.sites, volumes, strict=True):
                for device, count in site.received(runs, volume * output.dtype.itemsize).items():
                    moved[device] = moved.get(device, 0) + count
            self._communicated("all-to-all", moved)
        found: list[Sequence[Any]] = []
        for site, (operands, outputs), shape, volume in zip(
            plan.sites, pieces, shapes, volumes, strict=True
        ):
            part = site.part(runs, shape, volume)
            found.append(run_part(world, part, (tuple(operands), tuple(outputs)), output.dtype))
        return found

    def _communicated(self, what: str, received: Mapping[int, int]) -> None:
        communicated(self.scope.world, what, self.axes, received, _NAME, array=self.array)


def _volume(shape: tuple[int, ...]) -> int:
    return math.prod(shape[1:])


@final
class _ArrayCells:
    """Cells that are Arrays on automatic axes: rows stay whole there, other dims may be split."""

    def __init__(self, scope: Scope, operand: GridKind, output: GridKind, table: GridKind) -> None:
        self._scope, self._kinds = scope, (operand, output, table)
        world, submeshes = scope.world, scope.submeshes
        own = PartitionSpec((), *kept_axes(scope, output)[1:])
        self._rows = [NamedSharding(m, own) for m in submeshes]
        self._lists = [NamedSharding(m, PartitionSpec()) for m in submeshes]
        self.outputs: list[ArrayType] = [
            world.type_of(output.shape, output.dtype, s, True) for s in self._rows
        ]
        layouts = [t.layout for t in self.outputs]
        self.meshes = piece_meshes(scope, layouts)
        self.shapes = [layouts[0].box(i).shape for i in range(layouts[0].piece_count)]

    def wires(self, given: Sequence[Sequence[Any]]) -> list[Wire]:
        """Return what laying all cells out moves."""
        ways = zip(self._kinds, given, (self._rows, self._rows, self._lists), strict=True)
        return [w for k, cells, own in ways for w in laying_wires(self._scope, k, cells, own)]

    def tables(self, cells: Sequence[Any], everywhere: bool) -> list[Any]:
        """Return the lists of each cell as blocks."""
        found = lay_out(
            self._scope, self._kinds[2], cells, self._lists, _NAME, everywhere=everywhere
        )
        return [None if x is None else next(b for b in x._live() if b is not None) for x in found]

    def pieces(self, given: Sequence[Sequence[Any]], everywhere: bool) -> list[list[list[Any]]]:
        """Return for each piece the blocks of the cells of each array."""
        blocks = []
        for kind, cells in zip(self._kinds[:2], given, strict=True):
            found = lay_out(self._scope, kind, cells, self._rows, _NAME, everywhere=everywhere)
            blocks.append([None if x is None else x._live() for x in found])
        return [
            [[None if c is None else c[number] for c in x] for x in blocks]
            for number in range(len(self.shapes))
        ]

    def joined(self, found: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
        """Return the cells whose blocks are those of the pieces."""
        cells = []
        for kind, blocks in zip(self.outputs, zip(*found, strict=True), strict=True):
            held = any(b is not None for b in blocks)
            cells.append(Array(kind, tuple(blocks)) if held else None)
        return tuple(cells)


COLLECTIVES[_NAME] = _ragged


def ragged_all_to_all(
    operand: ArrayLike,
    output: ArrayLike,
    input_offsets: ArrayLike,
    send_sizes: ArrayLike,
    output_offsets: ArrayLike,
    recv_sizes: ArrayLike,
    *,
    axis_name: AxisName,
    axis_index_groups: Groups = None,
) -> Array:
    """Send rows of an array to the devices along mesh axes, a different number to each.

    The four lists have one length, a multiple ``n * k`` of the axis size ``n``; entries ``d * k``
    to ``(d + 1) * k`` are about the device at position ``d``.

    Args:
        operand: ``[N, ...]``, the rows to send.
        output: ``[M, ...]``, the array to receive into, of the same dtype.
        input_offsets: for each part the row of ``operand`` where it begins.
        send_sizes: for each part its number of rows.
        output_offsets: for each part the row of the *receiver's* result where it lands.
        recv_sizes: the rows of each part that is received; it must be
            ``all_to_all(send_sizes, axis_name, 0, 0, tiled=True)``.
        axis_name: the axis, or a tuple of axes.
        axis_index_groups: lists of positions along the axis that exchange among themselves.

    Returns:
        ``output`` with the received rows written into it. Where parts overlap, that of the later
        position stays.

    Raises:
        AxisNameError: if an axis is not bound.
        DtypeError: if a list does not hold integers, or the arrays differ in dtype.
        ShapeError: if shapes do not fit together, or rows are outside of an array.
        ArgumentError: if ``recv_sizes`` and ``send_sizes`` tell different sizes.

    >>> import numpy as np, meshard
    >>> from meshard.lax import ragged_all_to_all
    >>> from meshard.sharding import P
    >>> mesh = meshard.make_mesh((1,), ("i",))
    >>> def send(x, one, two):
    ...     return ragged_all_to_all(x, 0 * x, one, two, one, two, axis_name="i")
    >>> sent = meshard.shard_map(send, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    >>> sent(np.arange(4), np.array([1]), np.array([2])).tolist()
    [0, 1, 2, 0]
    """
    what = _NAME
    axes = bound_axes(axis_name, what)
    mesh_axes_only(axes, what, "it is not supported")
    more = index_groups(axis_index_groups, axes, what, True)
    rows, into = as_array(operand), as_array(output)
    if rows.dtype != into.dtype:
        raise DtypeError(
            f"{what}: operand is {rows.dtype} and output {into.dtype}; rows are moved as they are, "
            "so convert one of them with astype."
        )
    if not rows.ndim or not into.ndim or rows.shape[1:] != into.shape[1:]:
        raise ShapeError(
            f"{what}: operand and output must have rows of one shape, but their shapes are "
            f"{rows.shape} and {into.shape}."
        )
    lists = {
        "input_offsets": as_array(input_offsets),
        "send_sizes": as_array(send_sizes),
        "output_offsets": as_array(output_offsets),
        "recv_sizes": as_array(recv_sizes),
    }
    n = members(axes, more)
    for name, x in lists.items():
        if x.dtype.kind not in "iu":
            raise DtypeError(f"{what}: {name} must be integers, not {x.dtype}.")
        if x.ndim != 1 or x.shape != lists["input_offsets"].shape or x.size < 1 or x.size % n:
            shapes = ", ".join(f"{k} {v.shape}" for k, v in lists.items())
            raise ShapeError(
                f"{what}: each list must have one dim, all of one size, a multiple of the axis "
                f"size {n}, but their shapes are {shapes}."
            )
    table = stack([x.astype(np.int64) for x in lists.values()])
    return bind(what, rows, into, table, axes=axes, **more)
