"""What a load will do, as a value that prints.

In: a reading plan. Out: figures and tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import xxhash

from meshard.plan.captions import count_text, size_unit, whole_text
from meshard.plan.show.report import Table
from meshard.plan.show.summary import Fact, Summarized, Summary
from meshard.weights.transfer.reading import ReadingPlan

_ROWS = 12


@final
@dataclass(frozen=True)
class LoadPlan(Summarized):
    """What a load will read and move; it prints as a table.

    Attributes:
        path: the files.
        format: their format.
        reading: who reads what.
        max_bytes: the most bytes that a process holds besides the arrays; None for no limit.
        files: how many files hold elements that are read.
    """

    path: str
    format: str
    reading: ReadingPlan
    max_bytes: int | None
    files: int

    @property
    def bytes_read(self) -> int:
        """Bytes of elements that all processes together read; each stored byte once."""
        return sum(self.reading.bytes_read)

    @property
    def bytes_moved(self) -> int:
        """Bytes that pass between processes."""
        return self.reading.bytes_moved

    @property
    def lower_bound_bytes(self) -> int:
        """The least bytes that can pass between processes if each stored byte is read once."""
        return self.reading.lower_bound_bytes

    @property
    def largest_reader_bytes(self) -> int:
        """The most bytes that one process reads."""
        return max(self.reading.bytes_read, default=0)

    @property
    def digest(self) -> str:
        """A short text that stands for the plan: the same on all processes."""
        told = [(w.name, w.recipe.shape, str(w.recipe.dtype)) for w in self.reading.wanted]
        counts = len(self.reading.direct), len(self.reading.slabs), self.reading.bytes_read
        return xxhash.xxh3_64_hexdigest(repr((told, counts)).encode())

    @property
    def peak_bytes(self) -> int:
        """The most bytes that a process holds: its arrays, and what is on its way."""
        most = max(self.reading.bytes_needed, default=0)
        return most + self.reading.round_bytes

    def _summary(self) -> Summary:
        plan, count = self.reading, self.reading.processes
        mean = self.bytes_read / max(1, count)
        ratio = self.largest_reader_bytes / mean if mean else 1.0
        moved, least = self.bytes_moved, self.lower_bound_bytes
        beside = f", {moved / least:.2f} x the least possible" if least else ""
        balance = f"by one process at most, {ratio:.2f} x the mean"
        facts = [
            Fact("read", whole_text(self.bytes_read), "each stored byte once"),
            Fact("largest", whole_text(self.largest_reader_bytes), balance),
            Fact("moved", whole_text(moved), f"between processes{beside}"),
            Fact("held", whole_text(self.peak_bytes), "in one process at most"),
        ]
        title = (
            f"Load {count_text(len(plan.wanted), 'array')}, {whole_text(self.bytes_read)}, from "
            f"{self.path} ({self.format}) by {count_text(count, 'process')}"
        )
        return Summary(title, facts, [self._table()])

    def _table(self) -> Table:
        plan = self.reading
        counted: dict[int, int] = {}
        for slab in plan.slabs:
            counted[slab.tensor] = counted.get(slab.tensor, 0) + 1
        order = sorted(range(len(plan.wanted)), key=lambda k: (-plan.wanted[k].nbytes, k))
        unit = size_unit([w.nbytes for w in plan.wanted])
        rows = []
        for k in order[:_ROWS]:
            w = plan.wanted[k]
            how = self._how(counted.get(k, 0))
            shape = ",".join(map(str, w.recipe.shape))
            rows.append((w.name, f"{w.recipe.dtype.name}[{shape}]", unit.text(w.nbytes), how))
        more = len(order) - len(rows)
        notes = [f"and {more:,} smaller arrays"] if more > 0 else []
        return Table(("array", "type", unit.name, "read"), rows, "~<>~", notes)

    def _how(self, slabs: int) -> str:
        if not slabs:
            return "to its place"
        told = f"in {slabs:,} slab{'s' if slabs > 1 else ''}"
        return f"{told}, passed on" if self.reading.processes > 1 else f"{told}, cut apart"
