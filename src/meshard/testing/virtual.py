"""Devices that exist nowhere, to plan on meshes of any size."""

from __future__ import annotations

from meshard.algebra.world import Device
from meshard.errors import ArgumentError

__all__ = ["virtual_devices"]


def virtual_devices(count: int, devices_per_process: int | None = None) -> list[Device]:
    """Return devices that can be planned with, but hold no blocks.

    Args:
        count: how many.
        devices_per_process: how many each process owns, in order; all belong to process 0 by
            default.

    Raises:
        ArgumentError: if either number is less than one.

    >>> virtual_devices(2)
    [VirtualDevice(id=0), VirtualDevice(id=1)]
    >>> [d.process_index for d in virtual_devices(5, devices_per_process=2)]
    [0, 0, 1, 1, 2]
    """
    if count < 1:
        raise ArgumentError(f"virtual_devices: count is a whole number from 1 on, not {count}.")
    if devices_per_process is not None and devices_per_process < 1:
        raise ArgumentError(
            f"virtual_devices: devices_per_process is a whole number from 1 on, "
            f"not {devices_per_process}."
        )
    each = count if devices_per_process is None else devices_per_process
    return [Device(i, i // each, "virtual", "virtual") for i in range(count)]
