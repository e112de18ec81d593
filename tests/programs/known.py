"""What is known to be wrong, each with a program that shows it and fails when it is mended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.lays import Lay
from tests.programs.draw import Program, Ref, Step, dtype_named, letter_of


@dataclass(frozen=True)
class Known:
    """One exception from the law.

    Attributes:
        why: what is wrong.
        names: the functions that it concerns.
        applies: whether it concerns a call, from its operands and named arguments.
        example: an input and the call of it that shows it.
        way: the only way of running it that is wrong, "jit" or "eager"; both by default.
    """

    why: str
    names: tuple[str, ...]
    applies: Callable[[Sequence[Any], dict[str, Any]], bool]
    example: tuple[np.ndarray, str, tuple[Any, ...], dict[str, Any]]
    way: str = ""

    def program(self) -> Program:
        """Return the program that shows it."""
        value, name, more, kwargs = self.example
        step = Step(name, (Ref(0), *more), kwargs, 1)
        return Program({0: value}, {0: Lay()}, [step])


KNOWN = (
    Known(
        "The parts of a complex array without dims have the shape (1,).",
        (
            "lax.real",
            "lax.imag",
            *(f"numpy.{n}" for n in ("real", "imag", "angle", "iscomplex", "isreal")),
        ),
        lambda operands, kwargs: operands[0].ndim == 0 and operands[0].dtype.kind == "c",
        (np.array(1 + 2j), "numpy.real", (), {}),
    ),
    Known(
        "1 + tanh and 1 + erf lose the last digits of small results.",
        ("nn.gelu",),
        lambda operands, kwargs: True,
        (np.array([-5.0], np.float32), "nn.gelu", (), {"approximate": False}),
    ),
    Known(
        "Order statistics of an array with other empty dims are refused.",
        ("numpy.median", "numpy.quantile", "numpy.percentile"),
        lambda operands, kwargs: 0 in operands[0].shape,
        (np.zeros((0, 3)), "numpy.median", (), {"axis": 1}),
    ),
    Known(
        "Integers of fewer than 8 bits become int8.",
        (
            *(f"numpy.{n}" for n in ("negative", "absolute", "abs", "sign", "positive", "square")),
            *(f"numpy.{n}" for n in ("conj", "conjugate")),
            *(f"lax.{n}" for n in ("neg", "abs", "sign", "square", "conj")),
        ),
        lambda operands, kwargs: letter_of(operands[0]) == "n",
        (np.ones(3, dtype_named("uint4")), "lax.neg", (), {}),
    ),
    Known(
        "A traced histogram has edges of 64 bits.",
        ("numpy.histogram", "numpy.histogram_bin_edges"),
        lambda operands, kwargs: operands[0].dtype.kind == "f",
        (np.ones(3, np.float32), "numpy.histogram", (), {}),
        "jit",
    ),
)


def excused(step: Step, values: Any, way: str) -> bool:
    """Whether what a step gives is known to be wrong."""
    operands = [values[n] for n in step.refs()]
    return any(
        step.name in k.names and k.way in ("", way) and k.applies(operands, step.kwargs)
        for k in KNOWN
    )
