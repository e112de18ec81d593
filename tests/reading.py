"""What a job reads when it loads into another layout, counted by the kernel and at the transport.

`meshard run -n 4 --devices-per-process 2 tests/reading.py FOLDER FIRST LAST [SCALE]` saves and
loads pairs of random layouts; process 0 prints what was counted for each as a line of JSON.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

import meshard
from meshard import checkpoint
from meshard.runtime.world import RuntimeWorld, here
from meshard.sharding import Mesh, NamedSharding, P

DTYPES = (np.float32, np.float32, np.float16, np.int64, np.uint8)
SHAPES = ((8, 2), (4, 4), (2, 2, 4), (4, 2, 2), (2, 8), (16,), (8,), (4,))


def sharding(rng: np.random.Generator, shape: tuple[int, ...]) -> NamedSharding:
    """Return a random sharding of a shape: any mesh, split or replicated, even or not."""
    devices = meshard.devices()
    chosen = list(rng.permutation(len(devices)) if rng.random() < 0.3 else range(len(devices)))
    if rng.random() < 0.15:
        chosen = chosen[: len(chosen) // 2]
    grids = {2: [(2, 4), (4, 2), (8,), (2, 2, 2)], 1: [(4,), (2, 2)]}[len(chosen) // 4]
    grid = grids[rng.integers(len(grids))]
    mesh = Mesh(np.array([devices[i] for i in chosen]).reshape(grid), tuple("abc"[: len(grid)]))
    entries: list[Any] = [None] * len(shape)
    for axis in rng.permutation(list(mesh.axis_names)):
        dim = rng.integers(-1, len(shape))  # -1: replicated along it
        if dim >= 0:
            entries[dim] = (*(entries[dim] or ()), str(axis))
    kind = rng.integers(3)
    if kind < 2:
        return NamedSharding(mesh, P(*entries), uneven=("balanced", "ceil")[kind])
    cuts: list[Any] = []
    for size, axes in zip(shape, entries, strict=True):
        parts = math.prod([mesh.shape[a] for a in axes or ()])
        inner = sorted(rng.integers(0, size + 1, parts - 1).tolist())
        cuts.append((0, *inner, size) if axes else None)
    return NamedSharding(mesh, P(*entries), uneven=tuple(cuts))


def shapes(rng: np.random.Generator, scale: int) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Return the shapes and dtypes of a tree."""
    found = {}
    for k in range(rng.integers(5, 12)):
        ndim = int(rng.integers(1, 4))
        total = scale * float(rng.uniform(0.05, 1.0))
        rest = total
        shape = []
        for d in range(ndim):
            share = rest ** (1 / (ndim - d))
            shape.append(max(1, int(share * rng.uniform(0.5, 1.5))))
            rest /= shape[-1]
        found[f"t{k}"] = tuple(shape), DTYPES[rng.integers(len(DTYPES))]
    return found


def value(name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """Return the elements of a tensor."""
    rng = np.random.default_rng(sum(map(ord, name)))
    bits = rng.integers(0, 120, math.prod(shape), np.uint8)
    return bits.astype(dtype).reshape(shape)


def bytes_read() -> int:
    """Return what this process has read so far, as the kernel counts it."""
    text = Path("/proc/self/io").read_text()
    return int(text.split("rchar:")[1].split()[0])


class Counted:
    """Counts what passes the transport."""

    def __init__(self) -> None:
        self.objects, self.sent = 0, 0
        transport = here().transport
        gather, exchange = transport.all_gather, transport.exchange

        def all_gather(value: object, peers: Any) -> list[object]:
            self.objects += 1
            return gather(value, peers)

        def exchanged(sends: Any, receives: Any) -> None:
            self.sent += sum(b.nbytes for _, blocks in sends for b in blocks)
            exchange(sends, receives)

        transport.all_gather = all_gather  # type: ignore[method-assign]
        transport.exchange = exchanged  # type: ignore[method-assign]

    def taken(self) -> tuple[int, int]:
        """Return the objects and bytes since the last call."""
        found = self.objects, self.sent
        self.objects, self.sent = 0, 0
        return found


def pair(seed: int, folder: Path, counted: Counted, scale: int) -> dict[str, Any]:
    """Save in one layout, load into another; return what was counted here."""
    rng = np.random.default_rng(seed)
    tensors = shapes(rng, scale)
    values = {name: value(name, *told) for name, told in tensors.items()}
    before = {name: sharding(rng, told[0]) for name, told in tensors.items()}
    after = {name: sharding(rng, told[0]) for name, told in tensors.items()}
    tree = {name: meshard.device_put(x, before[name]) for name, x in values.items()}
    counted.taken()
    checkpoint.save(folder, tree)
    saved = counted.taken()
    del tree
    like = None
    if rng.random() < 0.3:
        names = sorted(tensors)[:: int(rng.integers(1, 4))]
        like = {
            n: meshard.ShapeDtypeStruct(tensors[n][0], tensors[n][1], sharding=after[n])
            for n in names
        }
        after = {n: after[n] for n in names}
    plan = checkpoint.plan_load(folder, None if like else after, like=like)
    planned = counted.taken()
    read = bytes_read()
    loaded = checkpoint.load(folder, None if like else after, like=like)
    read = bytes_read() - read
    moved = counted.taken()
    wrong = []
    for name, x in loaded.items():
        for shard in x.addressable_shards:
            if np.asarray(shard.data).tobytes() != values[name][shard.index].tobytes():
                wrong.append(name)
    return {
        "read": read,
        "wrong": wrong,
        "planned": list(planned),
        "saved": list(saved),
        "objects": moved[0],
        "sent": moved[1],
        "plan_read": plan.reading.bytes_read[meshard.process_index()],
        "plan_moved": plan.bytes_moved,
        "bound_moved": plan.lower_bound_bytes,
        "needed": sum([values[n].nbytes for n in loaded]),
        "smallest": min([values[n].nbytes for n in loaded]),
    }


def main(folder: str, first: int, last: int, scale: int = 1 << 20) -> None:
    """Go through some pairs."""
    counted, gather = Counted(), here().transport.all_gather
    everybody = range(meshard.process_count())
    place, hosts = Path(folder) / "saved", here().sharing
    for seed in range(first, last):
        shared = seed % 2 == 0  # whether neighbours lend each other what several of them hold
        RuntimeWorld.sharing = hosts if shared else None  # type: ignore[assignment]
        found: list[Any] = gather(pair(seed, place, counted, scale), everybody)
        if meshard.process_index() == 0:
            extra = sum(p.stat().st_size for p in place.iterdir() if p.is_file())
            line = {"seed": seed, "shared": shared, "manifest": extra, "processes": found}
            print(json.dumps(line), flush=True)
            shutil.rmtree(place)
        gather(None, everybody)


def check(line: dict[str, Any]) -> None:
    """Raise unless what a job has counted for a pair is within the bounds."""
    parts = line["processes"]
    needed, count = parts[0]["needed"], len(parts)
    read = [one["read"] for one in parts]
    moved = sum([one["sent"] for one in parts])
    assert not any(one["wrong"] for one in parts), "values are wrong"
    assert sum(read) <= 1.02 * needed + count * line["manifest"], "more is read than is needed"
    assert max(read) <= 1.15 * sum(read) / count, "one process reads more than the others"
    for one in parts:
        assert one["plan_read"] <= one["read"] <= 1.02 * one["plan_read"] + 2 * line["manifest"]
        assert one["planned"] == [0, 0], "planning sends messages"
        assert one["saved"] == [4, 0], "a save sends more than its two meetings"
        assert one["objects"] == 0, "a load sends objects"
    if line["shared"]:
        assert moved <= parts[0]["plan_moved"]
    else:
        assert moved == parts[0]["plan_moved"]


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
