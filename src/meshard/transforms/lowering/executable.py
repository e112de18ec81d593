"""Executables: steps over arrays of known types, ready to run.

In: the arrays that a program reads. Out: those that it returns. What each step does was decided
when the program was lowered, so that a call costs little more than its kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

from meshard.plan.move.wires import Wire
from meshard.runtime.array.array import Array
from meshard.runtime.callers import at_line
from meshard.runtime.doors import too_large
from meshard.runtime.moving.place import placed, resharded
from meshard.runtime.types import ArrayType
from meshard.runtime.watching.profile import timed
from meshard.runtime.world import RuntimeWorld
from meshard.transforms.program.program import Eqn, Kind, Listed, Var, listing

Run = Callable[[RuntimeWorld, Sequence[Any]], Any]


@final
@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        name: the operation, or several joined by ``+`` where they run as one.
        line: where in the user's program it was written.
        inputs: what it reads.
        outputs: what it gives.
        reads: the slots that it reads.
        writes: the slots that it sets.
        dead: the slots that nobody reads any more.
        run: from the values that it reads to the one that it gives, or a sequence of them.
        wires: what passes between devices.
        eqns: the operations of the program.
        parts: the programs that it runs, by name, and how often; None if that is not known.
        once: whether it is part of a loop's body and gives the same in every turn, so that only
            the first turn runs it.
    """

    name: str
    line: str
    inputs: tuple[Kind, ...]
    outputs: tuple[Kind, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    dead: tuple[int, ...]
    run: Run
    wires: tuple[Wire, ...] = ()
    eqns: tuple[Eqn, ...] = ()
    parts: tuple[tuple[str, Executable, int | None], ...] = ()
    once: bool = False


@final
class Executable:
    """A program on arrays of known types.

    Attributes:
        name: the function.
        inputs: the types of what it reads: the values captured, then the arguments.
        outputs: the types of what it returns.
        steps: the steps in order.
        results: the slots of what it returns.
        listed: returns what runs as a program to be printed, with how each value lies.
        kinds: what each variable of the program is.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[Kind],
        outputs: Sequence[Kind],
        steps: Sequence[Step],
        numbers: dict[int, Any],
        slots: int,
        results: Sequence[int],
        listed: Callable[[], Listed],
        kinds: Mapping[Var, Kind],
    ) -> None:
        self.name = name
        self.listed = listed
        self.kinds = kinds
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.steps = tuple(steps)
        self.results = tuple(results)
        self._numbers = numbers
        self._template: list[Any] = [None] * slots
        for slot, number in numbers.items():
            self._template[slot] = number
        self._code = [
            (s.run, s.reads, s.writes[0] if len(s.writes) == 1 else s.writes, s.dead)
            for s in self.steps
        ]

    def repeated(self, fixed: int) -> Executable:
        """Return the program as a loop's body, of which some steps need to run only once.

        Args:
            fixed: how many of the first values that it reads are the same in every turn.
        """
        known = {*range(fixed), *self._numbers}
        steps = []
        for step in self.steps:
            once = bool(step.reads) and known.issuperset(step.reads)
            if once:
                known.update(step.writes)
            steps.append(replace(step, once=once))
        if not any(s.once for s in steps):
            return self
        steps = [
            replace(s, dead=tuple([i for i in s.dead if s.once or i not in known])) for s in steps
        ]
        read = {i for s in steps if not s.once for i in s.reads} | set(self.results)
        steps = [
            replace(s, dead=tuple([i for i in s.dead if i not in read])) if s.once else s
            for s in steps
        ]
        return Executable(
            self.name,
            self.inputs,
            self.outputs,
            [*(s for s in steps if s.once), *(s for s in steps if not s.once)],
            self._numbers,
            len(self._template),
            self.results,
            self.listed,
            self.kinds,
        )

    def looped(self, world: RuntimeWorld) -> Callable[[Sequence[Any]], list[Any]]:
        """Return what runs one turn of a loop whose body this is, given all that it reads.

        What is the same in every turn is computed in the first.
        """
        first = sum(s.once for s in self.steps)
        if not first:
            return partial(self.run, world)
        read = {i for s in self.steps[first:] for i in s.reads} | set(self.results)
        writes = [i for s in self.steps[:first] for i in s.writes if i in read]
        kept: list[tuple[int, Any]] = []

        def turn(given: Sequence[Any]) -> list[Any]:
            slots = self._template.copy()
            slots[: len(given)] = given
            if not kept:
                self._run(world, slots, 0, first)
                kept.extend((i, slots[i]) for i in writes)
            else:
                for i, value in kept:
                    slots[i] = value
            self._run(world, slots, first, len(self.steps))
            return [slots[i] for i in self.results]

        return turn

    def run(self, world: RuntimeWorld, given: Sequence[Any]) -> list[Any]:
        """Return the results, given all that it reads."""
        slots = self._template.copy()
        slots[: len(given)] = given
        self._run(world, slots, 0, len(self.steps))
        return [slots[i] for i in self.results]

    def _run(self, world: RuntimeWorld, slots: list[Any], start: int, stop: int) -> None:
        """Run some of the steps."""
        number = start
        try:
            if world.ledgers:
                for step in self.steps[start:stop]:
                    with at_line(step.line):
                        found = _watched(world, step, [slots[i] for i in step.reads])
                    number += 1
                    if len(step.writes) == 1:
                        found = (found,)
                    for slot, value in zip(step.writes, found, strict=True):
                        slots[slot] = value
                    for slot in step.dead:
                        slots[slot] = None
                return
            code = self._code if stop - start == len(self._code) else self._code[start:stop]
            for run, reads, writes, dead in code:
                found = run(world, [slots[i] for i in reads])
                if isinstance(writes, int):
                    slots[writes] = found
                else:
                    for slot, value in zip(writes, found, strict=True):
                        slots[slot] = value
                for slot in dead:
                    slots[slot] = None
                number += 1
        except OverflowError as error:
            name = self.steps[number].name if number < len(self.steps) else self.name
            refusal = too_large(name, error)
            self._tell(refusal, number)
            raise refusal from None
        except Exception as error:
            self._tell(error, number)
            raise

    def text(self) -> str:
        """Return what runs as a listing, with how each value lies."""
        return listing(self.listed())

    def _tell(self, error: Exception, number: int) -> None:
        if number < len(self.steps):
            step = self.steps[number]
            error.add_note(f"It happened in {step.name} of jit of {self.name!r}, at {step.line}.")


def _watched(world: RuntimeWorld, step: Step, given: Sequence[Any]) -> Any:
    """Run a step while a ledger or a profile is open."""
    if not world.profiles:
        return step.run(world, given)
    with timed(world, step.name, "step", step.line) as ran_on:
        ran_on([k.sharding for k in step.outputs if isinstance(k, ArrayType)])
        return step.run(world, given)


def brought(world: RuntimeWorld, x: Any, kind: Kind, what: str = "jit") -> Any:
    """Return a value as an array of a type of the same shape and dtype; a number stays one.

    ``what`` is how ledgers call the move.
    """
    if not isinstance(kind, ArrayType) or (type(x) is Array and x._type is kind):
        return x
    if kind.committed:
        return placed(x, kind.sharding, what=what)
    return resharded(world, x, kind, what)
