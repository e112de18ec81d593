"""Names that JAX keeps, or kept, under ``jax.experimental``."""

from . import mesh_utils, multihost_utils, shard_map

__all__ = ["mesh_utils", "multihost_utils", "shard_map"]
