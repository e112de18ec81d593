"""Trees, as ``jax.tree`` names its functions, over optree.

None is an empty tree, not a leaf, as in JAX.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable
from typing import Any

import optree

__all__ = [
    "all",
    "flatten",
    "leaves",
    "map",
    "map_with_path",
    "reduce",
    "structure",
    "transpose",
    "unflatten",
]

IsLeaf = Callable[[Any], bool] | None


def map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """Return the tree with a function applied to each leaf, and to the same leaves of others.

    >>> map(lambda a, b: a + b, {"x": 1}, {"x": 2})
    {'x': 3}
    """
    return optree.tree_map(f, tree, *rest, is_leaf=is_leaf)


def map_with_path(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """Return the tree with a function applied to each leaf's path and value."""
    return optree.tree_map_with_path(f, tree, *rest, is_leaf=is_leaf)


def leaves(tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """Return the leaves in order."""
    return optree.tree_leaves(tree, is_leaf=is_leaf)


def flatten(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], optree.PyTreeSpec]:
    """Return the leaves in order, and the structure."""
    return optree.tree_flatten(tree, is_leaf=is_leaf)


def unflatten(treedef: optree.PyTreeSpec, leaves: Any) -> Any:
    """Return the tree of a structure with given leaves."""
    return optree.tree_unflatten(treedef, leaves)


def structure(tree: Any, is_leaf: IsLeaf = None) -> optree.PyTreeSpec:
    """Return the structure of a tree."""
    return optree.tree_structure(tree, is_leaf=is_leaf)


def reduce(f: Callable[..., Any], tree: Any, *initial: Any, is_leaf: IsLeaf = None) -> Any:
    """Return the leaves folded by a function of two arguments."""
    return functools.reduce(f, leaves(tree, is_leaf), *initial)


def all(tree: Any, *, is_leaf: IsLeaf = None) -> bool:
    """Return whether all leaves are true."""
    return builtins.all(leaves(tree, is_leaf))


def transpose(outer: optree.PyTreeSpec, inner: optree.PyTreeSpec, tree: Any) -> Any:
    """Return a tree of trees with the two structures exchanged."""
    return optree.tree_transpose(outer, inner, tree)
