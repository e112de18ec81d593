"""Ways to run a segment: large cells a few rows at a time, small ones packed or one by one.

In: operations in order, what they read, and the arrays. Out: the arrays that are wanted.

Operations whose cells give one piece each, without communication: what segments are made of.

In: a decided operation. Out: its kernels cell by cell, and whether it can run on a few rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, final

import numpy as np

from meshard.ops.engine.decide import Type, lasting_rule
from meshard.ops.engine.decision import KernelDecision
from meshard.ops.engine.run import as_block
from meshard.ops.fused.chain import Chain, Work, laid_out, run_chains
from meshard.ops.row import Params
from meshard.runtime.array.array import Array
from meshard.runtime.memory.ownership import held_alone
from meshard.runtime.types import ArrayType, Block
from meshard.runtime.world import RuntimeWorld


@final
@dataclass(frozen=True, slots=True)
class Piecewise:
    """A decided operation each of whose cells gives one piece of its one result.

    Attributes:
        decision: the decision.
        inputs: the operands' types.
        pieces: the piece that each cell gives.
        kernels: for each cell the kernel with its parameters.
        cut: for each operand whether its first dim has the rows of the result; None if the
            operation cannot run on a few rows.
        spans: for each cell the rows of its piece.
    """

    decision: KernelDecision
    inputs: tuple[Type, ...]
    pieces: tuple[int, ...]
    kernels: tuple[Callable[..., Any], ...]
    cut: tuple[bool, ...] | None
    spans: tuple[tuple[int, int], ...]

    @property
    def output(self) -> ArrayType:
        """The result's type."""
        return self.decision.outputs[0]

    @property
    def fills(self) -> bool:
        """Whether the kernel takes ``out=``."""
        dtypes = self.decision.dtypes
        return self.decision.row.style == "ufunc" and dtypes.out_usable and dtypes.casts == (None,)


def piecewise(decision: KernelDecision, types: Sequence[Type], params: Params) -> Piecewise | None:
    """Return how an operation may be part of a segment; None if it may not."""
    cells, output = decision.cells, decision.outputs[0]
    if not cells.count or not _is_piecewise(decision):
        return None
    pieces, boxes = cells.result, output.layout.boxes
    spans = tuple([(boxes[p].starts[0], boxes[p].stops[0]) for p in pieces] if output.shape else [])
    spans = spans or ((0, 1),) * cells.count
    if cells.own_params is None:  # one kernel object tells `ways` that
        kernels = (_with(decision, cells.params),) * cells.count
    else:
        kernels = tuple([_with(decision, own) for own in cells.own_params])
    return Piecewise(decision, tuple(types), pieces, kernels, _cut(decision, types, params), spans)


def _is_piecewise(decision: KernelDecision) -> bool:
    """Whether each cell gives one piece of one result, on one thread and without communication."""
    return (
        len(decision.outputs) == 1
        and decision.combination is None
        and not decision.agree
        and not any(decision.moves)
        and decision.row.style != "blas"
        and len(set(decision.cells.result)) == decision.cells.count
    )


def _with(decision: KernelDecision, params: Params) -> Callable[..., Any]:
    kernel = partial(decision.row.kernel, **params) if params else decision.row.kernel
    if decision.row.style == "plain" or decision.dtypes.contiguous:
        return partial(_only, kernel, decision.dtypes.contiguous)
    return kernel


def _only(kernel: Callable[..., Any], contiguous: bool, *blocks: Any) -> Any:
    """Return a kernel's one result, given blocks in C order if it needs them so."""
    if contiguous:
        blocks = tuple(
            [np.asarray(b, order="C") if isinstance(b, np.ndarray) else b for b in blocks]
        )
    found = kernel(*blocks)
    return found[0] if type(found) is tuple else found


def _cut(
    decision: KernelDecision, types: Sequence[Type], params: Params
) -> tuple[bool, ...] | None:
    """Return which operands have the result's rows; None where rows are not alike.

    A kernel without local parameters does on a few rows what it does on a cell, if its rule lets
    the factor of the rows be split.
    """
    op = decision.row
    if op.local is not None or not decision.outputs[0].shape:
        return None
    rule = lasting_rule(op, types, params)
    first = rule.outputs[0][0]
    if len(first) != 1 or first[0] in rule.whole:
        return None
    (row,) = first
    if any(row in dim for dim in rule.outputs[0][1:]):
        return None
    found = []
    for term in rule.inputs:
        places = [i for i, dim in enumerate(term) if row in dim]
        if places not in ([], [0]) or (places and term[0] != first):
            return None
        found.append(bool(places))
    return tuple(found) if any(found) else None


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


Way = tuple[tuple[int, ...] | None, tuple[int, ...] | None]
"""How an input is packed: the pieces to take, None for all, and the shape of their pack, None for
what is the same for every cell."""


@final
class Packed:
    """Runs all cells of a segment at once, their blocks put behind one another."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._ways: list[Way] = []
        self.possible = len(base.pieces) > 1 and self._prepared()

    def _prepared(self) -> bool:
        """Find how each input is packed; whether there is a way for all."""
        base = self._base
        rank = max(p.output.ndim for p, _ in base.work)
        if not rank or not all(_is_uniform(p, rank) for p, _ in base.work):
            return False
        inputs = len(base.inputs)
        kinds = {
            r: _operand_type(part, k)
            for part, reads in base.work
            for k, r in enumerate(reads)
            if r < inputs and base.inputs[r].pieces is not None
        }
        for number, own in enumerate(base.inputs):
            way = _way_of(own, kinds.get(number), rank)
            if way is None:
                return False
            self._ways.append(way)
        self._program = [(p.kernels[0], _taking(reads)) for p, reads in base.work]
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
        for kernel, taken in self._program:
            values.append(kernel(*taken(values)))
        first = len(base.inputs)
        return base.arrays([tuple(values[first + k]) for k in base.out])


def _taking(numbers: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function of C that takes some items of a list."""
    if len(numbers) == 1:
        return itemgetter(slice(numbers[0], numbers[0] + 1))
    return itemgetter(*numbers)


def _is_uniform(part: Piecewise, rank: int) -> bool:
    """Whether one call of one kernel can serve all cells: blocks of one shape, of a rank."""
    shapes = part.output.layout.shapes
    return (
        part.fills
        and part.output.ndim == rank
        and not part.decision.dtypes.contiguous
        and len(set(map(id, part.kernels))) == 1
        and len({shapes[p] for p in part.pieces}) == 1
    )


def _way_of(own: Input, kind: ArrayType | None, rank: int) -> Way | None:
    """Return which pieces of an input to take, and the shape of their pack; None for no way."""
    pieces = own.pieces
    if pieces is None:  # a number
        return None, None
    if len(set(pieces)) == 1:  # every cell reads the same piece, which broadcasts
        return pieces[:1], None
    assert kind is not None
    every_shape = kind.layout.shapes
    shapes = {every_shape[p] for p in pieces}
    shape = shapes.pop()
    if shapes or len(shape) > rank or not shape:
        return None
    every = pieces == tuple(range(kind.layout.piece_count))
    # The cells become a leading dim. Dims of size one behind it keep a block of fewer dims aligned
    # at the right, as it was before it had that dim.
    return None if every else pieces, (len(pieces), *(1,) * (rank - len(shape)), *shape)


def _operand_type(part: Piecewise, operand: int) -> ArrayType:
    kind = part.inputs[operand]
    assert isinstance(kind, ArrayType)
    return kind


def _shapes(part: Piecewise) -> list[tuple[int, ...]]:
    """Return the shape of the result of each cell."""
    shapes = part.output.layout.shapes
    return [shapes[p] for p in part.pieces]


@final
class Rows:
    """Runs large cells a few rows at a time, on all workers."""

    def __init__(self, base: Base, over: Sequence[int]) -> None:
        self._base = base
        self._chains: list[Chain] = []
        known: dict[Any, Chain] = {}
        # For each cell the shapes of all results, and the kernels: most cells are alike.
        shapes = [_shapes(p) for p, _ in base.work]
        kernels = [p.kernels for p, _ in base.work]
        keys = zip(*shapes, *[map(id, k) for k in kernels], strict=True)
        for c, key in enumerate(keys):
            if key not in known:
                own = list(zip(base.work, shapes, kernels, strict=True))
                work = [
                    Work(k[c], reads, (s[c][1:], p.output.dtype), p.fills)
                    for (p, reads), s, k in own
                ]
                cut = [i.cut for i in base.inputs]
                known[key] = laid_out(work, cut, base.out, shapes[0][c][0])
            self._chains.append(known[key])
        self._over = self._written_over(over)

    def _written_over(self, over: Sequence[int]) -> list[tuple[int, int, int]]:
        """Return for results the operand and input whose blocks they may be written to."""
        base = self._base
        # An operand that two inputs read, in two ways, is needed longer than one of them says.
        numbers = [i.number for i in base.inputs]
        free = {n for n in over if numbers.count(n) == 1}
        found = []
        for place, k in enumerate(base.out):
            for r, own in enumerate(base.inputs):
                if own.number in free and self._replaces(k, r):
                    free.remove(own.number)
                    found.append((place, own.number, r))
                    break
        return found

    def _replaces(self, k: int, r: int) -> bool:
        """Whether the result of an operation may be written to the blocks of an input.

        Rows of the input must be read for the last time when those of the result are written: in
        the same step only by a kernel that reads and writes element by element.
        """
        base = self._base
        own, part = base.inputs[r], base.work[k][0]
        readers = [
            (step, p, q)
            for step, (p, reads) in enumerate(base.work)
            for q, read in enumerate(reads)
            if read == r
        ]
        last = max((step for step, _, _ in readers), default=-1)
        if not own.cut or own.pieces != base.pieces or last > k or (last == k and not part.fills):
            return False
        wanted = (part.output.shape, part.output.dtype, part.output.layout)
        return any(
            (t.shape, t.dtype, t.layout) == wanted
            for t in (_operand_type(p, q) for _, p, q in readers)
        )

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
