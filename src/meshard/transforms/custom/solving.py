"""`custom_root` and `custom_linear_solve`: solutions whose derivatives follow from their equations.

In: an equation, and functions that solve it and its linear form. Out: the solution. How it was
found is not differentiated, so that it may be by a loop whose turns values decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from meshard.algebra.arguments import described, flag_of, function_of
from meshard.errors import DerivativeError, DtypeError, ShapeError, TreeError
from meshard.ops.array.create import zeros_like
from meshard.ops.derivatives.elementwise import o
from meshard.ops.derivatives.kinds import Values
from meshard.ops.lax.reduce import stop_gradient
from meshard.runtime.trees import trees
from meshard.runtime.types import ArrayLike
from meshard.transforms.custom.custom import closure_convert, custom_jvp
from meshard.transforms.derivatives.arguments import strong, type_text, value_of
from meshard.transforms.derivatives.functions import jvp, vjp
from meshard.transforms.derivatives.jacobians import linear_transpose
from meshard.transforms.derivatives.kept import kept_call

Solve = Callable[[Callable[[Any], Any], Any], Any]


def _leaves(tree: Any, what: str) -> list[Any]:
    return [strong(value_of(x, what)) for x in trees.leaves(tree)]


def _alike(found: Any, like: Any, what: str) -> Any:
    """Return a tree of arrays, which must have the types of another.

    Raises:
        TreeError, ShapeError, DtypeError: if they have not; ``what`` begins the message.
    """
    tree, wanted = trees.structure(found), trees.structure(like)
    if tree != wanted:
        raise TreeError(f"{what} has the tree {tree}, but it must have that of {wanted}.")
    for own, other in zip(_leaves(found, what), _leaves(like, what), strict=True):
        if (own.shape, own.dtype) != (other.shape, other.dtype):
            kind = ShapeError if own.shape != other.shape else DtypeError
            raise kind(f"{what} is {type_text(own)}, but it must be {type_text(other)}.")
    return found


def _with_aux(found: Any, has_aux: bool, what: str) -> tuple[Any, Any]:
    """Return a solution, and what else was returned.

    Raises:
        TreeError: if there is to be something else, and the result is not a pair.
    """
    if not has_aux:
        return found, ()
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise TreeError(
            f"{what} with has_aux=True: solve must return a pair, of the solution and what else is "
            f"to be passed on; it returned {described(found)}."
        )
    return found[0], found[1]


def custom_root(
    f: Callable[[Any], Any],
    initial_guess: ArrayLike | Any,
    solve: Solve,
    tangent_solve: Solve,
    has_aux: bool = False,
) -> Any:
    """Return a root of a function, with the derivative that follows from ``f(root) == 0``.

    The derivative is with respect to the values that ``f`` captures; that with respect to the
    guess is zero.

    Args:
        f: a function of a tree of arrays that returns a tree of the same types.
        initial_guess: where ``solve`` begins.
        solve: takes ``f`` and the guess and returns a root. It is not differentiated.
        tangent_solve: takes a linear function and its result, and returns its argument: for scalars
            ``lambda g, y: y / g(1.0)``. It must be linear in ``y``.
        has_aux: whether ``solve`` returns a pair, of which the second is passed on.

    Returns:
        The root; with ``has_aux`` a pair of it and the rest.

    Raises:
        ArgumentError: if an argument is of the wrong kind.
        TreeError: if the root, or what ``f`` returns, is of another structure than the guess.
        ShapeError: if it has another shape.
        DtypeError: if it has another dtype.

    Source: the semantics are those of ``jax.lax.custom_root``.

    >>> import meshard
    >>> from meshard import lax
    >>> def newton(f, x):
    ...     step = lambda _, x: x - f(x) / meshard.grad(f)(x)
    ...     return lax.fori_loop(0, 8, step, x)
    >>> def sqrt(y):
    ...     return lax.custom_root(lambda x: x * x - y, 1.0, newton, lambda g, y: y / g(1.0))
    >>> round(float(sqrt(4.0)), 6), round(float(meshard.grad(sqrt)(4.0)), 6)
    (2.0, 0.25)
    """
    what = "custom_root"
    f, solve = function_of(f, what, "f"), function_of(solve, what, "solve")
    tangent_solve = function_of(tangent_solve, what, "tangent_solve")
    has_aux = flag_of(has_aux, what, "has_aux")
    guess = stop_gradient(trees.map(lambda x: strong(value_of(x, what)), initial_guess))
    converted, captured = closure_convert(f, guess)

    @custom_jvp
    def root(own: list[Any], start: Any) -> Any:
        def function(x: Any) -> Any:
            return _alike(converted(x, *own), x, f"{what}: the value of f")

        x, aux = _with_aux(solve(function, start), has_aux, what)
        return _alike(x, start, f"{what}: the root that solve returned"), aux

    @root.defjvp
    def follow(primals: Any, tangents: Any) -> Any:
        (own, start), (moves, _) = primals, tangents
        x, aux = root(own, start)
        _, moved = jvp(lambda *c: converted(x, *c), tuple(own), tuple(moves))

        def slope(t: Any) -> Any:
            return jvp(lambda y: converted(y, *own), (x,), (t,))[1]

        change = tangent_solve(slope, trees.map(o.negative, moved))
        return (x, aux), (_alike(change, x, f"{what}: what tangent_solve returned"), _still(aux))

    x, aux = root(captured, guess)
    return (x, aux) if has_aux else x


def _still(aux: Any) -> Any:
    return trees.map(lambda x: zeros_like(strong(x)), aux)


def custom_linear_solve(
    matvec: Callable[[Any], Any],
    b: ArrayLike | Any,
    solve: Solve,
    transpose_solve: Solve | None = None,
    symmetric: bool = False,
    has_aux: bool = False,
) -> Any:
    """Return the solution of a linear system, with the derivative that follows from the system.

    The derivative is with respect to ``b`` and to the values that ``matvec`` captures, and is found
    by solving the same system, or the transposed one, once more.

    Args:
        matvec: a linear function of a tree of arrays that returns a tree of the same types.
        b: what it is to return.
        solve: takes ``matvec`` and ``b`` and returns the solution. It is not differentiated.
        transpose_solve: the same for the transposed system; without it there is no way back.
        symmetric: whether the system is its own transpose, so that ``solve`` solves both.
        has_aux: whether the solvers return a pair, of which the second is passed on.

    Returns:
        The solution; with ``has_aux`` a pair of it and the rest.

    Raises:
        ArgumentError: if an argument is of the wrong kind.
        TreeError: if the solution, or what ``matvec`` returns, is of another structure than ``b``.
        ShapeError: if it has another shape.
        DtypeError: if it has another dtype.
        DerivativeError: from a gradient, if there is no ``transpose_solve``.

    Source: the semantics are those of ``jax.lax.custom_linear_solve``.

    >>> import meshard, meshard.numpy as mnp
    >>> from meshard import lax
    >>> def divided(a, b):
    ...     return lax.custom_linear_solve(
    ...         lambda x: a * x, b, lambda f, b: b / f(1.0), symmetric=True
    ...     )
    >>> [float(g) for g in meshard.grad(divided, (0, 1))(4.0, 2.0)]
    [-0.125, 0.25]
    """
    what = "custom_linear_solve"
    f, solve = function_of(matvec, what, "matvec"), function_of(solve, what, "solve")
    if flag_of(symmetric, what, "symmetric"):
        transpose_solve = solve
    elif transpose_solve is not None:
        transpose_solve = function_of(transpose_solve, what, "transpose_solve")
    has_aux = flag_of(has_aux, what, "has_aux")
    given, tree = trees.flatten(b)
    values = [strong(value_of(x, f"{what}: b")) for x in given]
    like = trees.unflatten(tree, values)
    converted, captured = closure_convert(f, like)
    system = _System(converted, len(captured), tree, solve, transpose_solve, has_aux)
    found = kept_call(what, system, lambda call: _Solved(call, system), [*captured, *values], True)
    x = trees.unflatten(tree, found[: len(values)])
    return (x, trees.unflatten(system.aux[-1], found[len(values) :])) if has_aux else x


@final
@dataclass(frozen=True, slots=True)
class _System:
    """A linear system, as a function from what it is made of and ``b`` to the solution.

    Attributes:
        matvec: the linear function, of its argument and of what it is made of.
        count: how many values it is made of.
        tree: the tree of ``b``.
        solve: solves it.
        transpose_solve: solves the transposed one.
        has_aux: whether these return something else.
        aux: the tree of that, when it has run.
    """

    matvec: Callable[..., Any]
    count: int
    tree: Any
    solve: Solve
    transpose_solve: Solve | None
    has_aux: bool
    aux: list[Any] = field(default_factory=list)

    def __call__(self, *values: Any) -> list[Any]:
        own, b = values[: self.count], trees.unflatten(self.tree, list(values[self.count :]))

        def matvec(x: Any) -> Any:
            return _alike(self.matvec(x, *own), x, "custom_linear_solve: what matvec returned")

        found = _with_aux(self.solve(matvec, b), self.has_aux, "custom_linear_solve")
        x = _alike(found[0], b, "custom_linear_solve: the solution that solve returned")
        rest, structure = trees.flatten(found[1])
        self.aux.append(structure)
        made = [*trees.leaves(x), *rest]
        return [strong(value_of(y, "custom_linear_solve: a result")) for y in made]

    def again(self, own: Values, b: Values) -> Any:
        """Solve the system for another right-hand side."""
        found = custom_linear_solve(
            lambda x: self.matvec(x, *own),
            trees.unflatten(self.tree, list(b)),
            self.solve,
            self.transpose_solve,
            has_aux=self.has_aux,
        )
        return found[0] if self.has_aux else found

    def transposed(self, own: Values, x: Any, g: Values) -> Any:
        """Solve the transposed system.

        Raises:
            DerivativeError: if it is not known how.
        """
        if self.transpose_solve is None:
            raise DerivativeError(
                "custom_linear_solve has no way back without transpose_solve, which solves the "
                "transposed system. Pass it, or symmetric=True if the system is its own transpose."
            )
        back = linear_transpose(lambda y: self.matvec(y, *own), x)
        found = custom_linear_solve(
            lambda y: back(y)[0],
            trees.unflatten(self.tree, list(g)),
            self.transpose_solve,
            self.solve,
            has_aux=self.has_aux,
        )
        return found[0] if self.has_aux else found


@final
@dataclass(frozen=True, slots=True)
class _Solved:
    """The derivative of a solution."""

    call: Any
    system: _System

    def _own(self, values: Values) -> tuple[list[Any], list[Any]]:
        """Return what the system is made of, and its right-hand side."""
        rest = list(values)[self.call.captures :]
        return rest[: self.system.count], rest[self.system.count :]

    def push(self, values: Values, tangents: Values) -> list[Any]:
        """Return the tangents of the solution."""
        (own, b), (moves, change) = self._own(values), self._own(tangents)
        found = self.call.run(values)
        x = trees.unflatten(self.system.tree, found[: len(b)])
        given = [zeros_like(c) if t is None else t for c, t in zip(own, moves, strict=True)]
        _, moved = jvp(lambda *c: self.system.matvec(x, *c), tuple(own), tuple(given))
        less = zip(change, trees.leaves(moved), strict=True)
        right = [o.negative(m) if t is None else o.subtract(t, m) for t, m in less]
        return [*trees.leaves(self.system.again(own, right)), *[None] * (len(found) - len(b))]

    def begin(self, values: Values) -> tuple[list[Any], Any]:
        """Return the solution, which is kept."""
        found = self.call.run(values)
        return found, found[: len(self._own(values)[1])]

    def pull(
        self, values: Values, kept: Any, cotangents: Values, names: Sequence[str] = ()
    ) -> list[Any]:
        """Return the cotangents of what the system is made of, and of its right-hand side."""
        own, _ = self._own(values)
        x = trees.unflatten(self.system.tree, list(kept))
        g = [zeros_like(y) if c is None else c for c, y in zip(cotangents, kept, strict=False)]
        found = self.system.transposed(own, x, g)
        _, back = vjp(lambda *c: self.system.matvec(x, *c), *own)
        less = back(trees.map(o.negative, found))
        return [*[None] * self.call.captures, *less, *trees.leaves(found)]
