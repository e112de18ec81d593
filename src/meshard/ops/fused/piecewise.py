"""Operations whose cells give one piece each, without communication: what segments are made of.

In: a decided operation. Out: its kernels cell by cell, and whether it can run on a few rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

from meshard.ops.engine.decide import KernelPlan, bound_rule
from meshard.ops.engine.row import Params
from meshard.runtime.types import ArrayType


@final
@dataclass(frozen=True, slots=True)
class Piecewise:
    """A decided operation each of whose cells gives one piece of its one result.

    Attributes:
        plan: the decision.
        inputs: the operands' types.
        pieces: the piece that each cell gives.
        kernels: for each cell the kernel with its parameters.
        cut: for each operand whether its first dim has the rows of the result; None if the
            operation cannot run on a few rows.
        spans: for each cell the rows of its piece.
    """

    plan: KernelPlan
    inputs: tuple[ArrayType | type, ...]
    pieces: tuple[int, ...]
    kernels: tuple[Callable[..., Any], ...]
    cut: tuple[bool, ...] | None
    spans: tuple[tuple[int, int], ...]

    @property
    def output(self) -> ArrayType:
        """The result's type."""
        return self.plan.outputs[0]

    @property
    def fills(self) -> bool:
        """Whether the kernel takes ``out=``."""
        plan = self.plan
        return plan.op.style == "ufunc" and plan.own_dtype and plan.cast == (None,)


def piecewise(
    plan: KernelPlan, types: Sequence[ArrayType | type], params: Params
) -> Piecewise | None:
    """Return how an operation may be part of a segment; None if it may not."""
    if (
        len(plan.outputs) != 1
        or plan.partial
        or any(plan.moves)
        or plan.op.style == "blas"
        or not plan.cells
        or any(len(g) > 1 for g in plan.groups)
    ):
        return None
    piece_of = {g[0]: piece for piece, g in enumerate(plan.groups) if g}
    pieces = tuple([piece_of[i] for i in range(len(plan.cells))])
    boxes = [plan.outputs[0].layout.box(p) for p in pieces]
    spans = tuple([(b.slices[0].start, b.slices[0].stop) if b.slices else (0, 1) for b in boxes])
    shared = all(c.params is plan.cells[0].params for c in plan.cells)
    some = [_with(plan, c.params) for c in plan.cells[: 1 if shared else None]]
    kernels = tuple(some * len(plan.cells) if shared else some)
    return Piecewise(plan, tuple(types), pieces, kernels, _cut(plan, types, params), spans)


def _with(plan: KernelPlan, params: Params) -> Callable[..., Any]:
    kernel = partial(plan.op.kernel, **params) if params else plan.op.kernel
    if plan.op.style == "plain" or plan.contiguous:
        return partial(_only, kernel, plan.contiguous)
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
    plan: KernelPlan, types: Sequence[ArrayType | type], params: Params
) -> tuple[bool, ...] | None:
    """Return which operands have the result's rows; None where rows are not alike.

    A kernel without local parameters does on a few rows what it does on a cell, if its rule lets
    the factor of the rows be split.
    """
    op = plan.op
    if op.local is not None or not plan.outputs[0].shape:
        return None
    rule = bound_rule(op, types, params)
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
