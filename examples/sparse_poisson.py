"""Poisson's equation on a square, solved by conjugate gradients with a sparse matrix.

    python examples/sparse_poisson.py

Each process makes the rows of its own devices, and none has the whole matrix. The matrix finds out
once which points each device needs of others; each product then passes these and nothing else.
`conjugate_gradients.py` does the same with a stencil, by hand.
"""

import numpy as np
import scipy.sparse

import meshard
import meshard.numpy as mnp
from meshard import debug
from meshard.scipy.sparse import SparseRows
from meshard.scipy.sparse.linalg import cg
from meshard.sharding import NamedSharding
from meshard.sharding import PartitionSpec as P

SIZE = 32


def strip(rows):
    """Return some rows of the negative Laplacian of a square; outside of it all is zero."""
    points = np.arange(rows.start, rows.stop)
    shape, (y, x) = (len(points), SIZE**2), np.divmod(points, SIZE)
    found = 4 * scipy.sparse.eye_array(*shape, k=rows.start, format="csr")
    for step, inside in ((-SIZE, y > 0), (SIZE, y < SIZE - 1), (-1, x > 0), (1, x < SIZE - 1)):
        at = np.flatnonzero(inside), points[inside] + step
        found -= scipy.sparse.csr_array((np.ones(len(at[0])), at), shape=shape)
    return found


def solve(charges, rows):
    """Return the matrix, the potential of charges, and the ledger of how it was found."""
    matrix = SparseRows.from_callback((SIZE**2, SIZE**2), rows, strip)
    source = meshard.device_put(charges.reshape(-1), rows)
    with debug.ledger() as log:
        potential, _ = cg(matrix, source, tol=0.0, atol=1e-12)
    return matrix, source, potential, log


def main():
    """Find the potential of two charges on 8 devices."""
    meshard.config.update("num_devices", 8 // meshard.process_count())
    rows = NamedSharding(meshard.make_mesh((8,), ("rows",)), P("rows"))
    charges = np.zeros((SIZE, SIZE))
    charges[10, 10], charges[22, 20] = 1.0, -1.0
    matrix, source, potential, log = solve(charges, rows)
    products = [record for record in log.records if record.what == "sparse_times"]
    print(matrix)
    print("iterations:", len(products))
    print("largest residual:", float(mnp.abs(source - matrix @ potential).max()))
    print(f"bytes in a product: {sum(products[-1].received.values()):,}")
    print(f"  two lines of points over each cut: {7 * 2 * SIZE * source.dtype.itemsize:,}")
    print(f"  gathering the vector each time: {7 * source.nbytes:,}")
    print(f"bytes in all: {log.total_bytes:,}")


if __name__ == "__main__":
    main()
