"""`cg` and `bicgstab`: linear systems solved by short recurrences.

In: a linear operator and a right-hand side, trees of arrays laid out in any way. Out: the solution,
laid out like the right-hand side. What passes between the devices is what the operator passes, and
the numbers of the scalar products.

`gmres`: a linear system solved in the spaces of its operator's powers.

In: a linear operator and a right-hand side, trees of arrays laid out in any way. Out: the solution.
The basis of a space has a dim in front of those of a vector, which is never split, so that all
products with the basis pass its few coefficients between the devices, and nothing else.

Trees of arrays as vectors: sums, products with numbers, scalar products.

In: trees of one structure. Out: trees, or numbers. A scalar product adds up each leaf along all its
dims at once, so that of a leaf that is split one number passes between the devices.
"""

from __future__ import annotations

import operator
import string
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np

from meshard.algebra.arguments import choice_of, count_of, described, integer_of, number_of
from meshard.errors import ArgumentError, ShapeError, TreeError
from meshard.ops.array.create import arange, asarray, eye, zeros, zeros_like
from meshard.ops.array.elementwise import isnan, maximum, minimum, sqrt, square, where
from meshard.ops.array.info import result_type
from meshard.ops.lax.reduce import stop_gradient
from meshard.ops.linalg.contract import contract, dot, matmul
from meshard.ops.linalg.decompose import qr, solve
from meshard.ops.made.pads import pad
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.moving.place import as_array
from meshard.runtime.trees import trees
from meshard.transforms.custom.custom import closure_convert
from meshard.transforms.custom.solving import custom_linear_solve
from meshard.transforms.flow.control_flow import while_loop

Vector = Any
"""A tree of arrays."""
Operator = Callable[[Vector], Vector]


def combined(f: Callable[..., Any], *vectors: Vector) -> Vector:
    """Return a vector of what a function makes of the elements of others."""
    return trees.map(f, *vectors)


add = partial(combined, operator.add)
subtract = partial(combined, operator.sub)


def times(scalar: Any, x: Vector) -> Vector:
    """Return a vector times a number; a real one leaves the dtypes of the vector as they are."""
    if scalar.dtype.kind == "c":
        return trees.map(lambda leaf: scalar * leaf, x)
    return trees.map(lambda leaf: scalar.astype(leaf.dtype) * leaf, x)


def letters(x: Any) -> str:
    """Return a term of a rule, with a factor for each dim."""
    return " ".join(string.ascii_lowercase[: x.ndim])


def _product(x: Any, y: Any) -> Any:
    own = letters(x)
    left = x.conj() if x.dtype.kind == "c" else x
    return contract("vdot", left, y, f"{own}, {own} ->")


def product(x: Vector, y: Vector) -> Any:
    """Return the scalar product of two vectors, the first conjugated."""
    pairs = zip(trees.leaves(x), trees.leaves(y), strict=True)
    return reduce(operator.add, [_product(a, b) for a, b in pairs])


def real_product(x: Vector, y: Vector) -> Any:
    """Return the real part of the scalar product of two vectors."""
    found = product(x, y)
    return found.real if found.dtype.kind == "c" else found


def norm(x: Vector) -> Any:
    """Return the length of a vector."""
    return sqrt(real_product(x, x))


def dtype(x: Vector) -> Any:
    """Return the dtype in which all elements of a vector meet."""
    return result_type(*trees.leaves(x))


def chosen(condition: Any, x: Vector, y: Vector) -> Vector:
    """Return one of two vectors."""
    return trees.map(lambda a, b: where(condition, a, b), x, y)


# what solvers are given


def identity(x: Vector) -> Vector:
    """Return a vector as it is."""
    return x


def operator_of(given: Any, what: str, name: str) -> Operator:
    """Return the function that a linear operator is: it takes and returns vectors.

    Args:
        given: a function, a square matrix, or a value with a shape that ``@`` multiplies.
        what: the function that was called, for messages.
        name: its argument.

    Raises:
        ArgumentError: if it is not a linear operator.
        ShapeError: if it is not square.
    """
    if type(given).__module__.partition(".")[0] == "scipy":
        raise ArgumentError(
            f"{what}: {name} is a {type(given).__name__} of SciPy, which would gather each vector "
            "in order to multiply it. Lay a sparse matrix out with "
            "meshard.scipy.sparse.SparseRows.from_scipy(matrix, sharding), or give a function."
        )
    matrix = isinstance(given, (Array, Traced)) or hasattr(given, "__array__")
    if callable(given) and not matrix:
        return given
    shape = getattr(given, "shape", None)
    if not hasattr(given, "__matmul__") or shape is None:
        raise ArgumentError(
            f"{what}: {name} must be a function of a vector, a square matrix, or a value with a "
            f"shape that @ multiplies by a vector; got {described(given)}."
        )
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ShapeError(
            f"{what}: {name} must be a square matrix, but it has the shape {tuple(shape)}."
        )
    if not matrix:
        return partial(operator.matmul, given)
    array = as_array(given)
    return lambda x: dot(array, x) if x.ndim == 1 else matmul(array, x)


def vector_of(given: Any, what: str, name: str) -> Vector:
    """Return a tree of arrays of floats or complex numbers.

    Raises:
        TreeError: if it has no leaves.
    """

    def leaf(x: Any) -> Any:
        found = as_array(x)
        return found if found.dtype.kind not in "biu" else found.astype(result_type(found, 1.0))

    if not trees.leaves(given):
        raise TreeError(f"{what}: {name} is a tree without arrays; a vector has at least one.")
    return trees.map(leaf, given)


def check_alike(x0: Vector, b: Vector, what: str) -> None:
    """Refuse a first guess that is not a vector like the right-hand side.

    Raises:
        TreeError: if it has another structure.
        ShapeError: if its arrays have other shapes.
    """
    own, wanted = trees.structure(x0), trees.structure(b)
    if own != wanted:
        raise TreeError(f"{what}: x0 has the tree {own}, but b has {wanted}; they must be alike.")
    shapes: Sequence[Any] = [[leaf.shape for leaf in trees.leaves(v)] for v in (x0, b)]
    if shapes[0] != shapes[1]:
        raise ShapeError(
            f"{what}: the arrays of x0 have the shapes {shapes[0]}, those of b {shapes[1]}; they "
            "must be alike."
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
