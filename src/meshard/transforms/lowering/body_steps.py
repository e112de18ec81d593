"""Single operations of a lowered body: what each runs, and what it moves.

In: an operation, and its operands without cells. Out: its results without cells, and a `Does`: its
runner for the kinds at hand, and what its collectives told that they move.

Loops and choices of a lowered body: their parts are lowered once, and run for each turn.

In: a call, its operands and results without cells, and what lowers a part. Out: a `Does`. How
code runs under a condition that differs between devices is decided in `flow/running`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import numpy as np

from meshard.algebra.sharding import NamedSharding
from meshard.ops.array.join import stack
from meshard.ops.engine.eager import WEAK
from meshard.plan.move.wires import Wire
from meshard.runtime.moving.place import as_array
from meshard.transforms.body.body import COLLECTIVES, Body, Decided, OnCells, Runner, decided
from meshard.transforms.body.branches import abstract_grid, alike, common, local_type
from meshard.transforms.body.grid import Grid
from meshard.transforms.body.scope import (
    GridKind,
    Scope,
    cell_types,
    joined_wires,
    laying_wires,
    operation_wires,
)
from meshard.transforms.flow.running import run_each, run_scan, run_while
from meshard.transforms.lowering.executable import (
    Executable,
    Moving,
    NamedPart,
    Run,
    nothing_around,
)
from meshard.transforms.program.calls import ForCall, ScanCall, SwitchCall, WhileCall
from meshard.transforms.program.program import Eqn, Literal, Program, is_of_numbers, number_of

CellKind = GridKind | type[Any]
"""What a value of a body is: a grid's kind, or the type of a Python number."""


def kind_of(x: Any) -> CellKind:
    """Return what a value of a body is."""
    return x.kind if isinstance(x, Grid) else type(x)


@final
@dataclass(frozen=True, slots=True)
class Does:
    """What one operation of a body does.

    Attributes:
        run: from the body and the operands to the result, or several.
        wires: what it moves.
        parts: the programs that it runs.
        around: what moves besides, around its parts.
        runner: tells who runs it, if a compiler was asked.
        on_cells: the same from cells to cells, where all is as it was when this was lowered; None
            if there is no such way.
    """

    run: Run
    wires: Sequence[Wire] = ()
    parts: tuple[NamedPart, ...] = ()
    around: Callable[[], Sequence[Moving]] = nothing_around
    runner: Callable[[], str] = str
    on_cells: OnCells | None = None


def one_or_all(values: Sequence[Any]) -> Any:
    """Return what a step gives: one value, or several."""
    return values[0] if len(values) == 1 else values


def as_called(call: Any) -> Run:
    """Return what runs a call as it is run where nothing is lowered."""

    def run(body: Body, values: Sequence[Any]) -> Any:
        return one_or_all([x if type(x) in WEAK else body.lift(x) for x in call.run(values)])

    return run


def laying(body: Body, x: Any, result: Any) -> Sequence[Wire]:
    """Return what a constraint moves."""
    if not body.scope.auto:
        return ()
    alike = [NamedSharding(m, result.kind.sharding.spec) for m in body.scope.submeshes]
    return laying_wires(body.scope, x.kind, x.cells, alike)


def row_step(body: Body, eqn: Eqn, operands: Sequence[Any]) -> tuple[list[Any], Does]:
    """Return the results of a row or a collective, without cells, and what it does."""
    scope, operands = body.scope, _some_grid(body, operands)
    kinds = tuple(map(kind_of, operands))
    does = decided(scope, eqn.name, kinds, eqn.params)
    first = does.run
    told: list[Wire] = []
    body.notes = told
    try:
        found = first(body, operands)
    finally:
        body.notes = None
    results = list(found) if len(eqn.outputs) > 1 else [found]
    if scope.auto and eqn.name not in COLLECTIVES:
        told = _wires_of_parts(scope, eqn, operands)
    run = _runner(scope, eqn, kinds, first)
    if results[0].kind.weak is not None:
        return results, Does(partial(_number_if_of_numbers, eqn, run))
    return results, Does(run, told, on_cells=_on_cells(scope, eqn, kinds, results, does))


def _number_if_of_numbers(eqn: Eqn, run: Any, body: Body, values: Sequence[Any]) -> Any:
    """Run an operation whose result stands for a Python number: one on numbers gives one."""
    return number_of(eqn, values) if is_of_numbers(eqn, values) else run(body, values)


def _on_cells(
    scope: Scope, eqn: Eqn, kinds: tuple[CellKind, ...], results: Sequence[Grid], does: Decided
) -> OnCells | None:
    """Return what runs an operation on cells, if values have the kinds that they were given."""
    if any(isinstance(k, GridKind) and k.weak is not None for k in kinds):
        if all(k.weak is not None for k in kinds if isinstance(k, GridKind)):
            return None  # numbers alone: the first is made an array where it runs
        now = tuple([k.weak or k if isinstance(k, GridKind) else k for k in kinds])
        does = decided(scope, eqn.name, now, eqn.params)
    return does.on_cells if does.kinds == tuple([x.kind for x in results]) else None


def _some_grid(body: Body, operands: Sequence[Any]) -> Sequence[Any]:
    """Return operands of which one is a grid at least: of numbers alone the first becomes one."""
    if not operands or any(type(x) is Grid for x in operands):
        return operands
    return [body.lift(as_array(operands[0])), *operands[1:]]


def _wires_of_parts(scope: Scope, eqn: Eqn, operands: Sequence[Any]) -> list[Wire]:
    """Return what an operation moves on all parts of the mesh, where axes stay automatic."""
    count = len(scope.submeshes)
    types = [
        cell_types(scope, x.kind, x.cells) if isinstance(x, Grid) else [type(x)] * count
        for x in operands
    ]
    return joined_wires(
        [operation_wires(scope, eqn.name, [t[i] for t in types], eqn.params) for i in range(count)]
    )


def _runner(scope: Scope, eqn: Eqn, kinds: tuple[CellKind, ...], first: Runner) -> Run:
    """Return what runs an operation on values of the kinds that it was lowered for, or others.

    Values have other kinds where they decide how cells are stored: after a branch or a loop that
    only some devices ran, say. And what stands for a number has no cells.
    """
    name, params = eqn.name, eqn.params
    known: dict[Any, Runner] = {kinds: first}

    def run(body: Body, values: Sequence[Any]) -> Any:
        values = _some_grid(body, values)
        own = tuple([x.kind if type(x) is Grid else type(x) for x in values])
        found = known.get(own)
        if found is None:
            found = known[own] = decided(scope, name, own, params).run
        return found(body, values)

    written = sum(isinstance(x, Literal) for x in eqn.inputs)
    grids = [(i, k) for i, k in enumerate(kinds) if isinstance(k, GridKind) and k.weak is None]
    if len(grids) + written < len(kinds):
        return run
    return _checked(grids, first, run)


def _checked(grids: Sequence[tuple[int, GridKind]], first: Runner, run: Run) -> Run:
    """Return a runner that looks at kinds by identity, for one or two grids; else the general one.

    Args:
        grids: the operands that are grids, and the kinds that they were lowered for.
        first: what runs values of these kinds.
        run: what runs any.
    """
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


Lowered = tuple[list[Any], Executable]
"""A program's results, without cells, and the program lowered."""


@final
@dataclass(frozen=True, slots=True)
class Site:
    """Where a loop or a choice stands.

    Attributes:
        body: the body, of which only the types are wanted.
        operands: the call's operands, without cells.
        results: its results, without cells too.
        everywhere: whether all devices run it; else those that values choose.
        lower: lowers a program, given the body, what it reads, and whether all devices run it.
    """

    body: Body
    operands: Sequence[Any]
    results: Sequence[Any]
    everywhere: bool
    lower: Callable[[Body, Program, Sequence[Any], bool], Lowered]

    def lowered(self, program: Program, given: Sequence[Any]) -> Lowered:
        """Return a part lowered, and its results."""
        return self.lower(self.body, program, given, self.everywhere)


def _abstract_grids(body: Body, results: Sequence[Any]) -> list[Any]:
    return [abstract_grid(body, x.kind) if isinstance(x, Grid) else x for x in results]


def _differs(x: Any) -> bool:
    """Whether a value may differ between devices, so that it chooses those that run something."""
    return isinstance(x, Grid) and bool(x.kind.varies)


def while_step(call: WhileCall, at: Site) -> Does:
    """Return what a loop does that goes on as long as a condition holds."""
    carry = _abstract_grids(at.body, at.results)
    first, second, _ = call.split_operands(at.operands)
    decided, cond = at.lowered(call.cond, [*first, *carry])
    if _differs(decided[0]):
        at = replace(at, everywhere=False)
        _, cond = at.lowered(call.cond, [*first, *carry])
    _, turn = at.lowered(call.body, [*second, *carry])

    def run(body: Body, values: Sequence[Any]) -> Any:
        one, two, state = call.split_operands(values)
        holds, after = cond.looped(body), turn.looped(body)
        return one_or_all(
            run_while(
                body,
                lambda now: body.lift(holds([*one, *now])[0]),
                lambda now: after([*two, *now]),
                state,
            )
        )

    def on_cells(where: Any, given: Sequence[Any]) -> Any:
        assert quick is not None
        one, two, state = call.split_operands(given)
        holds, after = quick[0].looped(where), quick[1].looped(where)
        while holds([*one, *state])[0][0]:
            state = after([*two, *state])
        return one_or_all(state)

    quick = None if _differs(decided[0]) else _loop_on_cells(at, (cond, turn), carry)
    return Does(
        run,
        parts=(("cond", cond, None), ("body", turn, None)),
        on_cells=None if quick is None else on_cells,
    )


def _loop_on_cells(
    at: Site, parts: Sequence[Executable], carry: Sequence[Any]
) -> list[Executable] | None:
    """Return the parts of a loop on cells, where the carry is stored alike in every turn.

    Args:
        at: where the loop stands.
        parts: the loop's programs, the last the one that gives the next carry.
        carry: the carry, without cells.
    """
    found = [p.on_cells for p in parts]
    kinds = tuple([x.kind for x in carry if isinstance(x, Grid)])
    first = [x.kind for x in at.operands[len(at.operands) - len(carry) :] if isinstance(x, Grid)]
    alike = kinds == parts[-1].outputs[: len(kinds)] and list(kinds) == first
    if not alike or len(kinds) < len(carry) or any(k.weak is not None for k in kinds):
        return None
    ready = [p for p in found if p is not None]
    return ready if len(ready) == len(found) else None


def for_step(call: ForCall, at: Site) -> Does:
    """Return what a counted loop does."""
    bounds, captured, _ = call.split_operands(at.operands)
    scope = at.body.scope
    number = scope.kind(local_type(scope, (), np.dtype(np.int64)), (), frozenset(), int)
    if any(map(_differs, bounds)):
        at = replace(at, everywhere=False)
    given = [*captured, abstract_grid(at.body, number), *_abstract_grids(at.body, at.results)]
    _, turn = at.lowered(call.body, given)
    known = [b for b in bounds if type(b) is int]
    turns = max(0, known[1] - known[0]) if len(known) == 2 else None

    def run(body: Body, values: Sequence[Any]) -> Any:
        (start, stop), captured, state = call.split_operands(values)
        if type(start) is Grid or type(stop) is Grid:
            found = [body.lift(x) for x in call.run(values)]
            return one_or_all(found)
        after = turn.looped(body)
        for i in range(int(start), int(stop)):
            state = after([*captured, i, *state])
        return one_or_all(state)

    def on_cells(where: Any, given: Sequence[Any]) -> Any:
        assert quick is not None
        (start, stop), captured, state = call.split_operands(given)
        after = quick[0].looped(where)
        for i in range(start, stop):
            state = after([*captured, i, *state])
        return one_or_all(state)

    quick = _loop_on_cells(at, (turn,), given[len(captured) + 1 :]) if len(known) == 2 else None
    return Does(run, parts=(("body", turn, turns),), on_cells=None if quick is None else on_cells)


def scan_step(call: ScanCall, at: Site) -> Does:
    """Return what a scan does."""
    captured, _, arrays = call.split_operands(at.operands)
    carry = _abstract_grids(at.body, at.results)[: call.carried]
    rows = [_row_of(at.body, x) for x in arrays]
    _, turn = at.lowered(call.body, [*captured, *carry, *rows])

    def run(body: Body, values: Sequence[Any]) -> Any:
        if not call.length:
            return one_or_all([body.lift(x) for x in call.run(values)])
        captured, state, arrays = call.split_operands(values)
        after = turn.looped(body)
        last, columns = run_scan(
            call.length,
            call.reverse,
            lambda now, i: after([*captured, *now, *[x[i] for x in arrays]]),
            state,
        )
        return one_or_all([*last, *map(stack, columns)])

    return Does(run, parts=(("body", turn, call.length),))


def _row_of(body: Body, x: Any) -> Grid:
    """Return one position of an array as a value without cells."""
    kind = x.kind
    local = local_type(body.scope, kind.shape[1:], kind.dtype)
    return abstract_grid(body, body.scope.kind(local, kind.extent, kind.varies))


def switch_step(call: SwitchCall, at: Site) -> Does:
    """Return what a choice does."""
    index, captured, args = call.split_operands(at.operands)
    if _differs(index):
        at = replace(at, everywhere=False)
    branches = [
        at.lowered(program, [*own, *args])[1]
        for program, own in zip(call.branches, captured, strict=True)
    ]
    kinds = [x.kind for x in at.results if isinstance(x, Grid)]

    def run(body: Body, values: Sequence[Any]) -> Any:
        index, captured, args = call.split_operands(values)
        ready = [
            partial(branch.run, body, [*own, *args])
            for branch, own in zip(branches, captured, strict=True)
        ]
        if type(index) is Grid and index.kind.varies:
            found, merge = run_each(body, index, ready)
            columns = zip(*[map(body.lift, row) for row in found], strict=True)
            return one_or_all([merge(column) for column in columns])
        taken = common(index) if type(index) is Grid else int(index)
        if taken is None:  # none of this process's devices runs this
            return one_or_all([abstract_grid(body, k) for k in kinds])
        row = ready[min(max(taken, 0), len(ready) - 1)]()
        pairs = zip(row, kinds, strict=True)
        return one_or_all([alike(body.lift(x), k.sharding) for x, k in pairs])

    parts = [(b.name, e, None) for b, e in zip(call.branches, branches, strict=True)]
    return Does(run, parts=tuple(parts), on_cells=_choice_on_cells(call, at, branches))


def _choice_on_cells(call: SwitchCall, at: Site, branches: Sequence[Executable]) -> OnCells | None:
    """Return what a choice does on cells that is the same on all devices; None for no such way."""
    kinds = tuple([x.kind for x in at.results if isinstance(x, Grid)])
    alone = at.body.scope.world.process_count == 1  # else a process may hold no cell of the index
    if not alone or _differs(at.operands[0]) or len(kinds) < len(at.results):
        return None
    found = [b.on_cells for b in branches if b.outputs == kinds]
    ready = [b for b in found if b is not None]
    if len(ready) < len(branches):
        return None

    def on_cells(where: Any, given: Sequence[Any]) -> Any:
        index, captured, args = call.split_operands(given)
        taken = int(index[0] if type(index) is tuple else index)
        number = min(max(taken, 0), len(ready) - 1)
        return one_or_all(ready[number].run(where, [*captured[number], *args]))

    return on_cells
