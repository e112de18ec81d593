"""Memos: results that a world computes once for each key, and then looks up.

In: the function that computes them, or the types of a key and a value, and a bound. Out: a table
for each world, which is emptied when it is full and when a setting changes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from itertools import count
from typing import Any, Generic, TypeVar, TypeVarTuple, cast, final

from meshard.runtime.world import RuntimeWorld
from meshard.settings import config

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Ts = TypeVarTuple("Ts")

_NUMBERS = count()
_MISSING = object()


@final
class Memo(Generic[K, V]):
    """The results for each key; every world has a table of its own.

    Attributes:
        name: what is kept, for people.
        most: how many keys a table may have; a full one is emptied.
        number: its place among a world's tables.
    """

    __slots__ = ("most", "name", "number")

    def __init__(self, name: str, most: int) -> None:
        self.name, self.most = name, most
        self.number = next(_NUMBERS)

    def __repr__(self) -> str:
        return f"Memo({self.name!r}, most={self.most})"

    def table(self, world: RuntimeWorld) -> dict[K, V]:
        """Return a world's table, which holds nothing from before the last change of a setting."""
        if world.epoch != config.epoch:
            world.forget()
        try:
            return world.tables[self.number]
        except IndexError:  # modules with memos are also imported after the world was made
            world.tables.extend({} for _ in range(len(world.tables), self.number + 1))
            return world.tables[self.number]

    def keep(self, world: RuntimeWorld, key: K, value: V) -> V:
        """Keep a value for a key, and return it."""
        table = self.table(world)
        if len(table) >= self.most:
            table.clear()
        table[key] = value
        return value


def memoized(
    most: int,
) -> Callable[[Callable[[RuntimeWorld, *Ts], V]], Callable[[RuntimeWorld, *Ts], V]]:
    """Let a function of a world and hashable arguments run once per arguments and world.

    Args:
        most: how many results a world keeps.
    """

    def wrap(function: Callable[[RuntimeWorld, *Ts], V]) -> Callable[[RuntimeWorld, *Ts], V]:
        memo: Memo[tuple[Any, ...], V] = Memo(function.__qualname__, most)

        @functools.wraps(function)
        def call(world: RuntimeWorld, *key: *Ts) -> V:
            found = memo.table(world).get(key, _MISSING)
            if found is _MISSING:
                return memo.keep(world, key, function(world, *key))
            return cast(V, found)

        return call

    return wrap
