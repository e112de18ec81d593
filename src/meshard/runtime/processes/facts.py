"""Facts of a process: what those that it works with know of it.

In: what each says of itself when it joins. Out: devices, hosts and ways to reach it, the same on
all processes of the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

from meshard.algebra.device import Device
from meshard.runtime.lines.letters import sent
from meshard.runtime.processes.whereabouts import Whereabouts


@sent
@final
@dataclass(frozen=True, slots=True)
class Facts:
    """What a process says of itself.

    Attributes:
        index: its number.
        first_device: the id of its first device.
        devices: how many it has; their ids follow each other.
        host: the name of its host.
        place: where it is.
        addresses: where it listens to others of the job that share no MPI with it.
        seat: its number on the host, which no other process there ever has.
    """

    index: int
    first_device: int
    devices: int
    host: str
    place: Whereabouts
    addresses: tuple[tuple[str, int], ...]
    seat: int


def devices_of(known: Mapping[int, Facts]) -> tuple[Device, ...]:
    """Return the devices of all known processes, in the order of the processes."""
    return tuple(
        Device(facts.first_device + i, index)
        for index, facts in sorted(known.items())
        for i in range(facts.devices)
    )


def hosts_of(known: Mapping[int, Facts], count: int) -> tuple[int, ...]:
    """Return the number of each process's host; a number that nobody has is on a host of its own.

    Args:
        known: the known processes.
        count: more than the number of any.
    """
    names = list(dict.fromkeys(facts.host for _, facts in sorted(known.items())))
    return tuple(names.index(known[p].host) if p in known else len(names) + p for p in range(count))


def united(some: Iterable[Facts]) -> dict[int, Facts]:
    """Return facts by the numbers of their processes, each once."""
    return {facts.index: facts for facts in sorted(some, key=lambda facts: facts.index)}
