"""Devices that do not exist, for plans on meshes of any size."""

from __future__ import annotations

from meshard.algebra.arguments import count_of
from meshard.algebra.device import Device

_MOST = 1 << 24  # sixteen million take some gigabytes


def virtual_devices(count: int, devices_per_process: int | None = None) -> list[Device]:
    """Return devices for plans, which hold no blocks.

    Args:
        count: how many.
        devices_per_process: how many each process owns, in order; all belong to process 0 by
            default.

    Raises:
        ArgumentError: if a number is less than one, or there are more devices than memory.

    >>> from meshard.testing import virtual_devices
    >>> virtual_devices(2)
    [VirtualDevice(id=0), VirtualDevice(id=1)]
    >>> [d.process_index for d in virtual_devices(5, devices_per_process=2)]
    [0, 0, 1, 1, 2]
    """
    what = "virtual_devices"
    count = count_of(count, what, "count", least=1, most=_MOST)
    each = count
    if devices_per_process is not None:
        each = count_of(devices_per_process, what, "devices_per_process", least=1)
    return [Device(i, i // each, "virtual", "virtual") for i in range(count)]
