"""`cg` and `bicgstab`: linear systems solved by short recurrences.

In: a linear operator and a right-hand side, trees of arrays laid out in any way. Out: the solution,
laid out like the right-hand side. What passes between the devices is what the operator passes, and
the numbers of the scalar products.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from meshard.algebra.arguments import count_of, number_of
from meshard.ops.array.create import asarray, zeros_like
from meshard.ops.array.elementwise import maximum, square, where
from meshard.ops.lax.reduce import stop_gradient
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.trees import trees
from meshard.transforms.custom.gradient import closure_convert
from meshard.transforms.custom.solving import custom_linear_solve
from meshard.transforms.flow.control_flow import while_loop
from meshard.transforms.solvers.vectors import (
    Operator,
    Vector,
    add,
    check_alike,
    chosen,
    combined,
    dtype,
    identity,
    operator_of,
    product,
    real_product,
    subtract,
    times,
    vector_of,
)


def starting(
    what: str, A: Any, b: Any, x0: Any, M: Any
) -> tuple[Operator, Vector, Vector | None, Operator]:
    """Return the operator, the right-hand side, the first guess, if any, and the preconditioner.

    Raises:
        ArgumentError, ShapeError, TreeError: if one of them is none, or they do not fit.
    """
    right = vector_of(b, what, "b")
    own = operator_of(A, what, "A")
    other = identity if M is None else _unfollowed(operator_of(M, what, "M"), right)
    if x0 is None:
        return own, right, None, other
    start = vector_of(x0, what, "x0")
    check_alike(start, right, what)
    start = combined(lambda x, like: x.astype(like.dtype), start, right)
    return own, right, stop_gradient(start), other


def begun(A: Operator, b: Vector, x0: Vector | None) -> tuple[Vector, Vector]:
    """Return where a solver begins, and the residual there; that of zeros needs no product."""
    return (combined(zeros_like, b), b) if x0 is None else (x0, subtract(b, A(x0)))


def _unfollowed(M: Operator, like: Vector) -> Operator:
    """Return a preconditioner whose values are constants: none of them changes a solution."""
    function, captured = closure_convert(M, like)
    values = stop_gradient(captured)
    return lambda x: function(x, *values)


Limits = tuple[Any, Any, Any]
"""The tolerances, relative and absolute, and the most turns of a loop."""


def limits_of(what: str, tol: Any, atol: Any, maxiter: Any, b: Vector) -> Limits:
    """Return when a solver ends; nothing is differentiated by that.

    By default there are ten turns for each unknown, as in SciPy. All may be arrays without dims.

    Raises:
        ArgumentError: if a tolerance is not a number, or ``maxiter`` is not an integer from 0.
    """
    if maxiter is None:
        most = 10 * sum(leaf.size for leaf in trees.leaves(b))
    else:
        most = maxiter if _is_scalar(maxiter, "iu") else count_of(maxiter, what, "maxiter")
    pairs = (("tol", tol), ("atol", atol))
    own = [x if _is_scalar(x, "iuf") else number_of(x, what, name) for name, x in pairs]
    return (*stop_gradient((own[0], own[1])), most)


def _is_scalar(x: Any, kinds: str) -> bool:
    """Whether a value is an array without dims, of some kinds of numbers."""
    return isinstance(x, (Array, Traced)) and x.shape == () and x.dtype.kind in kinds


def _cg(A: Operator, b: Vector, *, x0: Vector | None, limits: Limits, M: Operator) -> Vector:
    """Solve by conjugate gradients (Hestenes and Stiefel, 1952), preconditioned."""
    tol, atol, most = limits
    least = maximum(square(tol) * real_product(b, b), square(atol))

    def goes_on(state: Any) -> Any:
        _, r, gamma, _, k = state
        rest = gamma if M is identity else real_product(r, r)
        return (rest > least) & (k < most)

    def turn(state: Any) -> Any:
        x, r, gamma, p, k = state
        image = A(p)
        length = gamma / real_product(p, image)
        x, r = add(x, times(length, p)), subtract(r, times(length, image))
        z = M(r)
        new = real_product(r, z)
        return x, r, new, add(z, times(new / gamma, p)), k + 1

    x0, r = begun(A, b, x0)
    z = M(r)
    start = x0, r, real_product(r, z), z, 0
    return while_loop(goes_on, turn, start)[0]


def _ratio(a: Any, b: Any) -> Any:
    """Return a quotient; zero where there is none."""
    return where(b == 0, 0, a / where(b == 0, 1, b))


def _bicgstab(A: Operator, b: Vector, *, x0: Vector | None, limits: Limits, M: Operator) -> Vector:
    """Solve by stabilized biconjugate gradients (van der Vorst, 1992), preconditioned."""
    tol, atol, most = limits
    least = maximum(square(tol) * real_product(b, b), square(atol))

    def goes_on(state: Any) -> Any:
        k = state[-1]
        return (real_product(state[1], state[1]) > least) & (k < most) & (k >= 0)

    def turn(state: Any) -> Any:
        x, r, shadow, alpha, omega, rho, p, q, k = state
        new = product(shadow, r)
        p = add(r, times(new / rho * alpha / omega, subtract(p, times(omega, q))))
        ahead = M(p)
        q = A(ahead)
        alpha = _ratio(new, product(shadow, q))
        s = subtract(r, times(alpha, q))
        early = real_product(s, s) < least
        between = M(s)
        t = A(between)
        omega = _ratio(product(t, s), product(t, t))
        half = add(x, times(alpha, ahead))
        x = chosen(early, half, add(half, times(omega, between)))
        r = chosen(early, s, subtract(s, times(omega, t)))
        # Below zero it has broken down.
        k = where((omega == 0) | (alpha == 0), -11, k + 1)
        return x, r, shadow, alpha, omega, new, p, q, where(new == 0, -10, k)

    x0, r = begun(A, b, x0)
    one = asarray(1, dtype=dtype(b))
    return while_loop(goes_on, turn, (x0, r, r, one, one, one, r, r, asarray(0)))[0]


def _solved(
    what: str,
    method: Callable[..., Vector],
    given: tuple[Any, Any, Any, Any],
    limits: Limits,
    *,
    hermitian: bool,
) -> tuple[Any, None]:
    """Return the solution of a system by one of the methods, and None.

    Args:
        what: the function that was called.
        method: the method.
        given: what it was given as A, b, x0 and M.
        limits: what it was given as tol, atol and maxiter.
        hermitian: whether the system, where it is real, is its own transpose.
    """
    own, right, start, other = starting(what, *given)
    tol, atol, maxiter = limits
    found = limits_of(what, tol, atol, maxiter, right)
    solve = partial(method, x0=start, limits=found, M=other)
    real = not any(leaf.dtype.kind == "c" for leaf in trees.leaves(right))
    x = custom_linear_solve(own, right, solve, solve, symmetric=hermitian and real)
    return x, None


def cg(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    tol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
) -> tuple[Any, None]:
    """Return the solution of a Hermitian positive definite system, by conjugate gradients.

    Two scalar products of an iteration are all that passes between devices, besides what ``A`` and
    ``M`` do. The derivative is that of the solution, found by solving the system once more; it does
    not follow the iterations.

    Args:
        A: the operator: a function of a tree of arrays like ``b``, a square matrix, or a value with
            a shape that ``@`` multiplies, such as `meshard.scipy.sparse.SparseRows`.
        b: the right-hand side: an array of any shape, or a tree of arrays, laid out in any way.
        x0: the first guess, alike; by default zeros.
        tol: it ends when the residual's norm is at most ``max(tol * norm(b), atol)``.
        atol: see ``tol``.
        maxiter: the most iterations; by default ten for each unknown.
        M: a preconditioner, near to the inverse of ``A``; given as ``A`` may be.

    Returns:
        The solution, a tree like ``b``, and None, as JAX returns it.

    Raises:
        ArgumentError: if ``A`` or ``M`` is not an operator, or ``maxiter`` is below 0.
        ShapeError: if a matrix is not square, or ``x0`` has other shapes than ``b``.
        DtypeError: if ``A`` returns another dtype than it is given.
        TreeError: if the trees differ, or ``b`` has no arrays.

    Source: the semantics are those of ``jax.scipy.sparse.linalg.cg``.

    >>> import meshard.numpy as mnp
    >>> from meshard.scipy.sparse.linalg import cg
    >>> x, _ = cg(lambda v: 4 * v - mnp.roll(v, 1) - mnp.roll(v, -1), mnp.ones(6))
    >>> x.tolist()
    [0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
    """
    return _solved("cg", _cg, (A, b, x0, M), (tol, atol, maxiter), hermitian=True)


def bicgstab(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    tol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
) -> tuple[Any, None]:
    """Return the solution of a system, by stabilized biconjugate gradients.

    Each iteration applies ``A`` twice. The derivative is that of the solution, found by solving the
    transposed system; it does not follow the iterations.

    Args:
        A: the operator, which need not be symmetric; as of `cg`.
        b: the right-hand side.
        x0: the first guess.
        tol: it ends when the residual's norm is at most ``max(tol * norm(b), atol)``.
        atol: see ``tol``.
        maxiter: the most iterations; by default ten for each unknown.
        M: a preconditioner.

    Returns:
        The solution, a tree like ``b``, and None, as JAX returns it.

    Raises:
        ArgumentError: if ``A`` or ``M`` is not an operator, or ``maxiter`` is below 0.
        ShapeError: if a matrix is not square, or ``x0`` has other shapes than ``b``.
        DtypeError: if ``A`` returns another dtype than it is given.
        TreeError: if the trees differ, or ``b`` has no arrays.

    Source: the semantics are those of ``jax.scipy.sparse.linalg.bicgstab``.

    >>> import meshard.numpy as mnp
    >>> from meshard.scipy.sparse.linalg import bicgstab
    >>> x, _ = bicgstab(mnp.asarray([[2.0, 1.0], [0.0, 4.0]]), mnp.asarray([4.0, 8.0]))
    >>> mnp.round(x, 6).tolist()
    [1.0, 2.0]
    """
    return _solved("bicgstab", _bicgstab, (A, b, x0, M), (tol, atol, maxiter), hermitian=False)
