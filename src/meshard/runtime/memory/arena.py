"""Arenas: memory of one process that the other processes of its host can map.

In: sizes. Out: blocks that are in a file without a name, which neighbours open through this
process's entry in ``/proc``. Nothing is left behind, however a process ends: there is no name to
unlink. A chunk begins with two counters for each process of the host: how often it was lent to that
process, which only the owner writes, and how often it was given back, which only that process
writes. A chunk is reused when this process does not hold it and all counters agree; no process
waits for that.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from meshard.runtime.memory.forks import guard, latest_alive, number_of_forks
from meshard.runtime.types import Block

ROOM = 1 << 40
"""Bytes of addresses of one arena; memory is taken only where something is written."""
_LEAST_ROOM = 1 << 32
_HEAD = 4096
_NAME = "meshard"
_LINK = f"/memfd:{_NAME}"
_COUNTERS = np.dtype(np.uint32)


@final
class SharedLease:
    """A chunk that returns to its arena when nothing in this process refers to it any more."""

    __slots__ = ("__array_interface__", "_arena", "_forks", "_size", "offset")

    def __init__(self, arena: Arena, offset: int, size: int) -> None:
        self._arena = arena
        self._size = size
        self._forks = number_of_forks()
        self.offset = offset
        start = arena.base + offset + arena.head
        self.__array_interface__ = _interface(start, size - arena.head, readonly=False)

    @property
    def seen_elsewhere(self) -> bool:
        """Whether another process may look at it: one it was lent to, or a forked child."""
        return self._arena.is_seen(self.offset, self._forks)

    def give_back(self, start: int, nbytes: int) -> None:
        """Give the whole pages within a range of addresses to the system; they read as zeros."""
        self._arena.discard(start - self._arena.base, nbytes)

    def __del__(self) -> None:
        if not self._arena.ending.seen:
            self._arena.take_back(self.offset, self._size, self._forks)


@final
class _Borrowed:
    """A neighbour's chunk, which is given back when nothing here refers to it."""

    __slots__ = ("__array_interface__", "_forks", "_neighbour", "_offset")

    def __init__(self, neighbour: Neighbour, chunk: int, start: int, nbytes: int) -> None:
        self._neighbour = neighbour
        self._offset = chunk
        self._forks = number_of_forks()
        self.__array_interface__ = _interface(neighbour.base + start, nbytes, readonly=True)

    def __del__(self) -> None:
        if not self._neighbour.ending.seen:
            self._neighbour.give_back(self._offset, self._forks)


@final
class _Ending:
    """Whether the interpreter is shutting down, when objects that die find modules gone.

    They then do nothing: a process that has ended gives nothing back, and takes nothing.
    """

    def __init__(self) -> None:
        self.seen = False
        seen = weakref.ref(self)
        atexit.register(_end, seen)


def _end(ending: weakref.ref[_Ending]) -> None:
    found = ending()
    if found is not None:
        found.seen = True


def _interface(address: int, nbytes: int, readonly: bool) -> dict[str, Any]:
    return {"shape": (nbytes,), "typestr": "|u1", "data": (address, readonly), "version": 3}


def chunk_of(block: Block) -> SharedLease | None:
    """Return the chunk of this process that holds a block; None for memory of another kind."""
    base: Any = block
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, SharedLease) else None


@final
class Arena:
    """The memory of this process that its neighbours can map.

    Leases die in any thread, so that what they touch is appended to and popped from, without locks.

    Args:
        places: how many processes the host may ever have; each has a number below it.
        keep: the most bytes of memory that stay unused.
        room: bytes of addresses.
        used: how many of them it has; by default all.

    Attributes:
        handle: what a neighbour needs in order to map it: process, file and size.
        head: bytes at the beginning of a chunk that hold its counters.
        base: the address of its first byte.

    Raises:
        OSError: if the system has no such memory.
    """

    def __init__(
        self,
        places: int,
        keep: int = 1 << 30,
        room: int = ROOM,
        used: int | None = None,
    ) -> None:
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no memory files")
        self.ending = _Ending()
        self.head = -(-2 * places * _COUNTERS.itemsize // _HEAD) * _HEAD
        self.keep = keep
        self._places = places
        self._here: slice | list[int] = slice(0, places if used is None else used)
        self._file = os.memfd_create(_NAME)
        weakref.finalize(self, os.close, self._file).atexit = False
        self._map, self._room = _largest(self._file, room)
        self.handle = (os.getpid(), self._file, self._room)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._process = os.getpid()
        self._next = _HEAD
        self._growing = threading.Lock()
        self._free: dict[int, deque[int]] = {}
        self._hollow: dict[int, deque[int]] = {}
        self._seen: deque[tuple[int, int, int]] = deque()
        guard(self)

    def lease(self, nbytes: int) -> SharedLease | None:
        """Return a chunk for at least that many bytes.

        Returns None if there are no addresses left, and in a forked child, whose parent owns it.
        """
        if os.getpid() != self._process:
            return None
        size = size_class(nbytes + self.head)
        self._sweep()
        for kept in (self._free, self._hollow):
            queue = kept.get(size)
            if queue:
                with contextlib.suppress(IndexError):
                    return SharedLease(self, queue.pop(), size)
        with self._growing:
            offset = self._next
            if offset + size > self._room:
                return None
            self._next += size
        return SharedLease(self, offset, size)

    def _counters(self, offset: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """Return a chunk's counters: lent, given back, for each process."""
        return np.ndarray((2, self._places), _COUNTERS, self._map, offset)

    def lend(self, lease: SharedLease, places: Sequence[int], loans: int = 1) -> None:
        """Record that processes of the host will hold a chunk, before they learn of it.

        Args:
            lease: the chunk.
            places: the numbers of the processes on the host.
            loans: how many more times; -1 if they will not learn of it after all.
        """
        for place in places:
            counters = self._counters(lease.offset)
            counters[0, place] = (int(counters[0, place]) + loans) % (1 << 32)

    def offset_of(self, block: Block) -> int | None:
        """Return the offset of a block's first element in the arena; None if it is elsewhere."""
        address: int = block.__array_interface__["data"][0]
        offset = address - self.base
        return offset if 0 <= offset < self._room else None

    def forget(self, place: int) -> None:
        """Take back what a process of the host holds, which has died."""
        self._here = [p for p in self._places_here() if p != place]

    def expect(self, place: int) -> None:
        """Count what one more process of the host holds."""
        self._here = sorted({*self._places_here(), place})

    def _places_here(self) -> list[int]:
        here = self._here
        return here if isinstance(here, list) else list(range(here.stop))

    def _is_lent(self, offset: int) -> bool:
        if isinstance(self._here, slice):  # a comparison of bytes is quicker than one of arrays
            row, some = self._places * _COUNTERS.itemsize, self._here.stop * _COUNTERS.itemsize
            back = offset + row
            return self._map[offset : offset + some] != self._map[back : back + some]
        counters = self._counters(offset)[:, self._here]
        return bool((counters[0] != counters[1]).any())

    def is_seen(self, offset: int, forks: int) -> bool:
        """Whether another process may look at a chunk.

        Args:
            offset: where it begins.
            forks: how many forks there had been when it was leased.
        """
        if os.getpid() != self._process or self._is_lent(offset):
            return True
        return forks < number_of_forks() and forks < latest_alive()

    def discard(self, start: int, nbytes: int) -> None:
        """Give the whole pages within a range to the system; they read as zeros."""
        page = mmap.PAGESIZE
        first, last = -(-start // page) * page, (start + nbytes) // page * page
        if last > first:
            self._map.madvise(mmap.MADV_REMOVE, first, last - first)

    def take_back(self, offset: int, size: int, forks: int) -> None:
        """Keep a chunk for its next use, at once or when no other process can see it any more.

        Args:
            offset: where it begins.
            size: its bytes.
            forks: how many forks there had been when it was leased.
        """
        if os.getpid() != self._process:  # a fork's copy of a lease gives nothing back
            return
        if self.is_seen(offset, forks):
            self._seen.append((offset, size, forks))
        else:
            self._keep(offset, size)

    def _keep(self, offset: int, size: int) -> None:
        if self.idle_bytes + size <= self.keep:
            self._free.setdefault(size, deque()).append(offset)
        else:
            self._map.madvise(mmap.MADV_REMOVE, offset, size)
            self._hollow.setdefault(size, deque()).append(offset)

    def _sweep(self) -> None:
        """Check once every chunk that only neighbours or forked children could see."""
        alive = latest_alive() if self._seen else 0
        for _ in range(len(self._seen)):
            with contextlib.suppress(IndexError):
                offset, size, forks = self._seen.popleft()
                if self._is_lent(offset) or forks < alive:
                    self._seen.append((offset, size, forks))
                else:
                    self._keep(offset, size)

    @property
    def idle_bytes(self) -> int:
        """Bytes of memory that wait to be used again."""
        return sum(size * len(queue) for size, queue in list(self._free.items()))

    @property
    def lent_bytes(self) -> int:
        """Bytes of memory that only neighbours, or forked children, hold."""
        self._sweep()
        return sum(size for _, size, _ in list(self._seen))

    def trim(self, most: int = 0) -> None:
        """Give idle memory back to the system.

        Args:
            most: bytes that may stay.
        """
        self._sweep()
        for size, queue in list(self._free.items()):
            while queue and self.idle_bytes > most:
                with contextlib.suppress(IndexError):
                    offset = queue.pop()
                    self._map.madvise(mmap.MADV_REMOVE, offset, size)
                    self._hollow.setdefault(size, deque()).append(offset)

    def write_mark(self, mark: bytes) -> None:
        """Write the mark by which a neighbour checks that it has mapped the right memory."""
        self._map[: len(mark)] = mark


def _largest(file: int, room: int) -> tuple[mmap.mmap, int]:
    """Map as much of a file as the process is allowed to, at most ``room``."""
    while True:
        try:
            os.ftruncate(file, room)
            return mmap.mmap(file, room), room
        except (OSError, ValueError, OverflowError):
            room //= 4
            if room < _LEAST_ROOM:
                raise


@final
class Neighbour:
    """The arena of another process of this host, mapped.

    Args:
        handle: that arena's.
        place: this process's number on the host.
        places: how many processes the host has.

    Attributes:
        base: the address of its first byte.

    Raises:
        OSError: if it cannot be opened.
    """

    def __init__(self, handle: tuple[int, int, int], place: int, places: int) -> None:
        process, number, room = handle
        self.ending = _Ending()
        path = f"/proc/{process}/fd/{number}"
        if not os.readlink(path).startswith(_LINK):  # in another container it is another file
            raise OSError(f"{path} is not an arena")
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(file, room)
        finally:
            os.close(file)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._process = os.getpid()
        self._place = place
        self._places = places
        self._returned: deque[tuple[int, int]] = deque()
        self._counting = threading.Lock()

    def read_mark(self, length: int) -> bytes:
        """Return what the owner has written at the beginning."""
        return self._map[:length]

    def at(
        self, offset: int, shape: Sequence[int], dtype: np.dtype[Any], strides: Sequence[int]
    ) -> Block:
        """Return a box of the neighbour's memory, to be written to."""
        return np.ndarray(shape, dtype, self._map, offset, strides)

    def memory(self, offset: int, nbytes: int) -> memoryview:
        """Return a run of the neighbour's memory."""
        return memoryview(self._map)[offset : offset + nbytes]

    def borrowed(
        self, chunk: int, start: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Block:
        """Return a block that the neighbour has lent, to be read; C-ordered from ``start`` on."""
        nbytes = dtype.itemsize
        for n in shape:
            nbytes *= n
        flat = np.asarray(_Borrowed(self, chunk, start, nbytes))
        return flat.view(dtype).reshape(shape)

    def give_back(self, chunk: int, forks: int) -> None:
        """Tell the owner that a loan of a chunk has ended; any thread, at any time.

        Args:
            chunk: where it begins.
            forks: how many forks there had been when it was borrowed. While a child lives that was
                forked since then, nothing is reported; the next chunk given back reports it.
        """
        if os.getpid() != self._process:  # a fork's copy of a loan does nothing
            return
        self._returned.append((chunk, forks))
        alive = latest_alive() if forks < number_of_forks() or len(self._returned) > 1 else 0
        held: list[tuple[int, int]] = []
        # A thread that finds the lock taken leaves: the one that holds it looks again.
        while self._returned and self._counting.acquire(blocking=False):
            try:
                with contextlib.suppress(IndexError):
                    while True:
                        at, forks = self._returned.popleft()
                        if forks < alive:
                            held.append((at, forks))
                            continue
                        counters = np.ndarray((2, self._places), _COUNTERS, self._map, at)
                        counters[1, self._place] += 1
            finally:
                self._counting.release()
        self._returned.extend(held)


def size_class(size: int) -> int:
    """Round up to one of eight steps per power of two, in whole pages."""
    step = max(mmap.PAGESIZE, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step
