"""Regions of a `shard_map` body that a compiler runs, for who asks for one.

In: the program of a body. Out: the same program with operations between collectives gathered into
calls, each of which is one program of the compiler, run once for each cell. What it cannot do,
small regions, and code under a condition that differs between devices run as ever.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from meshard.ops.fused.compilers import Compiler, Run, Work
from meshard.runtime.array.array import Array
from meshard.runtime.doors import innermost
from meshard.transforms.body.body import Body
from meshard.transforms.body.grid import Grid
from meshard.transforms.body.scope import GridKind
from meshard.transforms.flow.count import Count
from meshard.transforms.program.calls import ForCall, ScanCall, WhileCall
from meshard.transforms.program.program import Atom, Eqn, Literal, Program, Var, evaluate
from meshard.tuning import LARGE


@final
@dataclass(frozen=True)
class RegionCall:
    """Operations of a body that are one program of a compiler. Operands: what they read.

    Attributes:
        program: the operations.
        compiled: runs them for each cell.
    """

    program: Program
    compiled: Run
    name: str = "region"

    @property
    def programs(self) -> Sequence[tuple[str, Program]]:
        """The operations."""
        return (("region", self.program),)

    @property
    def details(self) -> Sequence[tuple[str, object]]:
        """Nothing."""
        return ()

    def run(self, operands: Sequence[Any]) -> list[Any]:
        """Return what the operations give, computed cell by cell."""
        body = innermost()
        if not isinstance(body, Body) or body.typed or body.mask is not None or body.scope.auto:
            return evaluate(self.program, (), operands)
        scope = body.scope
        values = [
            int(x) if type(x) is Count else x if isinstance(x, (int, float)) else body.lift(x)
            for x in operands
        ]
        grids = [x for x in values if isinstance(x, Grid)]
        extent = scope.extent(a for x in grids for a in x.kind.extent)
        active = body.active(extent)
        numbers = range(scope.count(extent)) if active is None else active
        onto = [scope.onto(x.kind.extent, extent) if isinstance(x, Grid) else () for x in values]
        cells = [x.cells if isinstance(x, Grid) else x for x in values]
        if any(type(c) is Array for x in cells if isinstance(x, tuple) for c in x):
            return evaluate(self.program, (), operands)
        found = self.compiled(
            scope.world,
            [
                [x[m[i]] if isinstance(x, tuple) else x for x, m in zip(cells, onto, strict=True)]
                for i in numbers
            ],
        )
        varies = frozenset[str]().union(*(x.kind.varies for x in grids))
        made = []
        for k, atom in enumerate(self.program.outputs):
            kind = atom.aval if isinstance(atom, Var) else None
            assert isinstance(kind, GridKind)
            blocks: list[Any] = [None] * scope.count(extent)
            for i, results in zip(numbers, found, strict=True):
                blocks[i] = results[k]
            made.append(Grid(body, scope.kind(kind.type, extent, varies), tuple(blocks)))
        return made


def with_regions(program: Program, compiler: Compiler) -> Program:
    """Return a body's program with what a compiler can do gathered into calls."""
    eqns = [_inside(e, compiler) for e in program.eqns]
    work = [_work(e, compiler) for e in eqns]
    groups: list[tuple[bool, list[int]]] = []
    level: dict[Var, int] = {}
    for number, eqn in enumerate(eqns):
        first = max((level.get(x, -1) for x in eqn.inputs if isinstance(x, Var)), default=-1)
        place = len(groups)
        if work[number] is not None:
            own = [k for k in range(max(first, 0), len(groups)) if groups[k][0]]
            place = own[-1] if own else place
        if place == len(groups):
            groups.append((work[number] is not None, []))
        groups[place][1].append(number)
        level |= dict.fromkeys(eqn.outputs, place)
    read: dict[Var, set[int]] = {}
    for place, (_, numbers) in enumerate(groups):
        for x in (x for n in numbers for x in eqns[n].inputs):
            if isinstance(x, Var):
                read.setdefault(x, set()).add(place)
    results = {x for x in program.outputs if isinstance(x, Var)}
    found: list[Eqn] = []
    for place, (compiled, numbers) in enumerate(groups):
        run = [eqns[n] for n in numbers]
        if not compiled or sum(map(_size, run)) < LARGE:
            found += run
            continue
        outputs = [
            v for e in run for v in e.outputs if v in results or read.get(v, set()) - {place}
        ]
        own_work = [w for n in numbers if (w := work[n]) is not None]
        found.append(_region(run, own_work, outputs, compiler))
    return Program(program.captured, program.inputs, tuple(found), program.outputs, program.name)


def _region(
    eqns: Sequence[Eqn], work: Sequence[Work], outputs: Sequence[Var], compiler: Compiler
) -> Eqn:
    given = {v for e in eqns for v in e.outputs}
    inputs = tuple(
        dict.fromkeys([x for e in eqns for x in e.inputs if isinstance(x, Var) and x not in given])
    )

    def run(*cells: Any) -> list[Any]:
        values: dict[Var, Any] = dict(zip(inputs, cells, strict=True))
        for eqn, do in zip(eqns, work, strict=True):
            values[eqn.outputs[0]] = do(
                *[x.value if isinstance(x, Literal) else values[x] for x in eqn.inputs]
            )
        return [values[v] for v in outputs]

    program = Program((), inputs, tuple(eqns), tuple(outputs), "region")
    call = RegionCall(program, compiler.program(run))
    return Eqn(call.name, (), inputs, tuple(outputs), eqns[0].line, call)


def _inside(eqn: Eqn, compiler: Compiler) -> Eqn:
    """Return a loop with regions in its body."""
    call: Any = eqn.call
    if isinstance(call, (ForCall, ScanCall, WhileCall)):
        return replace(eqn, call=replace(call, body=with_regions(call.body, compiler)))
    return eqn


def _work(eqn: Eqn, compiler: Compiler) -> Work | None:
    if eqn.call is not None or len(eqn.outputs) != 1 or not any(map(_is_grid, eqn.inputs)):
        return None
    kind = eqn.outputs[0].aval
    if not isinstance(kind, GridKind) or kind.weak is not None:
        return None
    return compiler.work(eqn.name, dict(eqn.params), kind.type.dtype)


def _is_grid(atom: Atom) -> bool:
    return isinstance(atom, Var) and isinstance(atom.aval, GridKind)


def _size(eqn: Eqn) -> int:
    return sum(math.prod(v.aval.shape) * v.aval.dtype.itemsize for v in eqn.outputs)
