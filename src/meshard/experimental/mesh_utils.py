"""Arrangements of devices for meshes."""

from meshard.errors import suggesting as _suggesting
from meshard.runtime.devices import create_device_mesh, create_hybrid_device_mesh

__all__ = ["create_device_mesh", "create_hybrid_device_mesh"]

__getattr__ = _suggesting(__name__, __all__)
