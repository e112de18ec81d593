"""What a save will write, as a value that prints.

In: a tree of arrays, or of shapes and shardings on devices that need not exist. Out: figures: who
writes what, and how long the manifest is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from meshard.errors import ArgumentError
from meshard.plan.captions import count_text, whole_text
from meshard.plan.show.summary import Fact, Summarized, Summary
from meshard.runtime.array.array import Array
from meshard.runtime.moving.place import home
from meshard.runtime.moving.structs import ShapeDtypeStruct
from meshard.runtime.world import here
from meshard.weights.checkpoint.sources import cast_to
from meshard.weights.native.manifest import DataFile, Entry, Manifest, grouped, written_by
from meshard.weights.native.structure import named


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
