"""The user's own containers in trees: classes whose instances are taken apart and rebuilt.

In: a class, and how its instances are taken apart. Out: the class, known to `meshard.tree` and to
everything that takes trees.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import optree

from meshard.algebra.arguments import function_of, instance_of, names_of
from meshard.errors import ArgumentError

Class = TypeVar("Class", bound=type)
_EVERYWHERE: str = optree.registry.__GLOBAL_NAMESPACE


def register_pytree_node(
    nodetype: type,
    flatten_func: Callable[[Any], tuple[Any, ...]],
    unflatten_func: Callable[[Any, Any], Any],
) -> None:
    """Make trees treat instances of a class as containers.

    Args:
        nodetype: the class.
        flatten_func: takes an instance and returns its children and its other data, which must be
            hashable, is compared with ``==``, and is part of the tree's structure. It may return
            the children's names too, which paths then contain.
        unflatten_func: takes the other data and the children and returns an instance. It is also
            called with children of any type, so it must not check them.

    Raises:
        ArgumentError: if the class is already registered.

    >>> import meshard
    >>> from meshard.tree import register_pytree_node
    >>> class Pair:
    ...     def __init__(self, a, b):
    ...         self.a, self.b = a, b
    >>> register_pytree_node(Pair, lambda p: ((p.a, p.b), None), lambda _, both: Pair(*both))
    >>> meshard.tree.leaves(Pair(1, [2, 3]))
    [1, 2, 3]
    """
    what = "tree.register_pytree_node"
    instance_of(nodetype, type, what, "nodetype", advice="Give the class itself.")
    function_of(flatten_func, what, "flatten_func")
    function_of(unflatten_func, what, "unflatten_func")
    try:
        optree.register_pytree_node(nodetype, flatten_func, unflatten_func, namespace=_EVERYWHERE)
    except ValueError as error:
        raise ArgumentError(
            f"tree: the class {nodetype.__name__} is already registered; a class can be registered "
            "only once."
        ) from error


def register_pytree_node_class(cls: Class) -> Class:
    """Make trees treat instances of a class with its own flattening methods as containers.

    A decorator. ``tree_flatten(self)`` returns the children and the other data, and the class
    method ``tree_unflatten(cls, aux, children)`` makes an instance of them.

    Raises:
        ArgumentError: if the class lacks one of the two, or is already registered.

    >>> from meshard import tree
    >>> @tree.register_pytree_node_class
    ... class Layer:
    ...     def __init__(self, w, name):
    ...         self.w, self.name = w, name
    ...
    ...     def tree_flatten(self):
    ...         return (self.w,), self.name
    ...
    ...     @classmethod
    ...     def tree_unflatten(cls, name, children):
    ...         return cls(*children, name)
    >>> doubled = tree.map(lambda w: 2 * w, Layer(3, "first"))
    >>> doubled.w, doubled.name
    (6, 'first')
    """
    instance_of(cls, type, "tree.register_pytree_node_class", "cls")
    for name in ("tree_flatten", "tree_unflatten"):
        if not callable(getattr(cls, name, None)):
            raise ArgumentError(f"tree: {cls.__name__} has no method {name}, which trees need.")
    made: Any = cls
    register_pytree_node(cls, made.tree_flatten, made.tree_unflatten)
    return cls


def register_dataclass(
    nodetype: Class,
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
) -> Class:
    """Make trees treat instances of a dataclass as containers.

    Args:
        nodetype: the class.
        data_fields: the fields that are children; by default all but those whose ``metadata`` says
            ``static=True``.
        meta_fields: the fields that are part of the tree's structure; they must be hashable.
        drop_fields: the fields that are not kept, and get their defaults.

    Raises:
        ArgumentError: if it is not a dataclass and the fields are not given, or they are not all
            fields from which an instance is made.

    >>> import dataclasses, meshard
    >>> from meshard.tree import register_dataclass
    >>> @register_dataclass
    ... @dataclasses.dataclass
    ... class Layer:
    ...     weight: object
    ...     name: str = dataclasses.field(metadata={"static": True}, default="")
    >>> meshard.tree.map(lambda x: x + 1, Layer(1, "first"))
    Layer(weight=2, name='first')
    """
    what = "tree.register_dataclass"
    name = instance_of(nodetype, type, what, "nodetype").__name__
    drop_fields = names_of(drop_fields, what, "drop_fields", "names of fields")
    if (data_fields is None) != (meta_fields is None):
        raise ArgumentError(
            f"tree: register_dataclass({name}): give data_fields and meta_fields both, or neither."
        )
    own = dataclasses.fields(nodetype) if dataclasses.is_dataclass(nodetype) else None
    if data_fields is None or meta_fields is None:
        if own is None:
            raise ArgumentError(
                f"tree: register_dataclass({name}): the class is not a dataclass. Say which "
                "attributes are data_fields and which are meta_fields."
            )
        static = [f.name for f in own if f.metadata.get("static")]
        data_fields = [f.name for f in own if f.init and f.name not in {*static, *drop_fields}]
        meta_fields = static
    data = names_of(data_fields, what, "data_fields", "names of fields")
    meta = names_of(meta_fields, what, "meta_fields", "names of fields")
    if own is not None:
        needed = {f.name for f in own if f.init} - set(drop_fields)
        if {*data, *meta} != needed:
            wrong = ", ".join(sorted({*data, *meta} ^ needed))
            raise ArgumentError(
                f"tree: register_dataclass({name}): data_fields and meta_fields together must name "
                f"all fields of the class that are not dropped; missing or unknown: {wrong}."
            )

    def flatten(x: Any) -> tuple[Any, ...]:
        return [getattr(x, n) for n in data], tuple([getattr(x, n) for n in meta]), data

    def unflatten(kept: tuple[Any, ...], children: Iterable[Any]) -> Any:
        return nodetype(
            **dict(zip(data, children, strict=True)), **dict(zip(meta, kept, strict=True))
        )

    register_pytree_node(nodetype, flatten, unflatten)
    return nodetype
