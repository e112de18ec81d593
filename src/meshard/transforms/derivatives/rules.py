"""Where derivatives are found: those of rows, of what is put off, and of calls.

In: what ran. Out: its derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshard.errors import DerivativeError
from meshard.ops.derivatives.kinds import FLAT, Derivative, Refused, Site
from meshard.ops.derivatives.table import DERIVATIVES, LATE
from meshard.ops.engine.each import SUFFIX
from meshard.runtime.callers import user_line
from meshard.transforms.derivatives.collectives import COLLECTIVES
from meshard.transforms.program.calls import WholeCall
from meshard.transforms.program.program import Call

_UNKNOWN = Refused(
    "nobody has said what it is. Give the function around it one with meshard.custom_jvp, or use "
    "lax.stop_gradient where none is wanted."
)
CALLS: dict[type[Any], Any] = {}
"""The derivative of each kind of call; written while this room is imported."""
EACH: list[Callable[[Site], Derivative]] = []
"""What finds the derivative of a row for many examples; written while this room is imported."""


def derivative_of(site: Site, call: Call | None) -> Derivative:
    """Return the derivative of what ran.

    Raises:
        DerivativeError: if it has none.
    """
    if call is None and site.name.endswith(SUFFIX):
        found = EACH[0](site)
    elif call is None:
        found = COLLECTIVES.get(site.name) or DERIVATIVES.get(site.name, _UNKNOWN)
    elif isinstance(call, WholeCall) and site.name in LATE:
        found = LATE[site.name]
    else:
        found = CALLS[type(call)].of(call) if type(call) in CALLS else _UNKNOWN
    if isinstance(found, Refused):
        raise DerivativeError(f"{site.name} at {user_line()} has no derivative: {found.why}")
    return found


def run_call(
    call: Call,
    values: Sequence[Any],
    moving: Sequence[bool],
    forward: bool,
    names: Sequence[str] = (),
) -> tuple[list[Any], Any]:
    """Run a call; return its results and what is kept for its derivative.

    Args:
        call: the call.
        values: its operands.
        moving: which of them depend on the inputs.
        forward: whether tangents are pushed later, rather than cotangents pulled.
        names: what the operands are called; empty strings for those without a name.
    """
    rule = CALLS.get(type(call))
    if rule is None:
        return call.run(values), None
    found: tuple[list[Any], Any] = rule.run(call, values, tuple(moving), forward, names)
    return found


def push_call(
    call: Call, values: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any] | None]:
    """Run a call; return its results and their tangents, None if they are found afterwards."""
    rule = CALLS.get(type(call))
    if rule is None:
        return call.run(values), None
    found: tuple[list[Any], list[Any] | None] = rule.forth(call, values, tangents)
    return found


__all__ = ["CALLS", "EACH", "FLAT", "derivative_of", "push_call", "run_call"]
