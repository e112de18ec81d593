"""The side channel of a job that processes can join which MPI has not started.

In: the side channel that MPI gives the first processes, and lines to all others. Out: one side
channel. Of two processes that have no MPI in common, the earlier one connects to the later.

The porter: lets processes in that come to a job from outside, whatever its process computes.

In: connections of processes that know the job's token. Out: their lines, for the thread of the
program; and at once a ticket for each that asks to join: the number that it will have, and the ids
of its devices. Nothing but JSON is read of one that has not got a ticket.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NoReturn, Protocol, final

import numpy as np

from meshard._version import __version__
from meshard.errors import TransportError
from meshard.mpi.ending import dismiss, end_alone
from meshard.mpi.outside.far import Far
from meshard.runtime.lines.connecting import ANYWHERE, Address, Listener, connect
from meshard.runtime.lines.letters import decode, packed, unpacked
from meshard.runtime.lines.line import Line, wait
from meshard.runtime.lines.rendezvous import Announcement, Rendezvous
from meshard.runtime.processes.identity import (
    Facts,
    KeeperLine,
    Whereabouts,
    state_of,
    united,
    whereabouts,
)
from meshard.runtime.processes.watchdog import SideChannel
from meshard.runtime.settings import STOPPED, Table

_PATIENCE = 5.0
"""Seconds that somebody who has connected has to say what for."""
_TICK, _LONG = 1.0, 3600.0
SIDE, DATA, TICKET, WAITS = "side", "data", "ticket", "waits"
"""What a line is for: letters, boxes, asking for a ticket; and what one with a ticket says."""


def builds() -> dict[str, str]:
    """Return the versions that processes of one job share."""
    return {
        "meshard": __version__,
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "NumPy": np.__version__.partition(".")[0],
    }


@final
@dataclass(frozen=True)
class Ticket:
    """What one that joins gets before anything else.

    Attributes:
        number: the number that it has from now on.
        device: the id of its first device.
        job: the job's name in files.
        table: the sizes that decide how blocks are moved.
        members: where those who take part listen.
    """

    number: int
    device: int
    job: str
    table: Mapping[str, Any]
    members: tuple[tuple[Address, ...], ...]

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Ticket:
        """Return the ticket that a message holds."""
        members = tuple(tuple((str(h), int(p)) for h, p in some) for some in told["members"])
        return cls(told["number"], told["device"], told["job"], told["table"], members)


@final
class Porter:
    """The open port of one process, and the thread that serves it.

    Args:
        token: the secret of the job.
        host: the address at which it listens; by default those of all interfaces.
    """

    def __init__(self, token: bytes, host: str = ANYWHERE) -> None:
        self.token = token
        self._listener = Listener(token, host=host)
        self.addresses = self._listener.addresses
        self._arrived: deque[tuple[Mapping[str, Any], Line]] = deque()
        self._asking = threading.Lock()
        self._next: Ticket | None = None
        self._given: dict[int, Any] = {}
        self._open = True
        self._waking, self._wake = os.pipe()
        os.register_at_fork(after_in_child=self._listener.close)
        self._thread = threading.Thread(target=self._serve, name="meshard porter", daemon=True)
        self._thread.start()

    def offer(self, ticket: Ticket | None) -> None:
        """Give this ticket to the next that asks; None if another process gives them."""
        with self._asking:
            if ticket is not None and self._next is not None:
                number = max(ticket.number, self._next.number)
                ticket = replace(
                    ticket, number=number, device=max(ticket.device, self._next.device)
                )
            self._next = ticket

    def arrived(self) -> Iterator[tuple[Mapping[str, Any], Line]]:
        """Yield who has come since the last call: what it has said, and the line to it."""
        while self._arrived:
            yield self._arrived.popleft()

    def close(self) -> None:
        """Let nobody in any more."""
        if self._open:
            self._open = False
            os.write(self._wake, b"!")
            self._thread.join()
            os.close(self._wake)
            os.close(self._waking)

    def _serve(self) -> None:
        strangers: list[tuple[Line, float]] = []
        while self._open:
            files = [self._waking, *self._listener.files]
            busy = strangers or len(files) > 2
            wait([line for line, _ in strangers], _TICK if busy else _LONG, files)
            while (line := self._listener.accept()) is not None:
                strangers.append((line, time.monotonic() + _PATIENCE))
            strangers = [one for one in strangers if self._is_strange(*one)]
        self._listener.close()
        for line in [*[line for line, _ in strangers], *[line for _, line in self.arrived()]]:
            line.close()

    def _is_strange(self, line: Line, until: float) -> bool:
        """Whether it is still open what a line is for."""
        header = line.poll()
        if header is None:
            if line.closed or time.monotonic() > until:
                line.close()
                return False
            return True
        told = _read(header)
        if told.get("for") == TICKET:
            try:
                told = told | self._ticket(told)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                told["refused"] = f"Its question is malformed: {type(error).__name__}: {error}."
            with contextlib.suppress(TransportError):
                line.send(json.dumps(told).encode())
        elif type(told.get("index")) is not int:
            told = {}
        if told.get("for") not in (SIDE, DATA, TICKET) or "refused" in told:
            while not line.push() and time.monotonic() < until:
                wait([line], _TICK)
            line.close()
        else:
            self._arrived.append((told, line))
        return False

    def _ticket(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the ticket for one that asks, or why it gets none."""
        mine, theirs = builds(), asked.get("builds", {})
        other = [name for name in mine if theirs.get(name) != mine[name]]
        if other:
            told = ", ".join(f"{n} {theirs.get(n, 'unknown')} instead of {mine[n]}" for n in other)
            return {"refused": f"It has {told}; all processes of a job have the same."}
        with self._asking:
            ticket = self._next
            if ticket is None:
                return {"elsewhere": True}
            number, device = asked.get("number"), asked.get("device")
            if number is not None and device is not None:
                if self._given.get(number) == asked["place"]:
                    return asdict(replace(ticket, number=number, device=device))
                if number < ticket.number or device < ticket.device:
                    return {
                        "refused": f"Its number, {number}, was given to another process while "
                        "nobody could be asked. Start it again."
                    }
                ticket = replace(ticket, number=number, device=device)
            self._given[ticket.number] = asked["place"]
            self._next = replace(
                ticket, number=ticket.number + 1, device=ticket.device + int(asked["devices"])
            )
            return asdict(ticket)


def _read(header: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(header)
        if isinstance(found, dict):
            return found
    return {}


def entry_name(job: str) -> str:
    """Return the name under which a job is announced."""
    return f"job {job}"


class Inner(SideChannel, Protocol):
    """The side channel between the first processes.

    Attributes:
        keeper: the line to the `meshard run` that has started the job.
    """

    keeper: KeeperLine

    def flush(self, seconds: float) -> None:
        """Give letters in flight some time to leave."""


class Door(Protocol):
    """Where a process waits that has come from outside."""

    def is_open(self) -> bool:
        """Whether the job may still take this process in."""


@final
class _Caller:
    """A process that has got a ticket."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.facts: Facts | None = None

    def look(self) -> None:
        """Read whether it waits to take part."""
        header = self.line.poll()
        if header is not None:
            facts = decode(header)
            self.facts = facts if isinstance(facts, Facts) else None


@final
class OpenChannel:
    """The side channel of one process.

    Args:
        index: this process.
        first: how many processes the inner channel joins.
        inner: the side channel between them; None if this process is not one of them.

    Attributes:
        known: the facts of all processes of the job, if others can join it.
    """

    def __init__(self, index: int, first: int, inner: Inner | None) -> None:
        self._index = index
        self._first = first
        self._inner = inner
        self.keeper = KeeperLine() if inner is None else inner.keeper
        self._lines: dict[int, Line] = {}
        self._later: dict[int, list[bytes]] = {}
        self._callers: dict[int, _Caller] = {}
        self._places: dict[int, Whereabouts] = {}
        self._unreached: set[int] = set()
        self.known: Mapping[int, Facts] = {}
        self._name = ""
        self._announcement: Announcement | None = None
        self.far: Far | None = None
        self.porter: Porter | None = None
        self.door: Door | None = None
        self.table = Table()
        self.job = ""

    def open(self, name: str, porter: Porter, far: Far, table: Table, job: str) -> None:
        """Let processes join from now on.

        Args:
            name: the name under which they find the job; an empty one lets none join.
            porter: where they come in.
            far: where the lines for boxes go.
            table: the sizes that decide how blocks are moved.
            job: the name of the job in files.
        """
        self._name, self.porter, self.far, self.table, self.job = name, porter, far, table, job
        os.register_at_fork(after_in_child=self._forget)

    # letters

    def post(self, peer: int, letter: object) -> None:
        """Send a letter; one that cannot be sent is lost."""
        if self._inner is not None and peer < self._first:
            self._inner.post(peer, letter)
            return
        data = packed(letter)
        if peer not in self._lines:
            self._later.setdefault(peer, []).append(data)
            return
        with contextlib.suppress(TransportError):
            self._lines[peer].send(data)

    def collect(self) -> list[Any]:
        """Return the letters that have arrived since the last call."""
        found = [] if self._inner is None else self._inner.collect()
        self._let_in()
        for line in self._lines.values():
            line.push()
            while (data := line.poll()) is not None:
                found.append(unpacked(data))
        return found

    def _let_in(self) -> None:
        """Take over the lines of those who have come."""
        if self.porter is None or self.far is None:
            return
        for told, line in self.porter.arrived():
            if told["for"] == SIDE:
                self._attach(told["index"], line)
            elif told["for"] == DATA:
                self.far.attach(told["index"], line)
            else:
                self._callers[told["number"]] = _Caller(line)

    def _attach(self, peer: int, line: Line) -> None:
        self._lines[peer] = line
        with contextlib.suppress(TransportError):
            for data in self._later.pop(peer, ()):
                line.send(data)

    def flush(self, seconds: float) -> None:
        """Give letters in flight some time to leave."""
        if self._inner is not None:
            self._inner.flush(seconds)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for line in self._lines.values():
                line.push()
            if not any(line.is_sending for line in self._lines.values()):
                return
            time.sleep(1e-3)

    # others

    def fate(self, peer: int) -> tuple[str, bool] | None:
        """Return what is wrong with a process, as far as it can be seen; None if nothing is."""
        if self._inner is not None and peer < self._first:
            return self._inner.fate(peer)
        if peer in self._unreached:
            return "could not be reached", True
        host, pid, begun = self._places.get(peer, ("", 0, ""))
        if host:
            state, since = state_of(pid)
            if since != begun or state in ("Z", "X"):
                return f"has died (pid {pid})", True
            if state in ("T", "t"):
                return f"is stopped (pid {pid})", STOPPED.value == "fail"
        line = self._lines.get(peer)
        if line is not None and line.closed:
            return f"has died, or cannot be reached any more ({line.reason})", True
        return None

    def dismiss(self, peer: int) -> None:
        """Tell a process that was given up, if it is of this host: also one that is stopped."""
        if self._inner is not None and peer < self._first:
            self._inner.dismiss(peer)
        else:
            _, pid, begun = self._places.get(peer, ("", 0, ""))
            dismiss(pid, begun)

    def dismissed(self, how: str) -> NoReturn:
        """End this process, which others have given up, and none but this one."""
        end_alone(how, launched=self._inner is not None)

    def seen(self, peer: int) -> str | None:
        """Return how a process was lost, as any thread may ask: nothing is sent or received."""
        if self._inner is not None and peer < self._first:
            return self._inner.seen(peer)
        found = self.fate(peer)
        return found[0] if found is not None and found[1] else None

    def notice(self, text: str) -> None:
        """Write to the standard error."""
        print(f"meshard: {text}", file=sys.stderr, flush=True)

    # joining

    def is_open(self) -> bool:
        """Whether processes may join that the job was not started with; the same on all."""
        return self.porter is not None and bool(self._name)

    def is_expected(self) -> bool:
        """Whether processes that this one does not know may still take it in."""
        return self.door is not None and self.door.is_open()

    def callers(self) -> list[Facts]:
        """Return the processes that have come to join, and wait at this process."""
        for number, caller in list(self._callers.items()):
            caller.look()
            if caller.line.closed:
                del self._callers[number]
        return [caller.facts for caller in self._callers.values() if caller.facts is not None]

    def admit(self, newcomers: Iterable[Facts]) -> None:
        """Reach processes that are to take part, so that letters get to them."""
        # Those that take part already connect to them; of themselves, each to those after it.
        some = united(newcomers)
        first = self._index if self._index in some else -1
        for index, facts in some.items():
            if index in self._callers:
                self._callers[index].facts = None  # it waits no more
            if index != self._index and index not in self._places:
                self._know(facts)
                if index > first:
                    self._reach(facts)

    def _know(self, facts: Facts) -> None:
        host, pid, begun = facts.place
        seen = host == whereabouts()[0] and begun and state_of(pid)[1] == begun
        self._places[facts.index] = facts.place if seen else ("", 0, "")

    def _reach(self, facts: Facts) -> None:
        """Connect to a process, for letters and for boxes."""
        assert self.porter is not None
        assert self.far is not None
        lines = []
        try:
            for kind in (SIDE, DATA):
                line = connect(facts.addresses, self.porter.token, _PATIENCE)
                lines.append(line)
                line.send(json.dumps({"for": kind, "index": self._index}).encode())
        except TransportError:
            self._unreached.add(facts.index)
            for line in lines:
                line.close()
            return
        self._attach(facts.index, lines[0])
        self.far.attach(facts.index, lines[1])

    def learn(self, known: Mapping[int, Facts], members: Collection[int]) -> None:
        """Learn about the processes of the job, and who of them takes part now."""
        if self.porter is None:
            return
        self.known = known
        for index, facts in known.items():
            if index not in self._places:
                self._know(facts)
        for number in self._callers.keys() & known.keys():
            self._callers.pop(number).line.close()
        for peer in self._lines.keys() - set(members):
            self._lines.pop(peer).close()
        self._later.clear()
        if self._index != min(members) or not self._name:
            self.porter.offer(None)
            return
        last = known[max(known)]
        device = max(facts.first_device + facts.devices for facts in known.values())
        where = tuple(known[p].addresses for p in sorted(members))
        self.porter.offer(Ticket(last.index + 1, device, self.job, asdict(self.table), where))
        self._announcement = Rendezvous().announce(
            entry_name(self._name),
            self.porter.addresses,
            self.porter.token,
            {"members": json.loads(json.dumps(where))},  # as it will be read
        )

    def close(self) -> None:
        """Take the job's name back; processes that wait to join find that it has ended."""
        if self._announcement is not None:
            self._announcement.withdraw()

    def _forget(self) -> None:
        """Close all lines, in a forked child: they end with their process, not with its child."""
        for line in self._lines.values():
            line.close()
        for caller in self._callers.values():
            caller.line.close()
        if self.far is not None:
            self.far.close()
