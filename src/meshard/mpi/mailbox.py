"""Letters between two processes of one host, through memory that both see.

In: blocks. Out: their bytes, one run, at the neighbour. Each process writes to its own mail page
and reads the other's, so that no lock is needed, and no call of the system unless the neighbour
sleeps; a letter that does not fit into a slot is written to a chunk of the sender's arena, lent
until the reader has dropped it.

Each letter is stamped with the step to which it belongs. Letters arrive in program order, so those
of a step that the reader has left early come first: it drops them, and gives back what they lend.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Generator, Iterator, Sequence
from struct import Struct
from typing import Any, Protocol, final

import numpy as np

from meshard.mpi.waiting import ANYTHING, Doorbell
from meshard.runtime.memory.arena import Arena, Neighbour, SharedLease
from meshard.runtime.memory.forks import number_of_forks
from meshard.runtime.processes.agreement import Stamp
from meshard.runtime.types import Block

_LINE = 64
_SLOT = 4096
_SLOTS = 2
_WORD = 8
_DOORBELL = 4
_FACTS = Struct("QQQQQQQ")
_HEAD = _WORD + _FACTS.size
ROOM = _SLOT - _HEAD
"""The most bytes of a letter in a slot."""
_LENGTH = Struct("Q")
_BYTE = np.dtype(np.uint8)
_ORDERED = platform.machine().lower() in ("x86_64", "amd64")
"""Whether other processes see a processor's writes in the order in which they were made."""


def mail_bytes(places: int) -> int:
    """Return the bytes of a process's mail page, for a host of that many processes."""
    return places * (_LINE + _SLOTS * _SLOT)


@final
class MailPage:
    """The page that one process of a host writes for the others: letters, and counts of those read.

    A line for each process comes first, in which the owner counts the letters that it has read from
    that process; in the line of the owner itself is its doorbell. Slots follow, some for each
    process, each preceded by the number of its letter: a slot is free as soon as its reader has
    counted the letter.

    Args:
        memory: the page, of `mail_bytes`.
        place: the owner's number on the host.
        places: how many processes the host has.

    Attributes:
        place: the owner's number on the host.
        doorbell: where the owner sleeps.
    """

    def __init__(self, memory: memoryview, place: int, places: int) -> None:
        self.place = place
        self.doorbell = Doorbell(memory[place * _LINE : place * _LINE + _DOORBELL])
        self._memory = memory
        self._places = places

    def slots(self, reader: int) -> list[tuple[memoryview, memoryview]]:
        """Return the slots for one process of the host, and their numbers."""
        first = self._places * _LINE + reader * _SLOTS * _SLOT
        starts = [first + i * _SLOT for i in range(_SLOTS)]
        slots = [self._memory[start : start + _SLOT] for start in starts]
        return [(slot, slot[:_WORD].cast("Q")) for slot in slots]

    def read_of(self, writer: int) -> memoryview:
        """Return where the owner counts the letters of one process that it has read."""
        return self._memory[writer * _LINE : writer * _LINE + _WORD].cast("Q")


def packed(blocks: Sequence[Block]) -> bytes:
    """Return the elements of all blocks as bytes, each block's in C order."""
    if len(blocks) == 1:
        return blocks[0].tobytes()
    return b"".join([b.tobytes() for b in blocks])


def pack(buffer: Block, blocks: Sequence[Block]) -> None:
    """Write the elements of all blocks to a buffer, each block's in C order."""
    for at, shape, dtype, alike in _runs(blocks):
        if shape:
            room = np.ndarray((len(alike) * shape[0], *shape[1:]), dtype, buffer, at)
            np.concatenate(alike, out=room)
        else:
            for i, place in enumerate(np.ndarray((len(alike), 1), dtype, buffer, at)):
                place[0] = alike[i]


def unpack(buffer: Block | bytes, boxes: Sequence[Block]) -> None:
    """Fill boxes from their bytes."""
    for at, shape, dtype, alike in _runs(boxes):
        parts = np.ndarray((len(alike), *shape), dtype, buffer, at)
        for box, part in zip(alike, parts, strict=True):
            box[...] = part


def _runs(
    blocks: Sequence[Block],
) -> Iterator[tuple[int, tuple[int, ...], np.dtype[Any], Sequence[Block]]]:
    """Yield the blocks of one shape and dtype that follow each other, and where their bytes are."""
    at = start = 0
    while start < len(blocks):
        shape, dtype = blocks[start].shape, blocks[start].dtype
        stop = start + 1
        while stop < len(blocks) and blocks[stop].shape == shape and blocks[stop].dtype == dtype:
            stop += 1
        yield at, shape, dtype, blocks[start:stop]
        at += (stop - start) * blocks[start].nbytes
        start = stop


class Stamps(Protocol):
    """The stamps of letters at this place in the program, and the meaning of others' stamps."""

    def stamp(self, peer: int) -> Stamp:
        """Return the stamp of the messages to and from a process."""

    def is_over(self, peer: int, stamp: Stamp) -> bool:
        """Whether a message of a process belongs to a step that this process has left."""


@final
class Mailbox:
    """The letters between this process and a neighbour, in both directions.

    Its methods are generators that yield while they wait: the neighbour whose letter they wait for,
    or None if its reading may help. Letters arrive in the order in which they were put.

    Args:
        arena: this process's arena, for letters that are longer than a slot.
        neighbour: the other process's arena.
        own: this process's mail page.
        other: the neighbour's mail page.
        process: the neighbour's number in the job.
        stamps: the stamps of letters at this place in the program; letters of a neighbour that is
            elsewhere are not read.

    Attributes:
        place: the neighbour's number on the host.
        refused: the stamp of the next letter, if it does not belong to this step.
    """

    def __init__(
        self,
        arena: Arena,
        neighbour: Neighbour,
        own: MailPage,
        other: MailPage,
        process: int,
        stamps: Stamps,
    ) -> None:
        self._arena = arena
        self._neighbour = neighbour
        self.place = other.place
        self._process = process
        self._stamps = stamps
        self._place = own.place
        self._doorbell = other.doorbell
        self._asleep = other.doorbell.word
        self._put = own.slots(other.place)
        self._get = other.slots(own.place)
        self._seen_there = other.read_of(own.place)
        self._seen_here = own.read_of(other.place)
        self._sent = 0
        self._read = 0
        self._parts: list[bytes] = []
        self._held: list[tuple[Stamp, Sequence[Block]]] = []
        self.refused: Stamp | None = None
        self._fence = threading.Lock()
        self._fence.acquire()

    def _keep_order(self) -> None:
        """Keep later writes from being seen before earlier ones."""
        # Where a processor may reorder its writes (ARM), taking and giving back a lock is a barrier
        # that Python has; x86 keeps the order of writes by itself.
        if not _ORDERED:
            self._fence.release()
            self._fence.acquire()

    def put(
        self, blocks: Sequence[Block], lent: Sequence[SharedLease] = ()
    ) -> Generator[int | None, None, None]:
        """Write a letter; wait while the neighbour has not read the ones before.

        Args:
            blocks: its content.
            lent: the chunks that it announces; the neighbour gets a loan of each. The content is
                then a list of chunks and places in them.
        """
        size = sum([b.nbytes for b in blocks])
        lease = self._arena.lease(size) if size > ROOM else None
        loans = list(lent) if lease is None else [*lent, lease]
        for one in loans:
            self._arena.lend(one, (self.place,))
        told = int(bool(lent))
        try:
            if lease is None:  # it fits into a slot, or there are no addresses left
                letter = packed(blocks)
                for at in range(0, max(1, size), ROOM):
                    more = max(0, size - at - ROOM)
                    while not self.post(letter[at : at + ROOM], more, 0, told):
                        yield None
            else:
                pack(np.asarray(lease), blocks)
                while not self.post(_LENGTH.pack(size), 0, lease.offset, told):
                    yield None
            loans = []
        finally:
            for one in loans:  # the neighbour has not learned of it
                self._arena.lend(one, (self.place,), -1)

    def post(self, letter: bytes, more: int = 0, chunk: int = 0, lent: int = 0) -> bool:
        """Write a letter that fits into a slot; return whether a slot was free.

        Args:
            letter: the bytes, at most `ROOM`.
            more: how many bytes follow in other slots.
            chunk: where the bytes are instead; the letter then says how many.
            lent: whether the letter announces chunks that are lent.
        """
        # The slot of letter n is free when letter n - _SLOTS was read. The number is written last:
        # a reader that sees it sees all of the letter.
        number = self._sent + 1
        if number - self._seen_there[0] > _SLOTS:
            return False
        self._sent = number
        slot, count = self._put[number % _SLOTS]
        size = len(letter)
        facts = _FACTS.pack(*self._stamps.stamp(self._process), size, chunk, more, lent)
        slot[_WORD : _HEAD + size] = facts + letter
        self._keep_order()
        count[0] = number
        self._keep_order()
        if self._asleep[0]:
            self._doorbell.after_letter(self._place)
        return True

    def post_chunk(self, lease: SharedLease, size: int) -> bool:
        """Write a letter that is in a chunk, lent already; return whether a slot was free."""
        return self.post(_LENGTH.pack(size), 0, lease.offset)

    def get(self) -> Generator[int | None, None, Block]:
        """Wait for the next letter and return its bytes."""
        while (found := self.collect()) is None:
            yield self._process
        return found if isinstance(found, np.ndarray) else np.frombuffer(found, np.uint8)

    def collect(self) -> bytes | Block | None:
        """Return the bytes of the next letter of this step if it has arrived.

        Letters of a step that this process has left are dropped. One that belongs to another step
        is left where it is: the watchdog finds out why.
        """
        while True:
            number = self._read + 1
            slot, count = self._get[number % _SLOTS]
            if count[0] != number:
                return None
            self._keep_order()
            key, step, hashed, size, chunk, more, lent = _FACTS.unpack_from(slot, _WORD)
            stamp = key, step, hashed
            due = stamp == self._stamps.stamp(self._process)
            if not due and not self._stamps.is_over(self._process, stamp):
                self.refused = stamp
                return None
            read = bytes(slot[_HEAD : _HEAD + size])
            letter: bytes | Block = read
            self._keep_order()
            self._read = self._seen_here[0] = number
            if self._asleep[0] == ANYTHING:
                self._doorbell.ring()
            if chunk:
                (size,) = _LENGTH.unpack(read)  # the slot may hold another letter by now
                letter = self._neighbour.borrowed(chunk, chunk + self._arena.head, (size,), _BYTE)
            if not due:
                if lent:
                    self._give_back(letter)
                continue
            self.refused = None
            self._let_go(stamp)
            if more:
                assert isinstance(letter, bytes)
                self._parts.append(letter)
                continue
            if self._parts:
                letter = b"".join([*self._parts, bytes(letter)])
                self._parts.clear()
            return letter

    def _give_back(self, letter: bytes | Block) -> None:
        """Give back the chunks that an unread letter lends."""
        for chunk in np.frombuffer(letter, np.int64)[::2].tolist():
            if chunk >= 0:
                self._neighbour.give_back(chunk, number_of_forks())

    def hold(self, blocks: Sequence[Block]) -> None:
        """Keep memory that the neighbour may still write to, because this step was left.

        It is dropped when a letter of a later step arrives: the neighbour has then left this step
        too.
        """
        self._parts.clear()
        self._held.append((self._stamps.stamp(self._process), blocks))

    def _let_go(self, stamp: Stamp) -> None:
        if self._held:
            self._held = [one for one in self._held if one[0] == stamp]
