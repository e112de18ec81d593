"""Elementwise operations on large cells, put off until somebody looks at what they give.

Inside a body nothing can be seen of a value but through another operation, so that a run of
elementwise operations may be computed in one go, piece by piece (`ops/chain`). A value that the
program still holds when a chain runs is stored along with the one that was asked for; one that is
gone by then, as the parts of a formula are, never takes memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from meshard.ops.chain import Chain, Step, run_chain
from meshard.runtime.world import RuntimeWorld

from .scope import GridKind

Cells = tuple[Any, ...]

__all__ = ["Pending"]

_MOST_STEPS = 48


@final
class Pending:
    """An operation that has not run yet.

    Args:
        world: whose pages and workers will be used.
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
        if steps > _MOST_STEPS:
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
    inputs: list[Any] = []
    known: dict[int, int] = {}
    for node in nodes:
        for x in node.args:
            if id(x) not in known and not (type(x) is Pending and x.cells is None):
                known[id(x)] = len(inputs)
                inputs.append(x.cells if type(x) is Pending else x)
    chain = _chain(root, nodes, wanted, known, len(inputs))
    count = root.count
    numbers = range(count) if root.numbers is None else root.numbers
    sets = [[x[i] if type(x) is tuple else x for x in inputs] for i in numbers]
    with np.errstate(**root.errors):
        found = run_chain(root.world, chain, sets)
    for k, node in enumerate(wanted):
        cells: list[Any] = [None] * count
        for number, results in zip(numbers, found, strict=True):
            cells[number] = results[k]
        node.cells = tuple(cells)
        node.args, node.steps = (), 0


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


def _chain(
    root: Pending,
    nodes: Sequence[Pending],
    wanted: Sequence[Pending],
    known: dict[int, int],
    inputs: int,
) -> Chain:
    """Give each operation a place to write to; temporaries are used again when they are read."""
    last = {id(x): k for k, node in enumerate(nodes) for x in node.args if type(x) is Pending}
    results = {id(node): k for k, node in enumerate(wanted)}
    temporaries: list[Any] = []
    free: dict[Any, list[int]] = {}
    where: dict[int, int] = {}
    steps = []
    for k, node in enumerate(nodes):
        reads = [known[id(x)] if id(x) in known else where[id(x)] for x in node.args]
        for x in {id(a): a for a in node.args}.values():
            # An elementwise operation may write over what it reads.
            over = type(x) is Pending and id(x) not in known and last[id(x)] == k
            if over and id(x) not in results:
                free.setdefault(x.kind.dtype, []).append(where[id(x)])
        if id(node) in results:
            place = -1 - results[id(node)]
        else:
            idle = free.get(node.kind.dtype)
            if idle:
                place = idle.pop()
            else:
                place = inputs + len(temporaries)
                temporaries.append(node.kind.dtype)
        where[id(node)] = place
        steps.append((node.kernel, reads, place))
    base = inputs + len(temporaries)

    def final_place(place: int) -> int:
        return place if place >= 0 else base - 1 - place

    return Chain(
        tuple(Step(f, tuple(map(final_place, reads)), final_place(out)) for f, reads, out in steps),
        inputs,
        tuple(temporaries),
        tuple(node.kind.dtype for node in wanted),
        root.kind.shape,
    )
