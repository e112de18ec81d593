"""Jacobians and Hessians, and linear functions made of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshard.algebra.arguments import flag_of, names_of
from meshard.algebra.boundary import bounded
from meshard.errors import DerivativeError
from meshard.ops.array.create import eye
from meshard.ops.array.shape import reshape
from meshard.ops.derivatives.elementwise import is_complex
from meshard.runtime.moving.structs import typeof
from meshard.runtime.trees import trees
from meshard.transforms.batching.vmap import vmap
from meshard.transforms.derivatives.arguments import (
    Flattened,
    check_forward,
    check_input,
    check_results,
    check_tree,
    check_types,
    checked_function,
    numbers_of,
    places_of,
    strong,
)
from meshard.transforms.derivatives.functions import _cotangents, _like, _tangents
from meshard.transforms.derivatives.levels import differentiable
from meshard.transforms.derivatives.reverse import first_nonlinear, followed, recorded

Numbers = int | Sequence[int]


def _basis(leaves: Sequence[Any]) -> list[Any]:
    """Return for each leaf what one gets of it in a basis of all: a new first dim numbers it."""
    sizes = [int(np.prod(x.shape)) for x in leaves]
    count, start, found = sum(sizes), 0, []
    for x, n in zip(leaves, sizes, strict=True):
        part = eye(count, n, k=-start, dtype=x.dtype)
        found.append(reshape(part, (count, *x.shape)))
        start += n
    return found


def _split(y: Any, leaves: Sequence[Any], dim: int) -> list[Any]:
    """Return an array cut along a dim into parts that have the leaves' dims there."""
    start, found = 0, []
    for x in leaves:
        n = int(np.prod(x.shape))
        part = y[(*[slice(None)] * dim, slice(start, start + n))]
        found.append(reshape(part, (*y.shape[:dim], *x.shape, *y.shape[dim + 1 :])))
        start += n
    return found


def jacfwd(
    fun: Callable[..., Any],
    argnums: Numbers = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable[..., Any]:
    """Return a function that computes the Jacobian, column by column, with tangents.

    Args:
        fun: the function, of trees of arrays.
        argnums: the argument, or arguments, with respect to which it is differentiated.
        has_aux: whether it returns a pair, of which the second is passed on.
        holomorphic: whether it is a holomorphic function of complex numbers.

    Returns:
        A function that returns a tree like the results, each leaf of which is a tree like the
        argument, with arrays of the result's dims and then the argument's.

    Raises:
        DtypeError: from the function that is returned, if an argument is not real.

    Source: the semantics are those of ``jax.jacfwd``.

    >>> import meshard, meshard.numpy as mnp
    >>> meshard.jacfwd(lambda x: x**2)(mnp.arange(3.0)).tolist()
    [[0.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 4.0]]
    """
    f, what = checked_function(fun, "jacfwd"), "jacfwd"
    numbers, has_aux = numbers_of(argnums, what), flag_of(has_aux, what, "has_aux")
    holomorphic = flag_of(holomorphic, what, "holomorphic")

    @_like(fun, "Jacobian")
    @bounded
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        places = places_of(numbers, len(args), what)
        flat = Flattened.of(what, f, args, kwargs, places, has_aux)
        check_forward(what, flat, holomorphic)
        leaves = [strong(x) for x in flat.leaves]
        kept: list[Any] = []

        def push(*tangents: Any) -> Any:
            from meshard.transforms.derivatives.forward import pushed

            results, moved = pushed(what, flat, leaves, list(tangents))
            own, _ = flat.split(results)
            if holomorphic or not all(map(is_complex, own)):
                check_results(what, flat, own, holomorphic)
            kept[:] = [results]
            return _tangents(moved[: len(own)], own), results[len(own) :]

        columns, rest = vmap(push, out_axes=(-1, None))(*_basis(leaves))
        rows = [_nested(_split(y, leaves, y.ndim - 1), flat, argnums) for y in columns]
        found = trees.unflatten(flat.out_tree, rows)
        if not has_aux:
            return found
        assert flat.aux is not None
        return found, trees.unflatten(flat.aux[1], list(rest))

    return jacobian


def _nested(parts: Sequence[Any], flat: Flattened, argnums: Numbers) -> Any:
    tree = trees.unflatten(flat.tree, list(parts))
    return tree if isinstance(argnums, (tuple, list)) else tree[0]


def jacrev(
    fun: Callable[..., Any],
    argnums: Numbers = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[..., Any]:
    """Return a function that computes the Jacobian, row by row, with cotangents.

    Args:
        fun: the function, of trees of arrays.
        argnums: the argument, or arguments, with respect to which it is differentiated.
        has_aux: whether it returns a pair, of which the second is passed on.
        holomorphic: whether it is a holomorphic function of complex numbers.
        allow_int: whether arguments of integers are taken.

    Returns:
        As of `jacfwd`.

    Raises:
        DtypeError: from the function that is returned, if an argument or result is of integers.

    Source: the semantics are those of ``jax.jacrev``.

    >>> import meshard, meshard.numpy as mnp
    >>> meshard.jacrev(lambda x: x[:2] * x[2])(mnp.arange(3.0)).tolist()
    [[2.0, 0.0, 0.0], [0.0, 2.0, 1.0]]
    """
    f, what = checked_function(fun, "jacrev"), "jacrev"
    numbers, has_aux = numbers_of(argnums, what), flag_of(has_aux, what, "has_aux")
    holomorphic = flag_of(holomorphic, what, "holomorphic")
    allow_int = flag_of(allow_int, what, "allow_int")

    @_like(fun, "Jacobian")
    @bounded
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        places = places_of(numbers, len(args), what)
        flat = Flattened.of(what, f, args, kwargs, places, has_aux)
        check_input(what, flat, holomorphic, allow_int)
        results, back = followed(what, flat, flat.leaves, flat.names)
        own, aux = flat.split(results)
        check_results(what, flat, own, holomorphic)
        rest = [None] * (len(results) - len(own))
        moving = [x for x in flat.leaves if differentiable(x)]

        def pull(*cotangents: Any) -> list[Any]:
            found = _cotangents(back([*cotangents, *rest]), flat.leaves, flat.names)
            return [g for g, x in zip(found, flat.leaves, strict=True) if differentiable(x)]

        rows = iter(vmap(pull)(*_basis(own))) if moving else iter(())
        columns: list[list[Any]] = [[] for _ in own]
        for x in flat.leaves:
            if differentiable(x):
                for column, part in zip(columns, _split(next(rows), own, 0), strict=True):
                    column.append(part)
            else:
                for column, y in zip(columns, own, strict=True):
                    column.append(np.zeros((*y.shape, *np.shape(x)), [("float0", np.void, 0)]))
        found = trees.unflatten(flat.out_tree, [_nested(c, flat, argnums) for c in columns])
        return (found, aux) if has_aux else found

    return jacobian


jacobian = jacrev


def hessian(
    fun: Callable[..., Any],
    argnums: Numbers = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable[..., Any]:
    """Return a function that computes the second derivatives, as `jacfwd` of `jacrev`.

    Args and returns: as `jacfwd`, with the argument's dims twice.

    >>> import meshard, meshard.numpy as mnp
    >>> meshard.hessian(lambda x: mnp.sum(x**3))(mnp.arange(3.0)).tolist()
    [[0.0, 0.0, 0.0], [0.0, 6.0, 0.0], [0.0, 0.0, 12.0]]
    """
    inner = jacrev(fun, argnums, has_aux, holomorphic)
    return jacfwd(inner, argnums, has_aux, holomorphic)


def linearize(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Call a function, and return its linear approximation there.

    Args:
        fun: the function, of trees of arrays.
        primals: its arguments.
        has_aux: whether it returns a pair, of which the second is passed on.

    Returns:
        The results, and a function from tangents of the arguments to tangents of the results, which
        does not call ``fun`` again; with ``has_aux`` also what is passed on.

    Source: the semantics are those of ``jax.linearize``.

    >>> import meshard, meshard.numpy as mnp
    >>> y, push = meshard.linearize(mnp.sin, 0.0)
    >>> float(push(3.0))
    3.0
    """
    f = checked_function(fun, "linearize")
    flat = Flattened.of(
        "linearize", f, primals, {}, range(len(primals)), flag_of(has_aux, "linearize", "has_aux")
    )
    what = f"linearize of {flat.name!r}"
    run = recorded(what, flat, flat.leaves, flat.names, forward=True)
    own, aux = flat.split(run.results)
    out_tree = flat.out_tree

    @bounded
    def push(*tangents: Any) -> Any:
        leaves = check_tree(what, tuple(tangents), flat.tree, "tangents")
        given = check_types(what, leaves, flat.leaves, flat.told, "tangent")
        return trees.unflatten(out_tree, _tangents(run.push(given)[: len(own)], own))

    value = trees.unflatten(out_tree, own)
    return (value, push, aux) if has_aux else (value, push)


def linear_transpose(fun: Callable[..., Any], *primals: Any, reduce_axes: Any = ()) -> Any:
    """Return the transpose of a function that is linear.

    Args:
        fun: the function.
        primals: arrays, or anything with a shape and a dtype, like its arguments.
        reduce_axes: accepted as in JAX, and empty.

    Returns:
        A function from cotangents of the results to a tuple of cotangents of the arguments.

    Raises:
        DerivativeError: if an operation is not linear in the arguments.

    >>> import meshard, meshard.numpy as mnp
    >>> back = meshard.linear_transpose(lambda x: 3.0 * x, mnp.ones(2))
    >>> back(mnp.ones(2))[0].tolist()
    [3.0, 3.0]
    """
    from meshard.ops.array.create import zeros

    f = checked_function(fun, "linear_transpose")
    names_of(reduce_axes, "linear_transpose", "reduce_axes")
    kinds = trees.map(typeof, tuple(primals))
    given = trees.map(lambda kind: zeros(kind.shape, kind.dtype), kinds)
    flat = Flattened.of("linear_transpose", f, given, {}, range(len(primals)), False)
    what = f"linear_transpose of {flat.name!r}"
    run = recorded(what, flat, flat.leaves, flat.names)
    found = first_nonlinear(run.tape)
    if found is not None:
        raise DerivativeError(
            f"{what}: it must be linear in all its arguments, but {found} is not. Use vjp, which "
            "takes the values at which a function is approximated."
        )
    own, _ = flat.split(run.results)

    @bounded
    def pull(cotangents: Any) -> Any:
        leaves = check_tree(what, cotangents, flat.out_tree, "cotangents")
        given = check_types(what, leaves, own, lambda i: f"result {i}", "cotangent")
        return trees.unflatten(flat.tree, _cotangents(run.pull(given), flat.leaves, flat.names))

    return pull
