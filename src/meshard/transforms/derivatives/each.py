"""Derivatives of rows for many examples: those of the row for one, mapped.

In: what ran, one operation for all examples. Out: a derivative that does for each what that of the
row does, again as operations for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from meshard.ops.derivatives.kinds import FLAT, Derivative, Site, Values, shrunk
from meshard.ops.engine.each import of_one
from meshard.runtime.doors import bind
from meshard.transforms.batching.vmap import vmap
from meshard.transforms.derivatives.reverse import cotangents_of
from meshard.transforms.derivatives.rules import EACH, derivative_of


@final
@dataclass(frozen=True, slots=True)
class _Each(Derivative):
    """The derivative of a row for many examples.

    Attributes:
        name: the row for one, or for as many dims less one.
        params: its parameters.
        flags: which of the operands differ between examples.
    """

    name: str
    params: dict[str, Any]
    flags: tuple[bool, ...]

    def _site(self, operands: Values, results: Values) -> Site:
        def again(*values: Any) -> list[Any]:
            made = bind(self.name, *values, **self.params)
            return list(made) if isinstance(made, tuple) else [made]

        return Site(self.name, self.params, operands, results, again)

    def push(self, site: Site, tangents: Values) -> list[Any]:
        """Return the tangents of the results."""
        axes = [0 if has else None for has in self.flags]
        own = [None if t is None else a for t, a in zip(tangents, axes, strict=True)]
        missing: list[bool] = []

        def one(operands: list[Any], results: list[Any], moves: list[Any]) -> list[Any]:
            inner = self._site(operands, results)
            found = derivative_of(inner, None).push(inner, moves)
            missing[:] = [t is None for t in found]
            return [t for t in found if t is not None]

        mapped = vmap(one, in_axes=(axes, 0, own))
        found = iter(mapped(list(site.operands), list(site.results), list(tangents)))
        return [None if no else next(found) for no in missing]

    def pull(self, site: Site, cotangents: Values, wanted: Sequence[bool]) -> list[Any]:
        """Return the cotangents of the operands; those that all examples share are summed."""
        axes = [0 if has else None for has in self.flags]
        missing: list[bool] = []

        def one(operands: list[Any], results: list[Any], given: list[Any]) -> list[Any]:
            inner = self._site(operands, results)
            found = cotangents_of(derivative_of(inner, None), inner, given, wanted)
            missing[:] = [g is None for g in found]
            return [g for g in found if g is not None]

        mapped = vmap(one, in_axes=(axes, 0, 0))
        found = iter(mapped(list(site.operands), list(site.results), list(cotangents)))
        return [
            None if no else shrunk(next(found), x)
            for no, x in zip(missing, site.operands, strict=True)
        ]


def _of_each(site: Site) -> Derivative:
    name, params, flags = of_one(site.name, site.params)
    rule = _Each(name, params, flags)
    inner = derivative_of(rule._site(site.operands, site.results), None)
    return FLAT if inner is FLAT else rule


EACH.append(_of_each)
