"""`meshard.gda`, where JAX had it."""

from meshard.compat.gda import GlobalDeviceArray
from meshard.compat.shard_places import (
    get_shard_indices,
    get_shard_indices_replica_ids,
    get_shard_shape,
)
from meshard.runtime.array import Shard

__all__ = [
    "GlobalDeviceArray",
    "Shard",
    "get_shard_indices",
    "get_shard_indices_replica_ids",
    "get_shard_shape",
]
