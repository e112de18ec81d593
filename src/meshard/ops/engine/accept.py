"""What operands are accepted: arrays, values inside transformations, and Python's numbers.

In: whatever a caller handed to an operation. Out: numbers unchanged, and everything else as arrays
or as values of the current interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshard.algebra.arguments import described
from meshard.errors import DtypeError
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.moving.place import as_array

WEAK = (bool, int, float, complex)
"""Python's numbers, which take the dtype of what they meet."""


def _converts(x: Any) -> bool:
    """Return whether an object says how it becomes an array, to NumPy or to JAX."""
    return hasattr(x, "__array__") or hasattr(x, "__jax_array__")


def accept(name: str, operands: Sequence[Any], lift: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Return operands in the form that an interpreter takes: numbers, and its own values.

    At least one of them is a value: where all are numbers the first becomes one.

    Args:
        name: the operation, for messages.
        operands: the operands.
        lift: makes an Array, or a value of some transformation, a value of the interpreter's own.

    Raises:
        DtypeError: if an operand is neither a number nor like an array.
    """
    values: list[Any] = []
    some = False
    for i, x in enumerate(operands):
        if type(x) in WEAK:
            values.append(x)
            continue
        if type(x) is not Array and not isinstance(x, Traced):
            if isinstance(x, int):  # a Python number of a kind of its own
                values.append(int(x))
                continue
            if not isinstance(x, (np.ndarray, np.generic)) and not _converts(x):
                raise DtypeError(
                    f"{name}: operand {i} must be an array or a number, got {described(x)}. Make "
                    "an array with meshard.numpy.asarray(...)."
                )
            x = as_array(x)
        some = True
        values.append(lift(x))
    if values and not some:
        values[0] = lift(as_array(values[0]))
    return tuple(values)
