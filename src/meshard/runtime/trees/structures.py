"""The structure of a tree as data, which another process makes the same structure of.

In: a structure. Out: for each node its kind, how many children it has, and its keys. The classes
of the user's own containers are named, and looked up among those that the other process has
registered; nothing is imported or run to find one.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import optree
from optree import PyTreeKind
from optree import PyTreeSpec as PyTreeSpec

from meshard.errors import TreeError
from meshard.runtime.lines.letters import sent_as

_FACTORIES: dict[str, Any] = {
    "None": None,
    **{f.__name__: f for f in (list, dict, set, tuple, int, float, str, bool, deque, OrderedDict)},
}
"""What a defaultdict may make new values with."""
_EVERYWHERE: str = optree.registry.__GLOBAL_NAMESPACE
_LEAF = object()


def _apart(structure: PyTreeSpec) -> tuple[Any, ...]:
    """Return the nodes of a structure, children before their parents."""
    state: Any = structure.__getstate__()
    states, none_is_leaf, namespace = state
    nodes = []
    for kind, arity, data, _, nodetype, _, _, order in states:
        kept = data
        if kind == PyTreeKind.CUSTOM:
            kept = _name(nodetype), data
        elif kind in (PyTreeKind.NAMEDTUPLE, PyTreeKind.STRUCTSEQUENCE):
            kept = _name(data)
        elif kind == PyTreeKind.DEFAULTDICT:
            kept = _factory(data[0]), data[1], list(order or data[1])
        elif kind == PyTreeKind.DICT:
            kept = data, list(order or data)
        nodes.append((int(kind), arity, kept))
    return tuple(nodes), none_is_leaf, namespace


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _factory(factory: Any) -> str:
    name = getattr(factory, "__name__", str(factory))
    if _FACTORIES.get(name, _LEAF) is not factory:
        raise TreeError(
            f"A defaultdict whose default_factory is {factory!r} cannot be told to other "
            f"processes: it must be one of {', '.join(_FACTORIES)}. Use a plain dict."
        )
    return name


def _together(nodes: tuple[Any, ...], none_is_leaf: bool, namespace: str) -> PyTreeSpec:
    """Return the structure of some nodes; it is that of a tree which is made of them."""
    made: list[Any] = []
    for kind, arity, kept in nodes:
        if not 0 <= arity <= len(made):
            raise TreeError(f"The structure of a tree has a node of {arity} children.")
        children = made[len(made) - arity :]
        del made[len(made) - arity :]
        made.append(_node(PyTreeKind(kind), children, kept, namespace))
    if len(made) != 1:
        raise TreeError(f"The structure of a tree has {len(made)} roots.")
    found: PyTreeSpec = optree.tree_structure(
        made[0], none_is_leaf=none_is_leaf, namespace=namespace
    )
    return found


def _node(kind: PyTreeKind, children: list[Any], kept: Any, namespace: str) -> Any:
    if kind == PyTreeKind.CUSTOM:
        name, data = kept
        return _unflatten(name, namespace)(data, children)
    if kind in (PyTreeKind.NAMEDTUPLE, PyTreeKind.STRUCTSEQUENCE):
        cls = _named_tuple(kept)
        return cls(*children) if kind == PyTreeKind.NAMEDTUPLE else cls(children)
    if kind == PyTreeKind.DEFAULTDICT:
        factory, keys, order = kept
        return defaultdict(_FACTORIES[factory], _ordered(keys, order, children))
    if kind == PyTreeKind.DICT:
        keys, order = kept
        return _ordered(keys, order, children)
    return _PLAIN[kind](children, kept)


def _unflatten(name: str, namespace: str) -> Callable[[Any, Any], Any]:
    """Return what makes a container of a class that is registered here."""
    cls = _class_named(name)
    for space in (_EVERYWHERE, namespace):
        entry = optree.register_pytree_node.get(cls, namespace=space) if cls else None
        if entry is not None:
            found: Callable[[Any, Any], Any] = entry.unflatten_func
            return found
    raise TreeError(
        f"A tree of another process has a container {name}, which is not registered here. Register "
        "the class in all processes (meshard.tree.register_pytree_node) before they join."
    )


def _named_tuple(name: str) -> Any:
    """Return a class of tuples with names that this process has loaded."""
    found = _class_named(name)
    if not (optree.is_namedtuple_class(found) or optree.is_structseq_class(found)):
        raise TreeError(
            f"A tree of another process has a container {name}, which is not a NamedTuple that "
            "this process has loaded. Import its module in all processes before they join."
        )
    return found


def _class_named(name: str) -> Any:
    """Return a class that this process has loaded; None if there is none of the name."""
    module, _, inside = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in inside.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found if isinstance(found, type) else None


def _ordered(keys: Any, order: Any, children: list[Any]) -> dict[Any, Any]:
    """Return a dict in its own order; a structure has its children in that of sorted keys."""
    found = dict(zip(keys, children, strict=True))
    return {key: found[key] for key in order}


_PLAIN: dict[PyTreeKind, Callable[[list[Any], Any], Any]] = {
    PyTreeKind.LEAF: lambda children, kept: _LEAF,
    PyTreeKind.NONE: lambda children, kept: None,
    PyTreeKind.TUPLE: lambda children, kept: tuple(children),
    PyTreeKind.LIST: lambda children, kept: children,
    PyTreeKind.ORDEREDDICT: lambda children, kept: OrderedDict(zip(kept, children, strict=True)),
    PyTreeKind.DEQUE: lambda children, kept: deque(children, kept),
}

sent_as(PyTreeSpec, _apart, _together)
