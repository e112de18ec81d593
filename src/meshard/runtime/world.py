"""The runtime's world: devices, transport, pools and caches of one process.

Memos: what is found out once for arguments of one kind, and looked up from then on.

In: the function that finds out, or the types of a key and a value, and a bound. Out: a table for
each world, or scope of a body, which forgets everything when it is full and when a setting changes.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar, TypeVarTuple, final
from weakref import WeakKeyDictionary

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import MOST_INTEGER
from meshard.algebra.device import Device
from meshard.algebra.sharding import SingleDeviceSharding
from meshard.algebra.world import World, current, install_world_factory, num_devices
from meshard.errors import ShapeError
from meshard.runtime.memory.memory import Memory
from meshard.runtime.memory.pages import Pages
from meshard.runtime.memory.workers import Workers
from meshard.runtime.processes.agreement import Agreement
from meshard.runtime.processes.identity import Facts, devices_of, hosts_of, job_name, whereabouts
from meshard.runtime.processes.transport import LocalTransport, Transport
from meshard.runtime.types import ArrayType, Clock
from meshard.settings import config
from meshard.tuning import MOST_TYPES

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Ts = TypeVarTuple("Ts")

_KNOWN: list[str] = []  # the names of all memos, each at its number
_MISSING = object()


class Remembering:
    """What things are found out for: a world, or the scope of a body.

    Attributes:
        tables: what was found out, by the number of each `Memo`.
        epoch: the state of the settings that the tables were filled under.
    """

    tables: list[dict[Any, Any]]
    epoch: int

    def remember(self) -> None:
        """Begin with empty tables, one for each memo that there is."""
        self.tables, self.epoch = [{} for _ in _KNOWN], config.epoch

    def forget(self) -> None:
        """Empty all tables: the settings are others than those that they were filled under."""
        self.epoch = config.epoch
        for table in self.tables:
            table.clear()


Owner = TypeVar("Owner", bound=Remembering)


@final
class Memo(Generic[K, V]):
    """What was found out for each key; every world, or scope, has a table of its own.

    Attributes:
        name: what is kept, for people.
        most: how many keys a table may have; one that is full is emptied.
        number: its place among the tables of each.
    """

    __slots__ = ("most", "name", "number")

    def __init__(self, name: str, most: int) -> None:
        self.name, self.most = name, most
        self.number = len(_KNOWN)
        _KNOWN.append(name)

    def __repr__(self) -> str:
        return f"Memo({self.name!r}, most={self.most})"

    def table(self, owner: Remembering) -> dict[K, V]:
        """Return an owner's table, which holds nothing from before the last change of a setting."""
        if owner.epoch != config.epoch:
            owner.forget()
        try:
            return owner.tables[self.number]
        except IndexError:  # modules with memos are also imported after the owner was made
            owner.tables.extend({} for _ in range(len(owner.tables), self.number + 1))
            return owner.tables[self.number]

    def keep(self, owner: Remembering, key: K, value: V) -> V:
        """Keep a value for a key, and return it."""
        table = self.table(owner)
        if len(table) >= self.most:
            table.clear()
        table[key] = value
        return value


def memoized(most: int) -> Callable[[Callable[[Owner, *Ts], V]], Callable[[Owner, *Ts], V]]:
    """Let a function of a world, or a scope, run once for each of its hashable arguments.

    Args:
        most: how many results a world, or a scope, keeps.
    """

    def wrap(function: Callable[[Owner, *Ts], V]) -> Callable[[Owner, *Ts], V]:
        memo: Memo[tuple[Any, ...], V] = Memo(function.__qualname__, most)

        @functools.wraps(function)
        def call(owner: Owner, *key: *Ts) -> V:
            found: Any = memo.table(owner).get(key, _MISSING)
            if found is _MISSING:
                found = memo.keep(owner, key, function(owner, *key))
            return found  # type: ignore[no-any-return]

        return call

    return wrap


@final
class RuntimeWorld(World, Remembering):
    """A world with all that the runtime needs.

    Attributes:
        transport: how to reach the other processes.
        agreement: the record of operations run together with others; None without others.
        memory: where blocks are allocated, and how they get to and from the host.
        workers: the thread pool.
        device_set: all devices, as a set.
        known_shardings: shardings whose devices are known to exist.
        homes: the sharding of new arrays on each device.
        ledgers: the open ledgers and budgets, outermost first, and the open profiles.
        profiles: the open profiles, outermost first.
        mark: the clock that stamps arrays; it marks this world's types too.
        torn: between which turns of the clock arrays were made that other processes may lack.
        plans: the plans of reshards that were made.
        saves: how many checkpoints the job has begun to save.
        programs: the traced and lowered programs of each jitted function, while it lives.
        membership: how often those who take part have changed.
        resumed: the membership under which the last block of work has ended well.
        started_count: how many processes were started together.
        wanted_count: how many processes are to take part, as long as there are spares.
        spare: whether this process was started to join the others later.
        everything: the devices of all processes, also of those that do not take part.
        known: the facts of all processes, if others can join that the job was not started with.
        protected: what is kept in several copies, by name, in the order in which it was begun.
    """

    def __init__(
        self,
        process_index: int,
        process_count: int,
        devices: Sequence[Device],
        transport: Transport,
        hosts: Sequence[int] | None = None,
        spares: int = 0,
    ) -> None:
        super().__init__(process_index, process_count, devices, hosts)
        self.everything = self.devices
        self.known: Mapping[int, Facts] = {}
        self.membership = self.resumed = 0
        self.protected: dict[str, Any] = {}
        self.started_count = process_count
        self.wanted_count = process_count - spares
        first = range(self.wanted_count)
        self.spare = process_index not in first
        self.transport = transport
        watchdog = transport.watchdog
        self.agreement: Agreement | None = None if watchdog is None else watchdog.agreement
        self.memory: Memory = Pages()
        self.workers = Workers()
        self.remember()
        self.ledgers: tuple[Any, ...] = ()
        self.profiles: tuple[Any, ...] = ()
        self.device_set = frozenset(self.devices)
        self.known_shardings: set[Sharding] = set()
        self.homes: dict[Device, SingleDeviceSharding] = {}
        self.mark = Clock() if self.agreement is None else self.agreement.clock
        self.torn: tuple[tuple[int, int], ...] = ()
        self._job = os.getpid(), job_name(whereabouts())
        self.saves = 0
        self.plans: Any = None  # made by the first plan
        self.programs: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._types: dict[Hashable, ArrayType] = {}
        if spares:
            self.take_part((process_index,) if self.spare else first)
            self.membership = 0
            if watchdog is not None:
                watchdog.membership.members = self.processes

    @property
    def job(self) -> str:
        """The name of the job, the same on all its processes and no other job's.

        A child that was forked off takes no part in the job, and has a name of its own.
        """
        pid, name = self._job
        return name if pid == os.getpid() else job_name(whereabouts())

    @job.setter
    def job(self, name: str) -> None:
        self._job = os.getpid(), name

    @property
    def waits(self) -> bool:
        """Whether this process waits to join the others."""
        return self.spare and not self.membership

    @property
    def sharing(self) -> tuple[int, ...] | None:
        """The host on which each process can share memory; None if none can."""
        return self.transport.hosts

    def process_map(self, sharding: Sharding) -> Mapping[int, int] | None:
        """Return the process of each device id of a sharding; None if this is the only process."""
        if self.process_count == 1:
            return None
        return {d.id: d.process_index for d in sharding.device_order}

    def learn(self, known: Mapping[int, Facts]) -> None:
        """Learn about the processes of the job, some of which have come from outside."""
        self.known = known
        self.process_count = max(self.process_count, 1 + max(known))
        self.everything = devices_of(known)
        self.hosts = hosts_of(known, self.process_count)

    def take_part(self, processes: Sequence[int]) -> None:
        """Change who takes part; what was found out for the devices of the others is forgotten."""
        self.processes = tuple(sorted(processes))
        members = set(self.processes)
        self.devices = tuple(d for d in self.everything if d.process_index in members)
        self.device_set = frozenset(self.devices)
        self.known_shardings.clear()
        self.programs.clear()
        self._types = {
            key: type_
            for key, type_ in self._types.items()
            if self.device_set.issuperset(type_.sharding.device_order)
        }
        self.forget()
        self.membership += 1

    def type_of(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], sharding: Sharding, committed: bool
    ) -> ArrayType:
        """Return the one type object with these properties."""
        key = (shape, dtype, sharding, committed)
        found = self._types.get(key)
        if found is None:
            if len(self._types) > MOST_TYPES:
                self._types.clear()
            # NumPy's integers compare equal to Python's, and would overflow in later arithmetic.
            shape = tuple(map(int, shape))
            if math.prod(shape) * dtype.itemsize > MOST_INTEGER:
                raise ShapeError(
                    f"An array of shape {shape} and dtype {dtype} has "
                    f"{math.prod(shape) * dtype.itemsize} bytes; an array has fewer than 2**63."
                )
            processes, me = self.process_map(sharding), self.process_index
            found = self._types[key] = ArrayType(
                self.mark, processes, me, shape, dtype, sharding, committed
            )
        return found

    def close(self) -> None:
        """End the threads and give idle memory back."""
        self.workers.close()
        self.memory.close()


def alone(devices: int | None = None) -> RuntimeWorld:
    """Return the world of a single process, with that many devices or as many as configured."""
    count = num_devices() if devices is None else devices
    return RuntimeWorld(0, 1, [Device(i) for i in range(count)], LocalTransport())


install_world_factory(alone)


def here() -> RuntimeWorld:
    """Return the current world, as the runtime knows it."""
    world = current()
    assert isinstance(world, RuntimeWorld)
    return world
