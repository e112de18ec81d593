"""`shard_map` where JAX had it first: `meshard.shard_map`, with its older argument names."""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.transforms.shard_map import shard_map as shard_map

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)
