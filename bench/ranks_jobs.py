"""Jobs of several processes that rows between processes talk to, one for each kind, kept."""

import functools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from bench.asked import Asked, JobError
from meshard.cli.run import command, environment, find_mpiexec

PROCESSES = 4
SIDE = 4096
"""Rows and columns of a float32 array of 64 MB."""
LEAVES = 200
LEAF = 128
"""Rows and columns of a float32 array of 64 KB."""
SMALL = 256
"""Elements of a float32 array of 1 KB."""
CG_SIDE, CG_ITERATIONS = 128, 448
"""The grid of the linear system that conjugate gradients solve, and how often they go round."""
WORK = "bench.ranks_work"
"""The work by meshard and by hand with mpi4py; other libraries have modules of their own."""


@dataclass(frozen=True)
class Task:
    """One peer's work, in one process of a job.

    Attributes:
        call: the work, timed.
        found: what this process holds of the result, and what it should be.
        batch: how often the work is done in one call.
        tolerance: the relative error allowed.
    """

    call: Callable[[], Any]
    found: Callable[[Any], tuple[Any, Any]]
    batch: int = 1
    tolerance: float = 1e-5


class MpiJob:
    """Four processes under mpiexec; the first is asked, and answers."""

    def __init__(self, work: str = WORK, processes: int = PROCESSES) -> None:
        mpiexec = find_mpiexec()
        version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True).stdout
        settings = environment(os.environ, devices_per_process=1, timeout=60)
        arguments = ["-m", "bench.ranks_job", work]
        line = command(mpiexec, version, arguments, processes=processes, settings=settings)
        self._asked = Asked(line, f"the job of {processes} processes", settings)

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._asked.alive

    def ask(self, **words: Any) -> dict[str, Any]:
        """Ask for something; wait for the answer."""
        return self._asked.ask(**words)


class OwnJob:
    """Four processes that find each other by an address; each is asked, and answers."""

    def __init__(self, module: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._processes = [
            Asked(
                [sys.executable, "-m", module, f"127.0.0.1:{port}", str(rank)],
                f"a process of {module}",
            )
            for rank in range(PROCESSES)
        ]

    @property
    def alive(self) -> bool:
        """Whether all can be asked."""
        return all(process.alive for process in self._processes)

    def ask(self, **words: Any) -> dict[str, Any]:
        """Ask all for something; wait for all answers, and return the slowest's."""
        words["at"] = time.time() + 0.02
        answers, errors = [], []
        for process in self._processes:
            process.send(**words)
        for process in self._processes:
            try:
                answers.append(process.answer())
            except JobError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return max(answers, key=lambda a: a.get("seconds", 0.0))


class Job(Protocol):
    """Processes that can be asked to do something together."""

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""

    def ask(self, **words: Any) -> dict[str, Any]:
        """Ask for something; wait for the answer."""


@functools.cache
def _jobs() -> dict[str, Job]:
    """The jobs that there are, by what they work on."""
    return {}


def job(work: str = WORK, own: bool = False) -> Job:
    """The job of a module: under mpiexec, or processes that find each other; anew if it ended."""
    jobs = _jobs()
    if work not in jobs or not jobs[work].alive:
        jobs[work] = OwnJob(work) if own else MpiJob(work)
    return jobs[work]


@dataclass(frozen=True)
class RanksPeer:
    """One way to do a row's work, in a job."""

    job: Job
    row: str
    peer: str

    def warm_up(self) -> None:
        """Make the operands, and check the result in all processes."""
        self.job.ask(what="warm", row=self.row, peer=self.peer)

    def sample(self) -> float:
        """Seconds of the slowest process."""
        seconds: float = self.job.ask(what="sample", row=self.row, peer=self.peer)["seconds"]
        return seconds

    def end(self) -> None:
        """Let go of the operands."""
        if self.job.alive:
            self.job.ask(what="drop", row=self.row, peer=self.peer)
