"""Slots: the places of a program's values while it runs.

In: variables and literals, in the order in which steps name them. Out: a number for each; literals
are in their places before the program runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from meshard.transforms.program.program import Atom, Literal, Var


@final
class Slots:
    """The slots of one program.

    Args:
        given: the variables of what it reads; the same value may be given twice.
    """

    def __init__(self, given: Sequence[Var]) -> None:
        self._places: dict[Var, int] = {}
        for number, var in enumerate(given):
            self._places[var] = number
        self._template: list[Any] = [None] * len(given)
        self._literals: dict[tuple[type, str], int] = {}

    def of(self, atom: Atom) -> int:
        """Return the slot of a variable or literal."""
        if isinstance(atom, Literal):
            key = type(atom.value), repr(atom.value)
            if key not in self._literals:
                self._literals[key] = len(self._template)
                self._template.append(atom.value)
            return self._literals[key]
        if atom not in self._places:
            self._places[atom] = len(self._template)
            self._template.append(None)
        return self._places[atom]

    def all_of(self, atoms: Sequence[Atom]) -> tuple[int, ...]:
        """Return the slots of several."""
        return tuple(map(self.of, atoms))

    @property
    def template(self) -> tuple[Any, ...]:
        """What is in the slots before the program runs."""
        return tuple(self._template)


def last_uses(reads: Sequence[Sequence[Atom]], results: Sequence[Atom]) -> dict[Var, int]:
    """Return for each variable the last step that reads it; results are read at the end.

    Args:
        reads: for each step what it reads.
        results: what the program returns.
    """
    last: dict[Var, int] = {}
    for number, own in enumerate(reads):
        last |= {x: number for x in own if isinstance(x, Var)}
    return last | {x: len(reads) for x in results if isinstance(x, Var)}
