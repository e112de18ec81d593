"""The structure of a saved tree as JSON, and the names of its arrays.

In: a tree. Out: its arrays by name, and JSON from which the tree is made again. A name is the
path to the array, its keys joined by dots. Numbers, strings and booleans are kept in the structure.

A node is the name of an array, or one of::

    {"dict": {key: node, ...}}      {"pairs": [[key, node], ...]}    keys that are not all strings
    {"ordered": [[key, node], ...]} an OrderedDict
    {"list": [node, ...]}           {"tuple": [node, ...]}
    {"value": 3}                    {"none": true}
    {"other": "class", "children": [node, ...]}     a container that only `like` can make again
    {"flat": true}                  a dict whose keys are the names
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from meshard.algebra.arguments import shown
from meshard.errors import CheckpointError, CorruptFileError, TreeError
from meshard.runtime.array.array import Array
from meshard.runtime.trees.trees import children_of, endless
from meshard.weights.catalogue.stored import Catalogue

_VALUES = (bool, int, float, str)
_DEEPEST = 200


@final
@dataclass
class Named:
    """A tree taken apart.

    Attributes:
        arrays: the arrays by name; an array in two places is here once.
        tied: the other names of such arrays.
        structure: the tree as JSON.
    """

    arrays: dict[str, Any] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    structure: Any = None


def named(tree: Any, what: str) -> Named:
    """Return the arrays of a tree by name.

    Raises:
        CheckpointError: if two leaves have one name, or a leaf or its name cannot be kept.
        TreeError: if the tree contains itself.
    """
    naming = _Naming(what)
    structure = naming.visit(tree, ())
    flat = structure.get("dict") if isinstance(structure, dict) else None
    if flat is not None and all(isinstance(v, str) and v == k for k, v in flat.items()):
        structure = {"flat": True}
    naming.found.structure = structure
    return naming.found


@final
class _Naming:
    """Goes through a tree and names its arrays."""

    def __init__(self, what: str) -> None:
        self.found = Named()
        self._what = what
        self._known: dict[int, str] = {}
        self._taken: set[str] = set()

    def visit(self, node: Any, path: tuple[str, ...]) -> Any:
        """Return the structure of a node."""
        if len(path) > _DEEPEST:
            raise endless()
        if node is None:
            return {"none": True}
        if not isinstance(node, np.floating) and isinstance(node, _VALUES):
            self._take(".".join(path))
            return {"value": node}
        children = _children(node)
        if children is None:
            return self._named(node, ".".join(path) if path else "x")
        kind, parts = children
        return _form(kind, [(key, self.visit(child, (*path, str(key)))) for key, child in parts])

    def _named(self, leaf: Any, name: str) -> str:
        """Return the name of an array."""
        found, what = self.found, self._what
        if not (isinstance(leaf, Array) or (hasattr(leaf, "shape") and hasattr(leaf, "dtype"))):
            raise CheckpointError(
                f"{what}: the leaf {name!r} is a {type(leaf).__name__}; a checkpoint holds arrays, "
                "numbers, strings, booleans and None."
            )
        self._take(name)
        first = self._known.setdefault(id(leaf), name)
        if first == name:
            found.arrays[name] = leaf
        else:
            found.tied[name] = first
        return name

    def _take(self, name: str) -> None:
        """Refuse a second leaf of one name, and a name that is not text."""
        if not name.isascii() and name.encode("utf-8", "ignore").decode("utf-8") != name:
            raise CheckpointError(f"{self._what}: the name {name!r} cannot be written in UTF-8.")
        if name in self._taken:
            raise CheckpointError(
                f"{self._what}: two leaves of the tree have the name {name!r}: a name is the path "
                "to a leaf, its keys joined by dots. Rename a key."
            )
        self._taken.add(name)


def _children(node: Any) -> tuple[str, list[tuple[Any, Any]]] | None:
    """Return what kind of container a node is, and its children by key; None for a leaf."""
    if type(node) in (dict, OrderedDict):
        kind = "ordered" if type(node) is OrderedDict else "pairs"
        if kind == "pairs" and all(isinstance(key, str) for key in node):
            kind = "dict"
        elif not all(key is None or type(key) in _VALUES for key in node):
            kind = "dict with keys that are not numbers, strings, booleans or None"
        return kind, list(node.items())
    if type(node) in (list, tuple):
        return type(node).__name__, list(enumerate(node))
    if isinstance(node, (Array, np.ndarray, np.generic)):
        return None
    children = children_of(node)
    return None if children is None else (type(node).__qualname__, children)


def _form(kind: str, parts: list[tuple[Any, Any]]) -> Any:
    if kind == "dict":
        return {kind: dict(parts)}
    if kind in ("pairs", "ordered"):
        return {kind: [list(part) for part in parts]}
    nodes = [node for _, node in parts]
    if kind in ("list", "tuple"):
        return {kind: nodes}
    return {"other": kind, "children": nodes, "keys": [str(key) for key, _ in parts]}


def rebuilt(structure: Any, leaf: Callable[[str], Any], names: Iterable[str], what: str) -> Any:
    """Return the tree of a structure.

    Args:
        structure: the JSON.
        leaf: returns the array of a name.
        names: all names, for a flat dict.
        what: the function that was called, for messages.

    Raises:
        CorruptFileError: if the structure is malformed.
        TreeError: if only ``like`` can make the tree again.
    """
    if structure == {"flat": True}:
        return {name: leaf(name) for name in names}
    return _Rebuilding(leaf, what).visit(structure, 0)


@final
class _Rebuilding:
    """Makes a tree of its structure."""

    def __init__(self, leaf: Callable[[str], Any], what: str) -> None:
        self._leaf = leaf
        self._what = what

    def visit(self, node: Any, depth: int) -> Any:
        """Return the tree of a node."""
        if isinstance(node, str):
            return self._leaf(node)
        if isinstance(node, dict) and depth <= _DEEPEST and len(node) == 1:
            ((kind, given),) = node.items()
            match kind, given:
                case "value", bool() | int() | float() | str():
                    return given
                case "none", True:
                    return None
                case ("dict", dict()) | ("pairs" | "ordered" | "list" | "tuple", list()):
                    return self._container(kind, given, depth + 1)
        if isinstance(node, dict) and isinstance(node.get("other"), str):
            raise TreeError(
                f"{self._what}: the saved tree has a container, {node['other']}, that a checkpoint "
                "cannot make again. Give a tree of this structure as like=."
            )
        raise self._malformed(node)

    def _container(self, kind: str, given: Any, depth: int) -> Any:
        if kind == "dict":
            return {key: self.visit(child, depth) for key, child in given.items()}
        if kind in ("pairs", "ordered"):
            pairs = [p for p in given if isinstance(p, list) and len(p) == 2]
            if len(pairs) < len(given):
                raise self._malformed(given)
            make = dict if kind == "pairs" else OrderedDict
            return make((_key(key), self.visit(child, depth)) for key, child in pairs)
        nodes = [self.visit(child, depth) for child in given]
        return nodes if kind == "list" else tuple(nodes)

    def _malformed(self, node: Any) -> CorruptFileError:
        return CorruptFileError(
            f"{self._what}: the structure of the tree is malformed: {shown(node)}."
        )


def _key(key: Any) -> Any:
    if isinstance(key, (bool, int, float, str)) or key is None:
        return key
    raise CorruptFileError(f"the structure of the tree is malformed: {shown(key)} is a key.")


def _pair(given: Any) -> tuple[Any, Any]:
    if isinstance(given, list) and len(given) == 2:
        return given[0], given[1]
    raise CorruptFileError(f"the structure of the tree is malformed: {shown(given)} is a pair.")


def _check_depth(path: tuple[str | int, ...]) -> None:
    if len(path) > _DEEPEST:
        raise CorruptFileError(
            f"the structure of the tree is malformed: it has more than {_DEEPEST} levels."
        )


def leaf_values(structure: Any) -> Mapping[str, Any]:
    """Return the values of a structure that are not arrays, by the path to each."""
    found: dict[str, Any] = {}

    def visit(node: Any, path: tuple[str, ...]) -> None:
        _check_depth(path)
        match node:
            case {"value": value}:
                found[".".join(path)] = value
            case {"dict": dict(parts)}:
                for key, child in parts.items():
                    visit(child, (*path, str(key)))
            case {"pairs": [*pairs]} | {"ordered": [*pairs]}:
                for key, child in map(_pair, pairs):
                    visit(child, (*path, str(key)))
            case {"list": [*nodes]} | {"tuple": [*nodes]}:
                for k, child in enumerate(nodes):
                    visit(child, (*path, str(k)))
            case {"children": [*nodes], "keys": [*keys]}:
                for key, child in zip(keys, nodes, strict=False):
                    visit(child, (*path, str(key)))

    visit(structure, ())
    return found


def leaf_paths(structure: Any) -> dict[str, tuple[str | int, ...]]:
    """Return the keys that lead to each array of a structure, by name; none where it is flat."""
    found: dict[str, tuple[str | int, ...]] = {}

    def visit(node: Any, path: tuple[str | int, ...]) -> None:
        _check_depth(path)
        match node:
            case str():
                found[node] = path or (node,)
            case {"dict": dict(parts)}:
                for key, child in parts.items():
                    visit(child, (*path, str(key)))
            case {"pairs": [*pairs]} | {"ordered": [*pairs]}:
                for key, child in map(_pair, pairs):
                    visit(child, (*path, str(key)))
            case {"list": [*nodes]} | {"tuple": [*nodes]}:
                for k, child in enumerate(nodes):
                    visit(child, (*path, k))
            case {"children": [*nodes], "keys": [*keys]}:
                for key, child in zip(keys, nodes, strict=False):
                    visit(child, (*path, str(key)))

    visit(structure, ())
    return found


def structure_of(catalogue: Catalogue) -> Any:
    """Return the structure of the tree that a catalogue's tensors are."""
    if catalogue.format == "npy":
        return next(iter(catalogue.tensors))
    return catalogue.values.get("tree", {"flat": True})
