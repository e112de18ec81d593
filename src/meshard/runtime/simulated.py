"""Simulated processes: threads of one interpreter, each with a world of its own.

A program that works here works in real processes, since only messages pass between worlds.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from itertools import count
from typing import Any, NoReturn, TypeVar, final

import numpy as np

from meshard.algebra.arguments import count_of, function_of, instance_of, items_of, number_of
from meshard.algebra.device import Device
from meshard.algebra.world import entered
from meshard.errors import ArgumentError, TransportError
from meshard.runtime.lines.letters import decode, encode
from meshard.runtime.memory.forks import depth, refuse_in_child
from meshard.runtime.processes.agreement import Agreement, Arrival, Stamp
from meshard.runtime.processes.transport import Lent, Taken
from meshard.runtime.processes.watchdog import Closed, Watchdog
from meshard.runtime.settings import Table
from meshard.runtime.types import Block
from meshard.runtime.world import RuntimeWorld, here

T = TypeVar("T")


class _Death(BaseException):
    """Ends a simulated process as a signal would that it cannot handle."""


def die() -> NoReturn:
    """End this simulated process at once, as ``kill -9`` would; the others are not told.

    `simulate` returns None for it.

    Raises:
        ArgumentError: if this is not a simulated process.

    >>> import meshard
    >>> from meshard.testing import die, simulate
    >>> def program():
    ...     if meshard.process_index() == 1:
    ...         die()
    ...     return meshard.elastic.recover().lost
    >>> simulate(3, 1, program)
    [(1,), None, (1,)]
    """
    transport = here().transport
    if not isinstance(transport, SimulatedTransport):
        raise ArgumentError("die: this is not a process that meshard.testing.simulate has started.")
    transport.die()
    raise _Death


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
        self.letters: list[list[Any]] = [[] for _ in range(count)]
        self.failed: int | None = None
        self.lost: set[int] = set()
        self.ended: set[int] = set()
        self.dead: set[int] = set()
        self.watchdogs: dict[int, Watchdog] = {}

    def put(self, source: int, target: int, kind: str, stamp: Stamp, letter: object) -> None:
        with self.changed:
            self.boxes[source, target].append((kind, stamp, letter))
            self.changed.notify_all()

    def take(self, source: int, target: int, kind: str, watchdog: Watchdog) -> Any:
        try:
            sent, letter = self._next(source, target, watchdog)
            if sent != kind:
                raise TransportError(
                    f"Process {target} expects {kind} of process {source}, which sent {sent}: the "
                    "processes have come out of step."
                )
        except BaseException as error:
            watchdog.leave((source,), error)
            raise
        watchdog.met((source,))
        return letter

    def _next(self, source: int, target: int, watchdog: Watchdog) -> tuple[str, Any]:
        """Wait for the next message from a process that belongs to this step."""
        box, agreement = self.boxes[source, target], watchdog.agreement
        waits = False
        while True:
            ahead: Stamp | None = None
            with self.changed:
                if not box and waits:
                    self.changed.wait(0.02)
                gone, failed = source in self.ended, self.failed
                while box:
                    kind, stamp, letter = box[0]
                    arrival = agreement.arrival(source, stamp)
                    if arrival is Arrival.NOW or arrival is Arrival.OVER:
                        box.popleft()
                    if arrival is Arrival.NOW:
                        if waits:
                            watchdog.end()
                        return kind, letter
                    if arrival is not Arrival.OVER:
                        ahead = stamp
                        break
            if not waits:
                waits = True
                watchdog.begin()
            if ahead is not None:
                watchdog.saw(source, ahead)
                time.sleep(1e-3)
            if failed is not None or gone:
                watchdog.last_look((source,))
            if failed is not None:
                raise TransportError(
                    f"Process {target} waits for a message of process {source}, but "
                    f"{self._why(failed)}."
                )
            watchdog.look(lambda: (source,))

    def _why(self, failed: int) -> str:
        """Return what has ended the wait: a process, or the caller of `simulate`."""
        if failed < self.count:
            return f"process {failed} has failed"
        return "the caller was interrupted"

    def fail(self, index: int) -> None:
        with self.changed:
            self.lost.add(index)
            if self.failed is None:
                self.failed = index
            self.changed.notify_all()

    def end(self, index: int) -> None:
        with self.changed:
            self.ended.add(index)
            self.changed.notify_all()

    def die(self, index: int) -> None:
        with self.changed:
            self.lost.add(index)
            self.dead.add(index)
            self.changed.notify_all()

    def check_empty(self) -> None:
        for (source, target), letters in self.boxes.items():
            if self.dead & {source, target}:
                continue
            watchdog = self.watchdogs[target]
            box = [stamp for _, stamp, _ in letters if not watchdog.is_over(source, stamp)]
            if box:
                raise TransportError(
                    f"Process {source} has sent process {target} {len(box)} messages that it "
                    "never received. Do all processes run the same operations?"
                )


@final
class _SimulatedChannel(Closed):
    """The side channel of one simulated process."""

    def __init__(self, post: _Post, index: int) -> None:
        self._post = post
        self._index = index

    def post(self, peer: int, letter: object) -> None:
        with self._post.changed:
            self._post.letters[peer].append(letter)
            self._post.changed.notify_all()

    def collect(self) -> list[Any]:
        with self._post.changed:
            found = self._post.letters[self._index]
            self._post.letters[self._index] = []
        return found

    def fate(self, peer: int) -> tuple[str, bool] | None:
        if peer in self._post.dead:
            return "has died", True
        return ("has failed", True) if peer in self._post.lost else None

    def seen(self, peer: int) -> str | None:
        found = self.fate(peer)
        return None if found is None else found[0]

    def notice(self, text: str) -> None:
        """Show nothing: there is one user for all processes."""


@final
class SimulatedTransport:
    """One simulated process's end of the post."""

    def __init__(
        self,
        post: _Post,
        index: int,
        hosts: tuple[int, ...],
        table: Table | None = None,
    ) -> None:
        self._post = post
        self._born = depth()
        self.index = index
        self.count = post.count
        self.hosts: tuple[int, ...] | None = hosts
        self.table = table or Table()
        agreement = Agreement(index, post.count, self.barrier)
        self.watchdog = Watchdog(agreement, _SimulatedChannel(post, index), post.deadline)
        post.watchdogs[index] = self.watchdog

    def _put(self, peer: int, kind: str, letter: object) -> None:
        refuse_in_child(self._born)
        self.watchdog.check((peer,))
        self._post.put(self.index, peer, kind, self.watchdog.agreement.stamp(peer), letter)

    def _take(self, peer: int, kind: str) -> Any:
        refuse_in_child(self._born)
        return self._post.take(peer, self.index, kind, self.watchdog)

    def exchange(
        self,
        sends: Sequence[tuple[int, Sequence[Block]]],
        receives: Sequence[tuple[int, Sequence[Block]]],
    ) -> None:
        """Send copies of blocks, then wait for the peers'."""
        for peer, blocks in sends:
            self._put(peer, "boxes", [np.array(b) for b in blocks])
        for peer, blocks in receives:
            letter = self._take(peer, "boxes")
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

    def swap(
        self, letters: Sequence[tuple[int, bytes]], sizes: Sequence[tuple[int, int]]
    ) -> dict[int, bytes | Block]:
        """Send letters, then wait for the peers'."""
        found: dict[int, bytes | Block] = {p: np.empty(size, np.uint8) for p, size in sizes}
        self.exchange(
            [(peer, [np.frombuffer(letter, np.uint8)]) for peer, letter in letters],
            [(peer, [np.asarray(found[peer])]) for peer, _ in sizes],
        )
        return found

    def share(self, lent: Lent, taken: Taken) -> list[Block]:
        """Pass blocks on as they are, read-only: one memory, as between neighbours."""
        for block, takers in lent:
            seen = block.view()
            seen.flags.writeable = False
            for peer in takers:
                self._put(peer, "a replica", seen)
        found = []
        for owner, shape, dtype in taken:
            block = self._take(owner, "a replica")
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
        letter = encode(value)
        for peer in peers:
            self._put(peer, "an object", letter)
        return [decode(self._take(peer, "an object")) for peer in peers]

    def barrier(self, peers: Sequence[int]) -> None:
        """Wait until all peers have arrived here."""
        self.all_gather(None, peers)

    def recall(self, hosts: tuple[int, ...] | None) -> None:
        """Do nothing: there is one way."""

    def renew(self, members: Sequence[int]) -> None:
        """Do nothing: stamps tell which messages are over."""

    def die(self) -> None:
        """End this process, as others see it."""
        self._post.die(self.index)


_MOST_PROCESSES = 1024  # each is a thread
_MOST_DEVICES = 4096


def _hosts(given: object, processes: int) -> tuple[int, ...]:
    """Return the number of each process's host."""
    found = items_of(given, "simulate", "hosts", "the number of each process's host")
    if len(found) != processes:
        raise ArgumentError(
            f"simulate: hosts has {len(found)} numbers, but there are {processes} processes; give "
            "the number of each process's host."
        )
    return tuple([count_of(h, "simulate", "each of hosts") for h in found])


_numbers = count()


def simulate(
    processes: int,
    devices_per_process: int,
    program: Callable[[], T],
    *,
    deadline: float = 60.0,
    hosts: Sequence[int] | None = None,
    table: Table | None = None,
    spares: int = 0,
) -> list[T]:
    """Run ``program`` once in each of several simulated processes.

    Args:
        processes: how many there are.
        devices_per_process: the devices of each.
        program: called without arguments, in a thread and a world of its own per process.
        deadline: seconds that a process waits for a message.
        hosts: the number of the host that each process runs on; one host by default.
        table: the sizes that decide how blocks are moved.
        spares: how many more processes there are, which wait to join the others; ``hosts`` counts
            them too.

    Returns:
        What the program returned, process by process; None for those that have died.

    Raises:
        BaseException: the error of the first process that failed; the others are ended.
        TransportError: if messages are left that no process received.
        ArgumentError: if there is not at least one process with one device, or another argument is
            of the wrong type.

    >>> import meshard
    >>> from meshard.testing import simulate
    >>> def program():
    ...     sharding = meshard.NamedSharding(meshard.make_mesh((4,), "x"), meshard.P("x"))
    ...     x = meshard.device_put(meshard.numpy.arange(8.0), sharding)
    ...     return meshard.process_index(), len(x.addressable_shards), float(x.sum())
    >>> simulate(2, 2, program)
    [(0, 2, 28.0), (1, 2, 28.0)]
    """
    what = "simulate"
    first = count_of(processes, what, "processes", least=1, most=_MOST_PROCESSES)
    processes = first + count_of(spares, what, "spares", most=_MOST_PROCESSES)
    each = count_of(devices_per_process, what, "devices_per_process", least=1, most=_MOST_DEVICES)
    deadline = number_of(deadline, what, "deadline", open_below=True)
    function_of(program, what, "program")
    if hosts is not None:
        hosts = _hosts(hosts, processes)
    if table is not None:
        instance_of(table, Table, what, "table")
    devices = [Device(p * each + i, p) for p in range(processes) for i in range(each)]
    post, number = _Post(processes, deadline), next(_numbers)
    shared = (0,) * processes if hosts is None else tuple(hosts)
    results: list[Any] = [None] * processes
    errors: list[BaseException | None] = [None] * processes

    def body(index: int) -> None:
        transport = SimulatedTransport(post, index, shared, table)
        world = RuntimeWorld(index, processes, devices, transport, hosts, processes - first)
        world.job += f"-{number}"
        try:
            with entered(world):
                results[index] = program()
            transport.watchdog.goodbye()
            post.end(index)
        except _Death:
            pass
        except BaseException as error:  # raised again in the caller's thread
            if isinstance(error, SystemExit) and not error.code:
                post.end(index)
                return
            errors[index] = error
            post.fail(index)
        finally:
            world.close()

    _run_threads(body, post)
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


def _run_threads(body: Callable[[int], None], post: _Post) -> None:
    """Run a body in a thread for each process, and wait for all."""
    threads = [
        threading.Thread(
            target=copy_context().run, args=(body, i), name=f"process {i}", daemon=True
        )
        for i in range(post.count)
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:  # an interrupt of the caller ends the processes that wait
        post.fail(post.count)
        raise
