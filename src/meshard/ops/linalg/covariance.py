"""Covariances and correlations: a product of what is left when the means are taken off."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshard.errors import ShapeError
from meshard.ops.array.join import concatenate
from meshard.ops.array.shape import atleast_2d, matrix_transpose, reshape, squeeze
from meshard.ops.checked import checked
from meshard.ops.dtypes.laws import default_float, is_whole
from meshard.ops.linalg.contract import matmul
from meshard.ops.reductions.moments import mean
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike


@checked
def cov(
    m: ArrayLike,
    y: ArrayLike | None = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
) -> Array:
    """Return the covariances of variables.

    Args:
        m: one variable, or a variable per row.
        y: further variables.
        rowvar: whether rows are the variables, not columns.
        bias: whether to divide by the number of observations instead of one less.
        ddof: what is taken off the divisor, instead of what ``bias`` says.

    A split dim of observations is summed part by part; the result is a small matrix.

    Raises:
        ShapeError: if an array has more than two dims.

    >>> import meshard.numpy as mnp
    >>> mnp.cov(mnp.asarray([[0, 1, 2], [2, 1, 0]])).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    parts = [_variables(v, rowvar) for v in (m, y) if v is not None]
    x = parts[0] if len(parts) == 1 else concatenate(parts, axis=0)
    off = x - mean(x, axis=1, keepdims=True)
    other = matrix_transpose(off)
    count = x.shape[1] - (ddof if ddof is not None else 0 if bias else 1)
    found = matmul(off, bind("conjugate", other) if x.dtype.kind == "c" else other)
    return squeeze(found / (count if count > 0 else np.nan))


def _variables(value: Any, rowvar: bool) -> Any:
    x = as_array(value)
    if x.ndim > 2:
        raise ShapeError(f"cov: takes an array of one or two dims, got shape {x.shape}.")
    floats = x.astype(default_float()) if is_whole(x.dtype) else x
    rows = atleast_2d(floats)
    return rows if rowvar or x.ndim == 1 else matrix_transpose(rows)


@checked
def corrcoef(x: ArrayLike, y: ArrayLike | None = None, rowvar: bool = True) -> Array:
    """Return the correlation coefficients of variables, given as to `cov`.

    >>> import meshard.numpy as mnp
    >>> mnp.corrcoef(mnp.asarray([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])).round(6).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    c = cov(x, y, rowvar)
    if not c.ndim:
        return c / c
    n = c.shape[0]
    scale = bind("sqrt", bind("real", c[np.arange(n), np.arange(n)]))
    found = c / reshape(scale, (n, 1)) / reshape(scale, (1, n))
    if found.dtype.kind == "c":
        return found
    return bind("minimum", bind("maximum", found, -1), 1)
