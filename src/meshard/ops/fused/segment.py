"""Segments: operations that run block by block, as one task for each cell.

In: decided operations each of whose cells gives one piece, without communication between them. Out:
a runner from the arrays that the segment reads to those that it gives. Large cells run as chains,
a few rows at a time; small ones are packed, so that one kernel call serves all cells.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, final

from meshard.ops.engine.decision import is_large
from meshard.ops.fused.compilers import chosen
from meshard.ops.fused.piecewise import Piecewise
from meshard.ops.fused.segment_compiled import CompiledSegment, Way
from meshard.ops.fused.ways import Base, Input, Loose, Packed, Rows
from meshard.tuning import SEGMENT_OPERATIONS


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
