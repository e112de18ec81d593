"""Memos: what is found out once for arguments of one kind, and looked up from then on.

In: the function that finds out, or the types of a key and a value, and a bound. Out: a table for
each world, or scope of a body, which forgets everything when it is full and when a setting changes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar, TypeVarTuple, final

from meshard.settings import config

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Ts = TypeVarTuple("Ts")

_KNOWN: list[str] = []  # the names of all memos, each at its number
_MISSING = object()


class Remembering:
    """What things are found out for: a world, or the scope of a body.

    Attributes:
        tables: what was found out, by the number of each `Memo`.
        epoch: the state of the settings that the tables were filled under.
    """

    tables: list[dict[Any, Any]]
    epoch: int

    def remember(self) -> None:
        """Begin with empty tables, one for each memo that there is."""
        self.tables, self.epoch = [{} for _ in _KNOWN], config.epoch

    def forget(self) -> None:
        """Empty all tables: the settings are others than those that they were filled under."""
        self.epoch = config.epoch
        for table in self.tables:
            table.clear()


Owner = TypeVar("Owner", bound=Remembering)


@final
class Memo(Generic[K, V]):
    """What was found out for each key; every world, or scope, has a table of its own.

    Attributes:
        name: what is kept, for people.
        most: how many keys a table may have; one that is full is emptied.
        number: its place among the tables of each.
    """

    __slots__ = ("most", "name", "number")

    def __init__(self, name: str, most: int) -> None:
        self.name, self.most = name, most
        self.number = len(_KNOWN)
        _KNOWN.append(name)

    def __repr__(self) -> str:
        return f"Memo({self.name!r}, most={self.most})"

    def table(self, owner: Remembering) -> dict[K, V]:
        """Return an owner's table, which holds nothing from before the last change of a setting."""
        if owner.epoch != config.epoch:
            owner.forget()
        try:
            return owner.tables[self.number]
        except IndexError:  # modules with memos are also imported after the owner was made
            owner.tables.extend({} for _ in range(len(owner.tables), self.number + 1))
            return owner.tables[self.number]

    def keep(self, owner: Remembering, key: K, value: V) -> V:
        """Keep a value for a key, and return it."""
        table = self.table(owner)
        if len(table) >= self.most:
            table.clear()
        table[key] = value
        return value


def memoized(most: int) -> Callable[[Callable[[Owner, *Ts], V]], Callable[[Owner, *Ts], V]]:
    """Let a function of a world, or a scope, run once for each of its hashable arguments.

    Args:
        most: how many results a world, or a scope, keeps.
    """

    def wrap(function: Callable[[Owner, *Ts], V]) -> Callable[[Owner, *Ts], V]:
        memo: Memo[tuple[Any, ...], V] = Memo(function.__qualname__, most)

        @functools.wraps(function)
        def call(owner: Owner, *key: *Ts) -> V:
            found: Any = memo.table(owner).get(key, _MISSING)
            if found is _MISSING:
                found = memo.keep(owner, key, function(owner, *key))
            return found  # type: ignore[no-any-return]

        return call

    return wrap
