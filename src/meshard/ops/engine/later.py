"""Functions that a trace writes down whole, to be gone through when more is known.

In: a function of arrays. Out: its result, or a value of the trace at hand that stands for it. What
looks at how operands lie is gone through when the program is lowered; what looks at values, or
makes much of nothing, when it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshard.ops.engine.concrete import is_traced
from meshard.runtime.doors import innermost
from meshard.runtime.moving.place import resharded
from meshard.runtime.types import ArrayType
from meshard.runtime.world import here

KEPT = 1 << 16
"""Bytes up to which an array that a traced function makes is a constant of its program."""


def by_layout(name: str, function: Callable[..., Any], /, *operands: Any, **params: Any) -> Any:
    """Call a function that looks at how its operands lie.

    Args:
        name: what listings call it.
        function: from the operands to one array, or a list of them; made of operations only.
        operands: arrays.
        params: whatever else it is called with, by name; no arrays.
    """
    later = getattr(innermost(), "by_layout", None)
    if later is None or not is_traced(*operands):
        return function(*operands, **params)
    return later(name, function, operands, params)


def by_values(name: str, function: Callable[..., Any], /, *operands: Any, **params: Any) -> Any:
    """Call a function that looks at values, but whose results' types do not depend on them.

    It must do with operands that have types only, and takes what `by_layout` takes.
    """
    later = getattr(innermost(), "by_values", None)
    if later is None or not is_traced(*operands):
        return function(*operands, **params)
    return later(name, function, operands, params)


def made(
    name: str,
    kind: ArrayType,
    make: Callable[..., Any],
    *operands: Any,
    asked: bool = False,
    place: Callable[[ArrayType], ArrayType] | None = None,
) -> Any:
    """Return what ``make(kind, *operands)`` makes of a type, piece by piece.

    In a traced function what is large, or has traced operands, is made when the program runs, and
    then where it is needed: a sharding that nobody asked for is the program's to choose.

    Args:
        name: what listings call it.
        kind: the array's type.
        make: from a type like it, however that lies, and the operands to the array.
        operands: what it is made of, such as a key.
        asked: whether the sharding was asked for.
        place: from the first operand's type to the array's, where that follows it.
    """
    if kind.nbytes > KEPT or is_traced(*operands):
        interpreter = innermost()
        typed = getattr(interpreter, "without_data", None)
        if typed is not None:
            return typed(kind)
        later = getattr(interpreter, "making", None)
        if later is not None:
            return later(name, kind, make, operands, asked, place)
    return make(kind, *operands)


def relaid(x: Any, kind: ArrayType, what: str) -> Any:
    """Return an array in the layout of another type of the same shape and dtype."""
    if not is_traced(x):
        return resharded(here(), x, kind, what)
    typed = getattr(innermost(), "without_data", None)
    return x._placed(kind.sharding, what) if typed is None else typed(kind)


def in_program() -> bool:
    """Whether the code at hand is traced by jit, or evaluated abstractly: its arrays are global."""
    interpreter = innermost()
    return hasattr(interpreter, "by_values") or hasattr(interpreter, "without_data")


def layouts_known() -> bool:
    """Whether it is known of traced values how they lie: while a program is lowered."""
    return bool(getattr(innermost(), "placed", False))
