"""`shard_map` where JAX had it first: `meshard.shard_map`, with its older argument names."""

from meshard.errors import suggesting as _suggesting
from meshard.transforms.shard_map import shard_map

__all__ = ["shard_map"]

__getattr__ = _suggesting(__name__, __all__)
