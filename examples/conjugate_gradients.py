"""Conjugate gradients for Poisson's equation on a square, cut into strips of rows.

    python examples/conjugate_gradients.py

The operator is a stencil: a strip needs one row of each neighbour, which comes by `ppermute`. The
two scalar products of an iteration are each a `psum` of a single number. Everything stays in one
`while_loop`, which ends on all devices at the same step, since all see the same residual.
"""

import functools

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.sharding import PartitionSpec as P


def laplacian(strip):
    """Return the negative Laplacian of a strip; outside of the square all is zero."""
    last = lax.axis_size("rows") - 1
    above = lax.ppermute(strip[-1:], "rows", [(i, i + 1) for i in range(last)])
    below = lax.ppermute(strip[:1], "rows", [(i + 1, i) for i in range(last)])
    tall = mnp.concatenate([above, strip, below])
    wide = mnp.pad(strip, ((0, 0), (1, 1)))
    return 4 * strip - tall[:-2] - tall[2:] - wide[:, :-2] - wide[:, 2:]


def dot(a, b):
    """Return the scalar product over all strips."""
    return lax.psum((a * b).sum(), "rows")


def solve(source, mesh, tolerance):
    """Return what solves Poisson's equation, and the number of steps; `mesh` has the axis rows."""

    @functools.partial(meshard.shard_map, mesh=mesh, in_specs=P("rows"), out_specs=(P("rows"), P()))
    def run(source):
        def goes_on(state):
            return state[3] > tolerance**2

        def step(state):
            x, residual, direction, square, count = state
            image = laplacian(direction)
            length = square / dot(direction, image)
            x, residual = x + length * direction, residual - length * image
            new = dot(residual, residual)
            return x, residual, residual + new / square * direction, new, count + 1

        start = mnp.zeros_like(source), source, source, dot(source, source), 0
        x, *_, count = lax.while_loop(goes_on, step, start)
        return x, count

    return run(source)


def main():
    """Find the potential of two charges on 8 devices."""
    meshard.config.update("num_devices", 8 // meshard.process_count())
    mesh = meshard.make_mesh((8,), ("rows",))
    charges = np.zeros((32, 32))
    charges[10, 10], charges[22, 20] = 1.0, -1.0
    found, count = solve(charges, mesh, 1e-12)
    wide = np.pad(meshard.multihost_utils.process_allgather(found, tiled=True), 1)
    around = wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:]
    print("strip of one device:", found.addressable_shards[0].data.shape)
    print("steps:", int(count))
    print("differs from the charges by:", np.abs(4 * wide[1:-1, 1:-1] - around - charges).max())


if __name__ == "__main__":
    main()
