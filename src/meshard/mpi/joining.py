"""Joining from outside: a job that has a name, and processes that were started by hand to join it.

In: the name of a job. Out: on the job's side, an open door; on the other, a world of the process's
own devices, with the number and the ids that it will have in the job. It is taken in when it comes
to wait (`elastic.surviving`, `elastic.grow`), and needs no MPI.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time
from typing import Any, final

from meshard.algebra.device import Device
from meshard.errors import ConfigError, TransportError
from meshard.mpi.neighbours import own_memory
from meshard.mpi.outside.channel import TICKET, OpenChannel, Porter, Ticket, builds, entry_name
from meshard.mpi.transport import JobTransport
from meshard.runtime.lines.connecting import Address, connect, new_token
from meshard.runtime.lines.letters import encode
from meshard.runtime.lines.line import Line, wait
from meshard.runtime.lines.rendezvous import Entry, Rendezvous
from meshard.runtime.memory.pages import Pages
from meshard.runtime.processes.identity import Facts, united, whereabouts
from meshard.runtime.settings import HOST, JOB, TABLE, TIMEOUT, Table
from meshard.runtime.world import RuntimeWorld

_PATIENCE = 5.0
"""Seconds that a process of the job has to answer."""
_AGAIN = 0.2
"""Seconds between two questions, while the process that gave tickets has died."""
_PREFIX = entry_name("")


@final
class Door:
    """Where a newcomer waits for a job.

    Args:
        name: the name of the job.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._line: Line | None = None
        self._next = 0.0
        self._facts: Facts | None = None
        self._members: tuple[tuple[Address, ...], ...] = ()
        self.token = b""
        self.ticket: Ticket | None = None

    def ring(self, devices: int) -> Ticket:
        """Get a ticket.

        Args:
            devices: how many devices this process has.

        Raises:
            ConfigError: if there is no such job, it has ended, or it refuses this process.
        """
        until = time.monotonic() + TIMEOUT.value
        while time.monotonic() < until:
            if self._is_answered(devices):
                assert self.ticket is not None
                return self.ticket
            if not self._is_alive():
                raise ConfigError(f"The job {self._name!r} has ended; no process is left to join.")
            time.sleep(_AGAIN)
        raise ConfigError(
            f"The job {self._name!r} has not answered for {TIMEOUT.value:g} s (MESHARD_TIMEOUT)."
        )

    def _is_answered(self, devices: int) -> bool:
        """Ask the process that gives tickets; return whether it has given one.

        Raises:
            ConfigError: if there is no such job, or it refuses this process.
        """
        entry = self._entry()
        self.close()
        asked: dict[str, Any] = {"for": TICKET, "devices": devices, "builds": builds()}
        asked["place"] = whereabouts()
        if self.ticket is not None:
            asked |= {"number": self.ticket.number, "device": self.ticket.device}
        try:
            line = connect(entry.addresses, entry.token, _PATIENCE)
            line.send(json.dumps(asked).encode())
        except TransportError:
            return False
        told = _answer(line)
        if told is None or "elsewhere" in told or "refused" in told:
            line.close()
        if told is None or "elsewhere" in told:
            return False
        if "refused" in told:
            raise ConfigError(
                f"The job {self._name!r} does not take this process. {told['refused']}"
            )
        self.ticket, self._line, self.token = Ticket.of(told), line, entry.token
        self._members = self.ticket.members
        if self._facts is not None:
            line.send(encode(self._facts))
        return True

    def _entry(self) -> Entry:
        rendezvous = Rendezvous()
        entry = rendezvous.last(entry_name(self._name))
        if entry is None:
            jobs = [n.removeprefix(_PREFIX) for n in rendezvous.names() if n.startswith(_PREFIX)]
            there = f"those in {rendezvous.folder} are {', '.join(map(repr, jobs))}"
            raise ConfigError(
                f"There is no job {self._name!r} that can be joined; "
                f"{there if jobs else f'there is none in {rendezvous.folder}'}. A job can be "
                f"joined if it was started with `meshard run --joinable {self._name}`, or with "
                f"MESHARD_JOB={self._name} in its environment."
            )
        told = entry.about.get("members", ())
        self._members = tuple(tuple((str(h), int(p)) for h, p in some) for some in told)
        self.token = entry.token
        return entry

    def _is_alive(self) -> bool:
        """Whether any process of the job answers; each does, whatever it computes."""
        for addresses in self._members:
            with contextlib.suppress(TransportError):
                connect(addresses, self.token, _PATIENCE).close()
                return True
        return False

    def close(self) -> None:
        """Let go of the job."""
        if self._line is not None:
            self._line.close()
            self._line = None

    def wait(self, facts: Facts) -> None:
        """Say that this process waits from now on."""
        self._facts = facts
        if self._line is not None:
            with contextlib.suppress(TransportError):
                self._line.send(encode(facts))

    def is_open(self) -> bool:
        """Whether the job may still take this process in.

        Raises:
            ConfigError: if it refuses this process.
        """
        if self._line is not None and self._line.look():
            return True
        if time.monotonic() < self._next:
            return True
        self._next = time.monotonic() + _AGAIN
        assert self._facts is not None
        try:
            if self._is_answered(self._facts.devices) or self._is_alive():
                return True
        except ConfigError:
            if Rendezvous().last(entry_name(self._name)) is not None:
                raise
        _say(f"the job {self._name!r} has ended before it took process {self._facts.index} in.")
        return False


def _say(text: str) -> None:
    print(f"meshard: {text}", file=sys.stderr, flush=True)


def _answer(line: Line) -> dict[str, Any] | None:
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until and not line.closed:
        header = line.poll()
        if header is not None:
            found: dict[str, Any] = json.loads(header)
            return found
        wait([line], until - time.monotonic())
    return None


@final
class _Room:
    """The door, once this process has come to wait: it says so when it is first asked."""

    def __init__(self, door: Door, facts: Facts) -> None:
        self._door = door
        self._facts = facts
        self._waits = False

    def is_open(self) -> bool:
        """Whether the job may still take this process in."""
        if not self._waits:
            self._waits = True
            self._door.wait(self._facts)
        return self._door.is_open()


def _facts(world: RuntimeWorld, porter: Porter, seat: int) -> Facts:
    own, host = world.local_devices, HOST.value or socket.gethostname()
    place, addresses = whereabouts(), porter.addresses
    return Facts(world.process_index, own[0].id, len(own), host, place, addresses, seat)


def open_job(world: RuntimeWorld, transport: JobTransport) -> None:
    """Let processes join that the job was not started with, if it has a name for them.

    All processes of the job call it together.
    """
    everybody = range(world.process_count)
    first: Any = transport.all_gather((JOB.value, new_token()), everybody)[0]
    name, token = first
    if name is None:
        return
    porter = Porter(token)
    # As neighbours count them; those who come later have their numbers, which are larger.
    seat = world.hosts[: world.process_index].count(world.hosts[world.process_index])
    told: Any = transport.all_gather(_facts(world, porter, seat), everybody)
    world.known = united(told)
    transport.channel.open(name, porter, transport.far, transport.table, world.job)
    transport.channel.learn(world.known, world.processes)


def _offer(world: RuntimeWorld, transport: JobTransport) -> None:
    """Let processes of this host reach this one's memory once they take part together."""
    if transport.table.memory:
        assert isinstance(world.memory, Pages)
        transport.offer(world.memory, own_memory(world.memory, 0))


def opened(name: str, devices: int) -> tuple[RuntimeWorld, JobTransport]:
    """Return the world of a job that begins with one process, and that others may join."""
    transport = JobTransport(0, OpenChannel(0, 0, None), TIMEOUT.value, table=TABLE.value)
    # There is room for another process, so that no array counts as one that can have no others.
    world = RuntimeWorld(0, 2, [Device(i) for i in range(devices)], transport, spares=1)
    _offer(world, transport)
    porter = Porter(new_token())
    world.known = united([_facts(world, porter, 0)])
    transport.channel.open(name, porter, transport.far, transport.table, world.job)
    transport.channel.learn(world.known, world.processes)
    return world, transport


def newcomer(name: str, devices: int) -> tuple[RuntimeWorld, JobTransport]:
    """Return the world of a process that is to join a job.

    Args:
        name: the name of the job.
        devices: how many devices this process has.

    Raises:
        ConfigError: if there is no such job, it has ended, or it refuses this process.
    """
    door = Door(name)
    ticket = door.ring(devices)
    index, table = ticket.number, Table(**ticket.table)
    channel, porter = OpenChannel(index, 0, None), Porter(door.token)
    transport = JobTransport(index, channel, TIMEOUT.value, table=table)
    channel.open(name, porter, transport.far, table, ticket.job)
    own = [Device(ticket.device + i, index) for i in range(devices)]
    world = RuntimeWorld(index, index + 1, own, transport, spares=1)
    _offer(world, transport)
    facts = _facts(world, porter, index)
    world.known, world.job = {index: facts}, ticket.job
    channel.door = _Room(door, facts)
    _say(f"process {index} waits to join {name!r}.")
    return world, transport
