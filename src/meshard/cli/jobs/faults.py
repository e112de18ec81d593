"""What a job does when processes or hosts fail: goes on with the others, or starts again.

In: the options of `meshard run`, and how each attempt has ended. Out: whether there is another one,
and on which hosts.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from meshard.cli.jobs.launcher import launch_agent
from meshard.cli.jobs.supervise import FUTILE, Outcome

RESTART = "MESHARD_RESTART"
"""The variable that holds the number of the attempt: 0 for the first."""
SPARES = "MESHARD_SPARES"
"""The variable that says how many processes, those with the highest numbers, wait."""
_ANSWER = 10.0
"""Seconds that a host has to answer, before a job is started again without it."""
_MANAGERS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")


@final
@dataclass(frozen=True)
class Faults:
    """What a job does when processes or hosts fail.

    Attributes:
        elastic: Whether processes go on when others die.
        spares: How many more processes are started, which wait.
        restarts: How often the job is started again after it has failed.
        hosts: The hosts on which to start processes, and how many each takes; empty for those that
            the launcher knows.
    """

    elastic: bool = False
    spares: int = 0
    restarts: int = 0
    hosts: tuple[tuple[str, int], ...] = ()

    @property
    def slots(self) -> int | None:
        """How many processes the hosts take; None if that is not known."""
        return sum(count for _, count in self.hosts) if self.hosts else None


@final
@dataclass(frozen=True)
class Attempt:
    """One start of a job.

    Attributes:
        number: 0 for the first.
        processes: How many processes take part.
        spares: How many more wait.
        hosts: Where they are.
    """

    number: int
    processes: int
    spares: int
    hosts: tuple[tuple[str, int], ...]

    @property
    def variables(self) -> dict[str, str]:
        """The variables that tell the processes about this start."""
        return {RESTART: str(self.number), **({SPARES: str(self.spares)} if self.spares else {})}


def attempts(processes: int, faults: Faults, start: Callable[[Attempt], Outcome]) -> int:
    """Start a job until it ends well, and return the exit code of the last attempt.

    The job is not started again if a signal has ended it, or if an error of the program itself has
    ended two attempts in a row, with one exit code, within seconds.

    Args:
        processes: How many processes take part.
        faults: What to do when they fail.
        start: Runs an attempt to its end.
    """
    hosts, before = faults.hosts, None
    for number in range(faults.restarts + 1):
        slots = sum(count for _, count in hosts) if faults.hosts else processes + faults.spares
        count = min(processes, slots)
        outcome = start(Attempt(number, count, min(faults.spares, slots - count), hosts))
        if outcome.code == 0 or outcome.was_told or number == faults.restarts:
            return outcome.code
        told = f"Attempt {number + 1} of {faults.restarts + 1} has ended with code {outcome.code}"
        if outcome.was_futile and before == outcome:
            _say(
                f"{told}, by an error of the program within {FUTILE:g} s, as the attempt before; "
                "the job is not started again."
            )
            return outcome.code
        before, hosts = outcome, answering(faults.hosts)
        if faults.hosts and not hosts:
            _say(f"{told}, and none of its hosts answers; the job is not started again.")
            return outcome.code
        lost = [name for name, _ in faults.hosts if name not in dict(hosts)]
        without = f" without {', '.join(lost)}, which did not answer" if lost else ""
        _say(f"{told}; the job is started again{without}.")
    raise AssertionError("the last attempt returns")


def answering(hosts: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Return the hosts that answer: those on which the launch agent can run a command."""
    if any(name in os.environ for name in _MANAGERS):  # it knows its hosts, and needs no agent
        return hosts
    agent = launch_agent(os.environ) or ["ssh"]
    asked = {
        name: subprocess.Popen(
            [*agent, name, "true"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name, _ in hosts
        if name not in ("localhost", socket.gethostname())
    }
    until = time.monotonic() + _ANSWER
    silent = set()
    for name, question in asked.items():
        try:
            if question.wait(max(0.0, until - time.monotonic())) != 0:
                silent.add(name)
        except subprocess.TimeoutExpired:
            question.kill()
            question.wait()
            silent.add(name)
    return tuple([host for host in hosts if host[0] not in silent])


def _say(text: str) -> None:
    sys.stderr.write(f"meshard run: {text}\n")
    sys.stderr.flush()
