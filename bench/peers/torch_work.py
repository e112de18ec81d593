"""What PyTorch's DTensor does of the rows between processes, over gloo: a job under mpiexec."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from bench.ranks_jobs import LEAF, LEAVES, SIDE, SMALL, Task

WORLD = MPI.COMM_WORLD
ME, COUNT = WORLD.Get_rank(), WORLD.Get_size()


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


os.environ.update(
    MASTER_ADDR="127.0.0.1",
    MASTER_PORT=str(WORLD.bcast(_free_port() if ME == 0 else 0)),
    RANK=str(ME),
    WORLD_SIZE=str(COUNT),
)
torch.set_num_threads(1)
dist.init_process_group("gloo")
LINE = init_device_mesh("cpu", (COUNT,))
SQUARE = init_device_mesh("cpu", (2, COUNT // 2))


def _value(side: int) -> np.ndarray:
    return np.arange(side * side, dtype=np.float32).reshape(side, side)


def _placed(whole: np.ndarray, mesh: Any, placements: list[Any]) -> DTensor:
    """The array, of which each process keeps its own part."""
    return distribute_tensor(torch.from_numpy(whole), mesh, placements, src_data_rank=None)


def _expected(whole: np.ndarray, mesh: Any, placements: list[Any]) -> np.ndarray:
    return _placed(whole, mesh, placements).to_local().numpy()


def _moved(mesh: Any, before: list[Any], after: list[Any]) -> Callable[[], Task]:
    def make() -> Task:
        whole = _value(SIDE)
        x = _placed(whole, mesh, before)
        expected = _expected(whole, mesh, after)
        return Task(lambda: x.redistribute(mesh, after), lambda y: (y.to_local().numpy(), expected))

    return make


def _tree() -> Task:
    wholes = [_value(LEAF) + i for i in range(LEAVES)]
    leaves = [_placed(w, LINE, [Shard(0)]) for w in wholes]
    expected = [_expected(w, LINE, [Shard(1)]) for w in wholes]
    return Task(
        lambda: [x.redistribute(LINE, [Shard(1)]) for x in leaves],
        lambda found: ([y.to_local().numpy() for y in found], expected),
    )


def _summed(shape: tuple[int, ...], often: int) -> Callable[[], Task]:
    def make() -> Task:
        mine = np.full(shape, float(ME + 1), np.float32)
        x = DTensor.from_local(torch.from_numpy(mine), LINE, [Partial()], run_check=False)
        expected = np.full(shape, COUNT * (COUNT + 1) / 2, np.float32)

        def call() -> Any:
            for _ in range(often):
                y = x.redistribute(LINE, [Replicate()])
            return y

        return Task(call, lambda y: (y.to_local().numpy(), expected), often)

    return make


def _tiny() -> Task:
    often = 500
    start = np.arange(8.0 * COUNT)
    x = _placed(start, LINE, [Shard(0)])

    def call() -> Any:
        for _ in range(often):
            y = x * 2
        return y

    expected = start[ME * 8 : ME * 8 + 8] * 2
    return Task(call, lambda y: (y.to_local().numpy(), expected), often)


def _one(make: Callable[[], Task]) -> Callable[[], Mapping[str, Callable[[], Task]]]:
    return lambda: {"torch": make}


ROWS = {
    "columns": _one(_moved(LINE, [Shard(0)], [Shard(1)])),
    "replicated": _one(_moved(LINE, [Shard(0)], [Replicate()])),
    "half": _one(_moved(SQUARE, [Shard(0), Shard(1)], [Shard(0), Replicate()])),
    "tiles": _one(_moved(SQUARE, [Shard(0), Shard(0)], [Shard(0), Shard(1)])),
    "tree": _one(_tree),
    "summed": _one(_summed((SIDE, SIDE), 1)),
    "allreduce": _one(_summed((SMALL,), 20)),
    "tiny": _one(_tiny),
}
