"""Bodies of `shard_map`, lowered: what each operation runs, found once for the types at hand.

In: the call of a body, and the types of its operands. Out: an `Executable` on grids of cells, and
what brings arrays in and out. The body is gone through once without cells: its runners are kept,
and its collectives tell what they move in the place of a ledger. A call then builds and checks
nothing. What values decide, as under a condition that differs between devices, is looked up as it
comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.ops.array.join import stack
from meshard.ops.engine.infer import Ghost
from meshard.ops.fused.compilers import chosen
from meshard.plan.move.wires import Wire
from meshard.runtime.array.array import Array
from meshard.runtime.doors import innermost, interpreting
from meshard.runtime.memo import Memo
from meshard.runtime.moving.place import as_array, wires_between
from meshard.runtime.types import ArrayType
from meshard.runtime.world import RuntimeWorld
from meshard.transforms.body.body import COLLECTIVES, Body, Runner, runner_of
from meshard.transforms.body.boundary import entered, left, way_in, way_out
from meshard.transforms.body.branches import alike, common, ghost, local_type
from meshard.transforms.body.grid import Grid
from meshard.transforms.body.noting import cell_types, joined, laying_wires, operation_wires
from meshard.transforms.body.scope import GridKind, Scope
from meshard.transforms.flow.running import run_each, run_while
from meshard.transforms.lowering.executable import AnyKind, Executable, Moving, Run, Step
from meshard.transforms.lowering.regions import RegionCall, with_regions
from meshard.transforms.lowering.slots import Slots, last_uses
from meshard.transforms.program.calls import (
    ConstraintCall,
    ForCall,
    ScanCall,
    ShardMapCall,
    SwitchCall,
    WhileCall,
)
from meshard.transforms.program.program import (
    Atom,
    Eqn,
    Kind,
    Listed,
    Literal,
    Program,
    Var,
    crossing_text,
)
from meshard.transforms.tracing.abstract import types_only
from meshard.transforms.tracing.tracing import anywhere

CellKind = GridKind | type[Any]
"""What a value of a body is: a grid's kind, or the type of a Python number."""
Parts = tuple[tuple[str, Executable, int | None], ...]


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
    key = chosen(), id(call.body), tuple(kinds)
    found = _LOWERED.table(world).get(key)
    if found is None:  # the program is kept with its number, so that no other gets it
        found = _LOWERED.keep(world, key, (call.body, _lower_map(world, call, kinds)))
    return found[1]


def _lower_map(world: RuntimeWorld, call: ShardMapCall, kinds: Sequence[Kind]) -> LoweredMap:
    types = [k if isinstance(k, ArrayType) else anywhere(world, as_array(k(0))) for k in kinds]
    weak = [None if isinstance(k, ArrayType) else k for k in kinds]
    with types_only(None):
        given = [Ghost(t, w) for t, w in zip(types, weak, strict=True)]
        results, own = _entered(call, given)
    scope, count = own.scope, len(call.body.captured)
    assert scope is not None
    outputs = tuple([x._type for x in results])
    ways_in = [
        None if scope.auto else way_in(scope, t, s)
        for t, s in zip(types[count:], call.in_specs, strict=True)
    ]
    ways_out = [
        way_out(scope, k, s) if isinstance(k, GridKind) and not scope.auto else None
        for k, s in zip(own.outputs, call.out_specs, strict=True)
    ]

    def enter(body: Body, x: Any, number: int) -> Grid:
        x = x if type(x) is Array else as_array(x)
        way = ways_in[number]
        if way is not None and x._type is types[count + number]:
            return way(body, x)
        return entered(body, [x], call.in_specs[number])

    def leave(body: Body, x: Any, number: int) -> Any:
        grid = x if type(x) is Grid else body.lift(x)
        way = ways_out[number]
        if way is not None and grid.kind is own.outputs[number]:
            return way(grid)
        return left(body, grid, call.out_specs[number])

    def run(world: RuntimeWorld, operands: Sequence[Any]) -> Any:
        body = Body(scope)
        try:
            values = [enter(body, x, i) for i, x in enumerate(operands[count:])]
            with interpreting(body):
                values[:0] = [body.lift(x) for x in operands[:count]]
                found = own.run(body, values)
                made = [leave(body, x, i) for i, x in enumerate(found)]
        finally:
            body.close()
        return made[0] if len(made) == 1 else made

    specs = [*[PartitionSpec()] * count, *call.in_specs]
    entering = [
        (wire, number)
        for number, (t, k, s) in enumerate(zip(types, own.inputs, specs, strict=True))
        for wire in _entering(scope, t, k, s)
    ]
    return LoweredMap(own, outputs, run, tuple(entering))


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


def _entered(call: ShardMapCall, operands: Sequence[Any]) -> tuple[list[Any], Executable]:
    """Go through a call of a body without cells: return its results, and the body lowered."""
    count = len(call.body.captured)
    captured, given = operands[:count], operands[count:]
    compiler = chosen()
    program = call.body if compiler is None else with_regions(call.body, compiler)
    kept: list[Executable] = []

    def run(*cells: Any) -> list[Any]:
        body = innermost()
        assert isinstance(body, Body)
        results, found = _lowered(body, program, [*map(body.lift, captured), *cells], True)
        kept.append(found)
        return results

    return list(call.mapped(run)(*given)), kept[-1]


def _kind(x: Any) -> CellKind:
    return x.kind if isinstance(x, Grid) else type(x)


def _lowered(
    body: Body, program: Program, given: Sequence[Any], everywhere: bool
) -> tuple[list[Any], Executable]:
    """Go through a program whose values have no cells: return its results, and it lowered.

    Args:
        body: the body, of which only the types are wanted.
        program: the program.
        given: what it captures, then its arguments.
        everywhere: whether all devices run it; else those that values choose.
    """
    variables = (*program.captured, *program.inputs)
    values: dict[Var, Any] = dict(zip(variables, given, strict=True))
    slots = Slots(variables)
    last = last_uses([e.inputs for e in program.eqns], program.outputs)
    steps = []
    for number, eqn in enumerate(program.eqns):
        operands = [x.value if isinstance(x, Literal) else body.lift(values[x]) for x in eqn.inputs]
        results, does = _stepped(body, eqn, operands, everywhere)
        values.update(zip(eqn.outputs, results, strict=True))
        dead: list[Atom] = [x for x in eqn.inputs if isinstance(x, Var) and last[x] == number]
        dead += [v for v in eqn.outputs if v not in last]
        region = eqn.call if isinstance(eqn.call, RegionCall) else None
        eqns = (eqn,) if region is None else region.program.eqns
        steps.append(
            Step(
                name="+".join([e.name for e in eqns]),
                line=eqn.line,
                inputs=tuple(map(_kind, operands)),
                outputs=tuple(map(_kind, results)),
                reads=slots.all_of(eqn.inputs),
                writes=slots.all_of(eqn.outputs),
                dead=tuple(dict.fromkeys(slots.all_of(dead))),
                run=does.run,
                wires=tuple(does.wires),
                around=does.around,
                eqns=tuple(eqns),
                parts=does.parts,
            )
        )
    results = [x.value if isinstance(x, Literal) else values[x] for x in program.outputs]
    out = slots.all_of(program.outputs)
    return results, Executable(
        name=program.name,
        inputs=tuple(map(_kind, given)),
        outputs=tuple(map(_kind, results)),
        steps=tuple(steps),
        template=slots.template,
        results=out,
        listed=partial(_listed, program, steps),
        kinds={v: _kind(x) for v, x in values.items()},
        scope=body.scope,
        everywhere=everywhere,
    )


def _listed(program: Program, steps: Sequence[Step]) -> Listed:
    """Return what runs as a program to be printed."""
    pairs = list(zip(program.eqns, steps, strict=True))
    return Listed(
        program,
        notes={id(e): crossing_text(s.wires) for e, s in pairs},
        parts={id(e): [(n, p.listed()) for n, p, _ in s.parts] for e, s in pairs if s.parts},
    )


def _nothing() -> tuple[()]:
    return ()


@final
@dataclass(frozen=True, slots=True)
class _Does:
    """What one operation of a body does.

    Attributes:
        run: from the body and the operands to the result, or several.
        wires: what it moves.
        parts: the programs that it runs.
        around: what moves besides, around its parts.
    """

    run: Run
    wires: Sequence[Wire] = ()
    parts: Parts = ()
    around: Callable[[], Sequence[Moving]] = _nothing


def _stepped(
    body: Body, eqn: Eqn, operands: Sequence[Any], everywhere: bool
) -> tuple[list[Any], _Does]:
    """Return the results of one operation, without cells, and what it does."""
    call: Any = eqn.call
    if call is None:
        return _row(body, eqn, operands)
    if isinstance(call, ShardMapCall):
        results, own = _entered(call, operands)
        return results, _Does(partial(_run_nested, call, own), parts=(("body", own, 1),))
    results = [
        x if type(x) in (bool, int, float, complex) else body.lift(x) for x in call.run(operands)
    ]
    if isinstance(call, ConstraintCall):
        return results, _Does(_as_called(call), _laying(body, operands[0], results[0]))
    if isinstance(call, WhileCall):
        return results, _while(body, call, operands, results, everywhere)
    if isinstance(call, ForCall):
        return results, _for(body, call, operands, results, everywhere)
    if isinstance(call, ScanCall):
        return results, _scan(body, call, operands, results, everywhere)
    if isinstance(call, SwitchCall):
        return results, _switch(body, call, operands, results, everywhere)
    return results, _Does(_as_called(call))


def _as_called(call: Any) -> Run:
    """Return what runs a call as it is run where nothing is lowered."""

    def run(body: Body, values: Sequence[Any]) -> Any:
        found = [body.lift(x) for x in call.run(values)]
        return found[0] if len(found) == 1 else found

    return run


def _laying(body: Body, x: Any, result: Any) -> Sequence[Wire]:
    """Return what a constraint moves."""
    if not body.scope.auto:
        return ()
    alike_all = [NamedSharding(m, result.kind.sharding.spec) for m in body.scope.submeshes]
    return laying_wires(body.scope, x.kind, x.cells, alike_all)


# rows and collectives


def _row(body: Body, eqn: Eqn, operands: Sequence[Any]) -> tuple[list[Any], _Does]:
    scope = body.scope
    if not any(type(x) is Grid for x in operands) and operands:
        operands = [body.lift(as_array(operands[0])), *operands[1:]]
    kinds = tuple(map(_kind, operands))
    first = runner_of(scope, eqn.name, kinds, eqn.params)
    told: list[Wire] = []
    body.notes = told
    try:
        found = first(body, operands)
    finally:
        body.notes = None
    results = list(found) if len(eqn.outputs) > 1 else [found]
    wires: Sequence[Wire] = told
    if scope.auto and eqn.name not in COLLECTIVES:
        types = [
            cell_types(scope, x.kind, x.cells)
            if isinstance(x, Grid)
            else [type(x)] * len(scope.submeshes)
            for x in operands
        ]
        wires = joined(
            [
                operation_wires(scope, eqn.name, [t[i] for t in types], eqn.params)
                for i in range(len(scope.submeshes))
            ]
        )
    return results, _Does(_runner(scope, eqn, kinds, first), wires)


def _runner(scope: Scope, eqn: Eqn, kinds: tuple[CellKind, ...], first: Runner) -> Run:
    """Return what runs an operation on values of the kinds that it was lowered for, or others.

    Values have other kinds where they decide how cells are stored: after a branch or a loop that
    only some devices ran, say. And what stands for a number has no cells.
    """
    name, params = eqn.name, eqn.params
    known: dict[Any, Runner] = {kinds: first}

    def run(body: Body, values: Sequence[Any]) -> Any:
        if not any(type(x) is Grid for x in values) and values:
            values = [body.lift(as_array(values[0])), *values[1:]]
        own = tuple([x.kind if type(x) is Grid else type(x) for x in values])
        found = known.get(own)
        if found is None:
            found = known[own] = runner_of(scope, name, own, params)
        return found(body, values)

    written = [isinstance(x, Literal) for x in eqn.inputs]
    grids = [(i, k) for i, k in enumerate(kinds) if isinstance(k, GridKind) and k.weak is None]
    if len(grids) + sum(written) < len(kinds):
        return run
    if len(grids) == 1:
        ((place, kind),) = grids

        def run_one(body: Body, values: Sequence[Any]) -> Any:
            return (first if values[place].kind is kind else run)(body, values)

        return run_one
    if len(grids) == 2:
        (one, kind_one), (two, kind_two) = grids

        def run_two(body: Body, values: Sequence[Any]) -> Any:
            same = values[one].kind is kind_one and values[two].kind is kind_two
            return (first if same else run)(body, values)

        return run_two
    return run


# bodies in bodies


def _run_nested(call: ShardMapCall, own: Executable, outer: Body, values: Sequence[Any]) -> Any:
    count, scope = len(call.body.captured), own.scope
    assert scope is not None
    body = Body(scope, outer)
    try:
        given = [
            entered(body, x.cells, spec, x.kind.varies, x.kind.type)
            for x, spec in zip(map(outer.lift, values[count:]), call.in_specs, strict=True)
        ]
        with interpreting(body):
            found = own.run(body, [*map(body.lift, values[:count]), *given])
            made = [
                left(body, body.lift(x), spec)
                for x, spec in zip(found, call.out_specs, strict=True)
            ]
    finally:
        body.close()
    return made[0] if len(made) == 1 else made


# loops and choices


def _one_or_all(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else values


def _ghosts(body: Body, results: Sequence[Any]) -> list[Any]:
    return [ghost(body, x.kind) if isinstance(x, Grid) else x for x in results]


def _while(
    body: Body, call: WhileCall, operands: Sequence[Any], results: Sequence[Any], everywhere: bool
) -> _Does:
    carry = _ghosts(body, results)
    first, second, _ = call.parted(operands)
    decided, cond = _lowered(body, call.cond, [*first, *carry], everywhere)
    if isinstance(decided[0], Grid) and decided[0].kind.varies:
        everywhere = False
        _, cond = _lowered(body, call.cond, [*first, *carry], everywhere)
    _, turn = _lowered(body, call.body, [*second, *carry], everywhere)

    def run(body: Body, values: Sequence[Any]) -> Any:
        one, two, state = call.parted(values)
        holds, after = cond.looped(body), turn.looped(body)
        return _one_or_all(
            run_while(
                body,
                lambda now: body.lift(holds([*one, *now])[0]),
                lambda now: after([*two, *now]),
                state,
            )
        )

    return _Does(run, parts=(("cond", cond, None), ("body", turn, None)))


def _for(
    body: Body, call: ForCall, operands: Sequence[Any], results: Sequence[Any], everywhere: bool
) -> _Does:
    bounds, captured, _ = call.parted(operands)
    scope = body.scope
    number = scope.kind(local_type(scope, (), np.dtype(np.int64)), (), frozenset(), int)
    same = not any(isinstance(b, Grid) and b.kind.varies for b in bounds)
    given = [*captured, ghost(body, number), *_ghosts(body, results)]
    _, turn = _lowered(body, call.body, given, everywhere and same)
    known = [b for b in bounds if type(b) is int]
    turns = max(0, known[1] - known[0]) if len(known) == 2 else None

    def run(body: Body, values: Sequence[Any]) -> Any:
        (start, stop), captured, state = call.parted(values)
        if type(start) is Grid or type(stop) is Grid:
            found = [body.lift(x) for x in call.run(values)]
            return _one_or_all(found)
        after = turn.looped(body)
        for i in range(int(start), int(stop)):
            state = after([*captured, i, *state])
        return _one_or_all(state)

    return _Does(run, parts=(("body", turn, turns),))


def _scan(
    body: Body, call: ScanCall, operands: Sequence[Any], results: Sequence[Any], everywhere: bool
) -> _Does:
    captured, _, arrays = call.parted(operands)
    carry = _ghosts(body, results)[: call.carried]
    rows = [_row_of(body, x) for x in arrays]
    _, turn = _lowered(body, call.body, [*captured, *carry, *rows], everywhere)
    order = range(call.length - 1, -1, -1) if call.reverse else range(call.length)

    def run(body: Body, values: Sequence[Any]) -> Any:
        if not call.length:
            return _one_or_all([body.lift(x) for x in call.run(values)])
        captured, state, arrays = call.parted(values)
        after = turn.looped(body)
        columns: list[list[Any]] = [[] for _ in results[call.carried :]]
        for i in order:
            found = after([*captured, *state, *[x[i] for x in arrays]])
            state = found[: call.carried]
            for column, y in zip(columns, found[call.carried :], strict=True):
                column.append(y)
        stacked = [stack(c[::-1] if call.reverse else c) for c in columns]
        return _one_or_all([*state, *stacked])

    return _Does(run, parts=(("body", turn, call.length),))


def _row_of(body: Body, x: Any) -> Grid:
    """Return one position of an array as a value without cells."""
    kind = x.kind
    local = local_type(body.scope, kind.shape[1:], kind.dtype)
    return ghost(body, body.scope.kind(local, kind.extent, kind.varies))


def _switch(
    body: Body, call: SwitchCall, operands: Sequence[Any], results: Sequence[Any], everywhere: bool
) -> _Does:
    index, captured, args = call.parted(operands)
    same = not (isinstance(index, Grid) and index.kind.varies)
    branches = [
        _lowered(body, program, [*own, *args], everywhere and same)[1]
        for program, own in zip(call.branches, captured, strict=True)
    ]
    kinds = tuple(map(_kind, results))

    def run(body: Body, values: Sequence[Any]) -> Any:
        index, captured, args = call.parted(values)
        ready = [
            partial(branch.run, body, [*own, *args])
            for branch, own in zip(branches, captured, strict=True)
        ]
        if type(index) is Grid and index.kind.varies:
            found, merge = run_each(body, index, ready)
            columns = zip(*[map(body.lift, row) for row in found], strict=True)
            return _one_or_all([merge(column) for column in columns])
        taken = common(index) if type(index) is Grid else int(index)
        if taken is None:  # none of this process's devices runs this
            return _one_or_all([ghost(body, k) for k in kinds if isinstance(k, GridKind)])
        row = ready[min(max(taken, 0), len(ready) - 1)]()
        return _one_or_all(
            [
                alike(body.lift(x), k.sharding)
                for x, k in zip(row, kinds, strict=True)
                if isinstance(k, GridKind)
            ]
        )

    parts = [(b.name, e, None) for b, e in zip(call.branches, branches, strict=True)]
    return _Does(run, parts=tuple(parts))
