"""The door sideways: what the runtime needs from a library that joins processes.

The transport of a single process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, final

import numpy as np

from meshard.errors import TransportError
from meshard.runtime.processes.watchdog import Watchdog
from meshard.runtime.settings import Table
from meshard.runtime.types import Block

Lent = Sequence[tuple[Block, Sequence[int]]]
"""Blocks that are complete, and the processes of this host that look at each."""
Taken = Sequence[tuple[int, tuple[int, ...], np.dtype[Any]]]
"""Blocks to look at: the process that has each, its shape and its dtype."""


class Transport(Protocol):
    """Moves planned boxes and small objects between the processes of one job.

    All methods are called by one thread per process, in program order. Every wait has a deadline.

    Attributes:
        index: this process's number.
        count: how many processes there are.
        table: the sizes that decide how blocks are moved.
        hosts: the number of each process's host, if the processes of one host can read each
            other's memory; None if they cannot.
    """

    index: int
    count: int
    table: Table
    hosts: tuple[int, ...] | None

    @property
    def watchdog(self) -> Watchdog | None:
        """What this process knows about the others while it waits; None for a single process."""

    def exchange(
        self,
        sends: Sequence[tuple[int, Sequence[Block]]],
        receives: Sequence[tuple[int, Sequence[Block]]],
    ) -> None:
        """Send blocks to peers, and fill writable blocks from peers.

        For each pair of processes the blocks sent and received agree in number, shape and order,
        since both ends derive them from the same plan. Blocks may be strided.

        Raises:
            TransportError: if a peer fails or does not answer before the deadline.
        """

    def swap(
        self, letters: Sequence[tuple[int, bytes]], sizes: Sequence[tuple[int, int]]
    ) -> dict[int, bytes | Block]:
        """Send small letters to peers, and return those of peers, of which the sizes are known.

        Args:
            letters: the peers to send to, and what each gets; at least one byte.
            sizes: the peers to hear of, and how many bytes each sends.

        Raises:
            TransportError: if a peer fails or does not answer before the deadline.
        """

    def share(self, lent: Lent, taken: Taken) -> list[Block]:
        """Lend complete blocks to neighbours, and return the blocks that they lend, read-only.

        For each pair of processes the blocks lent and taken agree in number, shape and order.

        Raises:
            TransportError: if a peer fails or does not answer before the deadline.
        """

    def all_gather(self, value: object, peers: Sequence[int]) -> list[object]:
        """Return every peer's small object, in the order of ``peers``, this process included."""

    def barrier(self, peers: Sequence[int]) -> None:
        """Wait until all ``peers`` have arrived here."""

    def recall(self, hosts: tuple[int, ...] | None) -> None:
        """Go back to the ways that lead to a process from the first, until `renew`.

        Args:
            hosts: the number of each process's host, as those know it that take part already.
        """

    def renew(self, members: Sequence[int]) -> None:
        """Go on with these processes, once all of them have left their steps.

        Messages of steps that were left are dropped, and what was kept for processes that have
        died is given back.

        Raises:
            TransportError: if a process fails or does not answer before the deadline.
        """


@final
class LocalTransport:
    """The transport without other processes: any message is a fault of the library."""

    index = 0
    count = 1
    hosts: tuple[int, ...] | None = None
    watchdog = None

    def __init__(self) -> None:
        self.table = Table()

    def exchange(
        self,
        sends: Sequence[tuple[int, Sequence[Block]]],
        receives: Sequence[tuple[int, Sequence[Block]]],
    ) -> None:
        """Refuse messages; there are no peers."""
        if sends or receives:
            raise TransportError(
                "There is only this process, but a plan asks it to send or receive."
            )

    def swap(
        self, letters: Sequence[tuple[int, bytes]], sizes: Sequence[tuple[int, int]]
    ) -> dict[int, bytes | Block]:
        """Refuse letters; there are no peers."""
        self.exchange([(peer, ()) for peer, _ in letters], [(peer, ()) for peer, _ in sizes])
        return {}

    def share(self, lent: Lent, taken: Taken) -> list[Block]:
        """Refuse to lend or take; there are no neighbours."""
        if lent or taken:
            raise TransportError("There is only this process, but a plan asks it to lend or take.")
        return []

    def all_gather(self, value: object, peers: Sequence[int]) -> list[object]:
        """Return the one value."""
        return [value]

    def barrier(self, peers: Sequence[int]) -> None:
        """Return at once."""

    def recall(self, hosts: tuple[int, ...] | None) -> None:
        """Do nothing: there is one way."""

    def renew(self, members: Sequence[int]) -> None:
        """Do nothing: there are no messages."""
