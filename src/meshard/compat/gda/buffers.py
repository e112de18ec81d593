"""The buffers of a `GlobalDeviceArray`: checked if given, or made by a callback.

In: a program's values for each of this process's devices. Out: an Array on each, of one dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from meshard.algebra.device import Device
from meshard.algebra.sharding import SingleDeviceSharding
from meshard.compat.gda.places import Places
from meshard.errors import ArgumentError, ShapeError, ShardingError
from meshard.runtime.array.array import Array
from meshard.runtime.moving.place import as_host, dtype_of, filled, placed
from meshard.runtime.types import Block, dtype_name
from meshard.runtime.world import here

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
