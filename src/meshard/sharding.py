"""How arrays lie on devices: meshes, specs and shardings."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from meshard.algebra.abstract import Sharding
from meshard.algebra.attributes import absent as _absent
from meshard.algebra.boxed import BoxSharding
from meshard.algebra.mesh import AxisType, Mesh
from meshard.algebra.sharding import NamedSharding, SingleDeviceSharding
from meshard.algebra.spec import P, PartitionSpec

__all__ = [
    "AxisType",
    "BoxSharding",
    "Mesh",
    "NamedSharding",
    "P",
    "PartitionSpec",
    "Sharding",
    "SingleDeviceSharding",
]

if not _TYPE_CHECKING:  # an editor sees only what is listed
    __getattr__ = _absent(__name__)
