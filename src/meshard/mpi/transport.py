"""The transport between the processes of an MPI job.

Processes on this host are reached through memory (`neighbours`), others by messages of MPI
(`messages`). Both ends know all shapes from the same plan, so only data is sent. Everything that
waits is a generator; they continue in turn, and the watchdog ends a wait that is in vain.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Generator, Sequence
from functools import partial
from typing import Any, final

import numpy as np
from mpi4py import MPI

from meshard.mpi.messages import Messages
from meshard.mpi.neighbours import Neighbours
from meshard.mpi.watch import MpiSideChannel
from meshard.runtime.memory.forks import depth, refuse_in_child
from meshard.runtime.processes.agreement import Agreement
from meshard.runtime.processes.transport import Lent, Taken
from meshard.runtime.processes.watchdog import Watchdog
from meshard.runtime.settings import Table
from meshard.runtime.types import Block
from meshard.tuning import EAGER_SECONDS

Job = tuple[Sequence[tuple[Any, ...]], Generator[None, None, None]]
"""Jobs, and the peers for which they wait: the first of each tuple is a peer."""


@final
class MpiTransport:
    """One process's end of an MPI communicator.

    Args:
        communicator: the processes; a duplicate of it is used.
        deadline: seconds that a process waits for the others.
        table: the sizes that decide how blocks are moved.
    """

    def __init__(
        self, communicator: MPI.Intracomm, deadline: float, table: Table | None = None
    ) -> None:
        self._comm = communicator.Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.deadline = deadline
        self.index: int = self._comm.Get_rank()
        self.count: int = self._comm.Get_size()
        self.channel = MpiSideChannel(communicator)
        agreement = Agreement(self.index, self.count, self.barrier)
        self.watchdog = Watchdog(agreement, self.channel, deadline)
        self.hosts: tuple[int, ...] | None = None
        self._near: Neighbours | None = None
        self._born = depth()
        self.settle(table or Table())

    def settle(self, table: Table) -> None:
        """Use this table from now on."""
        self.table = table
        self._messages = Messages(self._comm, table, self.watchdog.stamp)

    def reach(self, near: Neighbours | None, hosts: tuple[int, ...] | None) -> None:
        """Use memory between processes of one host from now on."""
        self._near = near
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
        if self._near is not None and self._near.is_small(sends, receives):
            missing = list(receives)
            self._run([(missing, self._near.swap(sends, missing))])
            return
        going, coming = dict(sends), dict(receives)
        jobs: list[Job] = []
        for peer in {**coming, **going}:
            out, back = going.get(peer, ()), coming.get(peer, ())
            jobs += [([(peer,)], job) for job in self._way(peer).talk(peer, out, back)]
        self._run(jobs)

    def share(self, lent: Lent, taken: Taken) -> list[Block]:
        """Lend complete blocks to neighbours, and return the blocks that they lend, read-only.

        Raises:
            TransportError: if a peer fails or does not answer before the deadline.
        """
        near = self._near
        assert near is not None  # no plan shares memory if `hosts` is None
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
        letter = np.frombuffer(pickle.dumps(value), np.uint8)
        found = {self.index: letter}
        jobs: list[Job] = []
        for peer in peers:
            if peer != self.index:
                way, label = self._way(peer), [(peer,)]
                jobs += [(label, way.tell(peer, letter)), (label, way.hear(peer, found))]
        self._run(jobs)
        return [pickle.loads(found[p].tobytes()) for p in peers]

    def barrier(self, peers: Sequence[int]) -> None:
        """Wait until all ``peers`` have arrived here."""
        self.all_gather(None, peers)

    def _way(self, peer: int) -> Neighbours | Messages:
        """Return how to reach a process."""
        return self._near if self._near is not None and peer in self._near else self._messages

    def _run(self, jobs: list[Job]) -> None:
        """Continue each job that can continue, until all are done.

        Raises:
            TransportError: if MPI reports a failure, a process has ended or diverged, or the
                deadline has passed.
        """
        refuse_in_child(self._born)
        watchdog, begun, peers = self.watchdog, 0.0, _peers(jobs)
        watchdog.check(peers)
        try:
            while True:
                left = []
                for job in jobs:
                    for _ in job[1]:  # it waits
                        left.append(job)
                        break
                if not left:
                    break
                jobs = left
                now = time.monotonic()
                if not begun:
                    begun = now
                    watchdog.begin()
                if now - begun < EAGER_SECONDS and hasattr(os, "sched_yield"):
                    os.sched_yield()
                else:
                    time.sleep(1e-4)
                    self._look(jobs)
        except BaseException as error:
            if not begun:
                watchdog.begin()
            missing = _peers(jobs)
            for _, unfinished in jobs:
                unfinished.close()
            self._messages.leave([p for p in missing if self._way(p) is self._messages])
            if isinstance(error, MPI.Exception):
                watchdog.failed(missing, error.Get_error_string())
            watchdog.leave(missing, error)
            raise
        if begun:
            watchdog.end()
        watchdog.met(peers)

    def _look(self, jobs: Sequence[Job]) -> None:
        """Check on the other processes while jobs wait."""
        if self._near is not None:
            for peer in _peers(jobs):
                stamp = self._near.refused(peer)
                if stamp is not None:
                    self.watchdog.saw(peer, stamp)
        if self.watchdog.look(partial(_peers, jobs)):
            self._messages.sweep()


def _peers(jobs: Sequence[Job]) -> list[int]:
    """Return the processes that jobs wait for."""
    return sorted({entry[0] for peers, _ in jobs for entry in peers})
