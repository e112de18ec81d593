"""`gmres`: a linear system solved in the spaces of its operator's powers.

In: a linear operator and a right-hand side, trees of arrays laid out in any way. Out: the solution.
The basis of a space has a dim in front of those of a vector, which is never split, so that all
products with the basis pass its few coefficients between the devices, and nothing else.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np

from meshard.algebra.arguments import choice_of, integer_of
from meshard.ops.array.create import arange, asarray, eye, zeros
from meshard.ops.array.elementwise import isnan, maximum, minimum, sqrt, where
from meshard.ops.linalg.contract import contract
from meshard.ops.linalg.decompose import qr, solve
from meshard.ops.made.pads import pad
from meshard.runtime.trees import trees
from meshard.transforms.custom.solving import custom_linear_solve
from meshard.transforms.flow.control_flow import while_loop
from meshard.transforms.solvers.krylov import Limits, begun, limits_of, starting
from meshard.transforms.solvers.vectors import (
    Operator,
    Vector,
    add,
    combined,
    dtype,
    letters,
    norm,
    subtract,
)

_STEP = "step"
"""The factor of a basis along which its vectors are."""


def _normalized(x: Vector, least: Any = None) -> tuple[Vector, Any]:
    """Return a vector of length one, and the length; zeros and zero if that is too small.

    Args:
        x: the vector.
        least: what is too small; by default the precision of the dtype.
    """
    length = norm(x)
    if least is None:
        least = np.finfo(length.dtype).eps
    long = length > least
    divisor = where(long, length, 1)
    unit = combined(lambda leaf: where(long, leaf / divisor.astype(leaf.dtype), 0), x)
    return unit, where(long, length, 0)


# a basis: vectors in a row


def _basis(first: Vector, count: int) -> Vector:
    """Return a basis of which the first vector is given, and as many that are zero."""
    return combined(lambda x: pad(x[None], ((0, count), *[(0, 0)] * x.ndim)), first)


def _vector(basis: Vector, k: Any) -> Vector:
    return combined(lambda own: own[k], basis)


def _coefficients(basis: Vector, x: Vector) -> Any:
    """Return the scalar products of a vector with all of a basis."""

    def leaf(own: Any, part: Any) -> Any:
        left = own.conj() if own.dtype.kind == "c" else own
        dims = letters(part)
        return contract("gmres", left, part, f"{_STEP} {dims}, {dims} -> {_STEP}")

    return reduce(operator.add, trees.leaves(combined(leaf, basis, x)))


def _sum(basis: Vector, coefficients: Any) -> Vector:
    """Return the vectors of a basis, each times a coefficient, added up."""

    def leaf(own: Any) -> Any:
        dims = letters(own[0])
        rule = f"{_STEP}, {_STEP} {dims} -> {dims}"
        return contract("gmres", coefficients.astype(own.dtype), own, rule)

    return combined(leaf, basis)


def _arnoldi(k: Any, A: Operator, M: Operator, basis: Vector, H: Any) -> tuple[Vector, Any, Any]:
    """Add a vector to a basis: the image of the last, orthogonal to all.

    It is made orthogonal twice, which is enough (Giraud, Langou, Rozloznik, van den Eshof, 2005).

    Returns:
        The basis, the coefficients of the image in row ``k``, and whether nothing was left of it.
    """
    x = M(A(_vector(basis, k)))
    size = norm(x)
    own = zeros(H.shape[1], H.dtype)
    for _ in range(2):
        part = _coefficients(basis, x)
        x, own = subtract(x, _sum(basis, part)), own + part
    x, rest = _normalized(x, np.finfo(size.dtype).eps * size)
    basis = combined(lambda all_, new: all_.at[k + 1].set(new), basis, x)
    own = own.at[k + 1].set(rest.astype(own.dtype))
    return basis, H.at[k, :].set(own), rest == 0


# one space


def _batched(
    A: Operator, M: Operator, unit: Vector, lengths: tuple[Any, Any], *, restart: int
) -> Vector:
    """Return the step in the whole space that leaves the least residual."""
    length, _ = lengths
    kind = dtype(unit)

    def goes_on(state: Any) -> Any:
        return (state[0] < restart) & ~state[3]

    def turn(state: Any) -> Any:
        k, basis, H, _ = state
        return k + 1, *_arnoldi(k, A, M, basis, H)

    # The diagonal of ones leaves what follows a space that ends early solvable.
    start = 0, _basis(unit, restart), eye(restart, restart + 1, dtype=kind), asarray(False)
    _, basis, H, _ = while_loop(goes_on, turn, start)
    right = zeros(restart + 1, kind).at[0].set(length.astype(kind))
    Q, R = qr(H.T)
    return _sum(_without_last(basis), solve(R, Q.conj().T @ right))


def _without_last(basis: Vector) -> Vector:
    return combined(lambda own: own[:-1], basis)


def _turned(x: Any, k: Any, cosine: Any, sine: Any) -> Any:
    """Return an array of which two neighbouring rows are turned."""
    a, b = x[k], x[k + 1]
    x = x.at[k].set(cosine.conj() * a - sine.conj() * b)
    return x.at[k + 1].set(sine * a + cosine * b)


def _rotation(a: Any, b: Any) -> tuple[Any, Any]:
    """Return the cosine and sine of the turn that makes the second of two numbers zero."""
    less = abs(a) < abs(b)
    nothing = b == 0
    divisor = where(nothing, 1, where(less, b, a))
    t = -where(less, a, b) / divisor
    r = (1 / sqrt(1 + abs(t) ** 2)).astype(t.dtype)
    cosine = where(nothing, 1, where(less, r * t, r))
    return cosine.astype(a.dtype), where(nothing, 0, where(less, r, r * t)).astype(a.dtype)


def _incremental(
    A: Operator, M: Operator, unit: Vector, lengths: tuple[Any, Any], *, restart: int
) -> Vector:
    """Return the step in a space that is large enough for a residual, or whole."""
    length, least = lengths
    kind = dtype(unit)

    def goes_on(state: Any) -> Any:
        return (state[0] < restart) & (state[1] > least)

    def turn(state: Any) -> Any:
        k, _, basis, R, turns = state
        basis, H, _ = _arnoldi(k, A, M, basis, R)
        row = turns @ H[k]
        cosine, sine = _rotation(row[k], row[k + 1])
        turns = _turned(turns, k, cosine, sine)
        R = R.at[k, :].set(_turned(row, k, cosine, sine))
        return k + 1, abs(turns[k + 1, 0]) * length, basis, R, turns

    # All turns so far, as one matrix, turn each new row at once.
    R, turns = eye(restart, restart + 1, dtype=kind), eye(restart + 1, dtype=kind)
    start = 0, length, _basis(unit, restart), R, turns
    k, _, basis, R, turns = while_loop(goes_on, turn, start)
    right = where(arange(restart) < k, turns[:-1, 0] * length.astype(kind), 0)
    return _sum(_without_last(basis), solve(R[:, :-1].T, right))


_METHODS: dict[str, Callable[..., Vector]] = {"batched": _batched, "incremental": _incremental}


def _gmres(
    A: Operator,
    b: Vector,
    *,
    x0: Vector | None,
    M: Operator,
    within: Callable[..., Vector],
    limits: Limits,
) -> Vector:
    """Solve by steps in one space after the other, until the residual is small."""
    tol, atol, most = limits
    size = norm(b)
    least = maximum(tol * size, atol)
    enough = norm(M(b)) * minimum(1.0, least / where(size == 0, 1, size))

    def goes_on(state: Any) -> Any:
        return (state[1] < most) & (state[3] > least)

    def turn(state: Any) -> Any:
        x, k, unit, length = state
        x = add(x, within(A, M, unit, (length, enough)))
        return x, k + 1, *_normalized(M(subtract(b, A(x))))

    start, r = begun(A, b, x0)
    return while_loop(goes_on, turn, (start, 0, *_normalized(M(r))))[0]


def gmres(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    tol: float = 1e-5,
    atol: float = 0.0,
    restart: int = 20,
    maxiter: int | None = None,
    M: Any = None,
    solve_method: str = "batched",
) -> tuple[Any, Any]:
    """Return the solution of a system, by generalized minimal residuals.

    Of the basis, ``restart + 1`` vectors laid out like ``b``, only products pass between devices.
    The derivative is that of the solution, found by solving the transposed system; it does not
    follow the iterations.

    Args:
        A: the operator, which need not be symmetric; as of `cg`.
        b: the right-hand side: an array of any shape, or a tree of arrays, laid out in any way.
        x0: the first guess, alike; by default zeros.
        tol: it ends when the residual's norm is at most ``max(tol * norm(b), atol)``.
        atol: see ``tol``.
        restart: the size of the space in which a step is looked for; at most the unknowns.
        maxiter: the most steps; by default ten for each unknown.
        M: a preconditioner, near to the inverse of ``A``. The norm is then that of ``M`` times the
            residual, as in JAX.
        solve_method: ``"batched"`` builds whole spaces; ``"incremental"`` ends a space when the
            residual is small enough.

    Returns:
        The solution, a tree like ``b``, and an integer: 0, or -1 if there is a NaN in it.

    Raises:
        ArgumentError: if ``A`` or ``M`` is not an operator, or another argument is out of range.
        ShapeError: if a matrix is not square, or ``x0`` has other shapes than ``b``.
        DtypeError: if ``A`` returns another dtype than it is given.
        TreeError: if the trees differ, or ``b`` has no arrays.

    Source: the semantics are those of ``jax.scipy.sparse.linalg.gmres``.

    >>> import meshard.numpy as mnp
    >>> from meshard.scipy.sparse.linalg import gmres
    >>> x, info = gmres(mnp.asarray([[2.0, 1.0], [0.0, 4.0]]), mnp.asarray([4.0, 8.0]))
    >>> mnp.round(x, 6).tolist(), int(info)
    ([1.0, 2.0], 0)
    """
    what = "gmres"
    choice_of(solve_method, ("batched", "incremental"), what, "solve_method")
    own, right, start, other = starting(what, A, b, x0, M)
    size = sum(leaf.size for leaf in trees.leaves(right))
    restart = min(integer_of(restart, what, "restart", least=1), size)
    within = partial(_METHODS[solve_method], restart=restart)
    limits = limits_of(what, tol, atol, maxiter, right)
    way = partial(_gmres, x0=start, M=other, within=within, limits=limits)
    x = custom_linear_solve(own, right, way, way)
    return x, where(isnan(norm(x)), -1, 0)
