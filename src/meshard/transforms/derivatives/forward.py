"""The way forward: how a function's results change with its inputs.

In: a function, its arguments and their tangents, flat. Out: its results and their tangents,
computed side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from meshard.ops.derivatives.kinds import FLAT, Site
from meshard.transforms.body.grid import Grid
from meshard.transforms.derivatives.levels import Dual, Level, differentiable
from meshard.transforms.derivatives.rules import derivative_of, push_call
from meshard.transforms.program.program import Call


@final
class Forward(Level):
    """Pushes tangents forward beside all operations."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._tangents: dict[int, tuple[Any, Any]] = {}

    def knows(self, handle: Any) -> bool:
        """Whether a value has a tangent."""
        return self._owns(handle) or id(handle) in self._tangents

    def tangent(self, handle: Any) -> Any:
        """Return a value's tangent; None where it is zero."""
        if self._owns(handle):
            return handle.tangent
        found = self._tangents.get(id(handle))
        return None if found is None else found[1]

    def alias(self, fresh: Grid, old: Grid) -> None:
        """Know a value of a body under a second identity."""
        if id(old) in self._tangents:
            self._tangents[id(fresh)] = fresh, self._tangents[id(old)][1]

    def input(self, value: Any, tangent: Any) -> Any:
        """Return an argument as a value of this level."""
        if tangent is None or not differentiable(value):
            return value
        handle = self.entered(value)
        return self._with(handle, tangent)

    def _with(self, handle: Any, tangent: Any) -> Any:
        if type(handle) is Dual:
            handle.tangent = tangent
        else:
            self._tangents[id(handle)] = handle, tangent
        return handle

    def run_call(
        self, call: Call, values: Sequence[Any], handles: Sequence[Any]
    ) -> tuple[list[Any], Any]:
        """Run a call below; return its results and their tangents, if it gives them."""
        return push_call(call, values, list(map(self.tangent, handles)))

    def follow(self, site: Site, call: Call | None, handles: Sequence[Any]) -> list[Any]:
        """Return the results with their tangents."""
        derivative = derivative_of(site, call)
        if derivative is FLAT or not any(map(differentiable, site.results)):
            return list(site.results)
        tangents = None if call is None else site.params.get("kept")
        if tangents is None:
            tangents = derivative.push(site, [self.tangent(h) for h in handles])
        made = []
        for result, t in zip(site.results, tangents, strict=True):
            if t is None or not differentiable(result):
                made.append(result)
            else:
                handle = result if self.body is not None else Dual(self.recorder, result)
                made.append(self._with(handle, t))
        return made


def pushed(
    name: str, f: Callable[..., Sequence[Any]], values: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Call a function with tangents; return its results and theirs, None where they are zero.

    Args:
        name: what messages call it.
        f: from flat values to flat values.
        values: arrays and numbers.
        tangents: for each its tangent, or None for zero.
    """
    level = Forward(name)
    with level.active():
        handles = [level.input(x, t) for x, t in zip(values, tangents, strict=True)]
        ends = list(f(*handles))
    return [level.left(h) for h in ends], [level.tangent(h) for h in ends]
