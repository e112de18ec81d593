"""Resharding: any layout to any other, what it would take, and the reference's names."""

from meshard.compat.reference_reshard import (
    find_intermediate_sharding,
    reshard_with_intermediate_sharding,
)
from meshard.compat.split_concatenate import concatenate_by_mesh_axis, split_by_mesh_axis
from meshard.errors import NoIntermediateShardingError, NoIntermediateShardingNeededError
from meshard.plan.reshard import Leaf, Plan
from meshard.runtime.reshard import plan_reshard, reshard

__all__ = [
    "Leaf",
    "NoIntermediateShardingError",
    "NoIntermediateShardingNeededError",
    "Plan",
    "concatenate_by_mesh_axis",
    "find_intermediate_sharding",
    "plan_reshard",
    "reshard",
    "reshard_with_intermediate_sharding",
    "split_by_mesh_axis",
]
