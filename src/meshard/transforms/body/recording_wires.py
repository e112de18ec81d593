"""The ledger where axes stay automatic: each process records what happens on all parts of the mesh.

A cell is an Array on one part there, and a process runs operations on the parts that it belongs to.
What they move is counted for all parts from the types alone, and recorded once, before anything
moves; nothing more is recorded while they run. So figures are those of all devices, and budgets
refuse on all processes alike. Under a condition that differs between devices each process records
its own parts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from meshard.algebra.abstract import Sharding
from meshard.algebra.sharding import NamedSharding
from meshard.ops.engine.decide import Type, decide
from meshard.plan.move.wires import Wire, together
from meshard.runtime.doors import Params
from meshard.runtime.memo import memoized
from meshard.runtime.moving.place import placed, wires_between
from meshard.runtime.types import ArrayType
from meshard.runtime.watching.ledger import wired
from meshard.transforms.body.scope import GridKind, Scope


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
