"""One process of a job of rows between processes: does what the parent asks, and says how long.

`mpiexec -n 4 python -m bench.ranks_job MODULE`, whose `ROWS` are the work. Process 0 reads one line
of JSON for each task and answers with one, after a mark, since libraries print too.
"""

import gc
import importlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from mpi4py import MPI

from bench.asked import MARK
from bench.harness import sentence
from bench.ranks_jobs import Task

WORLD = MPI.COMM_WORLD
ME = WORLD.Get_rank()
Rows = Mapping[str, Callable[[], Mapping[str, Callable[[], Task]]]]


def asked() -> dict[str, Any] | None:
    """The next request, in all processes; None at the end. Who waits takes no core."""
    line = np.zeros(512, np.uint8)
    if ME == 0:
        text = (sys.stdin.readline().strip() or "null").encode()
        line[: len(text)] = np.frombuffer(text, np.uint8)
    request = WORLD.Ibcast(line, 0)
    while not request.Test():
        time.sleep(1e-3)
    found: dict[str, Any] | None = json.loads(line.tobytes().rstrip(b"\0"))
    return found


def answer(**words: Any) -> None:
    if ME == 0:
        sys.stdout.write(f"{MARK}{json.dumps(words)}\n")
        sys.stdout.flush()


def agreed(error: str) -> str:
    """The first error of all processes, nothing if there is none."""
    return next((e for e in WORLD.allgather(error) if e), "")


def warmed(rows: Rows, tasks: dict[tuple[str, str], Task], key: tuple[str, str]) -> str:
    """Make a task, check its result, and run it twice; the first error of all processes."""
    error = ""
    try:
        tasks[key] = rows[key[0]]()[key[1]]()
        found, expected = tasks[key].found(tasks[key].call())
        for a, b in zip(
            *(x if isinstance(x, list) else [x] for x in (found, expected)), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=tasks[key].tolerance, atol=tasks[key].tolerance)
        for _ in range(2):
            tasks[key].call()
    except Exception as problem:
        error = sentence(problem)
    return agreed(error)


def sampled(task: Task) -> float:
    """The seconds of the slowest process for one piece of work."""
    gc.disable()
    WORLD.Barrier()
    start = time.perf_counter()
    result = task.call()
    seconds = time.perf_counter() - start
    slowest: float = WORLD.allreduce(seconds, MPI.MAX)
    del result
    gc.enable()
    return slowest / task.batch


def main() -> None:
    rows: Rows = importlib.import_module(sys.argv[1]).ROWS
    tasks: dict[tuple[str, str], Task] = {}
    while (request := asked()) is not None:
        key = (request["row"], request["peer"])
        if request["what"] == "warm":
            error = warmed(rows, tasks, key)
            answer(**({"error": error} if error else {}))
            if error:
                tasks.pop(key, None)
        elif request["what"] == "sample":
            answer(seconds=sampled(tasks[key]))
        else:
            tasks.pop(key, None)
            gc.collect()
            answer()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
