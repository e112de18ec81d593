"""Regions of a `shard_map` body that a compiler runs, if one is asked for.

In: the program of a body. Out: the same program with operations between collectives gathered into
calls, each of which is one program of the compiler, run once for each cell. What it cannot do,
small regions, and code under a condition that differs between devices run as they do without.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

from meshard.ops.fused.compilers import Compiler, Run, Work, chosen, runner_text
from meshard.runtime.types import ArrayType
from meshard.transforms.body.body import Body
from meshard.transforms.body.grid import Grid
from meshard.transforms.body.scope import Extent, GridKind, Scope
from meshard.transforms.flow.carries import LoopIndex
from meshard.transforms.lowering.body_steps import Does, one_or_all
from meshard.transforms.lowering.executable import Executable
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
        compiler: what compiles them.
    """

    program: Program
    compiled: Run
    compiler: Compiler
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
        """Return what the operations give, one after the other."""
        return evaluate(self.program, (), operands)


Lower = Callable[[Body, Program, Sequence[Any], bool], tuple[list[Any], Executable]]
"""From a body without cells, a program, what it reads, and whether all devices run it, to what it
gives, and the program lowered."""


def region_step(
    body: Body, call: RegionCall, operands: Sequence[Any], everywhere: bool, lower: Lower
) -> tuple[list[Any], Does]:
    """Return the results of a region, without cells, and what it does: a program for each cell."""
    results, own = lower(body, call.program, operands, everywhere)
    read = [
        (x.kind.type.shape, x.kind.type.dtype) if type(x) is Grid else type(x) for x in operands
    ]
    return results, Does(
        partial(_run, call.compiled, own, [x.kind.type for x in results]),
        runner=lambda: runner_text(call.compiler, call.compiled, [read]),
    )


def _run(
    compiled: Run, own: Executable, kinds: Sequence[ArrayType], body: Body, values: Sequence[Any]
) -> Any:
    """Run a region for each cell: compiled, or step by step where that is not possible.

    Args:
        compiled: the program.
        own: its operations, as steps.
        kinds: what the results' cells are.
        body: the body.
        values: what it reads.
    """
    scope = body.scope
    if body.mask is not None or scope.auto:
        return one_or_all(own.run(body, values))
    grids = [x for x in values if type(x) is Grid]
    extent = scope.extent(a for x in grids for a in x.kind.extent)
    local = scope.local(extent)
    numbers = range(scope.count(extent)) if local is None else local
    columns = [_column(scope, x, extent, numbers) for x in values]
    found = compiled(scope.world, [list(row) for row in zip(*columns, strict=True)])
    if found is None:
        return one_or_all(own.run(body, values))
    varies = frozenset[str]().union(*(x.kind.varies for x in grids))
    made = []
    for type_, blocks in zip(kinds, zip(*found, strict=True), strict=True):
        cells: list[Any] = [None] * scope.count(extent)
        for number, block in zip(numbers, blocks, strict=True):
            cells[number] = block
        made.append(Grid(body, scope.kind(type_, extent, varies), tuple(cells)))
    return one_or_all(made)


def _column(scope: Scope, x: Any, extent: Extent, numbers: Sequence[int]) -> list[Any]:
    """Return what each cell of a region reads of one operand."""
    if type(x) is not Grid:
        return [int(x) if type(x) is LoopIndex else x] * len(numbers)
    cells, onto = x.cells, scope.onto(x.kind.extent, extent)
    return [cells[onto[i]] for i in numbers]


def with_regions(program: Program) -> Program:
    """Return a body's program with what the chosen compiler can do gathered into calls."""
    compiler = chosen() if _is_large(program) else None
    return program if compiler is None else _gathered_into_calls(program, compiler)


def _is_large(program: Program) -> bool:
    """Whether there is enough to compute in a program, or in a loop of it, for a compiler."""
    inside = [e.call.body for e in program.eqns if isinstance(e.call, _LOOPS)]
    own = [e for e in program.eqns if e.call is None]
    return sum(map(_size, own)) >= LARGE or any(map(_is_large, inside))


_LOOPS = (ForCall, ScanCall, WhileCall)


def _gathered_into_calls(program: Program, compiler: Compiler) -> Program:
    eqns = _early([_inside(e, compiler) for e in program.eqns], compiler)
    work = [_work(e, compiler) for e in eqns]
    groups = _gathered(eqns, work)
    again = _repeated(eqns, work, groups, program.outputs)
    read = _readers([*_read(eqns, groups, again), program.outputs])
    found: list[Eqn] = []
    for place, numbers in enumerate(groups):
        if not _is_region(eqns, work, numbers):
            found += [eqns[n] for n in numbers]
            continue
        outputs = _given(eqns, numbers, read, place)
        every, _ = _cone(eqns, [*again[place], *numbers], outputs)
        if outputs:
            own = [w for n in every if (w := work[n]) is not None]
            found.append(_region([eqns[n] for n in every], own, outputs, compiler))
    return Program(program.captured, program.inputs, tuple(found), program.outputs, program.name)


def _is_region(eqns: Sequence[Eqn], work: Sequence[Work | None], numbers: Sequence[int]) -> bool:
    """Whether a compiler does a group of operations, and there is enough to do."""
    return work[numbers[0]] is not None and sum(_size(eqns[n]) for n in numbers) >= LARGE


def _read(
    eqns: Sequence[Eqn], groups: Sequence[Sequence[int]], again: Sequence[Sequence[int]]
) -> list[list[Atom]]:
    """Return what each group reads of others: what it computes again it has itself."""
    found = []
    for numbers, more in zip(groups, again, strict=True):
        own = {v for n in more for v in eqns[n].outputs}
        found.append([x for n in (*more, *numbers) for x in eqns[n].inputs if x not in own])
    return found


def _repeated(
    eqns: Sequence[Eqn],
    work: Sequence[Work | None],
    groups: Sequence[Sequence[int]],
    results: Sequence[Atom],
) -> list[list[int]]:
    """Return for each group operations of earlier ones that it does again.

    Where a group gives large values for one later group alone, and else only small ones, as the
    edges that a halo exchange sends, the later one computes the large ones itself: so they are
    neither written nor read.
    """
    again: list[list[int]] = [[] for _ in groups]
    read = _readers([[x for n in g for x in eqns[n].inputs] for g in groups] + [results])
    regions = [k for k, numbers in enumerate(groups) if _is_region(eqns, work, numbers)]
    for place in regions:
        numbers = groups[place]
        large = _by_far_the_largest(_given(eqns, numbers, read, place))
        later = {k for v in large for k in read[v]}
        if len(later) != 1 or not later.issubset(regions):
            continue
        cone, inputs = _cone(eqns, numbers, large)
        if sum(map(_bytes, inputs)) <= sum(map(_bytes, large)):
            again[later.pop()] += cone
    return again


def _given(
    eqns: Sequence[Eqn], numbers: Sequence[int], read: Mapping[Var, set[int]], place: int
) -> list[Var]:
    """Return what a group gives to others."""
    return [v for n in numbers for v in eqns[n].outputs if read[v] - {place}]


def _by_far_the_largest(values: Sequence[Var]) -> list[Var]:
    """Return the large values among others that are small; none if there are only large ones."""
    most = max(map(_bytes, values), default=0)
    large = [v for v in values if 8 * _bytes(v) > most]
    return large if len(large) < len(values) else []


def _cone(
    eqns: Sequence[Eqn], numbers: Sequence[int], ends: Sequence[Var]
) -> tuple[list[int], set[Var]]:
    """Return the operations of a group that values are made by, and what they read of others."""
    needed, found = set(ends), []
    for n in reversed(numbers):
        if not needed.isdisjoint(eqns[n].outputs):
            found.append(n)
            needed.difference_update(eqns[n].outputs)
            needed.update(x for x in eqns[n].inputs if isinstance(x, Var))
    return found[::-1], needed


def _bytes(x: Var) -> int:
    return math.prod(x.aval.shape) * x.aval.dtype.itemsize


def _early(eqns: Sequence[Eqn], compiler: Compiler) -> list[Eqn]:
    """Return operations with the collectives as early as their operands allow, in their order.

    Then what adds up the results of several is one region, as the way back of a halo exchange does.
    """
    place: dict[Var, int] = {}
    order: list[tuple[int, bool]] = []
    before = -1
    for number, eqn in enumerate(eqns):
        at, moves = number, eqn.call is None and _work(eqn, compiler) is None
        if moves:
            own = [place.get(x, -1) for x in eqn.inputs if isinstance(x, Var)]
            at = before = max([*own, before])
        order.append((at, moves))
        place |= dict.fromkeys(eqn.outputs, at)
    return [eqns[i] for i in sorted(range(len(eqns)), key=lambda i: (*order[i], i))]


def _readers(reads: Sequence[Sequence[Atom]]) -> defaultdict[Var, set[int]]:
    """Return for each value the groups that read it, given what each group reads."""
    found: defaultdict[Var, set[int]] = defaultdict(set)
    for place, atoms in enumerate(reads):
        for x in atoms:
            if isinstance(x, Var):
                found[x].add(place)
    return found


def _gathered(eqns: Sequence[Eqn], work: Sequence[Work | None]) -> list[list[int]]:
    """Return the operations in groups that run one after the other.

    An operation that a compiler can do joins the last group of such operations that comes no
    earlier than its operands; any other has a group of its own.
    """
    groups: list[list[int]] = []
    level: dict[Var, int] = {}
    for number, eqn in enumerate(eqns):
        first = max((level.get(x, -1) for x in eqn.inputs if isinstance(x, Var)), default=-1)
        place = len(groups)
        if work[number] is not None:
            later = range(max(first, 0), len(groups))
            place = max((k for k in later if work[groups[k][0]] is not None), default=place)
        if place == len(groups):
            groups.append([])
        groups[place].append(number)
        level |= dict.fromkeys(eqn.outputs, place)
    return groups


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
    call = RegionCall(program, compiler.program(run), compiler)
    return Eqn(call.name, (), inputs, tuple(outputs), eqns[0].line, call)


def _inside(eqn: Eqn, compiler: Compiler) -> Eqn:
    """Return a loop with regions in its body."""
    call: Any = eqn.call
    if isinstance(call, _LOOPS):
        return replace(eqn, call=replace(call, body=_gathered_into_calls(call.body, compiler)))
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
