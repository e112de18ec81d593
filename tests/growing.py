"""A job that shrinks and grows again and again: 4 -> 3 -> 5 -> 2 -> 4 processes.

    python -m tests.growing [CYCLES] [MEGABYTES]

Processes are killed as by ``kill -9``, and started by hand to join. Two of them live from the first
cycle to the last: what is measured of them is how long they pause at each change, and their memory
as the kernel counts it. What moves is compared with the least that any plan could move.
"""

from __future__ import annotations

import json
import os
import selectors
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SIZES = (3, 5, 2, 4)
"""How many processes take part in the steps of a cycle."""
ROOT = Path(__file__).resolve().parents[1]
_PATIENCE = 60.0


def work() -> None:
    """Run as one process of the job: a step at each size, which waits until there are as many."""
    import meshard as ms
    from meshard import elastic

    steps, count = int(os.environ["GROWING_STEPS"]), int(os.environ["GROWING_SIZE"])
    holds_some = "MESHARD_JOIN" not in os.environ

    def tell(**said: Any) -> None:
        said |= {"index": ms.process_index(), "pid": os.getpid(), "count": ms.process_count()}
        print(json.dumps(said), flush=True)

    def rows() -> ms.NamedSharding:
        return ms.NamedSharding(elastic.mesh("data"), ms.P("data"), uneven="balanced")

    state: Any = {"w": ms.device_put(np.arange(float(count)), rows()), "step": 0}
    guard = elastic.protect(state)
    tell(began=True)
    paused = time.monotonic()
    while guard.tree["step"] < steps:
        with elastic.surviving() as block:
            state, entered = guard.tree, time.monotonic()
            if block.changed:
                bound = elastic.plan_restore(guard, rows()).bound if holds_some else None
                holds_some, planned = True, time.monotonic() - entered
                with ms.debug.ledger() as log:
                    state = elastic.restore(guard, rows())
                # What this measure itself plans does not count.
                pause = time.monotonic() - paused - planned
                parts = [entered - paused, planned, time.monotonic() - entered - planned]
                moved = [log.total_bytes, bound]
                guard.refresh(state)
                lost, joined = block.lost, block.joined
                tell(
                    step=state["step"],
                    pause=pause,
                    parts=parts,
                    moved=moved,
                    lost=lost,
                    joined=joined,
                )
            if ms.process_count() == SIZES[state["step"] % len(SIZES)]:
                new = {"w": state["w"] * 1.5 + state["step"], "step": state["step"] + 1}
                guard.refresh(new)
                tell(step=new["step"])
            else:
                time.sleep(0.005)
            paused = time.monotonic()
    final = ms.multihost_utils.process_allgather(guard.tree["w"], tiled=True)
    tell(same=bool(np.array_equal(final, undisturbed(count, steps))))


def undisturbed(count: int, steps: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return what the job computes, computed by NumPy."""
    w = np.arange(float(count))
    for step in range(steps):
        w = w * 1.5 + step
    return w


class Crowd:
    """Processes that form one job, and what they have said.

    Args:
        folder: where they find each other.
        program: the arguments of ``python``.
        more: variables of their environment.

    Attributes:
        said: what they have said, in the order in which it was read.
        living: the process of each number that was heard of and not killed.
    """

    def __init__(self, folder: Path, program: list[str], **more: str) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.said: list[dict[str, Any]] = []
        self.living: dict[int, int] = {}
        self.complaints: list[str] = []
        self._program = program
        self._env = os.environ | {"MESHARD_RENDEZVOUS": str(folder), **more}
        self._env |= {"MESHARD_NUM_DEVICES": "1", "MESHARD_TIMEOUT": "60"}
        self._started: list[subprocess.Popen[str]] = []
        self._reading = selectors.DefaultSelector()

    def start(self, *line: str, **more: str) -> subprocess.Popen[str]:
        """Start a process: ``python`` with the program, or with a line before it."""
        started = subprocess.Popen(
            [sys.executable, *line, *self._program],
            cwd=ROOT,
            env=self._env | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(started)
        for stream in (started.stdout, started.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._reading.register(stream, selectors.EVENT_READ, [stream is started.stdout, ""])
        return started

    def read(self, seconds: float) -> None:
        """Read what they say meanwhile."""
        for key, _ in self._reading.select(seconds):
            is_told, before = key.data
            text: str = key.fileobj.read()  # type: ignore[union-attr]
            if not text:
                self._reading.unregister(key.fileobj)
                continue
            *lines, key.data[1] = (before + text).split("\n")
            for line in lines:
                if is_told and line.startswith("{"):
                    self.said.append(json.loads(line))
                    self.living[self.said[-1]["index"]] = self.said[-1]["pid"]
                else:
                    self.complaints.append(line)

    def wait(self, met: Callable[[dict[str, Any]], bool], times: int = 1, since: int = 0) -> None:
        """Read until several have said something.

        Args:
            met: whether it is this.
            times: how often it is to be said.
            since: how much was said before.
        """
        until = time.monotonic() + _PATIENCE
        while sum(map(met, self.said[since:])) < times:
            late = time.monotonic() > until or any("Error" in line for line in self.complaints)
            assert not late, "\n".join([*map(str, self.said[-20:]), *self.complaints])
            self.read(0.1)

    def kill(self, index: int) -> None:
        """End a process as by ``kill -9``."""
        os.kill(self.living.pop(index), 9)

    def end(self) -> list[int]:
        """Return the exit codes of the processes, all of which end."""
        until = time.monotonic() + _PATIENCE
        while self._reading.get_map() and time.monotonic() < until:
            self.read(0.1)
        return [started.wait(10) for started in self._started]

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *raised: object) -> None:
        for started in self._started:
            if started.poll() is None:
                started.kill()
            started.communicate()


def memory_of(pid: int) -> int:
    """Return the memory of a process as the kernel counts it, its part of what is shared too."""
    told = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    return 1024 * int(told.split("Pss:")[1].split()[0])


def cycles(crowd: Crowd, number: int) -> Iterator[int]:
    """Take a job of four processes through cycles; yield the memory of two after each."""
    kept = sorted(crowd.living)[:2]
    count = 4
    for step in range(number * len(SIZES)):
        wanted = SIZES[step % len(SIZES)]
        while count > wanted:  # one at a time: there is one copy
            since = len(crowd.said)
            victim = next(p for p in sorted(crowd.living) if p not in kept)
            crowd.kill(victim)
            count -= 1
            crowd.wait(lambda one: bool(one.get("lost")), count, since)
        for _ in range(wanted - count):
            crowd.start(MESHARD_JOIN="growing")
        count, done = wanted, step + 1
        crowd.wait(lambda one, n=done: one.get("step") == n and "pause" not in one, count)
        if step % len(SIZES) == len(SIZES) - 1:
            yield sum(memory_of(crowd.living[p]) for p in kept)


def begin(crowd: Crowd, mpi: bool) -> None:
    """Start four processes: by MPI, or as one that three others join."""
    if mpi:
        line = ("-m", "meshard", "run", "-n", "4", "--elastic", "--joinable", "growing", "--")
        crowd.start(*line)
    else:
        crowd.start(MESHARD_JOB="growing")
        crowd.wait(lambda one: "began" in one)
        for _ in range(3):
            crowd.start(MESHARD_JOIN="growing")
    crowd.wait(lambda one: "began" in one, 4)


def main(number: int = 50, megabytes: float = 8.0) -> None:
    """Run some cycles and print what was measured."""
    import tempfile

    steps = number * len(SIZES)
    size = int(megabytes * 2**20 / 8)
    with tempfile.TemporaryDirectory() as folder:
        more = {"GROWING_STEPS": str(steps), "GROWING_SIZE": str(size)}
        program = ["-m", "tests.growing", "work"]
        with Crowd(Path(folder) / "found", program, **more) as crowd:
            begin(crowd, mpi=True)
            kept = sorted(crowd.living)[:2]
            used = []
            for cycle, memory in enumerate(cycles(crowd, number)):
                used.append(memory)
                if cycle % 10 == 0:
                    print(f"cycle {cycle}: {memory / 2**20:.1f} MiB in two processes", flush=True)
            codes = crowd.end()
    changes = [one for one in crowd.said if "pause" in one and one["index"] in kept]
    for what in ("lost", "joined"):
        pauses = sorted(one["pause"] for one in changes if one[what])
        print(
            f"pauses where some {what}: median {statistics.median(pauses):.3f} s, "
            f"p95 {pauses[int(0.95 * len(pauses))]:.3f} s, most {pauses[-1]:.3f} s"
        )
    moved, bound = (sum(one["moved"][i] for one in changes) for i in range(2))
    print(f"moved {moved / 2**20:.1f} MiB, {moved / bound:.4f} x the least")
    early, late = statistics.median(used[:10]), statistics.median(used[-10:])
    print(f"memory: {late / early:.4f} x that of the first cycles")
    same = [one["same"] for one in crowd.said if "same" in one]
    print(f"{sum(same)} of {len(same)} processes have the bits of an undisturbed run")
    if any(code not in (0, -9) for code in codes):
        print("\n".join(crowd.complaints[-30:]))


if __name__ == "__main__":
    if sys.argv[1:] == ["work"]:
        work()
    else:
        main(*[int(sys.argv[1])] if sys.argv[1:] else [], *map(float, sys.argv[2:]))
