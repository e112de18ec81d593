"""Linear algebra: ``meshard.numpy.linalg``.

Products, norms and traces are computed where the elements are, and what is made of singular values
and vectors leaves the long dim of tall and wide matrices split (see `decompose`). Leading dims stay
split. Integers are taken as the default float, floats shorter than 32 bits are computed in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, SupportsIndex

import numpy as np

from meshard.algebra.arguments import refusal
from meshard.errors import ArgumentError, LinAlgError, ShapeError
from meshard.ops.array.create import eye, zeros, zeros_like
from meshard.ops.array.shape import expand_dims, matrix_transpose
from meshard.ops.checked import DtypeLike, checked
from meshard.ops.dtypes.laws import accumulator, common_dtype, default_float, is_whole, same_dtype
from meshard.ops.engine.later import is_traced
from meshard.ops.linalg import contract
from meshard.ops.linalg import norms as matrix
from meshard.ops.linalg.contract import matmul
from meshard.ops.linalg.decompose import (
    inv,
    matrices,
    slogdet,
    svd,
    svdvals,
)
from meshard.ops.linalg.norms import matrix_norm
from meshard.ops.linalg.products import einsum
from meshard.ops.linalg.tall import turned
from meshard.ops.reductions.reduce import any as any_
from meshard.ops.reductions.reduce import max as max_
from meshard.ops.reductions.reduce import sum as sum_
from meshard.ops.row import Op, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike, Block


def _limit(x: Array, s: Any, rtol: Any) -> Any:
    """Return for each matrix the value up to which its singular values count as zero."""
    eps = float(np.finfo(np.dtype(accumulator(s.dtype))).eps)
    share = max(x.shape[-2:]) * eps if rtol is None else rtol
    if not isinstance(share, (int, float)) and as_array(share).ndim:
        share = expand_dims(as_array(share), -1)
    return max_(s, axis=-1, keepdims=True) * share


@checked
def cross(x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1) -> Array:
    """Return the cross products of vectors with three elements, as ``meshard.numpy.cross``.

    >>> import meshard.numpy as mnp
    >>> mnp.linalg.cross(mnp.asarray([1, 0, 0]), mnp.asarray([0, 1, 0])).tolist()
    [0, 0, 1]
    """
    return matrix.cross(x1, x2, axis=axis)


@checked
def pinv(
    a: ArrayLike,
    rcond: ArrayLike | None = None,
    hermitian: bool = False,
    *,
    rtol: ArrayLike | None = None,
) -> Array:
    """Return the pseudo-inverses of matrices.

    That of a tall matrix with split rows is a wide one with split columns, and the other way round.

    Args:
        a: matrices, ``(..., m, n)``.
        rcond: another name of ``rtol``, as NumPy has it.
        hermitian: whether the matrices are Hermitian, which is quicker; their lower triangles are
            read.
        rtol: the share of the greatest singular value up to which one counts as zero; by default
            the longer side times the dtype's eps.

    Raises:
        ArgumentError: if both ``rcond`` and ``rtol`` are given.
        ShapeError: if matrices are to be Hermitian, and are not square.

    >>> import meshard.numpy as mnp
    >>> mnp.linalg.pinv(mnp.asarray([[2.0, 0.0], [0.0, 0.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.0]]
    """
    if rcond is not None and rtol is not None:
        raise ArgumentError("pinv: rcond and rtol are two names of one share; give one of them.")
    rtol = rcond if rtol is None else rtol
    x = matrices("pinv", a)
    if not x.size:
        return matrix_transpose(x)
    # Its derivative is its own: that of singular vectors is not defined where values are equal.
    given = bind("stop_gradient", x) if is_traced(x) else x
    u, s, vh = svd(given, full_matrices=False, hermitian=hermitian)
    inverse = _inverted(s, s > _limit(x, s, rtol))
    found = matmul(turned(vh) * expand_dims(inverse, -2), turned(u))
    return bind("pseudo_inverse", x, found) if is_traced(x) else found


@checked
def matrix_rank(
    A: ArrayLike,
    tol: ArrayLike | None = None,
    hermitian: bool = False,
    *,
    rtol: ArrayLike | None = None,
) -> Array:
    """Return the ranks of matrices: how many singular values are not zero.

    Args:
        A: matrices, ``(..., m, n)``, or a vector, whose rank is 1 unless it is all zeros; of tall
            ones with split rows only small factors move.
        tol: the value up to which a singular value counts as zero.
        hermitian: whether the matrices are Hermitian, which is quicker; their lower triangles are
            read.
        rtol: the same as a share of the greatest; by default the longer side times the eps.

    Raises:
        ArgumentError: if both ``tol`` and ``rtol`` are given.
        ShapeError: if matrices are to be Hermitian, and are not square.

    >>> import meshard.numpy as mnp
    >>> int(mnp.linalg.matrix_rank(mnp.ones((3, 3))))
    1
    """
    if tol is not None and rtol is not None:
        raise ArgumentError("matrix_rank: both tol and rtol were given; give one of them.")
    if as_array(A).ndim < 2:  # a vector, or a number, has one singular value
        return any_(bind("not_equal", as_array(A), 0)).astype(np.int64)
    x = matrices("matrix_rank", A)
    if not x.size:
        return zeros(x.shape[:-2], np.int64)
    s = svd(x, compute_uv=False, hermitian=True) if hermitian else svdvals(x)
    if tol is None:
        limit = _limit(x, s, rtol)
    else:
        limit = expand_dims(as_array(tol), -1) if as_array(tol).ndim else tol
    return sum_(bind("greater", s, limit), axis=-1)


@checked
def matrix_power(a: ArrayLike, n: SupportsIndex) -> Array:
    """Return the nth power of square matrices; of their inverses if ``n`` is negative.

    Computed by products, so that split dims stay split.

    >>> import meshard.numpy as mnp
    >>> mnp.linalg.matrix_power(mnp.asarray([[1, 1], [0, 1]]), 3).tolist()
    [[1, 3], [0, 1]]
    """
    x = as_array(a)
    matrices("matrix_power", x, square=True)
    try:
        power = index(n)  # of any size, as in NumPy
    except TypeError:
        raise ArgumentError(refusal("matrix_power", "n", "an integer", n)) from None
    if power == 0:
        return bind("add", zeros_like(x), eye(x.shape[-1], dtype=x.dtype))
    if power < 0:
        x, power = inv(x), -power
    found: Any = None
    while True:
        if power & 1:
            found = x if found is None else matmul(found, x)
        power >>= 1
        if not power:
            return found
        x = matmul(x, x)


def _second(x: Block, y: Block) -> Block:
    return y


# The second operand, which is the pseudo-inverse of the first.
register(Op("pseudo_inverse", "... m n, ... n m -> ... n m", _second, dtypes=same_dtype))


def _inverted(s: Any, large: Any) -> Any:
    """Return the inverses of singular values, zero for those that are not large."""
    found = bind("where", large, 1 / bind("where", large, s, np.ones((), s.dtype)), 0.0)
    return found.astype(s.dtype, copy=False)


@checked
def lstsq(
    a: ArrayLike, b: ArrayLike, rcond: float | None = None, *, numpy_resid: bool = True
) -> tuple[Array, Array, Array, Array]:
    """Return the least-squares solution of ``a @ x = b``.

    Where the rows of ``a`` and ``b`` are split alike, they stay where they are: small factors move,
    and sums over all rows.

    Args:
        a: a matrix, ``(m, n)``.
        b: a vector, ``(m,)``, or a matrix, ``(m, k)``.
        rcond: the share of the greatest singular value up to which one counts as zero; by default
            the longer side times the dtype's eps; a negative one stands for eps / 2, as
            in LAPACK.
        numpy_resid: whether there are no residuals where NumPy has none; otherwise there always
            are, as in JAX by default.

    Returns:
        The solution, the squared residuals of its columns (none where the rank is less than ``n``
        or ``m`` is not more; a traced matrix is taken to have full rank), the rank, and the
        singular values of ``a``.

    Raises:
        ShapeError: if the shapes do not fit.

    >>> import meshard.numpy as mnp
    >>> a = mnp.asarray([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    >>> x, residuals, rank, s = mnp.linalg.lstsq(a, mnp.asarray([1.0, 3.0, 5.0]))
    >>> x.round(6).tolist(), int(rank)
    ([1.0, 2.0], 2)
    """
    x, y = matrices("lstsq", a), as_array(b)
    if x.ndim != 2 or y.ndim not in (1, 2) or y.shape[0] != x.shape[0]:
        raise ShapeError(
            f"lstsq: takes a matrix and a right-hand side with the same number of rows, got "
            f"shapes {x.shape} and {y.shape}."
        )
    y = y.astype(default_float()) if is_whole(y.dtype) else y
    common = common_dtype("lstsq", (x.dtype, y.dtype))
    x, y = x.astype(common, copy=False), y.astype(common, copy=False)
    columns = y if y.ndim == 2 else expand_dims(y, 1)
    if rcond is not None and not is_traced(rcond) and rcond < 0:
        rcond = float(np.finfo(np.dtype(accumulator(common))).eps) / 2
    u, s, vh = svd(x, full_matrices=False)
    large = s > _limit(x, s, rcond) if s.size else s > 0
    share = matmul(turned(u), columns) * expand_dims(_inverted(s, large), 1)
    found, rank = matmul(turned(vh), share), sum_(large, dtype=np.int32)
    off = bind("absolute", columns - matmul(x, found))
    residuals = sum_(off * off, axis=0)
    less = x.shape[0] <= x.shape[1] or (not is_traced(rank) and int(rank) != x.shape[1])
    if numpy_resid and less:
        residuals = residuals[:0]
    return found if y.ndim == 2 else found[:, 0], residuals, rank, s


@checked
def cond(x: ArrayLike, p: float | str | None = None) -> Array:
    """Return the condition numbers of matrices, by a norm; by the singular values by default.

    Args:
        x: matrices, ``(..., m, n)``; of tall ones with split rows only small factors move.
        p: None or 2 for the greatest singular value by the least, -2 for the inverse of that; for
            square matrices another norm, see `matrix_norm`.

    Returns:
        The numbers; infinity for singular matrices.

    Raises:
        ShapeError: if a norm needs square matrices.
        LinAlgError: if the matrices have no elements.

    >>> import meshard.numpy as mnp
    >>> float(mnp.linalg.cond(mnp.asarray([[4.0, 0.0], [0.0, 2.0]])))
    2.0
    """
    value = matrices("cond", x)
    if not all(value.shape[-2:]):
        raise LinAlgError(f"cond: matrices of shape {value.shape[-2:]} have no condition number.")
    if p is None or p in (2, -2):
        s = svdvals(value)
        above, below = (s[..., -1], s[..., 0]) if p == -2 else (s[..., 0], s[..., -1])
        zero = bind("equal", below, 0)
        return bind("where", zero, float("inf"), above / bind("where", zero, 1, below))
    singular = bind("equal", slogdet(value)[0], 0)
    own = expand_dims(expand_dims(singular, -1), -1)
    regular = bind("where", own, eye(value.shape[-1], dtype=value.dtype), value)
    norm = matrix_norm(value, ord=p)  # NaN where the matrix has one
    inverse = bind("where", singular, float("inf"), matrix_norm(inv(regular), ord=p))
    return bind("where", bind("equal", norm, 0), float("inf"), norm) * inverse


@checked
def multi_dot(arrays: Sequence[ArrayLike]) -> Array:
    """Return the product of two or more matrices, in the order that costs least.

    The first and the last may be vectors.

    Raises:
        ShapeError: if there are less than two.
    """
    values = [as_array(a) for a in arrays]
    if len(values) < 2:
        raise ShapeError(f"multi_dot: takes two or more matrices, got {len(values)}.")
    letters = "abcdefghijklmnopqrstuvwxyz"
    if len(values) >= len(letters):
        return multi_dot([multi_dot(values[:20]), *values[20:]])
    terms = [letters[i : i + 2] for i in range(len(values))]
    if values[0].ndim == 1:
        terms[0] = terms[0][1]
    if values[-1].ndim == 1:
        terms[-1] = terms[-1][0]
    ends = (terms[0][0] if values[0].ndim > 1 else "") + (
        terms[-1][1] if values[-1].ndim > 1 else ""
    )
    return einsum(f"{','.join(terms)}->{ends}", *values)


def outer(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Return all products of elements of two arrays of one dim, as a matrix.

    Raises:
        ShapeError: if an array has not one dim.
    """
    x, y = as_array(x1), as_array(x2)
    if x.ndim != 1 or y.ndim != 1:
        raise ShapeError(f"outer: takes arrays of one dim, got shapes {x.shape} and {y.shape}.")
    return contract.outer(x, y)


@checked
def diagonal(x: ArrayLike, /, *, offset: int = 0) -> Array:
    """Return the diagonals of matrices, the last two dims; each device gives what it holds."""
    return matrix.diagonal(x, offset, -2, -1)


@checked
def trace(x: ArrayLike, /, *, offset: int = 0, dtype: DtypeLike = None) -> Array:
    """Return the sums of the diagonals of matrices, the last two dims."""
    return matrix.trace(x, offset, -2, -1, dtype)
