"""Where processes are: host, number, and when they began, which no two processes share.

In: process numbers. Out: what the system says of them.

Facts of a process: what those that it works with know of it.

In: what each says of itself when it joins. Out: devices, hosts and ways to reach it, the same on
all processes of the job.

What a process of a job says of itself to the `meshard run` that has started it.

In: the variable `MESHARD_KEEPER`. Out: a line that is held for as long as the process lives, and
words on it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import final

from meshard.algebra.device import Device
from meshard.errors import TransportError
from meshard.runtime.lines.connecting import connect
from meshard.runtime.lines.letters import sent
from meshard.runtime.lines.line import Line

Whereabouts = tuple[str, int, str]
"""A process's host, its number there, and when it began."""

_JOB = "PMIX_NAMESPACE"
"""The variable in which a launcher tells processes the name of their job."""


def whereabouts() -> Whereabouts:
    """Return where this process is."""
    return socket.gethostname(), os.getpid(), _begun(os.getpid())


@lru_cache(maxsize=1)  # a child has another number
def _begun(pid: int) -> str:
    """Return when this process began."""
    return state_of(pid)[1]


def state_of(pid: int) -> tuple[str, str]:
    """Return the system's state and start time of a process; empty if it does not exist."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            told = file.read().rpartition(")")[2].split()
        return told[0], told[19]
    except (OSError, IndexError):
        return "", ""


def parent_of(pid: int) -> tuple[str, int]:
    """Return the program of a process and its parent; an empty name and 0 if it does not exist."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            before, _, after = file.read().rpartition(")")
        return before.partition("(")[2], int(after.split()[1])
    except (OSError, IndexError):
        return "", 0


def siblings(parent: int) -> int | None:
    """Return how many living processes of this job a process has started, in any of its threads.

    A launcher's agents for other hosts are none of the job.

    Args:
        parent: the process that has started this one.

    Returns:
        How many; None if that is not known, as the process has ended or the system does not say.
    """
    children: list[str] = []
    try:
        for thread in os.listdir(f"/proc/{parent}/task"):
            with open(f"/proc/{parent}/task/{thread}/children", encoding="utf-8") as file:
                children += file.read().split()
    except OSError:  # a thread that has just ended, too: somebody asks again
        return None
    return len([pid for pid in map(int, children) if _is_of_this_job(pid)])


def _is_of_this_job(pid: int) -> bool:
    """Whether a process lives, and is not known to belong to another job, or to none."""
    if state_of(pid)[0] in ("", "Z", "X"):
        return False
    job = os.environ.get(_JOB)
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            told = file.read().split(b"\0")
    except OSError:
        return True
    return job is None or not any(told) or f"{_JOB}={job}".encode() in told


def launcher() -> Whereabouts:
    """Return where the `meshard run` of this job is; an empty host if there is none."""
    host, _, rest = os.environ.get("MESHARD_LAUNCHER", "").rpartition(":")
    pid, _, begun = rest.partition("@")
    return (host, int(pid), begun) if pid.isdecimal() else ("", 0, "")


def job_name(place: Whereabouts) -> str:
    """Return a name for the job whose first process is at a place, fit for file names."""
    host, pid, begun = place
    plain = "".join([c if c.isalnum() else "-" for c in host])
    return f"{plain}.{pid}.{begun}"


def has_ended(job: str) -> bool:
    """Whether the first process of a job is known to have ended: it was on this host."""
    host, _, rest = job.rpartition(".")
    host, _, pid = host.rpartition(".")
    here = job_name(whereabouts()).rpartition(".")[0].rpartition(".")[0]
    begun = rest.partition("-")[0]  # a simulated job has a number too
    return host == here and pid.isdecimal() and state_of(int(pid))[1] != begun


@sent
@final
@dataclass(frozen=True, slots=True)
class Facts:
    """What a process says of itself.

    Attributes:
        index: its number.
        first_device: the id of its first device.
        devices: how many it has; their ids follow each other.
        host: the name of its host.
        place: where it is.
        addresses: where it listens to others of the job that share no MPI with it.
        seat: its number on the host, which no other process there ever has.
    """

    index: int
    first_device: int
    devices: int
    host: str
    place: Whereabouts
    addresses: tuple[tuple[str, int], ...]
    seat: int


def devices_of(known: Mapping[int, Facts]) -> tuple[Device, ...]:
    """Return the devices of all known processes, in the order of the processes."""
    return tuple(
        Device(facts.first_device + i, index)
        for index, facts in sorted(known.items())
        for i in range(facts.devices)
    )


def hosts_of(known: Mapping[int, Facts], count: int) -> tuple[int, ...]:
    """Return the number of each process's host; a number that nobody has is on a host of its own.

    Args:
        known: the known processes.
        count: more than the number of any.
    """
    names = list(dict.fromkeys(facts.host for _, facts in sorted(known.items())))
    return tuple(names.index(known[p].host) if p in known else len(names) + p for p in range(count))


def united(some: Iterable[Facts]) -> dict[int, Facts]:
    """Return facts by the numbers of their processes, each once."""
    return {facts.index: facts for facts in sorted(some, key=lambda facts: facts.index)}


KEEPER = "MESHARD_KEEPER"
"""The variable: a token, and the addresses at which `meshard run` listens."""
STARTS, JOINED, ENDED, FAILED, GAVE_UP = "starts", "joined", "ended", "failed", "gave up"
"""What it says: it waits for all to start; it has joined them; its program has ended, or has
failed; it waited for others in vain."""
_OUT_OF_REACH = tuple(
    os.strerror(code)
    for code in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN)
)
_PATIENCE = 5.0
"""Seconds that the `meshard run` has to answer; without it the job runs as without one."""

_ANSWER = 1.0
"""Seconds that it has to answer when it is asked whether it can be reached."""


def is_out_of_reach(reason: str) -> bool:
    """Whether a line was closed because its other end does not answer: it may well live."""
    return any(told in reason for told in _OUT_OF_REACH)


@final
class KeeperLine:
    """The line of this process to the `meshard run` that has started it, if there is one.

    Args:
        word: how this process is.
    """

    def __init__(self, word: str = JOINED) -> None:
        token, *places = os.environ.get(KEEPER, "").split() or [""]
        self._line: Line | None = None
        self._places = [(p.rpartition(":")[0], int(p.rpartition(":")[2])) for p in places]
        with contextlib.suppress(TransportError, ValueError):
            self._line = connect(self._places, bytes.fromhex(token), _PATIENCE) if token else None
            os.register_at_fork(after_in_child=self._forget)
            self.say(word)

    def say(self, word: str) -> None:
        """Say how this process is."""
        if self._line is not None:
            with contextlib.suppress(TransportError):
                self._line.send(word.encode())

    def is_cut(self, far: Collection[str] = ()) -> bool:
        """Whether the `meshard run` is out of reach, so that its job goes on without this process.

        Of the two sides of a cut link, the one with the `meshard run` may go on. It closes the line
        of no process that takes part; a host that was paused, or cut off for a while, finds it
        closed.

        Args:
            far: hosts that were found to be out of reach.
        """
        if self._line is None:
            return False
        self._line.poll()
        return self._line.closed or launcher()[0] in far

    def answers(self) -> bool:
        """Whether the `meshard run` can be reached now, whatever has become of the line to it."""
        for place in self._places:
            with contextlib.suppress(OSError), socket.create_connection(place, _ANSWER):
                return True
        return False

    def _forget(self) -> None:
        """Close this copy of the line, in a forked child: it must end with its owner."""
        if self._line is not None:
            self._line.close()
            self._line = None
