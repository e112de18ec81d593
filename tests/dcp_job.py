"""Ranks of torch that load folders that meshard has saved, and save folders for it.

`python -m tests.dcp_job FOLDER COUNT`, or a file of it, needs torch and not meshard. Each rank
loads `FOLDER/m0`, `m1`, ... as DTensors in some placements, compares them bit for bit, and saves
the same DTensors as `FOLDER/t0`, `t1`, ...
"""

from __future__ import annotations

import math
import multiprocessing
import sys
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

RANKS = 4


def values() -> dict[str, Any]:
    """Return the arrays: of many dtypes; of sizes that do not divide; one without elements."""

    def made(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return (np.arange(math.prod(shape)) % 100 + 1).reshape(shape).astype(dtype)

    return {
        "w": made((7, 5), "f4"),
        "layers": [made((13,), ml_dtypes.bfloat16), made((3, 2, 4), "i1")],
        "more": {"i": made((4, 6), "i8"), "u": made((5, 3), "u2"), "bool": made((9,), "?")},
        "scalar": np.array(2.5),
        "empty": np.zeros((0, 3), "f4"),
        "f8": made((6, 4), ml_dtypes.float8_e4m3fn),
        "c": made((5,), "c8") * np.complex64(1 - 2j),
        "h": made((2, 9), "f2"),
    }


def tensor(value: np.ndarray) -> Any:
    """Return an array as a tensor of the same bits."""
    import torch

    if value.dtype.name not in ("bfloat16", "float8_e4m3fn"):
        return torch.from_numpy(value.copy())
    bits = torch.from_numpy(value.view(f"i{value.dtype.itemsize}").copy())
    return bits.view(getattr(torch, value.dtype.name))


def bits(x: Any) -> bytes:
    """Return the bytes of a tensor's elements."""
    import torch

    return bytes(x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def spread(x: Any, meshes: list[Any], number: int) -> Any:
    """Return zeros like a tensor in the placements of a number."""
    import torch
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh = meshes[number % len(meshes)]
    kinds = [Replicate(), *map(Shard, range(x.ndim))]
    step = number // len(meshes)
    chosen = [kinds[(step + d * (1 + step // 4)) % len(kinds)] for d in range(mesh.ndim)]
    shape, _ = compute_local_shape_and_global_offset(x.shape, mesh, chosen)
    local = torch.zeros(shape, dtype=x.dtype)
    if x.ndim == 2 and number % 3 == 0:
        local = torch.zeros(shape[::-1], dtype=x.dtype).t()
    return DTensor.from_local(
        local, mesh, chosen, run_check=False, shape=x.shape, stride=x.stride()
    )


def part(x: Any, like: Any) -> Any:
    """Return what a rank holds of a tensor that is laid out like a DTensor."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, start = compute_local_shape_and_global_offset(x.shape, like.device_mesh, like.placements)
    return x[tuple(slice(a, a + n) for a, n in zip(start, shape, strict=True))]


def work(rank: int, folder: str, count: int) -> None:
    """Do what one rank does."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.utils import _pytree as pytree

    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS
    )
    meshes = [init_device_mesh("cpu", grid) for grid in ((RANKS,), (2, 2))]
    right = pytree.tree_map(tensor, values())
    for number in range(count):
        state = pytree.tree_map(lambda x, k=number: spread(x, meshes, k), right)
        plain = pytree.tree_map(lambda x: x.new_zeros(x.shape), right)
        dcp.load(plain, checkpoint_id=f"{folder}/m{number}")
        dcp.load(state, checkpoint_id=f"{folder}/m{number}")
        for x, y, z in zip(*map(pytree.tree_leaves, (right, plain, state)), strict=True):
            assert bits(y) == bits(x), number
            assert bits(z.to_local()) == bits(part(x, z)), number
        dcp.save({**state, "epoch": number}, checkpoint_id=f"{folder}/t{number}")
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks, and say how many folders were right."""
    folder, count = sys.argv[1], int(sys.argv[2])
    context = multiprocessing.get_context("fork")
    import torch.distributed.checkpoint  # once, before the ranks are forked
    import torch.distributed.tensor

    torch.set_num_threads(1)
    ranks = [context.Process(target=work, args=(r, folder, count)) for r in range(RANKS)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
    failed = [one.exitcode for one in ranks if one.exitcode]
    print(f"{len(list(Path(folder).glob('t*')))} folders, {len(failed)} ranks failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
