"""Cholesky factors of one large matrix that is split, block by block, where its blocks are.

The matrix is cut into panels of columns at the cuts of both its dims. Each panel in turn is
factored and passed to those who need it to take its product off what is to the right of it
(right-looking). So a device receives about half the matrix over the whole run, in pieces of one
panel, and never holds more than its own part and a panel; the factor is split like the matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from itertools import pairwise
from typing import Any

import numpy as np

from meshard.ops.linalg.tall import accumulated, own_dtype, rounded, taken_whole, turned
from meshard.ops.linalg.whole import gathers, made_whole
from meshard.ops.row import Bounds, Op, Operand, Params, RuleText, register
from meshard.runtime.doors import bind
from meshard.runtime.types import Block
from meshard.tuning import WHOLE_CHOLESKY


def _panel_cell(params: Params, bounds: Bounds, shape: tuple[int, ...]) -> Params:
    start, stop = bounds["m"]
    first, last = (min(max(n, start), stop) - start for n in params["rows"])
    return {"rows": (first, last), "at": start + first - params["rows"][0]}


def _panel(
    x: Block, low: Block, *, rows: tuple[int, int], at: int, out: Block | None = None
) -> Block:
    """Return some rows of a panel's part of the factor.

    Args:
        x: the panel's columns.
        low: the factor of the panel's diagonal block.
        rows: those of these rows that are in the diagonal block; there is nothing above them.
        at: the number of the first in the block.
        out: where the result goes.
    """
    import scipy.linalg

    first, last = rows
    found = np.empty(x.shape, x.dtype) if out is None else out
    found[..., :first, :] = 0
    found[..., first:last, :] = low[..., at : at + last - first, :]
    for place in np.ndindex(*x.shape[:-2]):
        below = x[place][last:]
        if below.size:
            solved = scipy.linalg.solve_triangular(
                low[place], np.conj(below.T), lower=True, check_finite=False
            )
            found[place][last:] = np.conj(solved.T)
    return found


def _update_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    rows = "!r" if params["whole"][0] else "m"
    columns = "!c" if params["whole"][1] else "n"
    return f"... m n, ... {rows} !b, ... {columns} !b -> ... m n"


def _update_cell(params: Params, bounds: Bounds, shape: tuple[int, ...]) -> Params:
    (first, last), (rows, columns) = params["panel"], params["whole"]
    origins = first if rows else bounds["m"][0], last if columns else bounds["n"][0]
    return {"panel": (first, last), "cell": (*bounds["m"], *bounds["n"], *origins)}


def _update(
    x: Block,
    left: Block,
    right: Block,
    *,
    panel: tuple[int, int],
    cell: tuple[int, ...],
    out: Block | None = None,
) -> Block:
    """Return a cell with the panel in its place, and its product taken off what is right of it.

    Above the diagonal nothing is computed, since nobody reads it.

    Args:
        x: the cell.
        left: rows of the panel, to multiply from the left.
        right: rows of the panel that have the numbers of columns of the cell.
        panel: the panel's first column, and the one after its last.
        cell: the same of the cell's rows, and of its columns, and then the number of the first row
            of ``left``, and of ``right``.
        out: where the result goes.
    """
    (first, last), (top, bottom, start, stop, upper, lower) = panel, cell
    found = np.empty_like(x) if out is None else out
    found[...] = x
    a, b, row = max(first, start), min(last, stop), max(first, top)
    if a < b:
        found[..., a - start : b - start] = 0
        if row < bottom:
            own = left[..., row - upper : bottom - upper, a - first : b - first]
            found[..., row - top :, a - start : b - start] = own
    row, a, b = max(last, top), max(last, start), min(stop, bottom)
    if row < bottom and a < b:
        own = left[..., row - upper : bottom - upper, :]
        other = right[..., a - lower : b - lower, :]
        product = np.matmul(own, np.conj(np.swapaxes(other, -1, -2)))
        found[..., row - top :, a - start : b - start] -= product
    return found


register(
    Op(
        "cholesky_panel",
        "... m !b, ... !c !e -> ... m b",
        _panel,
        dtypes=own_dtype,
        local=_panel_cell,
        style="blas",
        sums=True,
    )
)
register(
    Op(
        "cholesky_update",
        _update_rule,
        _update,
        dtypes=own_dtype,
        local=_update_cell,
        style="blas",
        sums=True,
    )
)


def split_cholesky(x: Any, *, upper: bool) -> list[Any]:
    """Return what the row ``cholesky`` does; a large matrix that is split stays so."""
    n = x.shape[-1]
    small = n * n * x.dtype.itemsize <= WHOLE_CHOLESKY
    if small or not gathers("cholesky", x, upper=upper):
        return made_whole("cholesky", x, upper=upper)
    given = accumulated(x)
    found, failed = _blocked(turned(given) if upper else given)
    return [*rounded(x, turned(found) if upper else found), failed]


def _blocked(x: Any) -> list[Any]:
    """Return lower factors, and which matrices have none."""
    cuts = x.aval.layout.cuts
    whole = len(cuts[-2]) == 2, len(cuts[-1]) == 2
    failures = []
    for first, last in pairwise(sorted({*cuts[-2], *cuts[-1]})):
        block, rest = [(first, last)], [(first, x.shape[-1])]
        if whole[0]:  # every device gets the panel, and factors it
            columns = taken_whole(x, rows=rest, columns=block)
            low, failed = bind("cholesky", columns[..., : last - first, :], upper=False)
            left = bind("cholesky_panel", columns, low, rows=(0, last - first))
            right = left[..., last - first :, :]
        else:
            diagonal = taken_whole(x, rows=block, columns=block)
            low, failed = bind("cholesky", diagonal, upper=False)
            left = bind("cholesky_panel", taken_whole(x, columns=block), low, rows=(first, last))
            right = taken_whole(left, rows=[(last, x.shape[-1])]) if whole[1] else left
        apart = whole[0], any(whole)
        x = bind("cholesky_update", x, left, right, panel=(first, last), whole=apart)
        failures.append(failed)
    return [x, reduce(partial(bind, "logical_or"), failures)]
