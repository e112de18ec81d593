"""Abstract evaluation: what a function returns, without computing it.

In: a function and the types of its arguments. Out: the types of its results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, final

from meshard.errors import ArgumentError, ConcretizationError
from meshard.ops.decide import decide_kernel, decide_move
from meshard.ops.registry import REGISTRY, MoveOp
from meshard.runtime import trees
from meshard.runtime.array import Array
from meshard.runtime.place import as_array
from meshard.runtime.primitive import Params, innermost, interpreting
from meshard.runtime.structs import ShapeDtypeStruct, typeof
from meshard.runtime.traced import Traced
from meshard.runtime.types import ArrayType, Block
from meshard.runtime.world import RuntimeWorld, here

from .body import Body
from .branches import empty_mask

__all__ = ["abstractly", "eval_shape"]

_WEAK = (bool, int, float, complex)


@final
class Ghost(Traced):
    """An array of which only the type is known."""

    __slots__ = ()

    def __init__(self, type: ArrayType) -> None:
        self._type = type

    def _concrete(self, what: str) -> Block:
        raise ConcretizationError(
            f"{what}: this {self._type.str_short()} is evaluated abstractly, for its shape and "
            "dtype only, and has no value. Where a branch or a loop depends on values use lax.cond "
            "or lax.while_loop."
        )

    def __repr__(self) -> str:
        return self._type.str_short()

    __str__ = __repr__


@final
class _Abstract:
    """Runs each operation on types alone."""

    axis_sizes: Mapping[str, int] = MappingProxyType({})

    def run(self, name: str, operands: tuple[Any, ...], params: Params) -> Any:
        """Return the result's type as a value without data."""
        world = here()
        types = tuple([type(x) if type(x) in _WEAK else as_array(x)._type for x in operands])
        if not any(isinstance(t, ArrayType) for t in types):
            types = (as_array(operands[0])._type, *types[1:])
        found = _inferred(world, name, types, params)
        results = tuple([Ghost(t) for t in found])
        return results[0] if len(results) == 1 else results


_ABSTRACT = _Abstract()


def _inferred(
    world: RuntimeWorld, name: str, types: tuple[ArrayType | type, ...], params: Params
) -> tuple[ArrayType, ...]:
    key = ("infer", name, types, params)
    found: tuple[ArrayType, ...] | None = world.decisions.get(key)
    if found is None:
        row = REGISTRY.get(name)
        if row is None:
            raise ArgumentError(f"There is no operation named {name!r}.")
        if isinstance(row, MoveOp):
            arrays = [t for t in types if isinstance(t, ArrayType)]
            found = (decide_move(world, row, arrays, dict(params)).output,)
        else:
            found = decide_kernel(world, row, types, dict(params)).outputs
        world.decided(key, found)
    return found


def abstractly(f: Callable[..., Any], *args: Any) -> Any:
    """Call a function so that nothing is computed; its results have types and no data."""
    interpreter = innermost()
    if isinstance(interpreter, Body):
        with interpreter.under(empty_mask(interpreter)):
            return f(*args)
    ghosts = trees.map(lambda x: Ghost(x._type) if type(x) is Array else x, args)
    with interpreting(_ABSTRACT):
        return f(*ghosts)


def eval_shape(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Return the shapes and dtypes of a function's results, without computing them.

    Args:
        f: the function.
        args: trees of arrays, values, or `ShapeDtypeStruct`.
        kwargs: likewise, by name.

    Returns:
        The tree of results, each a `ShapeDtypeStruct`.

    Raises:
        ConcretizationError: if the function looks at values.

    >>> import meshard, meshard.numpy as mnp
    >>> meshard.eval_shape(mnp.matmul, mnp.ones((2, 3)), mnp.ones((3, 4)))
    ShapeDtypeStruct(shape=(2, 4), dtype=float64)
    """

    def ghost(x: Any) -> Any:
        return x if isinstance(x, Traced) else Ghost(typeof(x))

    named = dict(kwargs)
    ghosts, more = trees.map(ghost, args), trees.map(ghost, named)
    if isinstance(innermost(), Body):
        ghosts, more = args, named
    result = abstractly(lambda *a: f(*a, **more), *ghosts)
    return trees.map(_struct, result)


def _struct(x: Any) -> ShapeDtypeStruct:
    kind = typeof(x)
    return ShapeDtypeStruct(kind.shape, kind.dtype)
