"""Trees as vectors.

>>> import meshard, meshard.numpy as mnp
>>> from meshard.flatten_util import ravel_pytree
>>> vector, unravel = ravel_pytree([mnp.arange(2), {"scale": 3.0}])
>>> vector.tolist(), unravel(vector)[0].dtype, unravel(2 * vector)[1]["scale"].item()
([0.0, 1.0, 3.0], dtype('int64'), 6.0)
"""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.ops.made.raveled import ravel_pytree as ravel_pytree

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)
