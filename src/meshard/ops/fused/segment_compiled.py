"""Segments as one program of a compiler, for who asks for one.

In: the operations of a segment, and its blocks. Out: the results' blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from meshard.ops.dtypes.promotion import EXTENDED
from meshard.ops.fused.compilers import Compiler, Work
from meshard.ops.fused.piecewise import Piecewise
from meshard.ops.fused.ways import Base
from meshard.runtime.array.array import Array
from meshard.runtime.types import ArrayType
from meshard.runtime.world import RuntimeWorld


def _work(compiler: Compiler, part: Piecewise) -> Work | None:
    """Return what the compiler is to do for an operation; None if it shall not."""
    cells = part.decision.cells
    if cells.own_params is not None and any(p != cells.own_params[0] for p in cells.own_params):
        return None
    kinds = {t.dtype for t in part.inputs if isinstance(t, ArrayType)}
    if part.decision.row.alike is not None and not EXTENDED.isdisjoint(kinds):
        return None  # a compiler promotes short dtypes in its own way, or not at all
    return compiler.work(part.decision.row.name, cells.runs[0].params, part.output.dtype)


@final
class CompiledSegment:
    """Runs a segment as one program for each cell.

    Attributes:
        possible: whether the compiler can do all of it.
    """

    def __init__(self, base: Base, compiler: Compiler) -> None:
        self._base = base
        work = [_work(compiler, p) for p, _ in base.work]
        self.possible = all(w is not None for w in work)
        if not self.possible:
            return
        steps = [(w, reads) for w, (_, reads) in zip(work, base.work, strict=True) if w is not None]
        inputs, fixed, out = len(base.inputs), base.fixed, base.out
        self._varying = [i for i in range(inputs) if i not in fixed]

        def program(*given: Any) -> list[Any]:
            values: list[Any] = [fixed.get(i) for i in range(inputs)]
            for i, x in zip(self._varying, given, strict=True):
                values[i] = x
            for do, reads in steps:
                values.append(do(*[values[i] for i in reads]))
            return [values[inputs + k] for k in out]

        self._run = compiler.program(program)

    def __call__(self, world: RuntimeWorld, operands: Sequence[Any]) -> list[Array]:
        """Return the wanted results."""
        base = self._base
        values = [(base.value(i, operands), base.inputs[i].pieces) for i in self._varying]
        cells = [
            [x if pieces is None else x[pieces[c]] for x, pieces in values]
            for c in range(len(base.pieces))
        ]
        found = self._run(world, cells)
        return base.arrays([[cell[k] for cell in found] for k in range(len(base.out))])
