"""Bodies of `shard_map`, lowered: what each operation runs, found once for the types at hand.

In: a program of a body, and values without cells. Out: an `Executable` on grids of cells. The body
is followed once: its runners are kept, and its collectives tell what they would move,
as they tell a ledger. What values decide, as under a condition that differs between devices, is
looked up when it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from meshard.ops.engine.eager import WEAK
from meshard.runtime.doors import innermost, interpreting
from meshard.transforms.body.body import Body
from meshard.transforms.body.boundary import to_array, to_grid
from meshard.transforms.lowering.body_steps import (
    Does,
    Site,
    as_called,
    for_step,
    kind_of,
    laying,
    one_or_all,
    row_step,
    scan_step,
    switch_step,
    while_step,
)
from meshard.transforms.lowering.executable import Executable, Slots, Step, last_uses, purpose_of
from meshard.transforms.lowering.regions import RegionCall, region_step, with_regions
from meshard.transforms.program.calls import (
    ConstraintCall,
    ForCall,
    ScanCall,
    ShardMapCall,
    SwitchCall,
    WhileCall,
    opened,
)
from meshard.transforms.program.program import (
    Atom,
    Eqn,
    Listed,
    Literal,
    Program,
    Var,
    crossing_text,
)


def lower_program(
    body: Body, program: Program, given: Sequence[Any], everywhere: bool
) -> tuple[list[Any], Executable]:
    """Follow a program whose values have no cells: return its results, and it lowered.

    Args:
        body: the body, of which only the types are wanted.
        program: the program.
        given: what it captures, then its arguments.
        everywhere: whether all devices run it; else those that values choose.
    """
    program = opened(program)
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
        eqns = eqn.call.program.eqns if isinstance(eqn.call, RegionCall) else (eqn,)
        steps.append(
            Step(
                name="+".join([e.name for e in eqns]),
                line=eqn.line,
                inputs=tuple(map(kind_of, operands)),
                outputs=tuple(map(kind_of, results)),
                reads=slots.all_of(eqn.inputs),
                writes=slots.all_of(eqn.outputs),
                dead=tuple(dict.fromkeys(slots.all_of(dead))),
                run=does.run,
                wires=tuple(does.wires),
                around=does.around,
                eqns=eqns,
                parts=does.parts,
                runner=does.runner,
                on_cells=does.on_cells,
                purpose=purpose_of(eqns),
            )
        )
    results = [x.value if isinstance(x, Literal) else values[x] for x in program.outputs]
    out = slots.all_of(program.outputs)
    return results, Executable(
        name=program.name,
        inputs=tuple(map(kind_of, given)),
        outputs=tuple(map(kind_of, results)),
        steps=tuple(steps),
        template=slots.template,
        results=out,
        listed=partial(_listed, program, steps),
        kinds={v: kind_of(x) for v, x in values.items()},
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


def _stepped(
    body: Body, eqn: Eqn, operands: Sequence[Any], everywhere: bool
) -> tuple[list[Any], Does]:
    """Return the results of one operation, without cells, and what it does."""
    call: Any = eqn.call
    if call is None:
        return row_step(body, eqn, operands)
    if isinstance(call, RegionCall):
        return region_step(body, call, operands, everywhere, lower_program)
    if isinstance(call, ShardMapCall):
        results, own = enter_typed(call, operands)
        return results, Does(partial(_run_nested, call, own), parts=(("body", own, 1),))
    results = [x if type(x) in WEAK else body.lift(x) for x in call.run(operands)]
    if isinstance(call, ConstraintCall):
        return results, Does(as_called(call), laying(body, operands[0], results[0]))
    at = Site(body, operands, results, everywhere, lower_program)
    if isinstance(call, WhileCall):
        return results, while_step(call, at)
    if isinstance(call, ForCall):
        return results, for_step(call, at)
    if isinstance(call, ScanCall):
        return results, scan_step(call, at)
    if isinstance(call, SwitchCall):
        return results, switch_step(call, at)
    return results, Does(as_called(call))


def enter_typed(call: ShardMapCall, operands: Sequence[Any]) -> tuple[list[Any], Executable]:
    """Follow a call of a body without cells: return its results, and the body lowered."""
    count = len(call.body.captured)
    captured, given = operands[:count], operands[count:]
    program = with_regions(opened(call.body))
    kept: list[Executable] = []

    def run(*cells: Any) -> list[Any]:
        body = innermost()
        assert isinstance(body, Body)
        results, found = lower_program(body, program, [*map(body.lift, captured), *cells], True)
        kept.append(found)
        return results

    return list(call.mapped(run)(*given)), kept[-1]


def _run_nested(call: ShardMapCall, own: Executable, outer: Body, values: Sequence[Any]) -> Any:
    count, scope = len(call.body.captured), own.scope
    assert scope is not None
    body = Body(scope, outer)
    try:
        given = [
            x
            if type(x) in WEAK
            else to_grid(body, x.cells, spec, x.kind.varies, x.kind.type).standing_for(x.kind.weak)
            for x, spec in zip(values[count:], call.in_specs, strict=True)
        ]
        captured = [x if type(x) in WEAK else body.lift(x) for x in values[:count]]
        with interpreting(body):
            found = own.run(body, [*captured, *given])
            made = [
                to_array(body, body.lift(x), spec)
                for x, spec in zip(found, call.out_specs, strict=True)
            ]
    finally:
        body.close()
    return one_or_all(made)
