"""Plans of copies, as values: which boxes are copied to whom, and what memory and bytes that takes.

In: the arrays of a tree, how many copies, and how far apart. Out: a `ProtectPlan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import xxhash

from meshard.algebra.layout import Layout
from meshard.plan.captions import count_text, size_unit, whole_text
from meshard.plan.hops.hop import Hop, unit_map
from meshard.plan.show.report import Table
from meshard.plan.show.summary import Fact, Summarized, Summary
from meshard.resilience.copies.placement import Apart, Placing

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
