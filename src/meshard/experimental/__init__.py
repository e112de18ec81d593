"""Names that JAX keeps, or kept, under ``jax.experimental``."""

from . import global_device_array, mesh_utils, multihost_utils, pjit, shard_map

__all__ = ["global_device_array", "mesh_utils", "multihost_utils", "pjit", "shard_map"]
