"""Systems of triangular and positive definite matrices, with SciPy's names.

>>> import meshard.numpy as mnp
>>> from meshard.scipy.linalg import cho_factor, cho_solve
>>> cho_solve(cho_factor(mnp.eye(3) * 4), mnp.ones(3)).tolist()
[0.25, 0.25, 0.25]
"""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.ops.linalg.factored import (
    cho_factor as cho_factor,
)
from meshard.ops.linalg.factored import (
    cho_solve as cho_solve,
)
from meshard.ops.linalg.factored import (
    cholesky as cholesky,
)
from meshard.ops.linalg.factored import (
    solve_triangular as solve_triangular,
)

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)
