"""Prefixes: shardings given as a tree, matched with the arrays of another tree by name.

In: a tree of shardings, and a tree with a `Name` for each array. Out: the sharding of each name.
"""

from __future__ import annotations

from typing import Any, final

from meshard.runtime.moving.make import prefix_leaves
from meshard.runtime.trees.trees import flatten_with_accessors


@final
class Name:
    """Stands for an array in a tree that is matched with one of shardings."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def by_prefix(given: Any, tree: Any, what: str) -> dict[str, Any]:
    """Return the sharding of each name, of a tree of shardings that is a prefix of theirs.

    A dict of shardings needs no key for numbers and strings.

    Raises:
        TreeError: if it is not a prefix.
    """
    tree = _without_values(given, tree)
    _, leaves, _ = flatten_with_accessors(tree)
    prefixes = prefix_leaves(given, tree, what, "shardings")
    return {
        leaf.text: sharding
        for leaf, sharding in zip(leaves, prefixes, strict=True)
        if isinstance(leaf, Name)
    }


def _without_values(given: Any, tree: Any) -> Any:
    """Return a tree without the numbers and strings for which a dict of shardings has no key."""
    if type(given) is not dict or type(tree) is not dict:
        return tree
    plain = (bool, int, float, str)
    return {
        key: _without_values(given.get(key), node)
        for key, node in tree.items()
        if key in given or not isinstance(node, plain)
    }
