"""Between what each process has and what all have together: `meshard.multihost_utils`.

All processes call these functions together, in the same order. Each says first what it brings
(`survey`), so that a call that cannot succeed is refused on all of them, before anything moves.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from meshard.algebra.arguments import flag_of, refusal, shown
from meshard.algebra.device import Device
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import NamedSharding, SingleDeviceSharding
from meshard.algebra.spec import PartitionSpec
from meshard.compat.survey import Brought, Leaf, listed, surveyed
from meshard.errors import ArgumentError, IndivisibleError, ShapeError, ShardingError, SpecError
from meshard.runtime.array.array import Array, to_numpy
from meshard.runtime.moving.make import prefix_leaves
from meshard.runtime.moving.place import check_devices_exist, placed, resharded
from meshard.runtime.trees import unflatten
from meshard.runtime.types import ArrayType, Block
from meshard.runtime.world import RuntimeWorld, here

Shape = tuple[int, ...]


def host_local_array_to_global_array(local_inputs: Any, global_mesh: Mesh, pspecs: Any) -> Any:
    """Make global arrays of a tree of values, of which each process has its own.

    A dim that is split over axes along which the processes lie grows by the number of processes
    there: under ``P("x")`` a local shape (4,) becomes (4 n,) on a mesh ``x`` of n processes.
    Nothing is sent but the shapes.

    Args:
        local_inputs: a tree of NumPy arrays, numbers, or arrays on this process's devices. Arrays
            that span processes are global already and are returned as they are.
        global_mesh: the mesh, in which each process's devices must form a block.
        pspecs: a tree of specs that is a prefix of ``local_inputs``. Along the axes that a spec
            leaves out the processes must hold equal values; ``P()`` needs no conversion at all.

    Returns:
        The tree of global arrays.

    Raises:
        ShardingError: if this process has no part of the mesh, or its devices form no block of it;
            if a leaf is global on some processes and local on others.
        TreeError: if ``pspecs`` is no prefix, or the trees of the processes differ.
        ArgumentError: if a spec is None or no spec, or ``global_mesh`` no mesh.
        IndivisibleError: if a local dim does not divide by its shards on this process.
        ShapeError: if the local shapes of the processes make different global ones.

    >>> import meshard
    >>> mesh = meshard.make_mesh((len(meshard.devices()),), ("x",))
    >>> local = np.arange(2 * len(meshard.local_devices()))
    >>> host_local_array_to_global_array(local, mesh, meshard.P("x")).size == 2 * mesh.size
    True
    """
    what, world = "host_local_array_to_global_array", here()
    part = _own_part(world, global_mesh, what)
    specs = _specs(pspecs, local_inputs, global_mesh, what)
    peers = global_mesh.processes
    brought = surveyed(
        world, what, local_inputs, peers, said=tuple(map(repr, specs)), one_shape=False
    )
    _check_specs(what, brought, specs, peers)
    results = []
    for leaf, spec, shapes, whole in zip(
        brought.leaves, specs, brought.shapes, brought.whole, strict=True
    ):
        if whole:
            results.append(leaf.value)
            continue
        shape = _joined_shape(what, leaf, global_mesh, spec, shapes)
        local = placed(leaf.value, NamedSharding(part, spec), what=what)
        kind = world.type_of(shape, local.dtype, NamedSharding(global_mesh, spec), True)
        results.append(_as_seen(local, kind, part))
    return unflatten(brought.structure, results)


def global_array_to_host_local_array(global_inputs: Any, global_mesh: Mesh, pspecs: Any) -> Any:
    """Return a tree of global arrays as each process's own part of them, on its own devices.

    The inverse of `host_local_array_to_global_array`.

    Args:
        global_inputs: a tree of arrays. Those whose devices are all this process's are returned as
            they are; others are moved first if they lie otherwise than ``pspecs`` say.
        global_mesh: the mesh, in which each process's devices must form a block.
        pspecs: a tree of specs that is a prefix of ``global_inputs``.

    Returns:
        The tree of arrays, laid out over ``global_mesh.local_mesh``.

    Raises:
        ShardingError: if this process has no part of the mesh, or its devices form no block of it;
            if an array also lies on a process that has no part; if a leaf is no array but the
            mesh spans processes.
        TreeError: if ``pspecs`` is no prefix, or the trees of the processes differ.
        ArgumentError: if a spec is None or no spec, or ``global_mesh`` no mesh.
        IndivisibleError: if an array's dim does not divide by its shards.

    >>> import meshard
    >>> mesh = meshard.make_mesh((len(meshard.devices()),), ("x",))
    >>> x = host_local_array_to_global_array(np.arange(3), mesh, meshard.P())
    >>> global_array_to_host_local_array(x, mesh, meshard.P()).shape
    (3,)
    """
    what, world = "global_array_to_host_local_array", here()
    part = _own_part(world, global_mesh, what)
    specs = _specs(pspecs, global_inputs, global_mesh, what)
    peers = global_mesh.processes
    brought = surveyed(world, what, global_inputs, peers, said=tuple(map(repr, specs)))
    _check_specs(what, brought, specs, peers)
    for leaf, whole in zip(brought.leaves, brought.whole, strict=True):
        outside = sorted(set(leaf.processes) - set(peers))
        if outside:
            raise ShardingError(
                f"{what}: {leaf.name}, {leaf.kind}, is also on process {outside[0]}, which has "
                f"no device of {global_mesh!r}. Move it onto the mesh first, with meshard.reshard "
                "on all processes."
            )
        if not whole and not leaf.given and len(peers) > 1:
            raise ShardingError(
                f"{what}: {leaf.name}, {leaf.kind}, is a host-local value of process "
                f"{world.process_index}, where a global array is meant. Make it one with "
                "host_local_array_to_global_array, or leave it as it is: it is local already."
            )
    results = []
    for leaf, spec, whole in zip(brought.leaves, specs, brought.whole, strict=True):
        if leaf.given and not whole:
            results.append(leaf.value)
            continue
        place = NamedSharding(global_mesh, spec)
        if not leaf.given:
            results.append(placed(leaf.value, place, what=what))
            continue
        kind = world.type_of(leaf.value.shape, leaf.value.dtype, place, True)
        moved = resharded(world, leaf.value, kind, what)
        shape = tuple(
            n
            * math.prod(part.shape[a] for a in axes)
            // math.prod(global_mesh.shape[a] for a in axes)
            for n, axes in zip(kind.shape, spec.axes(kind.ndim), strict=True)
        )
        local = world.type_of(shape, kind.dtype, NamedSharding(part, spec), True)
        results.append(_as_seen(moved, local, part))
    return unflatten(brought.structure, results)


def process_allgather(in_tree: Any, tiled: bool = False) -> Any:
    """Return on every process what all of them have, as NumPy arrays.

    Of an array that spans processes that is the whole array. Of other values, of which each process
    has its own, it is all of them, in the order of the processes.

    Args:
        in_tree: a tree of arrays, NumPy arrays and numbers; each leaf must have one shape and dtype
            on all processes.
        tiled: of leaves that each process has its own of: False stacks them along a new first dim,
            whose size is the number of processes; True joins them along the first dim. Numbers are
            always stacked, except in a program of one process, which gets them back, as in JAX.

    Returns:
        The tree of read-only NumPy arrays.

    Raises:
        TreeError: if the trees of the processes differ.
        ShapeError: if a leaf's shape or dtype differs between processes.
        ShardingError: if a leaf is global on some processes and local on others.
        DtypeError: if a leaf does not hold numbers.

    >>> import meshard
    >>> process_allgather(np.arange(3)).shape == (meshard.process_count(), 3)
    True
    """
    what, world = "process_allgather", here()
    peers = range(world.process_count)
    tiled = flag_of(tiled, what, "tiled")
    brought = surveyed(world, what, in_tree, peers, said=tiled)
    _check_said(what, "tiled", peers, brought.answers)
    results = [
        _fetched(world, leaf.value, what) if whole else _stacked(world, leaf, tiled, what)
        for leaf, whole in zip(brought.leaves, brought.whole, strict=True)
    ]
    return unflatten(brought.structure, results)


def broadcast_one_to_all(in_tree: Any, is_source: bool | None = None) -> Any:
    """Return on every process the values that one of them has.

    Args:
        in_tree: a tree of arrays, NumPy arrays and numbers; each leaf must have one shape and dtype
            on all processes, but only the source's values count.
        is_source: whether this process is the source, which exactly one must be; by default
            process 0 is. A program of one process is always its own source.

    Returns:
        The tree of read-only NumPy arrays, the same bits on all processes.

    Raises:
        ArgumentError: if no process is the source, or several are.
        TreeError: if the trees of the processes differ.
        ShapeError: if a leaf's shape or dtype differs between processes.
        ShardingError: if a leaf spans processes: it is the same on all of them already.

    >>> broadcast_one_to_all({"seed": 7})
    {'seed': array(7)}
    """
    what, world = "broadcast_one_to_all", here()
    peers = range(world.process_count)
    chosen = world.process_index == 0
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
            f"{what}: {said} is_source=True, but exactly one of the {world.process_count} "
            "processes must be the source."
        )
    origin = _first_devices(world)[sources[0]]
    results = []
    for leaf in brought.leaves:
        shape, dtype = leaf.value.shape, leaf.value.dtype
        kind = world.type_of(shape, dtype, SingleDeviceSharding(origin), True)
        mine = _alone(leaf) if chosen else None
        results.append(_fetched(world, Array(kind, (mine,)), what))
    return unflatten(brought.structure, results)


def gather(x: Any, root: int = 0) -> Any:
    """Return a global array as NumPy on one process; the others get None, and nothing is sent them.

    Args:
        x: an array, or a tree of them. In a program of one process, any values.
        root: the process that gets the whole, the same number on all.

    Returns:
        On the root the tree of read-only NumPy arrays; elsewhere the tree with None for each leaf.

    Raises:
        ArgumentError: if there is no such process, or the processes name different ones.
        ShardingError: if a leaf is a value of which each process has its own.
        TreeError: if the trees of the processes differ.

    >>> import meshard
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
    peers = range(world.process_count)
    brought = surveyed(world, what, x, peers, said=target)
    _check_said(what, "root", peers, brought.answers)
    if not 0 <= target < world.process_count:
        raise ArgumentError(
            f"{what}: root={shown(root)} is not the number of a process; there are "
            f"{world.process_count}, from 0 to {world.process_count - 1}."
        )
    for leaf, whole in zip(brought.leaves, brought.whole, strict=True):
        if not whole and world.process_count > 1:
            raise ShardingError(
                f"{what}: {leaf.name}, {leaf.kind}, is host-local: each process has its own, where "
                "a global array is meant. process_allgather(x) stacks them; "
                "host_local_array_to_global_array makes them one array."
            )
    if world.process_count == 1:
        return unflatten(brought.structure, [_alone(leaf) for leaf in brought.leaves])
    results: list[Block | None] = []
    for leaf in brought.leaves:
        array: Array = leaf.value
        own = [d for d in array.sharding.device_order if d.process_index == target]
        device = own[0] if own else _first_devices(world)[target]
        kind = world.type_of(array.shape, array.dtype, SingleDeviceSharding(device), True)
        moved = resharded(world, array, kind, what)
        results.append(to_numpy(moved) if target == world.process_index else None)
    return unflatten(brought.structure, results)


def _own_part(world: RuntimeWorld, mesh: Any, what: str) -> Mesh:
    """Return this process's part of a mesh, if every process has a block of it."""
    if not isinstance(mesh, Mesh):
        raise ArgumentError(refusal(what, "global_mesh", "a Mesh", mesh))
    check_devices_exist(world, NamedSharding(mesh, PartitionSpec()), what)
    if world.process_index not in mesh.processes:
        raise ShardingError(
            f"{what}: process {world.process_index} has no part of {mesh!r}, whose devices belong "
            f"to processes {list(mesh.processes)}. Only those processes may call it. Or "
            "make a mesh of the devices of all processes."
        )
    try:
        return [mesh.part_of(p) for p in mesh.processes][mesh.processes.index(world.process_index)]
    except ShardingError as error:
        raise ShardingError(
            f"{what}: {error} Order the devices so that those of each process are adjacent, or use "
            "meshard.make_array_from_process_local_data, which takes any mesh."
        ) from None


def _specs(pspecs: Any, tree: Any, mesh: Mesh, what: str) -> list[PartitionSpec]:
    """Return the spec of each leaf of a tree."""
    given = prefix_leaves(pspecs, tree, what, "pspecs")
    leaves = prefix_leaves(tree, tree, what)
    specs = [spec for spec, leaf in zip(given, leaves, strict=True) if leaf is not None]
    for spec in specs:
        if spec is None:
            raise ArgumentError(
                f"{what}: `None` is not a valid input to the pspecs argument. Write P() for a "
                "value that is the same on all devices."
            )
        if not isinstance(spec, PartitionSpec):
            raise ArgumentError(
                f"{what}: pspecs holds {shown(spec)} of type {type(spec).__name__}, not a "
                "PartitionSpec. Write P(...)."
            )
        NamedSharding(mesh, spec)  # refuses unknown and repeated axes
    return specs


def _check_specs(
    what: str, brought: Brought, specs: list[PartitionSpec], peers: tuple[int, ...]
) -> None:
    """Refuse specs that differ between processes, or are longer than their leaf's rank."""
    for said in zip(*brought.answers, strict=True):
        _check_said(what, "pspecs", peers, said)
    for leaf, spec in zip(brought.leaves, specs, strict=True):
        rank = leaf.value.ndim
        if len(spec) > rank:
            raise SpecError(
                f"{what}: the spec {spec} has {len(spec)} entries, but {leaf.name}, {leaf.kind}, "
                f"has rank {rank}. Remove entries from the spec."
            )


def _check_said(what: str, name: str, peers: Any, said: Any) -> None:
    """Refuse an argument that differs between processes."""
    if len(set(said)) > 1:
        raise ArgumentError(
            f"{what}: {name} must be the same on all processes; it is "
            f"{listed(peers, list(map(str, said)))}."
        )


def _joined_shape(
    what: str, leaf: Leaf, mesh: Mesh, spec: PartitionSpec, shapes: list[Shape]
) -> Shape:
    """Return the global shape that local ones make; every process checks those of all."""
    made: list[Shape] = []
    for process, shape in zip(mesh.processes, shapes, strict=True):
        part = mesh.part_of(process)
        sizes = []
        for dim, (size, axes) in enumerate(zip(shape, spec.axes(len(shape)), strict=True)):
            shards = math.prod(part.shape[a] for a in axes)
            if size % shards:
                raise IndivisibleError(
                    f"{what}: {leaf.name} has the local shape {shape} on process {process}, and "
                    f"{spec} splits dim {dim} over {axes}, of which that process holds {shards} "
                    f"shards: the local size of its dimension {dim} should be divisible by "
                    f"{shards}, but it is equal to {size}. Inputs are host-local, not global: give "
                    "what this process alone contributes."
                )
            sizes.append(size // shards * math.prod(mesh.shape[a] for a in axes))
        made.append(tuple(sizes))
    if len(set(made)) > 1:
        local = listed(mesh.processes, list(map(str, shapes)))
        joined = listed(mesh.processes, list(map(str, made)))
        raise ShapeError(
            f"{what}: the local shapes of {leaf.name} do not belong to one global shape under "
            f"{spec} on {mesh!r}: the local shapes are {local}; they make the global shapes "
            f"{joined}. Give each process the same part of the global array, padded if need be."
        )
    return made[0]


def _as_seen(x: Array, kind: ArrayType, part: Mesh) -> Array:
    """Return an array of another type whose local devices hold the same blocks."""
    blocks: list[Block | None] = [None] * kind.layout.piece_count
    held = x._live()
    for device in part.flat_devices:
        blocks[kind.layout.piece_of[device.id]] = held[x._type.layout.piece_of[device.id]]
    return Array(kind, tuple(blocks))


def _first_devices(world: RuntimeWorld) -> list[Device]:
    """Return one device of each process."""
    first: dict[int, Device] = {}
    for device in world.devices:
        first.setdefault(device.process_index, device)
    return [first[p] for p in range(world.process_count)]


def _fetched(world: RuntimeWorld, x: Array, what: str) -> Block:
    """Return the whole of an array on every process."""
    if x._type.layout.replicated and set(range(world.process_count)) == {
        d.process_index for d in x.sharding.device_order
    }:
        return to_numpy(x)
    # One device of each process, since a process keeps replicas once; if possible one that has a
    # part of the array already.
    chosen = dict(enumerate(_first_devices(world)))
    for device in reversed(x.sharding.device_order):
        chosen[device.process_index] = device
    mesh = Mesh([chosen[p] for p in range(world.process_count)], "processes")
    kind = world.type_of(x.shape, x.dtype, NamedSharding(mesh, PartitionSpec()), True)
    return to_numpy(resharded(world, x, kind, what))


def _stacked(world: RuntimeWorld, leaf: Leaf, tiled: bool, what: str) -> Block:
    """Return all processes' values of a leaf."""
    value = _alone(leaf)
    count = world.process_count
    if count == 1:
        return value if tiled else value[None]
    mesh = Mesh(_first_devices(world), "processes")
    kind = world.type_of(
        (count, *value.shape), value.dtype, NamedSharding(mesh, PartitionSpec("processes")), True
    )
    blocks: list[Block | None] = [None] * count
    blocks[world.process_index] = value[None]
    found = _fetched(world, Array(kind, tuple(blocks)), what)
    if not tiled or not value.ndim:
        return found
    return found.reshape(count * value.shape[0], *value.shape[1:])


def _alone(leaf: Leaf) -> Block:
    """Return a value of this process alone, read-only, and never in memory that others write to."""
    if leaf.given:
        return to_numpy(leaf.value)
    value = np.array(leaf.value)
    value.flags.writeable = False
    return value
