"""Ways to run a segment: large cells a few rows at a time, small ones packed or one by one.

In: operations in order, what they read, and the arrays. Out: the arrays that are wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from meshard.ops.engine.run import as_block
from meshard.ops.fused.chain import Chain, Work, laid_out, run_chains
from meshard.ops.fused.piecewise import Piecewise
from meshard.runtime.array.array import Array
from meshard.runtime.memory.ownership import held_alone
from meshard.runtime.types import ArrayType, Block
from meshard.runtime.world import RuntimeWorld


@final
class Input:
    """What a segment reads of one operand: for each cell the piece; None for a number."""

    __slots__ = ("cut", "number", "pieces")

    def __init__(self, number: int, pieces: tuple[int, ...] | None, cut: bool) -> None:
        self.number = number
        self.pieces = pieces
        self.cut = cut


@final
class Base:
    """What all ways to run a segment share."""

    def __init__(
        self,
        inputs: Sequence[Input],
        fixed: dict[int, Any],
        converted: dict[int, Any],
        work: Sequence[tuple[Piecewise, tuple[int, ...]]],
        out: Sequence[int],
        pieces: tuple[int, ...],
    ) -> None:
        self.inputs = inputs
        self.fixed = fixed
        self.converted = converted
        self.work = work
        self.out = out
        self.pieces = pieces
        self.types = [work[k][0].output for k in out]

    def value(self, number: int, operands: Sequence[Any]) -> Any:
        """Return an input: the pieces of an array, or a number."""
        if number in self.fixed:
            return self.fixed[number]
        own = self.inputs[number]
        x = operands[own.number]
        if own.pieces is None:
            return self.converted[number](x) if number in self.converted else x
        return x._blocks or x._live()

    def arrays(self, found: Sequence[Sequence[Any]]) -> list[Array]:
        """Return the wanted results, given for each the blocks of the cells."""
        made = []
        for kind, cells in zip(self.types, found, strict=True):
            if self.pieces == tuple(range(kind.layout.piece_count)):
                made.append(Array(kind, tuple(cells)))
                continue
            blocks: list[Block | None] = [None] * kind.layout.piece_count
            for piece, block in zip(self.pieces, cells, strict=True):
                blocks[piece] = block
            made.append(Array(kind, tuple(blocks)))
        return made


@final
class Loose:
    """Runs small cells one after another."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._cells = [
            [
                (p.kernels[c], reads, p.output.dtype if _settles(p) else None)
                for p, reads in base.work
            ]
            for c in range(len(base.pieces))
        ]

    def __call__(self, world: RuntimeWorld, operands: Sequence[Any]) -> list[Array]:
        """Return the wanted results."""
        base = self._base
        inputs = [base.value(i, operands) for i in range(len(base.inputs))]
        places = [i.pieces for i in base.inputs]
        count = len(inputs)
        found: list[list[Any]] = [[] for _ in base.out]
        for c, program in enumerate(self._cells):
            values = [x if p is None else x[p[c]] for x, p in zip(inputs, places, strict=True)]
            for kernel, reads, dtype in program:
                block = kernel(*[values[i] for i in reads])
                values.append(block if dtype is None else as_block(block, dtype))
            for k, number in enumerate(base.out):
                found[k].append(values[count + number])
        return base.arrays(found)


def _settles(part: Piecewise) -> bool:
    """Whether a result must be made an array of the right dtype; NumPy gives scalars for 0-d."""
    return (
        part.decision.dtypes.casts != (None,)
        or not part.output.shape
        or part.decision.row.style not in ("ufunc", "view")
    )


@final
class Packed:
    """Runs all cells of a segment at once, their blocks put behind one another."""

    def __init__(self, base: Base) -> None:
        self._base = base
        # For each input the pieces to take, None for all, and the shape of their pack, None for
        # what is the same for every cell.
        self._ways: list[tuple[tuple[int, ...] | None, tuple[int, ...] | None]] = []
        self.possible = len(base.pieces) > 1 and self._prepared()

    def _prepared(self) -> bool:
        base = self._base
        rank = max(p.output.ndim for p, _ in base.work)
        count = len(base.pieces)
        inputs = len(base.inputs)
        for part, _ in base.work:
            own = {part.output.layout.box(p).shape for p in part.pieces}
            plain = (
                part.fills
                and len(set(map(id, part.kernels))) == 1
                and not part.decision.dtypes.contiguous
            )
            if len(own) > 1 or not plain or part.output.ndim != rank or not rank:
                return False
        kinds: dict[int, ArrayType] = {}
        for part, reads in base.work:
            for k, r in enumerate(reads):
                if r < inputs and base.inputs[r].pieces is not None:
                    kinds[r] = _operand_type(part, k)
        for number, own_input in enumerate(base.inputs):
            pieces = own_input.pieces
            if pieces is None or len(set(pieces)) == 1:
                self._ways.append((None, None) if pieces is None else (pieces[:1], None))
                continue
            found = {kinds[number].layout.box(p).shape for p in pieces}
            shape = found.pop()
            if found or len(shape) > rank or not shape:
                return False
            every = pieces == tuple(range(kinds[number].layout.piece_count))
            whole = (count, *(1,) * (rank - len(shape)), *shape)
            self._ways.append((None if every else pieces, whole))
        self._program = [(p.kernels[0], reads) for p, reads in base.work]
        return True

    def __call__(self, world: RuntimeWorld, operands: Sequence[Any]) -> list[Array]:
        """Return the wanted results."""
        base = self._base
        values: list[Any] = []
        for number, (pieces, shape) in enumerate(self._ways):
            x = base.value(number, operands)
            if shape is None:
                values.append(x if pieces is None else x[pieces[0]])
            else:
                blocks = x if pieces is None else [x[p] for p in pieces]
                values.append(np.concatenate(blocks).reshape(shape))
        for kernel, reads in self._program:
            values.append(kernel(*[values[i] for i in reads]))
        first = len(base.inputs)
        return base.arrays([list(values[first + k]) for k in base.out])


def _operand_type(part: Piecewise, operand: int) -> ArrayType:
    kind = part.inputs[operand]
    assert isinstance(kind, ArrayType)
    return kind


@final
class Rows:
    """Runs large cells a few rows at a time, on all workers."""

    def __init__(self, base: Base, over: Sequence[int]) -> None:
        self._base = base
        self._chains: list[Chain] = []
        known: dict[Any, Chain] = {}
        for c in range(len(base.pieces)):
            shapes = tuple(
                [p.output.layout.box(piece).shape for p, _ in base.work for piece in [p.pieces[c]]]
            )
            kernels = tuple([p.kernels[c] for p, _ in base.work])
            key = (shapes, tuple(map(id, kernels)))
            if key not in known:
                work = [
                    Work(kernel, reads, (shape[1:], p.output.dtype), p.fills)
                    for (p, reads), shape, kernel in zip(base.work, shapes, kernels, strict=True)
                ]
                cut = [i.cut for i in base.inputs]
                known[key] = laid_out(work, cut, base.out, shapes[0][0])
            self._chains.append(known[key])
        self._over = self._written_over(over)

    def _written_over(self, over: Sequence[int]) -> list[tuple[int, int, int]]:
        """Return for results the operand and input whose blocks they may be written to."""
        base = self._base
        last = {r: k for k, (_, reads) in enumerate(base.work) for r in reads}
        taken: set[int] = set()
        found = []
        for place, k in enumerate(base.out):
            part = base.work[k][0]
            for r in range(len(base.inputs)):
                own = base.inputs[r]
                if (
                    own.number in over
                    and own.number not in taken
                    and own.cut
                    and own.pieces == base.pieces
                    and last.get(r, -1) <= k
                    and (last.get(r) != k or part.fills)
                    and sum(i.number == own.number for i in base.inputs) == 1
                    and any(
                        _operand_type(p, q).shape == part.output.shape
                        and _operand_type(p, q).dtype == part.output.dtype
                        and _operand_type(p, q).layout == part.output.layout
                        for p, rs in base.work
                        for q, other in enumerate(rs)
                        if other == r
                    )
                ):
                    taken.add(own.number)
                    found.append((place, own.number, r))
                    break
        return found

    def __call__(self, world: RuntimeWorld, operands: Sequence[Any]) -> list[Array]:
        """Return the wanted results."""
        base = self._base
        given: dict[tuple[int, int], Block] = {}
        for place, number, _ in self._over:
            operands[number]._live()
            for c, piece in enumerate(base.pieces):
                if held_alone(operands[number], piece):
                    block = operands[number]._blocks[piece]
                    if block.flags.writeable:
                        given[c, place] = block
        inputs = [base.value(i, operands) for i in range(len(base.inputs))]
        cells = [
            (
                chain,
                [
                    x if i.pieces is None else x[i.pieces[c]]
                    for x, i in zip(inputs, base.inputs, strict=True)
                ],
            )
            for c, chain in enumerate(self._chains)
        ]
        found = run_chains(world, cells, given)
        return base.arrays([[cell[k] for cell in found] for k in range(len(base.out))])
