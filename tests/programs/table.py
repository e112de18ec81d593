"""The table of cases: how a call of each public function is drawn, and how it is compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.programs.draw import Draw

Call = tuple[tuple[Any, ...], dict[str, Any]]
Drawer = Callable[[Draw], Call | None]


@dataclass(frozen=True)
class Case:
    """One function.

    Attributes:
        name: its path below `meshard`, or below the model's ``array``, for methods.
        draw: draws the arguments; None: what is at hand does not fit.
        ulps: how far results may be off, in units of the last place; None: bit by bit.
        wide: whether NumPy computes with floats and complex numbers of 64 bits and rounds.
        sums: whether an error may be as large as one of the greatest elements' last bits.
        law: the dtype of results, from the operands and the named arguments, where NumPy's own
            does not say it.
        eager: whether values decide shapes, so that it cannot be traced.
        free: from a result, the arguments and the named ones to what of it must be NumPy's, where
            NumPy leaves some of it open; None: all of it.
        weight: how often it is drawn.
    """

    name: str
    draw: Drawer
    ulps: float | None = None
    wide: bool = False
    sums: bool = False
    law: Callable[[Sequence[Any], dict[str, Any]], Any] | None = None
    eager: bool = False
    free: Callable[[Any, Sequence[Any], dict[str, Any]], Any] | None = None
    weight: float = 1.0


CASES: dict[str, Case] = {}


def case(names: str, /, **how: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register cases for functions that are called alike; the drawer is given the last name."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        prefix = ""
        for name in names.split():
            if name.endswith(":"):
                prefix = name[:-1]
                continue
            full = f"{prefix}.{name}"
            assert full not in CASES, full
            CASES[full] = Case(full, lambda d, name=name: function(d, name), **how)
        return function

    return register
