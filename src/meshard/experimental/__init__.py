"""Names that JAX keeps, or kept, under ``jax.experimental``."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from meshard.algebra.attributes import absent as _absent
from meshard.experimental import global_device_array, mesh_utils, multihost_utils, pjit, shard_map

__all__ = ["global_device_array", "mesh_utils", "multihost_utils", "pjit", "shard_map"]

if not _TYPE_CHECKING:  # an editor sees only what is listed
    __getattr__ = _absent(__name__)
