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

from meshard.algebra.arguments import count_of, text_of
from meshard.algebra.settings import SETTINGS, Table, checked, from_environment, setting_of
from meshard.errors import ArgumentError, ConfigError

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

    >>> Device(3)
    CpuDevice(id=3)
    """

    __slots__ = ("_hash", "device_kind", "id", "platform", "process_index")

    def __init__(
        self, id: int, process_index: int = 0, platform: str = "cpu", device_kind: str = "cpu"
    ) -> None:
        self.id = count_of(id, "Device", "id", most=_MOST_ID)
        self.process_index = count_of(process_index, "Device", "process_index", most=_MOST_ID)
        self.platform = text_of(platform, "Device", "platform")
        self.device_kind = text_of(device_kind, "Device", "device_kind")
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


class World:
    """What one process knows: its index, all devices, its settings.

    The runtime's world adds the transport, the pools and the caches. Attributes:
        process_index: this process's number.
        process_count: how many processes there are.
        devices: all devices of all processes, grouped by process.
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
        self.devices = tuple(devices)
        self.local_devices = tuple(d for d in self.devices if d.process_index == process_index)
        self.hosts = (0,) * process_count if hosts is None else tuple(hosts)

    @property
    def devices_by_host(self) -> tuple[Device, ...]:
        """All devices, those of one host together; the same as `devices` where processes are so."""
        return tuple(sorted(self.devices, key=lambda d: self.hosts[d.process_index]))


@final
class Config:
    """The process's settings, read from the environment when meshard is imported.

    =================================  ========================================================
    name                               meaning
    =================================  ========================================================
    ``num_devices``                    devices of this process; None: one per core
    ``default_float``                  dtype of floats that nothing else decides
    ``default_device``                 where new arrays are placed; None: the first device
    ``jit_compiler``                   what runs fused work on large blocks: numpy or xla
    ``check``                          how processes are compared: ``off``, ``hash``, ``full``
    ``parallel_functions_output_gda``  whether jit returns a `GlobalDeviceArray` for each array
    ``timeout``                        seconds that a process waits for another
    ``stopped``                        what is done about a stopped process: ``wait``, ``fail``
    ``host``                           this host's name, by which one host can play several
    ``table``                          the sizes that decide how bytes go between processes
    =================================  ========================================================

    The environment variable is the name in capitals after ``MESHARD_``: ``MESHARD_NUM_DEVICES``.
    The last four are set by the environment only.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self._values = from_environment(os.environ)

    def update(self, name: str, value: object) -> None:
        """Set one setting.

        Raises:
            ConfigError: if there is no such setting, or ``num_devices`` comes after first use.
            ArgumentError: if the value is not one that the setting can have.
        """
        setting = setting_of(name)
        if setting.at_start:
            raise ConfigError(
                f"config: {name} is read when the program starts; set it by the variable "
                f"{setting.variable}."
            )
        value = checked(setting, value)
        if name == "default_device" and value is not None:
            value = self._device(value)
        if name == "num_devices" and _process.world is not None and value != self._values[name]:
            raise ConfigError(
                f"config: num_devices was set to {value} after the devices had been made "
                f"({len(_process.world.local_devices)} of them). Set it before the first use of "
                f"meshard, or by MESHARD_NUM_DEVICES={value}."
            )
        self._values[name] = value
        self.epoch += 1

    def read(self, name: str) -> object:
        """Return a setting's value.

        Raises:
            ConfigError: if there is no such setting.
        """
        setting_of(name)
        return getattr(self, name)

    @property
    def num_devices(self) -> int:
        """How many devices this process has."""
        value = self._values["num_devices"]
        if isinstance(value, int):
            return value
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1

    @property
    def num_devices_given(self) -> int | None:
        """How many devices this process was told to have; None if nobody said."""
        value = self._values["num_devices"]
        return value if isinstance(value, int) else None

    @property
    def default_device(self) -> Device | None:
        """Where new arrays are placed by default; None for this process's first device."""
        value = self._values["default_device"]
        return None if value is None else self._device(value)

    def _device(self, given: object) -> Device:
        """Return the device of this process that is meant.

        Raises:
            ArgumentError: if this process does not have it.
        """
        own = current().local_devices
        named = given if isinstance(given, (str, Device)) else ""
        found = next((d for d in own if named in (d, str(d))), None)
        if found is None:
            raise ArgumentError(
                f"config: default_device is {SETTINGS['default_device'].law}, not {given!r}; the "
                f"devices of this process are {', '.join(map(str, own[:8]))}"
                f"{', ...' if len(own) > 8 else ''}."
            )
        return found

    def check_devices(self) -> None:
        """Check what could not be checked before the devices were known.

        Raises:
            ConfigError: if the environment names a default device that this process does not have.
        """
        try:
            _ = self.default_device
        except ArgumentError as error:
            raise ConfigError(str(error)) from None

    @property
    def default_float(self) -> str:
        """The dtype of floats that nothing else decides: ``"float64"`` or ``"float32"``."""
        return str(self._values["default_float"])

    @property
    def jit_compiler(self) -> str:
        """What runs the operations that jit fuses on large blocks: ``"numpy"`` or ``"xla"``."""
        return str(self._values["jit_compiler"])

    @property
    def check(self) -> str:
        """How the operations of processes are compared: ``"off"``, ``"hash"`` or ``"full"``."""
        return str(self._values["check"])

    @property
    def timeout(self) -> float:
        """The seconds that a process waits for another."""
        value = self._values["timeout"]
        assert isinstance(value, float)
        return value

    @property
    def stopped(self) -> str:
        """What is done about a process that is stopped: ``"wait"`` or ``"fail"``."""
        return str(self._values["stopped"])

    @property
    def host(self) -> str | None:
        """The name of this host, by which one host can play several; None for its own."""
        value = self._values["host"]
        return value if isinstance(value, str) else None

    @property
    def table(self) -> Table:
        """The sizes that decide how bytes go between processes; those of process 0 hold."""
        value = self._values["table"]
        assert isinstance(value, Table)
        return value

    @property
    def parallel_functions_output_gda(self) -> bool:
        """Whether jit returns a `GlobalDeviceArray` for each array."""
        return bool(self._values["parallel_functions_output_gda"])


@final
class _Process:
    """The one place of process-wide state: the settings and the default world."""

    def __init__(self) -> None:
        self.config = Config()
        self.world: World | None = None
        self.making = threading.RLock()
        self.factory: Callable[[], World] | None = None
        self.started: Callable[[], int] = lambda: 1


_process = _Process()
_current: ContextVar[World | None] = ContextVar("meshard_world", default=None)
config = _process.config


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
    return _process.started() if world is None else world.process_count


def current() -> World:
    """Return the world of the calling context; the process's own, made at first use, by default."""
    world = _current.get()
    if world is not None:
        return world
    if _process.world is None:
        if _process.factory is None:
            raise ConfigError("meshard: no runtime has been imported that could make devices.")
        # Two threads may come here first together; there must be one world.
        with _process.making:
            if _process.world is None:
                _process.world = _process.factory()
                try:
                    config.check_devices()
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
