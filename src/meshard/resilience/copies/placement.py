"""Where copies go: boxes that too few processes hold, each to neighbours of those that hold it.

In: layouts of arrays, the processes and what keeps them apart. Out: for each array a grid with the
devices that get a copy of each cell. A box is cut into parts for several neighbours, so that copies
take about as much memory everywhere, and so that several can give what one that dies has held. Only
a few neighbours share the copies of a process: two deaths rarely hit a box and its copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from meshard.algebra.device import Device
from meshard.algebra.layout import Layout, balanced_cuts
from meshard.resilience.copies.stocks import onto

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

NEIGHBOURS = 4
"""Among how many processes the copies of one process's boxes are divided."""
_EVEN = 1.25
"""The largest process's part of one array's copies, over the mean, for alike arrays to share."""
_LEAST_PART = 1 << 12
"""Bytes of the smallest part that a box is cut into."""


@final
@dataclass(frozen=True)
class Apart:
    """The processes that keep copies, and which of them fail together.

    Attributes:
        devices: the devices of each process that takes part.
        domain: for each process what it shares with those that fail with it: itself, or its host.
        copies: how many copies are kept besides the first holder.
    """

    devices: Mapping[int, tuple[int, ...]]
    domain: Mapping[int, int]
    copies: int

    @staticmethod
    def of(devices: Iterable[Device], copies: int, kind: str, hosts: Callable[[int], int]) -> Apart:
        """Return the processes of some devices.

        Args:
            devices: the devices.
            copies: how many copies are kept.
            kind: what copies must not share: ``"process"`` or ``"host"``.
            hosts: returns the host of a process.
        """
        found: dict[int, list[int]] = {}
        for device in devices:
            found.setdefault(device.process_index, []).append(device.id)
        domain = {p: hosts(p) if kind == "host" else p for p in found}
        return Apart({p: tuple(ids) for p, ids in found.items()}, domain, copies)

    @property
    def domains(self) -> int:
        """How many there are that fail independently."""
        return len({self.domain[p] for p in self.devices})


@final
class Placing:
    """The copies of several arrays, placed one after the other, and what they take so far.

    Args:
        apart: the processes.

    Attributes:
        held: the bytes of copies on each process.
    """

    def __init__(self, apart: Apart) -> None:
        self.held = dict.fromkeys(sorted(apart.devices), 0)
        self._apart = apart
        self._ring = sorted(apart.devices)
        self._rank = {p: i for i, p in enumerate(self._ring)}
        self._process_of = {d: p for p, ids in apart.devices.items() for d in ids}
        self._even: dict[tuple[Layout, int], tuple[Layout | None, Mapping[int, int]]] = {}

    def copies(self, own: Layout, itemsize: int) -> Layout | None:
        """Return a grid with the devices that get a copy of each cell; None if nothing is needed.

        Args:
            own: what the array's own devices hold, as a grid; other devices do not count.
            itemsize: bytes of an element.

        Arrays that are laid out alike get the same grid, if it is even by itself: so they are
        planned once.
        """
        known = self._even.get((own, itemsize))
        if known is not None:
            for process, nbytes in known[1].items():
                self.held[process] += nbytes
            return known[0]
        before = dict(self.held)
        grid = self._placed(own, itemsize)
        more = {p: n - before[p] for p, n in self.held.items()}
        if max(more.values()) * len(more) <= _EVEN * sum(more.values()):
            self._even[own, itemsize] = grid, {p: n for p, n in more.items() if n}
        return grid

    def _placed(self, own: Layout, itemsize: int) -> Layout | None:
        """Return the copies of one array, to those that have least so far."""
        lacking = self._lacking(own)
        if not lacking.any():
            return None
        cuts = self._cut(own, lacking, itemsize)
        fine = Layout(own.shape, cuts, onto(own, cuts))
        lacking = self._lacking(fine).reshape(-1)
        holders = fine.tensor.reshape(len(lacking), -1)
        found = np.full((len(lacking), int(lacking.max(initial=1))), -1, np.int64)
        for cell in np.flatnonzero(lacking).tolist():
            processes = [self._process_of.get(d, -1) for d in holders[cell].tolist()]
            nbytes = fine.box(cell).volume * itemsize
            chosen = self._chosen([p for p in processes if p >= 0], int(lacking[cell]), nbytes)
            ids = [self._apart.devices[p] for p in chosen]
            found[cell, : len(ids)] = [each[cell % len(each)] for each in ids]
        return Layout(own.shape, cuts, found.reshape(*fine.grid, -1))

    def _lacking(self, own: Layout) -> Ints:
        """Return how many copies each cell lacks; none if it has no elements."""
        known = np.array(sorted(self._process_of), np.int64)
        domains = np.array([self._apart.domain[self._process_of[d]] for d in known.tolist()])
        flat = own.tensor.reshape(-1, own.tensor.shape[-1])
        place = np.minimum(np.searchsorted(known, flat), len(known) - 1)
        found = np.sort(np.where(known[place] == flat, domains[place], -1), axis=1)
        new = np.ones(found.shape, bool)
        new[:, 1:] = found[:, 1:] != found[:, :-1]
        count = (new & (found >= 0)).sum(axis=1)
        most = min(self._apart.copies + 1, self._apart.domains)
        lacking = np.where(count, np.maximum(most - count, 0), 0).reshape(own.grid)
        for dim, lengths in enumerate(own.lengths):
            shape = [1] * lacking.ndim
            shape[dim] = -1
            lacking = lacking * (lengths > 0).reshape(shape)
        found_: Ints = lacking
        return found_

    def _cut(self, own: Layout, lacking: Ints, itemsize: int) -> tuple[Ints, ...]:
        """Return cuts in parts for several neighbours, where boxes are large enough."""
        parts = min(NEIGHBOURS, self._apart.domains - 1)
        longest = [int(n.max(initial=0)) for n in own.lengths]
        if parts < 2 or math.prod(longest) * itemsize < parts * _LEAST_PART:
            return own.points
        dim = next((d for d, n in enumerate(longest) if n >= parts), None)
        if dim is None:
            return own.points
        points = own.points[dim]
        others = tuple(d for d in range(lacking.ndim) if d != dim)
        extra = [points]
        for i in np.flatnonzero(lacking.any(axis=others)).tolist():
            length = int(own.lengths[dim][i])
            extra.append(np.asarray(balanced_cuts(length, min(parts, length))) + points[i])
        return (*own.points[:dim], np.unique(np.concatenate(extra)), *own.points[dim + 1 :])

    def _chosen(self, holders: Sequence[int], count: int, nbytes: int) -> list[int]:
        """Return who gets a copy of one cell: the neighbours that have least so far."""
        domain, ring = self._apart.domain, self._ring
        taken = {domain[p] for p in holders}
        first = self._rank[holders[0]] + 1
        near: list[int] = []
        domains: set[int] = set()
        for step in range(len(ring)):
            process = ring[(first + step) % len(ring)]
            if domain[process] not in taken:
                near.append(process)
                domains.add(domain[process])
                if len(near) >= NEIGHBOURS and len(domains) >= count:
                    break
        found = []
        for _ in range(count):
            free = [p for p in near if domain[p] not in taken]
            process = min(free, key=self.held.__getitem__)  # the nearest of those that are equal
            taken.add(domain[process])
            self.held[process] += nbytes
            found.append(process)
        return found
