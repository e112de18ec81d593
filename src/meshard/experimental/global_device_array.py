"""`meshard.gda`, where JAX had it."""

from meshard.compat.gda import GlobalDeviceArray
from meshard.compat.shard_places import (
    get_shard_indices,
    get_shard_indices_replica_ids,
    get_shard_shape,
)
from meshard.errors import suggesting as _suggesting
from meshard.runtime.array import Shard

__all__ = [
    "GlobalDeviceArray",
    "Shard",
    "get_shard_indices",
    "get_shard_indices_replica_ids",
    "get_shard_shape",
]

__getattr__ = _suggesting(__name__, __all__)
