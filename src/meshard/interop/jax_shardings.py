"""Conversion of shardings between JAX and meshard.

Devices with equal ids are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.boxed import BoxSharding
from meshard.algebra.device import Device
from meshard.algebra.layout import Layout
from meshard.algebra.mesh import AxisType, Mesh
from meshard.algebra.sharding import NamedSharding, SingleDeviceSharding
from meshard.algebra.spec import PartitionSpec
from meshard.algebra.world import current
from meshard.errors import ArgumentError, IndivisibleError, ShardingError

try:
    import jax as jax
except ImportError as error:
    raise ImportError(
        f"meshard.interop.jax needs JAX, which cannot be imported here ({error}). Install it with "
        "pip install 'meshard[jax]'; meshard itself never needs it."
    ) from error

if TYPE_CHECKING:
    from numpy.typing import NDArray


def to_meshard(sharding: Any, shape: Sequence[int] | None = None) -> Sharding:
    """Return the meshard sharding that lays arrays out as a JAX sharding does.

    Args:
        sharding: a `jax.sharding.NamedSharding` on a mesh of devices, a `SingleDeviceSharding`, or
            any other JAX sharding, which needs ``shape``.
        shape: the arrays' shape, for a sharding that is not made of a mesh and a spec; it then
            becomes a `BoxSharding` of that shape.

    Returns:
        The sharding. A JAX device becomes the device of this world with its id or, if there is
        none, a virtual device, for which plans can be made.

    Raises:
        ArgumentError: if it is not a JAX sharding, or ``shape`` is needed, or meshard does not have
            the memory kind.
        ShardingError: if the mesh has no devices, or the spec says that values are partial sums.
        IndivisibleError: if JAX's sharding does not divide ``shape``.

    >>> mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
    >>> to_meshard(jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))).spec
    P('x',)
    """
    _check_is_jax(sharding, "to_meshard")
    if isinstance(sharding, jax.sharding.SingleDeviceSharding):
        (device,) = sharding.device_set
        return SingleDeviceSharding(_device(device), memory_kind=sharding.memory_kind)
    if _is_named(sharding):
        return _named(sharding)
    if shape is None:
        raise ArgumentError(
            f"to_meshard: {sharding!r} is a {type(sharding).__name__}, which has no mesh and spec; "
            "what it means depends on the shape. Pass shape=, the shape of the arrays."
        )
    whole = tuple(shape)
    boxes, kind = _boxed(sharding, whole), sharding.memory_kind
    return boxes if kind is None else boxes.with_memory_kind(kind)


def to_jax(
    sharding: Sharding, shape: Sequence[int] | None = None, *, devices: Sequence[Any] | None = None
) -> Any:
    """Return the JAX sharding that lays arrays out as a meshard sharding does.

    Args:
        sharding: a meshard sharding.
        shape: the arrays' shape; needed if ``uneven=`` or a custom sharding leaves open whether all
            shards have one shape, which JAX requires.
        devices: the JAX devices to choose from by id; JAX's CPU devices by default.

    Returns:
        A `jax.sharding.NamedSharding` or `SingleDeviceSharding`. Boxes that form an even grid
        become a `NamedSharding` with axes ``dim0``, ``dim1``, ... and ``replica``.

    Raises:
        ArgumentError: if it is not a meshard sharding, or ``shape`` is needed.
        ShardingError: if a device has no JAX device of its id, or shards differ in shape.

    >>> to_jax(SingleDeviceSharding(Device(0))).num_devices
    1
    """
    if not isinstance(sharding, Sharding):
        raise ArgumentError(
            f"to_jax: expected a meshard sharding, got {sharding!r} of type "
            f"{type(sharding).__name__}."
        )
    known = {d.id: d for d in (jax.devices("cpu") if devices is None else devices)}
    _check_known(sharding, known)
    if isinstance(sharding, SingleDeviceSharding):
        alone = known[sharding.device.id]
        return jax.sharding.SingleDeviceSharding(alone, memory_kind=sharding.memory_kind)
    layout = _even_layout(sharding, shape)
    if isinstance(sharding, NamedSharding):
        mesh = _jax_mesh(known, sharding.mesh.device_ids, sharding.mesh.axis_names, sharding.mesh)
        spec = jax.sharding.PartitionSpec(*sharding.spec)
        return jax.sharding.NamedSharding(mesh, spec, memory_kind=sharding.memory_kind)
    assert layout is not None
    names = (*(f"dim{i}" for i in range(layout.ndim)), "replica")
    mesh = _jax_mesh(known, layout.tensor, names, None)
    spec = jax.sharding.PartitionSpec(*names[:-1])
    return jax.sharding.NamedSharding(mesh, spec, memory_kind=sharding.memory_kind)


def _check_known(sharding: Sharding, known: Mapping[int, Any]) -> None:
    """Refuse devices that JAX does not have."""
    for device in sharding.device_order:
        if device.id not in known:
            raise ShardingError(
                f"to_jax: {device!r} of {sharding!r} has no JAX device of id {device.id}; JAX has "
                f"the ids {_brief(sorted(known))}. Give JAX more devices with "
                "XLA_FLAGS=--xla_force_host_platform_device_count=8 before its first use, reshard "
                "onto devices that it has, or pass devices=."
            )


def _even_layout(sharding: Sharding, shape: Sequence[int] | None) -> Layout | None:
    """Return the layout of arrays of a shape, all of whose shards have one shape.

    None where no shape is given and none is needed.
    """
    if isinstance(sharding, BoxSharding) and shape is None:
        shape = sharding.global_shape
    if shape is None:
        if isinstance(sharding, NamedSharding) and sharding.uneven is None:
            return None
        raise ArgumentError(
            f"to_jax: JAX's shards have one shape, and whether those of {sharding!r} do depends on "
            "the array. Pass shape=, the array's shape."
        )
    layout = sharding.layout(tuple(shape))
    if layout.regular and layout.even:
        return layout
    sizes = sorted({box.shape for box in layout.boxes})
    why = (
        f"JAX's shards have one shape, and these have {_brief(sizes)}"
        if len(sizes) > 1
        else "JAX's shards form a grid, and these boxes do not"
    )
    raise ShardingError(
        f"to_jax: {sharding!r} has no JAX form for shape {layout.shape}: {why}. Reshard to an "
        "even NamedSharding first, or pad the array."
    )


def layout_of(sharding: Any, shape: tuple[int, ...]) -> Layout:
    """Return the layout of an array under a JAX sharding of any memory kind.

    Raises:
        ShardingError: if the array cannot be laid out this way; the message says why.
    """
    if _is_named(sharding) or isinstance(sharding, jax.sharding.SingleDeviceSharding):
        return to_meshard(sharding).layout(shape)
    return _boxed(sharding, shape).layout(shape)


def _check_is_jax(sharding: Any, what: str) -> None:
    if not isinstance(sharding, jax.sharding.Sharding):
        raise ArgumentError(
            f"{what}: expected a JAX sharding, got {sharding!r} of type {type(sharding).__name__}."
        )


def _is_named(sharding: Any) -> bool:
    """Whether a mesh and a spec describe a sharding; JAX itself makes some in another order."""
    return (
        isinstance(sharding, jax.sharding.NamedSharding)
        and getattr(sharding, "_logical_device_ids", None) is None
    )


def _named(sharding: Any) -> NamedSharding:
    given, spec = sharding.mesh, sharding.spec
    if not isinstance(given, jax.sharding.Mesh):
        raise ShardingError(
            f"to_meshard: {sharding!r} is made of a {type(given).__name__}, which has no devices. "
            "Give the NamedSharding a jax.sharding.Mesh."
        )
    partial = sorted(map(str, getattr(spec, "unreduced", ())))
    if partial:
        raise ShardingError(
            f"to_meshard: {sharding!r} leaves values unreduced over {', '.join(partial)}: each "
            "device holds a part of a sum, and a layout cannot express that. Reduce it first, "
            "with jax.sharding.reshard to a spec without unreduced axes."
        )
    devices = np.empty(given.devices.shape, object)
    devices.reshape(-1)[:] = [_device(d) for d in given.devices.flat]
    types = [AxisType[kind.name] for kind in given.axis_types]
    entries = [
        PartitionSpec.UNCONSTRAINED if entry is jax.sharding.PartitionSpec.UNCONSTRAINED else entry
        for entry in spec
    ]
    return NamedSharding(
        Mesh(devices, given.axis_names, types),
        PartitionSpec(*entries),
        memory_kind=sharding.memory_kind,
    )


def _boxed(sharding: Any, shape: tuple[int, ...]) -> BoxSharding:
    try:
        indices = sharding.devices_indices_map(shape)
    except ValueError as error:
        raise IndivisibleError(
            f"to_meshard: JAX's {sharding!r} does not lay out the shape {shape}: "
            f"{str(error).rstrip('.')}. Pad the array, or choose another sharding."
        ) from error
    return BoxSharding(shape, {_device(d): index for d, index in indices.items()})


def _device(device: Any) -> Device:
    """Return this world's device of the same id, or a virtual one."""
    for own in current().devices:
        if own.id == device.id:
            return own
    return Device(device.id, device.process_index, "virtual", "virtual")


def _jax_mesh(
    known: dict[int, Any], ids: NDArray[np.int64], names: Sequence[str], like: Mesh | None
) -> Any:
    devices = np.empty(ids.shape, object)
    devices.reshape(-1)[:] = [known[i] for i in ids.reshape(-1).tolist()]
    auto = (AxisType.Auto,) * len(names)
    kinds = auto if like is None else like.axis_types
    types = tuple(jax.sharding.AxisType[kind.name] for kind in kinds)
    return jax.sharding.Mesh(devices, tuple(names), axis_types=types)


def _brief(values: Sequence[object]) -> str:
    """Return a list for a sentence, shortened if it is long."""
    shown = ", ".join(map(str, values[:8]))
    return f"{shown}, ... ({len(values)} in all)" if len(values) > 8 else shown
