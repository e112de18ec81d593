"""The heat equation on a plate cut into tiles: each device exchanges edges with its neighbours.

    python examples/heat.py

`step` is the usual 5-point stencil on the tile of one device. What it needs from next door comes by
`ppermute`, one row or column per side; a device at the plate's edge has no neighbour there and
receives zeros, which is the cold surrounding.
"""

import functools

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.sharding import NamedSharding
from meshard.sharding import PartitionSpec as P

RATE = 0.2  # time step times conductivity over the square of the grid's width; stable up to 1/4


def from_before(edge, axis):
    """Return what the previous device along a mesh axis holds as `edge`."""
    return lax.ppermute(edge, axis, [(i, i + 1) for i in range(lax.axis_size(axis) - 1)])


def from_after(edge, axis):
    """Return what the next device along a mesh axis holds as `edge`."""
    return lax.ppermute(edge, axis, [(i + 1, i) for i in range(lax.axis_size(axis) - 1)])


def step(tile):
    """Return a tile one time step later."""
    above, below = from_before(tile[-1:], "y"), from_after(tile[:1], "y")
    left, right = from_before(tile[:, -1:], "x"), from_after(tile[:, :1], "x")
    rows = mnp.concatenate([above, tile, below], axis=0)
    columns = mnp.concatenate([left, tile, right], axis=1)
    around = rows[:-2] + rows[2:] + columns[:, :-2] + columns[:, 2:]
    return tile + RATE * (around - 4 * tile)


def diffuse(plate, mesh, steps):
    """Return the temperatures of a plate after some steps; `mesh` has the axes y and x."""

    @functools.partial(meshard.shard_map, mesh=mesh, in_specs=P("y", "x"), out_specs=P("y", "x"))
    def run(tile):
        return lax.fori_loop(0, steps, lambda _, t: step(t), tile)

    return run(plate)


def diffuse_numpy(plate, steps):
    """Compute the same on the whole plate."""
    for _ in range(steps):
        wide = np.pad(plate, 1)
        around = wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:]
        plate = plate + RATE * (around - 4 * plate)
    return plate


def main():
    """Let a hot square cool for 200 steps on 2 x 4 devices."""
    meshard.config.update("num_devices", 8 // meshard.process_count())
    mesh = meshard.make_mesh((2, 4), ("y", "x"))
    plate = np.zeros((64, 64))
    plate[24:40, 24:40] = 100.0
    found = diffuse(meshard.device_put(plate, NamedSharding(mesh, P("y", "x"))), mesh, 200)
    meshard.debug.visualize_array_sharding(found)
    print("tile of one device:", found.addressable_shards[0].data.shape)
    print("hottest point after 200 steps:", round(float(found.max()), 3))
    print("differs from plain NumPy by:", mnp.abs(found - diffuse_numpy(plate, 200)).max())


if __name__ == "__main__":
    main()
