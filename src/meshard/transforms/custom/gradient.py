"""`custom_gradient` and `closure_convert`: functions that were made while others ran.

In: a function that uses values of the code around it. Out: one that takes them as arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from meshard.algebra.arguments import described, function_of
from meshard.algebra.boundary import bounded
from meshard.errors import TreeError
from meshard.runtime.array.traced import Traced
from meshard.runtime.trees import trees
from meshard.runtime.trees.nodes import register_pytree_node
from meshard.transforms.custom.custom import custom_vjp
from meshard.transforms.derivatives.arguments import name_of, strong, value_of
from meshard.transforms.derivatives.levels import differentiable
from meshard.transforms.program.program import Program, evaluate
from meshard.transforms.tracing.tracing import sub_program


@final
@dataclass(frozen=True, eq=False)
class _Converted:
    """A function as a program, without the values that it captures.

    Attributes:
        program: the program; it captures all that the function does not take.
        in_tree: the tree of its arguments.
        out_tree: the tree of its results.
        name: the function's name.
    """

    program: Program
    in_tree: Any
    out_tree: Any
    name: str

    def __call__(self, captured: Sequence[Any], args: tuple[Any, ...]) -> Any:
        leaves, tree = trees.flatten(args)
        if tree != self.in_tree:
            raise TreeError(
                f"{self.name} was made for arguments of the tree {self.in_tree}, but was called "
                f"with {tree}."
            )
        values = [strong(value_of(x, f"{self.name}: an argument")) for x in leaves]
        found = evaluate(self.program, captured, values)
        return trees.unflatten(self.out_tree, [strong(y) for y in found])


def _converted(f: Callable[..., Any], args: tuple[Any, ...]) -> tuple[_Converted, list[Any]]:
    """Return a function without the values that it captures, and these."""
    leaves, tree = trees.flatten(args)
    name = name_of(f)
    given = [strong(value_of(x, f"{name}: an argument")) for x in leaves]
    kept: list[Any] = []

    def flat(*values: Any) -> list[Any]:
        found, structure = trees.flatten(f(*trees.unflatten(tree, list(values))))
        kept[:] = [structure]
        return [strong(value_of(y, f"a result of {name!r}")) for y in found]

    program, captured = sub_program(name, flat, given)
    return _Converted(program, tree, kept[0], name), captured


def closure_convert(
    fun: Callable[..., Any], *example_args: Any
) -> tuple[Callable[..., Any], list[Any]]:
    """Return a function that takes what another captures as arguments, and these.

    A function with a derivative of its own cannot use values that are differentiated unless it
    takes them as arguments; this makes them some for a function that it gets.

    Args:
        fun: the function, which is traced.
        example_args: arguments of the types that it will be called with.

    Returns:
        A function of the arguments of ``fun`` and then of what it captured, and a list of that: the
        floats that are traced or followed.

    Raises:
        ArgumentError: if ``fun`` is not a function. The function that is returned raises
            `TreeError` for arguments of another structure.

    Source: the semantics are those of ``jax.closure_convert``.

    >>> import meshard, meshard.numpy as mnp
    >>> def slope(y):
    ...     f, captured = meshard.closure_convert(lambda x: x * y, 1.0)
    ...     return f(2.0, *captured)
    >>> float(meshard.grad(slope)(3.0))
    2.0
    """
    f = function_of(fun, "closure_convert", "fun")
    converted, captured = _converted(f, example_args)
    moves = [isinstance(x, Traced) and differentiable(x) for x in captured]
    count = len(example_args)

    @functools.wraps(fun)
    @bounded
    def function(*args: Any) -> Any:
        rest = iter(args[count:])
        every = [next(rest) if moved else x for x, moved in zip(captured, moves, strict=True)]
        return converted(every, args[:count])

    return function, [x for x, moved in zip(captured, moves, strict=True) if moved]


@final
@dataclass(frozen=True)
class _Kept:
    """What a rule of `custom_gradient` keeps: a node of trees."""

    captured: list[Any]
    rule: _Converted


register_pytree_node(
    _Kept, lambda kept: (kept.captured, kept.rule), lambda rule, own: _Kept(list(own), rule)
)


def custom_gradient(fun: Callable[..., Any]) -> custom_vjp:
    """Return a function with a derivative that it returns beside its result.

    Args:
        fun: a function that returns a pair: the results, and a function from their cotangents to
            those of the arguments, a tuple; of one argument it may be the cotangent itself.

    Returns:
        A function that returns the results alone.

    Raises:
        ArgumentError: if ``fun`` is not a function. The function that is returned raises
            `TreeError` if it does not return a pair.

    Source: the semantics are those of ``jax.custom_gradient``.

    >>> import meshard, meshard.numpy as mnp
    >>> @meshard.custom_gradient
    ... def half(x):
    ...     return x, lambda g: g / 2
    >>> float(meshard.grad(half)(3.0))
    0.5
    """
    f = function_of(fun, "custom_gradient", "fun")

    def pair(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Callable[..., Any]]:
        found = f(*args, **kwargs)
        if not isinstance(found, (tuple, list)) or len(found) != 2 or not callable(found[1]):
            raise TreeError(
                f"{name_of(f)} is a custom_gradient function, which must return a pair of its "
                "results and a function from their cotangents to those of its arguments; it "
                f"returned {described(found)}."
            )
        return found[0], found[1]

    @custom_vjp
    @functools.wraps(fun)
    def function(*args: Any, **kwargs: Any) -> Any:
        return pair(args, kwargs)[0]

    def forth(*args: Any, **kwargs: Any) -> tuple[Any, _Kept]:
        results, rule = pair(args, kwargs)
        converted, captured = _converted(rule, (results,))
        return results, _Kept(captured, converted)

    def back(kept: _Kept, cotangents: Any) -> Any:
        found = kept.rule(kept.captured, (cotangents,))
        return found if isinstance(found, (tuple, list)) else (found,)

    function.defvjp(forth, back)
    return function
