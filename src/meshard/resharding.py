"""Moving arrays between any layouts, and plans that say beforehand what that costs.

>>> import meshard, meshard.numpy as mnp
>>> from meshard import NamedSharding, P
>>> meshard.config.update("num_devices", 8)
>>> mesh = meshard.make_mesh((4, 2), ("x", "y"))
>>> x = mnp.ones((8, 8), device=NamedSharding(mesh, P("x", "y")))
>>> plan = meshard.plan_reshard(x, NamedSharding(mesh, P("y", "x")))
>>> plan.bytes_moved == plan.lower_bound_bytes, plan.bytes_moved
(True, 384)
>>> plan.run(x).sharding.spec
P('y', 'x')

The names with ``intermediate`` follow the rules of another library, the reference.
"""

import typing as _typing

from meshard.algebra.attributes import door as _door
from meshard.compat.reference_reshard import (
    find_intermediate_sharding as find_intermediate_sharding,
    reshard_with_intermediate_sharding as reshard_with_intermediate_sharding,
)
from meshard.compat.mesh_split import (
    concatenate_by_mesh_axis as concatenate_by_mesh_axis,
    split_by_mesh_axis as split_by_mesh_axis,
)
from meshard.errors import (
    DataLoss as DataLoss,
    NoIntermediateShardingError as NoIntermediateShardingError,
    NoIntermediateShardingNeededError as NoIntermediateShardingNeededError,
    PlanError as PlanError,
)
from meshard.plan.figures.bounds import (
    Bounds as Bounds,
    bounds_of as bounds_of,
)
from meshard.plan.figures.topology import (
    presets as presets,
    topology as topology,
)
from meshard.plan.figures.simulate import Simulation as Simulation
from meshard.plan.figures.topology import (
    Level as Level,
    Topology as Topology,
)
from meshard.plan.plan import Plan as Plan
from meshard.plan.planner import PlanCache as PlanCache
from meshard.runtime.moving.plan_reshard import best_device_order as best_device_order
from meshard.runtime.moving.plan_reshard import (
    plan_cache as plan_cache,
    plan_reshard as plan_reshard,
)
from meshard.weights.moving import reshard_iter as reshard_iter
from meshard.weights.moving import reshard as reshard

if not _typing.TYPE_CHECKING:  # editors see only listed names
    __all__, __dir__, __getattr__ = _door(__name__)
