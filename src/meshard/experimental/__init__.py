"""Names that JAX keeps, or kept, under ``jax.experimental``."""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.experimental import (
    global_device_array as global_device_array,
    mesh_utils as mesh_utils,
    multihost_utils as multihost_utils,
    pjit as pjit,
    shard_map as shard_map,
)

if _typing.TYPE_CHECKING:  # editors see only listed names
    from meshard.transforms.callbacks.printing import io_callback as io_callback
else:
    __all__, __dir__, __getattr__ = _door(
        __name__, late=("meshard.transforms.callbacks.printing:io_callback",)
    )
