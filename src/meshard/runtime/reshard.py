"""Resharding of trees: plan it, or do it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import numpy as np
import optree

from meshard.algebra.boxed import BoxSharding
from meshard.algebra.sharding import NamedSharding, Sharding, SingleDeviceSharding
from meshard.errors import ArgumentError, ShapeError
from meshard.plan.parts import Part
from meshard.plan.planner import PlanCache, make_plan
from meshard.plan.reshard import Leaf, Plan, install_runner
from meshard.plan.topology import Topology

from .array import Array
from .make import prefix_leaves
from .moving import Progress, Tree, moved
from .place import as_host, as_sharding, home
from .same_values import check_same_values
from .structs import ShapeDtypeStruct
from .types import ArrayType, dtype_name
from .world import RuntimeWorld, here

__all__ = ["plan_cache", "plan_reshard", "reshard"]


def plan_cache() -> PlanCache:
    """Return the plans that this world has made: its statistics, size and contents.

    >>> plan_cache().clear()
    >>> plan_cache().statistics.hits
    0
    """
    world = here()
    found: PlanCache | None = world.plans
    if found is None:
        found = world.plans = PlanCache()
    return found


def reshard(
    x: Any,
    sharding: Any,
    *,
    donate: bool = False,
    may_alias: bool | None = None,
    cache_resharding_plans: bool = False,
    max_bytes: int | None = None,
    progress: Progress = None,
) -> Any:
    """Move a tree of arrays to other layouts, all of them together.

    Any layout goes to any other: the same, overlapping or other devices, other meshes, uneven cuts,
    other processes. What a device holds already is not moved.

    Args:
        x: a tree of arrays; other leaves are placed.
        sharding: a tree of shardings, devices, or specs where a mesh is set, that is a prefix of
            ``x``; None leaves a leaf where it is.
        donate: delete the source arrays. Where nobody else holds their memory it is given back as
            it is read, so that the two take little more than one.
        may_alias: accepted as in the reference; blocks are immutable and shared where they can be.
        cache_resharding_plans: accepted as in the reference; plans are always kept and found again.
        max_bytes: the most bytes that may be on their way from and to one process at once, besides
            source and destination; None for no limit. Within one process nothing is on its way.
        progress: called with the bytes that are done and the bytes in all; True shows a bar.

    Returns:
        The tree of moved arrays, committed.

    Raises:
        ShardingError: if a leaf's shape cannot lie as asked.
        UnequalError: if a leaf that is no array is to lie on devices of several processes, which
            give different ones.
        ArgumentError: if ``max_bytes`` does not hold a single row.
        TreeError: if ``sharding`` is no prefix of ``x``.
        DeletedArrayError: if an array was deleted.

    Whatever is refused is refused before anything has moved. After any failure the sources are
    intact, unless they were donated.

    >>> import numpy as np, meshard
    >>> x = reshard(np.arange(4), meshard.devices()[0])
    >>> x.committed
    True
    """
    if donate and may_alias:
        raise ArgumentError(
            "reshard: donate and may_alias are both True; a donated array is deleted, so that "
            "nothing can share its memory. Choose one."
        )
    tree = _tree_of(x)
    given = prefix_leaves(sharding, x, "reshard", "shardings")
    targets = [as_sharding(d, "reshard") for d in given]
    check_same_values(x, tree.leaves, targets, "reshard")
    routes = [None] * len(tree.leaves)
    return tree.rebuilt(
        moved(tree, targets, routes, donate, max_bytes, progress, _window_check(max_bytes))
    )


def _tree_of(x: Any, none_is_leaf: bool = True) -> Tree:
    """Return the leaves of a tree with their paths."""
    paths, leaves, structure = optree.tree_flatten_with_path(x, none_is_leaf=none_is_leaf)
    names = [".".join(map(str, path)) or "x" for path in paths]
    return Tree(leaves, names, partial(optree.tree_unflatten, structure))


def _window_check(window: int | None) -> Any:
    """Return what refuses a window that is too small for what is to be moved; None for no limit."""
    if window is None:
        return None
    return lambda world, parts, types: _check_window(world, parts, types, window)


def _check_window(
    world: RuntimeWorld, parts: Sequence[Part], types: Sequence[ArrayType], window: int
) -> None:
    """Refuse a window that does not hold one row of every box that is sent or received."""
    if window < 1:
        raise ArgumentError(f"reshard: max_bytes is a number of bytes from 1 on, not {window}.")
    quota = window // (2 * max(1, world.process_count - 1))
    for part, kind in zip(parts, types, strict=True):
        for message in (*part.sends, *part.receives):
            for copy in message.copies:
                row = int(np.prod(copy.shape[1:], dtype=np.int64)) * kind.dtype.itemsize
                if row > quota:
                    raise ArgumentError(
                        f"reshard: max_bytes={window} leaves {quota} bytes for each of "
                        f"{world.process_count - 1} peers in each direction, but one row of a box "
                        f"of {kind.str_short()} takes {row}. Give at least "
                        f"{row * 2 * max(1, world.process_count - 1)}."
                    )


def plan_reshard(
    x: Any,
    sharding: Any,
    *,
    max_bytes: int | None = None,
    donate: bool = False,
    alive: Collection[Any] | None = None,
    topology: Topology | None = None,
    split: bool = True,
) -> Plan:
    """Return what moving a tree to other layouts would do, without moving anything.

    Args:
        x: a tree of arrays, values, or ShapeDtypeStructs that carry shardings.
        sharding: a tree of shardings that is a prefix of ``x``; devices need not exist.
        max_bytes: the most extra memory on any device, in bytes; None for no limit.
        donate: whether the sources are given up as they are read.
        alive: the devices, or their ids, that still hold what they held; None for all.
        topology: what links cost; by default all devices are equally far from each other.
        split: whether a box may be cut between two senders.

    Raises:
        ArgumentError: if a ShapeDtypeStruct carries no sharding, or the target is None.
        DataLoss: if no living device holds a part that is needed; it lists the boxes.

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
        found.append(
            Leaf(
                name,
                source.layout(shape),
                target.layout(shape),
                dtype.itemsize,
                dtype_name(dtype),
                _written(source),
                _written(target),
                target,
            )
        )
    living = None if alive is None else sorted({d if isinstance(d, int) else d.id for d in alive})
    return make_plan(
        found,
        cache=plan_cache(),
        max_bytes=max_bytes,
        donate=donate,
        alive=living,
        topology=topology,
        split=split,
    )


def _written(sharding: Sharding) -> str:
    """Return how a table calls a sharding; nothing where only the layout says it."""
    if isinstance(sharding, NamedSharding):
        return repr(sharding.spec)
    if isinstance(sharding, SingleDeviceSharding):
        return f"device {sharding.device.id}"
    return ""


def _described(leaf: Any, name: str) -> tuple[tuple[int, ...], np.dtype[Any], Sharding]:
    if type(leaf) in (Array, ShapeDtypeStruct):
        source = leaf.sharding
        if source is None:
            raise ArgumentError(f"plan_reshard: {name} is a {leaf!r} that carries no sharding.")
        return leaf.shape, leaf.dtype, source
    value = as_host(leaf, "plan_reshard")
    alone: SingleDeviceSharding = home(here())
    return value.shape, value.dtype, alone


def _run(plan: Plan, x: Any) -> Any:
    """Move the arrays of a tree as a plan says."""
    world = here()
    by_id = {d.id: d for d in world.devices}
    tree = _tree_of(x, none_is_leaf=False)
    leaves = tree.leaves
    if len(leaves) != len(plan.leaves):
        raise ArgumentError(
            f"plan.run: the plan is for {len(plan.leaves)} arrays, but the tree has {len(leaves)}."
        )
    targets = []
    for leaf, value in zip(plan.leaves, leaves, strict=True):
        shape = tuple(np.shape(value)) if type(value) is not Array else value.shape
        if shape != leaf.source.shape:
            raise ShapeError(
                f"plan.run: the plan is for {leaf.name} of shape {leaf.source.shape}, but the "
                f"array has shape {shape}."
            )
        if type(value) is Array and value._type.layout != leaf.source:
            raise ArgumentError(
                f"plan.run: {leaf.name} does not lie as the plan says: it is {value.sharding!r}. "
                "Make a plan for how it lies, with plan_reshard."
            )
        layout = leaf.destination
        missing = sorted(layout.device_ids - by_id.keys())
        if missing:
            raise ArgumentError(
                f"plan.run: {leaf.name} is to lie on device {missing[0]}, which does not exist "
                f"here; there are {len(by_id)} devices."
            )
        if isinstance(leaf.sharding, Sharding):
            targets.append(leaf.sharding)
        else:
            order = [(d, i) for i in range(layout.piece_count) for d in layout.holders(i)]
            targets.append(BoxSharding(shape, {by_id[d]: layout.box(i) for d, i in order}))
    routes = [plan.routes[n] for n in plan.choice_of]
    check = _window_check(plan.max_bytes)
    return tree.rebuilt(moved(tree, targets, routes, plan.donate, plan.max_bytes, check=check))


install_runner(_run)
