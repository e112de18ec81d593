"""Matrices that are made whole on every device: whether a row does that, and what is said of it."""

from __future__ import annotations

from typing import Any, final

from meshard.algebra.sharding import NamedSharding
from meshard.ops.engine.decide import decide
from meshard.ops.engine.decision import KernelDecision
from meshard.ops.engine.later import Advised, when_laid_out
from meshard.runtime.array.leaving import gather, gather_law
from meshard.runtime.doors import bind
from meshard.runtime.types import ArrayType
from meshard.runtime.world import here


def gathers(row: str, x: Any, **params: Any) -> bool:
    """Whether a row brings whole matrices to every device, as no leading dim can take their axes.

    Args:
        row: a row with one operand.
        x: the matrices, whose layout is known.
        params: the parameters.
    """
    if not isinstance(x.sharding, NamedSharding) or not isinstance(x.aval, ArrayType):
        return False
    return _gathered(row, (x.aval,), params)


def _gathered(row: str, kinds: tuple[ArrayType, ...], params: Any) -> bool:
    found = decide(here(), row, kinds, tuple(params.items()))
    assert isinstance(found, KernelDecision), row
    read, given = found.operands[0], kinds[0].layout
    return read is not None and read.layout.piece_count < given.piece_count


@final
class _Told(Advised):
    """What passes matrices on, and says that a row is about to bring them to every device."""

    def __init__(self, row: str, params: Any) -> None:
        self.row, self.params = row, params

    def __call__(self, *operands: Any) -> list[Any]:
        kinds = tuple(x.aval for x in operands)
        named = isinstance(operands[0].sharding, NamedSharding)
        known = named and all(isinstance(k, ArrayType) for k in kinds)
        if known and _gathered(self.row, kinds, self.params):
            gather(kinds[0], f"linalg.{self.row.partition('_')[0]}")
        return list(operands)


def made_whole(row: str, *operands: Any, **params: Any) -> list[Any]:
    """Run a row that needs whole matrices; the setting ``on_gather`` is obeyed.

    Raises:
        GatherError: if they would be brought to every device, and the setting forbids it.
    """
    given = list(operands)
    if gather_law() != "allow":
        given = when_laid_out("whole matrices", _Told(row, params), *given)
    return list(bind(row, *given, **params))
