"""Topologies: which devices are near each other, and how fast the ways between them are.

A topology is a tree. Its levels are listed from the inside out: devices make up the groups of the
first level (say, hosts), those make up the groups of the second (racks), and so on; the last level
has one group, which holds all. Two devices *meet* at the lowest level that has a group with both.
What passes between them goes through a port of each at the first level, of each one's host at the
second, and so on up to the level where they meet.

Topologies by name, of common machines.
"""

from __future__ import annotations

import json
import math
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np

from meshard.algebra.arguments import count_of, is_text, items_of, path_of, refusal, shown
from meshard.errors import ArgumentError, did_you_mean

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Ints = NDArray[np.int64]

IdGroups = tuple[tuple[int, ...], ...]


_LEVEL_KEYS = ("name", "size", "groups", "latency", "bandwidth", "capacity")
_WIDEST_NAME = 24
_LARGEST = (1 << 63) - 1


@final
@dataclass(frozen=True)
class Level:
    """One level of a topology.

    Attributes:
        name: the name of one of its groups: ``"host"``.
        latency: seconds that one message costs between devices that meet here.
        bandwidth: bytes per second and direction of each port at this level: a device's at the
            first level; above, that of a group of the level below.
        size: how many units of the level below (devices, at the first) one group has, in the order
            of their numbers; None for all units.
        groups: instead of a size, the device ids of each group.
        capacity: bytes per second that one group carries in all, including bytes that enter and
            leave it; None if only the ports limit it.

    Raises:
        ArgumentError: if a number is out of its range, or both size and groups are given.

    >>> from meshard.resharding import Level
    >>> Level("host", latency=1e-6, bandwidth=10e9, size=8).size
    8
    """

    name: str
    latency: float
    bandwidth: float
    size: int | None = None
    groups: IdGroups | None = None
    capacity: float | None = None

    def __post_init__(self) -> None:
        if not _is_line(self.name):
            raise ArgumentError(
                f"A level's name must be a word such as 'host', not {shown(self.name)}."
            )
        if len(self.name) > _WIDEST_NAME:
            raise ArgumentError(
                f"A level's name can have at most {_WIDEST_NAME} characters so that tables stay "
                f"readable; {shown(self.name)} has {len(self.name)}."
            )
        object.__setattr__(self, "latency", self._number("latency", self.latency, least=True))
        object.__setattr__(self, "bandwidth", self._number("bandwidth", self.bandwidth))
        if self.capacity is not None:
            object.__setattr__(self, "capacity", self._number("capacity", self.capacity))
        if self.size is not None and self.groups is not None:
            raise ArgumentError(
                f"Level {self.name!r} has both size = {self.size} and groups; give only the "
                "size if the groups are consecutive and equal, or else only the groups."
            )
        if self.size is not None and (type(self.size) is not int or not 0 < self.size <= _LARGEST):
            raise ArgumentError(
                f"The size of level {self.name!r} must be a positive integer of at most 63 bits, "
                f"not {shown(self.size)}."
            )
        if self.groups is not None:
            object.__setattr__(self, "groups", self._grouped(self.groups))

    def _number(self, key: str, value: object, *, least: bool = False) -> float:
        wanted = "0 or more" if least else "more than 0"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ArgumentError(
                f"The {key} of level {self.name!r} must be a number, {wanted}, not {shown(value)}."
            )
        # Not `math.isfinite`, which fails for integers that no float can hold.
        if not 0 <= value <= sys.float_info.max or (value == 0 and not least):
            raise ArgumentError(
                f"The {key} of level {self.name!r} must be {wanted}, not {shown(value)}."
            )
        return float(value)

    def _grouped(self, groups: object) -> IdGroups:
        told = f"The groups of level {self.name!r} must be lists of device ids"
        if not isinstance(groups, list | tuple) or not groups:
            raise ArgumentError(f"{told}, one list for each group, not {shown(groups)}.")
        of: dict[int, int] = {}
        for number, group in enumerate(groups):
            if not isinstance(group, list | tuple) or not group:
                raise ArgumentError(
                    f"{told}, each with one id or more; group {number} is {shown(group)}."
                )
            for device in group:
                if type(device) is not int or not 0 <= device <= _LARGEST:
                    raise ArgumentError(
                        f"{told}, which are non-negative integers; group {number} has "
                        f"{shown(device)}."
                    )
                if device in of:
                    raise ArgumentError(
                        f"Device {device} is in groups {of[device]} and {number} of level "
                        f"{self.name!r}; a device must be in one group of each level."
                    )
                of[device] = number
        return tuple([tuple(group) for group in groups])


@final
@dataclass(frozen=True)
class Topology:
    """A tree of devices with ports, listed level by level from the inside out.

    Args:
        name: its name.
        levels: the levels. The last has one group, so its size can be omitted.

    Raises:
        ArgumentError: if the levels do not nest.

    >>> from meshard.resharding import Level, Topology
    >>> host = Level("host", latency=2e-6, bandwidth=100e9, size=4)
    >>> rack = Level("rack", latency=5e-6, bandwidth=25e9)
    >>> fast_inside = Topology("fast inside", (host, rack))
    >>> fast_inside.level([0, 0, 0], [0, 3, 4]).tolist()
    [-1, 0, 1]
    >>> Topology.from_toml(fast_inside.to_toml()) == fast_inside
    True
    """

    name: str
    levels: tuple[Level, ...]

    def __post_init__(self) -> None:
        if not _is_line(self.name):
            raise ArgumentError(
                f"A topology's name must be a string of one line, not {shown(self.name)}."
            )
        levels = items_of(self.levels, f"Topology {self.name!r}", "levels", "Level")
        for given in levels:
            if not isinstance(given, Level):
                raise ArgumentError(
                    f"Topology {self.name!r}: levels holds {shown(given)} of type "
                    f"{type(given).__name__}, which is not a Level."
                )
        object.__setattr__(self, "levels", levels)
        if not self.levels:
            raise ArgumentError(
                f"Topology {self.name!r} has no levels; it needs at least one, which holds all "
                f"devices."
            )
        names = [level.name for level in self.levels]
        twice = [name for i, name in enumerate(names) if name in names[:i]]
        if twice:
            raise ArgumentError(
                f"Topology {self.name!r} has two levels named {twice[0]!r}; each level must have a "
                "name of its own."
            )
        for level in self.levels[:-1]:
            if level.size is None and level.groups is None:
                raise ArgumentError(
                    f"Level {level.name!r} of topology {self.name!r} needs a size or groups; only "
                    f"the last level, {names[-1]!r}, may omit both, since it holds all devices."
                )
        self._check_nesting()

    def _check_nesting(self) -> None:
        listed = [i for i, level in enumerate(self.levels) if level.groups is not None]
        if not listed:
            return
        first = listed[0]
        known = {d for group in self.levels[first].groups or () for d in group}
        for number in listed[1:]:
            mine = {d for group in self.levels[number].groups or () for d in group}
            if mine != known:
                lost = min(mine ^ known)
                at, off = (number, first) if lost in mine else (first, number)
                raise ArgumentError(
                    f"Device {lost} is in a group of level {self.levels[at].name!r} and in none "
                    f"of level {self.levels[off].name!r}; both must have the same devices."
                )
        self._check_above(np.array(sorted(known)))

    def _check_above(self, ids: Ints) -> None:
        """Refuse a level that splits a group of the level below it."""
        below = ids
        for number, level in enumerate(self.levels):
            here = self.group(number, ids)
            order = np.lexsort((here, below))
            same = below[order][1:] == below[order][:-1]
            torn = np.flatnonzero(same & (here[order][1:] != here[order][:-1]))
            if len(torn):
                a, b = (int(ids[order[torn[0] + i]]) for i in (0, 1))
                raise ArgumentError(
                    f"Devices {a} and {b} share a group of level "
                    f"{self.levels[number - 1].name!r} but not of level {level.name!r} above it; "
                    f"sizes and groups must nest."
                )
            below = here
        if len(np.unique(below)) > 1:
            raise ArgumentError(
                f"The last level, {self.levels[-1].name!r}, has {len(np.unique(below))} groups; it "
                f"must have one, which holds all devices. Add a level above it."
            )

    # where devices are

    @cached_property
    def _tables(self) -> tuple[tuple[Ints, Ints] | None, ...]:
        """For each level with groups its devices, ascending, and the group of each."""
        found: list[tuple[Ints, Ints] | None] = []
        for level in self.levels:
            if level.groups is None:
                found.append(None)
                continue
            ids = np.array([d for group in level.groups for d in group], np.int64)
            numbers = np.repeat(np.arange(len(level.groups)), [len(g) for g in level.groups])
            order = np.argsort(ids)
            found.append((ids[order], numbers[order]))
        return tuple(found)

    @property
    def size(self) -> int | None:
        """One more than the largest possible device id; None for no limit."""
        last = next((t for t in self._tables if t is not None), None)
        if last is not None:
            return int(last[0][-1]) + 1
        outer = self.levels[-1].size
        return None if outer is None else math.prod(level.size or 1 for level in self.levels)

    def group(self, level: int, ids: ArrayLike) -> Ints:
        """Return the numbers of the groups of a level to which devices belong.

        Args:
            level: the number of the level, 0 for the first.
            ids: the devices' ids.

        Raises:
            ArgumentError: if a device is in no group.
        """
        what = "Topology.group"
        given = found = _ids(ids, what, "ids")
        last = count_of(level, what, "level", most=len(self.levels) - 1)
        self._check_ids(found)
        for own, table in zip(self.levels[: last + 1], self._tables, strict=False):
            if table is not None:
                found = table[1][np.searchsorted(table[0], given)]
            elif own.size is None:
                found = np.zeros_like(found)
            else:
                found = found // own.size
        return found

    def _check_ids(self, ids: Ints) -> None:
        wrong, told = ids < 0, "a device's id is 0 or more"
        table = next((t for t in self._tables if t is not None), None)
        if table is not None:
            wrong = wrong | ~np.isin(ids, table[0])
            told = f"its levels list {len(table[0])} devices, up to {table[0][-1]}"
        elif self.size is not None:
            wrong = wrong | (ids >= self.size)
            sizes = " x ".join(str(level.size) for level in self.levels)
            told = f"it has {sizes} = {self.size} devices"
        if wrong.any():
            raise ArgumentError(
                f"Device {int(ids[wrong].flat[0])} has no place in topology {self.name!r}: {told}."
            )

    def level(self, a: ArrayLike, b: ArrayLike) -> Ints:
        """Return the number of the lowest level at which devices meet; -1 for the same device.

        Args:
            a: device ids.
            b: device ids; both are broadcast together.

        Raises:
            ArgumentError: if a device has no place in the topology.
        """
        first, second = _ids(a, "Topology.level", "a"), _ids(b, "Topology.level", "b")
        try:
            one, other = np.broadcast_arrays(first, second)
        except ValueError as error:
            raise ArgumentError(
                f"Topology.level: a has shape {first.shape} and b has shape {second.shape}, which "
                "cannot be broadcast together. Give as many ids in both, or one in either."
            ) from error
        found = np.where(one == other, -1, len(self.levels) - 1)
        for number in range(len(self.levels) - 2, -1, -1):
            met = self.group(number, one) == self.group(number, other)
            found[met & (one != other)] = number
        return found

    # files

    @classmethod
    def load(cls, path: str | Path) -> Topology:
        """Return the topology that a TOML file describes.

        Raises:
            ArgumentError: if the file's text is not TOML, or not a topology.
            OSError: if the file cannot be read.
        """
        path = path_of(path, "Topology.load")
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ArgumentError(f"{path} is not a topology file: it is not UTF-8 text.") from error
        return cls.from_toml(text)

    @classmethod
    def from_toml(cls, text: str) -> Topology:
        """Return the topology that a TOML text describes.

        Raises:
            ArgumentError: if the text is not TOML, has unknown keys, or describes levels that do
                not nest.

        >>> Topology.from_toml('''
        ... name = "one host"
        ... [[levels]]
        ... name = "host"
        ... latency = 1e-6
        ... bandwidth = 10e9
        ... ''').levels[0].bandwidth
        10000000000.0
        """
        given: object = text
        if not isinstance(given, str):
            raise ArgumentError(
                f"Topology.from_toml: expected a TOML text, got {shown(given)}; "
                "Topology.load reads a file."
            )
        try:
            found = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise ArgumentError(f"The topology is not TOML: {error}.") from error
        _check_keys(found, ("name", "levels"), ("name", "levels"), "A topology")
        rows = found["levels"]
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ArgumentError(
                f"The levels of a topology must be tables, [[levels]] in TOML, not {shown(rows)}."
            )
        for number, row in enumerate(rows):
            what = f"Level {shown(row.get('name', number))} of a topology"
            _check_keys(row, _LEVEL_KEYS, ("name", "latency", "bandwidth"), what)
        return cls(found["name"], tuple([Level(**row) for row in rows]))

    def to_toml(self) -> str:
        """Return the text from which `from_toml` makes an equal topology."""
        lines = [f"name = {json.dumps(self.name, ensure_ascii=False)}"]
        for level in self.levels:
            lines += ["", "[[levels]]", f"name = {json.dumps(level.name, ensure_ascii=False)}"]
            if level.size is not None:
                lines.append(f"size = {level.size}")
            if level.groups is not None:
                lines.append(f"groups = {[list(group) for group in level.groups]}")
            lines += [f"latency = {level.latency!r}", f"bandwidth = {level.bandwidth!r}"]
            if level.capacity is not None:
                lines.append(f"capacity = {level.capacity!r}")
        return "\n".join(lines) + "\n"


def _ids(given: object, what: str, name: str) -> Ints:
    """Return device ids as an array of integers.

    Raises:
        ArgumentError: if they are something else.
    """
    try:
        found = np.asarray(given)
        if found.size == 0:
            found = found.astype(np.int64)
        if found.dtype.kind in "iu" and (found <= np.iinfo(np.int64).max).all():
            return found.astype(np.int64)
    except (ValueError, TypeError, OverflowError, RecursionError):  # not an array at all
        pass
    raise ArgumentError(refusal(what, name, "device ids: an integer, or an array of them", given))


def _is_line(text: object) -> bool:
    """Whether a value is a text of one line that is not blank."""
    return isinstance(text, str) and bool(text.strip()) and text.isprintable()


def _check_keys(
    table: Mapping[str, object], known: tuple[str, ...], needed: tuple[str, ...], what: str
) -> None:
    unknown = [key for key in table if key not in known]
    if unknown:
        raise ArgumentError(
            f"{what} has an unknown key {unknown[0]!r}; the keys are {', '.join(known)}."
            f"{did_you_mean(unknown[0], known)}"
        )
    missing = [key for key in needed if key not in table]
    if missing:
        raise ArgumentError(f"{what} needs the key {missing[0]!r}.")


_PRESETS = (
    Topology("one process", (Level("process", latency=0.6e-6, bandwidth=10e9),)),
    Topology(
        "8-gpu hosts",
        (
            Level("host", latency=2e-6, bandwidth=450e9, size=8),
            Level("cluster", latency=5e-6, bandwidth=400e9),
        ),
    ),
    Topology(
        "8-gpu hosts, one nic",
        (
            Level("host", latency=2e-6, bandwidth=450e9, size=8),
            Level("cluster", latency=5e-6, bandwidth=50e9),
        ),
    ),
    Topology(
        "tpu torus",
        (
            Level("cube", latency=1e-6, bandwidth=300e9, size=64, capacity=6.4e12),
            Level("pod", latency=3e-6, bandwidth=4.8e12, size=64, capacity=96e12),
            Level("data centre", latency=20e-6, bandwidth=25.6e12),
        ),
    ),
    Topology(
        "two racks",
        (
            Level("host", latency=2e-6, bandwidth=450e9, size=8),
            Level("rack", latency=5e-6, bandwidth=50e9, size=4),
            Level("row", latency=10e-6, bandwidth=50e9, size=2),
        ),
    ),
)


def presets() -> tuple[str, ...]:
    """Return the names that `topology` accepts.

    >>> from meshard.resharding import presets
    >>> presets()[0]
    'one process'
    """
    return tuple([preset.name for preset in _PRESETS])


def topology(name: str) -> Topology:
    """Return a topology by its name.

    - ``"one process"``: virtual devices that share a memory. 10 GB/s is what one thread copies on
      the machine that meshard is developed on, 0.6 microseconds what one box costs there.
    - ``"8-gpu hosts"``: an NVIDIA DGX H100 or similar. NVLink gives each GPU 900 GB/s, half of it
      in each direction; eight ConnectX-7 adapters of 400 Gb/s give a host 400 GB/s in each
      direction (DGX H100 User Guide). The host's port is modelled as one, although a single GPU
      has only its own adapter's 50 GB/s.
    - ``"8-gpu hosts, one nic"``: the same hosts with one adapter of 400 Gb/s each.
    - ``"tpu torus"``: Google's TPU v4, *approximated*: a torus is not a tree. A chip has six links
      of 50 GB/s in each direction; cubes of 4 x 4 x 4 chips have 16 links on each face; 64 cubes
      make a pod (Jouppi et al., "TPU v4: an optically reconfigurable supercomputer", ISCA 2023).
      Capacities stand for the torus: a cube's links divided by the 3 hops of an average way
      (64 x 6 x 50 GB/s / 3), and a pod's four times its bisection of 24 TB/s (Cloud TPU
      documentation), since a quarter of uniform traffic crosses that in each direction. Between
      pods 25 GB/s for each host of four chips are assumed. The times are wrong by a factor for
      traffic between neighbours, for which a torus is faster, and for long thin shapes.
    - ``"two racks"``: two racks of four hosts of eight devices, where a rack's uplink is no wider
      than one host's. It is invented, to show the effect of slow uplinks.

    Latencies are of the usual order of magnitude; only that of one process was measured.

    Raises:
        ArgumentError: if there is no such topology.

    >>> from meshard.resharding import topology
    >>> [level.name for level in topology("two racks").levels]
    ['host', 'rack', 'row']
    """
    for preset in _PRESETS:
        if is_text(name, preset.name):
            return preset
    raise ArgumentError(
        f"There is no topology named {shown(name)}.{did_you_mean(name, presets())} Those with "
        f"names are {', '.join(map(repr, presets()))}; Topology.load reads others from a file."
    )


def as_topology(given: Topology | str, what: str, hint: str = "") -> Topology:
    """Return a topology, which may be given by its name.

    Args:
        given: a topology, or the name of one.
        what: the function that takes it, for messages.
        hint: what to add to the message.

    Raises:
        ArgumentError: if it is neither, or there is no topology of that name.

    >>> as_topology("one process", "explain").levels[0].name
    'process'
    """
    if isinstance(given, str):
        return topology(given)
    if not isinstance(given, Topology):
        raise ArgumentError(
            f"{what}: topology must be a Topology or the name of one "
            f"({', '.join(map(repr, presets()))}), not {shown(given)}.{hint}"
        )
    return given
