"""Products of groups of rows with a matrix each, where values say how long groups are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshard.errors import ArgumentError, DtypeError, ShapeError
from meshard.ops.checked import DtypeLike
from meshard.ops.dtypes.laws import as_dtype, cast, common_dtype, operand_dtype, promoted
from meshard.ops.lax.table import named
from meshard.ops.row import Bounds, Dtype, Op, Operand, Params, Partial, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike, Block


def _law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    if params["dtype"] is not None:
        return (params["dtype"],)
    return (promoted([operand_dtype(x) for x in operands[:2]]),)


def _cell(params: Params, bounds: Bounds, shape: tuple[int, ...]) -> Params:
    return {**params, "start": bounds["m"][0]}


def _groups(sizes: Block, start: int, rows: int) -> list[tuple[int, int, int]]:
    """Return for each group that has rows here its number, and these."""
    ends = np.cumsum(np.asarray(sizes, np.int64)) - start
    found, low = [], -start
    for number, high in enumerate(ends.tolist()):
        a, b = max(low, 0), min(high, rows)
        if a < b:
            found.append((number, a, b))
        low = high
    return found


def _wide(x: Block, dtype: Dtype) -> Block:
    return np.ascontiguousarray(x if x.dtype == dtype else cast(x, dtype))


def _product(
    x: Block,
    w: Block,
    sizes: Block,
    *,
    accumulator: Dtype,
    start: int = 0,
    **ignored: Any,
) -> Block:
    """Multiply each group of rows by its matrix; rows of no group give zeros."""
    x, w = _wide(x, accumulator), _wide(w, accumulator)
    found = np.zeros((x.shape[0], w.shape[2]), accumulator)
    for number, a, b in _groups(sizes, start, x.shape[0]):
        np.matmul(x[a:b], w[number], out=found[a:b])
    return found


def _outer(
    x: Block,
    y: Block,
    sizes: Block,
    *,
    accumulator: Dtype,
    start: int = 0,
    **ignored: Any,
) -> Block:
    """Multiply the rows of each group with others, summed over them."""
    x, y = _wide(x, accumulator), _wide(y, accumulator)
    found = np.zeros((sizes.shape[0], x.shape[1], y.shape[1]), accumulator)
    for number, a, b in _groups(sizes, start, x.shape[0]):
        np.matmul(x[a:b].T, y[a:b], out=found[number])
    return found


for _name, _rule, _kernel in (
    ("ragged_dot", "m k, !g k n, !g -> m n", _product),
    ("ragged_outer", "m k, m n, !g -> g k n", _outer),
):
    _parts = Partial(np.add, "wide")
    register(Op(_name, _rule, _kernel, dtypes=_law, partial=_parts, local=_cell, style="blas"))


@named(
    "lax.ragged_dot(mnp.ones((3, 2)), mnp.ones((2, 2, 1)), mnp.asarray([1, 2])).shape",
    "(3, 1)",
    lhs="rows, of which each group follows the one before.",
    rhs="a matrix for each group.",
    group_sizes="how many rows each group has; rows beyond all groups give zeros.",
    group_offset="None; as in JAX, which does not have others, either.",
)
def ragged_dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    precision: Any = None,
    preferred_element_type: DtypeLike = None,
    group_offset: None = None,
) -> Array:
    """Return the products of groups of rows with a matrix each.

    Split rows stay split, and so do the columns of the result; split inner dims give partial sums.

    Raises:
        ShapeError: if the operands do not fit each other.
        DtypeError: if sizes are not integers.
    """
    x, w, sizes = as_array(lhs), as_array(rhs), as_array(group_sizes)
    fits = x.ndim == 2 and w.ndim == 3 and x.shape[1] == w.shape[1]
    if not fits or sizes.shape != w.shape[:1]:
        raise ShapeError(
            f"ragged_dot: takes rows (m, k), matrices (g, k, n) and sizes (g,); the shapes are "
            f"{x.shape}, {w.shape} and {sizes.shape}."
        )
    if sizes.dtype.kind not in "iu":
        raise DtypeError(f"ragged_dot: group_sizes are integers, not {sizes.dtype}.")
    if group_offset is not None:
        raise ArgumentError("ragged_dot: group_offset is not supported; pass None.")
    if preferred_element_type is None:
        common_dtype("ragged_dot", (x.dtype, w.dtype))
    dtype = None if preferred_element_type is None else as_dtype(preferred_element_type)
    return bind("ragged_dot", x, w, sizes, dtype=dtype)
