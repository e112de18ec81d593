"""Names that JAX keeps, or kept, under ``jax.experimental``."""

from meshard.errors import suggesting as _suggesting

from . import global_device_array, mesh_utils, multihost_utils, pjit, shard_map

__all__ = ["global_device_array", "mesh_utils", "multihost_utils", "pjit", "shard_map"]

__getattr__ = _suggesting(__name__, __all__)
