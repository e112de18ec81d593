"""Who takes part where rows pass between processes, and who asks whom.

In: layouts, and the process of each device. Out: for each process what it asks each other for, the
same on all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from meshard.algebra.layout import Layout
from meshard.ops.exchange.lookups import Ints, Lookups
from meshard.runtime.types import Block
from meshard.runtime.world import RuntimeWorld


@final
class Parties:
    """The processes of some devices.

    Args:
        processes: the process of each device.
    """

    def __init__(self, processes: Mapping[int, int]) -> None:
        self.processes = processes
        self.members = sorted(set(processes.values()))
        self.alone = len(self.members) == 1
        self._asks: dict[tuple[int, int], dict[int, list[int]]] = {}
        self._of: dict[int, list[set[int]]] = {}

    def held(self, layout: Layout, process: int) -> list[int]:
        """Return the pieces that a process has devices for."""
        return [i for i, own in enumerate(self.owners(layout)) if process in own]

    def owners(self, layout: Layout) -> list[set[int]]:
        """Return the processes that hold each piece."""
        found = self._of.get(id(layout))
        if found is None:
            found = self._of[id(layout)] = [
                {self.processes[d] for d in layout.holders(i)} for i in range(layout.piece_count)
            ]
        return found

    def nearest(self, device: int, holders: Sequence[int], knows: Collection[int]) -> int:
        """Return the device that another takes something from: itself if it holds that.

        Of other holders those come first that know the positions; equal ones take turns.
        """
        if device in holders:
            return device
        best = [d for d in holders if d in knows] or holders
        return best[device % len(best)]

    def asks(self, lookups: Lookups, asker: int, owner: int) -> dict[int, list[int]]:
        """Return by piece of the target which of its sources one process asks another for."""
        found = self._asks.get((asker, owner))
        if found is None:
            found = self._asks[asker, owner] = {}
            for piece in self.held(lookups.target, asker):
                some = [
                    i
                    for i, s in enumerate(lookups.sources(piece))
                    if self._sender(lookups, asker, s) == owner
                ]
                if some:
                    found[piece] = some
        return found

    def _sender(self, lookups: Lookups, asker: int, source: int) -> int:
        """Return the process that another takes the rows of a piece from: itself if it can."""
        holders = self.owners(lookups.x)[source]
        if asker in holders:
            return asker
        best = sorted(holders & self._informed(lookups, asker)) or sorted(holders)
        return best[(asker + source) % len(best)]

    def _informed(self, lookups: Lookups, asker: int) -> set[int]:
        """Return the processes that have all positions of the pieces of one."""
        found = set(self.members)
        for piece in self.held(lookups.target, asker):
            found &= self.informed(lookups, piece)
        return found

    def informed(self, lookups: Lookups, piece: int) -> set[int]:
        """Return the processes that have all positions of a piece of the target.

        A process may have them on several devices.
        """
        found = set(self.members)
        for layout in lookups.places:
            found &= self.owners(layout)[lookups.places_piece(layout, piece)]
        return found

    def knows(self, lookups: Lookups, asker: int, owner: int) -> bool:
        """Whether a process has all positions that another looks up in its pieces."""
        asked = self.asks(lookups, asker, owner)
        return all(owner in self.informed(lookups, p) for p in asked)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is known of an exchange before the positions are.

    Attributes:
        names: how ledgers call the operands.
        axes: the mesh axes along which rows pass.
        lookups: what is named by what.
        parties: who takes part.
        dtype: of the rows.
    """

    names: tuple[str, ...]
    axes: tuple[str, ...]
    lookups: Lookups
    parties: Parties
    dtype: np.dtype[Any]


def pass_boxes(
    world: RuntimeWorld, sends: Mapping[int, list[Block]], receives: Mapping[int, list[Block]]
) -> None:
    """Send boxes to peers, and fill boxes from them; those without elements are left out."""
    out = {p: [b for b in boxes if b.size] for p, boxes in sends.items()}
    into = {p: [b for b in boxes if b.size] for p, boxes in receives.items()}
    world.transport.exchange(
        [(p, boxes) for p, boxes in out.items() if boxes],
        [(p, boxes) for p, boxes in into.items() if boxes],
    )


def tell(
    world: RuntimeWorld, letters: Mapping[int, list[int]], lengths: Mapping[int, int]
) -> dict[int, list[int]]:
    """Send a list of numbers to each peer, and return theirs, of which the lengths are known."""
    found: dict[int, Ints] = {p: np.empty(n, np.int64) for p, n in lengths.items()}
    out: dict[int, list[Block]] = {p: [np.asarray(x, np.int64)] for p, x in letters.items()}
    pass_boxes(world, out, {p: [x] for p, x in found.items()})
    return {p: x.tolist() for p, x in found.items()}
