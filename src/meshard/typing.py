"""Names for the annotations of functions that take arrays, as ``jax.typing`` has them.

Functions take an `ArrayLike` and return an `Array`. For type checkers a value inside `jit` or
`shard_map` is an `Array`, too.
"""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.runtime.types import ArrayLike as ArrayLike, DTypeLike as DTypeLike

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)
