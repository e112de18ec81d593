"""Ranks of one host: what they pass goes through memory that all of them see.

In: boxes of tensors, or small values. Out: the same on other ranks. A sender packs boxes into a
chunk of memory that the others see, once for all that get the same, and each of them unpacks it
there. Chunks are small, so that both copies are made in the cache, and used again and again. The
tensors themselves stay in each rank's own memory.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np

from meshard.interop.tensors.bits import as_tensor
from meshard.interop.tensors.carrying import Boxed, LostError, length, parts, portions
from meshard.interop.tensors.specs import torch
from meshard.mpi.mailbox import ROOM
from meshard.mpi.neighbours import Handle, Neighbours, Waiting, own_memory
from meshard.mpi.waiting import Patience
from meshard.runtime.lines.letters import decode, encode, sent
from meshard.runtime.memory.pages import Pages
from meshard.runtime.processes.agreement import Stamp
from meshard.runtime.settings import Table
from meshard.runtime.types import Block

_CHUNK = 1 << 20
"""Bytes of a chunk, if memory is not limited: both copies of one are made in the cache."""
_IN_FLIGHT = 4
"""Chunks between two ranks at once: one is packed, two wait to be read, and one is read."""
_ADDRESSES = 1 << 34
"""Bytes of addresses for chunks."""
_OFTEN = 0.5
"""Seconds between two looks at who is still there."""
_DONE: Any = object()
_Job = tuple[Sequence[int], Waiting]
"""Ranks, and a generator that waits for them."""


# who they are


@sent
@final
@dataclass(frozen=True)
class Calling:
    """What a process tells others of itself.

    Attributes:
        host: the name of the running kernel and of the numbers of processes in it; empty if others
            could not know what its number means.
        process: its number.
    """

    host: str
    process: int


def calling() -> Calling:
    """Return what this process tells others."""
    host = ""
    if sys.platform == "linux":
        boot = Path("/proc/sys/kernel/random/boot_id")
        host = f"{boot.read_text().strip() if boot.exists() else ''} {_namespace()}"
    return Calling(host, os.getpid())


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return secrets.token_hex(8)  # numbers of processes mean nothing to others


def is_gone(other: Calling) -> bool:
    """Return whether another process of this host has ended; False if it is elsewhere."""
    if not other.host or other.host != calling().host:
        return False
    try:
        state = Path(f"/proc/{other.process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


# what they pass


@final
class _Steps:
    """Where this process is: in which call, and at which of its steps, which all ranks take."""

    def __init__(self) -> None:
        self.call = self.step = self.culprit = 0

    def stamp(self, peer: int) -> Stamp:
        """Return the stamp of the messages to and from a process."""
        return self.call, self.step, self.culprit

    def is_over(self, peer: int, stamp: Stamp) -> bool:
        """Whether a message of a process belongs to a step that this process has left."""
        return stamp < self.stamp(peer)


@final
class Near:
    """The memory of a group's ranks, which are all on this host.

    Args:
        ranks: the ranks, in the order of the group.
        me: this rank.
        callings: what each of them has told of itself.
        gather: brings a small value of each rank to all; used to meet.
        seconds: how long a rank waits for others.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        me: int,
        callings: Sequence[Calling],
        gather: Callable[[Any], list[Any]],
        seconds: float,
    ) -> None:
        self._me, self._others = me, [rank for rank in ranks if rank != me]
        self._callings = dict(zip(ranks, callings, strict=True))
        self._seconds = seconds
        self._steps, self._patience = _Steps(), Patience()
        pages, place = Pages(), {rank: i for i, rank in enumerate(ranks)}
        own = own_memory(pages, len(ranks), _ADDRESSES)
        told: list[Handle | None] = gather(own and own.handle)
        self._near: Any = None
        if own is not None and all(told):
            near = Neighbours(pages, own, place[me], Table(), self._steps)
            handles = dict(zip(ranks, told, strict=True))
            if all(near.reach(rank, handles[rank], place[rank]) for rank in self._others):
                self._near, self._head = near, own.arena.head
        self.reached = all(gather(self._near is not None))
        if self.reached:
            self._near.use(self._others)
            self._patience.doorbell = self._near.doorbell

    def enter(self) -> None:
        """Begin a call, as all ranks do; what others have left of an earlier one is dropped."""
        self._steps.call += 1
        self._steps.step = 0

    def leave(self, culprit: int | None) -> None:
        """Let the others know that this rank has left the call; they need not wait for it.

        Args:
            culprit: the rank that has left it first; None if that is this one.
        """
        steps, here = self._steps, self._steps.step
        first = self._me if culprit is None else culprit
        steps.call, steps.step, steps.culprit = steps.call + 1, 0, first + 1  # of no step
        left, until = self._near.knock(self._others), time.monotonic() + _OFTEN
        while left and time.monotonic() < until:  # they read what was written before
            time.sleep(1e-3)
            left = self._near.knock(left)
        steps.call, steps.step, steps.culprit = steps.call - 1, here, 0

    def all_gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in the order of the group.

        Raises:
            LostError: if a rank has ended, has left this call, or does not come.
        """
        letter = np.frombuffer(encode(value), np.uint8)
        found: dict[int, Block] = {}
        jobs: list[_Job] = [((rank,), self._near.hear(rank, found)) for rank in self._others]
        if self._others:
            fill = partial(np.copyto, src=letter)
            jobs.append((self._others, self._near.spread(self._others, letter.nbytes, fill)))
        self._run(jobs)
        return [decode(found[rank].data) if rank in found else value for rank in self._callings]

    def exchange(
        self,
        sends: Mapping[int, Sequence[Boxed]],
        receives: Mapping[int, Sequence[Boxed]],
        most: int,
        told: Callable[[int], None],
    ) -> None:
        """Send boxes to ranks and fill boxes from them, with at most some bytes per rank at a time.

        Raises:
            LostError: if a rank has ended, has left this call, or does not come.
        """
        size = self._chunk(most)
        alike: dict[Any, list[int]] = {}
        for rank, boxes in sorted(sends.items()):
            alike.setdefault(tuple([box.key for box in boxes]), []).append(rank)
        jobs: list[_Job] = []
        for ranks in alike.values():
            jobs.append((ranks, self._speak(ranks, sends[ranks[0]], size)))
        for rank, boxes in sorted(receives.items()):
            jobs.append(([rank], self._listen(rank, boxes, size, told)))
        self._run(jobs)

    def _chunk(self, most: int) -> int:
        """Return the bytes of a chunk if as many may be between two ranks at a time."""
        # Memory is taken in pages and in eighths of powers of two, with the chunk's counters.
        size = most // _IN_FLIGHT * 8 // 9 - self._head
        return min(_CHUNK, size) if size > ROOM else min(most, ROOM)

    def _speak(self, ranks: Sequence[int], boxes: Sequence[Boxed], most: int) -> Waiting:
        for some in portions(boxes, most):
            yield from self._near.spread(ranks, length(some), partial(_pack, some))

    def _listen(
        self, rank: int, boxes: Sequence[Boxed], most: int, told: Callable[[int], None]
    ) -> Waiting:
        found: dict[int, Block] = {}
        for some in portions(boxes, most):
            yield from self._near.hear(rank, found)
            for box, part in parts(some, as_tensor(found.pop(rank), "reshard")):
                box.view.copy_(part)
            del part  # the chunk goes back
            told(sum([box.nbytes for box in some]))

    def _run(self, jobs: list[_Job]) -> None:
        """Continue each job that can continue, until all are done; one step of all ranks.

        Raises:
            LostError: if a rank has ended, has left this call, or does not come.
        """
        self._steps.step += 1
        patience, begun, gone = self._patience, time.monotonic(), False
        looked = begun
        patience.begin()
        try:
            while True:
                jobs, wanted = _continued(jobs)
                if not jobs:
                    return
                if gone:  # what they had written was read before
                    raise LostError("it did not come to where all meet")
                if patience.gave_core_away():
                    continue
                alone = wanted is not None and len(jobs) == 1
                slept = patience.slept(self._near.place(wanted) if alone else None)
                if slept and time.monotonic() - looked > _OFTEN:
                    looked = time.monotonic()
                    awaited = {rank for ranks, _ in jobs for rank in ranks}
                    gone = any(is_gone(self._callings[rank]) for rank in awaited)
                    self._look(awaited, looked - begun)
        finally:
            patience.end()
            for _, unfinished in jobs:
                unfinished.close()
            if jobs:
                self._near.leave()

    def _look(self, ranks: Collection[int], waited: float) -> None:
        """Look for what makes waiting for some ranks vain."""
        for rank in sorted(ranks):
            stamp = self._near.refused(rank)
            if stamp is not None and stamp > self._steps.stamp(rank):  # not of a call before
                first = stamp[2] - 1 if stamp[2] else rank
                raise LostError("it has left this call, as after an interrupt", first)
        if waited > self._seconds:
            raise LostError(f"nothing came for {self._seconds:g} s, the timeout", min(ranks))


def _continued(jobs: list[_Job]) -> tuple[list[_Job], int | None]:
    """Continue each job once; return those that are not done, and what the last one waits for."""
    left, wanted = [], None
    for job in jobs:
        what = next(job[1], _DONE)
        if what is not _DONE:
            left.append(job)
            wanted = what
    return left, wanted


def _pack(boxes: Sequence[Boxed], memory: Block) -> None:
    for box, part in parts(boxes, torch.from_numpy(memory)):
        part.copy_(box.view)
