"""Entries that pass between processes, along routes that all of them know.

In: which pieces of a result need something from which pieces of an operand, and how much. Out: for
each process what it sends, and what it receives, in an order that both ends share. No sizes and no
positions pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

from meshard.algebra.layout import Layout
from meshard.ops.exchange.parties import Parties, pass_boxes
from meshard.runtime.types import Block
from meshard.runtime.world import RuntimeWorld

Route = tuple[int, int]
"""A piece of the result, and the piece of the operand from which something passes to it."""


@final
@dataclass(frozen=True)
class Passing:
    """What passes between processes for one operation.

    Attributes:
        parties: who takes part.
        target: the layout of the result.
        source: the layout of the operand.
        needs: for each piece of the result the pieces of the operand that it needs, in order.
    """

    parties: Parties
    target: Layout
    source: Layout
    needs: Sequence[Sequence[int]]

    def _sender(self, receiver: int, source: int) -> int:
        """Return the process that another gets a piece's entries from: itself if it can."""
        owners = self.parties.owners(self.source)[source]
        if receiver in owners:
            return receiver
        return sorted(owners)[(receiver + source) % len(owners)]

    @cached_property
    def _routes(self) -> dict[tuple[int, int], list[Route]]:
        """What passes between each pair of processes, sender first, in order."""
        found: dict[tuple[int, int], list[Route]] = {}
        for receiver in self.parties.members:
            for target in self.parties.held(self.target, receiver):
                for source in self.needs[target]:
                    sender = self._sender(receiver, source)
                    if sender != receiver:
                        found.setdefault((sender, receiver), []).append((target, source))
        return found

    def passed(
        self,
        world: RuntimeWorld,
        message: Callable[[Route], Block],
        room: Callable[[Route], Block],
    ) -> Mapping[Route, Block]:
        """Send what other processes need; return what has come.

        Args:
            world: this process's world.
            message: makes what is sent.
            room: makes a block for what comes.
        """
        me = world.process_index
        if world.process_count == 1 or self.parties.alone:
            return {}
        sends, receives, came = {}, {}, {}
        for (sender, receiver), routes in self._routes.items():
            if sender == me:
                sends[receiver] = [message(route) for route in routes]
            elif receiver == me:
                came.update({route: room(route) for route in routes})
                receives[sender] = [came[route] for route in routes]
        pass_boxes(world, sends, receives)
        return came
