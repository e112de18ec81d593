"""Where copies go: boxes that too few processes hold, each to neighbours of those that hold it.

In: layouts of arrays, the processes and what keeps them apart. Out: for each array a grid with the
devices that get a copy of each cell. A box is cut into parts for several neighbours, so that copies
take about as much memory everywhere, and so that several can give what one that dies has held. Only
a few neighbours share the copies of a process: two deaths rarely hit a box and its copy.

The first part of a box goes to the process before, and the last to the one behind. When a process
is gone, and its elements are divided anew in the same order, these two are the ones that take over
most of them, and the others' borders move by less than a part: little has to move.

Plans of copies, as values: which boxes are copied to whom, and what memory and bytes that takes.

In: the arrays of a tree, how many copies, and how far apart. Out: a `ProtectPlan`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, final

import numpy as np
import xxhash

from meshard.algebra.device import Device
from meshard.algebra.layout import Layout, balanced_cuts
from meshard.plan.captions import count_text, size_unit, whole_text
from meshard.plan.hops.hop import Hop, unit_map
from meshard.plan.show.report import Table
from meshard.plan.show.summary import Fact, Summarized, Summary
from meshard.resilience.copies.stocks import onto

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

NEIGHBOURS = 4
"""Among how many processes the copies of one process's boxes are divided."""
_EVEN = 1.05
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
        grid = self._placed(own, itemsize, True)
        more = {p: n - before[p] for p, n in self.held.items()}
        if max(more.values()) * len(more) <= _EVEN * sum(more.values()):
            self._even[own, itemsize] = grid, {p: n for p, n in more.items() if n}
            return grid
        self.held = before
        return self._placed(own, itemsize, False)

    def _placed(self, own: Layout, itemsize: int, freely: bool) -> Layout | None:
        """Return the copies of one array.

        Args:
            own: what its own devices hold.
            itemsize: bytes of an element.
            freely: whether each part goes where it is best placed, whatever is there already.
        """
        lacking = self._lacking(own)
        if not lacking.any():
            return None
        dim, cuts, where = self._cut(own, lacking, itemsize)
        fine = Layout(own.shape, cuts, onto(own, cuts))
        lacking = self._lacking(fine).reshape(-1)
        holders = fine.tensor.reshape(len(lacking), -1)
        found = np.full((len(lacking), int(lacking.max(initial=1))), -1, np.int64)
        for cell in np.flatnonzero(lacking).tolist():
            processes = [self._process_of.get(d, -1) for d in holders[cell].tolist()]
            near = self._near([p for p in processes if p >= 0], int(lacking[cell]))
            at = int(where[fine.coordinate(cell)[dim]] * len(near)) if where else 0
            nbytes = fine.box(cell).volume * itemsize
            chosen = self._chosen(near, at, int(lacking[cell]), nbytes, freely)
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

    def _cut(
        self, own: Layout, lacking: Ints, itemsize: int
    ) -> tuple[int, tuple[Ints, ...], list[float]]:
        """Return cuts in parts for several neighbours, where boxes are large enough.

        Returns:
            The dim that is cut, the cuts, and for each index of that dim where in its box the part
            is, from 0 to 1; nothing if no box is cut.
        """
        domain = self._apart.domain
        crowd = max(Counter([domain[p] for p in self._ring]).values())
        parts = min(NEIGHBOURS, len(self._ring) - crowd)
        longest = [int(n.max(initial=0)) for n in own.lengths]
        dim = next((d for d, n in enumerate(longest) if n >= parts), None)
        if parts < 2 or dim is None or math.prod(longest) * itemsize < parts * _LEAST_PART:
            return 0, own.points, []
        points, lengths = own.points[dim], own.lengths[dim]
        others = tuple(d for d in range(lacking.ndim) if d != dim)
        extra = [points]
        for i in np.flatnonzero(lacking.any(axis=others)).tolist():
            length = int(lengths[i])
            extra.append(np.asarray(balanced_cuts(length, min(parts, length))) + points[i])
        cuts = np.unique(np.concatenate(extra))
        at = np.searchsorted(points, cuts[:-1], side="right") - 1
        where = (cuts[:-1] - points[at]) / np.maximum(lengths[at], 1)
        return dim, (*own.points[:dim], cuts, *own.points[dim + 1 :]), where.tolist()

    def _near(self, holders: Sequence[int], count: int) -> list[int]:
        """Return the neighbours of some holders that are apart from them.

        The nearest before comes first, then others before, then those behind: the nearest last.
        """
        domain, ring = self._apart.domain, self._ring
        taken = {domain[p] for p in holders}
        first = self._rank[holders[0]]
        sides: tuple[list[int], list[int]] = ([], [])
        found: set[int] = set()
        for step in range(1, len(ring)):
            for side, sign in zip(sides, (-1, 1), strict=True):
                process = ring[(first + sign * step) % len(ring)]
                if domain[process] in taken or process in found:
                    continue
                enough = len({domain[p] for p in found}) >= count
                if len(found) >= NEIGHBOURS and enough:
                    return [*sides[0], *reversed(sides[1])]
                side.append(process)
                found.add(process)
        return [*sides[0], *reversed(sides[1])]

    def _chosen(
        self, near: Sequence[int], at: int, count: int, nbytes: int, freely: bool
    ) -> list[int]:
        """Return who gets a copy of one part: nearest to a place; if not freely, who has little."""
        domain, held = self._apart.domain, self.held
        found: list[int] = []
        for _ in range(count):
            taken = {domain[p] for p in found}
            free = [i for i, p in enumerate(near) if domain[p] not in taken]
            most = math.inf if freely else min(held[near[i]] for i in free) + nbytes
            best = min(free, key=lambda i: (held[near[i]] > most, abs(i - at), i))
            found.append(near[best])
            held[near[best]] += nbytes
        return found


_ROWS = 12


@final
@dataclass(frozen=True)
class CopiedArray:
    """One array of a plan.

    Attributes:
        name: its name in the tree.
        text: its type, as in ``"float32[4,8]"``.
        itemsize: bytes of an element.
        own: what its own devices hold, as a grid.
        copies: the devices that get a copy of each cell, as a grid; None if all have enough.
    """

    name: str
    text: str
    itemsize: int
    own: Layout
    copies: Layout | None

    @cached_property
    def alive(self) -> frozenset[int]:
        """The array's own devices."""
        return frozenset([d for d in np.unique(self.own.tensor).tolist() if d >= 0])

    @cached_property
    def nbytes(self) -> int:
        """The bytes of the copies."""
        if self.copies is None:
            return 0
        volumes = np.ones((), np.int64)
        for lengths in self.copies.lengths:
            volumes = np.multiply.outer(volumes, lengths)
        counts = (self.copies.tensor >= 0).sum(axis=-1)
        return int((volumes * counts).sum()) * self.itemsize


@final
@dataclass(frozen=True, repr=False)
class ProtectPlan(Summarized):
    """What protecting a tree takes; it prints as a table.

    Attributes:
        arrays: the arrays, with where their copies go.
        apart: the processes that keep copies.
        kind: what a box and its copy must not share: ``"process"`` or ``"host"``.
        memory: the bytes of copies that each process keeps.

    >>> import meshard
    >>> from meshard import elastic
    >>> from meshard.testing import simulate
    >>> def program():
    ...     rows = meshard.NamedSharding(elastic.mesh("i"), meshard.P("i"))
    ...     return elastic.plan_protect(meshard.ShapeDtypeStruct((8,), "float32", sharding=rows))
    >>> simulate(4, 1, program)[0].memory
    {0: 8, 1: 8, 2: 8, 3: 8}
    """

    arrays: tuple[CopiedArray, ...]
    apart: Apart
    kind: str
    memory: dict[int, int]

    @property
    def copies(self) -> int:
        """How many copies are kept: as many as were asked for, or as the processes allow."""
        return min(self.apart.copies, self.apart.domains - 1)

    @cached_property
    def bytes_moved(self) -> int:
        """The bytes that each refresh moves: all copies, once."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def memory_bytes(self) -> int:
        """The bytes of copies that all processes keep; while a refresh runs twice as many."""
        return sum(self.memory.values())

    @property
    def largest_memory_bytes(self) -> int:
        """The bytes of copies that one process keeps at most."""
        return max(self.memory.values(), default=0)

    @cached_property
    def sent(self) -> dict[int, int]:
        """The bytes that each process sends in a refresh."""
        process_of = {d: p for p, ids in self.apart.devices.items() for d in ids}
        found: dict[int, int] = {}
        for array in self.arrays:
            if array.copies is not None:
                units = unit_map(process_of)
                hop = Hop(array.own, array.copies, units, alive=array.alive & process_of.keys())
                for process, count in hop.sent.as_dict().items():
                    found[process] = found.get(process, 0) + count * array.itemsize
        return found

    @property
    def digest(self) -> str:
        """A short text that stands for the plan: the same on all processes."""
        told = [
            (a.name, a.text, *[(x.cuts, x.tensor.tobytes()) for x in (a.own, a.copies) if x])
            for a in self.arrays
        ]
        return xxhash.xxh3_64_hexdigest(repr((told, self.apart.copies, self.kind)).encode())

    def __repr__(self) -> str:
        arrays, copies = count_text(len(self.arrays), "array"), count_text(self.copies, "copy")
        return f"ProtectPlan({arrays}, {copies}, {self.bytes_moved} bytes moved)"

    def _summary(self) -> Summary:
        count, largest = len(self.memory), self.largest_memory_bytes
        mean = self.memory_bytes / count if count else 0
        copied = [a for a in self.arrays if a.copies is not None]
        arrays, copies = count_text(len(self.arrays), "array"), count_text(self.copies, "copy")
        memory = (
            f"at most {whole_text(largest)} in one process, "
            f"{largest / mean if mean else 1.0:.2f} x the mean; twice that in a refresh"
        )
        most = max(self.sent.values(), default=0)
        facts = [
            Fact("memory", whole_text(self.memory_bytes), memory),
            Fact("moved", whole_text(self.bytes_moved), _refreshed(most)),
            Fact("copied", f"{len(copied):,}", _enough(len(self.arrays) - len(copied))),
        ]
        title = (
            f"Protect {arrays}, {copies} apart by {self.kind}, in "
            f"{count_text(count, 'process')}: {whole_text(self.memory_bytes)} of copies"
        )
        unit = size_unit([a.nbytes for a in self.arrays])
        rows = [
            (a.name, a.text, unit.text(a.nbytes))
            for a in sorted(self.arrays, key=lambda a: -a.nbytes)[:_ROWS]
        ]
        more = len(self.arrays) - len(rows)
        notes = [f"and {more:,} smaller arrays"] if more > 0 else []
        table = Table(("array", "type", f"copied {unit.name}"), rows, "<<>", notes)
        return Summary(title, facts, [table])


def _refreshed(most: int) -> str:
    return f"by each refresh; at most {whole_text(most)} from one process"


def _enough(count: int) -> str:
    return f"arrays; {count:,} have enough holders"


def plan_copies(
    arrays: Sequence[tuple[str, str, int, Layout]], apart: Apart, kind: str
) -> ProtectPlan:
    """Return where the copies of some arrays go.

    Args:
        arrays: name, type, bytes of an element, and what the array's own devices hold, as a grid.
        apart: the processes that keep copies.
        kind: what a box and its copy must not share.
    """
    placing = Placing(apart)
    found = [
        CopiedArray(name, text, size, own, placing.copies(own, size))
        for name, text, size, own in arrays
    ]
    return ProtectPlan(tuple(found), apart, kind, dict(placing.held))
