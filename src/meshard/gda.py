"""The global device array: one logical array as the shards of its devices, process by process.

JAX had it before its one Array type; ``x.to_array()`` and ``GlobalDeviceArray.from_array(x)`` go
between the two without copying.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from meshard.algebra.attributes import absent as _absent
from meshard.compat.gda.global_device_array import GlobalDeviceArray
from meshard.compat.gda.places import (
    get_shard_indices,
    get_shard_indices_replica_ids,
    get_shard_shape,
)
from meshard.runtime.array.array import Shard

__all__ = [
    "GlobalDeviceArray",
    "Shard",
    "get_shard_indices",
    "get_shard_indices_replica_ids",
    "get_shard_shape",
]

if not _TYPE_CHECKING:  # an editor sees only what is listed
    __getattr__ = _absent(__name__)
