"""`meshard.multihost_utils`, where JAX has it."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from meshard.algebra.attributes import absent as _absent
from meshard.compat.multihost.checks import assert_equal, sync_global_devices
from meshard.compat.multihost.gathering import broadcast_one_to_all, gather, process_allgather
from meshard.compat.multihost.local_arrays import (
    global_array_to_host_local_array,
    host_local_array_to_global_array,
)
from meshard.compat.multihost.local_shapes import global_to_local_shape, local_to_global_shape

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

if not _TYPE_CHECKING:  # an editor sees only what is listed
    __getattr__ = _absent(__name__)
