"""Lifelines: how a process sees at once that another has ended, or that its host is out of reach.

In: where the processes are. Out: those that are gone, by one system call that asks about all of
them. The kernel does the work: it closes the line of a process that ends, finds within seconds that
a line to another host is cut, and marks a descriptor when a process of this host has ended. So
there is no thread, and no heartbeat that a process which computes would owe.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from meshard.errors import TransportError
from meshard.runtime.lines.connecting import Listener, connect, new_token
from meshard.runtime.lines.letters import sent
from meshard.runtime.lines.line import Line, wait
from meshard.runtime.processes.told import is_out_of_reach
from meshard.runtime.processes.whereabouts import Whereabouts

MOST_LINKED = 64
"""The largest job in which all processes of different hosts have lines to each other."""
_NEXT_HOSTS = 2
"""In larger jobs: the hosts after its own on each of which a process has a line to one process."""
_PATIENCE = 5.0
"""Seconds in which all lines must be made; a process without one learns from others."""
Gather = Callable[[object], list[Any]]
"""Returns what each process gives, in order; all processes call it."""


@sent
@final
@dataclass(frozen=True)
class Gone:
    """What is known about a process that is gone.

    Attributes:
        how: What has happened, after "Process 3".
        for_sure: Whether it has ended; else it is only out of reach from here.
    """

    how: str
    for_sure: bool


def links(hosts: Sequence[str], most: int = MOST_LINKED) -> set[tuple[int, int]]:
    """Return the pairs of processes of different hosts that hold a line to each other.

    Args:
        hosts: The host of each process.
        most: The largest job in which all of them do.
    """
    everybody = range(len(hosts))
    if len(hosts) <= most:
        return {(a, b) for a in everybody for b in range(a + 1, len(hosts)) if hosts[a] != hosts[b]}
    by_host: dict[str, list[int]] = {}
    for process in everybody:
        by_host.setdefault(hosts[process], []).append(process)
    rooms = list(by_host.values())
    found = set()
    for number, room in enumerate(rooms):
        for step in range(1, min(_NEXT_HOSTS, len(rooms) - 1) + 1):
            after = rooms[(number + step) % len(rooms)]
            # As many as the larger of both has, so that each process has at least one.
            for i in range(max(len(room), len(after))):
                a, b = room[i % len(room)], after[i % len(after)]
                found.add((min(a, b), max(a, b)))
    return found


@final
class Lifelines:
    """What shows one process the end of others.

    Args:
        index: This process.
        places: Where each process is.
    """

    def __init__(self, index: int, places: Sequence[Whereabouts]) -> None:
        self._index = index
        self._hosts = [host for host, *_ in places]
        self._poll = select.poll()
        self._lines: dict[int, tuple[int, Line]] = {}
        self._descriptors: dict[int, tuple[int, int]] = {}
        os.register_at_fork(after_in_child=self._forget)

    def watch(self, peer: int, pid: int) -> None:
        """Watch a process of this host, if the system can."""
        if not hasattr(os, "pidfd_open"):
            return
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:  # it has just ended, or the system is too old
            return
        self._descriptors[descriptor] = peer, pid
        self._poll.register(descriptor, select.POLLIN)

    def reach(self, gather: Gather) -> None:
        """Make the lines to processes of other hosts; all processes do this together."""
        pairs = links(self._hosts)
        if not pairs:
            return
        until = time.monotonic() + _PATIENCE
        lower = {a for a, b in pairs if b == self._index}
        token = new_token()
        with Listener(token) as listener:
            told = gather((listener.addresses, token))
            # A process connects once those before it have: the first waits for nobody.
            self._accept(listener, lower, until)
            for peer in sorted(b for a, b in pairs if a == self._index):
                addresses, secret = told[peer]
                try:
                    line = connect(addresses, secret, max(0.01, until - time.monotonic()))
                    line.send(str(self._index).encode())
                except TransportError:
                    continue
                self._keep(peer, line)

    def _accept(self, listener: Listener, peers: set[int], until: float) -> None:
        """Accept the lines of some processes."""
        unnamed: list[Line] = []
        while peers - {p for p, _ in self._lines.values()} and time.monotonic() < until:
            wait(unnamed, until - time.monotonic(), listener.files)
            while (new := listener.accept()) is not None:
                unnamed.append(new)
            for line in list(unnamed):
                name = line.poll()
                if name is not None or line.closed:
                    unnamed.remove(line)
                if name is not None and name.isdigit() and int(name) in peers:
                    self._keep(int(name), line)
                elif name is not None:
                    line.close()

    def _keep(self, peer: int, line: Line) -> None:
        self._lines[line.fileno()] = peer, line
        self._poll.register(line.fileno(), select.POLLIN)

    def holds(self, peer: int) -> bool:
        """Whether an open line leads to a process."""
        return any(p == peer for p, _ in self._lines.values())

    def ended(self) -> dict[int, Gone]:
        """Return the processes that were seen to be gone since the last call, and how."""
        found: dict[int, Gone] = {}
        for number, _ in self._poll.poll(0):
            if number in self._descriptors:
                peer, pid = self._descriptors.pop(number)
                self._poll.unregister(number)
                os.close(number)
                found[peer] = Gone(f"has died (pid {pid})", True)
            elif number in self._lines:
                peer, line = self._lines[number]
                line.poll()
                if line.closed:
                    found |= self._told(number, peer, line.reason or "")
        return found

    def _told(self, number: int, peer: int, reason: str) -> dict[int, Gone]:
        """Return who is gone, as the end of a line says."""
        self._drop(number)
        host = self._hosts[peer]
        if not is_out_of_reach(reason):
            return {peer: Gone(f"has died (on {host})", for_sure=True)}
        # It is the host that does not answer: none of its processes can be reached any more.
        for other, (process, _) in list(self._lines.items()):
            if self._hosts[process] == host:
                self._drop(other)
        how = f"is out of reach: its host {host} does not answer, or the link to it is cut"
        return {p: Gone(how, for_sure=False) for p, name in enumerate(self._hosts) if name == host}

    def _drop(self, number: int) -> None:
        _, line = self._lines.pop(number)
        self._poll.unregister(number)
        line.close()

    def _forget(self) -> None:
        """Close all, in a forked child: the lines of a process end with it, not with its child."""
        for _, line in self._lines.values():
            line.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._lines.clear()
        self._descriptors.clear()
        self._poll = select.poll()
