"""Arguments that name devices: lists of them, and lists of their ids."""

from __future__ import annotations

from meshard.algebra.arguments import count_of, items_of, shown
from meshard.algebra.world import Device
from meshard.errors import ArgumentError


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
        ArgumentError: if it is not a list of such.

    >>> device_ids_of([3, Device(1), 3], "f", "alive")
    [1, 3]
    """
    found: set[int] = set()
    for device in items_of(given, what, name, "devices or their ids"):
        if isinstance(device, Device):
            found.add(device.id)
        else:
            found.add(count_of(device, what, f"each id in {name}", most=2**63 - 1))
    return sorted(found)
