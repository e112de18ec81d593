"""Trees one level at a time, and the structures of their parts.

In: a node or a structure. Out: its children, or whether it is a leaf.

Functions with arguments in place, whose arguments are leaves of trees.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable
from typing import Any

import optree

from meshard.algebra.arguments import function_of, instance_of, items_of, shown
from meshard.errors import TreeError
from meshard.runtime.trees.keys import key_of
from meshard.runtime.trees.nodes import register_pytree_node
from meshard.runtime.trees.trees import IsLeaf, asked, entries_of, level_of, structure_of


def _level(tree: Any) -> tuple[list[Any], Any]:
    try:
        return level_of(tree)
    except ValueError as error:
        raise TreeError(
            f"tree_util.flatten_one_level: {shown(tree)} of type {type(tree).__name__} is a leaf; "
            "its class is not registered as a container."
        ) from error


def flatten_one_level(tree: Any) -> tuple[tuple[Any, ...], Hashable]:
    """Return a container's children, and its other data.

    Args:
        tree: a dict, list, tuple, None or an instance of a registered class.

    Raises:
        TreeError: if it is a leaf.

    >>> from meshard.tree_util import flatten_one_level
    >>> flatten_one_level({"b": [1, 2], "a": 3})
    ((3, [1, 2]), ('a', 'b'))
    """
    children, kept = _level(tree)
    return tuple(children), tuple(kept) if isinstance(kept, list) else kept


def flatten_one_level_with_keys(tree: Any) -> tuple[tuple[tuple[Any, Any], ...], Hashable]:
    """Return a container's children, each with its key, and the container's other data.

    Args:
        tree: a dict, list, tuple, None or an instance of a registered class.

    Raises:
        TreeError: if it is a leaf.

    >>> from meshard.tree_util import flatten_one_level_with_keys
    >>> flatten_one_level_with_keys([5])
    (((SequenceKey(idx=0), 5),), None)
    """
    children, kept = flatten_one_level(tree)
    keys = [key_of(entry) for entry in entries_of(tree)]
    return tuple(zip(keys, children, strict=True)), kept


def is_tree_node(typ: type) -> bool:
    """Return whether instances of a class are containers in trees.

    >>> from meshard.tree_util import is_tree_node
    >>> is_tree_node(dict), is_tree_node(int)
    (True, False)
    """
    instance_of(typ, type, "tree_util.is_tree_node", "typ", advice="Give the class itself.")
    if optree.is_namedtuple_class(typ):
        return True
    return optree.register_pytree_node.get(typ) is not None


def all_leaves(iterable: Iterable[Any], is_leaf: IsLeaf = None) -> bool:
    """Return whether none of the values is a container.

    Args:
        iterable: values.
        is_leaf: called with each; where it returns True, that is a leaf.

    >>> from meshard.tree_util import all_leaves
    >>> all_leaves([1, 2.5]), all_leaves([1, [2]])
    (True, False)
    """
    given = items_of(iterable, "tree_util.all_leaves", "iterable", "values")
    return optree.all_leaves(given, is_leaf=None if is_leaf is None else asked(is_leaf))


def treedef_children(treedef: optree.PyTreeSpec) -> list[optree.PyTreeSpec]:
    """Return the structures of a structure's children.

    Raises:
        ArgumentError: if ``treedef`` is not a structure.

    >>> from meshard.tree_util import tree_structure, treedef_children
    >>> [child.num_leaves for child in treedef_children(tree_structure({"a": [1, 2], "b": 3}))]
    [2, 1]
    """
    structure_of(treedef, "tree_util.treedef_children", "treedef")
    return treedef.children()


def treedef_is_leaf(treedef: optree.PyTreeSpec) -> bool:
    """Return whether a structure is that of a single leaf, or of an empty container.

    Raises:
        ArgumentError: if ``treedef`` is not a structure.

    >>> from meshard.tree_util import tree_structure, treedef_is_leaf
    >>> treedef_is_leaf(tree_structure(3)), treedef_is_leaf(tree_structure([3]))
    (True, False)
    """
    structure_of(treedef, "tree_util.treedef_is_leaf", "treedef")
    return treedef.num_nodes == 1


def treedef_tuple(treedefs: Iterable[optree.PyTreeSpec]) -> optree.PyTreeSpec:
    """Return the structure of a tuple whose items have the given structures.

    Raises:
        ArgumentError: if one of them is not a structure.

    >>> from meshard.tree_util import tree_structure, tree_unflatten, treedef_tuple
    >>> tree_unflatten(treedef_tuple([tree_structure(0), tree_structure([0, 0])]), [1, 2, 3])
    (1, [2, 3])
    """
    what = "tree_util.treedef_tuple"
    given = items_of(treedefs, what, "treedefs", "structures")
    for each in given:
        structure_of(each, what, "treedefs")
    return optree.treespec_tuple(given)


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
