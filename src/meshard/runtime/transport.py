"""The door sideways: what the runtime asks of whatever joins processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .types import Block

__all__ = ["Transport"]


class Transport(Protocol):
    """Moves planned boxes and small objects between the processes of one job.

    All methods are called by one thread per process, in program order. Every wait has a deadline.
    """

    index: int
    count: int

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

    def all_gather(self, value: object, peers: Sequence[int]) -> list[object]:
        """Return every peer's small object, in the order of ``peers``, this process included."""

    def barrier(self, peers: Sequence[int]) -> None:
        """Wait until all ``peers`` have come here."""
