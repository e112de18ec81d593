"""Running decisions: from the operands' blocks to the results'.

In: a `Decision`, and for each operand its blocks, or a number. Out: the blocks of each result. What
is put around blocks, an Array or the cells of a `shard_map` body, is the interpreter's affair.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import pairwise, repeat
from typing import Any

import numpy as np

from meshard.algebra.layout import balanced_cuts
from meshard.ops.engine.decision import Cell, KernelDecision
from meshard.ops.engine.reduction import combined, combined_across
from meshard.ops.row import Params
from meshard.runtime.types import ArrayType, Block
from meshard.runtime.world import RuntimeWorld
from meshard.tuning import BLAS_THREADED, STACKED_CELLS, TINY_CELL

Kernel = Callable[..., Any]
Runner = Callable[[Any, Sequence[Any]], Any]
"""From a world, or a body, and operands to the result."""
_ALL = slice(None)
Finish = Callable[[tuple[Block | None, ...]], Any]
"""From the blocks of a result, None for one elsewhere, to the value that an interpreter gives."""


def fast_path(decision: KernelDecision, finish: Finish | None) -> Runner | None:
    """Return the shortest way to run small cells one by one; None where more is to be done.

    It is there where the kernel's results on one or two operands need no after-care, and cells map
    pieces to pieces one by one, in order. Operands are numbers, or values with blocks: Arrays, or
    grids of a body.

    Args:
        decision: the decision.
        finish: makes the result's value from its blocks; best a function of C, such as a
            ``partial`` of a class. None where operands and results are tuples of blocks.
    """
    cells = decision.cells
    if not _needs_no_care(decision) or not cells.in_order:
        return None
    held, count = cells.result, cells.pieces
    if any(column is not None and column != held for column in cells.operands):
        return None
    kernel: Kernel = decision.row.kernel
    number = _number_operand(kernel, decision.operands)
    here = slice(held[0], held[-1] + 1)
    among = count if finish is None else here.stop - here.start
    if among > len(held):  # pieces of others lie between them
        kernel = partial(_where_held, kernel)
    numbers = tuple(column is None for column in cells.operands)
    if finish is None:
        return _CELL_PATHS[numbers](kernel, number)
    way = _PATHS[numbers]
    if here.stop - here.start == count:
        return way(kernel, number, finish)
    before, after = (None,) * here.start, (None,) * (count - here.stop)
    return way(kernel, number, lambda found: finish(before + found + after), here)


Number = Callable[[Any], Any]


def _unary(kernel: Kernel, number: Number, finish: Finish, here: slice = _ALL) -> Runner:
    """Return the shortest way to run a kernel of one operand."""

    def run(where: Any, operands: Sequence[Any]) -> Any:
        x = operands[0]
        a = x._blocks or x._live()
        return finish(tuple(map(kernel, a if here is _ALL else a[here])))

    return run


def _binary(kernel: Kernel, number: Number, finish: Finish, here: slice = _ALL) -> Runner:
    """Return the shortest way to run a kernel of two operands."""

    def run(where: Any, operands: Sequence[Any]) -> Any:
        x, y = operands
        a, b = x._blocks or x._live(), y._blocks or y._live()
        if here is not _ALL:
            a, b = a[here], b[here]
        return finish(tuple(map(kernel, a, b)))

    return run


def _number_right(kernel: Kernel, number: Number, finish: Finish, here: slice = _ALL) -> Runner:
    """Return the shortest way to run a kernel of an operand and a number."""

    def run(where: Any, operands: Sequence[Any]) -> Any:
        x, y = operands
        a = x._blocks or x._live()
        return finish(tuple(map(kernel, a if here is _ALL else a[here], repeat(number(y)))))

    return run


def _number_left(kernel: Kernel, number: Number, finish: Finish, here: slice = _ALL) -> Runner:
    """Return the shortest way to run a kernel of a number and an operand."""

    def run(where: Any, operands: Sequence[Any]) -> Any:
        x, y = operands
        b = y._blocks or y._live()
        return finish(tuple(map(kernel, repeat(number(x)), b if here is _ALL else b[here])))

    return run


_PATHS: dict[tuple[bool, ...], Callable[..., Runner]] = {
    (False,): _unary,
    (False, False): _binary,
    (False, True): _number_right,
    (True, False): _number_left,
}
"""The shortest ways, by which of the operands are numbers."""

_CELL_PATHS: dict[tuple[bool, ...], Callable[[Kernel, Number], Runner]] = {
    (False,): lambda kernel, number: lambda where, given: tuple(map(kernel, given[0])),
    (False, False): lambda kernel, number: lambda where, given: tuple(map(kernel, *given)),
    (False, True): lambda kernel, number: (
        lambda where, given: tuple(map(kernel, given[0], repeat(number(given[1]))))
    ),
    (True, False): lambda kernel, number: (
        lambda where, given: tuple(map(kernel, repeat(number(given[0])), given[1]))
    ),
}
"""The same on tuples of blocks."""


def _number_operand(kernel: Kernel, operands: Sequence[ArrayType | None]) -> Number:
    """Return what makes of a number what a kernel takes for all cells.

    A function of NumPy makes an array of a number in each call, of the dtype that it says.
    """
    arrays = [t for t in operands if t is not None]
    if type(kernel) is not np.ufunc or len(arrays) == len(operands):
        return _as_it_is
    known: dict[type, np.dtype[Any] | None] = {}

    def number(x: Any) -> Any:
        kind = type(x)
        if kind not in known:
            known[kind] = _dtype_of_number(kernel, operands, kind)
        dtype = known[kind]
        if dtype is None:
            return x
        try:
            return np.asarray(x, dtype)
        except OverflowError:  # the function may compare it all the same, or says why not
            return x

    return number


def _as_it_is(x: Any) -> Any:
    return x


def _dtype_of_number(
    kernel: np.ufunc, operands: Sequence[ArrayType | None], kind: type
) -> np.dtype[Any] | None:
    """Return the dtype that a function of NumPy gives a Python number; None if it is not known."""
    if kind not in (int, float):  # True and False are not weak, and complex numbers are rare
        return None
    given = [kind if t is None else t.dtype for t in operands]
    if any(isinstance(d, np.dtype) and d.kind not in "iufc" for d in given):
        return None
    try:
        found = kernel.resolve_dtypes((*given, *[None] * kernel.nout))
    except TypeError:
        return None
    dtype: np.dtype[Any] = found[operands.index(None)]
    return None if dtype.kind == "b" else dtype  # whether a number is true it says of any size


def _where_held(kernel: Kernel, *given: Any) -> Any:
    """Run a kernel, or return None for a piece that another process holds."""
    return None if any(x is None for x in given) else kernel(*given)


def _needs_no_care(decision: KernelDecision) -> bool:
    cells, dtypes = decision.cells, decision.dtypes
    return (
        not cells.large
        and len(decision.outputs) == 1
        and decision.combination is None
        and not any(decision.moves)
        and dtypes.casts == (None,)
        and not dtypes.contiguous
        and not any(dtypes.weak)
        and decision.row.style in ("ufunc", "view")
        and not cells.params
        and cells.own_params is None
        and len(decision.outputs[0].shape) > 0
        and cells.count > 0
        and 1 <= len(cells.operands) <= 2
    )


def may_join_chain(decision: KernelDecision) -> bool:
    """Whether an operation on large cells may be computed together with others, in pieces."""
    dtypes = decision.dtypes
    return (
        decision.cells.large
        and decision.row.style == "ufunc"
        and len(decision.outputs) == 1
        and dtypes.out_usable
        and dtypes.casts == (None,)
        and decision.combination is None
        and not dtypes.contiguous
        and len(decision.outputs[0].shape) > 0
        and decision.row.local is None
        and not decision.agree
    )


def run_kernel(
    decision: KernelDecision, world: RuntimeWorld, given: Sequence[Any]
) -> list[list[Block | None]]:
    """Return the blocks of each result, given the blocks that the kernel reads."""
    cells, casts = decision.cells, decision.dtypes.casts
    if decision.combination is not None:
        found = _joined(decision, world, _partial_results(decision, world, given))
    else:
        results = run_cells(decision, world, given, decision.row.kernel)
        found = [
            [None if not own else results[own[0]][k] for own in cells.of_piece]
            for k in range(len(casts))
        ]
    return [[as_block(b, cast) for b in blocks] for blocks, cast in zip(found, casts, strict=True)]


def as_block(block: Any, cast: Any) -> Block | None:
    """Return a kernel's result as an array of the right dtype; NumPy gives scalars for 0-d."""
    if block is None:
        return None
    return np.asarray(block) if cast is None else np.asarray(block, cast)


def run_cells(
    decision: KernelDecision, world: RuntimeWorld, given: Sequence[Any], kernel: Kernel
) -> list[tuple[Any, ...]]:
    """Run the kernel on every cell: small ones here, large ones on the workers.

    BLAS gives other last bits with another number of threads. So a kernel with threads of its own
    has all of them where one cell is all there is, on the whole mesh, and else one for each cell,
    however many of the cells fall to this process.
    """
    threads: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if decision.row.style == "blas" and decision.cells.volume > BLAS_THREADED:
        threads = world.workers.blas_threads(one=not decision.cells.single)
    if not decision.cells.large:
        stack = _stack_of(decision, given)
        if stack is not None:
            assert decision.row.stacked is not None
            found = kernel(stack, **decision.row.stacked(decision.cells.params))
            return list(zip(found, strict=True))
        results = []
        with threads:
            for cell in decision.cells.runs:
                found = kernel(*_cell_blocks(decision, given, cell), **cell.params)
                results.append(found if type(found) is tuple else (found,))
        return results
    tasks, results = _tasks(decision, world, given, kernel)
    with threads:
        world.workers.run(tasks)
    return results


def _stack_of(decision: KernelDecision, given: Sequence[Any]) -> Block | None:
    """Return the blocks that many tiny cells read, stacked; None where they run one by one.

    A row of a stack is contiguous, and the kernel adds up its elements as those of a block.
    """
    cells = decision.cells
    if decision.row.stacked is None or cells.own_params is not None:
        return None
    if cells.count < STACKED_CELLS or cells.nbytes >= cells.count * TINY_CELL:
        return None
    ((x, pieces),) = zip(given, cells.operands, strict=True)
    if pieces is None:
        return None
    blocks = [x[p] for p in pieces]
    shape, dtype = blocks[0].shape, blocks[0].dtype
    if dtype.kind not in "biufc" or not shape or 0 in shape:
        return None
    return np.array(blocks) if {shape}.issuperset([b.shape for b in blocks]) else None


def _cell_blocks(decision: KernelDecision, given: Sequence[Any], cell: Cell) -> list[Any]:
    pairs = zip(given, cell.pieces, strict=True)
    if decision.dtypes.contiguous:
        return [x if piece < 0 else np.asarray(x[piece], order="C") for x, piece in pairs]
    return [x if piece < 0 else x[piece] for x, piece in pairs]


def _tasks(
    decision: KernelDecision, world: RuntimeWorld, given: Sequence[Any], kernel: Kernel
) -> tuple[list[Callable[[], None]], list[tuple[Any, ...]]]:
    """Return one task per cell, and the list that they put their results into."""
    results: list[tuple[Any, ...]] = [()] * decision.cells.count
    combination = decision.combination
    output = decision.outputs[0] if combination is None else combination.type_
    pooled = decision.row.style in ("ufunc", "blas") and decision.dtypes.out_usable
    if decision.combination is not None and decision.combination.scatter is not None:
        pooled = False  # what a cell gives is larger than what a device keeps of the sum
    shapes = output.layout.shapes
    if len(shapes) == 1:  # as in a body, where all cells are like the one
        shapes *= decision.cells.count
    else:
        shapes = tuple([shapes[piece] for piece in decision.cells.result])

    tasks: list[Callable[[], None]] = []
    parts = -(-world.workers.threads // max(1, decision.cells.count))
    for number, cell in enumerate(decision.cells.runs):
        blocks, params = _cell_blocks(decision, given, cell), cell.params
        if pooled:
            shape = shapes[number]
            if decision.row.style == "ufunc":
                blocks, order = _in_memory_order(blocks, shape)
                out = world.memory.allocate([shape[d] for d in order], output.dtype)
                results[number] = (out.transpose(np.argsort(order)),)
                for slab, rows in _slabs(blocks, out, parts):
                    tasks.append(partial(kernel, *slab, out=rows, **params))
                continue
            params = {**params, "out": world.memory.allocate(shape, output.dtype)}
        tasks.append(partial(_put, kernel, blocks, params, results, number))
    return tasks, results


def _in_memory_order(
    blocks: Sequence[Any], shape: tuple[int, ...]
) -> tuple[list[Any], Sequence[int]]:
    """Return an elementwise cell with its dims in the order that its blocks have in memory.

    Going through transposed blocks in C order would touch a cache line for each element.

    Returns:
        The blocks, and for each of their dims which dim of the result it is.
    """
    orders = {_order_of(x) for x in blocks if np.shape(x) == shape}
    order = orders.pop() if len(orders) == 1 else None
    if order is None or list(order) == sorted(order):
        return list(blocks), range(len(shape))
    wide = [
        x.reshape((1,) * (len(shape) - x.ndim) + x.shape).transpose(order) if np.ndim(x) else x
        for x in blocks
    ]
    return wide, order


def _order_of(x: Block) -> tuple[int, ...]:
    """Return the dims of a block from the greatest stride to the least."""
    if x.flags.c_contiguous:
        return tuple(range(x.ndim))
    return tuple(sorted(range(x.ndim), key=lambda d: -abs(x.strides[d])))


def _put(
    kernel: Kernel,
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


def run_sum(
    decisions: Sequence[KernelDecision], world: RuntimeWorld, given: Sequence[Sequence[Any]]
) -> list[Block | None]:
    """Return the blocks of the sum of several operations that leave partial sums, combined once.

    Args:
        decisions: what the operations do: their cells and results are the same.
        world: whose transport is used.
        given: for each the blocks that its kernel reads.
    """
    parts = [_partial_results(d, world, g) for d, g in zip(decisions, given, strict=True)]
    results = [(reduce(np.add, [x for (x,) in cell]),) for cell in zip(*parts, strict=True)]
    (blocks,) = _joined(decisions[0], world, results)
    return [as_block(b, decisions[0].dtypes.casts[0]) for b in blocks]


def _partial_results(
    decision: KernelDecision, world: RuntimeWorld, given: Sequence[Any]
) -> list[tuple[Any, ...]]:
    """Run the cells of a kernel that leaves partial results."""
    law = decision.row.partial
    assert law is not None
    return run_cells(decision, world, given, law.kernel or decision.row.kernel)


def _joined(
    decision: KernelDecision, world: RuntimeWorld, results: Sequence[tuple[Any, ...]]
) -> list[list[Block | None]]:
    """Combine each group's partial results in mesh order."""
    law, cells, combination = decision.row.partial, decision.cells, decision.combination
    assert law is not None
    assert combination is not None
    if combination.across is None:
        joined = [combined(world, law.combine, [results[i] for i in g]) for g in cells.of_piece]
        if combination.scatter is not None:
            joined = _divided(decision.outputs[0], combination.scatter, joined)
    else:
        count = cells.pieces
        own = {
            cells.contraction_index[number] * count + piece: results[number]
            for piece, group in enumerate(cells.of_piece)
            for number in group
        }
        pieces = decision.outputs[0].layout.piece_count
        joined = combined_across(world, combination.across, own, pieces, law.combine)
    return [[j[k] if j else None for j in joined] for k in range(len(decision.outputs))]


def _divided(
    output: ArrayType, dim: int, joined: Sequence[tuple[Any, ...]]
) -> list[tuple[Any, ...]]:
    """Return the parts of combined results that each device keeps: views of them."""
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
