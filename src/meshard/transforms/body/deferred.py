"""Elementwise operations on large cells, put off until somebody looks at what they give.

Inside a body a value can only be seen through another operation, so several elementwise operations
in a row may be computed together, piece by piece (`ops/fused/chain`). A value that the program
still holds when a chain runs is stored along with the one that was asked for; one that is gone by
then, like the parts of a formula, never takes memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from meshard.ops.fused.chain import Chain, Work, laid_out, run_chain
from meshard.runtime.world import RuntimeWorld
from meshard.transforms.body.scope import GridKind
from meshard.tuning import DEFERRED_OPERATIONS

Cells = tuple[Any, ...]


@final
class Pending:
    """An operation that has not run yet.

    Args:
        world: whose memory and workers will be used.
        kernel: the operation, which takes ``out=``.
        args: its operands: other pending ones, scalars, or cells in the order of the result's.
        kind: the kind of the result.
        count: the number of its cells.
        numbers: the cells that are to be computed; None for all.
    """

    __slots__ = (
        "_holder",
        "args",
        "cells",
        "count",
        "errors",
        "kernel",
        "kind",
        "numbers",
        "steps",
        "world",
    )

    def __init__(
        self,
        world: RuntimeWorld,
        kernel: Callable[..., Any],
        args: Sequence[Any],
        kind: GridKind,
        count: int,
        numbers: tuple[int, ...] | None,
    ) -> None:
        self.count = count
        self.world = world
        self.kernel = kernel
        self.kind = kind
        self.numbers = numbers
        self.errors = np.geterr()
        self.cells: Cells | None = None
        self._holder: Callable[[], Any] = _nobody
        steps: int = 1 + sum(x.steps for x in args if type(x) is Pending)
        if steps > DEFERRED_OPERATIONS:
            args = [x.run() if type(x) is Pending else x for x in args]
            steps = 1
        self.args = tuple(args)
        self.steps: int = steps

    def held_by(self, value: Any) -> None:
        """Say which value shows the result; while it lives the result may be asked for."""
        self._holder = weakref.ref(value)

    def joins(self, kind: GridKind, numbers: tuple[int, ...] | None) -> bool:
        """Whether an operation with a result of this kind may be computed in one go with it."""
        return (
            self.cells is None
            and self.kind.shape == kind.shape
            and self.kind.extent == kind.extent
            and self.numbers == numbers
            and self.errors == np.geterr()
        )

    def run(self) -> Cells:
        """Return the cells of the result, computing them now if need be."""
        if self.cells is None:
            _compute(self)
        assert self.cells is not None
        return self.cells


def _nobody() -> None:
    return None


def _compute(root: Pending) -> None:
    nodes = _in_order(root)
    wanted = [n for n in nodes if n is root or n._holder() is not None]
    known = _inputs(nodes)
    inputs = list(known.values())
    chain = _chain(root, nodes, wanted, list(known), inputs)
    count = root.count
    numbers = range(count) if root.numbers is None else root.numbers
    sets = [[x[i] if type(x) is tuple else x for x in inputs] for i in numbers]
    with np.errstate(**root.errors):
        found = run_chain(root.world, chain, sets)
    for k, node in enumerate(wanted):
        node.cells = scattered([results[k] for results in found], root.numbers, count)
        node.args, node.steps = (), 0


def scattered(found: Sequence[Any], numbers: Sequence[int] | None, count: int) -> Cells:
    """Return the cells of a grid of which some were computed; None for all of them."""
    if numbers is None:
        return tuple(found)
    cells = [None] * count
    for number, cell in zip(numbers, found, strict=True):
        cells[number] = cell
    return tuple(cells)


def _in_order(root: Pending) -> list[Pending]:
    """Return the pending operations that one needs, each after its operands."""
    order: dict[int, Pending] = {}
    stack: list[tuple[Pending, bool]] = [(root, False)]
    while stack:
        node, ready = stack.pop()
        if id(node) in order:
            continue
        if ready:
            order[id(node)] = node
            continue
        stack.append((node, True))
        stack += [(x, False) for x in node.args if type(x) is Pending and x.cells is None]
    return list(order.values())


def _inputs(nodes: Sequence[Pending]) -> dict[int, Any]:
    """Return what pending operations read from outside: scalars and cells, by identity."""
    known: dict[int, Any] = {}
    for node in nodes:
        for x in node.args:
            if type(x) is not Pending:
                known[id(x)] = x
            elif x.cells is not None:
                known[id(x)] = x.cells
    return known


def _chain(
    root: Pending,
    nodes: Sequence[Pending],
    wanted: Sequence[Pending],
    known: Sequence[int],
    inputs: Sequence[Any],
) -> Chain:
    """Return the pending operations as a chain.

    Args:
        root: the operation that was asked for.
        nodes: all operations, each after its operands.
        wanted: those whose results are kept.
        known: the identities of the inputs, as the operations hold them.
        inputs: the inputs: cells or scalars.
    """
    shape = root.kind.shape
    numbers = {i: k for k, i in enumerate([*known, *map(id, nodes)])}
    work = [
        Work(node.kernel, tuple([numbers[id(x)] for x in node.args]), (shape[1:], node.kind.dtype))
        for node in nodes
    ]
    cut = [_has_rows(x, shape) for x in inputs]
    return laid_out(work, cut, [numbers[id(n)] - len(inputs) for n in wanted], shape[0])


def _has_rows(x: Any, shape: tuple[int, ...]) -> bool:
    """Whether an input, cells or a scalar, has the rows of the result, and not one for all."""
    cell: Any = next((c for c in x if c is not None), None) if type(x) is tuple else x
    return np.ndim(cell) == len(shape) and cell.shape[0] == shape[0]
