"""Pages: memory for large blocks, leased from a pool.

Fresh pages cost as much as filling them, so a large block's memory goes back to a pool when the
last NumPy view of it dies, and is handed out again. What a block is made of is a `Lease`, which
exports ``__array_interface__``: NumPy keeps the lease alive as long as any view lives.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections import deque
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from .types import Block

__all__ = ["Lease", "Pages"]

_SMALLEST = 256 * 1024
_HUGE = 2 * 1024 * 1024


@final
class Lease:
    """A piece of anonymous memory that returns to its pool when nothing refers to it any more."""

    __slots__ = ("__array_interface__", "_map", "_pool")

    def __init__(self, pool: Pages, memory: mmap.mmap) -> None:
        self._pool = pool
        self._map = memory
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.__array_interface__: dict[str, Any] = {
            "shape": (len(memory),),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }

    def __del__(self) -> None:
        self._pool._take_back(self._map)


@final
class Pages:
    """The pool of one world.

    Thread-safe without a lock, since leases die anywhere: queues are appended to and popped from.

    Attributes:
        keep: the most bytes that stay in the pool unused.
    """

    def __init__(self, keep: int = 1 << 30) -> None:
        self.keep = keep
        self._free: dict[int, deque[mmap.mmap]] = {}

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Block:
        """Return an uninitialised C-ordered array; a large one comes from the pool."""
        size = dtype.itemsize
        for n in shape:
            size *= n
        if size < _SMALLEST:
            return np.empty(shape, dtype)
        flat = np.asarray(Lease(self, self._memory(_size_class(size))))
        return flat[:size].view(dtype).reshape(shape)

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

    def close(self) -> None:
        """Give all idle memory back, now and whenever the last view of a block dies."""
        self.keep = 0
        self.trim()


def _size_class(size: int) -> int:
    """Round up to one of eight steps per power of two, in whole pages."""
    step = max(mmap.PAGESIZE, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step
