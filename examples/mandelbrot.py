"""The Mandelbrot set, in rows that do not divide: 59 rows on 8 devices.

    python examples/mandelbrot.py

A sharding with `uneven="balanced"` gives some devices eight rows and some seven, without padding.
The code is NumPy's, on one array. Each point is on its own, so that nothing moves at all, which the
ledger proves.
"""

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard.sharding import NamedSharding
from meshard.sharding import PartitionSpec as P

HEIGHT, WIDTH, STEPS = 59, 96, 40


def steps_to_escape(points):
    """Return for each point after how many steps it leaves the circle of radius 2."""
    z, count = mnp.zeros_like(points), mnp.zeros_like(points, dtype=int)
    for _ in range(STEPS):
        near = mnp.abs(z) <= 2
        z = mnp.where(near, z * z + points, z)
        count = count + near
    return count


def points():
    """Return the points of the complex plane."""
    y, x = np.linspace(-1.2, 1.2, HEIGHT), np.linspace(-2.2, 0.8, WIDTH)
    return x + 1j * y[:, None]


def main():
    """Count on 8 devices; draw the set with letters."""
    meshard.config.update("num_devices", 8 // meshard.process_count())
    mesh = meshard.make_mesh((8,), ("y",))
    plane = meshard.device_put(points(), NamedSharding(mesh, P("y"), uneven="balanced"))
    with meshard.debug.ledger() as log:
        found = meshard.jit(steps_to_escape)(plane)
    shapes = [shard.data.shape for shard in found.addressable_shards]
    print("rows of the devices:", *[height for height, _ in shapes])
    print("bytes that moved:", log.total_bytes)
    whole = meshard.multihost_utils.process_allgather(found, tiled=True)
    for row in whole[::4, ::2]:
        print("".join(" .:-=+*#%@"[min(int(n) // 4, 9)] for n in row).rstrip())


if __name__ == "__main__":
    main()
