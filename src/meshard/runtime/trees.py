"""Trees, as ``jax.tree`` names its functions, over optree.

None is an empty tree, not a leaf, as in JAX.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import optree

from meshard.errors import TreeError

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
_ENDLESS = "tree: a list, tuple or dict in it contains itself, or is nested too deeply."


def map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """Return the tree with a function applied to each leaf, and to the same leaves of others.

    Raises:
        TreeError: if the first tree is no prefix of another.

    >>> map(lambda a, b: a + b, {"x": 1}, {"x": 2})
    {'x': 3}
    """
    first, treedef = flatten(tree, is_leaf)
    others = [_up_to(treedef, other) for other in rest]
    return optree.tree_unflatten(treedef, builtins.map(f, first, *others))


def _up_to(treedef: optree.PyTreeSpec, tree: Any) -> list[Any]:
    """Return what stands in a tree at the leaves of a structure."""
    with _refusing("the first tree must be a prefix of the others"):
        return treedef.flatten_up_to(tree)


@contextlib.contextmanager
def _refusing(law: str) -> Iterator[None]:
    """Turn optree's errors into ours."""
    try:
        yield
    except RecursionError:
        raise TreeError(_ENDLESS) from None
    except (ValueError, TypeError) as error:
        raise TreeError(f"tree: {law}: {mismatch(error)}.") from error


def mismatch(error: Exception) -> str:
    """Return what optree finds wrong with a tree, without the tree itself, which may be large."""
    return re.split(r"; (?!expected)\w+: ", str(error), maxsplit=1)[0].rstrip(".")


def map_with_path(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """Return the tree with a function applied to each leaf's path and value."""
    with _refusing("its leaves cannot be listed"):
        paths, first, treedef = optree.tree_flatten_with_path(tree, is_leaf=is_leaf)
    others = [_up_to(treedef, other) for other in rest]
    return optree.tree_unflatten(treedef, builtins.map(f, paths, first, *others))


def leaves(tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """Return the leaves in order."""
    return flatten(tree, is_leaf)[0]


def flatten(
    tree: Any, is_leaf: IsLeaf = None, *, none_is_leaf: bool = False
) -> tuple[list[Any], optree.PyTreeSpec]:
    """Return the leaves in order, and the structure.

    Raises:
        TreeError: if the tree contains itself, or its keys cannot be sorted.
    """
    try:
        return optree.tree_flatten(tree, is_leaf=is_leaf, none_is_leaf=none_is_leaf)
    except RecursionError:
        raise TreeError(_ENDLESS) from None


def flatten_with_path(
    tree: Any, is_leaf: IsLeaf = None
) -> tuple[list[tuple[tuple[Any, ...], Any]], optree.PyTreeSpec]:
    """Return pairs of path and leaf in order, and the structure.

    A path is the tuple of keys, positions and names that lead to the leaf.

    >>> flatten_with_path({"x": [3, 4]})[0]
    [(('x', 0), 3), (('x', 1), 4)]
    """
    with _refusing("its leaves cannot be listed"):
        paths, found, treedef = optree.tree_flatten_with_path(tree, is_leaf=is_leaf)
    return list(zip(paths, found, strict=True)), treedef


def leaves_with_path(tree: Any, is_leaf: IsLeaf = None) -> list[tuple[tuple[Any, ...], Any]]:
    """Return pairs of path and leaf in order."""
    return flatten_with_path(tree, is_leaf)[0]


def broadcast(prefix_tree: Any, full_tree: Any, is_leaf: IsLeaf = None) -> Any:
    """Return the full tree's structure with each leaf the one of the prefix above it.

    Raises:
        TreeError: if it is no prefix.

    >>> broadcast({"x": 1, "y": 2}, {"x": [0, 0], "y": 0})
    {'x': [1, 1], 'y': 2}
    """
    with _refusing("the one must be a prefix of the other"):
        return optree.tree_broadcast_prefix(prefix_tree, full_tree, is_leaf=is_leaf)


def unflatten(treedef: optree.PyTreeSpec, leaves: Any) -> Any:
    """Return the tree of a structure with given leaves.

    Raises:
        TreeError: if there are too many or too few.
    """
    given = list(leaves)
    with _refusing(f"{len(given)} leaves are given for a structure of {treedef.num_leaves}"):
        return optree.tree_unflatten(treedef, given)


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

    Raises:
        TreeError: if it is not made so.

    >>> transpose(structure([0, 0]), structure({"x": 0}), [{"x": 1}, {"x": 2}])
    {'x': [1, 2]}
    """
    if inner is None:
        found = _up_to(outer, tree)
        inner = structure(found[0] if found else ())
    with _refusing("the tree must have the outer structure, and within it the inner one"):
        return optree.tree_transpose(outer, inner, tree)
