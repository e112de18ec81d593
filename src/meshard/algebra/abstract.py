"""What every sharding is: devices, and for each shape the region that each device holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from meshard.algebra.arguments import count_of, instance_of, is_text, shape_of, shown
from meshard.algebra.box import Box, Index
from meshard.algebra.device import Device
from meshard.algebra.layout import Layout, layout_of_boxes
from meshard.algebra.mesh import Mesh
from meshard.algebra.pictured import HasPage
from meshard.algebra.spec import PartitionSpec
from meshard.algebra.world import current
from meshard.errors import ArgumentError, ShapeError, ShardingError, did_you_mean

MEMORY_KINDS = ("device", "pinned_host", "unpinned_host")


def checked_memory_kind(kind: str | None) -> str:
    """Return the kind of memory that is meant; refuse one that the devices do not have."""
    if kind is None:
        return "device"
    if not is_text(kind, *MEMORY_KINDS):
        raise ArgumentError(
            f"memory_kind={shown(kind)} is not one that cpu devices can address: "
            f"{', '.join(MEMORY_KINDS)}.{did_you_mean(kind, MEMORY_KINDS)}"
        )
    return kind


def box_of(index: Sequence[slice], shape: tuple[int, ...], device: Device, whose: str) -> Box:
    """Return the box of one device's index, read as NumPy reads it.

    Raises:
        ShardingError: if the index is not one slice of step one for each dim.
    """
    if len(index) != len(shape):
        raise ShardingError(
            f"{whose}: the box of {device!r} has {len(index)} dims, the shape {shape} has "
            f"{len(shape)}."
        )
    entries: Sequence[object] = index
    for s in entries:
        if not isinstance(s, slice) or s.step not in (None, 1):
            raise ShardingError(
                f"{whose}: the box of {device!r} holds {shown(s)}, which is not a slice of step 1."
            )
    try:
        return Box.from_index(index, shape)
    except TypeError:  # a slice of something else than integers
        raise ShardingError(
            f"{whose}: the box of {device!r}, {shown(tuple(index))}, holds a slice whose ends are "
            "not integers."
        ) from None


_MOST_DIMS = 63
"""NumPy's 64 less one: a layout's tensor of devices has one more dim, for replicas."""


class Sharding(HasPage, ABC):
    """How a whole array is laid out on devices.

    To write your own, define `device_set` and `devices_indices_map`; the rest follows from them.

    Attributes:
        mesh: the mesh. Only a `NamedSharding` has one; other shardings do not have the attribute.
            It is declared here for programs that know theirs and write ``x.sharding.mesh``.
        spec: the mesh axes that each dim is split over; likewise.

    >>> import meshard, numpy as np
    >>> from meshard.sharding import Sharding
    >>> meshard.config.update("num_devices", 8)
    >>> class Halves(Sharding):
    ...     device_set = frozenset(meshard.devices()[:2])
    ...
    ...     def devices_indices_map(self, global_shape):
    ...         first, second = meshard.devices()[:2]
    ...         middle = global_shape[0] // 2
    ...         return {first: (slice(0, middle),), second: (slice(middle, None),)}
    >>> x = meshard.device_put(np.arange(5), Halves())
    >>> [shard.data.tolist() for shard in x.addressable_shards]
    [[0, 1], [2, 3, 4]]
    """

    mesh: Mesh
    spec: PartitionSpec

    @property
    @abstractmethod
    def device_set(self) -> set[Device]:
        """The devices, as a set."""

    @abstractmethod
    def devices_indices_map(self, global_shape: tuple[int, ...]) -> Mapping[Device, Index | None]:
        """Return for each device the tuple of slices that it holds of ``global_shape``."""

    @property
    def memory_kind(self) -> str | None:
        """The kind of memory that the blocks live in."""
        return "device"

    def with_memory_kind(self, kind: str) -> Sharding:
        """Return the same sharding in another kind of memory.

        Raises:
            ArgumentError: if the sharding cannot name a kind, or the device does not have this one.
        """
        if checked_memory_kind(kind) == self.memory_kind:
            return self
        raise ArgumentError(f"{type(self).__name__} does not support memory_kind={shown(kind)}.")

    @property
    def device_order(self) -> tuple[Device, ...]:
        """The devices in the order that decides replica numbers."""
        return tuple(sorted(self.device_set, key=lambda d: d.id))

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        return len(self.device_set)

    @property
    def addressable_devices(self) -> set[Device]:
        """The devices of this process."""
        me = current().process_index
        return {d for d in self.device_set if d.process_index == me}

    @property
    def is_fully_addressable(self) -> bool:
        """Whether all devices belong to this process."""
        me = current().process_index
        return all(d.process_index == me for d in self.device_set)

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device holds the whole array."""
        return self.num_devices == 1

    def layout(self, shape: tuple[int, ...]) -> Layout:
        """Return the layout of an array of ``shape``.

        Raises:
            ShardingError: if the shape cannot be laid out so; the subclass says which law fails.
        """
        known: dict[tuple[int, ...], Layout] = self.__dict__.setdefault("_layouts", {})
        # Simulated processes share shardings: another thread may clear between two lookups.
        try:
            layout = known.get(shape)
        except TypeError:  # it cannot be hashed
            shape, layout = self._shape(shape, "layout", "shape"), None
        if layout is None:
            shape = self._shape(shape, "layout", "shape")
            if len(shape) > _MOST_DIMS:
                raise ShapeError(
                    f"An array of {len(shape)} dims cannot be laid out: there are at most "
                    f"{_MOST_DIMS}, one less than NumPy has. Leave out some dims of size one."
                )
            layout = self._layout(shape)
            if len(known) > 64:
                known.clear()
            known[shape] = layout
        return layout

    def _shape(self, given: object, method: str, name: str = "global_shape") -> tuple[int, ...]:
        """Return a shape that was given to a method."""
        return shape_of(given, f"{type(self).__name__}.{method}", name)

    def _layout(self, shape: tuple[int, ...]) -> Layout:
        indices = self.devices_indices_map(shape)
        boxes = []
        for device in self.device_order:
            index = indices.get(device)
            if index is None:
                raise ShardingError(f"{self!r} gives no index for {device!r} and shape {shape}.")
            boxes.append((device.id, box_of(index, shape, device, type(self).__name__)))
        return layout_of_boxes(shape, boxes)

    def addressable_devices_indices_map(
        self, global_shape: tuple[int, ...]
    ) -> Mapping[Device, Index | None]:
        """Return the index of each of this process's devices."""
        me = current().process_index
        shape = self._shape(global_shape, "addressable_devices_indices_map")
        whole = self.devices_indices_map(shape)
        return {d: index for d, index in whole.items() if d.process_index == me}

    def shard_shape(self, global_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of one shard; of the longest along each dim, where they differ."""
        return self.layout(self._shape(global_shape, "shard_shape")).largest_piece

    def is_equivalent_to(self, other: Sharding, ndim: int) -> bool:
        """Return whether both lay out every array of rank ``ndim`` alike, device by device."""
        what = f"{type(self).__name__}.is_equivalent_to"
        instance_of(other, Sharding, what, "other")  # type: ignore[type-abstract]
        ndim = count_of(ndim, what, "ndim", most=64)
        if self == other:
            return True
        if self.device_order != other.device_order or self.memory_kind != other.memory_kind:
            return False
        mine, theirs = self._pattern(ndim), other._pattern(ndim)
        return mine is not None and mine == theirs

    def _pattern(self, ndim: int) -> object:
        """Return a value that is equal for equivalent shardings; None where nothing is known."""
        return ("one",) if self.num_devices == 1 else None


def same_devices(a: Sharding, b: Sharding) -> bool:
    """Whether two shardings are on the same devices, in whatever order."""
    return a.device_order == b.device_order or set(a.device_order) == set(b.device_order)
