"""Jitted functions that are mapped: one compiled program for all examples.

In: the program of a jitted function that vmap has met, and operands of which some have the new dim.
Out: the results of a program of all examples, which is made once for each program and lowered once
for each layout of what it reads, as jit does.
"""

from __future__ import annotations

from typing import Any

from meshard.runtime.world import here
from meshard.transforms.batching.programs import CALLS, Found, run_batched
from meshard.transforms.body.mapped_axes import Examples
from meshard.transforms.jit.derived import JittedCall
from meshard.transforms.program.program import Var
from meshard.transforms.program.simplify import simplified
from meshard.transforms.tracing.tracing import Typed, traced


def _type(var: Var, has: bool, size: int) -> Typed:
    """Return the type of an operand for all examples."""
    kind: Any = var.aval
    if not has:
        return kind, var.weak
    return here().type_of((int(size), *kind.shape), kind.dtype, kind.sharding, False), None


def _mapped(call: Any, operands: list[Any], flags: list[bool], size: int) -> Found:
    own = (size.axis, size.split) if isinstance(size, Examples) else None
    key = JittedCall, tuple(flags), int(size), own
    known = call.program.made.get(key)
    if known is None:
        known = call.program.made[key] = _of_all(call, flags, size)
    whole, has = known
    return whole.run(operands), list(has)


def _of_all(call: JittedCall, flags: list[bool], size: int) -> tuple[JittedCall, list[bool]]:
    """Return a program for all examples, and which of its results have the dim."""
    constants = list(call.constants)
    every = [*[False] * len(constants), *flags]

    def flat(*values: Any) -> tuple[list[Any], list[bool]]:
        return run_batched(call.program, [*constants, *values], every, size)

    types = [_type(v, has, size) for v, has in zip(call.program.inputs, flags, strict=True)]
    program, captured, has = traced(call.name, flat, types, call.told)
    short, used = simplified(program)
    return JittedCall(short, call.name, call.told, tuple([captured[i] for i in used])), has


CALLS[JittedCall] = _mapped
