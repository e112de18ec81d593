"""Products of matrices on grids of devices: in one, two and two and a half dims.

    python examples/summa.py

SUMMA multiplies panel by panel: the devices that hold a panel of `a` send it along their rows,
those that hold a panel of `b` along their columns, and each device adds the product to its own
tile. With several layers of devices each layer takes its share of every panel, and the layers' sums
are added at the end: more memory, fewer bytes (2.5D).
"""

import functools
import math

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.sharding import PartitionSpec as P


def send_from(owner, block, axis):
    """Return the block of one device along an axis, on all of them."""
    return lax.psum(mnp.where(lax.axis_index(axis) == owner, block, 0), axis)


def multiply(a, b):
    """Return the own tile of a product of tiles of `a` and `b`."""
    rows, columns, layers = (lax.axis_size(axis) for axis in ("y", "x", "layer"))
    panels = math.lcm(rows, columns)
    wide, high = panels // columns, panels // rows  # panels in a tile of a, of b
    width = a.shape[1] // wide
    share, total = width // layers, 0
    for panel in range(panels):
        left = panel % wide * width + lax.axis_index("layer") * share
        top = panel % high * width + lax.axis_index("layer") * share
        mine = lax.dynamic_slice_in_dim(a, left, share, axis=1)
        other = lax.dynamic_slice_in_dim(b, top, share, axis=0)
        total = total + send_from(panel // wide, mine, "x") @ send_from(panel // high, other, "y")
    return lax.psum(total, "layer")


def product(a, b, mesh):
    """Return `a @ b`; `mesh` has the axes layer, y and x."""
    spec = P("y", "x")
    run = functools.partial(meshard.shard_map, mesh=mesh, in_specs=(spec, spec), out_specs=spec)
    return run(multiply)(a, b)


def main():
    """Multiply on 8 devices, arranged in three ways."""
    meshard.config.update("num_devices", 8 // meshard.process_count())
    a, b = np.random.default_rng(0).normal(size=(2, 256, 256))
    for name, shape in {"1D": (1, 1, 8), "2D": (1, 2, 4), "2.5D": (2, 2, 2)}.items():
        with meshard.debug.ledger() as log:
            found = product(a, b, meshard.make_mesh(shape, ("layer", "y", "x")))
        tile = found.addressable_shards[0].data.shape
        print(f"{name:4} tiles of {tile}, {log.bytes_per_device:,} bytes to each device")
        print("     differs from NumPy by:", mnp.abs(found - a @ b).max())


if __name__ == "__main__":
    main()
