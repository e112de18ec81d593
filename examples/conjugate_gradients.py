"""Conjugate gradients for Poisson's equation on a square, cut into strips of rows.

    python examples/conjugate_gradients.py

By hand the operator is a stencil: a strip needs one row of each neighbour, which comes by
`ppermute`. The two scalar products of an iteration are each a `psum` of a single number. Everything
stays in one `while_loop`, which ends on all devices at the same step, since all see the same
residual.

By `meshard.scipy` it is a sparse matrix whose strips the devices make themselves. It finds out once
which points each device needs of others, and passes the same rows.
"""

import functools

import numpy as np
import scipy.sparse

import meshard
import meshard.numpy as mnp
from meshard import debug, lax
from meshard.scipy.sparse import SparseRows
from meshard.scipy.sparse.linalg import cg
from meshard.sharding import NamedSharding
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


def matrix(size, sharding):
    """Return the negative Laplacian of a square as a sparse matrix; no process makes all of it."""

    def strip(rows):
        points = np.arange(rows.start, rows.stop)
        y, x = np.divmod(points, size)
        found = 4 * scipy.sparse.eye_array(len(points), size**2, k=rows.start, format="csr")
        for step, inside in ((-size, y > 0), (size, y < size - 1), (-1, x > 0), (1, x < size - 1)):
            at = np.flatnonzero(inside), points[inside] + step
            shape = len(points), size**2
            found -= scipy.sparse.csr_array((np.ones(len(at[0])), at), shape=shape)
        return found

    return SparseRows.from_callback((size**2, size**2), sharding, strip)


def by_matrix(source, mesh, tolerance):
    """Print how a matrix solves Poisson's equation, and what passes beside the least that can."""
    rows, size = NamedSharding(mesh, P("rows")), len(source)
    A, b = matrix(size, rows), meshard.device_put(source.reshape(-1), rows)
    with debug.ledger() as log:
        x, _ = cg(A, b, tol=0.0, atol=tolerance)
    products = [record for record in log.records if record.what == "sparse_times"]
    passed = sum(products[-1].received.values())
    cuts = mesh.shape["rows"] - 1
    residual = float(mnp.abs(b - A @ x).max())
    print(f"by a matrix: {len(products)} iterations, residual {residual:.1e}")
    print(f"bytes in a product: {passed:,}; two rows over each cut are {cuts * 2 * size * 8:,};")
    print(f"  gathering the vector would be {cuts * b.nbytes:,}")
    print(f"bytes in the whole solution: {log.total_bytes:,}")
    return x


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
    same = by_matrix(charges, mesh, 1e-12)
    print("the two differ by:", float(mnp.abs(same.reshape(32, 32) - found).max()))


if __name__ == "__main__":
    main()
