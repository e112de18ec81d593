"""`GlobalDeviceArray`: one logical array as the shards of its devices, as JAX had it before Array.

In: buffers, callbacks or an `Array`. Out: a view of the same blocks that an `Array` holds;
`to_array` and `from_array` go between the two without copying. Nothing here communicates.

The buffers of a `GlobalDeviceArray`: checked if given, or made by a callback.

In: a program's values for each of this process's devices. Out: an Array on each, of one dtype.

Where the shards of a `GlobalDeviceArray` are; computed once per shape, mesh and mesh axes.

In: a shape, a mesh and its axes for each dim. Out: for each device its index and replica id.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from types import MappingProxyType
from typing import Any, NoReturn, final

import numpy as np

from meshard.algebra.arguments import function_of, instance_of, integer_of, shape_of, shown
from meshard.algebra.box import Box, Index
from meshard.algebra.device import Device
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import NamedSharding, SingleDeviceSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import ArgumentError, IndexingError, IndivisibleError, ShapeError, ShardingError
from meshard.runtime.array.array import Array, Shard
from meshard.runtime.moving.make import make_array_from_single_device_arrays
from meshard.runtime.moving.place import as_host, check_devices_exist, dtype_of, filled, placed
from meshard.runtime.types import Block, dtype_name
from meshard.runtime.world import here
from meshard.transforms.tracing.signature import ArrayHolder

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


Dtype = np.dtype[Any]


def checked_buffers(
    what: str, who: str, places: Places, given: Mapping[Device, object], dtype: Any, order: str
) -> Dtype:
    """Return the dtype of buffers, after checking that each fits its device's shard.

    Args:
        what: the function that was called, for messages.
        who: the name of a buffer in messages, with ``{}`` for its number.
        places: where the shards are.
        given: the buffer for each of this process's devices.
        dtype: the dtype that they must have; None for that of the first.
        order: the end of the message for a buffer on another device.
    """
    wanted = _wanted_dtype(what, places, dtype)
    for i, (device, buffer) in enumerate(given.items()):
        name = who.format(i)
        if type(buffer) is not Array:
            raise ArgumentError(
                f"{what}: {name} is a {type(buffer).__name__}, not an Array on {device!r}. Write "
                "meshard.device_put(x, device), or leave that to GlobalDeviceArray.from_callback."
            )
        if not isinstance(buffer.device, Device):
            raise ShardingError(
                f"{what}: {name} is on {buffer.sharding.num_devices} devices; it must be on "
                f"one, {device!r}. Take the data of x.addressable_shards, or give the whole Array "
                "to GlobalDeviceArray.from_array."
            )
        if buffer.device != device:
            raise ShardingError(
                f"{what}: {name} is on {buffer.device!r}, but should be on {device!r}: {order}."
            )
        buffer._live()
        wanted = _checked(what, name, places, device, buffer, wanted)
    assert wanted is not None
    return wanted


def made_buffers(
    what: str, places: Places, shards: Sequence[Callable[[], Any]], dtype: Any
) -> tuple[list[Array], Dtype]:
    """Return the shards made on each of this process's devices, and their dtype.

    Args:
        what: the function that was called, for messages.
        places: where the shards are.
        shards: for each local device, the function that makes its shard.
        dtype: the dtype to convert the shards to, within one kind of numbers; None for the first's.
    """
    target = wanted = _wanted_dtype(what, places, dtype)
    buffers = []
    for device, shard in zip(places.local_devices, shards, strict=True):
        # In a list, so that memory to which nothing else refers is known to be ours, and not
        # copied.
        held = [shard()]
        if not (type(held[0]) is Array and held[0].is_fully_addressable):
            held[0] = as_host(held[0], what)
        own = held[0].dtype
        if target is not None and own != target and np.can_cast(own, target, "same_kind"):
            held[0] = held[0].astype(target)
        wanted = _checked(what, "what data_callback returned", places, device, held[0], wanted)
        buffers.append(_put(what, held, device))
    assert wanted is not None
    return buffers, wanted


def _put(what: str, held: list[Any], device: Device) -> Array:
    """Return the one value of a list on a device, and take it out of the list."""
    alone = SingleDeviceSharding(device)
    if type(held[0]) is Array:
        return placed(held.pop(), alone, what=what)
    kind = here().type_of(held[0].shape, held[0].dtype, alone, True)
    return filled(here(), kind, lambda _: held.pop(), what)


def listed(what: str, given: Iterable[Any]) -> list[Any]:
    """Return the result of a callback as a list of arrays."""
    if isinstance(given, (str, bytes, dict)) or not isinstance(given, Iterable):
        raise ArgumentError(
            f"{what}: data_callback returned a {type(given).__name__}; it must return a list of "
            "arrays."
        )
    return list(given)


def _wanted_dtype(what: str, places: Places, given: Any) -> Dtype | None:
    """Return the dtype that was asked for; None if the first shard decides."""
    if given is not None:
        return dtype_of(given, what)
    if not places.local_devices:
        raise ArgumentError(
            f"{what}: process {here().process_index} has no device of {places.sharding.mesh!r}, "
            "so that no shard gives the dtype; pass dtype=."
        )
    return None


def _checked(
    what: str, name: str, places: Places, device: Device, value: Array | Block, wanted: Dtype | None
) -> Dtype:
    """Return the dtype of a value, after checking its shape, and its dtype if one is known."""
    if value.shape != places.shard_shape:
        raise ShapeError(
            f"{what}: expected shard shape {places.shard_shape} for {places.named(device)}, but "
            f"{name} has shape {value.shape}. The whole has shape {places.shape} with "
            f"{places.sharding!r}."
        )
    if wanted is not None and value.dtype != wanted:
        raise ShardingError(
            f"{what}: expected dtype {dtype_name(wanted)} for {places.named(device)}, but {name} "
            f"has dtype {dtype_name(value.dtype)}. All shards must have matching dtypes: that of "
            "dtype=, or else the first one's."
        )
    return value.dtype


@final
class GlobalDeviceArray(ArrayHolder):
    """A logical array as its shards: one buffer for each device of a mesh.

    Each process holds the buffers of its own devices. New programs do not need this type: an
    `Array` serves instead, and `to_array` makes one from the same blocks.

    Args:
        global_shape: the shape of the whole array.
        global_mesh: the mesh, of the devices of all processes.
        mesh_axes: a `PartitionSpec`, or a sequence of its entries, no more than there are dims:
            for each dim an axis name, a tuple of names (split over their product, the first the
            slowest) or None.
        device_buffers: an Array on each of ``global_mesh.local_devices``, in that order. Buffers of
            one index should be equal.
        dtype: the buffers' dtype; needed by a process that has no device of the mesh.

    Raises:
        ShardingError: if there are too few or too many buffers, one is on another device than
            its place in the order, or their dtypes differ; if a device does not exist.
        ShapeError: if a buffer has another shape than its shard, or ``global_shape`` is not a
            shape.
        SpecError: if an axis is unknown or repeated, or there are more entries than dims.
        IndivisibleError: if a dim does not divide by its axes.
        ArgumentError: if an argument has the wrong type, or ``dtype`` is needed and not given.
        DeletedArrayError: if a buffer was deleted.

    >>> import numpy as np, meshard
    >>> from meshard.gda import GlobalDeviceArray
    >>> mesh = meshard.make_mesh((meshard.device_count(),), ("x",))
    >>> buffers = [meshard.device_put(np.ones((2, 3)), d) for d in mesh.local_devices]
    >>> whole = GlobalDeviceArray((2 * mesh.size, 3), mesh, meshard.P("x"), buffers)
    >>> whole.ndim, whole.dtype, whole.local_data(0).shape
    (2, dtype('float64'), (2, 3))
    """

    __slots__ = (
        "__weakref__",
        "_buffers",
        "_dtype",
        "_global_shards",
        "_local_shards",
        "_mesh_axes",
        "_places",
        "_sharding",
    )

    def __init__(
        self,
        global_shape: Sequence[int],
        global_mesh: Mesh,
        mesh_axes: MeshAxes,
        device_buffers: Sequence[Array],
        *,
        dtype: Any = None,
    ) -> None:
        what = "GlobalDeviceArray"
        places = _real_places(what, global_shape, global_mesh, mesh_axes)
        if not isinstance(device_buffers, (list, tuple)):
            raise ArgumentError(
                f"{what}: device_buffers is a {type(device_buffers).__name__}; give a list or "
                "tuple of Arrays, one for each of global_mesh.local_devices."
            )
        if len(device_buffers) != len(places.local_devices):
            raise ShardingError(
                f"{what}: device_buffers has {len(device_buffers)} buffers, but this process has "
                f"{len(places.local_devices)} devices of {global_mesh!r}. Give one buffer for each "
                "of global_mesh.local_devices, in that order."
            )
        order = (
            "the `global_mesh.local_devices` and `device_buffers` device order doesn't match. Put "
            "the buffers on the devices of global_mesh.local_devices, in that order; the order of "
            "meshard.local_devices() may differ"
        )
        known = dict(zip(places.local_devices, device_buffers, strict=True))
        found = checked_buffers(what, "device_buffers[{}]", places, known, dtype, order)
        self._fill(places, mesh_axes, device_buffers, found)

    def _fill(
        self,
        places: Places,
        mesh_axes: MeshAxes,
        buffers: Sequence[Array],
        dtype: np.dtype[Any],
        sharding: NamedSharding | None = None,
    ) -> GlobalDeviceArray:
        """Set the checked attributes; ``sharding`` is another with the same layout."""
        self._places = places
        self._sharding = sharding or places.sharding
        self._mesh_axes = _kept(mesh_axes)
        self._buffers = tuple(buffers)
        self._dtype = dtype
        self._local_shards: tuple[Shard, ...] | None = None
        self._global_shards: tuple[Shard, ...] | None = None
        return self

    # what it is

    @property
    def shape(self) -> tuple[int, ...]:
        """The global shape."""
        return self._places.shape

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self._places.shape)

    @property
    def size(self) -> int:
        """The number of elements of the whole array."""
        return math.prod(self._places.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype."""
        return self._dtype

    @property
    def mesh(self) -> Mesh:
        """The mesh."""
        return self._places.sharding.mesh

    @property
    def mesh_axes(self) -> MeshAxes:
        """The entries that say which axes split each dim, as they were given."""
        return _kept(self._mesh_axes)

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device holds the whole array."""
        return self._places.shard_shape == self._places.shape

    # its pieces

    @property
    def local_shards(self) -> list[Shard]:
        """The shards of this process's devices, with their data, in mesh order."""
        if self._local_shards is None:
            places = self._places.indices_replica_ids
            self._local_shards = tuple(
                Shard(device, *places[device], data)
                for device, data in zip(self._places.local_devices, self._buffers, strict=True)
            )
        return list(self._local_shards)

    @property
    def addressable_shards(self) -> list[Shard]:
        """The same as `local_shards`."""
        return self.local_shards

    @property
    def global_shards(self) -> list[Shard]:
        """The shards of all devices; ``data`` is None where another process holds it."""
        if self._global_shards is None:
            local = {shard.device: shard for shard in self.local_shards}
            self._global_shards = tuple(
                local.get(device) or Shard(device, index, replica_id)
                for device, (index, replica_id) in self._places.indices_replica_ids.items()
            )
        return list(self._global_shards)

    def local_data(self, index: int) -> Array:
        """Return the data of one of this process's shards, an array on its device.

        Raises:
            IndexingError: if this process does not hold such a shard.
        """
        return self._data("local_data", index)

    def addressable_data(self, index: int) -> Array:
        """Return the data of one of this process's shards: the same as `local_data`.

        Raises:
            IndexingError: if this process does not hold such a shard.
        """
        return self._data("addressable_data", index)

    def _data(self, what: str, index: int) -> Array:
        count = len(self._buffers)
        place = integer_of(index, what, "index", error=IndexingError)
        if not -count <= place < count:
            raise IndexingError(f"{what}({shown(index)}): this process holds {count} shards.")
        return self._buffers[place]

    def block_until_ready(self) -> GlobalDeviceArray:
        """Return the array itself; its data is complete as soon as it exists.

        Raises:
            DeletedArrayError: if a buffer was deleted.
        """
        for buffer in self._buffers:
            buffer._live()
        return self

    # from callbacks

    @classmethod
    def from_callback(
        cls,
        global_shape: Sequence[int],
        global_mesh: Mesh,
        mesh_axes: MeshAxes,
        data_callback: Callable[[Index], Any],
        *,
        dtype: Any = None,
    ) -> GlobalDeviceArray:
        """Make an array from the values of a callback, called for each of this process's devices.

        Args:
            global_shape: the shape of the whole array.
            global_mesh: the mesh.
            mesh_axes: a spec, or a sequence of its entries.
            data_callback: called with the index of each local device, a tuple of slices into the
                whole array, in the order of ``global_mesh.local_devices``; returns anything that
                NumPy converts to an array, or an Array. Values that can still change are copied.
            dtype: the dtype to convert the shards to, within one kind of numbers; needed by a
                process that has no device of the mesh. By default the first shard's.

        Raises:
            ShapeError: if a shard has another shape than it should; the index is named.
            ShardingError: if a shard has another dtype than the first; the index is named.
            ArgumentError, SpecError, IndivisibleError: as the class itself.

        >>> import meshard
        >>> mesh = meshard.make_mesh((meshard.device_count(),), ("x",))
        >>> rows = np.arange(4.0 * mesh.size).reshape(-1, 2)
        >>> x = GlobalDeviceArray.from_callback(rows.shape, mesh, ["x"], lambda index: rows[index])
        >>> x.local_data(0)
        Array([[0., 1.],
               [2., 3.]], dtype=float64)
        """
        what = "GlobalDeviceArray.from_callback"
        places = _real_places(what, global_shape, global_mesh, mesh_axes)
        function_of(data_callback, what, "data_callback")
        shards = [partial(data_callback, places.indices[d]) for d in places.local_devices]
        return cls.__new__(cls)._fill(places, mesh_axes, *made_buffers(what, places, shards, dtype))

    @classmethod
    def from_batched_callback(
        cls,
        global_shape: Sequence[int],
        global_mesh: Mesh,
        mesh_axes: MeshAxes,
        data_callback: Callable[[Sequence[Index]], Sequence[Any]],
        *,
        dtype: Any = None,
    ) -> GlobalDeviceArray:
        """Make an array from the values of a callback, called once for this process's devices.

        Args:
            global_shape: the shape of the whole array.
            global_mesh: the mesh.
            mesh_axes: a spec, or a sequence of its entries.
            data_callback: called once, with a list of one index per local device, in the order of
                ``global_mesh.local_devices``; returns as many array-likes, in the same order.
            dtype: as in `from_callback`.

        Raises:
            ShardingError: if the callback returns another number of arrays than there are indices;
                if a shard has another dtype than the first; the index is named.
            ShapeError: if a shard has another shape than it should; the index is named.
            ArgumentError, SpecError, IndivisibleError: as the class itself.

        >>> import meshard
        >>> mesh = meshard.make_mesh((meshard.device_count(),), ("x",))
        >>> x = GlobalDeviceArray.from_batched_callback(
        ...     (2 * mesh.size,), mesh, ["x"], lambda indices: [[1, 2] for _ in indices]
        ... )
        >>> x.local_data(-1)
        Array([1, 2], dtype=int64)
        """
        what = "GlobalDeviceArray.from_batched_callback"
        places = _real_places(what, global_shape, global_mesh, mesh_axes)
        indices = [places.indices[d] for d in places.local_devices]
        count = len(indices)
        function_of(data_callback, what, "data_callback")
        values = listed(what, data_callback(indices))
        if len(values) != count:
            raise ShardingError(
                f"{what}: data_callback returned {len(values)} arrays for {count} indices. It must "
                "return one for each index that it is given, in the same order."
            )
        shards = [partial(values.pop, 0)] * count
        return cls.__new__(cls)._fill(places, mesh_axes, *made_buffers(what, places, shards, dtype))

    @classmethod
    def from_batched_callback_with_devices(
        cls,
        global_shape: Sequence[int],
        global_mesh: Mesh,
        mesh_axes: MeshAxes,
        data_callback: Callable[[Sequence[tuple[Index, tuple[Device, ...]]]], Sequence[Array]],
        *,
        dtype: Any = None,
    ) -> GlobalDeviceArray:
        """Make an array from arrays that a callback has put on this process's devices.

        Args:
            global_shape: the shape of the whole array.
            global_mesh: the mesh.
            mesh_axes: a spec, or a sequence of its entries.
            data_callback: called once, with a list of (index, devices): each distinct index with
                all the local devices that hold it. Indices are in the order of their first
                devices, and devices in that of ``global_mesh.local_devices``. It returns a flat
                list of Arrays, one on each device, in the order in which it was given them.
            dtype: the arrays' dtype; needed by a process that has no device of the mesh.

        Raises:
            ShardingError: if there are too few or too many arrays, one is on another device than
                its place in the order, or their dtypes differ.
            ShapeError: if an array has another shape than its shard; the index is named.
            ArgumentError, SpecError, IndivisibleError: as the class itself.

        >>> import meshard
        >>> mesh = meshard.make_mesh((meshard.device_count(),), ("x",))
        >>> def ones(places):
        ...     return [meshard.device_put(np.ones(3), d) for _, group in places for d in group]
        >>> x = GlobalDeviceArray.from_batched_callback_with_devices((3,), mesh, [], ones)
        >>> x.is_fully_replicated
        True
        """
        what = "GlobalDeviceArray.from_batched_callback_with_devices"
        places = _real_places(what, global_shape, global_mesh, mesh_axes)
        function_of(data_callback, what, "data_callback")
        groups: dict[Box, list[Device]] = {}
        for device in places.local_devices:
            groups.setdefault(places.box(device), []).append(device)
        asked = [(places.indices[group[0]], tuple(group)) for group in groups.values()]
        given = listed(what, data_callback(asked))
        order = [device for group in groups.values() for device in group]
        if len(given) != len(order):
            raise ShardingError(
                f"{what}: data_callback returned {len(given)} arrays for {len(order)} devices, "
                f"which hold {len(groups)} indices. It must return one flat list with an array for "
                "each device of each index, in the order given."
            )
        law = "the arrays must come in the order in which data_callback was given the devices"
        known = dict(zip(order, given, strict=True))
        who = "array {} of what data_callback returned"
        found = checked_buffers(what, who, places, known, dtype, law)
        return cls.__new__(cls)._fill(
            places, mesh_axes, [known[d] for d in places.local_devices], found
        )

    # to and from Array

    def to_array(self) -> Array:
        """Return the Array of the same blocks; nothing is copied.

        If several buffers have one index, they should be equal; the Array has the first.

        Raises:
            DeletedArrayError: if a buffer was deleted.

        >>> import meshard
        >>> mesh = meshard.make_mesh((meshard.device_count(),), ("x",))
        >>> x = GlobalDeviceArray.from_callback((2,), mesh, [], lambda index: np.arange(2.0))
        >>> x.to_array()
        Array([0., 1.], dtype=float64)
        """
        return make_array_from_single_device_arrays(
            self.shape, self._sharding, self._buffers, dtype=self._dtype
        )

    @classmethod
    def from_array(cls, x: Array) -> GlobalDeviceArray:
        """Make an array from the blocks of an Array; nothing is copied.

        Args:
            x: an array whose sharding is a `NamedSharding`, with shards of one shape.

        Raises:
            ArgumentError: if ``x`` is not an Array.
            ShardingError: if its sharding has no mesh, or its shards differ in shape.
            DeletedArrayError: if it was deleted.

        >>> import meshard
        >>> mesh = meshard.make_mesh((meshard.device_count(),), ("x",))
        >>> sharding = meshard.NamedSharding(mesh, meshard.P("x"))
        >>> GlobalDeviceArray.from_array(meshard.device_put(np.zeros(2 * mesh.size), sharding)).ndim
        1
        """
        what = "GlobalDeviceArray.from_array"
        if type(x) is not Array:
            raise ArgumentError(
                f"{what}: expected an Array, got a {type(x).__name__}. Lay it out first: "
                "meshard.device_put(x, NamedSharding(mesh, spec))."
            )
        sharding = x.sharding
        if not isinstance(sharding, NamedSharding):
            raise ShardingError(
                f"{what}: a GlobalDeviceArray needs a mesh, but the array's sharding is "
                f"{sharding!r}. Write meshard.device_put(x, NamedSharding(mesh, spec)) first."
            )
        places = places_of(what, x.shape, sharding.mesh, sharding.spec)
        if sharding.layout(x.shape) != places.sharding.layout(x.shape):
            raise ShardingError(
                f"{what}: the shards of a GlobalDeviceArray have one shape, here "
                f"{places.shard_shape}, but the array's sharding {sharding!r} cuts it unevenly. "
                "Write meshard.device_put(x, NamedSharding(mesh, spec)) first."
            )
        buffers = [shard.data for shard in x.addressable_shards]
        return cls.__new__(cls)._fill(places, sharding.spec, buffers, x.dtype, sharding)

    # Python's protocols

    def __str__(self) -> str:
        return f"GlobalDeviceArray(shape={self.shape}, dtype={dtype_name(self._dtype)})"

    def __repr__(self) -> str:
        return (
            f"GlobalDeviceArray(shape={self.shape}, dtype={dtype_name(self._dtype)}, "
            f"global_mesh_shape={dict(self.mesh.shape)}, mesh_axes={self._mesh_axes!r})"
        )

    def __eq__(self, other: object) -> bool:
        raise NotImplementedError(
            "GlobalDeviceArray equality is intentionally unimplemented: it could mean the "
            "elements, the layout or the identity. For the elements write "
            "a.to_array() == b.to_array(), an Array of bools, or (a.to_array() == "
            "b.to_array()).all(); all processes must write it together. For identity write a is b."
        )

    def __hash__(self) -> int:
        raise TypeError(
            "GlobalDeviceArrays are unhashable, since they cannot be compared. Use id(x) as a key."
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        raise ArgumentError(
            f"{self} is not converted to a NumPy array: that would gather the shards silently. "
            "Write x.to_array(), which copies nothing, or use x.local_data(i)."
        )

    def __copy__(self) -> GlobalDeviceArray:
        buffers = [buffer.copy() for buffer in self._buffers]
        new = GlobalDeviceArray.__new__(GlobalDeviceArray)
        return new._fill(self._places, self._mesh_axes, buffers, self._dtype, self._sharding)

    def __deepcopy__(self, memo: dict[int, Any]) -> GlobalDeviceArray:
        return self.__copy__()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self} cannot be pickled: its devices are this job's. Pickle x.to_array(), which is "
            "then one whole array, or the data of each of x.local_shards."
        )


def _kept(mesh_axes: MeshAxes) -> MeshAxes:
    """Return the entries as given, in containers that the caller cannot change later."""
    if isinstance(mesh_axes, PartitionSpec):
        return mesh_axes
    entries = [tuple(e) if isinstance(e, list) else e for e in mesh_axes]
    return entries if isinstance(mesh_axes, list) else tuple(entries)


def _real_places(
    what: str, global_shape: Sequence[int], global_mesh: Mesh, mesh_axes: MeshAxes
) -> Places:
    """Return where the shards are, on devices that exist."""
    places = places_of(what, global_shape, global_mesh, mesh_axes)
    check_devices_exist(here(), places.sharding, what)
    return places
