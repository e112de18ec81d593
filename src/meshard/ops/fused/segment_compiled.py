"""Segments as one program of a compiler, for who asks for one.

In: the operations of a segment, and its blocks. Out: the results' blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, final

from meshard.ops.dtypes.promotion import EXTENDED
from meshard.ops.engine.decide import Type
from meshard.ops.fused.compilers import Compiler, InputKind, Work, runner_text
from meshard.ops.fused.piecewise import Piecewise
from meshard.ops.fused.ways import Base
from meshard.runtime.array.array import Array
from meshard.runtime.memory.ownership import held_alone
from meshard.runtime.types import ArrayType
from meshard.runtime.world import RuntimeWorld

Way = Callable[[RuntimeWorld, Sequence[Any]], list[Array]]
"""From a segment's operands to the arrays that are wanted."""


def _work(compiler: Compiler, part: Piecewise) -> Work | None:
    """Return what the compiler is to do for an operation; None if it shall not."""
    cells = part.decision.cells
    if cells.own_params is not None and any(p != cells.own_params[0] for p in cells.own_params):
        return None
    kinds = {t.dtype for t in part.inputs if isinstance(t, ArrayType)}
    if part.decision.row.alike is not None and not EXTENDED.isdisjoint(kinds):
        return None  # a compiler promotes short dtypes in its own way, or not at all
    return compiler.work(part.decision.row.name, cells.runs[0].params, part.output.dtype)


def _input_kind(kind: Type, pieces: tuple[int, ...] | None, cell: int) -> InputKind:
    if pieces is None or not isinstance(kind, ArrayType):
        return kind if isinstance(kind, type) else float
    return kind.layout.box(pieces[cell]).shape, kind.dtype


@final
class CompiledSegment:
    """Runs a segment as one program for each cell, or as NumPy does where there is none.

    Attributes:
        possible: whether the compiler can do all of it.

    Args:
        base: the segment.
        compiler: what makes the program.
        otherwise: how NumPy runs the segment.
        over: the operands whose blocks may be written over, where nobody else sees them.
    """

    def __init__(
        self, base: Base, compiler: Compiler, otherwise: Way, over: Collection[int]
    ) -> None:
        self._base = base
        self._otherwise = otherwise
        work = [_work(compiler, p) for p, _ in base.work]
        self.possible = len(work) > 1 and all(w is not None for w in work)
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

        self._over = _written_over(base, self._varying, over)
        self._run = compiler.program(program)
        self._compiler = compiler

    def runner(self) -> str:
        """Return who runs it: the compiler's name, or NumPy and why."""
        kinds = {r: part.inputs[k] for part, reads in self._base.work for k, r in enumerate(reads)}
        cells = [
            [_input_kind(kinds[i], self._base.inputs[i].pieces, c) for i in self._varying]
            for c in range(len(self._base.pieces))
        ]
        return runner_text(self._compiler, self._run, cells)

    def __call__(self, world: RuntimeWorld, operands: Sequence[Any]) -> list[Array]:
        """Return the wanted results."""
        base = self._base
        cells = range(len(base.pieces))
        free = [[j for j, n, own in self._over if _is_free(operands[n], own[c])] for c in cells]
        values = [(base.value(i, operands), base.inputs[i].pieces) for i in self._varying]
        found = self._run(
            world, [[x if own is None else x[own[c]] for x, own in values] for c in cells], free
        )
        del values
        if found is None:
            return self._otherwise(world, operands)
        return base.arrays([[cell[k] for cell in found] for k in range(len(base.out))])


def runner_of(way: Way) -> Callable[[], str]:
    """Return what tells who runs a segment; nothing, if no compiler was asked."""
    return way.runner if isinstance(way, CompiledSegment) else str


def _written_over(
    base: Base, varying: Sequence[int], over: Collection[int]
) -> list[tuple[int, int, tuple[int, ...]]]:
    """Return the inputs that may be written over: their places, operands and pieces."""
    # An operand that two inputs read, in two ways, is needed longer than one of them says.
    read = Counter([i.number for i in base.inputs])
    found = []
    for place, number in enumerate(varying):
        own = base.inputs[number]
        alone = own.number in over and read[own.number] == 1
        if alone and own.pieces is not None and len(set(own.pieces)) == len(own.pieces):
            found.append((place, own.number, own.pieces))
    return found


def _is_free(x: Array, piece: int) -> bool:
    """Whether a block may be written over: nothing else refers to it."""
    x._live()
    if not held_alone(x, piece):
        return False
    block = x._blocks[piece]  # type: ignore[index]
    return block is not None and block.flags.writeable
