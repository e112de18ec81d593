"""Derivatives of functions, by the names of JAX: `grad`, `vjp`, `jvp` and what is made of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, final

import numpy as np

import meshard.transforms.derivatives.each
import meshard.transforms.derivatives.mapped  # noqa: F401  (they fill the tables of calls and rows)
from meshard.algebra.arguments import flag_of, names_of
from meshard.algebra.boundary import bounded
from meshard.errors import ArgumentError, TreeError
from meshard.ops.array.create import ones_like, zeros_like
from meshard.runtime.callers import at_line
from meshard.runtime.doors import interpreters
from meshard.runtime.moving.place import as_array
from meshard.runtime.trees import trees
from meshard.runtime.world import here
from meshard.transforms.body.grid import Grid
from meshard.transforms.derivatives.arguments import (
    Flattened,
    check_input,
    check_result,
    check_tree,
    check_types,
    checked_function,
    float0_like,
    name_of,
    numbers_of,
    places_of,
    strong,
)
from meshard.transforms.derivatives.forward import pushed
from meshard.transforms.derivatives.levels import Level, differentiable
from meshard.transforms.derivatives.reverse import followed, laid_like, purpose_of, recorded
from meshard.transforms.program.calls import ArrayCall
from meshard.transforms.tracing.tracing import Tracing, unplaced_type

F = TypeVar("F", bound=Callable[..., Any])


def grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[str] = (),
) -> Callable[..., Any]:
    """Return a function that computes the gradient of another.

    Args:
        fun: a function that returns one real number. It may use whatever jit takes, loops,
            `shard_map` and collectives; called without jit it sees values, so that a Python ``if``
            works.
        argnums: the argument, or arguments, with respect to which it is differentiated: trees of
            float arrays.
        has_aux: whether it returns a pair, of the number and a tree that is passed on.
        holomorphic: whether it is a holomorphic function of complex numbers.
        allow_int: whether arguments of integers are taken; their gradient has the dtype float0.
        reduce_axes: accepted as in JAX, and empty.

    Returns:
        A function of the same arguments that returns the gradient: a tree like the argument, or a
        tuple of these if ``argnums`` is a sequence; with ``has_aux`` a pair of it and the rest.
        Each gradient has the shape, dtype and sharding of its argument.

    Raises:
        ArgumentError: if an option is wrong. The function that is returned raises `DtypeError` for
            arguments or results that are not floats, `ShapeError` if the result is not one number,
            and `DerivativeError` where an operation has no derivative.

    Source: the semantics are those of ``jax.grad``.

    >>> import meshard, meshard.numpy as mnp
    >>> meshard.grad(lambda x: mnp.sum(x**3))(mnp.arange(3.0)).tolist()
    [0.0, 3.0, 12.0]
    """
    _refuse_axes("grad", reduce_axes)
    options = GradOptions("grad", argnums, has_aux, holomorphic, allow_int)
    both = _value_and_grad(fun, options)

    @_like(fun, "gradient")
    @bounded
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return gradient


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[str] = (),
) -> Callable[..., Any]:
    """Return a function that computes the value of another and its gradient.

    Args and raises: as `grad`.

    Returns:
        A function that returns a pair of what ``fun`` returns, and the gradient.

    >>> import meshard, meshard.numpy as mnp
    >>> value, slope = meshard.value_and_grad(lambda x: x * x)(3.0)
    >>> float(value), float(slope)
    (9.0, 6.0)
    """
    _refuse_axes("value_and_grad", reduce_axes)
    options = GradOptions("value_and_grad", argnums, has_aux, holomorphic, allow_int)
    return _value_and_grad(fun, options)


def _refuse_axes(what: str, reduce_axes: Any) -> None:
    if names_of(reduce_axes, what, "reduce_axes"):
        raise ArgumentError(
            f"{what}: reduce_axes={reduce_axes!r} is not supported; sum inside the function with "
            "lax.psum."
        )


@final
class GradOptions:
    """What `grad` was told, checked.

    Args:
        what: the function that was called.
        argnums: the arguments that count.
        has_aux: whether the function returns a pair.
        holomorphic: whether it is a holomorphic function.
        allow_int: whether integers are taken.
    """

    def __init__(
        self, what: str, argnums: Any, has_aux: bool, holomorphic: bool, allow_int: bool
    ) -> None:
        self.what = what
        self.numbers = numbers_of(argnums, what)
        self.several = isinstance(argnums, (tuple, list))
        self.has_aux = flag_of(has_aux, what, "has_aux")
        self.holomorphic = flag_of(holomorphic, what, "holomorphic")
        self.allow_int = flag_of(allow_int, what, "allow_int")


def _value_and_grad(fun: Callable[..., Any], options: GradOptions) -> Callable[..., Any]:
    what, has_aux = options.what, options.has_aux
    f = checked_function(fun, what)

    @_like(fun, "value and gradient")
    @bounded
    def both(*args: Any, **kwargs: Any) -> Any:
        places = places_of(options.numbers, len(args), what)
        flat = Flattened.of(what, f, args, kwargs, places, has_aux)
        check_input(what, flat, options.holomorphic, options.allow_int)
        run = recorded(f"{what} of {flat.name!r}", flat, flat.leaves, flat.names)
        own, aux = flat.split(run.results)
        check_result(what, flat, own, options.holomorphic)
        with at_line("", purpose_of([flat.name])):
            seed = _one(own[0])
        found = run.pull([seed, *[None] * (len(run.results) - 1)], last=True)
        tree = trees.unflatten(flat.tree, _cotangents(found, flat.leaves, flat.names))
        gradient = tree if options.several else tree[0]
        value = trees.unflatten(flat.out_tree, own)
        return ((value, aux) if has_aux else value), gradient

    return both


def _one(y: Any) -> Any:
    """Return one as the cotangent of a number; it does not depend on the number."""
    if isinstance(y, Grid):
        return ones_like(y)
    one = as_array(np.ones((), y.dtype))
    beneath = [x for x in interpreters() if not isinstance(x, Level)]
    if not beneath or not isinstance(beneath[-1], Tracing):
        return one
    # What is made of it is part of the program, rather than a large constant.
    call, type_ = ArrayCall(y.dtype), unplaced_type(here(), one)
    return beneath[-1].recorder.result(call.name, (), [1.0], [(type_, None)], call)[0]


def _like(fun: Any, what: str) -> Callable[[F], F]:
    """Return a decorator that names a function after the one that it differentiates."""

    def decorate(function: F) -> F:
        functools.update_wrapper(function, fun)
        function.__doc__ = f"The {what} of {name_of(fun)!r}. {getattr(fun, '__doc__', '') or ''}"
        return function

    return decorate


def _cotangents(found: Sequence[Any], values: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """Return cotangents laid out like the values; where there is none, zeros."""
    made: list[Any] = []
    for g, x, name in zip(found, values, names, strict=True):
        with at_line("", purpose_of([name])):
            if not differentiable(x):
                made.append(float0_like(x))
            elif g is None:
                made.append(zeros_like(strong(x)))
            else:
                made.append(laid_like(g, x))
    return made


def vjp(
    fun: Callable[..., Any], *primals: Any, has_aux: bool = False, reduce_axes: Any = ()
) -> Any:
    """Call a function, and return a function that pulls cotangents back through it.

    Args:
        fun: the function, from trees to a tree of arrays.
        primals: its arguments.
        has_aux: whether it returns a pair, of the results and a tree that is passed on.
        reduce_axes: accepted as in JAX, and empty.

    Returns:
        The results, and a function from cotangents, a tree like the results, to a tuple of
        cotangents of the arguments; with ``has_aux`` also what is passed on. Those of integers and
        bools have the dtype float0. The function may be called more than once.

    Raises:
        DerivativeError: if an operation has no derivative backwards. The function that is returned
            raises `TreeError`, `ShapeError` and `DtypeError` for cotangents that do not fit.

    Source: the semantics are those of ``jax.vjp``.

    >>> import meshard, meshard.numpy as mnp
    >>> y, back = meshard.vjp(lambda x: x * mnp.arange(3.0), 2.0)
    >>> float(back(mnp.ones(3))[0])
    3.0
    """
    f = checked_function(fun, "vjp")
    has_aux = flag_of(has_aux, "vjp", "has_aux")
    _refuse_axes("vjp", reduce_axes)
    flat = Flattened.of("vjp", f, primals, {}, range(len(primals)), has_aux)
    results, back = followed(f"vjp of {flat.name!r}", flat, flat.leaves, flat.names)
    own, aux = flat.split(results)
    out_tree, rest = flat.out_tree, [None] * (len(results) - len(own))
    what = f"vjp of {flat.name!r}"

    @bounded
    def pull(*cotangents: Any) -> tuple[Any, ...]:
        if len(cotangents) != 1:
            raise ArgumentError(
                f"{what}: what pulls back takes one argument, the tree of cotangents of the "
                f"results, but {len(cotangents)} were passed."
            )
        leaves = check_tree(what, cotangents[0], out_tree, "cotangents")
        given = check_types(what, leaves, own, lambda i: f"result {i}", "cotangent")
        found = back([*given, *rest])
        gradient = _cotangents(found, flat.leaves, flat.names)
        return tuple(trees.unflatten(flat.tree, gradient))

    value = trees.unflatten(out_tree, own)
    return (value, pull, aux) if has_aux else (value, pull)


def jvp(
    fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False
) -> Any:
    """Call a function, and push tangents forward through it.

    Args:
        fun: the function, from trees to a tree of arrays.
        primals: a tuple or list of its arguments.
        tangents: a tuple or list of the same structure: how each argument changes. Those of
            integers and bools have the dtype float0.
        has_aux: whether it returns a pair, of the results and a tree that is passed on.

    Returns:
        The results and their tangents; with ``has_aux`` also what is passed on.

    Raises:
        ArgumentError: if ``primals`` or ``tangents`` is not a tuple or list.
        TreeError: if their structures differ.
        ShapeError: if the shape of a tangent is not that of its argument.
        DtypeError: if the dtype is not.
        DerivativeError: if an operation has no derivative.

    Source: the semantics are those of ``jax.jvp``.

    >>> import meshard, meshard.numpy as mnp
    >>> y, t = meshard.jvp(lambda x: x**2, (mnp.arange(3.0),), (mnp.ones(3),))
    >>> t.tolist()
    [0.0, 2.0, 4.0]
    """
    f = checked_function(fun, "jvp")
    has_aux = flag_of(has_aux, "jvp", "has_aux")
    if not isinstance(primals, (tuple, list)) or not isinstance(tangents, (tuple, list)):
        raise ArgumentError(
            "jvp: primal and tangent arguments must be tuples or lists, one entry for each "
            f"argument; found {type(primals).__name__} and {type(tangents).__name__}."
        )
    flat = Flattened.of("jvp", f, tuple(primals), {}, range(len(primals)), has_aux)
    what = f"jvp of {flat.name!r}"
    if isinstance(primals, list) is not isinstance(tangents, list):
        raise TreeError(
            f"{what}: primal and tangent arguments must have the same tree structure, but one is a "
            "list and the other a tuple."
        )
    leaves, structure = trees.flatten(tuple(tangents))
    if structure != flat.tree:
        raise TreeError(
            f"{what}: primal and tangent arguments must have the same tree structure; primals "
            f"have {flat.tree}, tangents have {structure}."
        )
    given = check_types(what, leaves, flat.leaves, flat.told, "tangent")
    results, moved = pushed(what, flat, flat.leaves, given)
    own, aux = flat.split(results)
    value = trees.unflatten(flat.out_tree, own)
    tangent = trees.unflatten(flat.out_tree, _tangents(moved[: len(own)], own))
    return (value, tangent, aux) if has_aux else (value, tangent)


def _tangents(found: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Return the tangents of results; zeros where there is none."""
    return [
        float0_like(y) if not differentiable(y) else zeros_like(y) if t is None else t
        for t, y in zip(found, values, strict=True)
    ]
