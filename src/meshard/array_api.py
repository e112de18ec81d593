"""What libraries that are written for the Array API need to know about meshard's arrays.

``x.__array_namespace__()`` is `meshard.numpy`, which keeps to the standard of 2025.12 and answers
for the older ones. SciPy and scikit-learn, and what is built on array-api-compat and
array-api-extra, work with that; `register` tells these two what they know of JAX's arrays.
"""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.compat.array_api import (
    is_meshard_array as is_meshard_array,
)
from meshard.compat.array_api import (
    is_meshard_namespace as is_meshard_namespace,
)
from meshard.compat.array_api import (
    register as register,
)

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)
