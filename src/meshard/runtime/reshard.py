"""Resharding of trees: plan it, or do it."""

from __future__ import annotations

from typing import Any

import numpy as np
import optree

from meshard.algebra.sharding import Sharding, SingleDeviceSharding
from meshard.errors import ArgumentError
from meshard.plan.reshard import Leaf, Plan

from .array import Array
from .make import device_put, prefix_leaves
from .place import as_host, as_sharding, home
from .structs import ShapeDtypeStruct
from .world import here

__all__ = ["plan_reshard", "reshard"]


def reshard(
    x: Any,
    sharding: Any,
    *,
    donate: bool = False,
    may_alias: bool | None = None,
    cache_resharding_plans: bool = False,
) -> Any:
    """Move a tree of arrays to other layouts.

    Args:
        x: a tree of arrays; other leaves are placed.
        sharding: a tree of shardings that is a prefix of ``x``.
        donate: delete the source arrays when all have been moved.
        may_alias: accepted as in the reference; blocks are immutable and shared where they can be.
        cache_resharding_plans: accepted as in the reference; plans are always kept and found again.

    Returns:
        The tree of moved arrays.

    Raises:
        ShardingError: if a leaf's shape cannot lie as asked; nothing has been deleted then.

    >>> import numpy as np, meshard
    >>> x = reshard(np.arange(4), meshard.devices()[0])
    >>> x.committed
    True
    """
    result = device_put(x, sharding)
    if donate:
        kept = {id(leaf) for leaf in optree.tree_leaves(result)}
        for leaf in optree.tree_leaves(x):
            if isinstance(leaf, Array) and id(leaf) not in kept:
                leaf._discard("donated to reshard")
    return result


def plan_reshard(x: Any, sharding: Any) -> Plan:
    """Return what moving a tree to other layouts would do, without moving anything.

    Args:
        x: a tree of arrays, values, or ShapeDtypeStructs that carry shardings.
        sharding: a tree of shardings that is a prefix of ``x``; devices need not exist.

    Raises:
        ArgumentError: if a ShapeDtypeStruct carries no sharding, or the target is None.

    >>> import numpy as np, meshard
    >>> plan_reshard(np.arange(4), meshard.devices()[0]).bytes_moved
    0
    """
    paths, leaves, _ = optree.tree_flatten_with_path(x)
    targets = prefix_leaves(sharding, x, "plan_reshard")
    found = []
    for path, leaf, given in zip(paths, leaves, targets, strict=True):
        target = as_sharding(given, "plan_reshard")
        name = ".".join(map(str, path)) or "x"
        if target is None:
            raise ArgumentError(f"plan_reshard: no sharding is given for {name}.")
        shape, dtype, source = _described(leaf, name)
        found.append(Leaf(name, source.layout(shape), target.layout(shape), dtype.itemsize))
    return Plan(found)


def _described(leaf: Any, name: str) -> tuple[tuple[int, ...], np.dtype[Any], Sharding]:
    if isinstance(leaf, (Array, ShapeDtypeStruct)):
        source = leaf.sharding
        if source is None:
            raise ArgumentError(f"plan_reshard: {name} is a {leaf!r} that carries no sharding.")
        return leaf.shape, leaf.dtype, source
    value = as_host(leaf, "plan_reshard")
    alone: SingleDeviceSharding = home(here())
    return value.shape, value.dtype, alone
