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
    "broadcast",
    "flatten",
    "flatten_with_path",
    "leaves",
    "leaves_with_path",
    "map",
    "map_with_path",
    "reduce",
    "structure",
    "transpose",
    "unflatten",
]

IsLeaf = Callable[[Any], bool] | None
_NOTHING = object()


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


def flatten_with_path(
    tree: Any, is_leaf: IsLeaf = None
) -> tuple[list[tuple[tuple[Any, ...], Any]], optree.PyTreeSpec]:
    """Return pairs of path and leaf in order, and the structure.

    A path is the tuple of keys, positions and names that lead to the leaf.

    >>> flatten_with_path({"x": [3, 4]})[0]
    [(('x', 0), 3), (('x', 1), 4)]
    """
    paths, found, treedef = optree.tree_flatten_with_path(tree, is_leaf=is_leaf)
    return list(zip(paths, found, strict=True)), treedef


def leaves_with_path(tree: Any, is_leaf: IsLeaf = None) -> list[tuple[tuple[Any, ...], Any]]:
    """Return pairs of path and leaf in order."""
    return flatten_with_path(tree, is_leaf)[0]


def broadcast(prefix_tree: Any, full_tree: Any, is_leaf: IsLeaf = None) -> Any:
    """Return the full tree's structure with each leaf the one of the prefix above it.

    >>> broadcast({"x": 1, "y": 2}, {"x": [0, 0], "y": 0})
    {'x': [1, 1], 'y': 2}
    """
    return optree.tree_broadcast_prefix(prefix_tree, full_tree, is_leaf=is_leaf)


def unflatten(treedef: optree.PyTreeSpec, leaves: Any) -> Any:
    """Return the tree of a structure with given leaves."""
    return optree.tree_unflatten(treedef, leaves)


def structure(tree: Any, is_leaf: IsLeaf = None) -> optree.PyTreeSpec:
    """Return the structure of a tree."""
    return optree.tree_structure(tree, is_leaf=is_leaf)


def reduce(
    function: Callable[..., Any], tree: Any, initializer: Any = _NOTHING, is_leaf: IsLeaf = None
) -> Any:
    """Return the leaves folded by a function of two arguments.

    >>> reduce(lambda a, b: a + b, {"x": 1, "y": [2, 3]}, 10)
    16
    """
    first = () if initializer is _NOTHING else (initializer,)
    return functools.reduce(function, leaves(tree, is_leaf), *first)


def all(tree: Any, *, is_leaf: IsLeaf = None) -> bool:
    """Return whether all leaves are true."""
    return builtins.all(leaves(tree, is_leaf))


def transpose(outer: optree.PyTreeSpec, inner: optree.PyTreeSpec | None, tree: Any) -> Any:
    """Return a tree of trees with the two structures exchanged.

    Args:
        outer: the structure of the outer tree.
        inner: the structure of the trees inside; None for that of the first one.
        tree: the tree of trees.

    >>> transpose(structure([0, 0]), structure({"x": 0}), [{"x": 1}, {"x": 2}])
    {'x': [1, 2]}
    """
    if inner is None:
        inner = structure(outer.flatten_up_to(tree)[0])
    return optree.tree_transpose(outer, inner, tree)
