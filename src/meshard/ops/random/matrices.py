"""Vectors with a covariance, and orthogonal matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshard.algebra.arguments import integer_of, shape_of
from meshard.errors import ArgumentError, ShapeError
from meshard.ops.array import elementwise as element
from meshard.ops.array.shape import matrix_transpose
from meshard.ops.engine.arguments import DtypeLike, checked
from meshard.ops.engine.concrete import is_traced
from meshard.ops.linalg.contract import matmul
from meshard.ops.linalg.decompose import cholesky, eigh, qr, svd
from meshard.ops.linalg.norms import diagonal
from meshard.ops.random.basic import float_dtype
from meshard.ops.random.drawing import drawn, refuse_place
from meshard.ops.random.transform import arranged, finished, result_shape
from meshard.runtime.moving.place import as_array


@checked
def multivariate_normal(
    key: Any,
    mean: Any,
    cov: Any,
    shape: Any = None,
    dtype: DtypeLike = None,
    method: str = "cholesky",
    *,
    out_sharding: Any = None,
) -> Any:
    """Draw vectors of normal numbers with a mean and a covariance.

    Args:
        key: one key, typed or plain.
        mean: the means, the last dim.
        cov: the covariances, the last two dims.
        shape: the result's shape without its last dim; by default that of the parameters.
        dtype: a float dtype; the default float by default.
        method: how the root of ``cov`` is found: ``"cholesky"``, ``"eigh"`` or ``"svd"``.
        out_sharding: how the result lies.

    Raises:
        ShapeError: if the shapes do not go together.
        ArgumentError: if ``method`` is another word.
        LinAlgError: if ``cov`` has no such root.

    >>> import meshard.numpy as mnp
    >>> from meshard import random
    >>> random.multivariate_normal(random.key(0), mnp.zeros(2), mnp.eye(2), (3,)).shape
    (3, 2)
    """
    what = "multivariate_normal"
    wanted = float_dtype(dtype, what)
    if method not in ("cholesky", "eigh", "svd"):
        raise ArgumentError(f"{what}: method must be 'cholesky', 'eigh' or 'svd', got {method!r}.")
    center, spread = as_array(mean), as_array(cov)
    if not center.ndim:
        raise ShapeError(f"{what} requires mean.ndim >= 1, got mean.ndim == 0.")
    if spread.ndim < 2:
        raise ShapeError(f"{what} requires cov.ndim >= 2, got cov.ndim == {spread.ndim}.")
    n = center.shape[-1]
    if spread.shape[-2:] != (n, n):
        raise ShapeError(
            f"{what} requires cov.shape == (..., n, n) for n={n}, but got cov.shape == "
            f"{spread.shape}."
        )
    lead = None if shape is None else shape_of(shape, what)
    batch = result_shape(what, lead, {"mean": center[..., 0], "cov": spread[..., 0, 0]})
    if is_traced(key, center, spread):
        refuse_place(what, out_sharding)
    spread = spread.astype(np.float64)
    if method == "cholesky":
        factor = cholesky(spread)
    elif method == "eigh":
        values, vectors = eigh(spread)
        factor = vectors * element.sqrt(values)[..., None, :]
    else:
        left, values, _ = svd(spread)
        factor = left * element.sqrt(values)[..., None, :]
    rank = len(batch) + 1
    where = arranged(what, out_sharding, rank, (*range(rank - 1), None))
    numbers = drawn(what, key, "normal", (*batch, n), np.dtype(np.float64), where)
    found = center + matmul(factor, numbers[..., None])[..., 0]
    return finished(what, found.astype(wanted), out_sharding)


@checked
def orthogonal(
    key: Any,
    n: Any,
    shape: Any = (),
    dtype: DtypeLike = None,
    m: Any = None,
    *,
    out_sharding: Any = None,
) -> Any:
    """Draw orthogonal matrices, or unitary ones, all equally likely.

    Args:
        key: one key, typed or plain.
        n: the rows.
        shape: the result's shape without its last two dims.
        dtype: a float or complex dtype; the default float by default.
        m: the columns, as many as rows by default; the shorter side is orthonormal.
        out_sharding: how the result lies.

    Raises:
        ArgumentError: if ``n`` or ``m`` is no size.

    >>> from meshard import random
    >>> random.orthogonal(random.key(0), 3, (2,)).shape
    (2, 3, 3)
    """
    wanted = float_dtype(dtype, "orthogonal", complex=True)
    n = integer_of(n, "orthogonal", "n", least=0)
    columns = n if m is None else integer_of(m, "orthogonal", "m", least=0)
    lead = shape_of(shape, "orthogonal")
    sides = (int(max(n, columns)), int(min(n, columns)))
    work = np.dtype(np.complex128 if wanted.kind == "c" else np.float64)
    if is_traced(key):
        refuse_place("orthogonal", out_sharding)
    rank = len(lead) + 2
    where = arranged("orthogonal", out_sharding, rank, (*range(rank - 2), None, None))
    numbers = drawn("orthogonal", key, "normal", (*lead, *sides), work, where)
    q, r = qr(numbers)
    corner = diagonal(r, axis1=-2, axis2=-1)
    q = q * (corner / element.absolute(corner))[..., None, :]
    found = q if n >= columns else matrix_transpose(q)
    return finished("orthogonal", found.astype(wanted), out_sharding)
