"""What a load will do, as a value that prints.

In: a reading plan. Out: figures and tables.

What a save will write, as a value that prints.

In: a tree of arrays, or of shapes and shardings on devices that need not exist. Out: figures: who
writes what, and how long the manifest is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import xxhash

from meshard.errors import ArgumentError
from meshard.plan.captions import count_text, size_unit, whole_text
from meshard.plan.show.report import Table
from meshard.plan.show.summary import Fact, Summarized, Summary
from meshard.runtime.array.array import Array
from meshard.runtime.moving.place import home
from meshard.runtime.moving.structs import ShapeDtypeStruct
from meshard.runtime.world import here
from meshard.weights.checkpoint.sources import cast_to
from meshard.weights.native.manifest import DataFile, Entry, Manifest, grouped, written_by
from meshard.weights.native.structure import named
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


@final
@dataclass(frozen=True)
class SavePlan(Summarized):
    """What a save in meshard's own format writes. It prints as a summary.

    Attributes:
        bytes_written: the bytes of elements that each process writes, by its number.
        manifest: the text of the manifest, except for what is known only afterwards.
        arrays: how many arrays are saved.
    """

    bytes_written: dict[int, int]
    manifest: str
    arrays: int

    @cached_property
    def nbytes(self) -> int:
        """The bytes of all elements; each is written once."""
        return sum(self.bytes_written.values())

    @property
    def largest_writer_bytes(self) -> int:
        """The most bytes that one process writes."""
        return max(self.bytes_written.values(), default=0)

    def _summary(self) -> Summary:
        count, largest = len(self.bytes_written), self.largest_writer_bytes
        mean = self.nbytes / max(1, count)
        ratio = largest / mean if mean else 1.0
        arrays, processes = count_text(self.arrays, "array"), count_text(count, "process")
        balance = f"by one process at most, {ratio:.2f} x the mean"
        facts = [
            Fact("written", whole_text(self.nbytes), "each element once"),
            Fact("largest", whole_text(largest), balance),
            Fact("manifest", whole_text(len(self.manifest.encode()))),
        ]
        return Summary(f"Save {arrays}, {whole_text(self.nbytes)}, by {processes}", facts)


def plan_save(tree: Any, *, dtype: Any = None) -> SavePlan:
    """Return what `save` would write, without writing anything.

    Args:
        tree: a tree of arrays, or of ShapeDtypeStructs with shardings, whose devices need not
            exist (`meshard.testing.virtual_devices`).
        dtype: see `save`.

    Raises:
        ArgumentError: if a ShapeDtypeStruct has no sharding.
        CheckpointError: if a leaf cannot be saved.

    >>> import numpy as np
    >>> from meshard.checkpoint import plan_save
    >>> print(plan_save({"w": np.zeros((512, 512), "f4")}).nbytes)
    1048576
    """
    what = "checkpoint.plan_save"
    found = named(tree, what)
    entries = []
    for name, leaf in found.arrays.items():
        sharding = leaf.sharding if isinstance(leaf, (Array, ShapeDtypeStruct)) else home(here())
        if sharding is None:
            raise ArgumentError(f"{what}: {name!r} is a ShapeDtypeStruct without a sharding.")
        after = cast_to(dtype, np.dtype(leaf.dtype), what)
        entries.append(Entry(name, tuple(leaf.shape), after, sharding))
    ordered = grouped(entries)
    written = written_by(ordered)
    files = tuple([DataFile(p, 0, n, 0) for p, n in sorted(written.items())])
    manifest = Manifest(ordered, found.structure, found.tied, "data", files)
    return SavePlan(dict(sorted(written.items())), manifest.to_text(), len(entries))
