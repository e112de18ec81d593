"""DTensors from one layout to another, beside `DTensor.redistribute`, in the same four processes.

    PYTHON -m torch.distributed.run --nproc-per-node 4 -m bench.dtensors [MEGABYTES]

by a Python that has torch and meshard. The two take turns, over gloo; medians of the time until all
ranks are done. "near" is what `meshard.interop.torch.reshard` does on one host, "sent" what it does
between hosts; "arrays" goes by meshard's own transport, `to_meshard`, `meshard.reshard` and
`from_meshard`, whose replicas on a host share memory. Each result is compared bit by bit with what
PyTorch's own cutting gives.
"""

import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh
from torch.distributed.tensor.placement_types import _StridedShard as Strided

import meshard
import meshard.interop.torch as interop

ROUNDS = 7
R, S = Replicate(), Shard
PAIRS = [
    ("x", [S(0)], [S(1)]),
    ("x", [S(1)], [S(0)]),
    ("x", [S(0)], [R]),
    ("dp tp", [S(0), S(1)], [S(1), S(0)]),
    ("dp tp", [Strided(0, split_factor=2), S(0)], [R, S(0)]),
    ("dp tp", [S(0), R], [R, S(1)]),
]
# MiniLM-L6: 6 layers of 384, an inner width of 1536, 30522 words.
LAYER = [(384, 384)] * 4 + [(1536, 384), (384, 1536)] + [(384,)] * 9 + [(1536,)]
MINILM = [(30522, 384), (512, 384), (2, 384), (384,), (384,)] + LAYER * 6


def cut(full, mesh, placements):
    place = mesh.get_coordinate()
    for dim, placement in enumerate(placements):
        if not placement.is_replicate():
            parts = placement._split_tensor(full, mesh.size(dim), with_padding=False)[0]
            full = parts[place[dim]]
    return full.clone()


def made(full, mesh, placements):
    local = cut(full, mesh, placements)
    shape, stride = full.shape, full.stride()
    return DTensor.from_local(local, mesh, placements, shape=shape, stride=stride)


def seconds(ways):
    """The median time of each way, and what it gives; they take turns."""
    times, found = {name: [] for name in ways}, {}
    for number in range(ROUNDS):
        for name, run in ways.items():
            dist.barrier()
            begun = time.perf_counter()
            found[name] = run()
            dist.barrier()
            if number:
                times[name].append(time.perf_counter() - begun)
    return {name: statistics.median(each) for name, each in times.items()}, found


def told(name, times):
    if dist.get_rank() == 0:
        ratio = times["torch"] / times["near"], times["torch"] / times["sent"]
        print(
            f"{name:42} torch {times['torch'] * 1e3:7.1f} ms   near {times['near'] * 1e3:6.1f} ms "
            f"({ratio[0]:4.1f}x)   sent {times['sent'] * 1e3:6.1f} ms ({ratio[1]:4.1f}x)   arrays "
            f"{times['arrays'] * 1e3:6.1f} ms ({times['torch'] / times['arrays']:4.1f}x)",
            flush=True,
        )


def by_arrays(tensors, goals):
    wanted = [interop.to_sharding(*goal, x.shape) for x, goal in zip(tensors, goals, strict=True)]
    arrays = meshard.reshard(interop.to_meshard(tensors), wanted)
    return [interop.from_meshard(x, *goal) for x, goal in zip(arrays, goals, strict=True)]


def text(placements):
    return ", ".join(str(p) for p in placements)


def main(megabytes):
    dist.init_process_group("gloo")
    interop.initialize()
    torch.set_num_threads(1)
    meshes = {
        "x": init_device_mesh("cpu", (4,), mesh_dim_names=("x",)),
        "dp tp": init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")),
    }
    width = 4096
    full = torch.arange(megabytes * (1 << 18), dtype=torch.float32).reshape(-1, width)
    for names, before, after in PAIRS:
        mesh = meshes[names]
        x, wanted = made(full, mesh, before), cut(full, mesh, after)
        times, found = seconds(
            {
                "torch": lambda x=x, mesh=mesh, after=after: x.redistribute(mesh, after),
                "near": lambda x=x, mesh=mesh, after=after: interop.redistribute(x, mesh, after),
                "sent": lambda x=x, mesh=mesh, after=after: interop.reshard(
                    x, (mesh, after), near=False
                ),
                "arrays": lambda x=x, mesh=mesh, after=after: by_arrays([x], [(mesh, after)])[0],
            }
        )
        assert all(
            torch.equal(found[name].to_local(), wanted) for name in ("near", "sent", "arrays")
        )
        told(f"{text(before)} -> {text(after)}", times)
    one = meshes["x"]
    tree = [made(torch.randn(shape), one, [S(0)]) for shape in MINILM]
    goals = [(one, [S(1) if x.ndim > 1 else S(0)]) for x in tree]
    pairs = list(zip(tree, goals, strict=True))
    times, _ = seconds(
        {
            "torch": lambda: [x.redistribute(*goal) for x, goal in pairs],
            "near": lambda: interop.reshard(tree, goals),
            "sent": lambda: interop.reshard(tree, goals, near=False),
            "arrays": lambda: by_arrays(tree, goals),
        }
    )
    told(f"MiniLM, {len(tree)} tensors: S(0) -> S(1)", times)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 64)
