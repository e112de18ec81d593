"""Calls of `shard_map` in a lowered program: arrays in, a body that was lowered once, arrays out.

In: the call, and the types of its operands. Out: what runs it, which builds and checks nothing, and
what moves on the way in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.ops.engine.eager import WEAK
from meshard.ops.fused.compilers import JIT_COMPILER
from meshard.plan.move.wires import Wire
from meshard.runtime.array.array import Array
from meshard.runtime.doors import interpreting
from meshard.runtime.moving.place import wires_between
from meshard.runtime.types import ArrayType
from meshard.runtime.world import Memo, RuntimeWorld
from meshard.transforms.body.body import Body
from meshard.transforms.body.boundary import cells_in, cells_out, to_array, to_grid, way_in, way_out
from meshard.transforms.body.grid import Cells, Grid
from meshard.transforms.body.scope import GridKind, Scope
from meshard.transforms.lowering.body_steps import one_or_all
from meshard.transforms.lowering.executable import (
    AnyKind,
    Executable,
    Moving,
    Run,
    ensure_layout,
)
from meshard.transforms.lowering.lower_body import enter_typed
from meshard.transforms.program.calls import ShardMapCall
from meshard.transforms.program.program import Kind, Program
from meshard.transforms.tracing.abstract import types_only
from meshard.transforms.tracing.tracing import abstract_value


@final
@dataclass(frozen=True, slots=True)
class LoweredMap:
    """A call of a body, ready to run.

    Attributes:
        body: the body.
        outputs: the types of the call's results.
        run: from the call's operands to its results.
        entering: what bringing its operands in moves.
    """

    body: Executable
    outputs: tuple[ArrayType, ...]
    run: Run
    entering: tuple[Moving, ...]


_LOWERED: Memo[tuple[Any, ...], tuple[Program, LoweredMap]] = Memo("lowered bodies", 512)


def lower_map(world: RuntimeWorld, call: ShardMapCall, kinds: Sequence[Kind]) -> LoweredMap:
    """Return a call of a body, outside of all others, lowered for operands of some types."""
    key = JIT_COMPILER.value, id(call.body), tuple(kinds)
    found = _LOWERED.table(world).get(key)
    if found is None:  # the program is kept with its number, so that no other gets it
        found = _LOWERED.keep(world, key, (call.body, _lower_map(world, call, kinds)))
    return found[1]


def _lower_map(world: RuntimeWorld, call: ShardMapCall, kinds: Sequence[Kind]) -> LoweredMap:
    given = [abstract_value(world, k) for k in kinds]
    with types_only(None):
        results, own = enter_typed(call, given)
    scope, count = own.scope, len(call.body.captured)
    assert scope is not None
    types = [x._type for x in given]
    ways_in = _ways_in(scope, types[count:], call.in_specs)
    ways_out = _ways_out(scope, own.outputs, call.out_specs, [x._type for x in results])

    def through_grids(world: RuntimeWorld, operands: Sequence[Any]) -> Any:
        body = Body(scope)
        try:
            values = [way(body, x) for way, x in zip(ways_in, operands[count:], strict=True)]
            with interpreting(body):
                values[:0] = [_lifted(body, x) for x in operands[:count]]
                found = own.run(body, values)
                made = [way(body, x) for way, x in zip(ways_out, found, strict=True)]
        finally:
            body.close()
        return one_or_all(made)

    run = _on_cells(own, call, kinds, through_grids) or through_grids
    specs = [*[PartitionSpec()] * count, *call.in_specs]
    entering = [
        (wire, number)
        for number, (t, k, s) in enumerate(zip(types, own.inputs, specs, strict=True))
        for wire in _entering(scope, t, k, s)
    ]
    return LoweredMap(own, tuple([x._type for x in results]), run, tuple(entering))


def _on_cells(
    own: Executable, call: ShardMapCall, kinds: Sequence[Kind], through_grids: Run
) -> Run | None:
    """Return the shortest way through a body: blocks are its cells, and cells the results' blocks.

    Args:
        own: the body.
        call: the call.
        kinds: the types of the call's operands, which they have or the other way is taken.
        through_grids: the other way, also taken while a ledger or a profile is open.
    """
    scope, on_cells, count = own.scope, own.on_cells, len(call.body.captured)
    if on_cells is None or scope is None or scope.auto:
        return None
    arrays = [k for k in kinds if isinstance(k, ArrayType)]
    if len(arrays) < len(kinds):
        return None
    if scope.world.process_count > 1 and not all(map(_is_here, arrays[:count])):
        return None  # it moves, which is a step of all processes here, and within a body is none
    ways_in = [
        (t, _constant if t.layout.replicated else cells_in(scope, t, PartitionSpec()))
        for t in arrays[:count]
    ]
    pairs = zip(arrays[count:], call.in_specs, strict=True)
    ways_in += [(t, cells_in(scope, t, s)) for t, s in pairs]
    outputs = [k for k in own.outputs if isinstance(k, GridKind)]
    ways_out = [cells_out(scope, k, s) for k, s in zip(outputs, call.out_specs, strict=True)]
    return _through_cells(on_cells.run, ways_in, ways_out, through_grids)


def _is_here(kind: ArrayType) -> bool:
    """Whether this process has all of an array as it is on each device."""
    return kind.layout.replicated and bool(kind.local)


def _through_cells(
    run_cells: Run,
    ways_in: Sequence[tuple[ArrayType, Callable[[Array], Cells]]],
    ways_out: Sequence[Callable[[Cells], Array]],
    through_grids: Run,
) -> Run:
    """Return what runs a body on cells, given how those of each operand and result are reached."""
    sole = ways_out[0] if len(ways_out) == 1 else None

    def run(world: RuntimeWorld, operands: Sequence[Any]) -> Any:
        if world.ledgers:
            return through_grids(world, operands)
        cells = []
        for x, (type_, way) in zip(operands, ways_in, strict=True):
            if type(x) is not Array or x._type is not type_:
                return through_grids(world, operands)
            cells.append(way(x))
        found = run_cells(world, cells)
        if sole is not None:
            return sole(found[0])
        return [way(x) for way, x in zip(ways_out, found, strict=True)]

    return run


def _constant(x: Array) -> Cells:
    """Return the cells of an array that is the same on all devices."""
    return x._blocks or x._live()


def _lifted(body: Body, x: Any) -> Any:
    """Return a value from outside as the body's; a Python number, whose dtype is open, stays."""
    return x if type(x) in WEAK else body.lift(x)


def _ways_in(
    scope: Scope, types: Sequence[ArrayType], specs: Sequence[PartitionSpec]
) -> list[Callable[[Body, Any], Any]]:
    """Return for each argument how it becomes a grid; Python numbers stay what they are."""

    def way_of(type_: ArrayType, spec: PartitionSpec) -> Callable[[Body, Any], Any]:
        enter = None if scope.auto else way_in(scope, type_, spec)

        def way(body: Body, x: Any) -> Any:
            if type(x) in WEAK:
                return x
            if enter is not None and x._type is type_:
                return enter(body, x)
            return to_grid(body, [x], spec)

        return way

    return [way_of(t, s) for t, s in zip(types, specs, strict=True)]


def _ways_out(
    scope: Scope,
    kinds: Sequence[AnyKind],
    specs: Sequence[PartitionSpec],
    types: Sequence[ArrayType],
) -> list[Callable[[Body, Any], Array]]:
    """Return for each result how it becomes an array of its type.

    On automatic axes a loop's carry may be laid out otherwise than in the first turn, which is the
    one that types were found for.
    """

    def way_of(
        kind: AnyKind, spec: PartitionSpec, type_: ArrayType
    ) -> Callable[[Body, Any], Array]:
        known = isinstance(kind, GridKind) and not scope.auto
        leave = way_out(scope, kind, spec) if known and isinstance(kind, GridKind) else None

        def way(body: Body, x: Any) -> Array:
            grid = x if type(x) is Grid else body.lift(x)
            if leave is not None and grid.kind is kind:
                return leave(grid)
            found: Array = ensure_layout(scope.world, to_array(body, grid, spec), type_)
            return found

        return way

    return [way_of(*each) for each in zip(kinds, specs, types, strict=True)]


def _entering(
    scope: Scope, type: ArrayType, kind: AnyKind, spec: PartitionSpec
) -> tuple[Wire, ...]:
    """Return what passes between devices until an array is laid out as a body wants it."""
    assert isinstance(kind, GridKind)
    axes = spec.axes(type.ndim)
    own = kind.type.sharding
    if scope.auto and isinstance(own, NamedSharding):
        axes = tuple(m + k for m, k in zip(axes, own.spec.axes(type.ndim), strict=True))
    elif not any(axes) and type.layout.replicated:
        return ()
    target = NamedSharding(scope.mesh, PartitionSpec(*axes))
    world = scope.world
    return wires_between(world, type, world.type_of(type.shape, type.dtype, target, True))
