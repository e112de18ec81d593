"""Four ranks, of which one ends while tensors move; the others write what they raise.

PYTHON -m tests.torch_death_job RANK FOLDER near|send
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard, init_device_mesh

import meshard.interop.torch as interop
from meshard.errors import ProcessLostError
from meshard.interop.tensors import moving

DYING = 2


def main(rank, folder, way):
    limit = timedelta(seconds=30)
    place = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=4, timeout=limit)
    mesh = init_device_mesh("cpu", (4,))
    x = DTensor.from_local(torch.full((64, 512), float(rank)), mesh, [Shard(0)])
    options = {"near": None if way == "near" else False, "donate": True}
    y = interop.reshard({"x": x.detach().clone()}, (mesh, [Shard(1)]), **options)["x"]
    kept = y.to_local().clone()
    if rank == DYING:
        moving.Mover._copied = lambda *args: os._exit(1)
    told = "nothing was raised"
    begun = time.monotonic()
    try:
        interop.reshard({"y": y}, (mesh, [Shard(0)]), near=options["near"])
    except ProcessLostError as error:
        intact = torch.equal(y.to_local(), kept)
        told = f"{error.processes} {intact} {time.monotonic() - begun < 20} {error}"
    Path(folder, f"told{rank}").write_text(told)
    while len(list(Path(folder).glob("told*"))) < 3:  # who ends first would be named as well
        time.sleep(0.01)
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
