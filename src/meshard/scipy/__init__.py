"""Functions with the names of SciPy and of ``jax.scipy``, on arrays spread over devices."""

import typing as _typing

from meshard.algebra.attributes import door as _door

if _typing.TYPE_CHECKING:  # editors see only listed names
    from meshard.scipy import linalg as linalg
    from meshard.scipy import sparse as sparse
else:
    __all__, __dir__, __getattr__ = _door(
        __name__, late=("meshard.scipy.linalg", "meshard.scipy.sparse")
    )
