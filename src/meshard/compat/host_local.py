"""Global arrays from host-local values, and back: only shapes are sent.

In: a tree of values of which each process has its own, or of global arrays; a mesh and specs. Out:
the other tree. All processes of the mesh call these functions together, in the same order. Each
first reports its arguments (`survey`), so that a call that cannot succeed is refused on all of
them, before anything moves.

Global shapes from local ones and back, by arithmetic alone.

In: a sharding, and one of the two shapes. Out: the other. A process's local shape is that of the
data which `make_array_from_process_local_data` takes: along each dim the shards that its devices
hold, joined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar, overload

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import instance_of, refusal, shape_of, shown
from meshard.algebra.device import Device
from meshard.algebra.layout import Layout
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import BoxSharding, NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.compat.mesh_split import local_blocks, of_blocks
from meshard.compat.multihost import Brought, Leaf, check_argument, listed, surveyed
from meshard.errors import ArgumentError, IndivisibleError, ShapeError, ShardingError, SpecError
from meshard.runtime.array.array import Array
from meshard.runtime.moving.make import prefix_leaves
from meshard.runtime.moving.place import check_devices_exist, placed
from meshard.runtime.trees.trees import flatten_with_none, unflatten
from meshard.runtime.types import ArrayLike
from meshard.runtime.world import RuntimeWorld, here

Shape = tuple[int, ...]


T = TypeVar("T")


@overload
def host_local_array_to_global_array(
    local_inputs: ArrayLike, global_mesh: Mesh, pspecs: Any
) -> Array: ...
@overload
def host_local_array_to_global_array(local_inputs: Any, global_mesh: Mesh, pspecs: Any) -> Any: ...
def host_local_array_to_global_array(local_inputs: Any, global_mesh: Mesh, pspecs: Any) -> Any:
    """Make global arrays from a tree of values of which each process has its own.

    A dim that is split over axes along which processes differ grows by the number of processes
    there: under ``P("x")`` a local shape (4,) becomes (4 n,) on a mesh ``x`` of n processes.
    Only the shapes are sent.

    Args:
        local_inputs: a tree of NumPy arrays, numbers, or arrays on this process's devices. Arrays
            that span processes are already global and are returned as they are.
        global_mesh: the mesh, in which each process's devices must form a block.
        pspecs: a tree of specs that is a prefix of ``local_inputs``. Along the axes that a spec
            leaves out the processes must hold equal values; ``P()`` needs no conversion at all.

    Returns:
        The tree of global arrays.

    Raises:
        ShardingError: if this process has no part of the mesh, or its devices do not form a block
            of it; if a leaf is global on some processes and local on others.
        TreeError: if ``pspecs`` is not a prefix, or the trees of the processes differ.
        ArgumentError: if a spec is None or not a spec, or ``global_mesh`` is not a mesh.
        IndivisibleError: if a local dim does not divide by its shards on this process.
        ShapeError: if the local shapes of the processes make different global ones.

    >>> import numpy as np, meshard
    >>> from meshard.multihost_utils import host_local_array_to_global_array
    >>> mesh = meshard.make_mesh((len(meshard.devices()),), ("x",))
    >>> local = np.arange(2 * len(meshard.local_devices()))
    >>> host_local_array_to_global_array(local, mesh, meshard.P("x")).size == 2 * mesh.size
    True
    """
    what, world = "host_local_array_to_global_array", here()
    part = _own_part(world, global_mesh, what)
    brought, specs = _with_specs(what, local_inputs, global_mesh, pspecs, one_shape=False)
    results = []
    for number, (leaf, spec) in enumerate(zip(brought.leaves, specs, strict=True)):
        if brought.whole[number]:
            results.append(leaf.value)
            continue
        shape = _joined_shape(what, leaf, global_mesh, spec, brought.shapes[number])
        local = placed(leaf.value, NamedSharding(part, spec), what=what)
        kind = world.type_of(shape, local.dtype, NamedSharding(global_mesh, spec), True)
        results.append(of_blocks(kind, local_blocks(local)))
    return unflatten(brought.structure, results)


@overload
def global_array_to_host_local_array(
    global_inputs: ArrayLike, global_mesh: Mesh, pspecs: Any
) -> Array: ...
@overload
def global_array_to_host_local_array(global_inputs: T, global_mesh: Mesh, pspecs: Any) -> T: ...
def global_array_to_host_local_array(global_inputs: Any, global_mesh: Mesh, pspecs: Any) -> Any:
    """Return each process's own part of a tree of global arrays, on its own devices.

    The inverse of `host_local_array_to_global_array`.

    Args:
        global_inputs: a tree of arrays. Those whose devices are all this process's are returned as
            they are; others are moved first if they are not laid out as ``pspecs`` say.
        global_mesh: the mesh, in which each process's devices must form a block.
        pspecs: a tree of specs that is a prefix of ``global_inputs``.

    Returns:
        The tree of arrays, laid out over ``global_mesh.local_mesh``.

    Raises:
        ShardingError: if this process has no part of the mesh, or its devices do not form a block
            of it; if an array is also on a process that has no part; if a leaf is not an array
            but the mesh spans processes.
        TreeError: if ``pspecs`` is not a prefix, or the trees of the processes differ.
        ArgumentError: if a spec is None or not a spec, or ``global_mesh`` is not a mesh.
        IndivisibleError: if an array's dim does not divide by its shards.

    >>> import numpy as np, meshard
    >>> from meshard.multihost_utils import (
    ...     global_array_to_host_local_array,
    ...     host_local_array_to_global_array,
    ... )
    >>> mesh = meshard.make_mesh((len(meshard.devices()),), ("x",))
    >>> x = host_local_array_to_global_array(np.arange(3), mesh, meshard.P())
    >>> global_array_to_host_local_array(x, mesh, meshard.P()).shape
    (3,)
    """
    what, world = "global_array_to_host_local_array", here()
    part, peers = _own_part(world, global_mesh, what), global_mesh.processes
    brought, specs = _with_specs(what, global_inputs, global_mesh, pspecs, one_shape=True)
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
                f"{world.process_index}, but must be a global array. Make it one with "
                "host_local_array_to_global_array, or leave it as it is: it is local already."
            )
    results = []
    for leaf, spec, whole in zip(brought.leaves, specs, brought.whole, strict=True):
        if leaf.given and not whole:
            results.append(leaf.value)
            continue
        moved = placed(leaf.value, NamedSharding(global_mesh, spec), what=what)
        shape = _rescaled(moved.shape, spec, global_mesh, part)
        kind = world.type_of(shape, moved.dtype, NamedSharding(part, spec), True)
        results.append(of_blocks(kind, local_blocks(moved)))
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


def _with_specs(
    what: str, tree: Any, mesh: Mesh, pspecs: Any, *, one_shape: bool
) -> tuple[Brought, list[PartitionSpec]]:
    """Return the arguments of a mesh's processes, and the spec of each leaf, the same on all."""
    given = prefix_leaves(pspecs, tree, what, "pspecs")
    leaves, _ = flatten_with_none(tree)
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
    peers, said = mesh.processes, tuple(map(repr, specs))
    brought = surveyed(here(), what, tree, peers, said=said, one_shape=one_shape)
    for answers in zip(*brought.answers, strict=True):
        check_argument(what, "pspecs", peers, answers)
    for leaf, spec in zip(brought.leaves, specs, strict=True):
        rank = leaf.value.ndim
        if len(spec) > rank:
            raise SpecError(
                f"{what}: the spec {spec} has {len(spec)} entries, but {leaf.name}, {leaf.kind}, "
                f"has rank {rank}. Remove entries from the spec."
            )
    return brought, specs


def _rescaled(shape: Shape, spec: PartitionSpec, mesh: Mesh, other: Mesh) -> Shape:
    """Return the shape with as many shards of the same size as another mesh has."""
    sizes = zip(shape, spec.axes(len(shape)), strict=True)
    return tuple([n * _shards(other, axes) // _shards(mesh, axes) for n, axes in sizes])


def _shards(mesh: Mesh, axes: Sequence[str]) -> int:
    return math.prod(mesh.shape[a] for a in axes)


def _joined_shape(
    what: str, leaf: Leaf, mesh: Mesh, spec: PartitionSpec, shapes: list[Shape]
) -> Shape:
    """Return the global shape of local ones; every process checks the shapes of all."""
    made: list[Shape] = []
    for process, shape in zip(mesh.processes, shapes, strict=True):
        part = mesh.part_of(process)
        for dim, (size, axes) in enumerate(zip(shape, spec.axes(len(shape)), strict=True)):
            shards = _shards(part, axes)
            if size % shards:
                raise IndivisibleError(
                    f"{what}: {leaf.name} has the local shape {shape} on process {process}, and "
                    f"{spec} splits dim {dim} over {axes}, of which that process holds {shards} "
                    f"shards: the local size of its dimension {dim} should be divisible by "
                    f"{shards}, but it is equal to {size}. Inputs are host-local, not global: give "
                    "what this process alone contributes."
                )
        made.append(_rescaled(shape, spec, part, mesh))
    if len(set(made)) > 1:
        local = listed(mesh.processes, list(map(str, shapes)))
        joined = listed(mesh.processes, list(map(str, made)))
        raise ShapeError(
            f"{what}: the local shapes of {leaf.name} do not belong to one global shape under "
            f"{spec} on {mesh!r}: the local shapes are {local}; they make the global shapes "
            f"{joined}. Give each process the same part of the global array, padded if need be."
        )
    return made[0]


Spans = tuple[tuple[int, int], ...]


def local_to_global_shape(sharding: Sharding, local_shape: Sequence[int]) -> tuple[int | None, ...]:
    """Return the global shape of data that has the same local shape on each process.

    Nothing is communicated and no array is made.

    Args:
        sharding: how the global array is laid out.
        local_shape: the shape of each process's data.

    Returns:
        The global size of each dim; None if it is not determined, since processes hold different
        numbers of its shards, or share some of them but not all.

    Raises:
        ArgumentError: if ``sharding`` is not a sharding.
        SpecError: if its spec is longer than the rank.
        ShapeError: if ``local_shape`` is not a shape, or cannot belong to a sharding of explicit
            boxes.

    >>> import numpy as np, meshard
    >>> from meshard.multihost_utils import local_to_global_shape
    >>> from meshard import NamedSharding
    >>> mesh = meshard.make_mesh((len(meshard.devices()),), ("x",))
    >>> local_to_global_shape(NamedSharding(mesh, meshard.P("x")), (16, 3))
    (16, 3)
    """
    what = "local_to_global_shape"
    place: Sharding = instance_of(sharding, Sharding, what, "sharding")  # type: ignore[type-abstract]
    shape = shape_of(local_shape, what, "local_shape")
    devices: dict[int, list[Device]] = {}
    for device in place.device_order:
        devices.setdefault(device.process_index, []).append(device)
    if len(devices) == 1:
        return shape
    if isinstance(place, BoxSharding):
        return _boxed(place, shape)
    # Only the shards of each process are needed, and any shape that is cut shows them.
    probe, uneven = (place.num_devices,) * len(shape), None
    if isinstance(place, NamedSharding):
        if len(place.spec) > len(shape):
            raise SpecError(
                f"{what}: the spec {place.spec} has {len(place.spec)} entries, but the local "
                f"shape {shape} has rank {len(shape)}. Remove entries from the spec."
            )
        probe, uneven = place.shards(len(shape)), place.uneven
        place = NamedSharding(place.mesh, place.spec)
    layout = place.layout(probe)
    held = zip(*[_held(layout, own) for own in devices.values()], strict=True)
    found: list[int | None] = []
    for dim, (size, spans) in enumerate(zip(shape, held, strict=True)):
        distinct = set(spans)
        cuts = uneven[dim : dim + 1] if isinstance(uneven, tuple) else ()
        uniform = len(set(map(len, distinct))) == 1
        disjoint = sum(map(len, distinct)) == len(set().union(*distinct))
        if len(distinct) == 1:
            found.append(size)
        elif cuts and cuts[0] is not None:
            found.append(cuts[0][-1])
        elif isinstance(uneven, str) or not (uniform and disjoint):
            found.append(None)
        else:
            found.append(size * len(distinct))
    return tuple(found)


def global_to_local_shape(
    sharding: Sharding, global_shape: Sequence[int]
) -> tuple[int | None, ...]:
    """Return the shape of this process's data of an array.

    Nothing is communicated and no array is made.

    Args:
        sharding: how the global array is laid out.
        global_shape: its shape.

    Returns:
        For each dim the joined length of the shards that this process's devices hold; None if they
        overlap in part, so that they cannot be joined.

    Raises:
        ArgumentError: if ``sharding`` is not a sharding.
        ShardingError: if this process has no device of it, or the shape cannot be laid out so.

    >>> import numpy as np, meshard
    >>> from meshard.multihost_utils import global_to_local_shape
    >>> from meshard import NamedSharding
    >>> mesh = meshard.make_mesh((len(meshard.devices()),), ("x",))
    >>> global_to_local_shape(NamedSharding(mesh, meshard.P(None, "x")), (3, 16 * mesh.size)) == (
    ...     3,
    ...     16 * len(meshard.local_devices()),
    ... )
    True
    """
    what, me = "global_to_local_shape", here().process_index
    place: Sharding = instance_of(sharding, Sharding, what, "sharding")  # type: ignore[type-abstract]
    shape = shape_of(global_shape, what, "global_shape")
    own = [d for d in place.device_order if d.process_index == me]
    if not own:
        raise ShardingError(
            f"{what}: process {me} has no device of {place!r}, and so no local shape."
        )
    return tuple(map(_joined, _held(place.layout(shape), own)))


def _held(layout: Layout, devices: Sequence[Device]) -> list[Spans]:
    """Return for each dim the spans that devices hold, in order."""
    pieces = list({layout.piece_of[d.id] for d in devices})
    if layout.regular and layout.ndim:
        numbers = zip(layout.cuts, np.unravel_index(pieces, layout.grid), strict=True)
        return [tuple([(c[i], c[i + 1]) for i in np.unique(held)]) for c, held in numbers]
    boxes = [layout.box(piece) for piece in pieces]
    return [
        tuple(sorted({(b.starts[dim], b.stops[dim]) for b in boxes})) for dim in range(layout.ndim)
    ]


def _joined(spans: Spans) -> int | None:
    """Return the length of spans laid end to end; None if they overlap."""
    if any(after[0] < before[1] for before, after in pairwise(spans)):
        return None
    return sum(stop - start for start, stop in spans)


def _boxed(sharding: BoxSharding, local_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the one shape of a sharding's boxes, if local data of a shape can belong to it."""
    shape, me = sharding.global_shape, here().process_index
    mine = [d for d in sharding.device_order if d.process_index == me]
    own = tuple(map(_joined, _held(sharding.layout(shape), mine)))
    sizes = zip(local_shape, own, shape, strict=False)
    if len(shape) != len(local_shape) or (
        mine and any(n not in (held, size) for n, held, size in sizes)
    ):
        raise ShapeError(
            f"local_to_global_shape: the boxes of {sharding!r} are those of an array of shape "
            f"{shape}, of which process {me} holds {own}; local_shape is {local_shape}."
        )
    return shape
