"""How arrays lie on devices: meshes, specs and shardings."""

from meshard.algebra.mesh import AxisType, Mesh
from meshard.algebra.sharding import BoxSharding, NamedSharding, Sharding, SingleDeviceSharding
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
