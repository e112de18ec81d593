"""Preferences: how values should be laid out, given what becomes of them.

In: a program, and how its values are laid out when each operation only follows its operands. Out:
shardings for values inside, found backwards from the results that are asked for, the constraints,
and what the other operands of an operation are split over. A preference binds nobody: lowering
follows it where that moves fewer bytes.

Sums that wait: partial results that are added to each other first, and combined once.

In: operations that leave partial sums on the devices, and whose results are only added up. Out: one
step, which adds what each device has and combines that: one all-reduce instead of several. So the
gradient of what is used in several places costs what it costs in one.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.dimmap import DimMap
from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import MeshardError
from meshard.ops.engine.decide import propagated, row_of
from meshard.ops.engine.decision import Decision, KernelDecision
from meshard.ops.engine.eager import sum_runner
from meshard.ops.engine.run import Runner
from meshard.ops.row import MoveOp, Op
from meshard.plan.move.wires import Wire
from meshard.runtime.types import ArrayType
from meshard.runtime.world import here
from meshard.transforms.body.constrained import settled
from meshard.transforms.program.calls import AlikeCall, ConstraintCall, ShardMapCall
from meshard.transforms.program.program import Atom, Eqn, Kind, Literal, Program, Var

Found = Mapping[Var, NamedSharding]
"""The preferences known so far: those of values that are used later."""
Preferred = list[tuple[Var, NamedSharding]]


def preferences(
    program: Program,
    kinds: Mapping[Var, Kind],
    results: Sequence[Kind | Sharding | None] | None,
) -> dict[Var, NamedSharding]:
    """Return how values of a program should be laid out.

    Args:
        program: the program.
        kinds: how each value is laid out where operations only follow their operands.
        results: for each result what the caller asked for.
    """
    found: dict[Var, NamedSharding] = {}
    for atom, asked in zip(program.outputs, results or (), strict=False):
        sharding = asked.sharding if isinstance(asked, ArrayType) else asked
        if isinstance(atom, Var) and isinstance(sharding, NamedSharding):
            found[atom] = sharding
    given = {*program.captured, *program.inputs}
    for eqn in reversed(program.eqns):
        for var, sharding in _before(eqn, kinds, found):
            if (var not in given or _is_unplaced(kinds[var])) and _fits(kinds[var], sharding):
                found[var] = sharding
    return found


def _is_unplaced(kind: Kind) -> bool:
    """Whether an argument may be on any devices."""
    return isinstance(kind, ArrayType) and kind.unplaced


def _fits(kind: Kind, sharding: NamedSharding) -> bool:
    """Whether a value can be laid out so: a dim may be too short for pieces of given sizes."""
    try:
        sharding.layout(kind.shape if isinstance(kind, ArrayType) else ())
    except MeshardError:
        return False
    return True


def _before(eqn: Eqn, kinds: Mapping[Var, Kind], found: Found) -> Preferred:
    """Return how the operands of an operation should be laid out."""
    if isinstance(eqn.call, ConstraintCall):
        return _before_constraint(eqn, eqn.call, kinds, found)
    if isinstance(eqn.call, AlikeCall):
        x, like = eqn.inputs
        kind = kinds.get(like) if isinstance(like, Var) else None
        sharding = kind.sharding if isinstance(kind, ArrayType) else None
        sharding = found.get(eqn.outputs[0], sharding)
        return [(x, sharding)] if isinstance(x, Var) and isinstance(sharding, NamedSharding) else []
    if isinstance(eqn.call, ShardMapCall):
        return _before_body(eqn, eqn.call)
    types = [type(x.value) if isinstance(x, Literal) else kinds[x] for x in eqn.inputs]
    if eqn.call is not None or not any(isinstance(t, ArrayType) for t in types):
        return []
    row = row_of(eqn.name)
    if isinstance(row, MoveOp):
        return _before_move(eqn, row, kinds, found)
    return _before_kernel(eqn, row, types, found)


def _before_constraint(
    eqn: Eqn, call: ConstraintCall, kinds: Mapping[Var, Kind], found: Found
) -> Preferred:
    """Return that an operand should be where it is asked to be.

    Dims that the constraint leaves open are as the value's readers prefer, or as they come.
    """
    (x,) = eqn.inputs
    if not isinstance(x, Var):
        return []
    sharding, preferred, kind = call.sharding, found.get(eqn.outputs[0]), kinds[x]
    if isinstance(kind, ArrayType):
        if preferred is not None:
            kind = here().type_of(kind.shape, kind.dtype, preferred, True)
        sharding = settled(sharding, kind)
    return [(x, sharding)] if isinstance(sharding, NamedSharding) else []


def _before_body(eqn: Eqn, call: ShardMapCall) -> Preferred:
    """Return that arguments of a body should be laid out as its specs say."""
    arguments = eqn.inputs[len(eqn.inputs) - len(call.in_specs) :]
    return [
        (x, NamedSharding(call.mesh, spec))
        for x, spec in zip(arguments, call.in_specs, strict=True)
        if isinstance(x, Var) and x.weak is None
    ]


def _before_kernel(eqn: Eqn, row: Op, types: Sequence[ArrayType | type], found: Found) -> Preferred:
    """Return how operands should be laid out, by the rule that joins them and the results."""
    preferred = [found.get(v) for v in eqn.outputs]
    types = _on_mesh(types, preferred)
    with contextlib.suppress(MeshardError):
        mesh, split = propagated(row, types, dict(eqn.params), preferred)
        return [
            (x, sharding)
            for x, kind, placement in zip(eqn.inputs, types, split.inputs, strict=True)
            if isinstance(x, Var) and isinstance(kind, ArrayType)
            if isinstance(sharding := mesh.sharding(placement), NamedSharding)
        ]
    return []


def _on_mesh(
    types: Sequence[ArrayType | type], preferred: Sequence[NamedSharding | None]
) -> list[ArrayType | type]:
    """Return operands' types on the mesh that results prefer, if nothing else says where."""
    meshes = [p.mesh for p in preferred if p is not None]
    if not meshes or not all(t.unplaced for t in types if isinstance(t, ArrayType)):
        return list(types)
    whole = NamedSharding(meshes[0], PartitionSpec())
    return [
        here().type_of(t.shape, t.dtype, whole, False) if isinstance(t, ArrayType) else t
        for t in types
    ]


def _before_move(eqn: Eqn, row: MoveOp, kinds: Mapping[Var, Kind], found: Found) -> Preferred:
    """Return how the operands of a move should be laid out."""
    preferred = found.get(eqn.outputs[0])
    arrays = [x for x in eqn.inputs if isinstance(x, Var)]
    types: list[Any] = [kinds[x] for x in arrays]
    if preferred is None or row.flat or not all(isinstance(t, ArrayType) for t in types):
        return []
    result: Any = kinds[eqn.outputs[0]]
    before = []
    maps = row.maps([t.shape for t in types], dict(eqn.params))
    for x, kind, own in zip(arrays, types, maps, strict=True):
        sharding = _along_kept_dims(preferred, own, kind.shape, result.shape)
        if len(own) == kind.ndim and sharding is not None:
            before.append((x, sharding))
    return before


def _along_kept_dims(
    preferred: NamedSharding, maps: Sequence[DimMap], shape: Sequence[int], result: Sequence[int]
) -> NamedSharding | None:
    """Return a result's sharding for an operand, along the dims that a move leaves alone."""
    entries = [
        a if m.is_identity and m.size == n == whole else ()
        for a, m, n, whole in zip(preferred.spec.axes(len(maps)), maps, shape, result, strict=False)
    ]
    if not any(entries):
        return None
    uneven: Any = preferred.uneven
    if isinstance(uneven, tuple):
        cuts = [c if e else None for c, e in zip_longest(uneven[: len(entries)], entries)]
        uneven = tuple(cuts) if any(c is not None for c in cuts) else None
    return NamedSharding(preferred.mesh, PartitionSpec(*entries), uneven=uneven)


@final
@dataclass(frozen=True, slots=True)
class WaitingSum:
    """The sum of the results of some operations, each of which leaves partial sums.

    Attributes:
        decisions: what the operations do.
        eqns: they, and the additions of their results.
        inputs: what they read, one after the other.
    """

    decisions: tuple[KernelDecision, ...]
    eqns: tuple[Eqn, ...]
    inputs: tuple[Atom, ...]

    @property
    def name(self) -> str:
        """The operations."""
        return "+".join([d.row.name for d in self.decisions])

    @property
    def wires(self) -> tuple[Wire, ...]:
        """What passes between devices."""
        return self.decisions[0].wires

    @property
    def runner(self) -> Runner:
        """What runs it."""
        return sum_runner(self.decisions, self.name)


def waiting_sum(eqn: Eqn, decision: Decision) -> WaitingSum | None:
    """Return an operation as a sum that may wait; None if it leaves no partial sums."""
    if not isinstance(decision, KernelDecision) or decision.combination is None:
        return None
    law = decision.row.partial
    if law is None or law.combine is not np.add:
        return None
    if any(decision.moves) or len(decision.outputs) > 1:
        return None
    return WaitingSum((decision,), (eqn,), eqn.inputs)


def added(eqn: Eqn, waiting: Mapping[Var, WaitingSum], uses: Counter[Atom]) -> WaitingSum | None:
    """Return the sum of two sums that wait; None if they must be combined one by one.

    Args:
        eqn: the operation.
        waiting: the sums that wait.
        uses: how often each value is used: they wait only for what alone reads them.
    """
    if eqn.name != "add" or eqn.call is not None or len(set(eqn.inputs)) < 2:
        return None
    parts = [waiting[x] for x in eqn.inputs if isinstance(x, Var) and x in waiting and uses[x] == 1]
    if len(parts) < 2 or not _alike(parts[0].decisions[0], parts[1].decisions[0]):
        return None
    a, b = parts
    return WaitingSum(a.decisions + b.decisions, (*a.eqns, *b.eqns, eqn), a.inputs + b.inputs)


def uses_of(program: Program) -> Counter[Atom]:
    """Return how often each value of a program is used."""
    read: Sequence[Atom] = [x for e in program.eqns for x in e.inputs]
    return Counter([x for x in (*read, *program.outputs) if isinstance(x, Var)])


def _alike(a: KernelDecision, b: KernelDecision) -> bool:
    """Whether two operations leave the same parts of sums, which are combined alike."""
    assert a.combination is not None
    assert b.combination is not None
    return (
        a.outputs == b.outputs
        and a.combination.scatter == b.combination.scatter
        and a.cells.result == b.cells.result
        and a.cells.contraction_index == b.cells.contraction_index
        and [(w.kind, w.axes, w.received) for w in a.wires]
        == [(w.kind, w.axes, w.received) for w in b.wires]
    )
