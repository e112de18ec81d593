"""Rows of linear algebra on one large matrix that is split, in float32."""

from typing import Any

import numpy as np

from bench.by_hand import Array
from bench.claims import JAX_EAGER, JAX_JIT, NUMPY, Faster
from bench.harness import Row
from bench.libraries import Library
from bench.limits import Need
from bench.row import ArrayRow, Program
from bench.rows_foundation import BLAS_SETTLE, FLAT, normal

TALL, FEATURES, SIDE = 200_000, 64, 2048


def orthonormal(library: Library) -> Program:
    """The first factor of `qr`, which is split like the rows."""
    return lambda x: library.numpy.linalg.qr(x)[0]


def rotated(library: Library) -> Program:
    """The left vectors of the reduced `svd`."""
    return lambda x: library.numpy.linalg.svd(x, full_matrices=False)[0]


def spread(columns: int) -> Array:
    """A tall matrix whose singular values are far apart, so that vectors are settled."""
    return normal(TALL, columns) * np.linspace(1, 4, columns, dtype=np.float32)


def definite() -> Array:
    """A symmetric positive definite matrix."""
    x = normal(SIDE, SIDE)
    return x @ x.T / SIDE + np.eye(SIDE, dtype=np.float32)


TALL_MATRIX: dict[str, Any] = {
    "specs": (FLAT,),
    "layout": FLAT,
    "settle": BLAS_SETTLE,
    "risky": (JAX_EAGER, JAX_JIT),  # which take minutes on 8 devices of 2 cores
    "plain": True,
}

ROWS: tuple[Row, ...] = (
    ArrayRow(
        key="qr",
        title=f"qr of {TALL}x{FEATURES} P((i,j))",
        claims=[Faster(1.5, than=NUMPY)],
        inputs=lambda: (normal(TALL, FEATURES),),
        program=orthonormal,
        expected=lambda x: np.linalg.qr(x).Q,
        need=Need(bytes=8 * TALL * FEATURES, flops=4 * TALL * FEATURES**2),
        tolerance=1e-4,
        **TALL_MATRIX,
    ),
    ArrayRow(
        key="svd",
        title=f"reduced svd of {TALL}x16 P((i,j))",
        claims=[Faster(1.5, than=NUMPY)],
        inputs=lambda: (spread(16),),
        program=rotated,
        expected=lambda x: np.linalg.svd(x, full_matrices=False).U,
        need=Need(bytes=8 * TALL * 16, flops=6 * TALL * 16**2),
        tolerance=1e-3,
        **TALL_MATRIX,
    ),
    ArrayRow(
        key="cholesky",
        title=f"cholesky of {SIDE}x{SIDE} P((i,j))",
        claims=[Faster(0.25, than=NUMPY)],
        inputs=lambda: (definite(),),
        specs=(FLAT,),
        program=lambda library: library.numpy.linalg.cholesky,
        expected=np.linalg.cholesky,
        need=Need(bytes=8 * SIDE**2, flops=SIDE**3 / 3),
        tolerance=1e-3,
        settle=BLAS_SETTLE,
        plain=True,
    ),
)
