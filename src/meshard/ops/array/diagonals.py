"""Triangles and diagonals of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshard.errors import ShapeError
from meshard.ops.array.create import tri
from meshard.ops.checked import checked
from meshard.ops.dtypes.laws import same_dtype
from meshard.ops.engine.later import concrete, is_traced
from meshard.ops.row import Bounds, Op, Operand, Params, Partial, RuleText, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike, Block

_ROWS = 128
"""Rows of a triangle that are copied together, up to where the diagonal begins."""


def _corner(params: Params, bounds: Bounds, shape: tuple[int, ...]) -> Params:
    return {**params, "corner": (bounds["i"][0], bounds["j"][0])}


def _kept(x: Block, *, k: int, lower: bool, corner: tuple[int, int] = (0, 0)) -> Block:
    """Return the part of a block below or above a diagonal; ``corner`` is where it begins."""
    rows, columns = x.shape[-2:]
    found = np.zeros(x.shape, x.dtype)
    for row in range(0, rows, _ROWS):
        last = min(row + _ROWS, rows)
        # The first row is under the diagonal to one column, the last one to another; what is
        # before and behind these needs no look at single elements.
        ends = [min(max(r + corner[0] + k + 1 - corner[1], 0), columns) for r in (row, last - 1)]
        before = (..., slice(row, last), slice(0, ends[0]) if lower else slice(ends[1], columns))
        found[before] = x[before]
        if ends[0] < ends[1]:
            at = np.arange(*ends) + corner[1] - (np.arange(row, last) + corner[0])[:, None] <= k
            band = (..., slice(row, last), slice(*ends))
            found[band] = np.where(at if lower else ~at, x[band], found[band])
    return found


def _diagonal_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    return "i -> i j", {"j": operands[0][0][0]}


def _on_diagonal(x: Block, *, k: int, columns: int, corner: tuple[int, int] = (0, 0)) -> Block:
    """Return rows of a matrix that has the elements of ``x`` at columns ``k`` further right."""
    found = np.zeros((len(x), columns), x.dtype)
    at = np.arange(len(x)) + corner[0] + k - corner[1]
    inside = np.flatnonzero((at >= 0) & (at < columns))
    found[inside, at[inside]] = x[inside]
    return found


def _diagonal_cell(params: Params, bounds: Bounds, shape: tuple[int, ...]) -> Params:
    return {**_corner(params, bounds, shape), "columns": shape[1]}


def _joined(parts: Sequence[tuple[Block, ...]]) -> tuple[Block, ...]:
    """Join results that do not overlap, bit by bit, so that every value stays what it is."""
    total = np.array(parts[0][0])
    bits = total.reshape(-1).view(np.uint8)
    for (part,) in parts[1:]:
        bits |= np.ascontiguousarray(part).reshape(-1).view(np.uint8)
    return (bits.view(total.dtype).reshape(total.shape),)


register(Op("triangle", "... i j -> ... i j", _kept, dtypes=same_dtype, local=_corner))


register(Op("on_diagonal", _diagonal_rule, _on_diagonal, dtypes=same_dtype, local=_diagonal_cell))


def _diagonal_out(operands: Sequence[Operand], params: Params) -> RuleText:
    rows, columns = params["dims"]
    names = [f"x{d}" for d in range(len(operands[0][0]))]
    kept = [n for d, n in enumerate(names) if d not in (rows, columns)]
    return f"{' '.join(names)} -> {' '.join([*kept, 'd'])}", {"d": params["size"]}


def _diagonal_start(params: Params, bounds: Bounds, shape: tuple[int, ...]) -> Params:
    return {**params, "corner": tuple([bounds[f"x{d}"][0] for d in params["dims"]])}


def _diagonal(
    x: Block, *, dims: tuple[int, int], k: int, size: int, corner: tuple[int, int] = (0, 0)
) -> Block:
    """Return the diagonal of a block, as a last dim, at its place in the whole one."""
    rows, columns = max(-k, 0) - corner[0], max(k, 0) - corner[1]  # where that begins
    first = max(-rows, -columns, 0)
    last = min(x.shape[dims[0]] - rows, x.shape[dims[1]] - columns, size)
    kept = [d for d in range(x.ndim) if d not in dims]
    matrices = x.transpose([*kept, *dims])
    found = np.zeros((*matrices.shape[:-2], size), x.dtype)
    if first < last:
        part = matrices[..., first + rows : last + rows, first + columns : last + columns]
        found[..., first:last] = part.diagonal(0, -2, -1)
    return found


register(
    Op(
        "diagonal",
        _diagonal_out,
        _diagonal,
        dtypes=same_dtype,
        partial=Partial(_joined, "selects"),
        local=_diagonal_start,
    )
)


def diagonal_of(x: Any, k: int, rows: int, columns: int) -> Any:
    """Return a diagonal of two dims of an array as a last dim; each device gives what it holds."""
    k = int(k)
    size = max(0, min(x.shape[rows] + min(k, 0), x.shape[columns] - max(k, 0)))
    return bind("diagonal", x, dims=(rows, columns), k=k, size=size)


def _triangle(m: Any, k: int, lower: bool) -> Any:
    x = as_array(m)
    if x.ndim < 2:
        raise ShapeError(f"{'tril' if lower else 'triu'}: needs at least two dims, got {x.shape}.")
    if is_traced(k):
        below = tri(x.shape[-2], x.shape[-1], k if lower else k - 1, bool)
        return bind("where", below if lower else bind("logical_not", below), x, x.dtype.type(0))
    return bind("triangle", x, k=int(k) if lower else int(k) - 1, lower=lower)


@checked
def tril(m: ArrayLike, k: int = 0) -> Array:
    """Return the array with zeros above a diagonal of its last two dims.

    Args:
        m: the array; a matrix, or a stack of them.
        k: the diagonal; 0 is the main one, positive ones are above it.

    Raises:
        ShapeError: if there are fewer than two dims.

    >>> import meshard.numpy as mnp
    >>> mnp.tril(mnp.ones((2, 2), dtype=int)).tolist()
    [[1, 0], [1, 1]]
    """
    return _triangle(m, k, lower=True)


@checked
def triu(m: ArrayLike, k: int = 0) -> Array:
    """Return the array with zeros below a diagonal of its last two dims; takes what `tril` takes.

    >>> import meshard.numpy as mnp
    >>> mnp.triu(mnp.ones((2, 2), dtype=int)).tolist()
    [[1, 1], [0, 1]]
    """
    return _triangle(m, k, lower=False)


@checked
def diag(v: ArrayLike, k: int = 0) -> Array:
    """Return a matrix with a given diagonal, or the diagonal of a given matrix.

    Args:
        v: an array of one dim, or a matrix.
        k: the diagonal; 0 is the main one, positive ones are above it.

    Raises:
        ShapeError: if ``v`` has neither one nor two dims.

    >>> import meshard.numpy as mnp
    >>> mnp.diag(mnp.asarray([1, 2])).tolist()
    [[1, 0], [0, 2]]
    """
    x = as_array(v)
    if is_traced(k):
        k = int(concrete(k, "diag", "It decides the result's size. Give a Python integer."))
    if x.ndim == 1:
        return bind(
            "on_diagonal", bind("pad_zeros", x, dims=((0, (max(-k, 0), max(k, 0))),)), k=int(k)
        )
    if x.ndim != 2:
        raise ShapeError(f"diag: takes one or two dims, got shape {x.shape}.")
    return diagonal_of(x, k, 0, 1)
