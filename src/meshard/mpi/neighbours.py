"""Neighbours: the processes of this host, which can reach each other's memory.

In: the boxes that pass between this process and a neighbour, or blocks to lend and to take. Out:
generators that move them, and yield while they wait. A box that is large is written by its sender
straight to where the receiver wants it; smaller ones come as one letter.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from meshard.mpi.mailbox import ROOM, Mailbox, MailPage, Stamps, mail_bytes, unpack
from meshard.runtime.lines.letters import sent
from meshard.runtime.memory.arena import ROOM as ADDRESSES
from meshard.runtime.memory.arena import Arena, Neighbour, SharedLease, chunk_of
from meshard.runtime.memory.pages import Pages
from meshard.runtime.processes.agreement import Stamp
from meshard.runtime.settings import Table
from meshard.runtime.types import Block

Waiting = Generator[int | None, None, None]
"""Yields while it waits: a process whose letter it waits for, or None for anything else."""
Letter = tuple[int, bytes | Sequence[Block]]
"""A process, and what it gets: bytes, or blocks whose elements are the bytes."""
Found = dict[int, bytes | Block]
"""The letters of processes."""
_MARK = 16
_NOWHERE = -1


PLACES = 512
"""The numbers that processes of a host can have: some of them may come to join later. A number that
nobody has costs addresses only."""


@sent
@final
@dataclass(frozen=True)
class Handle:
    """What a neighbour needs to know: an arena, its mark, its mail page and how many it serves."""

    arena: tuple[int, int, int]
    mark: bytes
    page: int
    places: int


@final
@dataclass(frozen=True)
class OwnMemory:
    """This process's arena, and the memory of its mail page."""

    arena: Arena
    page: memoryview
    handle: Handle


def own_memory(pages: Pages, used: int, room: int = ADDRESSES) -> OwnMemory | None:
    """Open an arena with a mail page; None if the system has no such memory.

    Args:
        pages: this process's pages, which get the arena.
        used: how many processes the host has.
        room: bytes of addresses.
    """
    places = max(used, PLACES)
    try:
        arena = pages.open_arena(places, used, room)
    except OSError:
        return None
    mark = os.urandom(_MARK)
    arena.write_mark(mark)
    lease = arena.lease(mail_bytes(places))
    assert lease is not None  # it is the first
    handle = Handle(arena.handle, mark, lease.offset + arena.head, places)
    return OwnMemory(arena, np.asarray(lease).data, handle)


@final
class Neighbours:
    """The memory of this host's processes.

    Args:
        pages: this process's pages.
        own: its arena and its mail page.
        place: its number on the host.
        table: the sizes that decide how blocks are moved.
        stamps: the stamps of letters to and from a process.

    Attributes:
        doorbell: where this process sleeps until one of them has done something.
    """

    def __init__(
        self, pages: Pages, own: OwnMemory, place: int, table: Table, stamps: Stamps
    ) -> None:
        self._pages = pages
        self._arena = own.arena
        self._own = MailPage(own.page, place, own.handle.places)
        self._handle = own.handle
        self._table = table
        self._stamps = stamps
        self._mailboxes: dict[int, Mailbox] = {}
        self._resting: dict[int, Mailbox] = {}
        self._arenas: dict[int, Neighbour] = {}
        self.doorbell = self._own.doorbell

    def __contains__(self, process: int) -> bool:
        return process in self._mailboxes

    @property
    def handle(self) -> Handle:
        """What others need to know to reach this process."""
        return self._handle

    @property
    def reached(self) -> frozenset[int]:
        """The processes whose memory this one has mapped."""
        return frozenset(self._arenas)

    def reach(self, process: int, handle: Handle | None, place: int) -> bool:
        """Map the memory of another process, whose letters then can be read, once both have.

        Args:
            process: its number in the job.
            handle: what it has told.
            place: its number on the host.
        """
        if process in self._arenas:
            return True
        mine = self._own.place
        if handle is None or max(mine, place) >= min(handle.places, self._handle.places):
            return False
        try:
            neighbour = Neighbour(handle.arena, mine, handle.places)
        except OSError:
            return False
        if neighbour.read_mark(_MARK) != handle.mark:
            return False
        page = neighbour.memory(handle.page, mail_bytes(handle.places))
        there = MailPage(page, place, handle.places)
        self._arenas[process] = neighbour
        self._resting[process] = Mailbox(
            self._arena, neighbour, self._own, there, process, self._stamps
        )
        self._arena.expect(place)
        return True

    def use(self, processes: Iterable[int]) -> None:
        """Reach these processes, which reach this one, through memory from now on."""
        for process in processes:
            if process in self._resting:
                self._mailboxes[process] = self._resting.pop(process)

    def rest(self, processes: Iterable[int]) -> None:
        """Do not reach these processes through memory for now."""
        for process in processes:
            if process in self._mailboxes:
                self._resting[process] = self._mailboxes.pop(process)

    def renew(self, gone: Collection[int]) -> None:
        """Let go of processes that are gone: of their memory, and of what they held of this one's.

        Blocks that they had lent stay readable as long as somebody here holds them.
        """
        for mailboxes in (self._mailboxes, self._resting):
            for process in [p for p in mailboxes if p in gone]:
                self._arena.forget(mailboxes.pop(process).place)
                del self._arenas[process]

    def has(self, messages: Sequence[tuple[int, Any]]) -> bool:
        """Return whether the processes of all messages are neighbours."""
        return all(message[0] in self._mailboxes for message in messages)

    def refused(self, process: int) -> Stamp | None:
        """Return the stamp of a process's next letter, if it does not belong to this step."""
        return self._mailboxes[process].refused if process in self._mailboxes else None

    def is_small(
        self,
        sends: Sequence[tuple[int, Sequence[Block]]],
        receives: Sequence[tuple[int, Sequence[Block]]],
    ) -> bool:
        """Return whether all boxes pass between neighbours and fit into letters."""
        mailboxes, least = self._mailboxes, self._table.pushed
        for messages in (sends, receives):
            for peer, blocks in messages:
                if peer not in mailboxes:
                    return False
                for block in blocks:
                    if block.nbytes >= least:
                        return False
        return True

    def place(self, process: int) -> int:
        """Return a process's number on the host."""
        return self._mailboxes[process].place

    def swap(self, sends: Sequence[Letter], missing: list[tuple[int]], found: Found) -> Waiting:
        """Pass one letter to each of some neighbours, and get one from each of others.

        The letters are those of `talk` for small boxes. Neighbours whose letters have arrived are
        taken out of ``missing``, and their letters are put into ``found``.
        """
        mailboxes = self._mailboxes
        for peer, letter in sends:
            mailbox = mailboxes[peer]
            if not isinstance(letter, bytes):
                yield from mailbox.put(letter)
            elif len(letter) > ROOM:
                yield from mailbox.put([np.frombuffer(letter, np.uint8)])
            else:
                while not mailbox.post(letter):
                    yield None
        while missing:
            left = []
            for entry in missing:
                read = mailboxes[entry[0]].collect()
                if read is None:
                    left.append(entry)
                else:
                    found[entry[0]] = read
            missing[:] = left
            if left:
                yield left[0][0]

    def talk(self, peer: int, going: Sequence[Block], coming: Sequence[Block]) -> list[Waiting]:
        """Return a generator that sends boxes to a neighbour, and one that receives boxes from it.

        Letters pass in one order on both sides: the places where large boxes are wanted, the small
        boxes, and finally the news that the large ones are written, with those that could not be.
        """
        small, large = _by_size(going, self._table.pushed)
        arriving, wanted = _by_size(coming, self._table.pushed)
        offers: list[Block] = []
        jobs = []
        if arriving or wanted or large:  # first, so that it keeps what `_speak` offers
            jobs.append(self._listen(peer, bool(large), offers, arriving, wanted))
        if small or large or wanted:
            jobs.append(self._speak(peer, small, large, wanted, offers))
        return jobs

    def _speak(
        self,
        peer: int,
        small: Sequence[Block],
        large: Sequence[Block],
        wanted: Sequence[Block],
        offers: Sequence[Block],
    ) -> Waiting:
        mailbox = self._mailboxes[peer]
        if wanted:
            yield from mailbox.put([self._offers(wanted)])
        if small:
            yield from mailbox.put(small)
        if large:
            while not offers:
                yield None
            yield from mailbox.put(self._written(peer, large, offers[0].view(np.int64)))

    def _listen(
        self,
        peer: int,
        offered: bool,
        offers: list[Block],
        arriving: Sequence[Block],
        wanted: Sequence[Block],
    ) -> Waiting:
        mailbox = self._mailboxes[peer]
        written = False
        try:
            if offered:
                offers.append((yield from mailbox.get()))
            if arriving:
                unpack((yield from mailbox.get()), arriving)
            if wanted:
                rest = [b for b in wanted if self._arena.offset_of(b) is None]
                unpack((yield from mailbox.get()), rest)
            written = True
        finally:
            if not written:
                mailbox.hold(wanted)

    def _offers(self, boxes: Sequence[Block]) -> Block:
        """Return where in this process's arena each box is wanted, and its strides."""
        told: list[int] = []
        for box in boxes:
            offset = self._arena.offset_of(box)
            told += (_NOWHERE if offset is None else offset, *box.strides)
        return np.array(told, np.int64)

    def _written(self, peer: int, boxes: Sequence[Block], offers: Block) -> list[Block]:
        """Write boxes to where the neighbour wants them; return those that it wants by letter."""
        left, told, at = [], offers.tolist(), 0
        for box in boxes:
            offset, strides = told[at], told[at + 1 : at + 1 + box.ndim]
            at += 1 + box.ndim
            if offset == _NOWHERE:
                left.append(box)
            else:
                room = self._arenas[peer].at(offset, box.shape, box.dtype, strides)
                self._pages.copy(room, box)
        return left

    def lend(self, blocks: Sequence[Block], peer: int) -> Waiting:
        """Tell a neighbour the places of the blocks that it may read from now on.

        Blocks outside the arena must have been copied there (`within_reach`).
        """
        told: list[int] = []
        left: list[Block] = []
        lent: list[SharedLease] = []
        for block in blocks:
            chunk = chunk_of(block)
            offset = self._arena.offset_of(block)
            if chunk is None or offset is None:
                told += (_NOWHERE, 0)
                left.append(block)
            else:
                lent.append(chunk)
                told += (chunk.offset, offset)
        mailbox = self._mailboxes[peer]
        yield from mailbox.put([np.array(told, np.int64)], lent)
        if left:
            yield from mailbox.put(left)

    def within_reach(self, block: Block) -> Block:
        """Return a C-ordered block that neighbours can read: the given one, or a copy."""
        if chunk_of(block) is not None and block.flags.c_contiguous:
            return block
        found = self._pages.reachable(block.shape, block.dtype)
        self._pages.copy(found, block)
        return found

    def take(
        self,
        peer: int,
        shapes: Mapping[int, tuple[tuple[int, ...], np.dtype[Any]]],
        found: dict[int, Block],
    ) -> Waiting:
        """Put the blocks that a neighbour lends into ``found``, by their numbers, read-only."""
        mailbox = self._mailboxes[peer]
        told = (yield from mailbox.get()).view(np.int64).tolist()
        left: list[Block] = []
        for at, (number, (shape, dtype)) in enumerate(shapes.items()):
            chunk, start = told[2 * at : 2 * at + 2]
            if chunk == _NOWHERE:
                found[number] = self._pages.allocate(shape, dtype)
                left.append(found[number])
            else:
                found[number] = self._arenas[peer].borrowed(chunk, start, shape, dtype)
        if left:
            unpack((yield from mailbox.get()), left)

    def spread(self, peers: Sequence[int], size: int, fill: Callable[[Block], None]) -> Waiting:
        """Write one letter to some neighbours, which all read it at the same place.

        Args:
            peers: the neighbours.
            size: its bytes.
            fill: writes them to memory that it is given.
        """
        lease = self._arena.lease(size) if size > ROOM else None
        if lease is None:
            letter = np.empty(size, np.uint8)
            fill(letter)
            for peer in peers:
                yield from self._mailboxes[peer].put([letter])
            return
        fill(np.asarray(lease)[:size])
        left = [self._mailboxes[peer] for peer in peers]
        self._arena.lend(lease, [mailbox.place for mailbox in left])
        try:
            while left := [mailbox for mailbox in left if not mailbox.post_chunk(lease, size)]:
                yield None
        finally:
            self._arena.lend(lease, [mailbox.place for mailbox in left], -1)

    def leave(self) -> None:
        """Forget letters of which only a part has come; the rest is not awaited any more."""
        for mailbox in self._mailboxes.values():
            mailbox.hold(())

    def knock(self, peers: Iterable[int]) -> list[int]:
        """Write an empty letter, of which only the stamp matters; return who has no free slot."""
        return [peer for peer in peers if not self._mailboxes[peer].post(b"")]

    def tell(self, peer: int, letter: Block) -> Waiting:
        """Send some bytes."""
        return self._mailboxes[peer].put([letter])

    def hear(self, peer: int, found: dict[int, Block]) -> Waiting:
        """Receive the bytes that a neighbour sends, into ``found[peer]``."""
        found[peer] = yield from self._mailboxes[peer].get()


def _by_size(boxes: Sequence[Block], least: int) -> tuple[list[Block], list[Block]]:
    small = [b for b in boxes if 0 < b.nbytes < least]
    return small, [b for b in boxes if b.nbytes >= least] if len(small) < len(boxes) else []


def _sharing(hosts: Sequence[int], reached: Sequence[bool]) -> tuple[int, ...]:
    """Return each process's host, or a number of its own if not all there reach each other."""
    apart = {host for host, there in zip(hosts, reached, strict=True) if not there}
    return tuple([len(hosts) + p if host in apart else host for p, host in enumerate(hosts)])


def open_neighbours(
    pages: Pages,
    hosts: Sequence[int],
    me: int,
    table: Table,
    all_gather: Callable[[object], list[Any]],
    stamps: Stamps,
) -> tuple[Neighbours | None, tuple[int, ...] | None]:
    """Map the memory of all processes of this host, and let them map this process's.

    All processes of the job call it together.

    Args:
        pages: this process's pages, which get an arena.
        hosts: the number of each process's host.
        me: this process.
        table: the sizes that decide how blocks are moved.
        all_gather: brings a small object of each process to all.
        stamps: the stamps of letters to and from a process.

    Returns:
        The neighbours, or None if none can be reached; and the number of each process's host, where
        processes that cannot share memory count as separate hosts, or None if no two can.
    """
    here = [p for p, host in enumerate(hosts) if host == hosts[me]]
    places = {p: i for i, p in enumerate(here)}
    own = own_memory(pages, len(here)) if len(here) > 1 else None
    told = all_gather(own and own.handle)
    near = None if own is None else Neighbours(pages, own, places[me], table, stamps)
    others = [p for p in here if p != me]
    found = near is not None and all(near.reach(p, told[p], places[p]) for p in others)
    shared = _sharing(hosts, all_gather(found))
    able = shared if len(set(shared)) < len(shared) else None
    if near is None or not found or shared[me] != hosts[me]:
        pages.close_arena()
        return None, able
    near.use(others)
    return near, able
