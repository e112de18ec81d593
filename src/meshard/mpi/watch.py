"""How a process of an MPI job observes the others, apart from their messages.

In: a communicator of its own, and the system's view of processes on the same host. Out: the side
channel of `Watchdog`.

Lifelines: how a process sees at once that another has ended, or that its host is out of reach.

In: where the processes are. Out: those that are gone, by one system call that asks about all of
them. The kernel does the work: it closes the line of a process that ends, finds within seconds that
a line to another host is cut, and marks a descriptor when a process of this host has ended. So
there is no thread, and no heartbeat that a process which computes would owe.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, final

import numpy as np
from mpi4py import MPI

from meshard.errors import TransportError
from meshard.mpi.ending import dismiss, end_alone, end_cut_off
from meshard.runtime.lines.connecting import Listener, connect, new_token
from meshard.runtime.lines.letters import packed, sent, unpacked
from meshard.runtime.lines.line import Line, wait
from meshard.runtime.processes.identity import KeeperLine, Whereabouts, is_out_of_reach, state_of
from meshard.runtime.processes.watchdog import ENDED, Closed, given_up
from meshard.runtime.settings import STOPPED

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


_LETTER = 7
_OFTEN, _VALID = 0.3, 2.0
"""Seconds between two questions about a process of another host, and for which an answer holds."""
_ASKED = 4
"""The most processes that are asked."""


@final
class MpiSideChannel(Closed):
    """The side channel between the processes of a communicator.

    A process that sees another one gone tells all others, so that all know within a moment, also
    those that have no line to it. What cannot be seen from another host, that a process is
    stopped, the others ask a neighbour of it.

    Args:
        communicator: the processes; a duplicate of it is used.
        keeper: the line to the `meshard run` that has started the job.

    Attributes:
        keeper: the same.
    """

    def __init__(self, communicator: MPI.Intracomm, keeper: KeeperLine) -> None:
        self._comm = communicator.Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._host = socket.gethostname()
        self._known: dict[int, tuple[int, str]] = {}
        self._going: list[tuple[MPI.Request, Any]] = []
        self._coming: list[tuple[MPI.Request, Any]] = []
        self._dead: set[int] = set()
        self._places: list[Whereabouts] = []
        self._lifelines: Lifelines | None = None
        self.keeper = keeper
        self._gone: dict[int, Gone] = {}
        self._well: set[int] = set()
        self._stopped: dict[int, tuple[str, float]] = {}
        self._next_question: dict[int, float] = {}
        self._unanswered: set[tuple[int, int]] = set()

    def know(self, places: list[Whereabouts]) -> None:
        """Learn where the processes are; those of this host can be observed."""
        self._places = places
        for peer, (host, pid, begun) in enumerate(places):
            if host == self._host and begun and state_of(pid)[1] == begun:
                self._known[peer] = pid, begun

    def hold(self, gather: Gather) -> None:
        """Hold lines to processes of other hosts; all processes do this together.

        Args:
            gather: returns what each process gives.
        """
        me = self._comm.Get_rank()
        self._lifelines = lines = Lifelines(me, self._places)
        for peer, (pid, _) in self._known.items():
            if peer != me:
                lines.watch(peer, pid)
        lines.reach(gather)

    def post(self, peer: int, letter: object) -> None:
        """Send a letter; one that cannot be sent is lost."""
        self._going = [one for one in self._going if not _done(one[0])]
        buffer = np.frombuffer(packed(letter), np.uint8)
        try:
            self._going.append((self._comm.Isend([buffer, MPI.BYTE], peer, _LETTER), buffer))
        except MPI.Exception:  # it is dead; processes that wait for it learn so elsewhere
            return

    def collect(self) -> list[Any]:
        """Return the letters that have arrived since the last call."""
        if self._dead or not self._receive(MPI.ANY_SOURCE):
            # MPI refuses to receive from any source if one has died, so each is asked.
            everybody = range(self._comm.Get_size())
            self._dead |= {p for p in everybody if p not in self._dead and not self._receive(p)}
        found = []
        while self._coming:
            request, buffer = self._coming[0]
            try:
                if not request.Test():
                    break
            except MPI.Exception:  # its sender has died while sending
                buffer = None
            del self._coming[0]
            if buffer is not None:
                letter = unpacked(buffer.data)
                if not self._is_ours(*letter):
                    found.append(letter)
        self._see()
        return found

    def _is_ours(self, topic: str, letter: Any) -> bool:
        """Whether a letter is between side channels; it is read here then."""
        if topic == "gone":
            peer, how = letter
            # A host may be out of reach from one side only: whoever reaches it still knows better.
            if how.for_sure or self._lifelines is None or not self._lifelines.holds(peer):
                self._gone.setdefault(peer, how)
        elif topic == "how is":
            peer, asker = letter
            fate = self._fate_here(peer)
            mine = peer, self._comm.Get_rank(), None if fate is None else fate[0]
            self.post(asker, ("is", mine))
        elif topic == "is":
            peer, other, how = letter
            self._unanswered.discard((peer, other))
            if how is None:
                self._stopped.pop(peer, None)
            else:
                self._stopped[peer] = how, time.monotonic() + _VALID
        else:
            if topic == "bye" and letter.ended == ENDED:
                self._well.add(letter.index)
            return False
        return True

    def _see(self) -> None:
        """Look which processes are gone, and tell the others."""
        if self._lifelines is None:
            return
        ended = self._lifelines.ended()
        far = {self._places[peer][0] for peer, how in ended.items() if not how.for_sure}
        if self.keeper.is_cut(far):
            me = self._comm.Get_rank()
            if self.keeper.answers():  # and so does mpiexec, to which the death of a daemon is one
                end_alone(given_up(me, "its `meshard run`"), launched=True)  # of the whole job
            end_cut_off(me)
        for peer, how in ended.items():
            if peer in self._well or peer in self._gone:
                continue
            self._gone[peer] = how
            for other in range(len(self._places)):
                if other != self._comm.Get_rank() and other not in self._gone:
                    self.post(other, ("gone", (peer, how)))

    def _receive(self, peer: int) -> bool:
        """Begin to receive the letters of a process; return whether it lives."""
        try:
            while message := self._comm.Improbe(peer, _LETTER, status=(status := MPI.Status())):
                buffer = np.empty(status.Get_count(MPI.BYTE), np.uint8)
                self._coming.append((message.Irecv([buffer, MPI.BYTE]), buffer))
        except MPI.Exception:
            return False
        return True

    def fate(self, peer: int) -> tuple[str, bool] | None:
        """Return what is wrong with a process, as far as it can be seen; None if nothing is."""
        self._see()
        if peer in self._known:
            return self._fate_here(peer)
        if peer in self._gone:
            return self._gone[peer].how, True
        if peer in self._dead:
            return "has died", True
        self._ask_neighbours(peer)
        how, until = self._stopped.get(peer, ("", 0.0))
        return (how, STOPPED.value == "fail") if time.monotonic() < until else None

    def seen(self, peer: int) -> str | None:
        """Return how a process was lost, as any thread may ask: nothing is sent or received."""
        if peer in self._gone:
            return self._gone[peer].how
        found = self._fate_here(peer)
        return found[0] if found is not None and found[1] else None

    def _fate_here(self, peer: int) -> tuple[str, bool] | None:
        """Return what the system says is wrong with a process of this host; None if nothing."""
        if peer not in self._known:
            return None
        pid, begun = self._known[peer]
        state, since = state_of(pid)
        if since != begun or state in ("Z", "X"):
            return f"has died (pid {pid})", True
        if state in ("T", "t"):
            return f"is stopped (pid {pid})", STOPPED.value == "fail"
        return None

    def dismiss(self, peer: int) -> None:
        """Tell a process that was given up, if it is of this host: also one that is stopped."""
        if peer in self._known:
            dismiss(*self._known[peer])

    def dismissed(self, how: str) -> NoReturn:
        """End this process, which others have given up, and none but this one."""
        end_alone(how, launched=True)

    def _ask_neighbours(self, peer: int) -> None:
        """Ask processes of a process's host how it is."""
        now = time.monotonic()
        if now < self._next_question.get(peer, 0.0) or not self._places:
            return
        self._next_question[peer] = now + _OFTEN
        host = self._places[peer][0]
        near = [p for p, place in enumerate(self._places) if place[0] == host and p != peer]
        for other in [p for p in near if p not in self._gone][:_ASKED]:
            # A process that computes does not answer; letters must not pile up before it.
            if (peer, other) not in self._unanswered:
                self._unanswered.add((peer, other))
                self.post(other, ("how is", (peer, self._comm.Get_rank())))

    def notice(self, text: str) -> None:
        """Write to the standard error."""
        print(f"meshard: {text}", file=sys.stderr, flush=True)

    def flush(self, seconds: float) -> None:
        """Give letters in flight some time to leave."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._going = [one for one in self._going if not _done(one[0])]
            if not self._going:
                return
            time.sleep(1e-3)


def _done(request: MPI.Request) -> bool:
    try:
        return bool(request.Test())
    except MPI.Exception:
        return True
