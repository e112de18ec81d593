"""Chains: elementwise operations one after another, in pieces that stay in the cache.

In: a list of steps and the blocks that they read, for each of some cells. Out: the blocks that are
wanted. Each step runs on a few rows before the next one does, so that what lies between two steps
never leaves the cache, and has no block of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

from meshard.runtime.types import Block
from meshard.runtime.world import RuntimeWorld

from .registry import Dtype

__all__ = ["Chain", "Step", "run_chain"]

_PIECE = 1 << 18
"""Bytes of one operand that a step works on at a time: a few of them fit a core's own cache."""


@final
@dataclass(frozen=True, slots=True)
class Step:
    """One operation.

    Attributes:
        kernel: called with the operands and ``out=``.
        reads: the places of its operands.
        writes: the place of its result.
    """

    kernel: Callable[..., Any]
    reads: tuple[int, ...]
    writes: int


@final
@dataclass(frozen=True, slots=True)
class Chain:
    """Steps over places: first the inputs, then the temporaries, then the results.

    Attributes:
        steps: what to do, in order.
        inputs: the number of inputs.
        temporaries: their dtypes.
        results: their dtypes.
        shape: the shape of the results and temporaries.
    """

    steps: tuple[Step, ...]
    inputs: int
    temporaries: tuple[Dtype, ...]
    results: tuple[Dtype, ...]
    shape: tuple[int, ...]


def run_chain(
    world: RuntimeWorld, chain: Chain, cells: Sequence[Sequence[Any]]
) -> list[list[Block]]:
    """Run a chain for each cell and return its results.

    Args:
        world: whose pages and workers are used.
        chain: the chain, whose results have at least one dim.
        cells: for each cell its inputs: blocks that broadcast to the shape, or scalars.
    """
    rows, found = chain.shape[0], []
    dtypes = (*chain.temporaries, *chain.results)
    row = math.prod(chain.shape[1:]) * max(d.itemsize for d in dtypes)
    step = max(1, min(rows, _PIECE // max(row, 1)))
    pieces = -(-rows // step)
    # A few tasks for each worker, and each with its own temporaries.
    shares = min(pieces, max(1, -(-4 * world.workers.threads // max(1, len(cells)))))
    tasks = []
    for inputs in cells:
        results = [world.pages.empty(chain.shape, d) for d in chain.results]
        found.append(results)
        for share in range(shares):
            first, last = pieces * share // shares, pieces * (share + 1) // shares
            span = range(first * step, min(last * step, rows), step)
            tasks.append(partial(_run_rows, chain, inputs, results, span, step, rows))
    world.workers.run(tasks)
    return found


def _run_rows(
    chain: Chain,
    inputs: Sequence[Any],
    results: Sequence[Block],
    span: range,
    step: int,
    rows: int,
) -> None:
    rank = len(chain.shape)
    cut = [np.ndim(x) == rank and x.shape[0] == rows for x in inputs]
    temporaries = [np.empty((step, *chain.shape[1:]), d) for d in chain.temporaries]
    program = [(s.kernel, s.reads, s.writes) for s in chain.steps]
    for start in span:
        stop = min(start + step, rows)
        places = [x[start:stop] if c else x for x, c in zip(inputs, cut, strict=True)]
        places += [t[: stop - start] for t in temporaries]
        places += [r[start:stop] for r in results]
        for kernel, reads, writes in program:
            kernel(*[places[i] for i in reads], out=places[writes])
