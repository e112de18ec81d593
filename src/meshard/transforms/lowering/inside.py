"""What happens in the body of a `shard_map` call, from types alone.

In: the call, and how its operands lie. Out: each operation with the kinds of its values and what it
moves, those of loops and branches in programs of their own. The body is gone through as it is when
only types are wanted, and its collectives tell of themselves in the place of a ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.ops.engine.infer import Ghost
from meshard.plan.move.wires import Wire
from meshard.runtime.doors import bind, innermost
from meshard.runtime.moving.place import as_array, wires_between
from meshard.runtime.types import ArrayType
from meshard.runtime.world import RuntimeWorld
from meshard.transforms.body.body import COLLECTIVES, Body
from meshard.transforms.body.branches import ghost, local_type
from meshard.transforms.body.grid import Grid
from meshard.transforms.body.noting import cell_types, joined, laying_wires, operation_wires
from meshard.transforms.body.scope import GridKind, Scope
from meshard.transforms.program.calls import (
    ConstraintCall,
    ForCall,
    ScanCall,
    ShardMapCall,
    SwitchCall,
    WhileCall,
)
from meshard.transforms.program.program import Eqn, Kind, Literal, Program, Var
from meshard.transforms.tracing.abstract import types_only
from meshard.transforms.tracing.tracing import anywhere

InnerKind = GridKind | type[Any]


@final
@dataclass(frozen=True, slots=True)
class Inner:
    """One operation of a body.

    Attributes:
        eqn: the operation.
        inputs: the kinds of what it reads.
        outputs: the kinds of what it gives.
        wires: what it moves.
        parts: the programs that it runs, by name, and how often; None if that is not known.
    """

    eqn: Eqn
    inputs: tuple[InnerKind, ...]
    outputs: tuple[InnerKind, ...]
    wires: tuple[Wire, ...]
    parts: tuple[tuple[str, Inside, int | None], ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Inside:
    """A program in a body.

    Attributes:
        scope: the axes that it runs along.
        program: the program.
        kinds: the kind of each of its variables.
        steps: its operations, in order.
        everywhere: whether all devices run it; else those that values choose.
        entering: what bringing its arguments in moves, for each of the call's operands.
    """

    scope: Scope
    program: Program
    kinds: dict[Var, InnerKind]
    steps: tuple[Inner, ...]
    everywhere: bool = True
    entering: tuple[tuple[Wire, ...], ...] = ()


def inside(world: RuntimeWorld, call: ShardMapCall, kinds: Sequence[Kind]) -> Inside:
    """Return what a call of a body does with operands of some types."""
    key = ("inside", id(call.body), tuple(kinds))  # what is kept holds the body, so that it lives
    found: Inside | None = world.decisions.get(key)
    if found is None:
        given = [
            Ghost(k) if isinstance(k, ArrayType) else Ghost(anywhere(world, as_array(k(0))), k)
            for k in kinds
        ]
        with types_only(None):
            found = _entered(call, given)[1]
        world.decided(key, found)
    return found


def _entered(call: ShardMapCall, operands: Sequence[Any]) -> tuple[list[Any], Inside]:
    count = len(call.body.captured)
    captured, given = operands[:count], operands[count:]
    kept: list[Inside] = []

    def run(*cells: Any) -> list[Any]:
        body = innermost()
        assert isinstance(body, Body)
        lifted = [body.lift(x) for x in captured]
        results, found = _walked(call.body, lifted, cells, everywhere=True)
        entering: tuple[tuple[Wire, ...], ...] = ()
        if body.outer is None:
            specs = [PartitionSpec()] * count + list(call.in_specs)
            grids = [*lifted, *cells]
            entering = tuple(
                _entering(body.scope, x._type, g, s)
                for x, g, s in zip(operands, grids, specs, strict=True)
            )
        kept.append(Inside(found.scope, found.program, found.kinds, found.steps, True, entering))
        return results

    return list(call.mapped(run)(*given)), kept[-1]


def _entering(scope: Scope, kind: ArrayType, grid: Grid, spec: PartitionSpec) -> tuple[Wire, ...]:
    """Return what passes between devices until an array lies as a body wants it."""
    axes = spec.axes(kind.ndim)
    own = grid.kind.type.sharding
    if scope.auto and isinstance(own, NamedSharding):
        axes = tuple(m + k for m, k in zip(axes, own.spec.axes(kind.ndim), strict=True))
    elif not any(axes) and kind.layout.replicated:
        return ()
    target = NamedSharding(scope.mesh, PartitionSpec(*axes))
    world = scope.world
    return wires_between(world, kind, world.type_of(kind.shape, kind.dtype, target, True))


def _kind(x: Any) -> InnerKind:
    return x.kind if isinstance(x, Grid) else type(x)


def _walked(
    program: Program, captured: Sequence[Any], given: Sequence[Any], *, everywhere: bool
) -> tuple[list[Any], Inside]:
    """Go through a program whose values have no cells."""
    body = innermost()
    assert isinstance(body, Body)
    values: dict[Var, Any] = dict(
        zip((*program.captured, *program.inputs), (*captured, *given), strict=True)
    )
    steps = []
    for eqn in program.eqns:
        operands = [x.value if isinstance(x, Literal) else body.lift(values[x]) for x in eqn.inputs]
        results, wires, parts = _stepped(body, eqn, operands, everywhere)
        values.update(zip(eqn.outputs, results, strict=True))
        inputs, outputs = tuple(map(_kind, operands)), tuple(map(_kind, results))
        steps.append(Inner(eqn, inputs, outputs, tuple(wires), parts))
    results = [x.value if isinstance(x, Literal) else values[x] for x in program.outputs]
    kinds = {v: _kind(x) for v, x in values.items()}
    return results, Inside(body.scope, program, kinds, tuple(steps), everywhere)


_Parts = tuple[tuple[str, Inside, int | None], ...]


def _stepped(
    body: Body, eqn: Eqn, operands: Sequence[Any], everywhere: bool
) -> tuple[list[Any], Sequence[Wire], _Parts]:
    """Return the results of one operation, what it moves, and the programs that it runs."""
    call: Any = eqn.call
    if call is None:
        found, wires = _bound(body, eqn, operands)
        return found, wires, ()
    if isinstance(call, ShardMapCall):
        results, part = _entered(call, operands)
        return results, (), (("body", part, 1),)
    results = list(call.run(operands))
    if isinstance(call, ConstraintCall):
        (x,) = operands
        lies: Any = results[0].kind.sharding
        if not body.scope.auto:
            return results, (), ()
        alike = [NamedSharding(m, lies.spec) for m in body.scope.submeshes]
        return results, laying_wires(body.scope, x.kind, x.cells, alike), ()
    if not isinstance(call, WhileCall | ForCall | ScanCall | SwitchCall):
        return results, (), ()
    return results, (), _parts(body, call, operands, results, everywhere)


def _bound(body: Body, eqn: Eqn, operands: Sequence[Any]) -> tuple[list[Any], Sequence[Wire]]:
    scope = body.scope
    told: list[Wire] = []
    body.notes = told
    try:
        found = bind(eqn.name, *operands, **dict(eqn.params))
    finally:
        body.notes = None
    results = list(found) if len(eqn.outputs) > 1 else [found]
    if not scope.auto or eqn.name in COLLECTIVES:
        return results, told
    types = [
        cell_types(scope, x.kind, x.cells)
        if isinstance(x, Grid)
        else [type(x)] * len(scope.submeshes)
        for x in operands
    ]
    parts = [
        operation_wires(scope, eqn.name, [t[i] for t in types], eqn.params)
        for i in range(len(scope.submeshes))
    ]
    return results, joined(parts)


def _parts(
    body: Body,
    call: WhileCall | ForCall | ScanCall | SwitchCall,
    operands: Sequence[Any],
    results: Sequence[Any],
    everywhere: bool,
) -> _Parts:
    """Return the programs of a loop or a choice, whose carry is of the kinds that come out."""
    ghosts = [ghost(body, x.kind) if isinstance(x, Grid) else x for x in results]

    def part(program: Program, captured: Any, given: Any, alike: bool) -> Inside:
        return _walked(program, captured, given, everywhere=everywhere and alike)[1]

    if isinstance(call, WhileCall):
        first, second, _ = call.parted(operands)
        cond = part(call.cond, first, ghosts, True)
        (decides,) = [cond.kinds[v] for v in call.cond.outputs if isinstance(v, Var)] or [bool]
        alike = not (isinstance(decides, GridKind) and decides.varies)
        cond = part(call.cond, first, ghosts, alike)
        return ("cond", cond, None), ("body", part(call.body, second, ghosts, alike), None)
    if isinstance(call, ForCall):
        bounds, captured, _ = call.parted(operands)
        scope = body.scope
        local = local_type(scope, (), np.dtype(np.int64))
        number = ghost(body, scope.kind(local, (), frozenset(), int))
        known = [b for b in bounds if type(b) is int]
        turns = max(0, known[1] - known[0]) if len(known) == 2 else None
        alike = not any(isinstance(b, Grid) and b.kind.varies for b in bounds)
        return (("body", part(call.body, captured, [number, *ghosts], alike), turns),)
    if isinstance(call, ScanCall):
        captured, _, arrays = call.parted(operands)
        rows = [_row(body, x) for x in arrays]
        carry = ghosts[: call.carried]
        return (("body", part(call.body, captured, [*carry, *rows], True), call.length),)
    number, own, args = call.parted(operands)
    alike = not (isinstance(number, Grid) and number.kind.varies)
    return tuple(
        (b.name, part(b, c, args, alike), None) for b, c in zip(call.branches, own, strict=True)
    )


def _row(body: Body, x: Any) -> Grid:
    """Return one position of an array as a value without cells."""
    kind = x.kind
    local = local_type(body.scope, kind.shape[1:], kind.dtype)
    return ghost(body, body.scope.kind(local, kind.extent, kind.varies))
