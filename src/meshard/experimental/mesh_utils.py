"""Arrangements of devices for meshes."""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.runtime.devices import (
    create_device_mesh as create_device_mesh,
    create_hybrid_device_mesh as create_hybrid_device_mesh,
)

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)
