"""`meshard.gda`, where JAX had it."""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.compat.global_device_array import GlobalDeviceArray as GlobalDeviceArray
from meshard.compat.global_device_array import (
    get_shard_indices as get_shard_indices,
    get_shard_indices_replica_ids as get_shard_indices_replica_ids,
    get_shard_shape as get_shard_shape,
)
from meshard.runtime.array.array import Shard as Shard

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)
