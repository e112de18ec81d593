"""Functions with arguments in place, whose arguments are leaves of trees."""

from __future__ import annotations

import functools
from typing import Any

from meshard.algebra.arguments import function_of
from meshard.runtime.trees.nodes import register_pytree_node


class Partial(functools.partial[Any]):
    """A function with some of its arguments in place, which is a tree of these arguments.

    The arguments are leaves and the function is part of the structure, so that a Partial can be
    handed to `meshard.jit` and to the branches of `meshard.lax.cond`.

    Args:
        func: the function.
        *args: its first positional arguments, each a tree.
        **kw: keyword arguments, each a tree.

    Raises:
        ArgumentError: if ``func`` is not callable.

    >>> import meshard, meshard.numpy as mnp
    >>> from meshard.tree_util import Partial, tree_leaves
    >>> scaled = Partial(mnp.multiply, 3)
    >>> tree_leaves(scaled), meshard.jit(lambda f, x: f(x))(scaled, mnp.arange(3)).tolist()
    ([3], [0, 3, 6])
    """

    def __new__(cls, func: Any, *args: Any, **kw: Any) -> Partial:
        """Return the function with its arguments in place."""
        if isinstance(func, functools.partial):  # two of them stay two levels of a tree
            inner, func = func, _Kept(func)
            functools.update_wrapper(func, inner.func, updated=())
        return super().__new__(cls, function_of(func, "tree_util.Partial", "func"), *args, **kw)

    def __repr__(self) -> str:
        parts = [repr(self.func), *map(repr, self.args)]
        parts += [f"{name}={value!r}" for name, value in self.keywords.items()]
        return f"Partial({', '.join(parts)})"


class _Kept:
    """A partial function that functools does not merge into the one that holds it."""

    def __init__(self, func: functools.partial[Any]) -> None:
        self.partial = func

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.partial(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kept) and self.partial == other.partial

    def __hash__(self) -> int:
        return hash(self.partial)

    def __repr__(self) -> str:
        return repr(self.partial)


register_pytree_node(
    Partial,
    lambda partial: ((partial.args, partial.keywords), partial.func),
    lambda func, parts: Partial(func, *parts[0], **parts[1]),
)
