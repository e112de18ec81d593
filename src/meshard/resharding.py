"""Resharding: any layout to any other, what it would take, and the reference's names."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from meshard.algebra.attributes import absent as _absent
from meshard.compat.mesh_split import concatenate_by_mesh_axis, split_by_mesh_axis
from meshard.compat.reference_reshard import (
    find_intermediate_sharding,
    reshard_with_intermediate_sharding,
)
from meshard.errors import (
    DataLoss,
    NoIntermediateShardingError,
    NoIntermediateShardingNeededError,
    PlanError,
)
from meshard.plan.figures.bounds import Bounds, bounds_of
from meshard.plan.figures.presets import presets, topology
from meshard.plan.figures.simulate import Simulation
from meshard.plan.figures.topology import Level, Topology
from meshard.plan.plan import Plan
from meshard.plan.planner import PlanCache
from meshard.runtime.moving.ordering import best_device_order
from meshard.runtime.moving.plan_reshard import plan_cache, plan_reshard
from meshard.runtime.moving.reshard import reshard

__all__ = [
    "Bounds",
    "DataLoss",
    "Level",
    "NoIntermediateShardingError",
    "NoIntermediateShardingNeededError",
    "Plan",
    "PlanCache",
    "PlanError",
    "Simulation",
    "Topology",
    "best_device_order",
    "bounds_of",
    "concatenate_by_mesh_axis",
    "find_intermediate_sharding",
    "plan_cache",
    "plan_reshard",
    "presets",
    "reshard",
    "reshard_with_intermediate_sharding",
    "split_by_mesh_axis",
    "topology",
]

if not _TYPE_CHECKING:  # an editor sees only what is listed
    __getattr__ = _absent(__name__)
