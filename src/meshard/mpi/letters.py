"""Letters between two processes of one host, through memory that both see.

In: blocks. Out: their bytes, one run, at the neighbour. Each process writes to its own mail page
and reads the other's, so that no lock and no call of the system is needed; a letter that does not
fit into a slot lies in a chunk of the sender's arena, lent until the reader has dropped it.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Generator, Sequence
from typing import final

import numpy as np

from meshard.runtime.arena import Arena, Neighbour
from meshard.runtime.types import Block

__all__ = ["Letters", "mail_bytes", "packed"]

_LINE = 64
_SLOT = 4096
_SLOTS = 2
_HEAD = 32
_ROOM = _SLOT - _HEAD
_NUMBER, _SIZE, _CHUNK, _MORE = range(4)
_BYTE = np.dtype(np.uint8)
_ORDERED = platform.machine().lower() in ("x86_64", "amd64")
"""Whether other processes see a processor's writes in the order in which it made them."""


def mail_bytes(places: int) -> int:
    """Return the bytes of a process's mail page, for a host of so many processes."""
    return places * (_LINE + _SLOTS * _SLOT)


def packed(blocks: Sequence[Block]) -> bytes:
    """Return the elements of all blocks as bytes, each block's in C order."""
    if len(blocks) == 1:
        return blocks[0].tobytes()
    return b"".join([b.tobytes() for b in blocks])


@final
class Letters:
    """What passes between this process and a neighbour, in both directions.

    Its methods are generators that yield while they wait. Letters arrive in the order in which they
    were put.

    Args:
        arena: this process's, for letters that are longer than a slot.
        neighbour: the other process's arena.
        own: this process's mail page.
        other: the neighbour's mail page.
        place: this process's number on the host.
        peer: the neighbour's.
        places: how many processes the host has.
    """

    def __init__(
        self,
        arena: Arena,
        neighbour: Neighbour,
        own: memoryview,
        other: memoryview,
        place: int,
        peer: int,
        places: int,
    ) -> None:
        self._arena = arena
        self._neighbour = neighbour
        self._peer = peer
        self._put = _slots(own, peer, places)
        self._get = _slots(other, place, places)
        self._put_words = [s[:_HEAD].cast("Q") for s in self._put]
        self._get_words = [s[:_HEAD].cast("Q") for s in self._get]
        self._seen_there = other[place * _LINE : place * _LINE + 8].cast("Q")
        self._seen_here = own[peer * _LINE : peer * _LINE + 8].cast("Q")
        self._sent = 0
        self._read = 0
        self._fence = threading.Lock()
        self._fence.acquire()

    def _keep_order(self) -> None:
        """Let nothing that comes later be seen before what came earlier."""
        if not _ORDERED:
            self._fence.release()
            self._fence.acquire()

    def put(self, blocks: Sequence[Block]) -> Generator[None, None, None]:
        """Write a letter; wait while the neighbour has not read the ones before."""
        size = sum([b.nbytes for b in blocks])
        if size <= _ROOM:
            yield from self._write(packed(blocks), 0, 0)
            return
        lease = self._arena.lease(size)
        if lease is None:  # no addresses left: slot after slot
            letter = packed(blocks)
            for at in range(0, size, _ROOM):
                more = max(0, size - at - _ROOM)
                yield from self._write(letter[at : at + _ROOM], 0, more)
            return
        flat = np.asarray(lease)
        at = 0
        for block in blocks:
            part = flat[at : at + block.nbytes]
            np.copyto(part.view(block.dtype).reshape(block.shape), block)
            at += block.nbytes
        self._arena.lend(lease, (self._peer,))
        yield from self._write(b"", lease.offset, 0, size)

    def _write(
        self, inside: bytes, chunk: int, more: int, size: int = 0
    ) -> Generator[None, None, None]:
        number = self._sent = self._sent + 1
        while number - self._seen_there[0] > _SLOTS:
            yield
        slot, words = self._put[number % _SLOTS], self._put_words[number % _SLOTS]
        if inside:
            slot[_HEAD : _HEAD + len(inside)] = inside
        words[_SIZE] = size or len(inside)
        words[_CHUNK] = chunk
        words[_MORE] = more
        self._keep_order()
        words[_NUMBER] = number

    def get(self) -> Generator[None, None, Block]:
        """Wait for the next letter and return its bytes."""
        first, more, size, chunk = yield from self._next()
        if chunk:
            start = chunk + self._arena.head
            return self._neighbour.borrowed(chunk, start, (size,), _BYTE)
        if not more:
            return np.frombuffer(first, np.uint8)
        parts = [first]
        while more:
            part, more, _, _ = yield from self._next()
            parts.append(part)
        return np.frombuffer(b"".join(parts), np.uint8)

    def _next(self) -> Generator[None, None, tuple[bytes, int, int, int]]:
        number = self._read = self._read + 1
        slot, words = self._get[number % _SLOTS], self._get_words[number % _SLOTS]
        while words[_NUMBER] != number:
            yield
        self._keep_order()
        size, chunk, more = words[_SIZE], words[_CHUNK], words[_MORE]
        inside = b"" if chunk else bytes(slot[_HEAD : _HEAD + size])
        self._keep_order()
        self._seen_here[0] = number
        return inside, more, size, chunk


def _slots(page: memoryview, place: int, places: int) -> list[memoryview]:
    """Return the slots of a mail page for letters to one process of the host."""
    first = places * _LINE + place * _SLOTS * _SLOT
    return [page[first + i * _SLOT : first + (i + 1) * _SLOT] for i in range(_SLOTS)]
