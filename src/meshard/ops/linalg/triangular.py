"""Solutions of triangular systems, of matrices that are split row by row without moving them.

The rows are gone through in the order in which unknowns become known. The device that has a stretch
of rows solves for its unknowns; all others get these, and take their part off their right sides. So
only the solution moves, once to each device, and it is split like the rows of the matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from meshard.algebra.layout import Cuts, balanced_cuts
from meshard.algebra.propagate import Split
from meshard.algebra.sharding import NamedSharding
from meshard.ops.engine.later import relaid, when_laid_out
from meshard.ops.engine.operand_mesh import named_sharding
from meshard.ops.linalg.tall import accumulated, gathers, taken_whole
from meshard.ops.row import Bounds, Dtype, Op, Operand, Params, register
from meshard.runtime.doors import bind
from meshard.runtime.types import Block
from meshard.runtime.world import here
from meshard.tuning import WHOLE_CHOLESKY


def _right_dtype(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    dtype = operands[1][1]
    assert isinstance(dtype, np.dtype)
    return (dtype,)


def _solved(a: Block, b: Block, *, lower: bool, out: Block | None = None) -> Block:
    """Return the solutions of triangular systems; NaN where a diagonal has a zero."""
    import scipy.linalg

    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    left, right = (np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    found = np.empty(right.shape, b.dtype) if out is None else out
    for place in np.ndindex(*batch):
        if not right[place].size:
            continue
        try:
            found[place] = scipy.linalg.solve_triangular(
                left[place], right[place], lower=lower, check_finite=False
            )
        except np.linalg.LinAlgError:
            found[place] = np.nan
    return found


def _stretch_cell(params: Params, bounds: Bounds, shape: tuple[int, ...]) -> Params:
    start, stop = bounds["m"]
    first, last = (min(max(n, start), stop) - start for n in params["rows"])
    return {"rows": (first, last), "lower": params["lower"]}


def _stretch(
    a: Block, b: Block, *, rows: tuple[int, int], lower: bool, out: Block | None = None
) -> Block:
    """Return right sides in which a stretch of rows has been solved for.

    Args:
        a: the columns of the stretch.
        b: the right sides.
        rows: those of these rows that are in the stretch: all or none of it.
        lower: which triangle the matrix has.
        out: where the result goes.
    """
    found = np.empty_like(b) if out is None else out
    found[...] = b
    first, last = rows
    if first < last:
        found[..., first:last, :] = _solved(
            a[..., first:last, :], b[..., first:last, :], lower=lower
        )
    return found


def _rest_cell(params: Params, bounds: Bounds, shape: tuple[int, ...]) -> Params:
    start, stop = bounds["m"]
    first, last = (min(max(n, start), stop) - start for n in params["rows"])
    return {"rows": (last, stop - start) if params["lower"] else (0, first)}


def _rest(
    a: Block, b: Block, known: Block, *, rows: tuple[int, int], out: Block | None = None
) -> Block:
    """Return right sides without the part that is known, in the rows that are yet to be solved."""
    found = np.empty_like(b) if out is None else out
    found[...] = b
    first, last = rows
    found[..., first:last, :] -= np.matmul(a[..., first:last, :], known)
    return found


def _register(name: str, rule: str, kernel: Any, local: Any = None) -> None:
    register(Op(name, rule, kernel, _right_dtype, None, local, style="blas", sums=True))


_register("solve_triangular", "... !m !n, ... !m k -> ... n k", _solved)
_register("triangular_stretch", "... m !b, ... m k -> ... m k", _stretch, _stretch_cell)
_register("triangular_rest", "... m !b, ... m k, ... !b k -> ... m k", _rest, _rest_cell)


def solve_triangular(a: Any, b: Any, *, lower: bool) -> Any:
    """Return the solutions of triangular systems, laid out like the rows of a matrix that is split.

    Args:
        a: triangular matrices, ``(..., n, n)``; the other triangle is not read.
        b: right sides, ``(..., n, k)``, of the same dtype.
        lower: whether the lower triangle is read, not the upper one.
    """
    return when_laid_out("solve_triangular", split_triangular, a, b, lower=lower)


def split_triangular(a: Any, b: Any, *, lower: bool) -> Any:
    """Return what the row ``solve_triangular`` does, for operands whose layouts are known."""
    small = a.shape[-1] ** 2 * a.dtype.itemsize <= WHOLE_CHOLESKY
    if small or a.shape[:-2] != b.shape[:-2] or not b.size or not gathers("det", a):
        return bind("solve_triangular", a, b, lower=lower)
    place, cuts = a.sharding, _row_cuts(a)
    splits = _splits(a, cuts)
    left = _placed(accumulated(a), place, splits)
    right = _placed(accumulated(b), place, [*splits[:-1], Split((), (0, b.shape[-1]))])
    stretches = [(first, last) for first, last in pairwise(cuts) if first < last]
    for rows in stretches if lower else stretches[::-1]:
        columns = taken_whole(left, columns=[rows])
        right = bind("triangular_stretch", columns, right, rows=rows, lower=lower)
        known = taken_whole(right, rows=[rows])
        right = bind("triangular_rest", columns, right, known, rows=rows, lower=lower)
    return right.astype(b.dtype, copy=False)


def _row_cuts(a: Any) -> Cuts:
    """Return where rows are cut if they are split over all axes that split a matrix."""
    cuts, n = a.aval.layout.cuts, a.shape[-1]
    shards = len(cuts[-1]) - 1
    rows = [r + c for r, s in pairwise(cuts[-2]) for c in balanced_cuts(s - r, shards)[:-1]]
    return (*rows, n)


def _splits(a: Any, rows: Cuts) -> list[Split]:
    """Return how matrices are split that are cut so along their rows, and not along columns."""
    axes = a.sharding.spec.axes(a.ndim)
    leading = [Split(x, c) for x, c in zip(axes, a.aval.layout.cuts, strict=True)][:-2]
    return [*leading, Split((*axes[-2], *axes[-1]), rows), Split((), (0, a.shape[-1]))]


def _placed(x: Any, place: NamedSharding, splits: Sequence[Split]) -> Any:
    target = named_sharding(place.mesh, tuple(splits), place.memory_kind)
    committed = x.aval.committed
    return relaid(x, here().type_of(x.shape, x.dtype, target, committed), "solve_triangular")
