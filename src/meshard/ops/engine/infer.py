"""The types of an operation's results, without running it.

Python numbers are weak: they take the dtype of what they meet. A value that stands for one while a
loop is typed counts as its Python type here, and what comes of weak operands alone is weak again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshard.algebra.abstract import Sharding
from meshard.errors import ConcretizationError
from meshard.ops.engine.decide import Type, decide, takes_arrays_only
from meshard.runtime.array.traced import Traced
from meshard.runtime.doors import Params
from meshard.runtime.memo import memoized
from meshard.runtime.types import ArrayType, Block
from meshard.runtime.world import RuntimeWorld, here

Weak = type[Any] | None
"""The type of Python number that a value stands for; None for one that has a dtype of its own."""


_BY_KIND: dict[str, type[Any]] = {"i": int, "f": float, "c": complex}


class AbstractArray(Traced):
    """An array whose type is known, but not its values.

    Attributes:
        weak: the type of Python number that it stands for, if it does.
    """

    __slots__ = ("weak",)

    def __init__(self, type: ArrayType, weak: Weak = None) -> None:
        self._type = type
        self.weak = weak

    def _concrete(self, what: str) -> Block:
        raise ConcretizationError(
            f"{what}: this {self._type.str_short()} is evaluated abstractly, for its shape and "
            "dtype only, and has no value. Where a branch or a loop depends on values use lax.cond "
            "or lax.while_loop."
        )

    def _placed(self, sharding: Sharding, what: str) -> Any:
        sharding.layout(self.shape)  # refuses what cannot be laid out so
        return AbstractArray(here().type_of(self.shape, self.dtype, sharding, True))

    def __repr__(self) -> str:
        return self._type.str_short()

    __str__ = __repr__


def weak_of(x: Any) -> Weak:
    """Return the type of Python number that an array without data stands for; None for others."""
    return x.weak if isinstance(x, AbstractArray) else None


def number_type(x: Any) -> Weak:
    """Return the type of a Python number whose dtype is still open; a bool's never is."""
    kind = type(x)
    return kind if kind in (int, float, complex) else None


def inferred(
    world: RuntimeWorld,
    name: str,
    operands: Sequence[tuple[Type, Weak]],
    params: Params,
) -> list[tuple[ArrayType, Weak]]:
    """Return the type of each result, and the type of Python number that it stands for.

    Args:
        world: whose decisions are used.
        name: the operation.
        operands: for each its type, or that of the Python number that it is; and the type of the
            Python number that it stands for.
        params: the operation's parameters.

    Raises:
        ArgumentError: if there is no such operation.
    """
    return _inferred(world, name, tuple(operands), params)


@memoized(most=1 << 14)
def _inferred(
    world: RuntimeWorld,
    name: str,
    operands: tuple[tuple[Type, Weak], ...],
    params: Params,
) -> list[tuple[ArrayType, Weak]]:
    types: list[Type] = [t if w is None else w for t, w in operands]
    if takes_arrays_only(name) or not any(isinstance(t, ArrayType) for t in types):
        types = [t for t, _ in operands]
    outputs = decide(world, name, types, params).outputs
    weak = all(w is not None for _, w in operands) and "dtype" not in dict(params)
    return [(t, _BY_KIND.get(t.dtype.kind) if weak and not t.shape else None) for t in outputs]
