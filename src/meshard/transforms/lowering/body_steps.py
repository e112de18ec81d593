"""Single operations of a lowered body: what each runs, and what it moves.

In: an operation, and its operands without cells. Out: its results without cells, and a `Does`: its
runner for the kinds at hand, and what its collectives told that they move.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

from meshard.algebra.sharding import NamedSharding
from meshard.ops.engine.accept import WEAK
from meshard.plan.move.wires import Wire
from meshard.runtime.moving.place import as_array
from meshard.transforms.body.body import COLLECTIVES, Body, Decided, OnCells, Runner, decided
from meshard.transforms.body.grid import Grid
from meshard.transforms.body.recording_wires import (
    cell_types,
    joined_wires,
    laying_wires,
    operation_wires,
)
from meshard.transforms.body.scope import GridKind, Scope
from meshard.transforms.lowering.executable import Moving, NamedPart, Run, nothing_around
from meshard.transforms.program.program import Eqn, Literal, is_of_numbers, number_of

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
