"""Values of traced operands: asked for where they are indispensable, and refused with advice."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from meshard.errors import ConcretizationError
from meshard.ops.engine.eager import EAGER
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.doors import interpreting
from meshard.runtime.moving.place import as_array


def is_traced(*values: Any) -> bool:
    """Whether any operand is a value inside a transformation."""
    return any(isinstance(v, Traced) for v in values)


def eagerly() -> AbstractContextManager[None]:
    """Run operations on arrays at once, also inside a transformation, to look at their values."""
    return interpreting(EAGER)


def is_array(value: Any) -> bool:
    """Whether an operand is an array already: one that exists, or one inside a transformation."""
    return isinstance(value, (Array, Traced))


def has_devices(*values: Any) -> bool:
    """Whether any operand decides about devices: it is committed, or traced."""
    return any(v.committed if type(v) is Array else isinstance(v, Traced) for v in values)


def concrete(value: Any, what: str, way_out: str) -> Any:
    """Return an operand as an array whose values may be looked at, where it is laid out.

    Args:
        value: any array-like.
        what: the function that needs the values.
        way_out: why it does, and what to write instead, as sentences.

    Raises:
        ConcretizationError: if it is traced and does not stand for one value.
    """
    if not isinstance(value, Traced):
        return as_array(value)
    try:
        return as_array(value._known_array(what))
    except ConcretizationError as error:
        raise ConcretizationError(f"{error} {way_out}") from None
