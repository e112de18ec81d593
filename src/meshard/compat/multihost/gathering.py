"""What all processes have, on all of them or on one: `process_allgather` and its like.

In: a tree of global arrays, or of values of which each process has its own. Out: NumPy arrays. All
processes call these functions together, in the same order. Each first reports its arguments
(`survey`), so that a call that cannot succeed is refused on all of them, before anything moves.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshard.algebra.arguments import flag_of, shown
from meshard.algebra.device import Device
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import NamedSharding, SingleDeviceSharding
from meshard.algebra.spec import PartitionSpec
from meshard.compat.multihost.survey import Leaf, check_argument, surveyed
from meshard.errors import ArgumentError, ShardingError
from meshard.runtime.array.array import Array, to_numpy
from meshard.runtime.moving.place import placed
from meshard.runtime.trees.trees import unflatten
from meshard.runtime.types import Block
from meshard.runtime.world import RuntimeWorld, here


def process_allgather(in_tree: Any, tiled: bool = False) -> Any:
    """Return on every process the values of all processes, as NumPy arrays.

    For an array that spans processes the result is the whole array. For other values, of which each
    process has its own, it is all of them, in the order of the processes.

    Args:
        in_tree: a tree of arrays, NumPy arrays and numbers; each leaf must have one shape and dtype
            on all processes.
        tiled: how to combine leaves of which each process has its own: False stacks them along a
            new first dim, whose size is the number of processes; True joins them along the first
            dim. Numbers are always stacked, except in a program of one process, which gets them
            back, as in JAX.

    Returns:
        The tree of read-only NumPy arrays.

    Raises:
        TreeError: if the trees of the processes differ.
        ShapeError: if a leaf's shape or dtype differs between processes.
        ShardingError: if a leaf is global on some processes and local on others.
        DtypeError: if a leaf does not hold numbers.

    >>> import numpy as np, meshard
    >>> from meshard.multihost_utils import process_allgather
    >>> process_allgather(np.arange(3)).shape == (meshard.process_count(), 3)
    True
    """
    what, world = "process_allgather", here()
    peers = world.processes
    tiled = flag_of(tiled, what, "tiled")
    brought = surveyed(world, what, in_tree, peers, said=tiled)
    check_argument(what, "tiled", peers, brought.answers)
    results = [
        _fetched(world, leaf.value, what) if whole else _stacked(world, leaf, tiled, what)
        for leaf, whole in zip(brought.leaves, brought.whole, strict=True)
    ]
    return unflatten(brought.structure, results)


def broadcast_one_to_all(in_tree: Any, is_source: bool | None = None) -> Any:
    """Return on every process the values of one process.

    Args:
        in_tree: a tree of arrays, NumPy arrays and numbers; each leaf must have one shape and dtype
            on all processes, but only the source's values count.
        is_source: whether this process is the source; exactly one must be. By default process 0
            is. A program of one process is always its own source.

    Returns:
        The tree of read-only NumPy arrays, the same bits on all processes.

    Raises:
        ArgumentError: if no process is the source, or several are.
        TreeError: if the trees of the processes differ.
        ShapeError: if a leaf's shape or dtype differs between processes.
        ShardingError: if a leaf spans processes, as it is then already the same on all of them.

    >>> from meshard.multihost_utils import broadcast_one_to_all
    >>> broadcast_one_to_all({"seed": 7})
    {'seed': array(7)}
    """
    what, world = "broadcast_one_to_all", here()
    peers = world.processes
    chosen = world.process_index == world.first
    if is_source is not None:
        chosen = flag_of(is_source, what, "is_source")
    brought = surveyed(world, what, in_tree, peers, said=chosen)
    for leaf, whole in zip(brought.leaves, brought.whole, strict=True):
        if whole:
            raise ShardingError(
                f"{what}: {leaf.name}, {leaf.kind}, is one array of processes {leaf.processes}, "
                "and no process has another value of it. Fetch it with process_allgather."
            )
    sources = [p for p, yes in zip(peers, brought.answers, strict=True) if yes]
    if world.process_count == 1:
        return unflatten(brought.structure, [_alone(leaf) for leaf in brought.leaves])
    if len(sources) != 1:
        said = f"processes {sources} all say" if sources else "no process says"
        raise ArgumentError(
            f"{what}: {said} is_source=True, but exactly one of the {len(peers)} "
            "processes must be the source."
        )
    origin = _one_of_each(world)[peers.index(sources[0])]
    results = []
    for leaf in brought.leaves:
        shape, dtype = leaf.value.shape, leaf.value.dtype
        kind = world.type_of(shape, dtype, SingleDeviceSharding(origin), True)
        mine = _alone(leaf) if chosen else None
        results.append(_fetched(world, Array(kind, (mine,)), what))
    return unflatten(brought.structure, results)


def gather(x: Any, root: int = 0) -> Any:
    """Return a global array as NumPy on one process; the others get None and receive nothing.

    Args:
        x: an array, or a tree of them. In a program of one process, any values.
        root: the process that gets the whole, the same number on all.

    Returns:
        On the root the tree of read-only NumPy arrays; elsewhere the tree with None for each leaf.

    Raises:
        ArgumentError: if there is no such process, or the processes name different ones.
        ShardingError: if a leaf is a value of which each process has its own.
        TreeError: if the trees of the processes differ.

    >>> import numpy as np, meshard
    >>> from meshard import NamedSharding
    >>> from meshard.multihost_utils import gather
    >>> mesh = meshard.make_mesh((len(meshard.devices()),), ("x",))
    >>> x = meshard.device_put(np.arange(mesh.size), NamedSharding(mesh, meshard.P("x")))
    >>> value = gather(x)
    >>> value is None or value.shape == x.shape
    True
    """
    what, world = "gather", here()
    try:
        target = operator.index(root)
    except TypeError:
        target = -1
    peers = world.processes
    brought = surveyed(world, what, x, peers, said=target)
    check_argument(what, "root", peers, brought.answers)
    if target not in peers:
        raise ArgumentError(
            f"{what}: root={shown(root)} is not the number of a process; there are "
            f"{len(peers)}, from {peers[0]} to {peers[-1]}."
        )
    for leaf, whole in zip(brought.leaves, brought.whole, strict=True):
        if not whole and world.process_count > 1:
            raise ShardingError(
                f"{what}: {leaf.name}, {leaf.kind}, is host-local: each process has its own, but "
                "a global array is needed. process_allgather(x) stacks them; "
                "host_local_array_to_global_array makes them one array."
            )
    if world.process_count == 1:
        return unflatten(brought.structure, [_alone(leaf) for leaf in brought.leaves])
    results: list[Block | None] = []
    for leaf in brought.leaves:
        array: Array = leaf.value
        device = _one_of_each(world, array.sharding.device_order)[peers.index(target)]
        moved = placed(array, SingleDeviceSharding(device), what=what)
        results.append(
            to_numpy(moved, "process_allgather") if target == world.process_index else None
        )
    return unflatten(brought.structure, results)


def _one_of_each(world: RuntimeWorld, preferred: Sequence[Device] = ()) -> list[Device]:
    """Return a device of each process: its first preferred one, or its first one."""
    first = {d.process_index: d for d in reversed((*preferred, *world.devices))}
    return [first[p] for p in world.processes]


def _fetched(world: RuntimeWorld, x: Array, what: str) -> Block:
    """Return the whole of an array on every process."""
    if x._type.layout.replicated and set(world.processes) == {
        d.process_index for d in x.sharding.device_order
    }:
        return to_numpy(x, "process_allgather")
    # One device of each process, since a process keeps replicas once; if possible one that has a
    # part of the array already.
    mesh = Mesh(_one_of_each(world, x.sharding.device_order), "processes")
    return to_numpy(placed(x, NamedSharding(mesh, PartitionSpec()), what=what), what)


def _stacked(world: RuntimeWorld, leaf: Leaf, tiled: bool, what: str) -> Block:
    """Return all processes' values of a leaf."""
    value = _alone(leaf)
    count = len(world.processes)
    if world.process_count == 1:
        return value if tiled else value[None]
    mesh = Mesh(_one_of_each(world), "processes")
    kind = world.type_of(
        (count, *value.shape), value.dtype, NamedSharding(mesh, PartitionSpec("processes")), True
    )
    blocks: list[Block | None] = [None] * count
    blocks[world.place] = value[None]
    found = _fetched(world, Array(kind, tuple(blocks)), what)
    if not tiled or not value.ndim:
        return found
    return found.reshape(count * value.shape[0], *value.shape[1:])


def _alone(leaf: Leaf) -> Block:
    """Return a value of this process alone, read-only, in memory that nothing else writes to."""
    if leaf.given:
        return to_numpy(leaf.value, "process_allgather")
    value = np.array(leaf.value)
    value.flags.writeable = False
    return value
