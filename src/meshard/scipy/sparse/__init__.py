"""Sparse matrices that are split by rows over devices, and linear systems."""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.ops.sparse.matrix import SparseRows as SparseRows
from meshard.scipy.sparse import linalg as linalg

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)
