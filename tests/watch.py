"""What an operation costs: the bytes that this process sends, and the largest block it makes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from meshard.runtime.world import here


@dataclass
class Watch:
    """What was seen.

    Attributes:
        sent: bytes sent to other processes.
        blocks: the numbers of elements of the blocks that movement has made.
    """

    sent: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def largest(self) -> int:
        """The elements of the largest block made."""
        return max(self.blocks, default=0)


@contextlib.contextmanager
def watched() -> Iterator[Watch]:
    """Watch the transport and the pages of the current world."""
    world, seen = here(), Watch()
    transport, pages = world.transport, world.memory
    exchange, empty, reachable = transport.exchange, pages.allocate, pages.reachable

    def counted_exchange(sends: Any, receives: Any) -> None:
        seen.sent += sum(b.nbytes for _, blocks in sends for b in blocks)
        exchange(sends, receives)

    def counted_empty(shape: Any, dtype: Any) -> Any:
        seen.blocks.append(math.prod(shape))
        return empty(shape, dtype)

    def counted_reachable(shape: Any, dtype: Any) -> Any:
        counted = len(seen.blocks)
        block = reachable(shape, dtype)
        if len(seen.blocks) == counted:  # else it has called `empty`
            seen.blocks.append(math.prod(shape))
        return block

    transport.exchange = counted_exchange  # type: ignore[method-assign]
    pages.allocate = counted_empty  # type: ignore[method-assign]
    pages.reachable = counted_reachable  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        del transport.exchange, pages.allocate, pages.reachable  # type: ignore[misc]
