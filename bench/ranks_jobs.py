"""Jobs of several processes that rows between processes talk to, one for each kind, kept."""

import atexit
import functools
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any, Protocol

from meshard.cli.run import command, environment, find_mpiexec

PROCESSES = 4
SIDE = 4096
"""Rows and columns of a float32 array of 64 MB."""
LEAVES = 200
LEAF = 128
"""Rows and columns of a float32 array of 64 KB."""
MARK = "@@"
"""What an answer begins with, since libraries print too."""
PEERS = {
    "columns": ("meshard", "mpi datatypes", "mpi packed"),
    "replicated": ("meshard", "mpi allgather"),
    "half": ("meshard", "mpi allgather"),
    "tiles": ("meshard", "mpi datatypes"),
    "shifted": ("meshard", "mpi sendrecv"),
    "tree": ("meshard", "mpi packed"),
    "tree-put": ("meshard", "mpi packed"),
    "summed": ("meshard", "mpi allreduce"),
    "small-sums": ("meshard", "mpi allreduce"),
    "small-shifts": ("meshard", "mpi sendrecv"),
    "small-ops": ("meshard", "one process"),
    "gradients": ("meshard", "mpi allreduce"),
}
"""The peers of each row that run under mpiexec (`bench.ranks_work`)."""


class JobError(RuntimeError):
    """A job says that something is wrong, or has ended."""


class MpiJob:
    """Four processes under mpiexec; the first is asked, and answers."""

    def __init__(self, processes: int = PROCESSES) -> None:
        mpiexec = find_mpiexec()
        version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True).stdout
        settings = environment(os.environ, devices_per_process=1, timeout=60)
        line = command(
            mpiexec, version, ["-m", "bench.ranks_job"], processes=processes, settings=settings
        )
        self._process = subprocess.Popen(
            line, env=settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        atexit.register(self.end)

    def ask(self, **words: Any) -> dict[str, Any]:
        """Ask for something; wait for the answer."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(words) + "\n")
            process.stdin.flush()
        except OSError as error:
            raise JobError("the job of 4 processes has ended") from error
        for line in process.stdout:
            _, mark, text = line.rpartition(MARK)
            if mark:
                found: dict[str, Any] = json.loads(text)
                if "error" in found:
                    raise JobError(found["error"])
                return found
        raise JobError(f"the job of 4 processes has ended with {process.wait()}")

    def end(self) -> None:
        """Let the job end; end it if it does not."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()


class OwnJob:
    """Four processes that find each other by an address; each is asked, and answers."""

    def __init__(self, module: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        self._module = module
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", module, address, str(rank)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for rank in range(PROCESSES)
        ]
        atexit.register(self.end)

    def ask(self, **words: Any) -> dict[str, Any]:
        """Ask all for something; wait for all answers, and return the slowest's."""
        words["at"] = time.time() + 0.02
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(words) + "\n")
            process.stdin.flush()
        answers = [self._answer(process) for process in self._processes]
        errors = [a["error"] for a in answers if "error" in a]
        if errors:
            raise JobError(errors[0])
        return max(answers, key=lambda a: a.get("seconds", 0.0))

    def _answer(self, process: "subprocess.Popen[str]") -> dict[str, Any]:
        assert process.stdout is not None
        for line in process.stdout:
            _, mark, text = line.rpartition(MARK)
            if mark:
                found: dict[str, Any] = json.loads(text)
                return found
        raise JobError(f"a process of {self._module} has ended with {process.wait()}")

    def end(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()


class Job(Protocol):
    """Processes that can be asked to do something together."""

    def ask(self, **words: Any) -> dict[str, Any]:
        """Ask for something; wait for the answer."""


@functools.cache
def mpi_job() -> MpiJob:
    """The job of meshard and of mpi4py by hand."""
    return MpiJob()


@functools.cache
def own_job(module: str) -> OwnJob:
    """The job of another library."""
    return OwnJob(module)


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


if __name__ == "__main__":  # a look at some rows: python -m bench.ranks_jobs columns 15
    for row in sys.argv[1].split(","):
        peers = [RanksPeer(mpi_job(), row, name) for name in PEERS[row]]
        for peer in peers:
            peer.warm_up()
        times: dict[str, list[float]] = {p.peer: [] for p in peers}
        for _ in range(int(sys.argv[2])):
            for peer in peers:
                times[peer.peer].append(peer.sample())
        mpi_job().ask(what="drop", row="", peer="")
        print(row, {n: f"{sorted(t)[len(t) // 2] * 1e3:.4g} ms" for n, t in times.items()})
