"""Simulated processes: threads of one interpreter, each with a world of its own.

What works here works between real processes, since nothing but messages passes between worlds.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any, TypeVar, final

import numpy as np

from meshard.algebra.world import Device, entered
from meshard.errors import ArgumentError, TransportError

from .transport import Lent, Table, Taken
from .types import Block
from .world import RuntimeWorld

T = TypeVar("T")

__all__ = ["SimulatedTransport", "simulate"]


@final
class _Post:
    """The mail boxes that a set of simulated processes share."""

    def __init__(self, count: int, deadline: float) -> None:
        self.count = count
        self.deadline = deadline
        self.boxes: dict[tuple[int, int], deque[Any]] = {
            (a, b): deque() for a in range(count) for b in range(count)
        }
        self.changed = threading.Condition()
        self.failed: int | None = None
        self.ended: set[int] = set()

    def put(self, source: int, target: int, kind: str, letter: object) -> None:
        with self.changed:
            self.boxes[source, target].append((kind, letter))
            self.changed.notify_all()

    def take(self, source: int, target: int, kind: str) -> Any:
        box = self.boxes[source, target]
        until = time.monotonic() + self.deadline
        with self.changed:
            while not box:
                left = until - time.monotonic()
                if self.failed is not None:
                    who = (
                        f"process {self.failed} has failed"
                        if self.failed < self.count
                        else "the caller was interrupted"
                    )
                    raise TransportError(
                        f"Process {target} waits for a message of process {source}, but {who}."
                    )
                if source in self.ended:
                    raise TransportError(
                        f"Process {target} waits for a message of process {source}, which has "
                        "ended its program. Do all processes run the same operations?"
                    )
                if left <= 0:
                    raise TransportError(
                        f"Process {target} has waited {self.deadline:g} s for a message of "
                        f"process {source}. Do all processes run the same operations?"
                    )
                self.changed.wait(min(left, 0.05))
            sent, letter = box.popleft()
        if sent != kind:
            raise TransportError(
                f"Process {target} expects {kind} of process {source}, which sent {sent}: the "
                "processes have come out of step."
            )
        return letter

    def fail(self, index: int) -> None:
        with self.changed:
            if self.failed is None:
                self.failed = index
            self.changed.notify_all()

    def end(self, index: int) -> None:
        with self.changed:
            self.ended.add(index)
            self.changed.notify_all()

    def check_empty(self) -> None:
        for (source, target), box in self.boxes.items():
            if box:
                raise TransportError(
                    f"Process {source} has sent process {target} {len(box)} messages that it "
                    "never received. Do all processes run the same operations?"
                )


@final
class SimulatedTransport:
    """One simulated process's end of the post."""

    def __init__(
        self, post: _Post, index: int, hosts: tuple[int, ...], table: Table | None = None
    ) -> None:
        self._post = post
        self.index = index
        self.count = post.count
        self.hosts: tuple[int, ...] | None = hosts
        self.table = table or Table()

    def exchange(
        self,
        sends: Sequence[tuple[int, Sequence[Block]]],
        receives: Sequence[tuple[int, Sequence[Block]]],
    ) -> None:
        """Send copies of blocks, then wait for the peers'."""
        for peer, blocks in sends:
            self._post.put(self.index, peer, "boxes", [np.array(b) for b in blocks])
        for peer, blocks in receives:
            letter = self._post.take(peer, self.index, "boxes")
            if len(letter) != len(blocks):
                raise TransportError(
                    f"Process {self.index} expects {len(blocks)} boxes of process {peer}, which "
                    f"sent {len(letter)}: the processes have come out of step."
                )
            for target, sent in zip(blocks, letter, strict=True):
                if target.shape != sent.shape or target.dtype != sent.dtype:
                    raise TransportError(
                        f"Process {self.index} expects a box {target.dtype}{target.shape} of "
                        f"process {peer}, which sent {sent.dtype}{sent.shape}: the processes "
                        "have come out of step."
                    )
                target[...] = sent

    def share(self, lent: Lent, taken: Taken) -> list[Block]:
        """Pass blocks on as they are, read-only: one memory, as between neighbours."""
        for block, takers in lent:
            seen = block.view()
            seen.flags.writeable = False
            for peer in takers:
                self._post.put(self.index, peer, "a replica", seen)
        found = []
        for owner, shape, dtype in taken:
            block = self._post.take(owner, self.index, "a replica")
            if block.shape != shape or block.dtype != dtype:
                raise TransportError(
                    f"Process {self.index} expects a replica {dtype}{shape} of process {owner}, "
                    f"which shares {block.dtype}{block.shape}: the processes have come out of "
                    "step."
                )
            found.append(block)
        return found

    def all_gather(self, value: object, peers: Sequence[int]) -> list[object]:
        """Return a copy of every peer's object, this process's included."""
        letter = pickle.dumps(value)
        for peer in peers:
            self._post.put(self.index, peer, "an object", letter)
        return [pickle.loads(self._post.take(peer, self.index, "an object")) for peer in peers]

    def barrier(self, peers: Sequence[int]) -> None:
        """Wait until all peers have come here."""
        self.all_gather(None, peers)


def simulate(
    processes: int,
    devices_per_process: int,
    program: Callable[[], T],
    *,
    deadline: float = 60.0,
    hosts: Sequence[int] | None = None,
    table: Table | None = None,
) -> list[T]:
    """Run ``program`` once in each of several simulated processes.

    Args:
        processes: how many there are.
        devices_per_process: the devices of each.
        program: called without arguments, in a thread and a world of its own per process.
        deadline: seconds that a process waits for a message.
        hosts: the number of the host that each process runs on; one host by default.
        table: the sizes that decide how something is moved.

    Returns:
        What the program returned, process by process.

    Raises:
        BaseException: what the first process that failed raised; the others are ended.
        TransportError: if messages are left that nobody received.
        ArgumentError: if there is not at least one process with one device.

    >>> import meshard
    >>> from meshard.testing import simulate
    >>> def program():
    ...     sharding = meshard.NamedSharding(meshard.make_mesh((4,), "x"), meshard.P("x"))
    ...     x = meshard.device_put(meshard.numpy.arange(8.0), sharding)
    ...     return meshard.process_index(), len(x.addressable_shards), float(x.sum())
    >>> simulate(2, 2, program)
    [(0, 2, 28.0), (1, 2, 28.0)]
    """
    if processes < 1 or devices_per_process < 1:
        raise ArgumentError(
            f"simulate: there must be at least one process and one device of each, got "
            f"{processes} and {devices_per_process}."
        )
    devices = [
        Device(p * devices_per_process + i, p)
        for p in range(processes)
        for i in range(devices_per_process)
    ]
    post = _Post(processes, deadline)
    shared = (0,) * processes if hosts is None else tuple(hosts)
    results: list[Any] = [None] * processes
    errors: list[BaseException | None] = [None] * processes

    def body(index: int) -> None:
        transport = SimulatedTransport(post, index, shared, table)
        world = RuntimeWorld(index, processes, devices, transport, hosts)
        try:
            with entered(world):
                results[index] = program()
            post.end(index)
        except BaseException as error:  # raised again in the caller's thread
            errors[index] = error
            post.fail(index)
        finally:
            world.close()

    threads = [
        threading.Thread(
            target=copy_context().run, args=(body, i), name=f"process {i}", daemon=True
        )
        for i in range(processes)
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:  # an interrupt of the caller ends the processes that wait
        post.fail(processes)
        raise
    if post.failed is None:
        post.check_empty()
        return results
    error = errors[post.failed]
    assert error is not None
    try:
        raise error
    finally:
        del error
        errors.clear()  # an error holds its frames, and so the arrays of its process
