"""Chains: operations one after another on a few rows at a time, in pieces that stay in the cache.

In: operations in order, on rows of blocks. Out: the blocks that are wanted. Each step runs on a few
rows before the next one does, so that the values between two steps never leave the cache, and have
no block of their own. A step may be elementwise, or reduce the dims behind the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

from meshard.ops.row import Dtype
from meshard.runtime.memory.memory import Memory
from meshard.runtime.types import Block
from meshard.runtime.world import RuntimeWorld
from meshard.tuning import CACHE_PIECE

Spot = tuple[tuple[int, ...], Dtype]
"""What a temporary or result is: the dims behind the rows, and the dtype."""


@final
@dataclass(frozen=True, slots=True)
class ChainStep:
    """One operation.

    Attributes:
        kernel: called with the operands, and ``out=`` if it takes that.
        reads: the places of its operands.
        writes: the place of its result.
        fills: whether it takes ``out=``.
    """

    kernel: Callable[..., Any]
    reads: tuple[int, ...]
    writes: int
    fills: bool = True


@final
@dataclass(frozen=True, slots=True)
class Chain:
    """Steps over places: first the inputs, then the temporaries, then the results.

    Attributes:
        steps: what to do, in order.
        cut: for each input whether a piece reads only its own rows of it, not the whole.
        temporaries: what they are.
        results: what they are.
        rows: the number of rows.
    """

    steps: tuple[ChainStep, ...]
    cut: tuple[bool, ...]
    temporaries: tuple[Spot, ...]
    results: tuple[Spot, ...]
    rows: int


@final
@dataclass(frozen=True, slots=True)
class Work:
    """One operation that is to be part of a chain.

    Attributes:
        kernel: the operation.
        reads: the values that it reads: first those of the inputs are numbered, then the results of
            the operations, in order.
        spot: what its result is.
        fills: whether the kernel takes ``out=``.
    """

    kernel: Callable[..., Any]
    reads: tuple[int, ...]
    spot: Spot
    fills: bool = True


def laid_out(
    work: Sequence[Work], cut: Sequence[bool], wanted: Collection[int], rows: int
) -> Chain:
    """Give each operation a place to write to; temporaries are used again when they are read.

    Args:
        work: the operations, each after those that it reads from.
        cut: for each input whether it has rows.
        wanted: the numbers of the operations whose results are wanted, in order.
        rows: the number of rows.
    """
    inputs = len(cut)
    last = {read: k for k, w in enumerate(work) for read in w.reads}
    results = {number: k for k, number in enumerate(wanted)}
    temporaries = _Temporaries(inputs)
    where = list(range(inputs))
    steps: list[tuple[Work, list[int], int]] = []
    for k, w in enumerate(work):
        reads = [where[x] for x in w.reads]
        done = [
            (work[x - inputs].spot, where[x])
            for x in dict.fromkeys(w.reads)
            if x >= inputs and last[x] == k and x - inputs not in results
        ]
        # An elementwise operation may write over what it reads, if that is of its own shape. What
        # takes no `out=` may read its operands while its result is written.
        if w.fills:
            temporaries.free(done)
        place = -1 - results[k] if k in results else temporaries.take(w.spot)
        if not w.fills:
            temporaries.free(done)
        where.append(place)
        steps.append((w, reads, place))
    place_of = temporaries.final_place
    return Chain(
        tuple(
            ChainStep(w.kernel, tuple(map(place_of, reads)), place_of(out), w.fills)
            for w, reads, out in steps
        ),
        tuple(cut),
        tuple(temporaries.spots),
        tuple(work[number].spot for number in wanted),
        rows,
    )


@final
class _Temporaries:
    """The temporaries of a chain, as far as it is laid out, and which of them are free."""

    def __init__(self, first: int) -> None:
        self.spots: list[Spot] = []
        self._first = first
        self._free: dict[Spot, list[int]] = {}

    def take(self, spot: Spot) -> int:
        """Return the place of a free temporary, or of a new one."""
        free = self._free.get(spot)
        if free:
            return free.pop()
        self.spots.append(spot)
        return self._first + len(self.spots) - 1

    def free(self, places: Sequence[tuple[Spot, int]]) -> None:
        """Let temporaries be used again."""
        for spot, place in places:
            self._free.setdefault(spot, []).append(place)

    def final_place(self, place: int) -> int:
        """Return a place in the finished chain.

        Results come after the temporaries. While these are not all known, results have the places
        -1, -2 and so on.
        """
        return place if place >= 0 else self._first + len(self.spots) - 1 - place


def run_chain(
    world: RuntimeWorld, chain: Chain, cells: Sequence[Sequence[Any]]
) -> list[list[Block]]:
    """Run a chain for each cell and return its results.

    Args:
        world: whose memory and workers are used.
        chain: the chain.
        cells: for each cell its inputs: blocks, or scalars.
    """
    return run_chains(world, [(chain, inputs) for inputs in cells])


def run_chains(
    world: RuntimeWorld,
    cells: Sequence[tuple[Chain, Sequence[Any]]],
    given: Mapping[tuple[int, int], Block] | None = None,
) -> list[list[Block]]:
    """Run one chain for each cell and return the results.

    Args:
        world: whose memory and workers are used.
        cells: for each cell its chain and inputs.
        given: blocks to write results into, by the numbers of the cell and of the result.
    """
    found, tasks = [], []
    given = given or {}
    for number, (chain, inputs) in enumerate(cells):
        rows = chain.rows
        row = max(
            math.prod(shape) * dtype.itemsize
            for shape, dtype in (*chain.temporaries, *chain.results)
        )
        step = max(1, min(rows, CACHE_PIECE // max(row, 1)))
        pieces = -(-rows // step)
        # A few tasks for each worker, and each with its own temporaries.
        shares = min(pieces, max(1, -(-4 * world.workers.threads // max(1, len(cells)))))
        allocate = world.memory.allocate
        results = [
            given[number, k] if (number, k) in given else allocate((rows, *shape), dtype)
            for k, (shape, dtype) in enumerate(chain.results)
        ]
        found.append(results)
        for share in range(shares):
            first, last = pieces * share // shares, pieces * (share + 1) // shares
            span = range(first * step, min(last * step, rows), step)
            tasks.append(partial(_run_rows, world.memory, chain, inputs, results, span, step))
    world.workers.run(tasks)
    return found


def _run_rows(
    memory: Memory,
    chain: Chain,
    inputs: Sequence[Any],
    results: Sequence[Block],
    span: range,
    step: int,
) -> None:
    rows = chain.rows
    temporaries = [memory.allocate((step, *shape), dtype) for shape, dtype in chain.temporaries]
    program = [(s.kernel, s.reads, s.writes, s.fills) for s in chain.steps]
    for start in span:
        stop = min(start + step, rows)
        places = [x[start:stop] if c else x for x, c in zip(inputs, chain.cut, strict=True)]
        places += [t[: stop - start] for t in temporaries]
        places += [r[start:stop] for r in results]
        for kernel, reads, writes, fills in program:
            if fills:
                kernel(*[places[i] for i in reads], out=places[writes])
            else:
                places[writes][...] = kernel(*[places[i] for i in reads])
