"""The price of an option by random paths: the same bits on any number of devices.

    python examples/monte_carlo.py

Random numbers are a function of a key and of an element's place in the whole array, so that each
device makes its own and a different mesh gives the same paths. The prices of an Asian option, which
depends on the mean of a path, need one communication: the sum of the devices' means.
"""

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import random
from meshard.sharding import NamedSharding
from meshard.sharding import PartitionSpec as P

START, STRIKE, RATE, SPREAD, DAYS = 100.0, 105.0, 0.02, 0.3, 64


def paths(count, sharding, seed=0):
    """Return the prices of a share on each day, in `count` ways that they may go."""
    noise = random.normal(random.key(seed), (count, DAYS), out_sharding=sharding)
    drift, spread = (RATE - SPREAD**2 / 2) / DAYS, SPREAD / DAYS**0.5
    return START * mnp.exp(mnp.cumsum(drift + spread * noise, axis=1))


def price(prices):
    """Return what the right to buy at the mean of a path is worth."""
    gains = mnp.maximum(prices.mean(axis=1) - STRIKE, 0)
    return float(mnp.exp(-RATE) * gains.mean())


def main():
    """Price an option with 8192 paths, on meshes of 1, 2 and 8 devices."""
    meshard.config.update("num_devices", 8 // meshard.process_count())
    devices = np.array(meshard.devices())
    found = {}
    for count in (1, 2, 8):
        if count % meshard.process_count() == 0 or count == 8:
            mesh = meshard.sharding.Mesh(devices[:count], ("path",))
            found[count] = paths(8192, NamedSharding(mesh, P("path")))
            print(f"{count} devices: {price(found[count]):.4f}")
    wholes = [meshard.multihost_utils.process_allgather(p, tiled=True) for p in found.values()]
    print("the paths have the same bits:", all((w == wholes[0]).all() for w in wholes))


if __name__ == "__main__":
    main()
