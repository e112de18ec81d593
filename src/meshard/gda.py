"""The global device array: one logical array as the shards of its devices, process by process.

JAX had it before its one Array type; ``x.to_array()`` and ``GlobalDeviceArray.from_array(x)`` go
between the two without copying.
"""

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
