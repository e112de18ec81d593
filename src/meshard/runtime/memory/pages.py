"""Pages: memory for large blocks, leased from a pool.

Fresh pages cost as much as filling them, so a large block's memory goes back to a pool when the
last NumPy view of it dies, and is handed out again. What a block is made of is a `Lease`, which
exports ``__array_interface__``: NumPy keeps the lease alive as long as any view lives.

The memory is private to the process: a forked child gets its own copy of what it or its parent
writes to, and what is given back to the system is really given back. It uses huge pages where the
system has them. Chunks of less than a huge page are carved out of larger regions for that.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import sys
import threading
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from meshard.errors import AllocationError
from meshard.runtime.memory.arena import ROOM, Arena, size_class
from meshard.runtime.memory.forks import renew_in_children
from meshard.runtime.memory.memory import Memory
from meshard.runtime.types import Block, dtype_name
from meshard.tuning import CARVED_BYTES, POOLED_BYTES

HUGE = 2 * 1024 * 1024
"""Bytes of a huge page."""
_UNNEEDED: int | None = getattr(mmap, "MADV_DONTNEED", None)
_ON_HUGE_PAGES: int | None = getattr(mmap, "MADV_HUGEPAGE", None)
_ON_SMALL_PAGES: int | None = getattr(mmap, "MADV_NOHUGEPAGE", None)


def _advise() -> Any:
    found = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform != "win32" else None
    if found is not None:
        found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return found


_madvise = _advise()


def _tell(address: int, nbytes: int, advice: int | None) -> None:
    """Advise the system about whole pages of private memory; it may ignore the advice."""
    if advice is not None and _madvise is not None:
        _madvise(address, nbytes, advice)


def on_huge_pages(address: int, nbytes: int) -> None:
    """Ask the system for huge pages within a range of private memory that is not used yet.

    A first touch of them is about five times cheaper.
    """
    page = mmap.PAGESIZE
    first, last = -(-address // page) * page, (address + nbytes) // page * page
    if last - first >= 2 * HUGE:
        _tell(first, last - first, _ON_HUGE_PAGES)


def give_back(address: int, nbytes: int) -> None:
    """Give the whole pages within a range of private memory to the system; they read as zeros."""
    page = mmap.PAGESIZE
    first, last = -(-address // page) * page, (address + nbytes) // page * page
    if last > first:
        _tell(first, last - first, _UNNEEDED)


@final
class _Region:
    """A run of private memory, mapped at once.

    Attributes:
        base: the address of its first byte, on a boundary of huge pages where it is as large.
        size: its bytes.
        carved: how many chunks it was cut into so far; one, if it is itself a chunk.
        used: the bytes that these chunks take.
    """

    __slots__ = ("_memory", "base", "carved", "size", "used")

    def __init__(self, size: int, huge: bool = True) -> None:
        room = size
        while True:
            memory = _mapped(room)
            address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            if size < HUGE or not address % HUGE or room > size:
                break
            room = size + HUGE  # the system did not align it by itself
        self._memory = memory
        self.base = -(-address // HUGE) * HUGE if room > size else address
        self.size = size
        self.carved = self.used = 0
        if size >= HUGE:
            _tell(self.base, size, _ON_HUGE_PAGES if huge else _ON_SMALL_PAGES)

    def carve(self, size: int) -> int | None:
        """Return where the next chunk begins; None if there is no room for it."""
        at = self.used
        if at + size > self.size:
            return None
        self.used += size
        self.carved += 1
        return at


def _mapped(size: int) -> mmap.mmap:
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


_Chunk = tuple[_Region, int]
"""A piece of a region, by where it begins."""


@final
class Lease:
    """A chunk of private memory that returns to its pool when nothing refers to it any more."""

    __slots__ = ("__array_interface__", "_at", "_hollow", "_pool", "_region", "_size")

    def __init__(self, pool: Pages, region: _Region, at: int, size: int) -> None:
        self._pool = pool
        self._region = region
        self._at = at
        self._size = size
        self._hollow = False
        self.__array_interface__: dict[str, Any] = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (region.base + at, False),
            "version": 3,
        }

    def give_back(self, start: int, nbytes: int) -> None:
        """Give the whole pages within a range of addresses to the system; they read as zeros."""
        self._hollow = True  # it is not worth keeping
        give_back(start, nbytes)

    def __del__(self) -> None:
        self._pool._take_back((self._region, self._at), self._size, self._hollow)


@final
class Pages(Memory):
    """The pool of one world.

    Leases die anywhere, so that what they touch is appended to and popped from, without a lock.

    Attributes:
        keep: the most bytes that stay in the pool unused.
        arena: memory that the other processes of the host can map; None if there is none.
    """

    def __init__(self, keep: int = 1 << 30) -> None:
        self.keep = keep
        self.arena: Arena | None = None
        self._idle: dict[int, deque[_Chunk]] = {}
        self._hollow: dict[int, deque[_Chunk]] = {}
        self._carving: _Region | None = None
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Make the lock anew, in a child that was forked while another thread held it."""
        self._growing = threading.RLock()

    def allocate(
        self, shape: Sequence[int], dtype: np.dtype[Any], *, filled_in: int | None = None
    ) -> Block:
        """Return an uninitialised C-ordered array; a large one comes from the pool."""
        size = dtype.itemsize * math.prod(shape)
        if size < POOLED_BYTES:
            return np.empty(shape, dtype)
        try:
            lease = self._leased(size_class(size), filled_in)
        except (OSError, ValueError, OverflowError) as error:
            raise AllocationError(
                f"The system has no memory for a block {dtype_name(dtype)}"
                f"[{','.join(map(str, shape))}] of {size:,} bytes ({error})."
            ) from error
        return np.asarray(lease)[:size].view(dtype).reshape(shape)

    def reachable(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Block:
        """Return an uninitialised C-ordered array; a large one where neighbours can write to it."""
        size = dtype.itemsize * math.prod(shape)
        if size < POOLED_BYTES:
            return np.empty(shape, dtype)
        lease = None if self.arena is None else self.arena.lease(size)
        if lease is None:
            return self.allocate(shape, dtype)
        return np.asarray(lease)[:size].view(dtype).reshape(shape)

    def zeros(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Block:
        """Return an array of zeros, not from the pool, since fresh pages are zeros."""
        return np.zeros(shape, dtype)

    def copy(self, target: Block, origin: Block) -> None:
        """Fill an array with another."""
        np.copyto(target, origin)

    def from_host(self, target: Block, value: Block) -> None:
        """Fill an array with another: all are on the host."""
        target[...] = value  # for small ones faster than copyto

    def to_host(self, block: Block) -> Block:
        """Return the array itself."""
        return block

    def open_arena(self, places: int, used: int | None = None, room: int = ROOM) -> Arena:
        """Make memory that the other processes of the host can map.

        Args:
            places: how many processes the host may ever have.
            used: how many it has; by default as many.
            room: bytes of addresses.

        Raises:
            OSError: if the system has no such memory.
        """
        self.arena = Arena(places, self.keep, room, used)
        return self.arena

    def close_arena(self) -> None:
        """Take no more memory that others can map."""
        self.arena = None

    def _leased(self, size: int, filled_in: int | None) -> Lease:
        try:
            return Lease(self, *self._chunk(size, filled_in), size)
        except OSError:
            self.trim()  # the memory that waits here may be what the system lacks
            return Lease(self, *self._chunk(size, filled_in), size)

    def _chunk(self, size: int, filled_in: int | None) -> _Chunk:
        """Return a chunk that was used before, or a new one."""
        if filled_in is not None and size >= HUGE:
            # Each place where it grows may occupy a huge page that it does not fill yet.
            region = _Region(size, huge=size >= 16 * HUGE * filled_in)
            region.carve(size)
            return region, 0
        for kept in (self._idle, self._hollow):
            queue = kept.get(size)
            if queue:
                with contextlib.suppress(IndexError):
                    return queue.pop()
        if size >= HUGE:
            region = _Region(size)
            region.carve(size)
            return region, 0
        with self._growing:
            at = None if self._carving is None else self._carving.carve(size)
            if self._carving is None or at is None:
                self._carving = _Region(CARVED_BYTES)
                at = self._carving.carve(size)
                assert at is not None
            return self._carving, at

    def _take_back(self, chunk: _Chunk, size: int, hollow: bool) -> None:
        if not hollow and self.idle_bytes + size <= self.keep:
            self._idle.setdefault(size, deque()).append(chunk)
        elif size < HUGE:
            region, at = chunk
            give_back(region.base + at, size)
            self._hollow.setdefault(size, deque()).append(chunk)

    @property
    def idle_bytes(self) -> int:
        """Bytes that wait in the pool."""
        return sum(size * len(queue) for size, queue in list(self._idle.items()))

    def trim(self, most: int = 0) -> None:
        """Give idle memory back to the system."""
        with self._growing:
            found: list[tuple[_Chunk, int]] = []
            for size, queue in list(self._idle.items()):
                while queue and self.idle_bytes > most:
                    with contextlib.suppress(IndexError):
                        found.append((queue.popleft(), size))
            if not most:
                self._drop_regions(found)
        for chunk, size in found:
            self._take_back(chunk, size, hollow=True)
        if self.arena is not None:
            self.arena.trim(most)

    def _drop_regions(self, idle: list[tuple[_Chunk, int]]) -> None:
        """Drop the regions of which no chunk is leased; the other chunks stay in the list."""
        for size, queue in list(self._hollow.items()):
            while queue:
                with contextlib.suppress(IndexError):
                    idle.append((queue.pop(), size))
        counts = Counter([id(region) for (region, _), _ in idle])
        self._carving = None
        idle[:] = [e for e in idle if counts[id(e[0][0])] < e[0][0].carved]

    def close(self) -> None:
        """Give all idle memory back, now and whenever the last view of a block dies."""
        self.keep = 0
        if self.arena is not None:
            self.arena.keep = 0
        self.trim()
