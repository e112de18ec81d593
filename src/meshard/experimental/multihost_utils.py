"""`meshard.multihost_utils`, where JAX has it."""

from meshard.compat.local_shapes import global_to_local_shape, local_to_global_shape
from meshard.compat.multihost import (
    broadcast_one_to_all,
    gather,
    global_array_to_host_local_array,
    host_local_array_to_global_array,
    process_allgather,
)
from meshard.compat.process_checks import assert_equal, sync_global_devices
from meshard.errors import suggesting as _suggesting

__all__ = [
    "assert_equal",
    "broadcast_one_to_all",
    "gather",
    "global_array_to_host_local_array",
    "global_to_local_shape",
    "host_local_array_to_global_array",
    "local_to_global_shape",
    "process_allgather",
    "sync_global_devices",
]

__getattr__ = _suggesting(__name__, __all__)
