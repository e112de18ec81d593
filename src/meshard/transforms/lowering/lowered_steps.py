"""What single steps of a lowered program run, besides the runners of operations.

In: the operands of a step, behind what was known when it was lowered. Out: its result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshard.runtime.array.array import Array
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayType
from meshard.runtime.world import RuntimeWorld
from meshard.transforms.lowering.executable import ensure_layout
from meshard.transforms.program.calls import MakeCall


def first_of(many: Callable[..., list[Any]], world: RuntimeWorld, operands: Sequence[Any]) -> Any:
    """Return the only result of a function that gives a list."""
    return many(world, operands)[0]


def ensured(type_: ArrayType, what: str, world: RuntimeWorld, operands: Sequence[Any]) -> Any:
    """Return the operand in the layout of a type; ``what`` is how ledgers call the move."""
    x = operands[0]
    return ensure_layout(world, x if type(x) is Array else as_array(x), type_, what)


def create(call: MakeCall, type_: ArrayType, world: RuntimeWorld, operands: Sequence[Any]) -> Any:
    """Make an array."""
    return call.make(type_, *[x if type(x) is Array else as_array(x) for x in operands])


def as_number_array(dtype: Any, world: RuntimeWorld, operands: Sequence[Any]) -> Any:
    """Return a Python number as an array."""
    return as_array(operands[0], dtype)


def as_python_number(world: RuntimeWorld, operands: Sequence[Any]) -> Any:
    """Return an array of one integer as a Python number."""
    return int(operands[0])


def converted(
    run: Callable[..., Any],
    made: tuple[bool, ...],
    weak: tuple[bool, ...],
    world: RuntimeWorld,
    operands: Sequence[Any],
) -> Any:
    """Run an operation on Python numbers made arrays; a weak result becomes a number."""
    given = tuple([as_array(x) if m else x for x, m in zip(operands, made, strict=True)])
    found = run(world, given)
    if len(weak) == 1:
        return found.item() if weak[0] else found
    return [x.item() if w else x for x, w in zip(found, weak, strict=True)]
