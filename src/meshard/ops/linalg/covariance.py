"""Covariances and correlations: a product of what is left when the means are taken off."""

from __future__ import annotations

from functools import reduce
from operator import mul
from typing import Any

import numpy as np

from meshard.errors import DtypeError, ShapeError
from meshard.ops.array.join import concatenate
from meshard.ops.array.shape import atleast_2d, matrix_transpose, reshape, squeeze
from meshard.ops.checked import DtypeLike, checked
from meshard.ops.dtypes.laws import as_dtype, default_float, is_whole
from meshard.ops.dtypes.promotion import SMALL_FLOATS, common_dtype
from meshard.ops.linalg.contract import matmul
from meshard.ops.reductions.moments import mean
from meshard.ops.reductions.reduce import sum as sum_
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
    fweights: ArrayLike | None = None,
    aweights: ArrayLike | None = None,
    *,
    dtype: DtypeLike = None,
) -> Array:
    """Return the covariances of variables.

    A split dim of observations is summed part by part; the result is a small matrix.

    Args:
        m: one variable, or a variable per row.
        y: further variables.
        rowvar: whether rows are the variables, not columns.
        bias: whether to divide by the number of observations instead of one less.
        ddof: what is taken off the divisor, instead of what ``bias`` says.
        fweights: how often each observation occurs, integers of one dim.
        aweights: how much each observation counts, not negative.
        dtype: the result's dtype; by default the longest float, or complex numbers.

    Raises:
        ShapeError: if an array has more than two dims, or weights do not fit the observations.
        DtypeError: if ``fweights`` are not integers.

    >>> import meshard.numpy as mnp
    >>> mnp.cov(mnp.asarray([[0, 1, 2], [2, 1, 0]])).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    parts = [_variables(v, rowvar, dtype) for v in (m, y) if v is not None]
    x = parts[0] if len(parts) == 1 else concatenate(parts, axis=0)
    less = ddof if ddof is not None else 0 if bias else 1
    weights = _weights(x.shape[1], fweights, aweights)
    if weights is None:
        off, other = (x - mean(x, axis=1, keepdims=True),) * 2
        count = max(x.shape[1] - less, 0)
        share: Any = 1 / count if count else np.inf
    else:
        total = sum_(weights)
        off = x - sum_(x * weights, 1, None, None, True) / total
        other = off * weights
        spread = total if aweights is None else sum_(weights * as_array(aweights)) / total
        divisor = total - less * (1 if aweights is None else spread)
        share = 1 / bind("maximum", divisor, 0)
    other = matrix_transpose(other)
    found = matmul(off, bind("conjugate", other) if x.dtype.kind == "c" else other)
    return squeeze(found * share).astype(x.dtype, copy=False)


def _weights(count: int, fweights: Any, aweights: Any) -> Any:
    """Return how much each observation counts; None: all alike.

    Raises:
        ShapeError: if weights are not one for each observation.
        DtypeError: if frequencies are not integers.
    """
    given = {n: as_array(w) for n, w in (("f", fweights), ("a", aweights)) if w is not None}
    for name, w in given.items():
        if w.shape != (count,):
            raise ShapeError(
                f"cov: {name}weights of shape {w.shape} for {count} observations; give one for "
                "each."
            )
        if name == "f" and not is_whole(w.dtype):
            raise DtypeError(f"cov: fweights must be integers, but their dtype is {w.dtype}.")
    return reduce(mul, given.values()).astype(default_float()) if given else None


def _variables(value: Any, rowvar: bool, dtype: Any) -> Any:
    x = as_array(value)
    if x.ndim > 2:
        raise ShapeError(f"cov: takes an array of one or two dims, got shape {x.shape}.")
    if dtype is not None:
        law = as_dtype(dtype)
    elif x.dtype in SMALL_FLOATS:
        law = x.dtype
    else:
        law = common_dtype(
            "cov", (default_float() if is_whole(x.dtype) else x.dtype, default_float())
        )
    rows = atleast_2d(x.astype(law, copy=False))
    return rows if rowvar or x.ndim == 1 else matrix_transpose(rows)


@checked
def corrcoef(
    x: ArrayLike, y: ArrayLike | None = None, rowvar: bool = True, *, dtype: DtypeLike = None
) -> Array:
    """Return the correlation coefficients of variables, given as to `cov`.

    >>> import meshard.numpy as mnp
    >>> mnp.corrcoef(mnp.asarray([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])).round(6).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    c = cov(x, y, rowvar, dtype=dtype)
    if not c.ndim:
        return c / c
    n = c.shape[0]
    scale = bind("sqrt", bind("real", c[np.arange(n), np.arange(n)]))
    found = c / reshape(scale, (n, 1)) / reshape(scale, (1, n))
    if found.dtype.kind == "c":
        return found
    return bind("minimum", bind("maximum", found, -1), 1)
