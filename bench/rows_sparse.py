"""Rows of sparse systems: products and conjugate gradients on a square grid, in float32.

SciPy has the matrix whole and on one thread. JAX is given its best form, a stencil, on arrays that
its 8 devices share: it has no sparse matrix that is split.
"""

import functools
import importlib
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from bench.by_hand import Array
from bench.claims import NUMPY, Faster
from bench.harness import Row
from bench.libraries import Library, Spec
from bench.limits import Need
from bench.row import ArrayRow, Program
from bench.rows_foundation import normal

SIDE = 512
ITERATIONS = 50
ROWS_OF: Spec = (("i", "j"),)


@functools.cache
def laplacian(side: int) -> Any:
    """The Laplacian of a square, as a sparse matrix."""
    line = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(side, side))
    one = scipy.sparse.eye_array(side)
    whole = scipy.sparse.kron(line, one) + scipy.sparse.kron(one, line)
    return whole.tocsr().astype(np.float32)


def _operator(library: Library) -> Any:
    """The Laplacian: of meshard a matrix that is split by rows, of JAX a stencil."""
    if library.root.__name__ == "meshard":
        sparse = importlib.import_module("meshard.scipy.sparse")
        return sparse.SparseRows.from_scipy(laplacian(SIDE), library.sharding(ROWS_OF))

    def stencil(v: Any) -> Any:
        x = library.numpy.pad(v.reshape(SIDE, SIDE), 1)
        rest = x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]
        return (4 * x[1:-1, 1:-1] - rest).reshape(-1)

    return stencil


def _product(library: Library) -> Program:
    own = _operator(library)
    return own if callable(own) else lambda v: own @ v


def _solver(library: Library) -> Program:
    linalg = importlib.import_module(f"{library.root.__name__}.scipy.sparse.linalg")
    own = _operator(library)

    def solve(b: Any) -> Any:
        return linalg.cg(own, b, tol=0.0, maxiter=ITERATIONS)[0]

    program: Program = library.root.jit(solve)
    return program


def _vector() -> tuple[Array]:
    return (normal(SIDE * SIDE),)


def _by_scipy(b: Array) -> Array:
    found, _ = scipy.sparse.linalg.cg(laplacian(SIDE), b, rtol=0.0, maxiter=ITERATIONS)
    return np.asarray(found, np.float32)


_MATRIX = 5 * SIDE * SIDE * 8
"""The bytes of the values and columns of the matrix."""
_VECTOR = SIDE * SIDE * 4

ROWS: tuple[Row, ...] = (
    ArrayRow(
        key="sparse-times",
        title=f"sparse matrix of a {SIDE}x{SIDE} grid @ vector",
        inputs=_vector,
        specs=(ROWS_OF,),
        program=_product,
        expected=lambda v: laplacian(SIDE) @ v,
        tolerance=1e-5,
        need=Need(bytes=_MATRIX + 2 * _VECTOR),
    ),
    ArrayRow(
        key="sparse-cg",
        title=f"{ITERATIONS} steps of cg on a {SIDE}x{SIDE} grid",
        claims=[Faster(0.5, than=NUMPY)],
        inputs=_vector,
        specs=(ROWS_OF,),
        program=_solver,
        expected=_by_scipy,
        tolerance=1e-3,
        plain=True,
        need=Need(bytes=ITERATIONS * (_MATRIX + 8 * _VECTOR)),
        notes={NUMPY: "scipy.sparse.linalg.cg on one array"},
    ),
)
