"""Shardings: how a whole array is laid out on devices, before its shape is known.

Shardings given box by box instead of by a mesh.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise, product
from operator import index as whole_number
from typing import TYPE_CHECKING, Literal, final
from weakref import WeakValueDictionary

import numpy as np

from meshard.algebra.abstract import Sharding, box_of, checked_memory_kind
from meshard.algebra.arguments import instance_of, items_of, refusal, shape_of, shown
from meshard.algebra.box import Box, Index
from meshard.algebra.device import Device
from meshard.algebra.frozen import Frozen
from meshard.algebra.layout import (
    Cuts,
    Layout,
    balanced_cuts,
    ceil_cuts,
    cut_points,
    even_cuts,
    listed_cuts,
)
from meshard.algebra.mesh import Mesh
from meshard.algebra.pictured import HasDrawing
from meshard.algebra.spec import PartitionSpec
from meshard.errors import IndivisibleError, ShapeError, ShardingError, SpecError, did_you_mean

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The arrays of a tree often have equal shardings that are not one object. Their layouts are one, as
# long as it is in use, so that it is made once and compared by its address.
_KNOWN: WeakValueDictionary[object, Layout] = WeakValueDictionary()

Uneven = Literal["balanced", "ceil"] | tuple[Cuts | None, ...] | None


def device_tensor(
    ids: NDArray[np.int64], names: tuple[str, ...], axes: Sequence[tuple[str, ...]]
) -> NDArray[np.int64]:
    """Arrange a mesh's device ids as ``T[shard..., replica]``."""
    place = {name: i for i, name in enumerate(names)}
    used = [place[a] for dim in axes for a in dim]
    rest = [i for i in range(len(names)) if i not in used]
    grid = [math.prod(ids.shape[place[a]] for a in dim) for dim in axes]
    replicas = math.prod(ids.shape[i] for i in rest)
    return np.ascontiguousarray(ids.transpose(used + rest).reshape(*grid, replicas))


@final
class NamedSharding(Frozen, HasDrawing, Sharding):
    """A mesh and the spec that says which dims are split over which of its axes.

    Args:
        mesh: the mesh.
        spec: the spec; its axes must be the mesh's, each at most once. A spec with
            ``P.UNCONSTRAINED`` is for `with_sharding_constraint` alone: it has no layout.
        memory_kind: ``"device"`` (the default), ``"pinned_host"`` or ``"unpinned_host"``.
        uneven: what to do where a dim does not divide. None refuses it, as JAX does;
            ``"balanced"`` cuts parts that differ by at most one; ``"ceil"`` cuts equal tiles with
            a short tail; a tuple gives, for each dim, its cut points or None.

    Raises:
        SpecError: if the spec names an unknown axis or one twice.
        ShardingError: if an argument is of another kind.

    >>> import meshard
    >>> from meshard import NamedSharding, P
    >>> meshard.config.update("num_devices", 8)
    >>> mesh = meshard.make_mesh((4, 2), ("x", "y"))
    >>> NamedSharding(mesh, P("x")).shard_shape((8, 6))
    (2, 6)
    >>> NamedSharding(mesh, P("x"), uneven="balanced").layout((10,)).cuts
    ((0, 3, 6, 8, 10),)
    """

    mesh: Mesh
    spec: PartitionSpec
    uneven: Uneven
    _memory_kind: str
    _hash: int

    def __init__(
        self,
        mesh: Mesh,
        spec: PartitionSpec,
        *,
        memory_kind: str | None = None,
        uneven: Uneven = None,
    ) -> None:
        _check_mesh_and_spec(mesh, spec)
        seen: set[str] = set()
        for name in (a for dim in spec.axes(len(spec)) for a in dim):
            if name not in mesh.axis_names:
                raise SpecError(
                    f"NamedSharding: axis {name!r} of {spec} is not found in mesh {mesh!r}; "
                    f"its axes are {mesh.axis_names}.{did_you_mean(name, mesh.axis_names)}"
                )
            if name in seen:
                raise SpecError(
                    f"NamedSharding: {spec} has duplicate entries for axis {name!r}; a mesh axis "
                    "can split at most one dim."
                )
            seen.add(name)
        kind, shares = checked_memory_kind(memory_kind), _uneven(uneven)
        vars(self).update(
            mesh=mesh,
            spec=spec,
            _memory_kind=kind,
            uneven=shares,
            _hash=hash((mesh, spec, kind, shares)),
        )

    @property
    def memory_kind(self) -> str:
        """The kind of memory that the blocks live in."""
        return self._memory_kind

    def on_mesh(self, mesh: Mesh) -> NamedSharding:
        """Return the sharding over another mesh, which has the axes that the spec names."""
        return NamedSharding(mesh, self.spec, memory_kind=self._memory_kind, uneven=self.uneven)

    def with_memory_kind(self, kind: str) -> NamedSharding:
        """Return the same sharding in another kind of memory."""
        return NamedSharding(self.mesh, self.spec, memory_kind=kind, uneven=self.uneven)

    def with_spec(self, spec: PartitionSpec | Sequence[object]) -> NamedSharding:
        """Return the sharding of another spec on the same mesh."""
        given = spec_of(spec, "NamedSharding.with_spec", "spec")
        keep = self.uneven if isinstance(self.uneven, str) else None
        return NamedSharding(self.mesh, given, memory_kind=self._memory_kind, uneven=keep)

    @property
    def device_set(self) -> set[Device]:
        """The devices, as a set of the caller's own: it may take devices out."""
        return self._devices.copy()

    @cached_property
    def _devices(self) -> set[Device]:
        return set(self.mesh.flat_devices)

    @property
    def device_order(self) -> tuple[Device, ...]:
        """The devices in mesh order."""
        return self.mesh.flat_devices

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        return self.mesh.size

    @cached_property
    def is_fully_replicated(self) -> bool:
        """Whether every device holds the whole array."""
        used = (a for dim in self.spec.axes(len(self.spec)) for a in dim)
        return not self.spec.unconstrained and all(self.mesh.shape[a] == 1 for a in used)

    @property
    def replicated_axes(self) -> frozenset[str]:
        """The mesh axes that split no dim."""
        used = {a for dim in self.spec.axes(len(self.spec)) for a in dim}
        return frozenset(a for a in self.mesh.axis_names if a not in used)

    def shards(self, ndim: int) -> tuple[int, ...]:
        """Return for each of ``ndim`` dims the number of its shards.

        Raises:
            SpecError: if the spec leaves a dim unconstrained.
        """
        if self.spec.unconstrained:
            raise SpecError(
                f"{self!r} leaves dim {self.spec.unconstrained[0]} unconstrained, so that it does "
                "not say where the elements are. P.UNCONSTRAINED has a meaning in "
                "with_sharding_constraint only; elsewhere write the axes that split the dim, or "
                "None for a dim that is whole on every device."
            )
        return tuple(math.prod(self.mesh.shape[a] for a in dim) for dim in self.spec.axes(ndim))

    def dim_cuts(self, shape: tuple[int, ...]) -> tuple[Cuts, ...]:
        """Return each dim's cut points, without looking at any device.

        Raises:
            SpecError: if the spec is longer than the rank, or leaves a dim unconstrained.
            IndivisibleError: if a dim does not divide and ``uneven`` does not allow it.
            ShardingError: if explicit cuts do not fit the dim.
        """
        shape = self._shape(shape, "dim_cuts", "shape")
        return tuple([listed_cuts(c) for c in self._points(shape)])

    def _points(self, shape: tuple[int, ...]) -> tuple[Cuts | NDArray[np.int64], ...]:
        """Return each dim's cut points, as an array where there are many."""
        if len(self.spec) > len(shape):
            raise SpecError(
                f"{self!r} is only valid for arrays of rank at least {len(self.spec)}, but the "
                f"shape is {shape}, of rank {len(shape)}. Remove entries from the spec."
            )
        if isinstance(self.uneven, tuple) and len(self.uneven) > len(shape):
            raise ShardingError(
                f"NamedSharding: uneven gives the cuts of {len(self.uneven)} dims, but the shape "
                f"{shape} has {len(shape)}."
            )
        cuts: list[Cuts | NDArray[np.int64]] = []
        for dim, (size, n) in enumerate(zip(shape, self.shards(len(shape)), strict=True)):
            explicit = self._explicit(dim)
            if explicit is not None:
                cuts.append(_checked_cuts(explicit, dim, size, n))
            elif size % n == 0:
                cuts.append(cut_points(even_cuts, size, n))
            elif self.uneven is None or isinstance(self.uneven, tuple):
                raise IndivisibleError(
                    f"{self!r} splits dim {dim} over {self.spec.axes(len(shape))[dim]}: "
                    f"the global size of its dimension {dim} should be divisible by {n}, but it "
                    f"is equal to {size} (full shape: {shape}). Pad the dim to "
                    f"{-(-size // n) * n}, or allow uneven shards with "
                    f"NamedSharding(mesh, spec, uneven='balanced')."
                )
            else:
                rule = balanced_cuts if self.uneven == "balanced" else ceil_cuts
                cuts.append(cut_points(rule, size, n))
        return tuple(cuts)

    def _explicit(self, dim: int) -> Cuts | None:
        if isinstance(self.uneven, tuple) and dim < len(self.uneven):
            return self.uneven[dim]
        return None

    def _layout(self, shape: tuple[int, ...]) -> Layout:
        axes = self.spec.axes(len(shape))
        key = shape, self.spec if self.spec.unconstrained else axes, self.uneven, self.mesh
        found = _KNOWN.get(key)
        if found is None:
            points = self._points(shape)
            ids = device_tensor(self.mesh.device_ids, self.mesh.axis_names, axes)
            found = _KNOWN[key] = Layout(shape, points, ids)
        return found

    def shard_shape(self, global_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of one shard; of the longest along each dim, where they differ."""
        cuts = self.dim_cuts(self._shape(global_shape, "shard_shape"))
        return tuple([max(b - a for a, b in pairwise(c)) for c in cuts])

    def devices_indices_map(self, global_shape: tuple[int, ...]) -> Mapping[Device, Index]:
        """Return for each device, in mesh order, the tuple of slices that it holds."""
        shape = self._shape(global_shape, "devices_indices_map")
        layout = self.layout(shape)
        spans = [
            [slice(None)] if len(c) == 2 else [slice(a, b) for a, b in pairwise(c)]
            for c in layout.cuts
        ]
        cells = list(product(*spans))
        place = np.arange(self.mesh.size).reshape(self.mesh.axis_sizes)
        order = device_tensor(place, self.mesh.axis_names, self.spec.axes(len(shape))).reshape(-1)
        cell_of = np.empty(self.mesh.size, np.int64)
        cell_of[order] = np.repeat(np.arange(len(cells)), layout.replicas)
        return dict(
            zip(self.mesh.flat_devices, map(cells.__getitem__, cell_of.tolist()), strict=True)
        )

    def _pattern(self, ndim: int) -> object:
        if self.spec.unconstrained:
            return None
        if self.num_devices == 1:
            return ("one",)
        axes = self.spec.axes(ndim)
        if any(axes[ndim:]):
            return None
        axes = axes[:ndim]
        tensor = device_tensor(self.mesh.device_ids, self.mesh.axis_names, axes)
        split = any(self.mesh.shape[a] > 1 for dim in axes for a in dim)
        return tensor.shape, tensor.tobytes(), self.uneven if split else None

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, NamedSharding):
            return NotImplemented
        return (
            self._hash == other._hash
            and self.spec == other.spec
            and self.mesh == other.mesh
            and self._memory_kind == other._memory_kind
            and self.uneven == other.uneven
        )

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        uneven = "" if self.uneven is None else f", uneven={self.uneven!r}"
        return (
            f"NamedSharding(mesh={self.mesh!r}, spec={self.spec!r}, "
            f"memory_kind={self._memory_kind}{uneven})"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return _named, (self.mesh, self.spec, self._memory_kind, self.uneven)


def spec_of(given: object, what: str, name: str) -> PartitionSpec:
    """Return a spec, given as one or as a sequence of its entries.

    Raises:
        SpecError: if it is neither.
    """
    if isinstance(given, PartitionSpec):
        return given
    return PartitionSpec(*items_of(given, what, name, "the spec's entries", error=SpecError))


def _check_mesh_and_spec(mesh: object, spec: object) -> None:
    """Refuse other first arguments of a NamedSharding."""
    what = "NamedSharding"
    if isinstance(mesh, PartitionSpec) and isinstance(spec, Mesh):
        raise ShardingError(
            f"{what}: mesh and spec are swapped: the first argument is the spec {mesh!r}, the "
            f"second the mesh {spec!r}. Write NamedSharding(mesh, {mesh!r})."
        )
    if not isinstance(mesh, Mesh):
        advice = "Make one with meshard.make_mesh."
        raise ShardingError(refusal(what, "mesh", "a Mesh", mesh, advice))
    if not isinstance(spec, PartitionSpec):
        entries = spec if isinstance(spec, (tuple, list)) else (spec,)
        known = all(e is None or isinstance(e, (str, tuple)) for e in entries)
        advice = f"Write P({', '.join(map(repr, entries)) if known else '...'})."
        raise ShardingError(refusal(what, "spec", "a PartitionSpec", spec, advice))


def _named(mesh: Mesh, spec: PartitionSpec, memory_kind: str, uneven: Uneven) -> NamedSharding:
    return NamedSharding(mesh, spec, memory_kind=memory_kind, uneven=uneven)


def _uneven(given: object) -> Uneven:
    """Return the uneven argument in its normal form."""
    if given is None:
        return None
    if isinstance(given, str) and given == "balanced":
        return "balanced"
    if isinstance(given, str) and given == "ceil":
        return "ceil"
    wrong = ShardingError(
        f"NamedSharding: uneven={shown(given)} is not None, 'balanced', 'ceil' or a tuple that "
        "gives for each dim its cut points, which are integers, or None."
        f"{did_you_mean(given, ('balanced', 'ceil'))}"
    )
    if not isinstance(given, (tuple, list)):
        raise wrong
    try:
        cuts = tuple(None if c is None else tuple(map(whole_number, c)) for c in given)
    except (TypeError, OverflowError):
        raise wrong from None
    while cuts and cuts[-1] is None:
        cuts = cuts[:-1]
    return cuts or None


def _checked_cuts(cuts: Cuts, dim: int, size: int, shards: int) -> Cuts:
    if len(cuts) != shards + 1 or cuts[0] != 0 or cuts[-1] != size or list(cuts) != sorted(cuts):
        raise ShardingError(
            f"NamedSharding: the cuts {cuts} of dim {dim} do not cut its size {size} into "
            f"{shards} parts: they must be {shards + 1} numbers that rise from 0 to {size}."
        )
    return cuts


def _single(device: Device, memory_kind: str) -> SingleDeviceSharding:
    return SingleDeviceSharding(device, memory_kind=memory_kind)


@final
class SingleDeviceSharding(Frozen, Sharding):
    """The whole array on one device.

    >>> from meshard.sharding import SingleDeviceSharding
    >>> from meshard import Device
    >>> SingleDeviceSharding(Device(2)).shard_shape((3, 4))
    (3, 4)
    """

    device: Device
    _memory_kind: str
    _hash: int

    def __init__(self, device: Device, *, memory_kind: str | None = None) -> None:
        if not isinstance(device, Device):
            raise ShardingError(f"SingleDeviceSharding: {shown(device)} is not a Device.")
        kind = checked_memory_kind(memory_kind)
        vars(self).update(device=device, _memory_kind=kind, _hash=hash(("single", device, kind)))

    @property
    def memory_kind(self) -> str:
        """The kind of memory that the block lives in."""
        return self._memory_kind

    def with_memory_kind(self, kind: str) -> SingleDeviceSharding:
        """Return the same sharding in another kind of memory."""
        return SingleDeviceSharding(self.device, memory_kind=kind)

    @property
    def device_set(self) -> set[Device]:
        """The one device, as a set."""
        return {self.device}

    @property
    def device_order(self) -> tuple[Device, ...]:
        """The one device."""
        return (self.device,)

    def devices_indices_map(self, global_shape: tuple[int, ...]) -> Mapping[Device, Index]:
        """Return the whole index for the one device."""
        shape = self._shape(global_shape, "devices_indices_map")
        return {self.device: (slice(None),) * len(shape)}

    def _layout(self, shape: tuple[int, ...]) -> Layout:
        cuts = tuple([(0, n) for n in shape])
        return Layout(shape, cuts, np.full((1,) * len(shape) + (1,), self.device.id, np.int64))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SingleDeviceSharding):
            return NotImplemented
        return self.device == other.device and self._memory_kind == other._memory_kind

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        return _single, (self.device, self._memory_kind)

    def __repr__(self) -> str:
        return f"SingleDeviceSharding(device={self.device!r}, memory_kind={self._memory_kind})"


@final
class Unplaced(Sharding):
    """Where a value is that is on no devices yet, as in a function that `jit` traces.

    As an argument it asks for no place. Its shapes are those of one device.

    Args:
        device: the device that it would be on by itself.
    """

    def __init__(self, device: Device) -> None:
        self._alone = SingleDeviceSharding(device)

    @property
    def device_set(self) -> set[Device]:
        """The device that it would be on by itself."""
        return self._alone.device_set

    def devices_indices_map(self, global_shape: tuple[int, ...]) -> Mapping[Device, Index]:
        """Return the whole index for that device."""
        return self._alone.devices_indices_map(global_shape)

    def __eq__(self, other: object) -> bool:
        return self._alone == other._alone if isinstance(other, Unplaced) else NotImplemented

    def __hash__(self) -> int:
        return hash((Unplaced, self._alone))

    def __repr__(self) -> str:
        return "Unplaced()"


@final
class BoxSharding(Sharding):
    """A sharding of one shape, given box by box instead of by a mesh.

    Args:
        global_shape: the shape of the arrays that it lays out.
        boxes: for each device its box, as a tuple of slices with step one, or a `Box`.

    Devices may hold the same box (replicas), and boxes may overlap; together they must hold every
    element.

    Raises:
        CoverageError: if the boxes leave a gap; the message names it.
        ShardingError: if there are no boxes, or one does not fit the shape.

    >>> from meshard.sharding import BoxSharding
    >>> from meshard import Device
    >>> halves = BoxSharding((4,), {Device(0): (slice(0, 1),), Device(1): (slice(1, 4),)})
    >>> halves.layout((4,)).cuts
    ((0, 1, 4),)
    """

    def __init__(
        self, global_shape: Sequence[int], boxes: Mapping[Device, Box | Sequence[slice]]
    ) -> None:
        shape = shape_of(global_shape, "BoxSharding", "global_shape")
        advice = "It maps each device to its box."
        what = "BoxSharding"
        instance_of(boxes, Mapping, what, "boxes", advice=advice, error=ShardingError)  # type: ignore[type-abstract]
        if not boxes:
            raise ShardingError("BoxSharding: no boxes were given.")
        self.global_shape = shape
        self._boxes: dict[Device, Box] = {}
        for device, given in boxes.items():
            self._boxes[device] = _box_in(shape, given, device)
        if len({d.id for d in self._boxes}) != len(self._boxes):
            raise ShardingError("BoxSharding: two of the devices have the same id.")
        self._hash = hash((shape, tuple(self._boxes.items())))
        self.layout(shape)

    @property
    def device_set(self) -> set[Device]:
        """The devices, as a set."""
        return set(self._boxes)

    @property
    def device_order(self) -> tuple[Device, ...]:
        """The devices in the order in which their boxes were given."""
        return tuple(self._boxes)

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device holds the whole array."""
        return all(b == Box.whole(self.global_shape) for b in self._boxes.values())

    def devices_indices_map(self, global_shape: tuple[int, ...]) -> Mapping[Device, Index]:
        """Return for each device its box as slices.

        Raises:
            ShapeError: if the shape is not the one that the boxes were given for.
        """
        shape = self._shape(global_shape, "devices_indices_map")
        if shape != self.global_shape:
            raise ShapeError(
                f"BoxSharding: the boxes are those of an array of shape {self.global_shape}, and "
                f"cannot lay out one of shape {shape}."
            )
        return {d: b.slices for d, b in self._boxes.items()}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BoxSharding):
            return NotImplemented
        mine = (self.global_shape, tuple(self._boxes.items()))
        return mine == (other.global_shape, tuple(other._boxes.items()))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        return BoxSharding, (self.global_shape, self._boxes)

    def __repr__(self) -> str:
        shown = ", ".join(f"{d!r}: {b}" for d, b in list(self._boxes.items())[:4])
        more = f", ... {len(self._boxes) - 4} more" if len(self._boxes) > 4 else ""
        return f"BoxSharding({self.global_shape}, {{{shown}{more}}})"


def _box_in(shape: tuple[int, ...], given: object, device: object) -> Box:
    """Return a device's box in an array of a shape.

    Raises:
        ShardingError: if the device is not one, or the box does not fit the shape.
    """
    if not isinstance(device, Device):
        raise ShardingError(f"BoxSharding: {shown(device)} is not a Device.")
    index = given.slices if isinstance(given, Box) else _slices(given, device)
    box = box_of(index, shape, device, "BoxSharding")
    # NumPy lets a slice reach past the end; here that means the boxes are of another shape.
    outside = any(max(s.start or 0, s.stop or 0) > n for s, n in zip(index, shape, strict=True))
    if outside or (isinstance(given, Box) and box != given):
        asked = ", ".join(f"{_bound(s.start)}:{_bound(s.stop)}" for s in index)
        raise ShardingError(
            f"BoxSharding: the box [{asked}] of {device!r} does not fit the shape {shape}: it "
            "reaches outside, or stops before it starts."
        )
    return box


def _bound(bound: int | None) -> str:
    return "" if bound is None else str(bound)


def _slices(given: object, device: Device) -> Index:
    """Return the index of a device's box; what it holds is checked with the shape."""
    found: tuple[object, ...] = items_of(
        given, "BoxSharding", f"the box of {device!r}", "slices", error=ShardingError
    )
    return found  # type: ignore[return-value]
