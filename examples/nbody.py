"""Bodies that attract each other: every pair meets while the blocks go around a ring.

    python examples/nbody.py

Each device keeps its own bodies, while a copy of their places and masses travels around the ring.
Before each step of the copy, a device adds up how those that are here attract its own bodies. All
pairs have met when the copy is back; no device ever holds more than two blocks.
"""

import functools

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.sharding import PartitionSpec as P

SOFT, STEP = 0.05, 0.01  # a distance that keeps forces finite; the time step


def pull(places, others, masses):
    """Return the accelerations of bodies at `places` towards others."""
    apart = others[None] - places[:, None]
    cube = ((apart**2).sum(axis=-1) + SOFT**2) ** 1.5
    return (apart * (masses / cube)[..., None]).sum(axis=1)


def accelerations(places, masses):
    """Return the accelerations of the bodies of one device, towards all."""
    size, total = lax.axis_size("i"), 0
    ring = [(i, (i + 1) % size) for i in range(size)]
    others = places, masses
    for step in range(size):
        others = lax.ppermute(others, "i", ring) if step else others
        total = total + pull(places, *others)
    return total


def simulate(places, speeds, masses, mesh, steps):
    """Return places and speeds after some steps; `mesh` has the axis i."""
    split = P("i")

    @functools.partial(
        meshard.shard_map, mesh=mesh, in_specs=(split,) * 3, out_specs=(split, split)
    )
    def run(places, speeds, masses):
        def step(_, state):
            places, speeds = state
            speeds = speeds + STEP * accelerations(places, masses)
            return places + STEP * speeds, speeds

        return lax.fori_loop(0, steps, step, (places, speeds))

    return run(places, speeds, masses)


def bodies(count=128):
    """Return the places, speeds and masses of a disc that turns."""
    random = np.random.default_rng(0)
    angle, radius = random.uniform(0, 2 * np.pi, count), random.uniform(0.2, 1, count)
    places = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return places, places[:, ::-1] * [-0.8, 0.8], np.full(count, 1 / count)


def main():
    """Let 128 bodies move for 50 steps on 8 devices."""
    meshard.config.update("num_devices", 8 // meshard.process_count())
    start, speeds, masses = bodies()
    places, moved = simulate(start, speeds, masses, meshard.make_mesh((8,), ("i",)), 50)
    print("bodies on each device:", places.addressable_shards[0].data.shape)
    print("mean distance from the middle:", round(float(mnp.linalg.norm(places, axis=1).mean()), 4))
    print("the sum of speeds differs by:", mnp.abs((moved - speeds).sum(axis=0)).max())


if __name__ == "__main__":
    main()
