"""`shard_map` where JAX had it first: `meshard.shard_map`, with its older argument names."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from meshard.algebra.attributes import absent as _absent
from meshard.transforms.shard_map import shard_map

__all__ = ["shard_map"]

if not _TYPE_CHECKING:  # an editor sees only what is listed
    __getattr__ = _absent(__name__)
