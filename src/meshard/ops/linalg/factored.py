"""Systems of triangular matrices, and of positive definite ones, with SciPy's names.

In: matrices, a factor, right sides. Out: solutions, which stay split where rows are.
"""

from __future__ import annotations

from typing import Any

from meshard.algebra.arguments import flag_of
from meshard.errors import ArgumentError, ShapeError
from meshard.ops.array.create import eye
from meshard.ops.array.elementwise import where
from meshard.ops.array.shape import expand_dims
from meshard.ops.checked import checked
from meshard.ops.dtypes.laws import common_dtype, default_float, is_whole
from meshard.ops.linalg.decompose import cholesky as cholesky_
from meshard.ops.linalg.decompose import matrices
from meshard.ops.linalg.tall import turned
from meshard.ops.linalg.triangular import solve_triangular as solved
from meshard.runtime.array.array import Array
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike

_TRANSPOSED = {0: 0, 1: 1, 2: 2, "N": 0, "T": 1, "C": 2}


def cholesky(
    a: ArrayLike, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> Array:
    """Return the Cholesky factors of Hermitian matrices, by default upper ones.

    Args:
        a: positive definite matrices, ``(..., n, n)``; only one triangle is read. A large matrix
            that is split stays so, as in `meshard.numpy.linalg.cholesky`.
        lower: whether to return the lower factors ``L`` of ``L @ L.mT.conj()``, not the upper ones.
        overwrite_a: accepted as in SciPy; nothing is overwritten.
        check_finite: accepted as in SciPy.

    Raises:
        ShapeError: if the matrices are not square.
        LinAlgError: if a matrix is not positive definite.

    >>> import meshard.numpy as mnp
    >>> from meshard.scipy.linalg import cholesky
    >>> cholesky(mnp.asarray([[4.0, 2.0], [2.0, 2.0]])).tolist()
    [[2.0, 1.0], [0.0, 1.0]]
    """
    return cholesky_(a, upper=not flag_of(lower, "scipy.linalg.cholesky", "lower"))


def cho_factor(
    a: ArrayLike, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> tuple[Array, bool]:
    """Return the Cholesky factor of a matrix in the form that `cho_solve` takes.

    Args:
        a: positive definite matrices, ``(..., n, n)``; only one triangle is read.
        lower: whether the factor is the lower one.
        overwrite_a: accepted as in SciPy; nothing is overwritten.
        check_finite: accepted as in SciPy.

    Returns:
        The factor, whose other triangle is zero, and ``lower``.

    Raises:
        ShapeError: if the matrices are not square.
        LinAlgError: if a matrix is not positive definite.

    >>> import meshard.numpy as mnp
    >>> from meshard.scipy.linalg import cho_factor, cho_solve
    >>> a = mnp.asarray([[4.0, 2.0], [2.0, 2.0]])
    >>> cho_solve(cho_factor(a), mnp.asarray([6.0, 4.0])).tolist()
    [1.0, 1.0]
    """
    return cholesky(a, lower), bool(flag_of(lower, "scipy.linalg.cho_factor", "lower"))


def cho_solve(
    c_and_lower: Any,
    b: ArrayLike,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> Array:
    """Return the solution ``x`` of ``a @ x = b`` from a Cholesky factor of ``a``.

    Args:
        c_and_lower: what `cho_factor` returns.
        b: one vector, ``(n,)``, or matrices, ``(..., n, k)``.
        overwrite_b: accepted as in SciPy; nothing is overwritten.
        check_finite: accepted as in SciPy.

    Raises:
        ShapeError: if ``b`` has other rows.
        ArgumentError: if ``c_and_lower`` is not a pair.

    >>> import meshard.numpy as mnp
    >>> from meshard.scipy.linalg import cho_solve
    >>> cho_solve((mnp.asarray([[2.0, 0.0], [1.0, 1.0]]), True), mnp.asarray([6.0, 4.0])).tolist()
    [1.0, 1.0]
    """
    what = "scipy.linalg.cho_solve"
    if not isinstance(c_and_lower, (tuple, list)) or len(c_and_lower) != 2:
        raise ArgumentError(
            f"{what}: c_and_lower is the pair of a factor and a bool that cho_factor returns."
        )
    factor, lower = c_and_lower
    low = flag_of(lower, what, "lower")
    half = solve_triangular(factor, b, trans=0 if low else 2, lower=low)
    return solve_triangular(factor, half, trans=2 if low else 0, lower=low)


@checked
def solve_triangular(
    a: ArrayLike,
    b: ArrayLike,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    debug: Any = None,
    check_finite: bool = True,
) -> Array:
    """Return the solution ``x`` of ``a @ x = b`` for triangular matrices.

    Rows of a large matrix stay where they are: stretch by stretch the solution is sent on, and
    nothing of the matrix.

    Args:
        a: triangular matrices, ``(..., n, n)``; the other triangle is not read.
        b: one vector, ``(n,)``, or matrices, ``(..., n, k)``.
        trans: 0 or ``"N"`` for ``a``, 1 or ``"T"`` for its transpose, 2 or ``"C"`` for the
            conjugate of that.
        lower: whether the lower triangle is read, not the upper one.
        unit_diagonal: whether the diagonal counts as ones, and is not read.
        overwrite_b: accepted as in SciPy; nothing is overwritten.
        debug: accepted as in JAX.
        check_finite: accepted as in SciPy.

    Returns:
        The solutions, in the shape of ``b``; NaN where a diagonal has a zero.

    Raises:
        ShapeError: if the matrices are not square, or ``b`` has other rows.
        ArgumentError: if ``trans`` is something else.

    >>> import meshard.numpy as mnp
    >>> from meshard.scipy.linalg import solve_triangular
    >>> a = mnp.asarray([[2.0, 0.0], [1.0, 4.0]])
    >>> solve_triangular(a, mnp.asarray([2.0, 5.0]), lower=True).tolist()
    [1.0, 1.0]
    """
    what = "scipy.linalg.solve_triangular"
    kind = _TRANSPOSED.get(trans)
    if kind is None:
        raise ArgumentError(f"{what}: trans must be 0, 1, 2, 'N', 'T' or 'C', got {trans!r}.")
    x, y = matrices(what, a, square=True), as_array(b)
    alone = y.ndim == 1
    if not y.ndim or y.shape[0 if alone else -2] != x.shape[-1]:
        raise ShapeError(
            f"{what}: the right side of shape {y.shape} does not fit matrices of shape {x.shape}; "
            f"it must have {x.shape[-1]} rows."
        )
    y = y.astype(default_float()) if is_whole(y.dtype) else y
    common = common_dtype(what, (x.dtype, y.dtype))
    x, y = x.astype(common, copy=False), y.astype(common, copy=False)
    if unit_diagonal:
        x = where(eye(x.shape[-1], dtype=bool), x.dtype.type(1), x)
    if kind:
        x = x.mT if kind == 1 else turned(x)
    found = solved(x, expand_dims(y, -1) if alone else y, lower=bool(lower) != bool(kind))
    return found[..., 0] if alone else found
