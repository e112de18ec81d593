"""Planning the reshard of a tree, and running a plan.

Resharding of trees: the way from the public function's arguments to a move.

The order of a mesh's devices in which the most data stays where it is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import optree

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import flag_of, shown
from meshard.algebra.device import Device
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import BoxSharding, NamedSharding, SingleDeviceSharding
from meshard.errors import ArgumentError, DtypeError, ShapeError, TreeError
from meshard.plan.figures.choice import PlanLeaf
from meshard.plan.figures.footprint import check_window, checked_window
from meshard.plan.figures.topology import Topology
from meshard.plan.plan import Plan, install_runner
from meshard.plan.planner import PlanCache, PlanOptions, make_plan
from meshard.plan.routes.device_order import best_device_order as best_layout
from meshard.plan.show.progress import Progress, checked_progress
from meshard.plan.views.words import array_text, layout_text
from meshard.runtime.agree import alive_ids, living_ids
from meshard.runtime.array.array import Array
from meshard.runtime.moving.make import prefix_leaves
from meshard.runtime.moving.moved import Tree, leaf_names, moved
from meshard.runtime.moving.place import as_host, as_sharding, home
from meshard.runtime.moving.same_values import check_same_values
from meshard.runtime.moving.structs import ShapeDtypeStruct
from meshard.runtime.trees.trees import flatten_with_accessors, flatten_with_none
from meshard.runtime.trees.trees import leaves as tree_leaves
from meshard.runtime.types import dtype_name
from meshard.runtime.world import here


def plan_cache() -> PlanCache:
    """Return the plans that this world has made: its statistics, size and contents.

    >>> from meshard.resharding import plan_cache
    >>> plan_cache().clear()
    >>> plan_cache().statistics.hits
    0
    """
    world = here()
    found: PlanCache | None = world.plans
    if found is None:
        found = world.plans = PlanCache()
    return found


def plan_reshard(
    x: Any,
    sharding: Any,
    *,
    max_bytes: int | None = None,
    donate: bool = False,
    alive: Collection[Any] | None = None,
    topology: Topology | str | None = None,
    split: bool = True,
) -> Plan:
    """Return what moving a tree to other layouts would do, without moving anything.

    Args:
        x: a tree of arrays, values, or ShapeDtypeStructs with shardings; None is skipped.
        sharding: a tree of shardings that is a prefix of ``x``; devices need not exist. None
            leaves a leaf where it is.
        max_bytes: the most bytes in flight from and to one process at once, besides source and
            destination; None for no limit. Within one process nothing is in flight.
        donate: whether the sources are given up as they are read.
        alive: the devices, or their ids, that still hold their data; None for all, or if an array
            has lost some, for those of the processes that take part.
        topology: what links cost, or the name of a preset, as in ``"8-gpu hosts"``; by default all
            devices are equally far from each other.
        split: whether a box may be cut between two senders.

    Raises:
        ArgumentError: if a ShapeDtypeStruct has no sharding, there is no such topology, or
            ``max_bytes`` is refused, as `reshard` would refuse it.
        DataLoss: if no living device holds a part that is needed; it lists the boxes.

    >>> import meshard
    >>> meshard.config.update("num_devices", 8)
    >>> mesh = meshard.make_mesh((4, 2), ("x", "y"))
    >>> rows = meshard.NamedSharding(mesh, meshard.P("x"))
    >>> w = meshard.ShapeDtypeStruct((8, 8), "float32", sharding=rows)
    >>> plan = meshard.plan_reshard(w, meshard.NamedSharding(mesh, meshard.P(None, "y")))
    >>> plan.bytes_moved, plan.lower_bound_bytes, plan.peak_bytes
    (768, 768, 192)
    """
    what = "plan_reshard"
    donate, split = flag_of(donate, what, "donate"), flag_of(split, what, "split")
    targets = [as_sharding(d, what) for d in prefix_leaves(sharding, x, what)]
    accessors, leaves, _ = flatten_with_accessors(x)
    places: dict[tuple[int, Sharding | None] | int, list[int]] = {}
    for number, (leaf, target) in enumerate(zip(leaves, targets, strict=True)):
        # The same array in two places of a tree is moved once.
        tied = type(leaf) is Array or isinstance(leaf, np.ndarray)
        if leaf is not None:
            places.setdefault((id(leaf), target) if tied else number, []).append(number)
    found = [
        _planned(leaves[at[0]], targets[at[0]], [accessors[i] for i in at])
        for at in places.values()
    ]
    living = _living(leaves) if alive is None else _ids(alive)
    options = PlanOptions(
        max_bytes=max_bytes, donate=donate, alive=living, topology=topology, split=split
    )
    plan = make_plan(found, options, cache=plan_cache())
    processes = _process_count(plan) if plan.max_bytes is not None else 1
    for leaf in plan.leaves:
        if leaf.source != leaf.destination:
            check_window(plan.max_bytes, processes, leaf.itemsize, array_text(leaf), what)
    return plan


def _living(leaves: Iterable[Any]) -> list[int] | None:
    """Return the ids of the devices that take part, if an array has lost some; otherwise None."""
    world = here()
    kept = {leaf.sharding for leaf in leaves if type(leaf) is Array}
    if all(living_ids(world, sharding) is None for sharding in kept):
        return None
    return [d.id for d in world.devices if d.process_index in world.processes]


def _ids(alive: Any) -> Any:
    """Return the ids of devices; values that are not devices are left as they are."""
    if not isinstance(alive, Iterable) or getattr(alive, "shape", None) == ():
        return alive
    return [d.id if isinstance(d, Device) else d for d in alive]


def _planned(
    leaf: Any, target: Sharding | None, accessors: Sequence[optree.PyTreeAccessor]
) -> PlanLeaf:
    """Return a plan's entry for an array that is at one place of a tree, or at several."""
    name = " = ".join(leaf_names(accessors))
    shape, dtype, source = _described(leaf, name)
    target = source if target is None else target
    return PlanLeaf(
        name,
        source.layout(shape),
        target.layout(shape),
        dtype.itemsize,
        dtype_name(dtype),
        _written(source),
        _written(target),
        target,
        source,
        accessors[0].codify(""),
        tuple([a.codify("") for a in accessors[1:]]),
    )


def _process_count(plan: Plan) -> int:
    """Return how many processes would run a plan: those of this job, or those of the devices."""
    world, owners = here(), plan.process_of or {}
    if all(owners[d.id] == d.process_index for d in world.devices if d.id in owners) and (
        owners.keys() <= {d.id for d in world.devices}
    ):
        return len(world.processes)
    return len(set(owners.values()))


def _written(sharding: Sharding) -> str:
    """Return a sharding's name in a table; empty if only the layout describes it."""
    if isinstance(sharding, NamedSharding):
        return repr(sharding.spec)
    if isinstance(sharding, SingleDeviceSharding):
        return f"device {sharding.device.id}"
    return ""


def _described(leaf: Any, name: str) -> tuple[tuple[int, ...], np.dtype[Any], Sharding]:
    if type(leaf) in (Array, ShapeDtypeStruct):
        source = leaf.sharding
        if source is None:
            raise ArgumentError(
                f"plan_reshard: {name} is {leaf!r}, which has no sharding. Give it one with "
                "ShapeDtypeStruct(shape, dtype, sharding=...)."
            )
        return leaf.shape, leaf.dtype, source
    value = as_host(leaf, "plan_reshard")
    alone: SingleDeviceSharding = home(here())
    return value.shape, value.dtype, alone


def _run(plan: Plan, x: Any) -> Any:
    """Move the arrays of a tree as a plan says."""
    world = here()
    accessors, leaves, structure = flatten_with_accessors(x, none_is_leaf=False)
    order = _order(plan, [accessor.codify("") for accessor in accessors])
    for number, value in zip(order, leaves, strict=True):
        _check_as_planned(plan.leaves[number], value)
    by_id = {d.id: d for d in world.devices}
    targets = [_target(plan.leaves[number], by_id) for number in order]
    routes = [plan.routes[plan.choice_of[number]] for number in order]
    alive = None if plan.alive is None else frozenset(plan.alive)
    tree = Tree(leaves, targets, structure, routes, alive)
    return tree.rebuilt(moved(tree, plan.donate, plan.max_bytes))


def _order(plan: Plan, paths: Sequence[str]) -> list[int]:
    """Return for each leaf of a tree which leaf of the plan it is, by its path.

    Plans that were made from layouts have no paths; their leaves are matched by position.

    Raises:
        TreeError: if the tree has other leaves than the plan.
    """
    planned = {
        path: number
        for number, leaf in enumerate(plan.leaves)
        if leaf.path is not None
        for path in (leaf.path, *leaf.also)
    }
    if any(leaf.path is None for leaf in plan.leaves):
        if len(paths) != len(plan.leaves):
            raise TreeError(
                f"plan.run: the plan is for {len(plan.leaves)} arrays, but the tree has "
                f"{len(paths)}."
            )
        return list(range(len(paths)))
    lost = [path for path in planned if path not in set(paths)]
    strange = [path for path in paths if path not in planned]
    if lost or strange:
        told = [f"it has no leaf {_shown(lost)}"] * bool(lost)
        told += [f"the plan has no leaf {_shown(strange)}"] * bool(strange)
        raise TreeError(
            f"plan.run: the tree is not the one that was planned: {', and '.join(told)}. Make a "
            "plan for this tree, with plan_reshard."
        )
    return [planned[path] for path in paths]


def _shown(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - 3:,} more" if len(paths) > 3 else ""
    return ", ".join([path or "x" for path in paths[:3]]) + more


def _check_as_planned(leaf: PlanLeaf, value: Any) -> None:
    """Refuse an array that is not the one that a leaf of a plan describes."""
    placed_at = value.sharding if type(value) is Array else None
    host = value if type(value) is Array else as_host(value, "plan.run")
    shape, dtype = tuple(host.shape), host.dtype
    anew = "Make a plan for it, with plan_reshard."
    if shape != leaf.shape:
        raise ShapeError(
            f"plan.run: the plan is for {leaf.name} of shape {leaf.shape}, but the array has shape "
            f"{shape}. {anew}"
        )
    if dtype.itemsize != leaf.itemsize or leaf.dtype not in ("", dtype_name(dtype)):
        planned = leaf.dtype or f"{leaf.itemsize} bytes per element"
        raise DtypeError(
            f"plan.run: the plan is for {leaf.name} of {planned}, but the array has "
            f"{dtype_name(dtype)}. {anew}"
        )
    if placed_at is not None and placed_at.layout(shape) != leaf.source:
        where = leaf.source_sharding or leaf.source_text or layout_text(leaf.source)
        raise ArgumentError(
            f"plan.run: {leaf.name} is not laid out as planned. The plan is for {where}, and the "
            f"array's sharding is {placed_at!r}. {anew}"
        )


def _target(leaf: PlanLeaf, by_id: Mapping[int, Device]) -> Sharding:
    """Return the sharding that a planned array is to have, on the devices that exist."""
    layout, sharding = leaf.destination, leaf.sharding
    missing = sorted(layout.device_ids - by_id.keys())
    if missing:
        raise ArgumentError(
            f"plan.run: {leaf.name} is planned for device {missing[0]}, which does not exist here; "
            f"there are {len(by_id)} devices."
        )
    if isinstance(sharding, NamedSharding):
        mesh = sharding.mesh
        if any(by_id[d.id] != d and by_id[d.id].platform == d.platform for d in mesh.flat_devices):
            # The plan was made where the same devices belonged to other processes.
            grid = np.empty(mesh.size, object)
            grid[:] = [by_id[d.id] for d in mesh.flat_devices]
            mesh = Mesh(grid.reshape(mesh.axis_sizes), mesh.axis_names, mesh.axis_types)
        return NamedSharding(
            mesh, sharding.spec, memory_kind=sharding.memory_kind, uneven=sharding.uneven
        )
    if sharding is not None and all(by_id[d.id] == d for d in sharding.device_order):
        return sharding
    order = [(d, i) for i in range(layout.piece_count) for d in layout.holders(i)]
    return BoxSharding(leaf.shape, {by_id[d]: layout.box(i) for d, i in order})


install_runner(_run)


_LARGE = 64 << 20  # smaller trees move too fast for a bar


@final
@dataclass(frozen=True, slots=True)
class Options:
    """How a tree is moved; see `reshard`."""

    donate: bool = False
    may_alias: bool | None = None
    cache_resharding_plans: bool = False
    max_bytes: int | None = None
    progress: Progress = None
    alive: Any = None


def resharded(x: Any, sharding: Any, options: Options) -> Any:
    """Return a tree of arrays in other layouts; see `reshard`."""
    donate = flag_of(options.donate, "reshard", "donate")
    given = options.may_alias
    may_alias = given is not None and flag_of(given, "reshard", "may_alias")
    flag_of(options.cache_resharding_plans, "reshard", "cache_resharding_plans")
    max_bytes = checked_window(options.max_bytes, "reshard")
    progress = checked_progress(options.progress, "reshard")
    alive = alive_ids(options.alive, "reshard")
    if donate and may_alias:
        raise ArgumentError(
            "reshard: donate and may_alias are both True; a donated array is deleted, so that "
            "nothing can share its memory. Choose one."
        )
    leaves, structure = flatten_with_none(x)
    prefix = prefix_leaves(sharding, x, "reshard", "shardings")
    targets = [as_sharding(d, "reshard") for d in prefix]
    check_same_values(x, leaves, targets, "reshard")
    tree = Tree(leaves, targets, structure, alive=alive)
    if progress is None and sum([x.nbytes for x in leaves if type(x) is Array]) < _LARGE:
        progress = False
    return tree.rebuilt(moved(tree, donate, max_bytes, progress))


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
