"""Arrangements of devices for meshes."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from meshard.algebra.attributes import absent as _absent
from meshard.runtime.devices import create_device_mesh, create_hybrid_device_mesh

__all__ = ["create_device_mesh", "create_hybrid_device_mesh"]

if not _TYPE_CHECKING:  # an editor sees only what is listed
    __getattr__ = _absent(__name__)
