"""Arrangements of devices for meshes."""

from meshard.runtime.devices import create_device_mesh, create_hybrid_device_mesh

__all__ = ["create_device_mesh", "create_hybrid_device_mesh"]
