"""Pages: memory for large blocks, leased from a pool.

Fresh pages cost as much as filling them, so a large block's memory goes back to a pool when the
last NumPy view of it dies, and is handed out again. What a block is made of is a `Lease`, which
exports ``__array_interface__``: NumPy keeps the lease alive as long as any view lives.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import sys
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from .arena import Arena, size_class
from .types import Block

__all__ = ["Lease", "Pages", "lease_of", "only_view"]

_SMALLEST = 256 * 1024
_HUGE = 2 * 1024 * 1024
_UNNEEDED: int | None = getattr(mmap, "MADV_DONTNEED", None)


@final
class Lease:
    """A piece of anonymous memory that returns to its pool when nothing refers to it any more."""

    __slots__ = ("__array_interface__", "_map", "_pool", "held")

    def __init__(self, pool: Pages, memory: mmap.mmap, held: int) -> None:
        self._pool = pool
        self._map = memory
        self.held = held  # bytes of it that count as used
        pool._count(held)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.__array_interface__: dict[str, Any] = {
            "shape": (len(memory),),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }

    def fill(self, nbytes: int) -> None:
        """Say that so many more bytes of a lazy lease are used now."""
        more = min(nbytes, len(self._map) - self.held)
        self.held += more
        self._pool._count(more)

    def release(self, start: int, stop: int) -> None:
        """Give the whole pages within a range back to the system; they read as zeros then."""
        page = mmap.PAGESIZE
        first, last = -(-start // page) * page, min(stop, len(self._map)) // page * page
        if last > first and _UNNEEDED is not None:
            self._map.madvise(_UNNEEDED, first, last - first)
            gone = min(last - first, self.held)
            self.held -= gone
            self._pool._count(-gone)

    def __del__(self) -> None:
        self._pool._count(-self.held)
        self._pool._take_back(self._map)


def lease_of(block: Block) -> Lease | None:
    """Return the lease that a block's memory belongs to; None for memory of another kind."""
    base: Any = block
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, Lease) else None


def only_view(blocks: Sequence[Block | None], number: int) -> bool:
    """Whether nobody but a tuple of blocks holds one of them, or sees its lease's memory."""
    block = blocks[number]
    root: Any = None if block is None else block.base
    # All views share one array that sees the whole lease. The block holds it, and it stands here
    # twice; the block is held by the tuple, and stands here twice.
    base: Any = getattr(root, "base", None)
    return (
        isinstance(base, Lease)
        and sys.getrefcount(root) == _ONCE
        and sys.getrefcount(block) == _ONCE
    )


_ONCE = 3


@final
class Pages:
    """The pool of one world.

    Thread-safe without a lock, since leases die anywhere: queues are appended to and popped from.

    Attributes:
        keep: the most bytes that stay in the pool unused.
        used: the bytes of all leases that are used now.
        peak: the most that were used at once since `reset_peak`.
        arena: memory that the other processes of the host can map; None if there is none.
    """

    def __init__(self, keep: int = 1 << 30) -> None:
        self.keep = keep
        self.used = 0
        self.peak = 0
        self._counting = threading.RLock()
        self._free: dict[int, deque[mmap.mmap]] = {}
        self.arena: Arena | None = None

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Block:
        """Return an uninitialised C-ordered array; a large one comes from the pool."""
        size = dtype.itemsize * math.prod(shape)
        if size < _SMALLEST:
            return np.empty(shape, dtype)
        memory = self._memory(size_class(size))
        flat = np.asarray(Lease(self, memory, len(memory)))
        return flat[:size].view(dtype).reshape(shape)

    def reachable(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Block:
        """Return an uninitialised C-ordered array; a large one where neighbours can write to it."""
        size = dtype.itemsize * math.prod(shape)
        if size < _SMALLEST:
            return np.empty(shape, dtype)
        lease = None if self.arena is None else self.arena.lease(size)
        if lease is None:
            return self.empty(shape, dtype)
        return np.asarray(lease)[:size].view(dtype).reshape(shape)

    def open_arena(self, places: int) -> Arena:
        """Make memory that the other processes of the host can map.

        Args:
            places: how many processes the host has.

        Raises:
            OSError: if the system has no such memory.
        """
        self.arena = Arena(places, self._count, self.keep)
        return self.arena

    def close_arena(self) -> None:
        """Take no more memory that others can map."""
        self.arena = None

    def lazy(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Block:
        """Return an array of zeros whose pages are used only when they are written to.

        Whoever writes says so with `Lease.fill`.
        """
        size = dtype.itemsize * math.prod(shape)
        if size < _SMALLEST:
            return np.zeros(shape, dtype)
        flat = np.asarray(Lease(self, mmap.mmap(-1, size_class(size)), 0))
        return flat[:size].view(dtype).reshape(shape)

    def reset_peak(self) -> None:
        """Count the peak anew from what is used now."""
        self.peak = self.used

    def _count(self, nbytes: int) -> None:
        with self._counting:  # leases die in any thread, also while this one counts
            self.used += nbytes
            self.peak = max(self.peak, self.used)

    def _memory(self, size: int) -> mmap.mmap:
        queue = self._free.get(size)
        if queue:
            with contextlib.suppress(IndexError):
                return queue.pop()
        memory = mmap.mmap(-1, size)
        if size >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):
                memory.madvise(mmap.MADV_HUGEPAGE)
        return memory

    def _take_back(self, memory: mmap.mmap) -> None:
        size = len(memory)
        if self.idle_bytes + size <= self.keep:
            self._free.setdefault(size, deque()).append(memory)

    @property
    def idle_bytes(self) -> int:
        """Bytes that wait in the pool."""
        return sum(size * len(queue) for size, queue in list(self._free.items()))

    def trim(self) -> None:
        """Give all idle memory back to the system."""
        self._free.clear()
        if self.arena is not None:
            self.arena.trim()

    def close(self) -> None:
        """Give all idle memory back, now and whenever the last view of a block dies."""
        self.keep = 0
        if self.arena is not None:
            self.arena.keep = 0
        self.trim()
