"""Trees: the functions of ``jax.tree``, over optree.

None is an empty tree, not a leaf, as in JAX. All trees are taken apart here, so that a tree that
contains itself is refused in one place.

Trees with the path to each leaf, as the functions of ``jax.tree_util`` give it.

In: a tree. Out: its leaves, each with the tuple of keys that lead to it.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import optree

from meshard.algebra.arguments import flag_of, function_of, instance_of, items_of, shown
from meshard.errors import TreeError, nearest
from meshard.runtime.trees.keys import KeyPath, key_of, plain
from meshard.runtime.trees.structures import PyTreeSpec as PyTreeSpec

IsLeaf = Callable[[Any], bool] | None
_NOTHING = object()
_ENDLESS = "tree: a list, tuple or dict in it contains itself, or is nested too deeply."


def map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """Return the tree with a function applied to each leaf, and to the same leaves of others.

    Raises:
        TreeError: if the first tree is not a prefix of another, or a tree contains itself.
        ArgumentError: if ``f`` is not a function.

    >>> from meshard import tree
    >>> tree.map(lambda a, b: a + b, {"x": 1}, {"x": 2})
    {'x': 3}
    """
    function_of(f, "tree.map", "f", ORDER)
    first, treedef = flatten(tree, is_leaf)
    others = [up_to(treedef, other) for other in rest]
    return optree.tree_unflatten(treedef, builtins.map(f, first, *others))


ORDER = "The function comes first, and the trees after it."


def up_to(treedef: optree.PyTreeSpec, tree: Any) -> list[Any]:
    """Return the parts of a tree at the leaves of a structure."""
    with refusing("the first tree must be a prefix of the others"):
        return treedef.flatten_up_to(tree)


@contextlib.contextmanager
def refusing(law: str) -> Iterator[None]:
    """Turn optree's errors into ours."""
    try:
        yield
    except RecursionError as error:
        raise endless() from error
    except (ValueError, TypeError) as error:
        raise TreeError(f"tree: {law}: {mismatch(error)}.") from error


def endless(name: str = "a tree") -> TreeError:
    """Return the refusal of a tree that contains itself."""
    return TreeError(
        f"tree: {name} contains itself, or is nested thousands of levels deep, so it cannot be "
        "flattened. Put each container into another one only once, from the outside in."
    )


def mismatch(error: Exception) -> str:
    """Return optree's complaint about a tree, without the tree itself, which may be large."""
    text = re.split(r"; (?!expected)\w+: ", str(error), maxsplit=1)[0].rstrip(".")
    keys = _KEYS.search(text)
    missing, extra = (re.findall(r"'([^']*)'", keys[part]) if keys else [] for part in (1, 2))
    meant = [f"; {k!r} may be meant as {near[0]!r}" for k in extra if (near := nearest(k, missing))]
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
    return text + "".join(meant[:1])


_KEYS = re.compile(r"missing key\(s\): \[([^]]*)\], extra key\(s\): \[([^]]*)\]")
_LONGEST = 400


def leaves(tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """Return the leaves in order; None is not a leaf.

    >>> from meshard import tree
    >>> tree.leaves({"b": [1, None, 2], "a": 0})
    [0, 1, 2]
    """
    return flatten(tree, is_leaf)[0]


def flatten(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], optree.PyTreeSpec]:
    """Return the leaves in order, and the structure.

    Args:
        tree: the tree.
        is_leaf: called with each node; where it returns True, that is a leaf.

    Raises:
        TreeError: if the tree contains itself.

    >>> from meshard import tree
    >>> leaves, structure = tree.flatten({"w": [1, 2], "b": 3})
    >>> leaves, tree.unflatten(structure, [30, 10, 20])
    ([3, 1, 2], {'w': [10, 20], 'b': 30})
    """
    if is_leaf is not None:
        is_leaf = asked(is_leaf)
    try:
        return optree.tree_flatten(tree, is_leaf=is_leaf)
    except RecursionError as error:
        raise endless() from error


def flatten_with_none(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], optree.PyTreeSpec]:
    """Return the leaves in order, including each None, and the structure."""
    try:
        return optree.tree_flatten(tree, is_leaf=is_leaf, none_is_leaf=True)
    except RecursionError as error:
        raise endless() from error


def flatten_with_accessors(
    tree: Any, is_leaf: IsLeaf = None, *, none_is_leaf: bool = True
) -> tuple[list[Any], list[Any], optree.PyTreeSpec]:
    """Return the path to each leaf, the leaves, including each None, and the structure."""
    try:
        return optree.tree_flatten_with_accessor(tree, is_leaf=is_leaf, none_is_leaf=none_is_leaf)
    except RecursionError as error:
        raise endless() from error


def children_of(node: Any) -> list[tuple[Any, Any]] | None:
    """Return the children of a container, each with its key; None if the node is a leaf.

    >>> children_of({"x": [3, 4]}), children_of(3)
    ([('x', [3, 4])], None)
    """
    try:
        children, _, entries, *_ = optree.tree_flatten_one_level(node, none_is_leaf=False)
    except ValueError:  # a leaf
        return None
    return [(plain(key), child) for key, child in zip(entries, children, strict=True)]


def level_of(node: Any) -> tuple[list[Any], Any]:
    """Return the children of a container, and its other data.

    Raises:
        ValueError: if the node is a leaf.
    """
    children, kept, *_ = optree.tree_flatten_one_level(node)
    return children, kept


def entries_of(node: Any) -> list[optree.PyTreeEntry]:
    """Return how each child of a container is reached."""
    found: Any = optree.tree_flatten_one_level(node)
    return [found.path_entry_type(entry, type(node), found.kind) for entry in found.entries]


def asked(is_leaf: Any) -> IsLeaf:
    """Return a function that calls another one and checks that it returns True or False."""
    function_of(is_leaf, "tree", "is_leaf")
    return lambda node: flag_of(is_leaf(node), "tree", "what is_leaf returns")


def flatten_with_plain_path(
    tree: Any, is_leaf: IsLeaf = None
) -> tuple[list[tuple[tuple[Any, ...], Any]], optree.PyTreeSpec]:
    """Return pairs of path and leaf in order, and the structure, for what meshard prints.

    A path is the tuple of dict keys, positions and names that lead to the leaf.

    >>> flatten_with_plain_path({"x": [3, 4]})[0]
    [(('x', 0), 3), (('x', 1), 4)]
    """
    if is_leaf is not None:
        is_leaf = asked(is_leaf)
    try:
        paths, found, treedef = optree.tree_flatten_with_path(tree, is_leaf=is_leaf)
    except RecursionError as error:
        raise endless() from error
    plain_paths = [tuple([plain(key) for key in path]) for path in paths]
    return list(zip(plain_paths, found, strict=True)), treedef


def leaves_with_plain_path(tree: Any, is_leaf: IsLeaf = None) -> list[tuple[tuple[Any, ...], Any]]:
    """Return pairs of path and leaf in order, for what meshard prints."""
    return flatten_with_plain_path(tree, is_leaf)[0]


def broadcast(prefix_tree: Any, full_tree: Any, is_leaf: IsLeaf = None) -> Any:
    """Return a tree of the full structure, where each leaf is the prefix's leaf above it.

    Raises:
        TreeError: if it is not a prefix.

    >>> from meshard.tree import broadcast
    >>> broadcast({"x": 1, "y": 2}, {"x": [0, 0], "y": 0})
    {'x': [1, 1], 'y': 2}
    """
    if is_leaf is not None:
        is_leaf = asked(is_leaf)
    with refusing("the one must be a prefix of the other"):
        return optree.tree_broadcast_prefix(prefix_tree, full_tree, is_leaf=is_leaf)


def broadcast_leaves(
    prefix: Any, tree: Any, is_leaf: IsLeaf = None, *, none_is_leaf: bool = False
) -> list[Any]:
    """Return for each leaf of a tree the leaf of a prefix above it.

    Raises:
        ValueError: if it is not a prefix; the message does not name the trees.
        TreeError: if one of the two contains itself.
    """
    try:
        found = optree.broadcast_prefix(prefix, tree, is_leaf=is_leaf, none_is_leaf=none_is_leaf)
        # A dict and an OrderedDict of the same keys match, whose leaves are in different orders:
        # so the leaves of the tree are numbered, and told apart below each leaf of the prefix.
        structure = optree.tree_structure(tree, is_leaf=is_leaf, none_is_leaf=none_is_leaf)
        numbers = optree.tree_unflatten(structure, range(len(found)))
        given, outer = optree.tree_flatten(prefix, is_leaf=is_leaf, none_is_leaf=none_is_leaf)
        for leaf, below in zip(given, outer.flatten_up_to(numbers), strict=True):
            for number in optree.tree_leaves(below, none_is_leaf=none_is_leaf):
                found[number] = leaf
        return found
    except RecursionError as error:
        raise endless() from error


def unflatten(treedef: optree.PyTreeSpec, leaves: Any) -> Any:
    """Return the tree of a structure with given leaves.

    Raises:
        TreeError: if there are too many or too few.
        ArgumentError: if ``treedef`` is not a structure.

    >>> from meshard import tree
    >>> tree.unflatten(tree.structure({"x": 0, "y": (0, 0)}), [1, 2, 3])
    {'x': 1, 'y': (2, 3)}
    """
    structure_of(treedef, "tree.unflatten", "treedef")
    given = list(leaves) if type(leaves) in (list, tuple, builtins.map) else _listed(leaves)
    with refusing(f"{len(given)} leaves are given for a structure of {treedef.num_leaves}"):
        return optree.tree_unflatten(treedef, given)


def _listed(leaves: Any) -> list[Any]:
    if isinstance(leaves, (str, dict)):
        return list(leaves)
    return list(items_of(leaves, "tree.unflatten", "leaves", "leaves"))


def structure_of(given: Any, what: str, name: str) -> None:
    """Refuse what is not a structure."""
    advice = "meshard.tree.structure(tree) returns it."
    instance_of(given, optree.PyTreeSpec, what, name, advice=advice)


def structure(tree: Any, is_leaf: IsLeaf = None) -> optree.PyTreeSpec:
    """Return the structure of a tree.

    >>> from meshard import tree
    >>> tree.structure({"x": 1}) == tree.structure({"x": 2}), tree.structure([1, 2]).num_leaves
    (True, 2)
    """
    return flatten(tree, is_leaf)[1]


def reduce(
    function: Callable[..., Any], tree: Any, initializer: Any = _NOTHING, is_leaf: IsLeaf = None
) -> Any:
    """Return the leaves folded by a function of two arguments.

    Raises:
        TreeError: if there are no leaves and no ``initializer``.

    >>> from meshard.tree import reduce
    >>> reduce(lambda a, b: a + b, {"x": 1, "y": [2, 3]}, 10)
    16
    """
    function_of(function, "tree.reduce", "function", ORDER)
    found = leaves(tree, is_leaf)
    if initializer is not _NOTHING:
        return functools.reduce(function, found, initializer)
    if not found:
        raise TreeError("tree.reduce: the tree has no leaves; give an initializer to begin with.")
    return functools.reduce(function, found)


def reduce_associative(
    operation: Callable[..., Any],
    tree: Any,
    *,
    identity: Any = _NOTHING,
    is_leaf: IsLeaf = None,
) -> Any:
    """Return the leaves joined by an associative operation, in a balanced tree.

    Sums of floats lose less by rounding than those of `reduce`, which goes from left to right.

    Args:
        operation: a function of two leaves; the grouping of the leaves must not matter.
        tree: the tree.
        identity: what a tree without leaves gives.
        is_leaf: called with each node; where it returns True, that is a leaf.

    Raises:
        TreeError: if there are no leaves and no ``identity``.

    >>> from meshard.tree import reduce_associative
    >>> reduce_associative(lambda a, b: f"({a}{b})", {"x": "a", "y": ["b", "c", "d"]})
    '((ab)(cd))'
    """
    function_of(operation, "tree.reduce_associative", "operation", ORDER)
    found = leaves(tree, is_leaf)
    if not found:
        if identity is _NOTHING:
            raise TreeError("tree.reduce_associative: the tree has no leaves; give an identity.")
        return identity
    while len(found) > 1:
        pairs = [operation(*found[i : i + 2]) for i in range(0, len(found) - 1, 2)]
        found = pairs + found[len(found) - len(found) % 2 :]
    return found[0]


def all(tree: Any, *, is_leaf: IsLeaf = None) -> bool:
    """Return whether all leaves are true.

    Raises:
        TreeError: if a leaf is neither true nor false, such as an array of several elements.

    >>> from meshard import tree
    >>> tree.all({"a": True, "b": [1, 0]})
    False
    """
    return builtins.all(builtins.map(_is_true, leaves(tree, is_leaf)))


def _is_true(leaf: Any) -> bool:
    try:
        return bool(leaf)
    except (ValueError, TypeError) as error:
        raise TreeError(
            f"tree.all: the leaf {shown(leaf)} is neither true nor false: {error} Map the leaves "
            "to single values first, as in tree.all(tree.map(lambda x: x.all(), tree))."
        ) from error


def transpose(outer: optree.PyTreeSpec, inner: optree.PyTreeSpec | None, tree: Any) -> Any:
    """Return a tree of trees with the two structures exchanged.

    Args:
        outer: the structure of the outer tree.
        inner: the structure of the inner trees; None for that of the first one.
        tree: the tree of trees.

    Raises:
        TreeError: if the tree does not have these structures.
        ArgumentError: if ``outer`` or ``inner`` is not a structure.

    >>> from meshard.tree import structure, transpose
    >>> transpose(structure([0, 0]), structure({"x": 0}), [{"x": 1}, {"x": 2}])
    {'x': [1, 2]}
    """
    structure_of(outer, "tree.transpose", "outer")
    if inner is not None:
        structure_of(inner, "tree.transpose", "inner")
    if inner is None:
        found = up_to(outer, tree)
        inner = structure(found[0] if found else ())
    with refusing("the tree must have the outer structure, and within it the inner one"):
        return optree.tree_transpose(outer, inner, tree)


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
