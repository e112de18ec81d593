"""The transport between the processes of a job.

Processes on this host are reached through memory (`neighbours`), others by messages of MPI
(`messages`), and those that MPI has not started by lines (`far`). Both ends know all shapes from
the same plan, so only data is sent. Everything that waits is a generator; they continue in turn,
and the watchdog ends a wait that is in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, final

import numpy as np

from meshard.mpi.mailbox import ROOM, packed, unpack
from meshard.mpi.neighbours import Found, Letter, Neighbours, OwnMemory, Waiting
from meshard.mpi.outside.channel import OpenChannel
from meshard.mpi.outside.far import Far
from meshard.mpi.waiting import Patience
from meshard.runtime.lines.letters import decode, encode
from meshard.runtime.memory.forks import depth, refuse_in_child
from meshard.runtime.memory.pages import Pages
from meshard.runtime.processes.agreement import Agreement, Stamp
from meshard.runtime.processes.identity import Facts
from meshard.runtime.processes.transport import Lent, Taken
from meshard.runtime.processes.watchdog import Watchdog
from meshard.runtime.settings import Table
from meshard.runtime.types import Block

Job = tuple[Sequence[tuple[Any, ...]], Waiting]
"""Jobs, and the peers for which they wait: the first of each tuple is a peer."""
_DONE: Any = object()


class Way(Protocol):
    """How boxes and small objects get to processes, and come from them."""

    def talk(self, peer: int, going: Sequence[Block], coming: Sequence[Block]) -> Sequence[Any]:
        """Return generators that send boxes to a peer, and receive boxes from it."""

    def tell(self, peer: int, letter: Block) -> Any:
        """Send some bytes; the peer does not know how many."""

    def hear(self, peer: int, found: dict[int, Block]) -> Any:
        """Receive the bytes that a peer sends, into ``found[peer]``."""

    def refused(self, peer: int) -> Stamp | None:
        """Return the stamp of a process's next message, if it does not belong to this step."""


class Messages(Way, Protocol):
    """A way on which messages of steps that were left have to be dropped."""

    def leave(self, peers: Sequence[int]) -> None:
        """Record that messages of this step with processes are no longer waited for."""

    def sweep(self) -> None:
        """Receive and drop messages of steps that were left."""

    def renew(self, gone: Collection[int]) -> None:
        """Receive no messages of steps before any more, and let go of processes that are gone."""

    def flushed(self, peer: int) -> Any:
        """Receive and drop all that a process has sent before it called this too."""

    def complaint(self, error: BaseException) -> str | None:
        """Return what has failed, if it is an error of this way; None if it is not."""


class Library(Protocol):
    """A library that joins processes, and its messages."""

    size: int

    def __call__(self, table: Table, stamp: Callable[[int], Stamp]) -> Messages:
        """Return a way to send messages; all those of earlier ones are over."""


@final
class JobTransport:
    """One process's end of the ways between the processes of a job.

    Args:
        index: this process.
        channel: the side channel.
        deadline: seconds that a process waits for the others.
        library: what joins the first processes of the job; None where no MPI does.
        table: the sizes that decide how blocks are moved.
        members: the first processes, where no MPI joins them; by default this one alone.
    """

    def __init__(
        self,
        index: int,
        channel: OpenChannel,
        deadline: float,
        library: Library | None = None,
        table: Table | None = None,
        members: Sequence[int] | None = None,
    ) -> None:
        self.index = index
        first = tuple(members or (index,)) if library is None else tuple(range(library.size))
        self.count = first[-1] + 1
        self.deadline = deadline
        self.channel = channel
        agreement = Agreement(index, self.count, self.barrier)
        self.watchdog = Watchdog(agreement, channel, deadline, first)
        self.hosts: tuple[int, ...] | None = None
        self.far = Far(self.watchdog)
        self._library = library
        self._messages: Messages | None = None
        self._pages: Pages | None = None
        self._own: OwnMemory | None = None
        self._near: Neighbours | None = None
        self._one_host = False
        self._patience = Patience()
        self._born = depth()
        self.settle(table or Table())

    def settle(self, table: Table) -> None:
        """Use this table from now on."""
        self.table = table
        if self._library is not None:
            self._messages = self._library(table, self.watchdog.stamp)

    def offer(self, pages: Pages, own: OwnMemory | None) -> None:
        """Let processes of this host that come later reach this one's memory."""
        self._pages, self._own = pages, own

    def reach(self, near: Neighbours | None, hosts: tuple[int, ...] | None) -> None:
        """Use memory between processes of one host from now on."""
        self._near = near
        self._patience.doorbell = None if near is None else near.doorbell
        self._one_host = near is not None and all(
            p in near for p in range(self.count) if p != self.index
        )
        self.hosts = hosts

    def exchange(
        self,
        sends: Sequence[tuple[int, Sequence[Block]]],
        receives: Sequence[tuple[int, Sequence[Block]]],
    ) -> None:
        """Send blocks to peers, and fill writable blocks from peers.

        Raises:
            TransportError: if a peer fails or does not answer before the deadline.
        """
        near = self._near
        if near is not None and near.is_small(sends, receives):
            found = self._swap(near, _letters(sends), [(p,) for p, own in receives if _size(own)])
            for peer, boxes in receives:
                if peer in found:
                    unpack(found[peer], boxes)
            return
        going, coming = dict(sends), dict(receives)
        jobs: list[Job] = []
        for peer in {**coming, **going}:
            out, back = going.get(peer, ()), coming.get(peer, ())
            jobs += [([(peer,)], job) for job in self._way(peer).talk(peer, out, back)]
        self._run(jobs)

    def swap(self, letters: Sequence[tuple[int, bytes]], sizes: Sequence[tuple[int, int]]) -> Found:
        """Send small letters to peers, and return those of peers, of which the sizes are known.

        Raises:
            TransportError: if a peer fails or does not answer before the deadline.
        """
        near = self._near
        if near is not None and (self._one_host or (near.has(letters) and near.has(sizes))):
            return self._swap(near, letters, [(p,) for p, _ in sizes])
        return self._swap_beyond(letters, sizes)

    def _swap_beyond(
        self, letters: Sequence[tuple[int, bytes]], sizes: Sequence[tuple[int, int]]
    ) -> Found:
        """Swap letters with processes of which some are on other hosts."""
        near = self._near
        far = {p: [np.frombuffer(x, np.uint8)] for p, x in letters if self._way(p) is not near}
        boxes = {p: np.empty(n, np.uint8) for p, n in sizes if self._way(p) is not near}
        found: Found = dict(boxes)
        jobs: list[Job] = []
        for peer in {**boxes, **far}:
            back, way = [boxes[peer]] if peer in boxes else [], self._way(peer)
            jobs += [([(peer,)], job) for job in way.talk(peer, far.get(peer, []), back)]
        if near is not None:
            missing = [(p,) for p, _ in sizes if p not in boxes]
            inside = [x for x in letters if x[0] not in far]
            jobs.append((missing, near.swap(inside, missing, found)))
        self._run(jobs)
        return found

    def _swap(
        self, near: Neighbours, letters: Sequence[Letter], missing: list[tuple[int]]
    ) -> Found:
        found: Found = {}
        self._run([(missing, near.swap(letters, missing, found))])
        return found

    def share(self, lent: Lent, taken: Taken) -> list[Block]:
        """Lend complete blocks to neighbours, and return the blocks that they lend, read-only.

        Raises:
            TransportError: if a peer fails or does not answer before the deadline.
        """
        near = self._near
        if near is None:  # only others share memory
            assert not lent
            assert not taken
            return []
        going: dict[int, list[Block]] = {}
        for block, takers in lent:
            reachable = near.within_reach(block)
            for peer in takers:
                going.setdefault(peer, []).append(reachable)
        coming: dict[int, list[int]] = {}
        for number, (owner, _, _) in enumerate(taken):
            coming.setdefault(owner, []).append(number)
        found: dict[int, Block] = {}
        jobs: list[Job] = [([(peer,)], near.lend(blocks, peer)) for peer, blocks in going.items()]
        for owner, numbers in coming.items():
            shapes = {n: taken[n][1:] for n in numbers}
            jobs.append(([(owner,)], near.take(owner, shapes, found)))
        self._run(jobs)
        return [found[n] for n in range(len(taken))]

    def all_gather(self, value: object, peers: Sequence[int]) -> list[object]:
        """Return every peer's small object, in the order of ``peers``, this process included."""
        letter = np.frombuffer(encode(value), np.uint8)
        found = {self.index: letter}
        jobs: list[Job] = []
        for peer in peers:
            if peer != self.index:
                way, label = self._way(peer), [(peer,)]
                jobs += [(label, way.tell(peer, letter)), (label, way.hear(peer, found))]
        self._run(jobs)
        return [decode(found[p].data) for p in peers]

    def barrier(self, peers: Sequence[int]) -> None:
        """Wait until all ``peers`` have arrived here."""
        self.all_gather(None, peers)

    def recall(self, hosts: tuple[int, ...] | None) -> None:
        """Go back to the ways that lead to a process from the first, until `renew`.

        Args:
            hosts: the number of each process's host, as those know it that take part already.
        """
        if self._near is not None:
            self._near.rest([p for p in self._near.reached if self._is_late(p)])
        self._one_host = False
        known = () if hosts is None else hosts
        # Those that came later share memory with nobody yet.
        self.hosts = (*known, *[-1 - p for p in range(len(known), 1 + max(self.channel.known))])

    def _is_late(self, peer: int) -> bool:
        """Whether MPI does not join this process and another."""
        return self._library is None or peer >= self._library.size

    def renew(self, members: Sequence[int]) -> None:
        """Go on with these processes, once all of them have left their steps.

        Raises:
            TransportError: if a process fails or does not answer before the deadline.
        """
        gone = self.watchdog.over
        if self._near is not None:
            self._near.renew(gone)
        jobs: list[Job] = []
        for way in self._beyond:
            way.renew(gone)
            peers = [p for p in members if p != self.index and self._way(p) is way]
            jobs += [([(peer,)], way.flushed(peer)) for peer in peers]
        self._run(jobs)
        if self.channel.known and self.table.memory:
            self._approach(members)
        near = self._near
        self._one_host = near is not None and all(p in near for p in members if p != self.index)

    def _approach(self, members: Sequence[int]) -> None:
        """Reach those of this host through memory that have come from outside; all do this."""
        known = self.channel.known
        rooms = rooms_of(known)
        if self._near is None and self._own is not None:
            assert self._pages is not None
            seat = known[self.index].seat
            self._near = Neighbours(self._pages, self._own, seat, self.table, self.watchdog)
            self._patience.doorbell = self._near.doorbell
        near = self._near
        told: Any = self.all_gather(None if near is None else near.handle, members)
        handles = dict(zip(members, told, strict=True))
        if near is not None:
            for peer in rooms[known[self.index].host]:
                if peer in handles and peer != self.index:
                    near.reach(peer, handles[peer], known[peer].seat)
        told = self.all_gather(frozenset() if near is None else near.reached, members)
        self.hosts = shared_hosts(rooms, self.hosts or (), dict(zip(members, told, strict=True)))
        if near is not None and self.hosts is not None:
            mine = self.hosts[self.index]
            near.use([p for p in near.reached if self.hosts[p] == mine])

    @property
    def _beyond(self) -> list[Messages]:
        """The ways that lead beyond the memory of this host."""
        return [self.far] if self._messages is None else [self._messages, self.far]

    def _way(self, peer: int) -> Way:
        """Return how to reach a process."""
        if self._near is not None and peer in self._near:
            return self._near
        if self._library is None or self._messages is None or peer >= self._library.size:
            return self.far
        return self._messages

    def _run(self, jobs: list[Job]) -> None:
        """Continue each job that can continue, until all are done.

        Raises:
            TransportError: if MPI reports a failure, a process has ended or diverged, or the
                deadline has passed.
        """
        refuse_in_child(self._born)
        watchdog, patience, long, peers = self.watchdog, self._patience, False, _peers(jobs)
        watchdog.check(peers)
        patience.begin()
        try:
            while True:
                left, wanted = [], None
                for job in jobs:
                    what = next(job[1], _DONE)
                    if what is not _DONE:
                        left.append(job)
                        wanted = what
                if not left:
                    break
                jobs = left
                if patience.gave_core_away():
                    continue
                if not long:
                    long = True
                    watchdog.begin()
                if self._slept(jobs, wanted):
                    self._look(jobs)
        except BaseException as error:
            if not long:
                watchdog.begin()
            missing = _peers(jobs)
            for _, unfinished in jobs:
                unfinished.close()
            self._leave(missing, error)
            watchdog.leave(missing, error)
            raise
        finally:
            patience.end()
        if long:
            watchdog.end()
        watchdog.met(peers)

    def _leave(self, missing: list[int], error: BaseException) -> None:
        """Leave the messages of this step with processes behind.

        Raises:
            TransportError: if the error is one of the library's, that says so.
        """
        for way in self._beyond:
            way.leave([p for p in missing if self._way(p) is way])
            complaint = way.complaint(error)
            if complaint is not None:
                self.watchdog.failed(missing, complaint)

    def _slept(self, jobs: Sequence[Job], wanted: int | None) -> bool:
        """Sleep, unless it is time to look around first, and return whether it did.

        Args:
            jobs: what waits.
            wanted: the process whose letter the last of them waits for, if it is known.
        """
        near = self._near
        if near is None or not all(near.has(peers) for peers, _ in jobs):
            return self._patience.nap()
        if wanted is None or len(jobs) > 1:
            return self._patience.slept(None)
        return self._patience.slept(near.place(wanted))

    def _look(self, jobs: Sequence[Job]) -> None:
        """Check on the other processes while jobs wait."""
        for peer in _peers(jobs):
            stamp = self._way(peer).refused(peer)
            if stamp is not None:
                self.watchdog.saw(peer, stamp)
        if self.watchdog.look(partial(_peers, jobs)):
            for way in self._beyond:
                way.sweep()


def rooms_of(known: Mapping[int, Facts]) -> dict[str, list[int]]:
    """Return all processes that each host has had."""
    rooms: dict[str, list[int]] = {}
    for index, facts in sorted(known.items()):
        rooms.setdefault(facts.host, []).append(index)
    return rooms


def shared_hosts(
    rooms: Mapping[str, Sequence[int]],
    before: Sequence[int],
    reached: Mapping[int, Collection[int]],
) -> tuple[int, ...] | None:
    """Return the number of each process's host; those share one that all reach each other.

    Args:
        rooms: the processes of each host.
        before: the numbers before.
        reached: whose memory each process that takes part has mapped.

    Returns:
        The numbers, or None if no two share memory.

    >>> shared_hosts({"a": [0, 1, 2, 3]}, [0, 0, -3, -4], {0: {1, 3}, 1: {0, 3}, 3: {0, 1}})
    (0, 0, -3, 0)
    """
    found = list(before)
    for room in rooms.values():
        together: list[int] = []
        for one in room:
            if one in reached and all(
                one in reached[other] and other in reached[one] for other in together
            ):
                together.append(one)
                found[one] = before[together[0]]
    return tuple(found) if len(set(found)) < len(found) else None


def _letters(sends: Sequence[tuple[int, Sequence[Block]]]) -> list[Letter]:
    """Return what each peer gets of small blocks: bytes, or the blocks where these are many."""
    found: list[Letter] = []
    seen, letter = None, b""
    for peer, blocks in sends:
        size = _size(blocks)
        if size > ROOM:
            found.append((peer, blocks))
            continue
        if len(blocks) != 1:
            seen, letter = None, packed(blocks)
        elif blocks[0] is not seen:  # often all get the same
            seen, letter = blocks[0], blocks[0].tobytes()
        if letter:
            found.append((peer, letter))
    return found


def _size(blocks: Sequence[Block]) -> int:
    return sum([b.nbytes for b in blocks])


def _peers(jobs: Sequence[Job]) -> list[int]:
    """Return the processes that jobs wait for."""
    return sorted({entry[0] for peers, _ in jobs for entry in peers})
