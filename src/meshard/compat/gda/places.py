"""Where the shards of a `GlobalDeviceArray` are; computed once per shape, mesh and mesh axes.

In: a shape, a mesh and its axes for each dim. Out: for each device its index and replica id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import final

from meshard.algebra.arguments import instance_of, shape_of, shown
from meshard.algebra.box import Box, Index
from meshard.algebra.device import Device
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import ArgumentError, IndivisibleError, ShardingError

MeshAxes = PartitionSpec | Sequence[str | Sequence[str] | None]


@final
class Places:
    """Where the shards of an array of one shape are on one mesh.

    Attributes:
        shape: the global shape.
        sharding: the mesh and the axes, as a sharding.
        shard_shape: the shape of every shard.
    """

    def __init__(self, shape: tuple[int, ...], sharding: NamedSharding) -> None:
        self.shape = shape
        self.sharding = sharding
        self.shard_shape = sharding.shard_shape(shape)

    @property
    def local_devices(self) -> list[Device]:
        """This process's devices, in mesh order."""
        return self.sharding.mesh.local_devices

    @cached_property
    def indices(self) -> Mapping[Device, Index]:
        """The index of each device's shard, in mesh order."""
        return MappingProxyType(self.sharding.devices_indices_map(self.shape))

    @cached_property
    def indices_replica_ids(self) -> Mapping[Device, tuple[Index, int]]:
        """The index of each device's shard and its number among the devices that have the same."""
        met: Counter[Box] = Counter()
        found: dict[Device, tuple[Index, int]] = {}
        for device, index in self.indices.items():
            box = self.box(device)
            found[device] = index, met[box]
            met[box] += 1
        return MappingProxyType(found)

    def box(self, device: Device) -> Box:
        """Return the region of one device's shard; unlike indices, boxes can be hashed."""
        return Box.from_index(self.indices[device], self.shape)

    def named(self, device: Device) -> str:
        """Return the name of one device's shard in messages: its box and its full index."""
        return f"index {self.box(device)} = {self.indices[device]} on {device!r}"


# It depends on its arguments alone, so it is valid in every world.
@lru_cache(maxsize=4096)
def _places(shape: tuple[int, ...], mesh: Mesh, spec: PartitionSpec) -> Places:
    return Places(shape, NamedSharding(mesh, spec))


def places_of(
    what: str, global_shape: Sequence[int], global_mesh: Mesh, mesh_axes: object
) -> Places:
    """Return where the shards are; ``what`` is the function that was called, for messages.

    Raises:
        ShapeError: if ``global_shape`` is not a shape.
        ArgumentError: if ``global_mesh`` is not a mesh, or ``mesh_axes`` not a sequence of entries.
        SpecError: if an axis is unknown or repeated, or there are more entries than dims.
        IndivisibleError: if a dim does not divide by its axes.
    """
    instance_of(global_mesh, Mesh, what, "global_mesh")
    if not isinstance(mesh_axes, (PartitionSpec, list, tuple)):
        advice = f" Write P({mesh_axes!r})." if isinstance(mesh_axes, str) else ""
        raise ArgumentError(
            f"{what}: mesh_axes is {shown(mesh_axes)} of type {type(mesh_axes).__name__}; it must "
            "be a PartitionSpec, or a list or tuple with an axis name, a tuple of names or None "
            f"for each dim; P() splits none.{advice}"
        )
    shape = shape_of(global_shape, what, "global_shape")
    try:
        spec = mesh_axes if isinstance(mesh_axes, PartitionSpec) else PartitionSpec(*mesh_axes)
        return _places(shape, global_mesh, spec)
    except ShardingError as error:
        note = ""
        if isinstance(error, IndivisibleError):
            note = " The shards of a GlobalDeviceArray have one shape; an Array's may be uneven."
        raise type(error)(
            f"{what}: mesh_axes {shown(mesh_axes)} cannot lay out global_shape {shape} over "
            f"global_mesh {global_mesh!r}. {error}{note}"
        ) from None


def get_shard_indices(
    global_shape: Sequence[int], global_mesh: Mesh, mesh_axes: MeshAxes
) -> Mapping[Device, Index]:
    """Return for each device of a mesh, in mesh order, the index of its shard.

    Args:
        global_shape: the shape of the whole array.
        global_mesh: the mesh; its devices need not exist.
        mesh_axes: a spec, or a sequence of its entries.

    Returns:
        A read-only mapping of each device to a tuple of slices into the whole array. It is computed
        once for the same arguments.

    Raises:
        ShapeError: if ``global_shape`` is not a shape.
        ArgumentError: if ``global_mesh`` is not a mesh, or ``mesh_axes`` not a sequence of entries.
        SpecError: if an axis is unknown or repeated, or there are more entries than dims.
        IndivisibleError: if a dim does not divide by its axes.

    >>> import meshard
    >>> from meshard.gda import get_shard_indices
    >>> first = meshard.devices()[0]
    >>> get_shard_indices((8, 2), meshard.make_mesh((1,), ("x",)), ["x"])[first]
    (slice(None, None, None), slice(None, None, None))
    """
    return places_of("get_shard_indices", global_shape, global_mesh, mesh_axes).indices


def get_shard_indices_replica_ids(
    global_shape: Sequence[int], global_mesh: Mesh, mesh_axes: MeshAxes
) -> Mapping[Device, tuple[Index, int]]:
    """Return for each device of a mesh the index of its shard and its replica id.

    The replica id counts the devices that hold the same index, in mesh order, from 0. Arguments
    and refusals are those of `get_shard_indices`.

    Returns:
        A read-only mapping of each device to (index, replica id), computed once for the same
        arguments.

    >>> import meshard
    >>> from meshard.gda import get_shard_indices_replica_ids
    >>> mesh = meshard.make_mesh((meshard.device_count(),), ("x",))
    >>> places = get_shard_indices_replica_ids((3,), mesh, meshard.P())
    >>> [replica_id for _, replica_id in places.values()] == list(range(mesh.size))
    True
    """
    what = "get_shard_indices_replica_ids"
    return places_of(what, global_shape, global_mesh, mesh_axes).indices_replica_ids


def get_shard_shape(
    global_shape: Sequence[int], global_mesh: Mesh, mesh_axes: MeshAxes
) -> tuple[int, ...]:
    """Return the shape that every shard has. Arguments and refusals: see `get_shard_indices`.

    >>> import meshard
    >>> from meshard.gda import get_shard_shape
    >>> mesh = meshard.make_mesh((meshard.device_count(),), ("x",))
    >>> get_shard_shape((3 * mesh.size, 2), mesh, ["x"])
    (3, 2)
    """
    return places_of("get_shard_shape", global_shape, global_mesh, mesh_axes).shard_shape
