"""Scopes: the mesh axes that a shard_map body runs along, and the grids of cells over them.

A value in a body is a grid of cells. Two sets of axes are kept apart: those over which it *may*
differ (`varies`, the type, which the check of ``out_specs`` looks at), and those along which cells
really are stored (`extent`, always a subset; along all others one cell serves every device).

The ledger where axes stay automatic: each process records what happens on all parts of the mesh.

A cell is an Array on one part there, and a process runs operations on the parts that it belongs to.
What they move is counted for all parts from the types alone, and recorded once, before anything
moves; nothing more is recorded while they run. So figures are those of all devices, and budgets
refuse on all processes alike. Under a condition that differs between devices each process records
its own parts.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, Protocol, final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.layout import Layout
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import NamedSharding
from meshard.ops.engine.decide import Type, decide
from meshard.ops.engine.later import Weak
from meshard.plan.move.wires import Wire, together
from meshard.runtime.doors import Params
from meshard.runtime.moving.place import placed, wires_between
from meshard.runtime.types import ArrayType, Typed
from meshard.runtime.watching.ledger import wired
from meshard.runtime.world import Remembering, RuntimeWorld, memoized

Extent = tuple[str, ...]
"""Mesh axes in mesh order; the cells of a grid over them are numbered in C order."""


@final
class GridKind(Typed):
    """All that is known of a value in a body but its cells; interned per scope.

    Attributes:
        extent: the axes along which cells differ.
        varies: the axes over which the value may differ.
        weak: the type of Python number that it stands for; then all cells are alike.
    """

    __slots__ = ("_type", "extent", "varies", "weak")

    def __init__(
        self,
        type: ArrayType,
        extent: Extent,
        varies: frozenset[str],
        weak: Weak = None,
    ) -> None:
        self._type = type
        self.extent = extent
        self.varies = varies
        self.weak = weak

    @property
    def type(self) -> ArrayType:
        """The type of one cell, on one device."""
        return self._type

    @property
    def layout(self) -> Layout:
        """The layout of one cell."""
        return self._type.layout

    @property
    def local(self) -> tuple[int, ...]:
        """The pieces of one cell that this process holds."""
        return self._type.local

    @property
    def unplaced(self) -> bool:
        """Whether a cell counts as being on every device."""
        return self._type.unplaced

    @property
    def vma(self) -> frozenset[str]:
        """The axes over which the value may differ, by the name that JAX gives it."""
        return self.varies

    def type_order(self, axes: Sequence[str]) -> list[str]:
        """Return the axes over which the value varies in the order of ``axes``."""
        return [a for a in axes if a in self.varies]

    def str_short(self) -> str:
        """Return dtype and local shape, and the axes over which the value varies."""
        axes = ",".join(sorted(self.varies))
        told = f"({axes})" if len(self.varies) > 1 else axes
        return self._type.str_short() + (f"{{V:{told}}}" if axes else "")

    def __repr__(self) -> str:
        return self.str_short()


@final
class Mask:
    """The devices that run the code at hand: a truth value per coordinate of the manual axes.

    Attributes:
        axes: the axes along which it really differs.
        varies: the axes over which it may differ.
        grid: bools over all manual axes; False where another process decides.
    """

    def __init__(self, axes: Extent, varies: frozenset[str], grid: Any) -> None:
        self.axes = axes
        self.varies = varies
        self.grid = grid
        self.numbers: dict[Extent, tuple[int, ...]] = {}


@final
class Scope(Remembering):
    """Some axes of a mesh, made manual, in one world.

    Attributes:
        world: the world.
        mesh: the whole mesh.
        manual: the axes that bodies run along, in mesh order.
        auto: the other axes of the mesh.
        sizes: the size of each manual axis.
        here: for each coordinate of the manual axes whether this process has a device there.
    """

    def __init__(self, world: RuntimeWorld, mesh: Mesh, manual: frozenset[str]) -> None:
        self.world = world
        self.mesh = mesh
        self.manual: Extent = tuple(a for a in mesh.axis_names if a in manual)
        self.auto: Extent = tuple(a for a in mesh.axis_names if a not in manual)
        self.sizes = {a: mesh.shape[a] for a in self.manual}
        me = world.process_index
        own = np.array([d.process_index == me for d in mesh.flat_devices], bool)
        own = own.reshape(mesh.axis_sizes)
        places = [i for i, a in enumerate(mesh.axis_names) if a not in manual]
        self.here = own.any(axis=tuple(places))
        self.remember()
        self._kinds: dict[Hashable, GridKind] = {}
        self._onto: dict[tuple[Extent, Extent], tuple[int, ...]] = {}
        self._local: dict[Extent, tuple[int, ...] | None] = {}
        self._submeshes: tuple[Mesh, ...] | None = None

    def kind(
        self,
        type: ArrayType,
        extent: Extent,
        varies: frozenset[str],
        weak: type[Any] | None = None,
    ) -> GridKind:
        """Return the one kind with these properties."""
        key = (type, extent, varies, weak)
        found = self._kinds.get(key)
        if found is None:
            found = self._kinds[key] = GridKind(type, extent, varies, weak)
        return found

    def extent(self, axes: Iterable[str]) -> Extent:
        """Return the axes that have more than one position, in mesh order."""
        wanted = set(axes)
        return tuple([a for a in self.manual if a in wanted and self.sizes[a] > 1])

    def count(self, extent: Sequence[str]) -> int:
        """Return the number of cells of a grid."""
        return math.prod([self.sizes[a] for a in extent])

    def coordinate(self, extent: Extent, number: int) -> tuple[int, ...]:
        """Return the position of a cell along each axis of its grid."""
        place = []
        for axis in reversed(extent):
            number, i = divmod(number, self.sizes[axis])
            place.append(i)
        return tuple(reversed(place))

    def onto(self, source: Extent, target: Extent) -> tuple[int, ...]:
        """Return for each cell of a grid the cell of another at the same coordinates.

        Axes that only the source has are taken at position 0.
        """
        key = (source, target)
        found = self._onto.get(key)
        if found is None:
            numbers = np.arange(self.count(source)).reshape([self.sizes[a] for a in source])
            kept = numbers[tuple([slice(None) if a in target else 0 for a in source])]
            shape = [self.sizes[a] if a in source else 1 for a in target]
            whole = np.broadcast_to(kept.reshape(shape), [self.sizes[a] for a in target])
            found = self._onto[key] = tuple(whole.ravel().tolist())
        return found

    def spread(self, flags: Any, extent: Extent) -> Any:
        """Return flags, one per cell, as an array over all manual axes that broadcasts."""
        return np.asarray(flags, bool).reshape(
            [self.sizes[a] if a in extent else 1 for a in self.manual]
        )

    def within(self, grid: Any, extent: Extent) -> tuple[int, ...]:
        """Return the cells of a grid that some flagged coordinate uses."""
        rest = tuple(i for i, a in enumerate(self.manual) if a not in extent)
        return tuple(np.flatnonzero(grid.any(axis=rest)).tolist())

    def local(self, extent: Extent) -> tuple[int, ...] | None:
        """Return the cells that this process holds; None if that is all."""
        if extent not in self._local:
            found = self.within(self.here, extent)
            self._local[extent] = None if len(found) == self.count(extent) else found
        return self._local[extent]

    @property
    def submeshes(self) -> tuple[Mesh, ...]:
        """The mesh of the automatic axes at each coordinate of the manual ones."""
        if self._submeshes is None:
            names = self.mesh.axis_names
            order = [names.index(a) for a in (*self.manual, *self.auto)]
            devices = self.mesh.devices.transpose(order)
            sizes = devices.shape[len(self.manual) :]
            flat = devices.reshape(-1, *sizes)
            self._submeshes = tuple(Mesh(flat[i], self.auto) for i in range(len(flat)))
        return self._submeshes


class Running(Protocol):
    """What a value knows of the body that it belongs to.

    Attributes:
        scope: the axes that the body runs along.
        mask: the devices that run the code at hand; None while that is all.
        recorder: writes the operations down; None if nothing does.
    """

    scope: Scope
    mask: Mask | None
    recorder: Any

    @property
    def outer(self) -> Running | None:
        """The body around it; None if there is none."""


@memoized(most=1 << 12)
def scope_of(world: RuntimeWorld, mesh: Mesh, manual: frozenset[str]) -> Scope:
    """Return the one scope of these axes in a world."""
    return Scope(world, mesh, manual)


def joined_wires(parts: Sequence[Sequence[Wire]]) -> list[Wire]:
    """Return the communications of all parts of the mesh, those of one step as one."""
    if len({len(p) for p in parts}) == 1:
        return [together(w) for w in zip(*parts, strict=True)]
    return [w for p in parts for w in p]


@contextlib.contextmanager
def record_wires(scope: Scope, what: str, parts: Sequence[Sequence[Wire]]) -> Iterator[None]:
    """Record the communications of all parts of the mesh, and no more of them within.

    Raises:
        BudgetError: if they exceed an open budget.
    """
    world = scope.world
    wired(world, what, joined_wires(parts))
    ledgers, world.ledgers = world.ledgers, ()
    try:
        yield
    finally:
        world.ledgers = ledgers


def cell_types(scope: Scope, kind: GridKind, cells: Sequence[Any]) -> list[ArrayType]:
    """Return the type of each cell, also of those that other processes hold."""
    base: ArrayType = next((c._type for c in cells if c is not None), kind.type)
    sharding = base.sharding
    if not isinstance(sharding, NamedSharding) or sharding.mesh.axis_names != scope.auto:
        return [base if c is None else c._type for c in cells]
    return [
        scope.world.type_of(
            base.shape,
            base.dtype,
            NamedSharding(m, sharding.spec, uneven=sharding.uneven),
            base.committed,
        )
        if c is None
        else c._type
        for c, m in zip(cells, scope.submeshes, strict=True)
    ]


def operation_wires(
    scope: Scope, name: str, types: Sequence[Type], params: Params
) -> Sequence[Wire]:
    """Return what an operation on operands of these types moves."""
    return _operation_wires(scope, name, tuple(types), params)


@memoized(most=1 << 12)
def _operation_wires(
    scope: Scope, name: str, types: tuple[Type, ...], params: Params
) -> Sequence[Wire]:
    return decide(scope.world, name, types, params).wires


def laying_wires(
    scope: Scope, kind: GridKind, cells: Sequence[Any], shardings: Sequence[Sharding]
) -> list[Wire]:
    """Return what `lay_out` moves to lay all cells out."""
    types = cell_types(scope, kind, cells)
    return joined_wires(
        [
            wires_between(scope.world, t, scope.world.type_of(t.shape, t.dtype, s, True))
            for t, s in zip(types, shardings, strict=True)
        ]
    )


def lay_out(
    scope: Scope,
    kind: GridKind,
    cells: Sequence[Any],
    shardings: Sequence[Sharding],
    what: str,
    *,
    everywhere: bool,
) -> list[Any]:
    """Return cells, each laid out on its own part of the mesh; None stays None.

    Args:
        scope: the axes.
        kind: what is known of the cells.
        cells: the cells, by coordinate of the manual axes.
        shardings: how each is to be laid out.
        what: how the ledger calls it.
        everywhere: whether the cells that are None here are those of other processes.
    """

    def all_of_them() -> list[Any]:
        return [
            None if c is None else placed(c, s, what=what)
            for c, s in zip(cells, shardings, strict=True)
        ]

    if not scope.world.ledgers:
        return all_of_them()
    types = cell_types(scope, kind, cells)
    parts = [
        wires_between(scope.world, t, scope.world.type_of(t.shape, t.dtype, s, True))
        for t, s, c in zip(types, shardings, cells, strict=True)
        if everywhere or c is not None
    ]
    with record_wires(scope, what, parts):
        return all_of_them()
