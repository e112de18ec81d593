"""Host-local values and global arrays: conversion, gathering and checks.

>>> import meshard, numpy as np
>>> from meshard import multihost_utils
>>> from meshard.testing import simulate
>>> def program():
...     rank = meshard.process_index()
...     return (
...         multihost_utils.process_allgather(np.asarray(rank)).tolist(),
...         int(multihost_utils.broadcast_one_to_all(np.asarray(100 + rank))),
...     )
>>> simulate(2, 1, program)
[([0, 1], 100), ([0, 1], 100)]
"""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.compat.host_local import (
    global_to_local_shape as global_to_local_shape,
    local_to_global_shape as local_to_global_shape,
)
from meshard.compat.multihost import (
    broadcast_one_to_all as broadcast_one_to_all,
    gather as gather,
    process_allgather as process_allgather,
)
from meshard.compat.host_local import (
    global_array_to_host_local_array as global_array_to_host_local_array,
    host_local_array_to_global_array as host_local_array_to_global_array,
)
from meshard.compat.multihost import (
    assert_equal as assert_equal,
    sync_global_devices as sync_global_devices,
)

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)
