"""The peer of `bench.publish`: gather and broadcast over gloo, as PyTorch's users write it.

    PYTHON bench/publish_gloo.py LAYERS WIDTH     by a Python that has torch; prints seconds

Four processes hold float32 rows. Each tensor is gathered on the first, cast to bfloat16, and sent
to the two servers, which keep their parts.
"""

import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TRAINERS, SERVERS, ROUNDS = 4, 2, 6


def shapes(layers: int, width: int) -> list[tuple[int, int]]:
    big = width * 11 // 4
    one = [(width, width), (width // 4, width), (width // 4, width), (width, width)]
    return [*one, (big, width), (width, big)] * layers


def work(rank: int, file: str, layers: int, width: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=TRAINERS + SERVERS
    )
    trainers = dist.new_group(list(range(TRAINERS)))
    takers = dist.new_group([0, *range(TRAINERS, TRAINERS + SERVERS)])
    tensors = shapes(layers, width)
    mine = [torch.ones(r // TRAINERS, c) for r, c in tensors] if rank < TRAINERS else []
    kept = [torch.empty(r // SERVERS, c, dtype=torch.bfloat16) for r, c in tensors]
    seconds = []
    for _ in range(ROUNDS):
        dist.barrier()
        begun = time.perf_counter()
        for number, (rows, columns) in enumerate(tensors):
            whole = torch.empty(rows, columns, dtype=torch.bfloat16)
            if rank < TRAINERS:
                parts = (
                    [torch.empty_like(mine[number]) for _ in range(TRAINERS)] if not rank else None
                )
                dist.gather(mine[number], parts, dst=0, group=trainers)
                if parts is not None:
                    whole.copy_(torch.cat(parts))
            if rank == 0 or rank >= TRAINERS:
                dist.broadcast(whole, src=0, group=takers)
            if rank >= TRAINERS:
                share = rows // SERVERS
                kept[number].copy_(whole[(rank - TRAINERS) * share :][:share])
        dist.barrier()
        seconds.append(time.perf_counter() - begun)
    if not rank:
        print(statistics.median(seconds[1:]))
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(
            work,
            (os.path.join(folder, "meeting"), int(sys.argv[1]), int(sys.argv[2])),
            TRAINERS + SERVERS,
        )
