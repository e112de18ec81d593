"""The order of a mesh's devices in which the most data stays where it is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshard.algebra.arguments import shown
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import NamedSharding
from meshard.errors import ArgumentError
from meshard.plan.routes.device_order import best_device_order as best_layout
from meshard.runtime.array.array import Array
from meshard.runtime.moving.structs import ShapeDtypeStruct
from meshard.runtime.trees.trees import leaves as tree_leaves


def best_device_order(x: Any, sharding: NamedSharding) -> NamedSharding:
    """Return a sharding with its mesh's devices in the order in which the most bytes stay put.

    Which device gets which shard is chosen as a linear assignment; the shards do not change. The
    result never keeps less in place than the order given.

    Args:
        x: an array, a ShapeDtypeStruct with a sharding, or a tree of these; in a tree the leaf
            with the most bytes decides.
        sharding: where it is to go.

    Returns:
        A sharding over the same devices, axes and spec.

    Raises:
        ArgumentError: if ``sharding`` is not a NamedSharding, or nothing in ``x`` has a sharding.

    >>> import numpy as np, meshard
    >>> from meshard.resharding import best_device_order
    >>> meshard.config.update("num_devices", 8)
    >>> d, spec = meshard.devices(), meshard.P("i")
    >>> x = meshard.device_put(np.arange(8), meshard.NamedSharding(meshard.Mesh(d, "i"), spec))
    >>> back = meshard.NamedSharding(meshard.Mesh(d[::-1], "i"), spec)  # as if all were to move
    >>> meshard.plan_reshard(x, back).bytes_moved
    64
    >>> meshard.plan_reshard(x, best_device_order(x, back)).bytes_moved
    0
    """
    if not isinstance(sharding, NamedSharding):
        raise ArgumentError(
            f"best_device_order: sharding must be a NamedSharding, got {shown(sharding)} of type "
            f"{type(sharding).__name__}; the device order of others cannot be chosen."
        )
    leaves: list[Any] = [
        leaf
        for leaf in tree_leaves(x)
        if type(leaf) in (Array, ShapeDtypeStruct) and leaf.sharding is not None
    ]
    if not leaves:
        raise ArgumentError("best_device_order: x holds no array that has a sharding.")
    most = max(leaves, key=lambda leaf: math.prod(leaf.shape) * leaf.dtype.itemsize)
    shape = tuple(most.shape)
    mesh = sharding.mesh
    found = best_layout(most.sharding.layout(shape), sharding.layout(shape))
    # The tensor is the mesh's devices with its axes in another order: lead it back.
    axes = [a for dim in sharding.spec.axes(len(shape)) for a in dim]
    axes += [a for a in mesh.axis_names if a not in axes]
    ids = found.tensor.reshape([mesh.shape[a] for a in axes])
    ids = ids.transpose([axes.index(a) for a in mesh.axis_names])
    by_id = {d.id: d for d in mesh.flat_devices}
    devices = np.empty(ids.size, object)
    devices[:] = [by_id[i] for i in ids.ravel().tolist()]
    order = Mesh(devices.reshape(ids.shape), mesh.axis_names, mesh.axis_types)
    return NamedSharding(
        order, sharding.spec, memory_kind=sharding.memory_kind, uneven=sharding.uneven
    )
