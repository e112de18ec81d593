"""Names of a program's values, as messages call them: arguments, and results by operation and line.

In: a program as it was traced, and what its arguments are called. Out: a name for each variable,
also of those that a lowered program has besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from meshard.transforms.program.calls import (
    ForCall,
    KeptCall,
    ScanCall,
    ShardMapCall,
    SwitchCall,
    WhileCall,
)
from meshard.transforms.program.program import Atom, Eqn, Literal, Program, Var, short_line


@final
class Names:
    """What messages call the values of a program, and which steps only move one for another.

    Args:
        program: the program as it was traced.
        told: the names of its arguments.
    """

    def __init__(self, program: Program, told: Sequence[str]) -> None:
        self._names: dict[Var, str] = {}
        self.original: dict[Var, tuple[Var, Any]] = {}
        self.written: set[int] = set()
        for number, var in enumerate(program.captured):
            self._names[var] = f"captured array {number} ({var.str_short()})"
        for var, name in zip(program.inputs, told, strict=True):
            self._names[var] = name
        self._learn(program)

    def _learn(self, program: Program) -> None:
        for eqn in program.eqns:
            self.written.add(id(eqn))
            for var in eqn.outputs:
                self._names[var] = f"the result of {eqn.name} at {short_line(eqn.line)}"
            call: Any = eqn.call
            programs = call.programs if call is not None else ()
            for (_, inner), captured in zip(programs, _captured(eqn), strict=True):
                where = f"{eqn.name} at {short_line(eqn.line)}"
                for var, atom in zip(inner.captured, captured, strict=True):
                    self._names[var] = self.of(atom)
                for number, var in enumerate(inner.inputs):
                    self._names[var] = self._argument(eqn, number) or f"the carry of {where}"
                self._learn(inner)

    def _argument(self, eqn: Eqn, number: int) -> str:
        """Return what to call an argument of a call's program; nothing for what a loop carries."""
        call, operands = eqn.call, list(eqn.inputs)
        if isinstance(call, SwitchCall):
            return self.of(call.split_operands(operands)[2][number])
        if isinstance(call, ShardMapCall):
            return self.of(operands[len(call.body.captured) + number])
        if isinstance(call, KeptCall):
            return self.of(operands[call.captures + number])
        if isinstance(call, ScanCall) and number >= call.carried:
            return (
                f"a position of {self.of(call.split_operands(operands)[2][number - call.carried])}"
            )
        return ""

    def learn_inputs(self, variables: Sequence[Var], eqn: Eqn) -> None:
        """Learn the names of the arguments of a program that an operation was made of."""
        if len(variables) == len(eqn.inputs):
            for var, atom in zip(variables, eqn.inputs, strict=True):
                self._names.setdefault(var, self.of(atom))

    def of(self, atom: Atom) -> str:
        """Return what to call a value."""
        if isinstance(atom, Literal):
            return repr(atom.value)
        return self._names.get(self.source(atom)[0], atom.str_short())

    def source(self, var: Var) -> tuple[Var, Any]:
        """Return the value that one was before it was moved, and how it was laid out if it was."""
        kind: Any = None
        while var in self.original:
            var, kind = self.original[var]
        return var, kind


def _captured(eqn: Eqn) -> list[Sequence[Atom]]:
    """Return what each program of a call captures."""
    call, operands = eqn.call, list(eqn.inputs)
    if isinstance(call, WhileCall):
        return list(call.split_operands(operands)[:2])
    if isinstance(call, ForCall):
        return [call.split_operands(operands)[1]]
    if isinstance(call, ScanCall):
        return [call.split_operands(operands)[0]]
    if isinstance(call, SwitchCall):
        return list(call.split_operands(operands)[1])
    if isinstance(call, ShardMapCall):
        return [operands[: len(call.body.captured)]]
    if isinstance(call, KeptCall):
        return [call.split_operands(operands)[0]]
    return []
