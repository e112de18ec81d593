"""`Grid`: the value that code inside `shard_map` works on.

Elementwise operations on large cells, put off until somebody looks at what they give.

Inside a body a value can only be seen through another operation, so several elementwise operations
in a row may be computed together, piece by piece (`ops/fused/chain`). A value that the program
still holds when a chain runs is stored along with the one that was asked for; one that is gone by
then, like the parts of a formula, never takes memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, final

import numpy as np

from meshard.algebra.boundary import bounded
from meshard.errors import ConcretizationError
from meshard.ops.engine.later import Weak
from meshard.ops.fused.chain import Chain, Work, laid_out, run_chain
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.doors import bind
from meshard.runtime.memory.memory import exported
from meshard.runtime.types import Block
from meshard.runtime.world import RuntimeWorld
from meshard.transforms.body.scope import GridKind, Running
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


_MOST_CELLS = 16
_MOST_SHOWN = 256


@bounded
@final
class Grid(Traced):
    """A value inside a `shard_map` body: one cell for each device, as far as devices differ.

    Its shape is the local shape. Printing it shows that, the axes over which it varies, and the
    value of each cell that this process holds.
    """

    __slots__ = ("_blocks", "_pending", "body", "kind")
    body: Running
    per_device = True

    def __init__(self, body: Running, kind: GridKind, cells: Cells | Pending) -> None:
        self._type = kind._type
        self.body = body
        self.kind = kind
        if type(cells) is Pending:
            self._blocks: Cells | None = None
            self._pending: Pending | None = cells
        else:
            self._blocks = cells
            self._pending = None

    def _live(self) -> Cells:
        """Return the cells, computed now if they were put off, as an Array does its blocks."""
        if self._pending is not None:
            self._blocks, self._pending = self._pending.run(), None
        assert self._blocks is not None
        return self._blocks

    @property
    def cells(self) -> Cells:
        """The cells, computed now if they were put off."""
        return self._blocks or self._live()

    @property
    def pending(self) -> Pending | None:
        """The operation that has yet to compute the cells; None if they are there."""
        return self._pending

    def standing_for(self, weak: Weak) -> Grid:
        """Return the value as one that stands for a Python number of a type; None for none."""
        kind = self.kind
        if kind.weak is weak:
            return self
        scope = self.body.scope
        found = scope.kind(kind.type, kind.extent, kind.varies, weak)
        return Grid(self.body, found, self._pending or self.cells)

    @property
    def number(self) -> int | float | complex:
        """The Python number that the value stands for; any where no device has it."""
        held = [c._live() if type(c) is Array else (c,) for c in self.cells if c is not None]
        block = next((b for blocks in held for b in blocks if b is not None), None)
        assert self.kind.weak is not None
        found: int | float | complex = self.kind.weak(0 if block is None else block.item())
        return found

    @property
    def aval(self) -> GridKind:  # type: ignore[override]  # not of one array, but of each cell
        """Local shape, dtype, and the axes over which the value varies (``vma``)."""
        return self.kind

    @property
    def vma(self) -> frozenset[str]:
        """The mesh axes over which the value may differ."""
        return self.kind.varies

    def _varying(self, x: Any) -> Any:
        axes = tuple(sorted(self.kind.varies))
        return bind("pcast", x, axes=axes) if axes else x

    def _concrete(self, what: str) -> Block:
        kind = self.kind
        if kind.varies:
            axes = ", ".join(repr(a) for a in kind.type_order(self.body.scope.manual))
            raise ConcretizationError(
                f"{what} needs one value, but this {kind.type.str_short()} inside shard_map varies "
                f"over the mesh axes {axes}: each device has its own. Choose between values with "
                "meshard.numpy.where or lax.cond, loop with lax.while_loop, or make it one value "
                "first with a collective such as lax.psum or lax.pmax over those axes."
            )
        cell = self.cells[0]
        if cell is None:
            raise ConcretizationError(
                f"{what}: this {kind.type.str_short()} has no value here, since none of this "
                "process's devices runs this branch. Use lax.cond or lax.while_loop instead."
            )
        if type(cell) is Array:
            return np.asarray(cell)
        return exported(cell)

    def __repr__(self) -> str:
        kind, scope = self.kind, self.body.scope
        held = [(i, c) for i, c in enumerate(self.cells) if c is not None]
        lines = [kind.str_short()]
        if kind.size > _MOST_SHOWN:
            return lines[0]
        for number, cell in islice(held, _MOST_CELLS):
            text = np.array2string(np.asarray(cell), prefix="  ", threshold=_MOST_SHOWN)
            if kind.extent:
                place = ", ".join(map(str, scope.coordinate(kind.extent, number)))
                lines.append(f"at ({', '.join(kind.extent)}) = ({place}):")
            lines.append(f"  {text}")
        if len(held) > _MOST_CELLS:
            lines.append(f"and {len(held) - _MOST_CELLS} more")
        return "\n".join(lines)

    __str__ = __repr__
