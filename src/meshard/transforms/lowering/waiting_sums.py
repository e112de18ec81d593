"""Sums that wait: partial results that are added to each other first, and combined once.

In: operations that leave partial sums on the devices, and whose results are only added up. Out: one
step, which adds what each device has and combines that: one all-reduce instead of several. So the
gradient of what is used in several places costs what it costs in one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from meshard.ops.engine.decision import Decision, KernelDecision
from meshard.ops.engine.eager import sum_runner
from meshard.ops.engine.run import Runner
from meshard.plan.move.wires import Wire
from meshard.transforms.program.program import Atom, Eqn, Program, Var


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
