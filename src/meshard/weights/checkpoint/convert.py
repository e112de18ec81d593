"""Converting files to files, slab by slab.

In: files, and what is to become of them. Out: other files. No array is made: each process reads
what it writes, so that memory does not grow with the tensors.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import count_of, flag_of, path_of
from meshard.errors import ArgumentError
from meshard.plan.captions import count_text, whole_text
from meshard.plan.figures.footprint import checked_window
from meshard.plan.show.progress import Progress, adding, checked_progress, telling
from meshard.plan.show.summary import Fact, Summarized, Summary
from meshard.runtime.agree import meet
from meshard.runtime.moving.place import as_sharding, is_function
from meshard.runtime.moving.structs import ShapeDtypeStruct
from meshard.runtime.world import RuntimeWorld, here
from meshard.weights.catalogue.safetensors_writer import SHARD_BYTES
from meshard.weights.catalogue.stored import Catalogue
from meshard.weights.checkpoint.job import Limits, Request, format_of
from meshard.weights.checkpoint.opening import Files, in_order, opened
from meshard.weights.checkpoint.sources import Source, made_of, rows
from meshard.weights.maps.keymap import KeyMap
from meshard.weights.maps.recipe import Recipe
from meshard.weights.native.manifest import Entry
from meshard.weights.native.structure import Named, structure_of
from meshard.weights.transfer.gather import Gatherer
from meshard.weights.transfer.reading import slab_bytes_of


@final
@dataclass(frozen=True)
class Conversion(Summarized):
    """What a conversion does. It prints as a summary.

    Attributes:
        source: what is read.
        source_format: its format.
        target: what is written.
        target_format: its format.
        tensors: how many tensors are written.
        bytes_read: the bytes of elements that all processes together read.
        bytes_written: the bytes of elements that they write.
        peak_bytes: the most bytes that one process holds.
    """

    source: str
    source_format: str
    target: str
    target_format: str
    tensors: int
    bytes_read: int
    bytes_written: int
    peak_bytes: int

    def _summary(self) -> Summary:
        title = (
            f"Convert {whole_text(self.bytes_read)} of {self.source} ({self.source_format}) to "
            f"{self.target} ({self.target_format})"
        )
        facts = [
            Fact("read", whole_text(self.bytes_read), count_text(self.tensors, "tensor")),
            Fact("written", whole_text(self.bytes_written)),
            Fact("held", whole_text(self.peak_bytes), "in one process at most"),
        ]
        return Summary(title, facts)


def convert(
    source: Files,
    target: str | Path,
    shardings: Any = None,
    *,
    format: str | None = None,
    step: int | None = None,
    dtype: Any = None,
    map: KeyMap | None = None,
    overwrite: bool = False,
    shard_bytes: int = SHARD_BYTES,
    max_bytes: int | None = None,
    dry_run: bool = False,
    progress: Progress = None,
) -> Conversion:
    """Write what files hold to other files, without making arrays.

    The processes of a job share the work: each reads what it writes.

    Args:
        source: a checkpoint, or a file or folder of another format; see `load`.
        target: the file or folder to be written; see `save`.
        shardings: how the tensors are cut into files, where the format says so: a sharding for all,
            or a function of a name and a ShapeDtypeStruct. With ``"safetensors-ranks"`` there is a
            file for each of its devices, which need not exist.
        format: see `save`.
        step: see `load`.
        dtype: what floats are cast to, or integers if it is an integer dtype; None for no cast.
        map: which tensors are made of which.
        overwrite: whether what is there is replaced.
        shard_bytes: the most bytes of one of several safetensors files.
        max_bytes: the most bytes that a process holds; None for 4 MiB a thread.
        dry_run: whether to write nothing, and return what would be done.
        progress: True shows a bar on process 0, False none, and None one on a terminal if it takes
            longer than a second; or a function, which each process calls with the bytes that it has
            written, and those that it will have written. In a program of several processes, an
            error that it raises is raised when the work is done.

    Returns:
        What was done.

    Raises:
        MissingFileError, CorruptFileError: see `load`.
        FileInUseError, StorageError, CheckpointError: see `save`.
        KeyMapError: if the map does not fit the tensors.

    >>> import numpy as np, tempfile
    >>> from meshard.checkpoint import convert, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = save(folder + "/a", {"w": np.zeros((4, 4), "f4")})
    ...     convert(folder + "/a", folder + "/b.safetensors", dtype="bfloat16").bytes_written
    32
    """
    what = "checkpoint.convert"
    for name, given in (("overwrite", overwrite), ("dry_run", dry_run)):
        flag_of(given, what, name)
    asked = checked_progress(progress, what)
    window = checked_window(max_bytes, what)
    count_of(shard_bytes, what, "shard_bytes", least=1)
    root = Path(os.path.abspath(path_of(target, what)))
    kind = format_of(root, format, what)
    world, catalogue = here(), opened(source, step, what)
    try:
        wish = _Wish(world, shardings, dtype, map, what)
        tree, sources = wish.of(catalogue)
        slab = slab_bytes_of(window, len(world.processes), world.workers.threads)
        found = Conversion(
            catalogue.path,
            catalogue.format,
            str(root),
            kind,
            len(sources),
            _bytes_read(catalogue, [s.recipe for s in sources]),
            sum([s.entry.nbytes for s in sources]),
            2 * slab * world.workers.threads,
        )
        if dry_run:
            return found
        if world.process_count > 1:
            meet(world, world.processes, f"`{what}` of {catalogue.path} to {root}")
        limits = Limits(overwrite, shard_bytes)
        request = Request(world, root, tree, {}, sources, limits, files=Gatherer(catalogue))
        total = found.bytes_written // len(world.processes)
        with telling(asked, "converting", world=world, patient=world.process_count > 1) as tell:
            job = request.job(kind, slab, told=adding(tell, total))
            job.start()
            job.run()
    finally:
        catalogue.reader.close()
    return found


def _bytes_read(catalogue: Catalogue, recipes: list[Recipe]) -> int:
    """Return the bytes of elements that recipes need."""
    return sum(
        [
            term.unique * catalogue.tensors[term.source].dtype.itemsize
            for recipe in recipes
            for term in recipe.terms
        ]
    )


@final
@dataclass(frozen=True)
class _Wish:
    """What is to become of the tensors."""

    world: RuntimeWorld
    shardings: Any
    dtype: Any
    map: KeyMap | None
    what: str

    def of(self, catalogue: Catalogue) -> tuple[Named, list[Source]]:
        """Return the tree that is written, and its tensors."""
        made = made_of(in_order(catalogue), catalogue.tied, self.map, self.dtype, self.what)
        places = {n: self._place(n, r) for n, r in made.recipes.items()}
        made.check(places)
        found = [Source(Entry(n, r.shape, r.dtype, places[n]), r) for n, r in made.recipes.items()]
        structure = made.structure(structure_of(catalogue))
        return Named(dict.fromkeys(made.recipes), made.tied, structure), found

    def _place(self, name: str, recipe: Recipe) -> Sharding:
        given = self.shardings
        if is_function(given):
            given = given(name, ShapeDtypeStruct(recipe.shape, recipe.dtype))
        found = as_sharding(given, self.what)
        if found is None and self.shardings is not None:
            raise ArgumentError(f"{self.what}: no sharding is given for {name!r}.")
        return rows(self.world, recipe.shape) if found is None else found
