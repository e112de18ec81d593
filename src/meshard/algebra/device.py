"""`Device`, and arguments that name devices: lists of them, and lists of their ids."""

from __future__ import annotations

from typing import final

from meshard.algebra.arguments import count_of, items_of, shown, text_of
from meshard.errors import ArgumentError

_MOST_ID = 2**63 - 1  # layouts hold ids as int64


@final
class Device:
    """One place that holds blocks and computes.

    Attributes:
        id: the device's number, unique among all processes.
        process_index: the process that owns it.
        platform: ``"cpu"`` for devices that exist, ``"virtual"`` for those that only plan.
        device_kind: the hardware's name, as far as it is known.

    Raises:
        ArgumentError: if a number is not a non-negative integer, or a name not a string.

    >>> import meshard
    >>> meshard.config.update("num_devices", 8)
    >>> meshard.devices()[3], meshard.devices()[3].process_index
    (CpuDevice(id=3), 0)
    >>> meshard.Device(3) == meshard.devices()[3]
    True
    """

    __slots__ = ("_hash", "device_kind", "id", "platform", "process_index")

    def __init__(
        self, id: int, process_index: int = 0, platform: str = "cpu", device_kind: str = "cpu"
    ) -> None:
        self.id: int = count_of(id, "Device", "id", most=_MOST_ID)
        self.process_index: int = count_of(process_index, "Device", "process_index", most=_MOST_ID)
        self.platform: str = text_of(platform, "Device", "platform")
        self.device_kind: str = text_of(device_kind, "Device", "device_kind")
        self._hash = hash((self.platform, self.id, self.process_index))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Device):
            return NotImplemented
        mine = (self.id, self.process_index, self.platform)
        return mine == (other.id, other.process_index, other.platform)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"{self.platform.capitalize()}Device(id={self.id})"

    def __str__(self) -> str:
        return f"{self.platform}:{self.id}"

    def __reduce__(self) -> tuple[type[Device], tuple[int, int, str, str]]:
        return Device, (self.id, self.process_index, self.platform, self.device_kind)


def devices_of(given: object, what: str, name: str = "devices") -> tuple[Device, ...]:
    """Return a list of devices as a tuple.

    Raises:
        ArgumentError: if it is not one.
    """
    found: list[Device] = []
    for device in items_of(given, what, name, "devices"):
        if not isinstance(device, Device):
            raise ArgumentError(
                f"{what}: {name} holds {shown(device)} of type {type(device).__name__}, which is "
                "not a Device. Give a list such as meshard.devices()."
            )
        found.append(device)
    return tuple(found)


def device_ids_of(given: object, what: str, name: str) -> list[int]:
    """Return the ids of devices that are given as devices or as ids, ascending and once each.

    Raises:
        ArgumentError: if it is not such a list.

    >>> device_ids_of([3, Device(1), 3], "f", "alive")
    [1, 3]
    """
    found: set[int] = set()
    for device in items_of(given, what, name, "devices or their ids"):
        if isinstance(device, Device):
            found.add(device.id)
        else:
            found.add(count_of(device, what, f"each id in {name}", most=_MOST_ID))
    return sorted(found)
