"""`Decision`: what an operation on operands of given types does, as a value.

It says how each operand gets to where the operation reads it, which runs of the kernel fall to this
process, how partial results are combined, what comes out, and what passes between devices. Whoever
asks about an operation (the interpreters, lowering, explaining) reads it here; `decide` makes it.

The way to run an operation that moves least, of those that the layouts leave open.

In: what decides one way, and how results should be laid out. Out: a `Decision`. All processes
find the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import repeat
from typing import NamedTuple, Protocol, final

from meshard.algebra.abstract import Sharding
from meshard.ops.engine.reduction import Reduction
from meshard.ops.row import Dtype, MoveOp, Op, Params
from meshard.plan.move.part import Part
from meshard.plan.move.wires import Wire
from meshard.runtime.moving.place import wires_between
from meshard.runtime.types import ArrayType, Blocks
from meshard.runtime.world import RuntimeWorld
from meshard.tuning import LARGE, TINY_CELL


@final
class Cell(NamedTuple):
    """One run of the kernel: the operands' pieces (-1: a number) and its parameters."""

    pieces: tuple[int, ...]
    params: Params


@final
@dataclass(frozen=True, kw_only=True)
class Cells:
    """The runs of a kernel that fall to this process: columns of numbers, one for each run.

    Attributes:
        count: how many runs there are.
        operands: per operand its piece in each run; None for a number.
        result: the piece of the results that each run gives, or a part of.
        pieces: how many pieces the results have.
        params: the parameters of all runs.
        own_params: the parameters of each run, if they differ; else None.
        contraction_index: per run its number among the cells of the contracted factors.
        nbytes: the bytes that all runs read and write.
        volume: the most factor positions that a run has.
        single: whether there is one run on the whole mesh.
    """

    count: int
    operands: tuple[tuple[int, ...] | None, ...]
    result: tuple[int, ...]
    pieces: int
    params: Params
    own_params: tuple[Params, ...] | None
    contraction_index: tuple[int, ...]
    nbytes: int
    volume: int
    single: bool

    @property
    def large(self) -> bool:
        """Whether the workers run them, each some; else they run where they are asked for."""
        return is_large(self.nbytes, self.count)

    @cached_property
    def runs(self) -> tuple[Cell, ...]:
        """The runs, one by one."""
        rows = zip(
            *[repeat(-1, self.count) if c is None else c for c in self.operands], strict=True
        )
        params = repeat(self.params, self.count) if self.own_params is None else self.own_params
        pairs = zip(rows if self.operands else repeat(()), params, strict=False)
        return tuple(map(partial(tuple.__new__, Cell), pairs))  # without a call of Python for each

    @cached_property
    def of_piece(self) -> tuple[tuple[int, ...], ...]:
        """Per piece of the results the runs that give it, in mesh order."""
        found: list[tuple[int, ...]] = [()] * self.pieces
        for run, piece in enumerate(self.result):
            found[piece] += (run,)
        return tuple(found)

    @cached_property
    def in_order(self) -> bool:
        """Whether each run gives a piece of its own, in the order of the pieces."""
        return self.result == tuple(sorted({*self.result}))


def is_large(nbytes: int, cells: int) -> bool:
    """Whether cells that read and write that many bytes, all together, are work for the workers."""
    return nbytes >= LARGE and nbytes >= cells * TINY_CELL


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDtypes:
    """What becomes of dtypes around a kernel.

    Attributes:
        casts: per result the dtype to convert to; None where the kernel gives the right one.
        weak: per operand the dtype that a Python float becomes; None where it stays one.
        out_usable: whether the kernel may write its result to an ``out=`` of the result's dtype.
        contiguous: whether the kernel needs contiguous blocks, to give the same bits everywhere.
    """

    casts: tuple[Dtype | None, ...]
    weak: tuple[Dtype | None, ...]
    out_usable: bool
    contiguous: bool


@final
@dataclass(frozen=True, slots=True)
class Combination:
    """How partial results of several runs become a result.

    Attributes:
        across: joins those of several processes; None where this process holds all of them.
        scatter: the dim along which each device that gave a partial result keeps a part of the
            combined one; None where all of them keep the whole.
        type_: the type of the combined result, and of each partial one, before it is divided.
    """

    across: Reduction | None
    scatter: int | None
    type_: ArrayType


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDecision:
    """What running a kernel on operands of given types does.

    Attributes:
        row: the operation, with the kernel for these dtypes.
        operands: how each operand is laid out when the kernel reads it; None for a number.
        moves: how each operand gets there; None if it is there.
        cells: the runs of the kernel.
        combination: how partial results are combined; None if there are none.
        outputs: the results' types.
        wires: what passes between devices, the operands' moves first.
        dtypes: what is converted before and after the kernel.
        agree: the processes that raise the same error if the kernel refuses values on one of them;
            none if it cannot, or if this one runs alone.
    """

    row: Op
    operands: tuple[ArrayType | None, ...]
    moves: tuple[Part | None, ...]
    cells: Cells
    combination: Combination | None
    outputs: tuple[ArrayType, ...]
    wires: tuple[Wire, ...]
    dtypes: KernelDtypes
    agree: tuple[int, ...] = ()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MoveDecision:
    """What moving elements between layouts does.

    Attributes:
        row: the operation.
        part: what this process copies, sends and receives.
        outputs: the result's type.
        wires: what passes between devices.
    """

    row: MoveOp
    part: Part
    outputs: tuple[ArrayType]
    wires: tuple[Wire]


class Exchange(Protocol):
    """Rows that pass between devices, which positions name."""

    def run(self, world: RuntimeWorld, given: Sequence[Blocks]) -> Blocks:
        """Return the blocks of the result, given those of the operands as they are read."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeDecision:
    """What an operation on rows that positions name does, where the rows are on several devices.

    Attributes:
        row: the operation.
        operands: how each operand is laid out when it is read.
        moves: how each operand gets there; None if it is there.
        moved: what passes between devices then.
        exchange: brings the rows together.
        estimated: what passes between devices then, at most: positions decide.
        outputs: the result's type.
    """

    row: Op
    operands: tuple[ArrayType, ...]
    moves: tuple[Part | None, ...]
    moved: tuple[Wire, ...]
    exchange: Exchange
    estimated: tuple[Wire, ...]
    outputs: tuple[ArrayType]

    @property
    def wires(self) -> tuple[Wire, ...]:
        """What passes between devices, the operands' moves first."""
        return (*self.moved, *self.estimated)


Decision = KernelDecision | MoveDecision | ExchangeDecision


Preferred = Sequence[Sharding | None]
"""For each result how it should be laid out; None where it does not matter."""
Way = Callable[[Preferred, int | None], Decision]
"""From results' preferred layouts, and the operand that leads, to a decision."""


def cheapest(
    world: RuntimeWorld, way: Way, preferred: Preferred, arrays: Sequence[int]
) -> Decision:
    """Return the way to run an operation that moves least, with its results' way to where they go.

    Args:
        world: whose devices are used.
        way: decides one way.
        preferred: how the results should be laid out.
        arrays: the operands that are arrays: each may lead.
    """
    best = way((), None)
    if isinstance(best, MoveDecision):
        return best
    least = _bytes(world, best, preferred)
    for followed, leading in _ways(preferred, arrays if best.wires else ()):
        decision = way(followed, leading)
        cost = _bytes(world, decision, preferred)
        # What is split costs less work than what every device computes.
        if cost < least or (cost == least and followed):
            best, least = decision, cost
    return best


def cheapest_in_place(
    world: RuntimeWorld, way: Way, preferred: Preferred, arrays: Sequence[int]
) -> Decision:
    """Return the way to run an operation that moves least, wherever its results go from there.

    Of what is preferred only that counts for which no operand moves: that a sum is scattered. The
    arguments are those of `cheapest`.
    """
    best, leader = way((), None), None
    if isinstance(best, MoveDecision):
        return best
    for leading in arrays if best.wires and len(arrays) > 1 else ():
        decision = way((), leading)
        if _bytes(world, decision) < _bytes(world, best):
            best, leader = decision, leading
    if not isinstance(best, KernelDecision) or best.combination is None or not any(preferred):
        return best
    found = way(preferred, leader)
    assert isinstance(found, KernelDecision)
    stays = found.operands == best.operands and found.combination is not None
    return found if stays and _bytes(world, found) < _bytes(world, best) else best


def _ways(preferred: Preferred, arrays: Sequence[int]) -> Iterator[tuple[Preferred, int | None]]:
    """Yield the ways to run an operation besides that which follows its operands.

    Args:
        preferred: how its results should be laid out.
        arrays: its operands that are arrays, if something moves: each may lead where several are.

    Yields:
        How results should be laid out, if that is followed, and the operand that leads.
    """
    known = any(p is not None for p in preferred)
    if known:
        yield preferred, None
    if len(arrays) > 1:
        yield from (((), i) for i in arrays)
        if known:
            yield from ((preferred, i) for i in arrays)


def _bytes(world: RuntimeWorld, decision: Decision, preferred: Preferred = ()) -> int:
    """Return the bytes that an operation moves, and its results' way to where they go."""
    wires = list(decision.wires)
    for kind, sharding in zip(decision.outputs, preferred, strict=False):
        if sharding is not None and sharding != kind.sharding:
            target = world.type_of(kind.shape, kind.dtype, sharding, True)
            if not kind.unplaced and target.layout != kind.layout:
                wires += wires_between(world, kind, target)
    return sum(w.total for w in wires)
