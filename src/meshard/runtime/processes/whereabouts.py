"""Where processes are: host, number, and when they began, which no two processes share.

In: process numbers. Out: what the system says of them.
"""

from __future__ import annotations

import os
import socket
from functools import lru_cache

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
