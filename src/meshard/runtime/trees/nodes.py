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
from meshard.runtime.trees.keys import GetAttrKey, KeyedEntry

Class = TypeVar("Class", bound=type)
_EVERYWHERE: str = optree.registry.__GLOBAL_NAMESPACE


def register_pytree_node(
    nodetype: type,
    flatten_func: Callable[[Any], tuple[Any, ...]],
    unflatten_func: Callable[[Any, Any], Any],
    flatten_with_keys_func: Callable[[Any], tuple[Any, Any]] | None = None,
) -> None:
    """Make trees treat instances of a class as containers.

    Args:
        nodetype: the class.
        flatten_func: takes an instance and returns its children and its other data, which must be
            hashable, is compared with ``==``, and is part of the tree's structure. It may return
            the children's names too, which paths then contain.
        unflatten_func: takes the other data and the children and returns an instance. It is also
            called with children of any type, so it must not check them.
        flatten_with_keys_func: takes an instance and returns pairs of key and child, and its other
            data; paths contain these keys.

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
    if flatten_with_keys_func is None:
        _register(nodetype, flatten_func, unflatten_func, optree.AutoEntry)
    else:
        function_of(flatten_with_keys_func, what, "flatten_with_keys_func")
        _register(nodetype, _with_keys(flatten_with_keys_func), unflatten_func, KeyedEntry)


def _register(
    nodetype: type, flatten: Callable[[Any], Any], unflatten: Callable[..., Any], entry: type
) -> None:
    try:
        optree.register_pytree_node(
            nodetype, flatten, unflatten, path_entry_type=entry, namespace=_EVERYWHERE
        )
    except ValueError as error:
        raise ArgumentError(
            f"tree: the class {nodetype.__name__} is already registered; a class can be registered "
            "only once."
        ) from error


def _with_keys(flatten: Callable[[Any], tuple[Any, Any]]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that flattens as optree wants it: children, other data, keys."""

    def flattened(node: Any) -> tuple[Any, ...]:
        pairs, kept = flatten(node)
        keys, children = [], []
        for key, child in pairs:
            keys.append(key)
            children.append(child)
        return children, kept, keys

    return flattened


def register_pytree_with_keys(
    nodetype: type,
    flatten_with_keys: Callable[[Any], tuple[Any, Any]],
    unflatten_func: Callable[[Any, Any], Any],
    flatten_func: Callable[[Any], tuple[Any, Any]] | None = None,
) -> None:
    """Make trees treat instances of a class as containers whose children have keys.

    Args:
        nodetype: the class.
        flatten_with_keys: takes an instance and returns pairs of key and child, and its other data,
            which must be hashable and is compared with ``==``.
        unflatten_func: takes the other data and the children and returns an instance.
        flatten_func: as ``flatten_with_keys``, but returns the children without their keys. It is
            not needed, and is taken because code written for JAX gives it.

    Raises:
        ArgumentError: if the class is already registered.

    >>> from meshard.tree_util import (
    ...     DictKey,
    ...     keystr,
    ...     register_pytree_with_keys,
    ...     tree_leaves_with_path,
    ... )
    >>> class Record:
    ...     def __init__(self, **values):
    ...         self.values = values
    >>> def keys_and_children(record):
    ...     return [(DictKey(k), v) for k, v in record.values.items()], tuple(record.values)
    >>> register_pytree_with_keys(
    ...     Record, keys_and_children, lambda keys, values: Record(**dict(zip(keys, values)))
    ... )
    >>> [keystr(path) for path, _ in tree_leaves_with_path(Record(w=1, b=2))]
    ["['w']", "['b']"]
    """
    what = "tree_util.register_pytree_with_keys"
    instance_of(nodetype, type, what, "nodetype", advice="Give the class itself.")
    function_of(flatten_with_keys, what, "flatten_with_keys")
    function_of(unflatten_func, what, "unflatten_func")
    if flatten_func is not None:
        function_of(flatten_func, what, "flatten_func")
    _register(nodetype, _with_keys(flatten_with_keys), unflatten_func, KeyedEntry)


def register_pytree_with_keys_class(cls: Class) -> Class:
    """Make trees treat instances of a class that names its children's keys as containers.

    A decorator. ``tree_flatten_with_keys(self)`` returns pairs of key and child and the other data,
    and the class method ``tree_unflatten(cls, aux, children)`` makes an instance of them.

    Raises:
        ArgumentError: if the class lacks one of the two, or is already registered.

    >>> from meshard.tree_util import GetAttrKey, register_pytree_with_keys_class, tree_leaves
    >>> @register_pytree_with_keys_class
    ... class Layer:
    ...     def __init__(self, w):
    ...         self.w = w
    ...
    ...     def tree_flatten_with_keys(self):
    ...         return ((GetAttrKey("w"), self.w),), None
    ...
    ...     @classmethod
    ...     def tree_unflatten(cls, _, children):
    ...         return cls(*children)
    >>> tree_leaves(Layer(3))
    [3]
    """
    made: Any = _having(
        cls, "register_pytree_with_keys_class", ("tree_flatten_with_keys", "tree_unflatten")
    )
    register_pytree_with_keys(cls, made.tree_flatten_with_keys, made.tree_unflatten)
    return cls


def register_static(cls: Class) -> Class:
    """Make trees treat instances of a class as containers without children.

    A decorator. The instance is part of the tree's structure, and so of the program that `jit`
    keeps for it; its class must define ``__hash__`` and ``__eq__``.

    Raises:
        ArgumentError: if the class is already registered.

    >>> import dataclasses, meshard
    >>> from meshard.tree_util import register_static
    >>> @register_static
    ... @dataclasses.dataclass(frozen=True)
    ... class Options:
    ...     power: int
    >>> meshard.jit(lambda x, options: x**options.power)(3, Options(power=2)).item()
    9
    """
    instance_of(cls, type, "tree_util.register_static", "cls")
    _register(cls, lambda node: ((), node), lambda node, _: node, optree.AutoEntry)
    return cls


def _having(cls: Any, what: str, methods: Sequence[str]) -> Any:
    """Return a class that has the methods.

    Raises:
        ArgumentError: if it is not a class, or lacks one of them.
    """
    instance_of(cls, type, f"tree.{what}", "cls")
    for name in methods:
        if not callable(getattr(cls, name, None)):
            raise ArgumentError(f"tree: {cls.__name__} has no method {name}, which trees need.")
    return cls


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
    made: Any = _having(cls, "register_pytree_node_class", ("tree_flatten", "tree_unflatten"))
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
        _check_fields(name, {*data, *meta}, needed)

    keys = [GetAttrKey(n) for n in data]

    def flatten(x: Any) -> tuple[Any, ...]:
        return [getattr(x, n) for n in data], tuple([getattr(x, n) for n in meta]), keys

    def unflatten(kept: tuple[Any, ...], children: Iterable[Any]) -> Any:
        return nodetype(
            **dict(zip(data, children, strict=True)), **dict(zip(meta, kept, strict=True))
        )

    _register(nodetype, flatten, unflatten, KeyedEntry)
    return nodetype


def _check_fields(name: str, given: set[str], needed: set[str]) -> None:
    """Refuse fields that are not those from which an instance is made."""
    if given != needed:
        wrong = ", ".join(sorted(given ^ needed))
        raise ArgumentError(
            f"tree: register_dataclass({name}): data_fields and meta_fields together must name "
            f"all fields of the class that are not dropped; missing or unknown: {wrong}."
        )


def static(**kwargs: Any) -> Any:
    """Return a field of a dataclass that is part of a tree's structure, not a child.

    Args:
        **kwargs: the arguments of ``dataclasses.field``, such as ``default``.

    >>> import dataclasses
    >>> from meshard import tree
    >>> @tree.register_dataclass
    ... @dataclasses.dataclass
    ... class Layer:
    ...     weight: object
    ...     name: str = tree.static(default="dense")
    >>> tree.leaves(Layer(1.5))
    [1.5]
    """
    metadata = {**(kwargs.pop("metadata", None) or {}), "static": True}
    return dataclasses.field(metadata=metadata, **kwargs)
