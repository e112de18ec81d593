"""A soak: random operations and reshards between processes, each compared with NumPy.

`meshard run -n 4 -- -m tests.ranks.soak [steps] [seed]`. Every process draws the same steps. At the
end it says how much memory was used after a quarter of the steps and at most in the last quarter;
it fails where that has grown, or a file is left in /dev/shm.
"""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.resharding import plan_cache
from meshard.runtime.world import here
from meshard.sharding import Mesh, NamedSharding, P

SHAPES = ((24,), (8, 12), (480, 480), (4096, 16), (2, 3, 20_000), (64, 64), (1, 7), (400_000,))
MOST = 10
"""Arrays that are alive at once."""


class Soak:
    """The arrays that are alive, and what NumPy says that they hold."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        devices = meshard.devices()
        count = len(devices)
        order = np.array(devices, dtype=object)
        self.meshes = [
            Mesh(order, ("i",)),
            Mesh(order[::-1], ("i",)),
            Mesh(order.reshape(2, count // 2), ("i", "j")),
            Mesh(order.reshape(2, count // 2).T, ("i", "j")),
        ]
        self.subsets = [Mesh(order[: count // 2], ("i",)), Mesh(order[1:], ("i",))]
        self.alive: list[tuple[Any, np.ndarray]] = []
        self.kept: list[np.ndarray] = []
        self.steps: tuple[Callable[[], None], ...] = (
            *(self.place,) * 2,
            *(self.reshard,) * 4,
            *(self.reshard_tree, self.there_and_back, self.add, self.total, self.turned),
            *(self.cut, self.joined, self.psum, self.gathered, self.keep_a_view, self.drop),
        )

    def sharding(self, shape: tuple[int, ...], mesh: Mesh | None = None) -> NamedSharding:
        """Draw a sharding that fits a shape."""
        mesh = mesh or self.draw.choice(self.meshes)
        dims: list[Any] = [None] * len(shape)
        for axis in self.draw.sample(mesh.axis_names, self.draw.randint(0, len(mesh.axis_names))):
            fitting = [
                d for d, n in enumerate(shape) if dims[d] is None and n % mesh.shape[axis] == 0
            ]
            if fitting:
                dims[self.draw.choice(fitting)] = axis
        return NamedSharding(mesh, P(*dims))

    def one(self) -> tuple[Any, np.ndarray]:
        """Draw an array that is alive."""
        if not self.alive:
            self.place()
        return self.draw.choice(self.alive)

    def found(self, x: Any, value: np.ndarray) -> None:
        """Compare what this process holds of an array with its value, and keep it alive."""
        assert x.shape == value.shape, (x.shape, value.shape)
        for shard in x.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), value[shard.index])
        if value.ndim:  # there is little to be done with the others
            self.alive.append((x, value))
        while len(self.alive) > MOST:
            self.alive.pop(self.draw.randrange(len(self.alive)))

    def place(self) -> None:
        """Make an array from a value."""
        shape = self.draw.choice(SHAPES)
        value = np.random.default_rng(self.draw.randrange(1 << 30)).integers(0, 99, shape) * 1.0
        made = meshard.make_array_from_callback(shape, self.sharding(shape), lambda i: value[i])
        self.found(made, value)

    def reshard(self) -> None:
        """Move an array."""
        x, value = self.one()
        donate = self.draw.random() < 0.1
        if donate:
            self.alive = [a for a in self.alive if a[0] is not x]
        self.found(meshard.reshard(x, self.sharding(value.shape), donate=donate), value)

    def reshard_tree(self) -> None:
        """Move several arrays together, under a window or not."""
        some = [self.one() for _ in range(3)]
        window = self.draw.choice([None, 1 << 22])
        targets = [self.sharding(v.shape) for _, v in some]
        moved = meshard.reshard([x for x, _ in some], targets, max_bytes=window)
        for x, (_, value) in zip(moved, some, strict=True):
            self.found(x, value)

    def there_and_back(self) -> None:
        """Move an array to some of the processes, and back to all."""
        x, value = self.one()
        part = meshard.reshard(x, self.sharding(value.shape, self.draw.choice(self.subsets)))
        self.found(meshard.reshard(part, self.sharding(value.shape)), value)

    def add(self) -> None:
        """Add an array to another way that it lies."""
        x, value = self.one()
        mesh = x.sharding.mesh
        y = meshard.reshard(x, self.sharding(value.shape, mesh))
        self.found((x + y) % 97, (value + value) % 97)

    def total(self) -> None:
        """Sum an array over a dim."""
        x, value = self.one()
        dim = self.draw.randrange(value.ndim)
        self.found(mnp.sum(x, axis=dim) % 97, value.sum(axis=dim) % 97)

    def turned(self) -> None:
        """Turn an array's dims, or turn it round."""
        x, value = self.one()
        if self.draw.random() < 0.5:
            self.found(x.T, value.T)
        else:
            self.found(mnp.flip(x, 0), np.flip(value, 0))

    def cut(self) -> None:
        """Cut a piece out of an array."""
        x, value = self.one()
        n = value.shape[0]
        if n > 1:
            # Few different shapes, so that what is decided for each comes to an end.
            at = self.draw.choice([slice(n // 4, n), slice(0, n - n // 4)])
            self.found(x[at], value[at])

    def joined(self) -> None:
        """Join an array with itself, and bring it back to its size."""
        x, value = self.one()
        n = value.shape[0]
        self.found(mnp.concatenate([x, x])[n // 2 : n // 2 + n], np.roll(value, -(n // 2), 0))

    def spread(self) -> tuple[Any, np.ndarray, Mesh] | None:
        """Return an array that is split over a whole mesh of one axis along its first dim."""
        x, value = self.one()
        mesh = self.meshes[0]
        if value.shape[0] % mesh.size:
            return None
        return meshard.reshard(x, NamedSharding(mesh, P("i"))), value, mesh

    def psum(self) -> None:
        """Sum the parts of an array."""
        if (drawn := self.spread()) is None:
            return
        x, value, mesh = drawn
        body = meshard.shard_map(
            lambda v: lax.psum(v, "i") % 97, mesh=mesh, in_specs=P("i"), out_specs=P()
        )
        parts = value.reshape(mesh.size, -1, *value.shape[1:])
        self.found(body(x), parts.sum(axis=0) % 97)

    def gathered(self) -> None:
        """Gather the parts of an array."""
        if (drawn := self.spread()) is None:
            return
        x, value, mesh = drawn
        body = meshard.shard_map(
            lambda v: lax.all_gather_invariant(v, "i", tiled=True),
            mesh=mesh,
            in_specs=P("i"),
            out_specs=P(),
        )
        self.found(body(x), value)

    def keep_a_view(self) -> None:
        """Hold what a user may hold of an array, longer than the array."""
        x, _ = self.one()
        if x.addressable_shards:
            self.kept.append(np.asarray(x.addressable_shards[0].data)[..., :1])
        del self.kept[:-3]

    def drop(self) -> None:
        """Forget an array."""
        if self.alive:
            self.alive.pop(self.draw.randrange(len(self.alive)))


def memory() -> int:
    """Return the bytes of memory that this process takes, with its memory files.

    What it keeps for the next time is given up before, and only what would never come back counts.
    """
    world = here()
    world.forget()
    world._types.clear()
    plan_cache().clear()
    gc.collect()
    world.memory.trim()
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    anonymous = int(fields["RssAnon"].split()[0]) * 1024
    arena = world.memory.arena
    shared = 0
    if arena is not None:
        shared = os.stat(f"/proc/self/fd/{arena.handle[1]}").st_blocks * 512
    return anonymous + shared


def files() -> set[str]:
    """Return the names of the files in shared memory that are ours."""
    folder = Path("/dev/shm")
    found = {f.name for f in folder.iterdir()} if folder.exists() else set()
    # Open MPI names its own after the host, which the tests of several hosts name after meshard.
    return {name for name in found if "meshard" in name and not name.startswith("sm_segment")}


def main(steps: int = 10_000, seed: int = 0) -> None:
    """Run the soak."""
    soak = Soak(seed)
    early = late = 0
    for step in range(steps):
        soak.draw.choice(soak.steps)()
        if step % 100 == 0:
            used = memory()
            if step <= steps // 2:
                early = max(early, used)
            elif step >= 3 * steps // 4:
                late = max(late, used)
        if step and step % 1000 == 0 and meshard.process_index() == 0:
            sys.stdout.write(f"{step} steps, {memory() >> 20} MiB\n")
            sys.stdout.flush()
    me = meshard.process_index()
    sys.stdout.write(f"process {me}: {steps} steps, {early >> 20} MiB, then {late >> 20} MiB\n")
    sys.stdout.flush()
    assert late <= 1.1 * early + (32 << 20), f"memory has grown: {early} bytes, then {late}"
    assert not files(), f"left in shared memory: {files()}"
    meshard.distributed.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
