"""Operations whose cells give one piece each, without communication: what segments are made of.

In: a decided operation. Out: its kernels cell by cell, and whether it can run on a few rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

from meshard.ops.engine.decide import Type, lasting_rule
from meshard.ops.engine.decision import KernelDecision
from meshard.ops.row import Params
from meshard.runtime.types import ArrayType


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
