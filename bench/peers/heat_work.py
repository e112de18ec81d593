"""What Heat does of the rows between processes: a job of 4 under mpiexec."""

from collections.abc import Callable, Mapping
from typing import Any

import heat
import numpy as np
import torch

from bench.ranks_jobs import LEAF, LEAVES, SIDE, SMALL, Task

COMM = heat.communication.get_comm()
ME, COUNT = COMM.rank, COMM.size
torch.set_num_threads(1)


def _value(side: int) -> np.ndarray:
    return np.arange(side * side, dtype=np.float32).reshape(side, side)


def _placed(whole: np.ndarray, split: int | None) -> Any:
    return heat.array(whole, split=split)


def _local(x: Any) -> np.ndarray:
    found: np.ndarray = x.larray.numpy()
    return found


def _moved(side: int, before: int, after: int | None) -> Callable[[], Task]:
    def make() -> Task:
        x = _placed(_value(side), before)
        expected = _local(_placed(_value(side), after))
        return Task(lambda: heat.resplit(x, after), lambda y: (_local(y), expected))

    return make


def _tree() -> Task:
    wholes = [_value(LEAF) + i for i in range(LEAVES)]
    leaves = [_placed(w, 0) for w in wholes]
    expected = [_local(_placed(w, 1)) for w in wholes]
    return Task(
        lambda: [heat.resplit(x, 1) for x in leaves], lambda y: ([*map(_local, y)], expected)
    )


def _summed(columns: int, rows: int, often: int) -> Callable[[], Task]:
    """One array for each process along the split dim, which is summed."""

    def make() -> Task:
        parts = np.stack([np.full((rows, columns), float(p + 1), np.float32) for p in range(COUNT)])
        x = heat.array(parts[ME : ME + 1], is_split=0)
        expected = parts.sum(axis=0)

        def call() -> Any:
            for _ in range(often):
                y = heat.sum(x, axis=0)
            return y

        return Task(call, lambda y: (_local(y), expected), often)

    return make


def _tiny() -> Task:
    often = 200
    start = np.arange(8.0 * COUNT)
    x = _placed(start, 0)

    def call() -> Any:
        for _ in range(often):
            y = x * 2
        return y

    return Task(call, lambda y: (_local(y), start[ME * 8 : ME * 8 + 8] * 2), often)


def _one(make: Callable[[], Task]) -> Callable[[], Mapping[str, Callable[[], Task]]]:
    return lambda: {"heat": make}


ROWS = {
    "columns": _one(_moved(SIDE, 0, 1)),
    "replicated": _one(_moved(SIDE, 0, None)),
    "tree": _one(_tree),
    "summed": _one(_summed(SIDE, SIDE, 1)),
    "allreduce": _one(_summed(SMALL, 1, 20)),
    "tiny": _one(_tiny),
}
