"""All steps of a program in the order in which they run, those of loops, branches and bodies too.

In: an `Executable`. Out: a flat list of `Item`s, each with what it moves and how often it runs.
Nothing is run: all follows from types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from meshard.plan.move.wires import Wire
from meshard.runtime.types import ArrayType
from meshard.transforms.body.scope import GridKind, Scope
from meshard.transforms.lowering.executable import AnyKind, Executable, Step
from meshard.transforms.program.calls import SwitchCall
from meshard.transforms.program.program import Eqn


@final
@dataclass(frozen=True, slots=True)
class Item:
    """One step.

    Attributes:
        step: the step, of a program or of a body.
        program: the program that it is a step of.
        around: the step whose program that is; None at the top.
        part: what the step around calls that program.
        depth: how many steps are around it.
        turns: how often it runs; None if values decide.
        counted: how often it counts in totals: once where values decide, and of the branches of a
            choice only those of the one that moves most.
        wires: what it moves each time, and the operand that moves; None if that is not an operand.
    """

    step: Step
    program: Executable
    around: Item | None
    part: str
    depth: int
    turns: int | None
    counted: int
    wires: tuple[tuple[Wire, int | None], ...]

    @property
    def name(self) -> str:
        """The operations."""
        return self.step.name

    @property
    def line(self) -> str:
        """Where it was written; of what a loop does by itself where the loop was."""
        return self.step.line or ("" if self.around is None else self.around.line)

    @property
    def eqns(self) -> tuple[Eqn, ...]:
        """Its operations."""
        return self.step.eqns

    @property
    def inputs(self) -> tuple[AnyKind, ...]:
        """What it reads."""
        return self.step.inputs

    @property
    def outputs(self) -> tuple[AnyKind, ...]:
        """What it gives."""
        return self.step.outputs

    @property
    def scope(self) -> Scope | None:
        """The axes of the body that it is in."""
        return self.program.scope

    @property
    def exact(self) -> bool:
        """Whether it moves that many bytes; else at most, as values will say."""
        return self.program.everywhere and all(w.exact for w, _ in self.wires)

    @property
    def total_bytes(self) -> int:
        """The bytes that all devices receive each time."""
        return sum(w.total for w, _ in self.wires)


def steps_in_order(executable: Executable) -> list[Item]:
    """Return all steps of a program in the order in which they run."""
    return _items(executable, None, "", 1, 1)


def _items(
    program: Executable, around: Item | None, part: str, often: int | None, counting: int
) -> list[Item]:
    found: list[Item] = []
    depth = 0 if around is None else around.depth + 1
    for step in program.steps:
        turns, counted = often, counting
        if around is not None and step.once:
            turns, counted = around.turns, min(counting, around.counted)
        item = Item(step, program, around, part, depth, turns, counted, _wires(step))
        found.append(item)
        inner = [
            _items(p, item, name, _times(turns, n), _counted(counted, n))
            for name, p, n in step.parts
        ]
        if len(step.eqns) == 1 and isinstance(step.eqns[0].call, SwitchCall):
            # Only the branch that moves most counts; of those that move alike the longest.
            weights = [(sum(i.counted * i.total_bytes for i in b), len(b)) for b in inner]
            most = weights.index(max(weights))
            inner = [
                b if n == most else _items(p, item, name, _times(turns, many), 0)
                for n, (b, (name, p, many)) in enumerate(zip(inner, step.parts, strict=True))
            ]
        for items in inner:
            found += items
    return found


def _times(turns: int | None, often: int | None) -> int | None:
    return None if turns is None or often is None else turns * often


def _counted(counted: int, often: int | None) -> int:
    return counted * (1 if often is None else often)


def _wires(step: Step) -> tuple[tuple[Wire, int | None], ...]:
    """Return what a step moves itself, each with the operand that it moves."""
    return (*[(w, _mover(w, step.inputs)) for w in step.wires], *step.around())


def _mover(wire: Wire, inputs: Sequence[AnyKind]) -> int | None:
    """Return which operand moves; None if partial results do."""
    while wire.parts:
        wire = wire.parts[0][0]
    origins = wire.origins
    if not origins:
        return None
    for number, kind in enumerate(inputs):
        alike = not isinstance(kind, type) and kind.sharding == origins[0]
        if alike and (len(origins) > 1 or _short(kind) == wire.array):
            return number
    return 0 if len(inputs) == 1 else None


def _short(kind: AnyKind) -> str:
    kind = kind.type if isinstance(kind, GridKind) else kind
    return kind.str_short() if isinstance(kind, ArrayType) else kind.__name__
