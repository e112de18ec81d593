"""The base interpreter: runs each operation at once, on blocks.

The second time that an operation meets operands of the same types, what to do is looked up.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any, final

import numpy as np

from meshard.algebra.layout import balanced_cuts
from meshard.errors import (
    ArgumentError,
    ConcretizationError,
    DtypeError,
)
from meshard.ops.engine.decide import Cell, KernelPlan, decide_kernel
from meshard.ops.engine.decide_move import MovePlan, decide_move
from meshard.ops.engine.reduction import combined, combined_across
from meshard.ops.engine.row import REGISTRY, MoveOp, Params
from meshard.runtime import doors as primitive
from meshard.runtime.agree import token_of
from meshard.runtime.arguments import described
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.memo import Memo
from meshard.runtime.moving.execute import run_part
from meshard.runtime.moving.place import as_array
from meshard.runtime.processes.agreement import Agreement, Token
from meshard.runtime.types import ArrayType, Block
from meshard.runtime.watching.ledger import wired
from meshard.runtime.watching.profile import timed
from meshard.runtime.world import RuntimeWorld, here
from meshard.tuning import LARGE

_THREADED = 1 << 13
"""Products of two elements that one cell may need before BLAS thinks of a second thread."""
_WEAK = (bool, int, float, complex)
Runner = Callable[[RuntimeWorld, tuple[Any, ...]], Any]
_RUNNERS: Memo[tuple[Any, ...], Runner] = Memo("runners", 1 << 15)


@final
class Eager:
    """Runs operations at once; the decisions live in the world."""

    axis_sizes: Mapping[str, int] = MappingProxyType({})

    def run(self, name: str, operands: tuple[Any, ...], params: primitive.Params) -> Any:
        """Run one operation and return its result, or a tuple of results."""
        world = here()
        key: list[Any] = [name, params]
        for x in operands:
            kind = type(x)
            if kind is Array:
                key.append(x._type)
            elif kind in _WEAK:
                key.append(kind)
            else:
                return self.run(name, _accepted(name, operands), params)
        found = _RUNNERS.table(world).get(tuple(key))
        if found is None:
            if not any(type(x) is Array for x in operands):
                return self.run(name, (as_array(operands[0]), *operands[1:]), params)
            found = _decide(world, name, key[2:], params)
            token = token_of(world, name, params, tuple(key[2:]))
            if token is not None and world.agreement is not None:
                found = partial(_agreed, world.agreement, token, found)
            _RUNNERS.keep(world, tuple(key), found)
        if world.profiles:
            return _timed(world, name, found, operands)
        return found(world, operands)


EAGER = Eager()


def _timed(world: RuntimeWorld, name: str, run: Runner, operands: tuple[Any, ...]) -> Any:
    """Run an operation while a profile is open."""
    with timed(world, name, "operation") as ran_on:
        result = run(world, operands)
        ran_on([x.sharding for x in (result if isinstance(result, tuple) else (result,))])
    return result


def _agreed(
    agreement: Agreement,
    token: Token,
    runner: Runner,
    world: RuntimeWorld,
    operands: tuple[Any, ...],
) -> Any:
    """Run an operation on arrays that span processes, which all of them must run."""
    agreement.enter(token)
    return runner(world, operands)


def _accepted(name: str, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the operands with everything array-like made an array, or refuse."""
    accepted = []
    for i, x in enumerate(operands):
        if type(x) is Array or type(x) in _WEAK:
            accepted.append(x)
        elif isinstance(x, int):  # a Python number of a kind of its own
            accepted.append(int(x))
        elif isinstance(x, Traced):
            raise ConcretizationError(f"{name}: operand {i}: {x._stray()}")
        elif isinstance(x, (np.ndarray, np.generic)) or hasattr(x, "__array__"):
            accepted.append(as_array(x))
        else:
            raise DtypeError(
                f"{name}: operand {i} must be an array or a number, got {described(x)}. Make an "
                "array with meshard.numpy.asarray(...)."
            )
    return tuple(accepted)


def _decide(
    world: RuntimeWorld, name: str, types: Sequence[ArrayType | type], params: primitive.Params
) -> Runner:
    row = REGISTRY.get(name)
    if row is None:
        raise ArgumentError(f"There is no operation named {name!r}.")
    if isinstance(row, MoveOp):
        arrays = [t for t in types if isinstance(t, ArrayType)]
        return runner(decide_move(world, row, arrays, dict(params)))
    return runner(decide_kernel(world, row, types, dict(params)))


def runner(plan: KernelPlan | MovePlan) -> Runner:
    """Return what runs a decision: from the operands to the result, or a tuple of results."""
    if isinstance(plan, MovePlan):
        return partial(_run_move, plan)
    return _straight(plan) or partial(_run_kernel, plan)


def _run_move(plan: MovePlan, world: RuntimeWorld, operands: tuple[Array, ...]) -> Array:
    blocks = [x._live() for x in operands]
    if world.ledgers:
        wired(world, plan.name, (plan.wire,))
    return Array(plan.output, run_part(world, plan.part, blocks, plan.output.dtype, 0))


def is_straight(plan: KernelPlan) -> bool:
    """Whether the kernel's results on small blocks of one or two operands need no after-care."""
    return not (
        plan.nbytes >= LARGE
        or len(plan.outputs) != 1
        or plan.partial
        or any(plan.moves)
        or plan.cast != (None,)
        or plan.contiguous
        or any(plan.weak)
        or plan.op.style not in ("ufunc", "view")
        or any(c.params for c in plan.cells)
        or not plan.outputs[0].shape
        or not plan.cells
        or len(plan.cells[0].pieces) > 2
    )


def _straight(plan: KernelPlan) -> Runner | None:
    """Return the quick way for small cells that map pieces to pieces one by one; else None."""
    here = [i for i, group in enumerate(plan.groups) if group]
    if (
        not is_straight(plan)
        or [plan.groups[i] for i in here] != [(number,) for number in range(len(plan.cells))]
        or any(p not in (i, -1) for i, c in zip(here, plan.cells, strict=True) for p in c.pieces)
    ):
        return None
    kernel, output = plan.op.kernel, plan.outputs[0]
    scalars = tuple(p == -1 for p in plan.cells[0].pieces)
    if len(here) < len(plan.groups):
        return _straight_here(kernel, output, here, len(plan.groups), scalars)

    def unary(world: RuntimeWorld, operands: tuple[Any, ...]) -> Array:
        x = operands[0]
        return Array(output, tuple(map(kernel, x._blocks or x._live())))

    def binary(world: RuntimeWorld, operands: tuple[Any, ...]) -> Array:
        x, y = operands
        return Array(output, tuple(map(kernel, x._blocks or x._live(), y._blocks or y._live())))

    def scalar_right(world: RuntimeWorld, operands: tuple[Any, ...]) -> Array:
        x, s = operands
        return Array(output, tuple([kernel(b, s) for b in x._blocks or x._live()]))

    def scalar_left(world: RuntimeWorld, operands: tuple[Any, ...]) -> Array:
        s, x = operands
        return Array(output, tuple([kernel(s, b) for b in x._blocks or x._live()]))

    return {
        (False,): unary,
        (False, False): binary,
        (False, True): scalar_right,
        (True, False): scalar_left,
    }[scalars]


def _straight_here(
    kernel: Callable[..., Any],
    output: ArrayType,
    here: Sequence[int],
    count: int,
    scalars: tuple[bool, ...],
) -> Runner:
    """Return the quick way where this process holds some of the pieces."""
    first, last = here[0], here[-1] + 1
    before, after = (None,) * first, (None,) * (count - last)
    run = slice(first, last)
    if last - first > len(here):  # pieces of others lie between them
        plain, kernel = kernel, lambda *given: None if given[0] is None else plain(*given)
        if scalars == (True, False):
            kernel = lambda s, b: None if b is None else plain(s, b)  # noqa: E731

    def unary(world: RuntimeWorld, operands: tuple[Any, ...]) -> Array:
        x = operands[0]
        return Array(output, (*before, *map(kernel, (x._blocks or x._live())[run]), *after))

    def binary(world: RuntimeWorld, operands: tuple[Any, ...]) -> Array:
        x, y = operands
        a, b = (x._blocks or x._live())[run], (y._blocks or y._live())[run]
        return Array(output, (*before, *map(kernel, a, b), *after))

    def scalar_right(world: RuntimeWorld, operands: tuple[Any, ...]) -> Array:
        x, s = operands
        blocks = (x._blocks or x._live())[run]
        return Array(output, (*before, *[kernel(b, s) for b in blocks], *after))

    def scalar_left(world: RuntimeWorld, operands: tuple[Any, ...]) -> Array:
        s, x = operands
        blocks = (x._blocks or x._live())[run]
        return Array(output, (*before, *[kernel(s, b) for b in blocks], *after))

    return {
        (False,): unary,
        (False, False): binary,
        (False, True): scalar_right,
        (True, False): scalar_left,
    }[scalars]


def _run_kernel(plan: KernelPlan, world: RuntimeWorld, operands: tuple[Any, ...]) -> Any:
    if world.ledgers and plan.wires:
        wired(world, plan.op.name, plan.wires)
    given: list[Any] = []
    for x, move, weak in zip(operands, plan.moves, plan.weak, strict=True):
        if type(x) is not Array:
            given.append(x if weak is None else weak.type(x))
        elif move is None:
            given.append(x._live())
        else:
            given.append(run_part(world, move, (x._live(),), x.dtype))
    if plan.partial:
        return _finished(plan, _run_partial(plan, world, given))
    results = run_cells(plan, world, given, plan.op.kernel)
    pieces = [[None if not g else results[g[0]][k] for g in plan.groups] for k in _range(plan)]
    return _finished(plan, pieces)


def _range(plan: KernelPlan) -> range:
    return range(len(plan.outputs))


def _finished(plan: KernelPlan, pieces: Sequence[Sequence[Block | None]]) -> Any:
    arrays = [
        Array(kind, tuple(as_block(b, cast) for b in blocks))
        for kind, blocks, cast in zip(plan.outputs, pieces, plan.cast, strict=True)
    ]
    return arrays[0] if len(arrays) == 1 else tuple(arrays)


def as_block(block: Any, cast: Any) -> Block | None:
    """Return a kernel's result as an array of the right dtype; NumPy gives scalars for 0-d."""
    if block is None:
        return None
    return np.asarray(block) if cast is None else np.asarray(block, cast)


def run_cells(
    plan: KernelPlan, world: RuntimeWorld, given: Sequence[Any], kernel: Callable[..., Any]
) -> list[tuple[Any, ...]]:
    """Run the kernel on every cell: small ones here, large ones on the workers.

    BLAS gives other last bits with another number of threads. So a kernel with threads of its own
    has all of them where one cell is all there is, on the whole mesh, and else one for each cell,
    however many of the cells fall to this process.
    """
    threads: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if plan.op.style == "blas" and plan.volume > _THREADED:
        threads = world.workers.blas_threads(one=not plan.single)
    if plan.nbytes < LARGE:
        results = []
        with threads:
            for cell in plan.cells:
                found = kernel(*_cell_blocks(plan, given, cell), **cell.params)
                results.append(found if type(found) is tuple else (found,))
        return results
    tasks, results = _tasks(plan, world, given, kernel)
    with threads:
        world.workers.run(tasks)
    return results


def _cell_blocks(plan: KernelPlan, given: Sequence[Any], cell: Cell) -> list[Any]:
    pairs = zip(given, cell.pieces, strict=True)
    if plan.contiguous:
        return [x if piece < 0 else np.asarray(x[piece], order="C") for x, piece in pairs]
    return [x if piece < 0 else x[piece] for x, piece in pairs]


def _tasks(
    plan: KernelPlan, world: RuntimeWorld, given: Sequence[Any], kernel: Callable[..., Any]
) -> tuple[list[Callable[[], None]], list[tuple[Any, ...]]]:
    """Return one task per cell, and the list that they put their results into."""
    results: list[tuple[Any, ...]] = [()] * len(plan.cells)
    output = plan.outputs[0]
    pooled = plan.op.style in ("ufunc", "blas") and plan.own_dtype
    piece_of = {number: i for i, g in enumerate(plan.groups) for number in g}

    tasks: list[Callable[[], None]] = []
    parts = -(-world.workers.threads // max(1, len(plan.cells)))
    for number, cell in enumerate(plan.cells):
        blocks, params = _cell_blocks(plan, given, cell), cell.params
        if pooled:
            out = world.pages.empty(output.layout.boxes[piece_of[number]].shape, output.dtype)
            if plan.op.style == "ufunc":
                results[number] = (out,)
                for slab, rows in _slabs(blocks, out, parts):
                    tasks.append(partial(kernel, *slab, out=rows, **params))
                continue
            params = {**params, "out": out}
        tasks.append(partial(_put, kernel, blocks, params, results, number))
    return tasks, results


def _put(
    kernel: Callable[..., Any],
    blocks: Sequence[Any],
    params: Params,
    results: list[tuple[Any, ...]],
    number: int,
) -> None:
    found = kernel(*blocks, **params)
    results[number] = found if isinstance(found, tuple) else (found,)


def _slabs(blocks: Sequence[Any], out: Block, count: int) -> list[tuple[list[Any], Block]]:
    """Cut an elementwise cell into slabs of rows, so that every worker has something to do."""
    if count < 2 or not out.ndim or out.shape[0] < count:
        return [(list(blocks), out)]
    cuts = balanced_cuts(out.shape[0], count)
    return [
        (
            [
                x[a:b] if np.ndim(x) == out.ndim and x.shape[0] == out.shape[0] else x
                for x in blocks
            ],
            out[a:b],
        )
        for a, b in pairwise(cuts)
    ]


def _run_partial(
    plan: KernelPlan, world: RuntimeWorld, given: Sequence[Any]
) -> list[list[Block | None]]:
    """Run the cells and combine each group's partial results in mesh order."""
    law = plan.op.partial
    assert law is not None
    results = run_cells(plan, world, given, law.kernel or plan.op.kernel)
    count = len(plan.groups)
    if plan.reduction is None:
        joined = [combined(world, law.combine, [results[i] for i in g]) for g in plan.groups]
        if plan.scatter is not None:
            joined = _divided(plan, joined)
    else:
        own = {
            plan.order[number] * count + piece: results[number]
            for piece, group in enumerate(plan.groups)
            for number in group
        }
        joined = combined_across(world, plan.reduction, own, count, law.combine)
    return [[j[k] if j else None for j in joined] for k in _range(plan)]


def _divided(plan: KernelPlan, joined: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the parts of combined results that each device keeps: views of them."""
    output, dim = plan.outputs[0], plan.scatter
    assert dim is not None
    counts = [len(c) - 1 for c in output.layout.cuts]
    parts = math.prod(counts) // len(joined)
    coarse = [n // parts if d == dim else n for d, n in enumerate(counts)]
    found = []
    for piece, place in enumerate(np.ndindex(*counts)):
        own = tuple([n // parts if d == dim else n for d, n in enumerate(place)])
        (block,) = joined[int(np.ravel_multi_index(own, coarse))] if coarse else joined[0]
        box = output.layout.box(piece)
        start = box.slices[dim].start - output.layout.cuts[dim][own[dim] * parts]
        size = box.slices[dim].stop - box.slices[dim].start
        index = tuple(
            [slice(start, start + size) if d == dim else slice(None) for d in range(len(counts))]
        )
        found.append((block[index],))
    return found
