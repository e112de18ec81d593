"""Linear systems solved by repeated products, with the names of ``jax.scipy.sparse.linalg``.

An operator is a function, a matrix, or a `SparseRows`; vectors are trees of arrays, laid out in any
way. All of it runs at once, and in functions that `meshard.jit` traces.

>>> import meshard.numpy as mnp
>>> from meshard.scipy.sparse.linalg import cg
>>> cg(lambda x: 2 * x, mnp.asarray([2.0, 4.0]))[0].tolist()
[1.0, 2.0]
"""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.transforms.krylov import bicgstab as bicgstab
from meshard.transforms.krylov import cg as cg
from meshard.transforms.krylov import gmres as gmres

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)
