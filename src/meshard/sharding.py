"""How arrays are laid out on devices: meshes, specs and shardings."""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.algebra.abstract import Sharding as Sharding
from meshard.algebra.boxed import BoxSharding as BoxSharding
from meshard.algebra.mesh import (
    AxisType as AxisType,
    Mesh as Mesh,
)
from meshard.algebra.sharding import (
    NamedSharding as NamedSharding,
    SingleDeviceSharding as SingleDeviceSharding,
)
from meshard.algebra.spec import (
    P as P,
    PartitionSpec as PartitionSpec,
)

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)
