"""Trees with the path to each leaf, as the functions of ``jax.tree_util`` give it.

In: a tree. Out: its leaves, each with the tuple of keys that lead to it.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import optree

from meshard.algebra.arguments import function_of
from meshard.runtime.trees.keys import KeyPath, key_of
from meshard.runtime.trees.trees import (
    ORDER,
    IsLeaf,
    asked,
    flatten_with_accessors,
    up_to,
)


def flatten_with_path(
    tree: Any, is_leaf: IsLeaf = None
) -> tuple[list[tuple[KeyPath, Any]], optree.PyTreeSpec]:
    """Return pairs of path and leaf in order, and the structure.

    A path is the tuple of keys that lead to the leaf: of `DictKey`, `SequenceKey`, `GetAttrKey` and
    `FlattenedIndexKey`, and of what a class names its children. ``keystr`` prints it.

    Args:
        tree: the tree.
        is_leaf: called with each node; where it returns True, that is a leaf.

    Raises:
        TreeError: if the tree contains itself.

    >>> from meshard.tree import flatten_with_path
    >>> flatten_with_path({"x": [3]})[0]
    [((DictKey(key='x'), SequenceKey(idx=0)), 3)]
    """
    if is_leaf is not None:
        is_leaf = asked(is_leaf)
    accessors, found, treedef = flatten_with_accessors(tree, is_leaf, none_is_leaf=False)
    paths = [tuple([key_of(entry) for entry in accessor]) for accessor in accessors]
    return list(zip(paths, found, strict=True)), treedef


def leaves_with_path(tree: Any, is_leaf: IsLeaf = None) -> list[tuple[KeyPath, Any]]:
    """Return pairs of path and leaf in order.

    >>> from meshard import tree
    >>> from meshard.tree_util import keystr
    >>> {keystr(path): leaf for path, leaf in tree.leaves_with_path({"x": [3, 4]})}
    {"['x'][0]": 3, "['x'][1]": 4}
    """
    return flatten_with_path(tree, is_leaf)[0]


def map_with_path(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """Return the tree with a function applied to each leaf's path and value.

    Raises:
        TreeError: if the first tree is not a prefix of another, or a tree contains itself.
        ArgumentError: if ``f`` is not a function.

    >>> from meshard import tree
    >>> from meshard.tree_util import keystr
    >>> tree.map_with_path(lambda path, leaf: keystr(path, simple=True, separator="/"), {"x": [3]})
    {'x': ['x/0']}
    """
    function_of(f, "tree.map_with_path", "f", ORDER)
    pairs, treedef = flatten_with_path(tree, is_leaf)
    paths, first = [path for path, _ in pairs], [leaf for _, leaf in pairs]
    others = [up_to(treedef, other) for other in rest]
    return optree.tree_unflatten(treedef, builtins.map(f, paths, first, *others))
