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


def run_call(call: Call, values: Sequence[Any]) -> tuple[list[Any], Any]:
    """Run a call; return its results and what is kept for its derivative."""
    rule = CALLS.get(type(call))
    return (call.run(values), None) if rule is None else rule.run(call, values)


__all__ = ["CALLS", "EACH", "FLAT", "derivative_of", "run_call"]
