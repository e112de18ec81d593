"""How arrays lie on devices: meshes, specs and shardings."""

from meshard.algebra.mesh import AxisType, Mesh
from meshard.algebra.sharding import BoxSharding, NamedSharding, Sharding, SingleDeviceSharding
from meshard.algebra.spec import P, PartitionSpec
from meshard.errors import suggesting as _suggesting

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

__getattr__ = _suggesting(__name__, __all__)
