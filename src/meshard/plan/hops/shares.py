"""Shares: which part of its cells' streams each holder sends, so that the largest sender is small.

Equal shares are the best where all cells have equally many holders. Where some holders are gone,
those that are the only ones left of some cells should send less of others. The sum of the
squares of what all send is lowered set by set: each set of holders in turn divides its elements so
that their totals become as equal as they can be. That sum has one minimum, in which the largest
total is least. All is done in integers, so that every process finds the same shares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, final

import numpy as np

from meshard.tuning import LEVELLING_ROUNDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


def level_borders(holders: Ints, wanted: Ints, load: Mapping[int, int] | None = None) -> Ints:
    """Return where each holder's share of each cell's stream begins, and where the last one ends.

    Args:
        holders: the units that hold each cell, ``[cell, holder]``; -1 fills the rows up at the end.
        wanted: the elements of each cell's stream.
        load: what units send besides; None for nothing.

    Unit 0 is the only holder of the first cell, and leaves the second one to unit 1:

    >>> level_borders(np.array([[0, -1], [0, 1]]), np.array([6, 6])).tolist()
    [[0, 6, 6], [0, 0, 6]]
    """
    count, width = holders.shape
    borders = np.zeros((count, width + 1), wanted.dtype)
    if not count:
        return borders
    sets, of_cell = np.unique(holders, axis=0, return_inverse=True)
    of_cell = of_cell.reshape(-1)
    amounts = _levelled(sets, _sums(of_cell, wanted, len(sets)), load or {})
    # The streams of a set's cells one after another are one stream, of which each holder has a
    # range: so few cells are cut.
    order = np.argsort(of_cell, kind="stable")
    ends = np.cumsum(wanted[order])
    firsts = np.searchsorted(of_cell[order], np.arange(len(sets)))
    before = np.concatenate([np.zeros(1, ends.dtype), ends])
    start = np.empty_like(wanted)
    start[order] = before[:-1] - before[firsts][of_cell[order]]
    parts = np.zeros((len(sets), width + 1), wanted.dtype)
    np.cumsum(amounts, axis=1, out=parts[:, 1:])
    inside = parts[of_cell] - start[:, None]
    borders[:] = np.minimum(np.maximum(inside, 0), wanted[:, None])
    return borders


def _sums(places: Ints, amounts: Ints, count: int) -> Ints:
    found = np.zeros(count, amounts.dtype)
    np.add.at(found, places, amounts)
    return found


def _levelled(sets: Ints, wanted: Ints, load: Mapping[int, int]) -> Ints:
    """Return what each holder of each set sends."""
    level = _Levelling(sets, wanted, load)
    # Those without a choice come first, and the largest before the smaller.
    every = [i for i, row in enumerate(level.members) if row]
    every.sort(key=lambda i: (len(level.members[i]) > 1, -level.totals[i]))
    order, several = every, [i for i in every if len(level.members[i]) > 1]
    for _ in range(LEVELLING_ROUNDS):
        changed = [level.divide(i) for i in order]
        if not any(changed):
            break
        order = level.crowded(several)
    found: Ints = np.zeros(sets.shape, wanted.dtype)
    for i, share in enumerate(level.shares):
        found[i, : len(share)] = share
    return found


@final
class _Levelling:
    """What the holders of some sets send so far.

    Attributes:
        members: the holders of each set.
        totals: the elements of each set.
        shares: what each of its holders sends of them.
        sent: what each unit sends in all.
    """

    def __init__(self, sets: Ints, wanted: Ints, load: Mapping[int, int]) -> None:
        self.members = [[u for u in row if u >= 0] for row in sets.tolist()]
        self.totals: list[int] = wanted.tolist()
        self.shares = [[0] * len(row) for row in self.members]
        self.sent: dict[int, int] = {u: load.get(u, 0) for u in np.unique(sets).tolist()}

    def divide(self, i: int) -> bool:
        """Divide the elements of one set anew; return whether that changed anything."""
        members, before, sent = self.members[i], self.shares[i], self.sent
        others = [sent[u] - n for u, n in zip(members, before, strict=True)]
        after = self.shares[i] = _filled(others, self.totals[i])
        for u, n, more in zip(members, others, after, strict=True):
            sent[u] = n + more
        return before != after

    def crowded(self, some: Iterable[int]) -> list[int]:
        """Return the sets that can make the largest total smaller."""
        near = max(self.sent.values()) * 63 // 64
        high = {u for u, n in self.sent.items() if n > near}
        return [
            i
            for i in some
            if any(n and u in high for u, n in zip(self.members[i], self.shares[i], strict=True))
        ]


def _filled(levels: list[int], amount: int) -> list[int]:
    """Return how an amount is divided so that levels become as equal as they can be.

    >>> _filled([5, 0, 2], 6)
    [0, 4, 2]
    """
    order = sorted(range(len(levels)), key=levels.__getitem__)
    below = 0
    for count, i in enumerate(order, 1):
        below += levels[i]
        after = levels[order[count]] if count < len(order) else None
        if after is None or below + amount <= after * count:
            level, more = divmod(below + amount, count)
            found = [0] * len(levels)
            for rank, j in enumerate(order[:count]):
                found[j] = level + (rank < more) - levels[j]
            return found
    raise AssertionError
