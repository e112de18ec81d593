"""Collective matrix products: multiply one block while the next one is on its way.

    python examples/collective_matmul.py

A product of split matrices needs an `all_gather` before it or a `psum_scatter` after it. Either can
be cut into steps around a ring: each step multiplies what is here and passes one block on, so that
no device ever holds a whole operand. The plain forms stand beside them.
"""

import functools

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.sharding import PartitionSpec as P

ROWS, COLUMNS = P("i", None), P(None, "i")


def pass_on(block):
    """Return the block of the previous device on the ring."""
    size = lax.axis_size("i")
    return lax.ppermute(block, "i", [(j, (j + 1) % size) for j in range(size)])


def gather_then_multiply(x, w):
    """Bring all rows of `w` together, then multiply."""
    return x @ lax.all_gather(w, "i", tiled=True)


def multiply_while_gathering(x, w):
    """Multiply each block of rows of `w` with the columns of `x` that it meets, as it comes by."""
    here, size, width = lax.axis_index("i"), lax.axis_size("i"), w.shape[0]
    total = 0
    for step in range(size):
        w = pass_on(w) if step else w
        columns = lax.dynamic_slice_in_dim(x, (here - step) % size * width, width, axis=1)
        total = total + columns @ w
    return total


def multiply_then_scatter(x, w):
    """Multiply, then add up and keep the own rows of the sum."""
    return lax.psum_scatter(x @ w, "i", scatter_dimension=0, tiled=True)


def multiply_while_scattering(x, w):
    """Send partial sums around the ring; each device adds its part to the rows that come by."""
    here, size = lax.axis_index("i"), lax.axis_size("i")
    height, total = x.shape[0] // size, 0
    for step in range(1, size + 1):  # the own rows come last, with all other devices' parts
        rows = lax.dynamic_slice_in_dim(x, (here - step) % size * height, height, axis=0)
        total = (pass_on(total) if step > 1 else 0) + rows @ w
    return total


def product(body, x_spec, x, w, mesh):
    """Return `x @ w` by a body; `x` is split by `x_spec`, `w` and the result by rows."""
    run = functools.partial(meshard.shard_map, mesh=mesh, out_specs=ROWS)
    return run(body, in_specs=(x_spec, ROWS))(x, w)


def main():
    """Multiply both ways on a ring of 8 devices."""
    meshard.config.update("num_devices", 8 // meshard.process_count())
    mesh = meshard.make_mesh((8,), ("i",))
    x, w = np.random.default_rng(0).normal(size=(2, 512, 512))
    for body, spec in [(multiply_while_gathering, ROWS), (multiply_while_scattering, COLUMNS)]:
        found = product(body, spec, x, w, mesh)
        error = mnp.abs(found - x @ w).max()
        print(f"{body.__name__}: {found.sharding.spec}, differs from NumPy by {error:.1e}")


if __name__ == "__main__":
    main()
