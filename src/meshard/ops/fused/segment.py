"""Segments: operations that run block by block, as one task for each cell.

In: decided operations each of whose cells gives one piece, without communication between them. Out:
a runner from the arrays that the segment reads to those that it gives. Large cells run as chains,
a few rows at a time; small ones are packed, so that one kernel call serves all cells.

Segments as one program of a compiler, for who asks for one.

In: the operations of a segment, and its blocks. Out: the results' blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, final

from meshard.ops.dtypes.laws import EXTENDED
from meshard.ops.engine.decide import Type
from meshard.ops.engine.decision import is_large
from meshard.ops.fused.compilers import Compiler, InputKind, Work, chosen, runner_text
from meshard.ops.fused.ways import Base, Input, Loose, Packed, Piecewise, Rows
from meshard.runtime.array.array import Array
from meshard.runtime.memory.ownership import held_alone
from meshard.runtime.types import ArrayType
from meshard.runtime.world import RuntimeWorld
from meshard.tuning import SEGMENT_OPERATIONS

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


@final
class FusedSegment:
    """Operations that are run together; they are added one by one, and then it is finished.

    Attributes:
        reads: the values that it reads, in the order of the operands.
        gives: the values that its operations give, in order.
        parts: its operations.
        nbytes: bytes that their cells read and write.
    """

    def __init__(self, first: Piecewise) -> None:
        self.reads: list[Any] = []
        self.gives: list[Any] = []
        self.parts: list[Piecewise] = []
        self.nbytes = 0
        self._pieces = first.pieces
        self._spans = first.spans
        self._rows = True
        self._inputs: list[Input] = []
        self._known: dict[Any, int] = {}
        self._reads: list[tuple[int, ...]] = []
        self._numbers: dict[Any, Any] = {}

    def accepts(self, part: Piecewise, operands: Sequence[Any]) -> bool:
        """Whether an operation can be added, whose operands are values or numbers."""
        if part.pieces != self._pieces or len(self.parts) >= SEGMENT_OPERATIONS:
            return False
        for k, x in enumerate(operands):
            if x in self.gives and self._places(part, k) != self._pieces:
                return False
        nbytes = self.nbytes + part.decision.cells.nbytes
        if not self.parts or not is_large(nbytes, len(self._pieces)):
            return True
        return self._rows and self._keeps_rows(part, operands)

    def _keeps_rows(self, part: Piecewise, operands: Sequence[Any]) -> bool:
        if part.cut is None or part.spans != self._spans:
            return False
        return all(part.cut[k] for k, x in enumerate(operands) if x in self.gives)

    def _places(self, part: Piecewise, operand: int) -> tuple[int, ...] | None:
        return part.decision.cells.operands[operand]

    def add(
        self, part: Piecewise, operands: Sequence[Any], numbers: Sequence[Any], gives: Any
    ) -> None:
        """Add an operation.

        Args:
            part: the operation.
            operands: for each operand the value, by any name; ignored for a number that is known.
            numbers: for each operand the number that it is; None for a value.
            gives: the name of the value that it gives.
        """
        self._rows = self._rows and self._keeps_rows(part, operands)
        reads = []
        for k, (x, number) in enumerate(zip(operands, numbers, strict=True)):
            weak = part.decision.dtypes.weak[k]
            if number is not None:
                value = number if weak is None else weak.type(number)
                key: Any = ("number", type(value), repr(value))
                self._numbers[key] = value
                reads.append(self._input(key, -1, None, False))
            elif x in self.gives:
                reads.append(-1 - self.gives.index(x))
            else:
                if x not in self.reads:
                    self.reads.append(x)
                cut = part.cut is not None and part.cut[k]
                own = self._places(part, k)
                reads.append(self._input((x, own, cut, weak), self.reads.index(x), own, cut))
                if own is None and weak is not None:
                    self._numbers[x, own, cut, weak] = weak.type
        self._reads.append(tuple(reads))
        self.parts.append(part)
        self.gives.append(gives)
        self.nbytes += part.decision.cells.nbytes

    def _input(self, key: Any, number: int, pieces: tuple[int, ...] | None, cut: bool) -> int:
        if key not in self._known:
            self._known[key] = len(self._inputs)
            self._inputs.append(Input(number, pieces, cut))
        return self._known[key]

    def finished(self, wanted: Collection[Any], donated: Collection[Any] = ()) -> Way:
        """Return what runs the segment: from its operands to the values that are wanted.

        Args:
            wanted: the values that are wanted, which it gives in the order of `gives`.
            donated: the values whose blocks may be written over, where nobody else sees them.
        """
        count = len(self._inputs)
        work = [
            (p, tuple([r if r >= 0 else count - 1 - r for r in reads]))
            for p, reads in zip(self.parts, self._reads, strict=True)
        ]
        out = [k for k, x in enumerate(self.gives) if x in wanted]
        fixed, converted = self._fixed_and_converted()
        base = Base(self._inputs, fixed, converted, work, out, self._pieces)
        large = is_large(self.nbytes, len(self._pieces))
        over = [i for i, x in enumerate(self.reads) if x in donated]
        way = self._way(base, large, over)
        compiler = chosen() if large else None
        if compiler is not None:
            compiled = CompiledSegment(base, compiler, way, over)
            if compiled.possible:
                return compiled
        return way

    def _way(self, base: Base, large: bool, over: Sequence[int]) -> Way:
        """Return how NumPy runs the segment."""
        if large and self._rows:
            return Rows(base, over)
        packed = Packed(base)
        return packed if packed.possible else Loose(base)

    def _fixed_and_converted(self) -> tuple[dict[int, Any], dict[int, Any]]:
        """Return the inputs that are numbers written in the program, and those to be converted.

        A number that is an operand has a value only when the segment runs; what is known of it is
        the type that it must have beside a float of ml_dtypes.
        """
        fixed: dict[int, Any] = {}
        converted: dict[int, Any] = {}
        for key, number in self._known.items():
            if key in self._numbers:
                written = self._inputs[number].number < 0
                (fixed if written else converted)[number] = self._numbers[key]
        return fixed, converted
