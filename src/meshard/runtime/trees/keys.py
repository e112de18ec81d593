"""The keys that lead to a tree's leaves, as JAX has them.

In: optree's entries, or the keys that a user's class names. Out: a key per level of the tree, which
says how the child is reached: by a dict's key, a position, an attribute, or only by its number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeAlias, final

import optree

from meshard.algebra.arguments import flag_of, instance_of, items_of, shown


def _repr(value: object) -> str:
    """Return a key as Python writes it."""
    try:
        return repr(value)
    except RecursionError:
        return shown(value)


def _text(value: object) -> str:
    return value if isinstance(value, str) else _repr(value)


@final
@dataclasses.dataclass(frozen=True, repr=False)
class DictKey:
    """The key of a dict's value in the path to a leaf.

    >>> from meshard.tree_util import DictKey
    >>> str(DictKey("w"))
    "['w']"
    """

    key: Any

    def __repr__(self) -> str:
        return f"DictKey(key={_repr(self.key)})"

    def __str__(self) -> str:
        return f"[{_repr(self.key)}]"


@final
@dataclasses.dataclass(frozen=True, repr=False)
class SequenceKey:
    """The position of an item of a list or tuple in the path to a leaf.

    >>> from meshard.tree_util import SequenceKey
    >>> str(SequenceKey(2))
    '[2]'
    """

    idx: int

    def __repr__(self) -> str:
        return f"SequenceKey(idx={_repr(self.idx)})"

    def __str__(self) -> str:
        return f"[{_text(self.idx)}]"


@final
@dataclasses.dataclass(frozen=True, repr=False)
class GetAttrKey:
    """The name of an attribute in the path to a leaf.

    >>> from meshard.tree_util import GetAttrKey
    >>> str(GetAttrKey("weight"))
    '.weight'
    """

    name: str

    def __repr__(self) -> str:
        return f"GetAttrKey(name={_repr(self.name)})"

    def __str__(self) -> str:
        return f".{_text(self.name)}"


@final
@dataclasses.dataclass(frozen=True, repr=False)
class FlattenedIndexKey:
    """The number of a child whose class does not name its children, in the path to a leaf.

    >>> from meshard.tree_util import FlattenedIndexKey
    >>> str(FlattenedIndexKey(0))
    '[<flat index 0>]'
    """

    key: int

    def __repr__(self) -> str:
        return f"FlattenedIndexKey(key={_repr(self.key)})"

    def __str__(self) -> str:
        return f"[<flat index {_text(self.key)}>]"


KeyEntry: TypeAlias = DictKey | SequenceKey | GetAttrKey | FlattenedIndexKey
KeyPath: TypeAlias = tuple[Any, ...]
_KINDS = (DictKey, SequenceKey, GetAttrKey, FlattenedIndexKey)


def plain(key: Any) -> Any:
    """Return the dict's key, position, name or number that a key holds; others as they are.

    >>> plain(SequenceKey(3)), plain("x")
    (3, 'x')
    """
    if isinstance(key, (DictKey, FlattenedIndexKey)):
        return key.key
    if isinstance(key, SequenceKey):
        return key.idx
    return key.name if isinstance(key, GetAttrKey) else key


class KeyedEntry(optree.PyTreeEntry):
    """An entry of a class that names the keys of its children."""

    __slots__ = ("key",)
    key: Any

    def __init__(self, entry: Any, type: type, kind: optree.PyTreeKind) -> None:
        super().__init__(plain(entry), type, kind)
        object.__setattr__(self, "key", entry)

    def codify(self, /, node: str = "") -> str:
        """Return the expression that leads from a node to this child."""
        return f"{node}{keystr((self.key,))}"


def key_of(entry: optree.PyTreeEntry) -> Any:
    """Return the key of one of optree's entries."""
    if isinstance(entry, KeyedEntry):
        return entry.key
    if isinstance(entry, optree.MappingEntry):
        return DictKey(entry.entry)
    if isinstance(entry, optree.NamedTupleEntry):
        return GetAttrKey(entry.field)
    if isinstance(entry, optree.SequenceEntry):
        return SequenceKey(entry.entry)
    name = entry.entry
    return GetAttrKey(name) if isinstance(name, str) else FlattenedIndexKey(name)


def keystr(keys: Iterable[Any], *, simple: bool = False, separator: str = "") -> str:
    """Return the path to a leaf as text.

    Args:
        keys: the path, as ``tree_flatten_with_path`` gives it.
        simple: whether to print the keys, positions and names only, without brackets and dots.
        separator: what stands between the keys.

    Raises:
        ArgumentError: if ``keys`` is not a path.

    >>> from meshard.tree_util import keystr, tree_leaves_with_path
    >>> path, _ = tree_leaves_with_path({"layers": [1]})[0]
    >>> keystr(path), keystr(path, simple=True, separator="/")
    ("['layers'][0]", 'layers/0')
    """
    what = "tree_util.keystr"
    path = items_of(keys, what, "keys", "keys of a path")
    between = instance_of(separator, str, what, "separator")
    if flag_of(simple, what, "simple"):
        return between.join([_text(plain(key)) for key in path])
    return between.join([str(key) if isinstance(key, _KINDS) else _text(key) for key in path])
