"""Abstract evaluation: what a function returns, without computing it.

In: a function and the types of its arguments. Out: the types of its results.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final, overload

from meshard.algebra.arguments import function_of
from meshard.ops.engine.eager import WEAK
from meshard.ops.engine.later import AbstractArray, Weak, inferred, number_type
from meshard.runtime.array.array import Array
from meshard.runtime.array.traced import Traced
from meshard.runtime.doors import Interpreter, Params, innermost, interpreting
from meshard.runtime.moving.place import as_array, home
from meshard.runtime.moving.structs import ShapeDtypeStruct, typeof
from meshard.runtime.trees import trees
from meshard.runtime.types import ArrayType
from meshard.runtime.world import here
from meshard.transforms.body.body import COLLECTIVES, Body
from meshard.transforms.body.branches import abstract_grid, empty_mask, local_type
from meshard.transforms.body.grid import Grid
from meshard.transforms.body.mapped_axes import result_of


def written_type(name: str, operands: Sequence[Any], params: Params) -> ArrayType:
    """Return the type of what a collective over axes that `vmap` has bound gives."""
    x = operands[0] if operands else as_array(0)
    shape, dtype = result_of(name, x.shape, x.dtype, dict(params), {})
    world = here()
    return world.type_of(shape, dtype, home(world), False)


@final
class _Abstract(Interpreter):
    """Runs each operation on types alone."""

    in_program = True

    def run(self, name: str, operands: tuple[Any, ...], params: Params) -> Any:
        """Return the result's type as a value without data."""
        if name in COLLECTIVES:
            return AbstractArray(written_type(name, [as_array(x) for x in operands], params))
        types: list[tuple[ArrayType | type, Weak]] = []
        for x in operands:
            if type(x) in WEAK:
                types.append((type(x), number_type(x)))
            elif isinstance(x, int):  # a Python number of a kind of its own
                types.append((int, int))
            else:
                types.append((as_array(x)._type, weak_type(x)))
        if not any(isinstance(t, ArrayType) for t, _ in types):
            types[0] = as_array(operands[0])._type, types[0][1]
        results = tuple(
            [AbstractArray(t, weak) for t, weak in inferred(here(), name, types, params)]
        )
        return results[0] if len(results) == 1 else results

    def make_later(
        self,
        name: str,
        type_: ArrayType,
        make: Callable[..., Any],
        operands: Sequence[Any],
        asked: bool,
        place: Callable[[ArrayType], ArrayType] | None,
    ) -> AbstractArray:
        """Return the array without data."""
        return AbstractArray(type_)

    def lay_out(self, x: Any, type_: ArrayType, what: str) -> AbstractArray:
        """Return an array of the type without data."""
        return AbstractArray(type_)


_ABSTRACT = _Abstract()


def is_abstract() -> bool:
    """Whether the code at hand is evaluated for its types alone, outside of shard_map bodies."""
    return innermost() is _ABSTRACT


def weak_type(x: Any) -> Weak:
    """Return the type of the Python number that a value is, or stands for; None for others."""
    if isinstance(x, AbstractArray):
        return x.weak
    return x.kind.weak if type(x) is Grid else number_type(x)


@contextlib.contextmanager
def types_only(body: Body | None, varies: frozenset[str] = frozenset()) -> Iterator[None]:
    """Compute nothing but types.

    Args:
        body: the body that the code is in; None outside of all bodies.
        varies: the axes over which a condition varies that decides whether the code runs.
    """
    if body is None:
        with interpreting(_ABSTRACT):
            yield
        return
    recorder, body.recorder = body.recorder, None
    try:
        with body.under(empty_mask(body, varies)):
            yield
    finally:
        body.recorder = recorder


def abstractly(f: Callable[..., Any], *args: Any) -> Any:
    """Call a function so that nothing is computed; its results have types and no data."""
    body = innermost()
    if isinstance(body, Body):
        with types_only(body):
            return f(*args)
    with types_only(None):
        return f(*trees.map(lambda x: AbstractArray(x._type) if type(x) is Array else x, args))


@overload
def eval_shape(f: Callable[..., Array], /, *args: Any, **kwargs: Any) -> ShapeDtypeStruct: ...
@overload
def eval_shape(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...
def eval_shape(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Return the shapes and dtypes of a function's results, without computing them.

    Args:
        f: the function.
        args: trees of arrays, values, or `ShapeDtypeStruct`.
        kwargs: the same, by name.

    Returns:
        The tree of results, each a `ShapeDtypeStruct`.

    Raises:
        ConcretizationError: if the function looks at values.

    >>> import meshard, meshard.numpy as mnp
    >>> meshard.eval_shape(mnp.matmul, mnp.ones((2, 3)), mnp.ones((3, 4)))
    ShapeDtypeStruct(shape=(2, 4), dtype=float64)
    """
    function_of(f, "eval_shape", "f")
    body = innermost()
    inside = body if isinstance(body, Body) else None

    def typed(x: Any) -> Any:
        if isinstance(x, Traced):
            return x
        kind = typeof(x)
        if inside is None:
            return AbstractArray(kind, number_type(x))
        local = inside.scope.kind(local_type(inside.scope, kind.shape, kind.dtype), (), frozenset())
        return abstract_grid(inside, local)

    values, named = trees.map(typed, args), trees.map(typed, dict(kwargs))
    return trees.map(_struct, abstractly(lambda: f(*values, **named)))


def _struct(x: Any) -> ShapeDtypeStruct:
    kind = typeof(x)
    return ShapeDtypeStruct(kind.shape, kind.dtype)
