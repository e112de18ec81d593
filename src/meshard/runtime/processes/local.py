"""The transport of a single process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from meshard.errors import TransportError
from meshard.runtime.processes.transport import Lent, Taken
from meshard.runtime.settings import Table
from meshard.runtime.types import Block


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
