"""The devices and processes of the current world."""

from __future__ import annotations

from meshard.algebra.world import Device, current
from meshard.errors import ArgumentError, ConfigError

__all__ = [
    "device_count",
    "devices",
    "local_device_count",
    "local_devices",
    "process_count",
    "process_index",
]


def _platform(backend: str | None, what: str) -> None:
    if backend not in (None, "cpu"):
        raise ConfigError(f"{what}: there is no backend {backend!r}; it is 'cpu'.")


def devices(backend: str | None = None) -> list[Device]:
    """Return all devices of all processes, grouped by process."""
    _platform(backend, "devices")
    return list(current().devices)


def local_devices(process_index: int | None = None, backend: str | None = None) -> list[Device]:
    """Return the devices of one process, this one by default."""
    _platform(backend, "local_devices")
    world = current()
    if process_index is None:
        return list(world.local_devices)
    if not 0 <= process_index < world.process_count:
        raise ArgumentError(
            f"local_devices: there is no process {process_index}; there are {world.process_count}."
        )
    return [d for d in world.devices if d.process_index == process_index]


def device_count(backend: str | None = None) -> int:
    """Return the number of devices of all processes."""
    return len(devices(backend))


def local_device_count(backend: str | None = None) -> int:
    """Return the number of this process's devices."""
    return len(local_devices(backend=backend))


def process_index(backend: str | None = None) -> int:
    """Return this process's number."""
    _platform(backend, "process_index")
    return current().process_index


def process_count(backend: str | None = None) -> int:
    """Return the number of processes."""
    _platform(backend, "process_count")
    return current().process_count
