"""Linear algebra, with the names of NumPy and of the Array API standard."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from meshard.algebra.attributes import absent as _absent
from meshard.errors import LinAlgError
from meshard.ops.array.shape import matrix_transpose
from meshard.ops.linalg.contract import matmul, tensordot, vecdot
from meshard.ops.linalg.decompose import (
    EighResult,
    EigResult,
    QRResult,
    SlogdetResult,
    SVDResult,
    cholesky,
    det,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    inv,
    qr,
    slogdet,
    solve,
    svd,
    svdvals,
)
from meshard.ops.linalg.functions import (
    cond,
    diagonal,
    lstsq,
    matrix_power,
    matrix_rank,
    multi_dot,
    outer,
    pinv,
    trace,
)
from meshard.ops.linalg.norms import cross, matrix_norm, norm, vector_norm

__all__ = [
    "EigResult",
    "EighResult",
    "LinAlgError",
    "QRResult",
    "SVDResult",
    "SlogdetResult",
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "lstsq",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "multi_dot",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]

if not _TYPE_CHECKING:  # an editor sees only what is listed
    __getattr__ = _absent(__name__, reference="numpy.linalg")
