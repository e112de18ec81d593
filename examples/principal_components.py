"""Principal components by subspace iteration: array code, no collectives by hand.

    python examples/principal_components.py

The samples are split over the devices, and the program says nothing of it: `x.T @ (x @ basis)` is a
product in which the split dim is summed over, so that the partial products are added up, and the
small results are the same everywhere. `jit` decides all this once; `explain` prints what it
decided.
"""

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.sharding import NamedSharding
from meshard.sharding import PartitionSpec as P


def components(x, basis, steps):
    """Return the directions in which centred samples vary most, and the variance along each."""

    def step(_, basis):
        return mnp.linalg.qr(x.T @ (x @ basis)).Q

    basis = lax.fori_loop(0, steps, step, basis)
    return basis, ((x @ basis) ** 2).mean(axis=0)


def samples(count=4096, features=16, seed=0):
    """Return samples that vary in three directions, with a little noise, and the variances."""
    random = np.random.default_rng(seed)
    directions = np.linalg.qr(random.normal(size=(features, 3))).Q.T
    x = random.normal(size=(count, 3)) * [5.0, 3.0, 2.0] @ directions
    x = x + 0.1 * random.normal(size=(count, features))
    x -= x.mean(axis=0)
    return x, np.linalg.svd(x, compute_uv=False)[:3] ** 2 / count


def start(features=16):
    """Return where the iteration begins."""
    return np.eye(features, 3) + 0.1


def main():
    """Find three components of 4096 samples on 8 devices."""
    meshard.config.update("num_devices", 8 // meshard.process_count())
    mesh = meshard.make_mesh((8,), ("data",))
    x, exact = samples()
    placed = meshard.device_put(x, NamedSharding(mesh, P("data")))
    found = meshard.jit(components, static_argnums=2)
    basis, variances = found(placed, start(), 50)
    print("samples on each device:", placed.addressable_shards[0].data.shape)
    print("components:", basis.shape, "by", basis.sharding.spec)
    print("variances:", np.round(variances, 3))
    print("differs from NumPy's by:", np.abs(np.asarray(variances) - exact).max())


if __name__ == "__main__":
    main()
