"""The world: everything that one process knows, reached by one handle.

A `World` is found by `current()`, a ContextVar whose default is the process's own world, made at
first use. All mutable state of the library hangs on it. Simulated processes are worlds of their
own, each entered by its own thread with `entered`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import final

from meshard.algebra.device import Device
from meshard.errors import ArgumentError, ConfigError
from meshard.settings import Setting

MOST_DEVICES = 65_536
"""Devices of one process: far more than are of use, far fewer than memory has room for."""


class World:
    """What one process knows: its index, all devices, its settings.

    A process keeps its number, and a device its id, as long as the job runs: those of a process
    that has left are not given to another. The runtime's world adds the transport, the pools and
    the caches. Attributes:
        process_index: this process's number.
        process_count: more than the number of any process: how long a list of them is.
        processes: the numbers of the processes that take part, ascending.
        devices: the devices of these processes, grouped by process.
        local_devices: those of this process.
        hosts: for each process the number of the host that it runs on, in the order in which the
            processes meet them.
    """

    def __init__(
        self,
        process_index: int,
        process_count: int,
        devices: Sequence[Device],
        hosts: Sequence[int] | None = None,
    ) -> None:
        self.process_index = process_index
        self.process_count = process_count
        self.processes: tuple[int, ...] = tuple(range(process_count))
        self.devices = tuple(devices)
        self.local_devices = tuple(d for d in self.devices if d.process_index == process_index)
        self.hosts = (0,) * process_count if hosts is None else tuple(hosts)

    @property
    def first(self) -> int:
        """The lowest number of those that take part: who speaks for all."""
        return self.processes[0]

    @property
    def place(self) -> int:
        """This process's place among those that take part, from 0."""
        return self.processes.index(self.process_index)

    @property
    def devices_by_host(self) -> tuple[Device, ...]:
        """All devices, grouped by host; the same as `devices` if the processes are."""
        return tuple(sorted(self.devices, key=lambda d: self.hosts[d.process_index]))


@final
class _Process:
    """The one place of process-wide state besides the settings: the default world."""

    def __init__(self) -> None:
        self.world: World | None = None
        self.making = threading.RLock()
        self.factory: Callable[[], World] | None = None
        self.started: Callable[[], int] = lambda: 1


_process = _Process()
_current: ContextVar[World | None] = ContextVar("meshard_world", default=None)


def install_world_factory(
    factory: Callable[[], World], started: Callable[[], int] = lambda: 1
) -> None:
    """Say how the process's default world is made; the runtime does so when it is imported.

    Args:
        factory: makes the world.
        started: returns how many processes it will have.
    """
    _process.factory, _process.started = factory, started


def count_processes() -> int:
    """Return the number of processes of the current world, which is not made for it."""
    world = known_world()
    return _process.started() if world is None else len(world.processes)


def current() -> World:
    """Return the world of the calling context; the process's own, made at first use, by default."""
    world = _current.get()
    if world is not None:
        return world
    if _process.world is None:
        if _process.factory is None:
            raise ConfigError("meshard: no runtime that can make devices has been imported.")
        # Two threads may come here first together; there must be one world.
        with _process.making:
            if _process.world is None:
                _process.world = _process.factory()
                try:
                    check_default_device()
                except ConfigError:
                    _process.world = None
                    raise
    return _process.world


def known_world() -> World | None:
    """Return the current world if there is one already; none is made."""
    return _current.get() or _process.world


@contextlib.contextmanager
def entered(world: World) -> Iterator[World]:
    """Make ``world`` the current one of this context."""
    token = _current.set(world)
    try:
        yield world
    finally:
        _current.reset(token)


def _count(given: object) -> int | None:
    if given is None:
        return None
    number = given if type(given) is int else int(given) if isinstance(given, str) else 0
    if not 1 <= number <= MOST_DEVICES:
        raise ValueError
    return number


def _before_first_use(count: int | None) -> int | None:
    if _process.world is not None and count != NUM_DEVICES.value:
        raise ConfigError(
            f"config: num_devices was set to {count} after the devices had been made "
            f"({len(_process.world.local_devices)} of them). Set it before the first use of "
            f"meshard, or by MESHARD_NUM_DEVICES={count}."
        )
    return count


def num_devices() -> int:
    """Return how many devices this process has if it is alone: as set, or one per core."""
    if NUM_DEVICES.value is not None:
        return NUM_DEVICES.value
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


NUM_DEVICES: Setting[int | None] = Setting(
    "num_devices",
    None,
    f"an integer from 1 to {MOST_DEVICES}",
    _count,
    admit=_before_first_use,
    read=num_devices,
)
"""How many devices this process was told to have; None: one per core, one under mpiexec."""


def _device(given: object) -> object:
    """Accept a name; whether there is such a device is known when the devices are."""
    if given in (None, "cpu"):
        return None
    if not isinstance(given, str):
        return given
    platform, _, number = given.partition(":")
    if platform != "cpu" or not number.isdecimal():
        raise ValueError
    return f"cpu:{int(number)}"


def _own_device(given: object) -> Device | None:
    """Return the device of this process that is meant.

    Raises:
        ArgumentError: if this process does not have it.
    """
    if given is None:
        return None
    own = current().local_devices
    named = given if isinstance(given, (str, Device)) else ""
    found = next((d for d in own if named in (d, str(d))), None)
    if found is None:
        raise ArgumentError(
            f"config: default_device must be {DEFAULT_DEVICE.law}, not {given!r}; the devices of "
            f"this process are {', '.join(map(str, own[:8]))}{', ...' if len(own) > 8 else ''}."
        )
    return found


def process_default_device() -> Device | None:
    """Return where new arrays are placed by default; None: on this process's first device."""
    chosen = DEFAULT_DEVICE.value
    if isinstance(chosen, Device) and chosen not in current().local_devices:
        return None  # another process, simulated beside this one, has chosen a device of its own
    return _own_device(chosen)


def check_default_device() -> None:
    """Check what could not be checked before the devices were known.

    Raises:
        ConfigError: if the environment names a default device that this process does not have.
    """
    try:
        process_default_device()
    except ArgumentError as error:
        raise ConfigError(str(error)) from None


DEFAULT_DEVICE: Setting[object] = Setting(
    "default_device",
    None,
    "a device of this process, its name such as 'cpu:3', 'cpu' or None",
    _device,
    admit=_own_device,
    read=process_default_device,
)
"""The device that is meant, or its name; `process_default_device` finds it in the current world."""
