"""How arrays are laid out on devices: meshes, specs and shardings.

A `Mesh` is a grid of devices whose directions, the axes, have names. A `PartitionSpec`, `P` for
short, says for each dim of an array which axes split it. A `NamedSharding` is both together, and
knows where every element of an array of any shape is.

>>> import meshard
>>> from meshard.sharding import Mesh, NamedSharding, P
>>> meshard.config.update("num_devices", 8)
>>> mesh = meshard.make_mesh((4, 2), ("x", "y"))
>>> tiles = NamedSharding(mesh, P("x", "y"))
>>> tiles.shard_shape((8, 6)), tiles.devices_indices_map((8, 6))[meshard.devices()[3]]
((2, 3), (slice(2, 4, None), slice(3, 6, None)))
"""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.algebra.abstract import Sharding as Sharding
from meshard.algebra.sharding import BoxSharding as BoxSharding
from meshard.algebra.mesh import (
    AbstractMesh as AbstractMesh,
    AxisType as AxisType,
    Mesh as Mesh,
    get_abstract_mesh as get_abstract_mesh,
    get_mesh as get_mesh,
    set_mesh as set_mesh,
    use_abstract_mesh as use_abstract_mesh,
)
from meshard.algebra.sharding import (
    NamedSharding as NamedSharding,
    SingleDeviceSharding as SingleDeviceSharding,
)
from meshard.algebra.spec import (
    P as P,
    PartitionSpec as PartitionSpec,
)

if _typing.TYPE_CHECKING:  # editors see only listed names
    from meshard.weights.moving import reshard as reshard
else:
    __all__, __dir__, __getattr__ = _door(__name__, late=("meshard.weights.moving:reshard",))
