"""Linear algebra, with the names of NumPy and of the Array API standard."""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.errors import LinAlgError as LinAlgError
from meshard.ops.array.shape import matrix_transpose as matrix_transpose
from meshard.ops.linalg.contract import (
    matmul as matmul,
    tensordot as tensordot,
    vecdot as vecdot,
)
from meshard.ops.linalg.decompose import (
    EighResult as EighResult,
    EigResult as EigResult,
    QRResult as QRResult,
    SlogdetResult as SlogdetResult,
    SVDResult as SVDResult,
    cholesky as cholesky,
    det as det,
    eig as eig,
    eigh as eigh,
    eigvals as eigvals,
    eigvalsh as eigvalsh,
    inv as inv,
    qr as qr,
    slogdet as slogdet,
    solve as solve,
    svd as svd,
    svdvals as svdvals,
)
from meshard.ops.linalg.functions import (
    cond as cond,
    cross as cross,
    diagonal as diagonal,
    lstsq as lstsq,
    matrix_power as matrix_power,
    matrix_rank as matrix_rank,
    multi_dot as multi_dot,
    outer as outer,
    pinv as pinv,
    trace as trace,
)
from meshard.ops.linalg.products import (
    tensorinv as tensorinv,
    tensorsolve as tensorsolve,
)
from meshard.ops.linalg.norms import (
    matrix_norm as matrix_norm,
    norm as norm,
    vector_norm as vector_norm,
)

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__, reference="numpy.linalg")
