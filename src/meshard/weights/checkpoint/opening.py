"""Opening what is to be loaded: a checkpoint, the newest step of a run, or other files.

In: a path. Out: a catalogue.

Checking files against the checksums that were written with them.

In: a path. Out: what is damaged: which file, tensor and box.

What a file or folder holds, without its data.

In: a path. Out: shapes, dtypes and saved layouts, as a value that prints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from meshard.algebra.arguments import count_of, instance_of, integer_of, items_of, path_of, text_of
from meshard.errors import CorruptFileError, MissingFileError
from meshard.plan.captions import bytes_text, count_text, size_text
from meshard.plan.show.pictured import Pictured
from meshard.plan.show.progress import Progress, adding, checked_progress, telling
from meshard.plan.show.report import Table
from meshard.runtime.agree import meet
from meshard.runtime.moving.structs import ShapeDtypeStruct
from meshard.runtime.types import dtype_name
from meshard.runtime.world import here
from meshard.weights.catalogue.detect import FORMATS, open_catalogue
from meshard.weights.catalogue.safetensors_file import open_ranks
from meshard.weights.catalogue.stored import Catalogue, Stored
from meshard.weights.catalogue.verify import Damage, checked_bytes
from meshard.weights.catalogue.verify import verify as damages
from meshard.weights.dcp.source import DCP
from meshard.weights.native.files import native_catalogue, step_folder, steps, unfinished
from meshard.weights.native.manifest import NAME, Manifest
from meshard.weights.native.structure import leaf_values, rebuilt, structure_of

if TYPE_CHECKING:
    from meshard.plan.show.page import Markup

FORMATS["dcp"] = DCP


@final
@dataclass(frozen=True)
class RankFiles:
    """Safetensors files of which each holds the shards of one rank of a tensor-parallel runtime.

    It stands where a path is expected: in `load`, `metadata`, `convert`. Files that `save` has
    written for ranks say themselves how they are cut.

    Args:
        paths: the files, in the order of the ranks.
        dims: the dim along which tensors are cut, by pattern of names; None where every file has
            all of a tensor.

    Raises:
        ArgumentError: if ``paths`` does not hold paths, or ``dims`` not dims by pattern.

    >>> import numpy as np, tempfile
    >>> from meshard.checkpoint import RankFiles
    >>> from safetensors.numpy import save_file
    >>> from meshard.checkpoint import load
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths = [f"{folder}/{rank}.safetensors" for rank in range(2)]
    ...     for path in paths:
    ...         save_file({"w": np.zeros((2, 3), "f4"), "norm": np.ones(3, "f4")}, path)
    ...     load(RankFiles(paths, {"w": 0, "norm": None}))["w"].shape
    (4, 3)
    """

    paths: Sequence[str | Path]
    dims: Mapping[str, int | None]

    def __post_init__(self) -> None:
        what = "RankFiles"
        paths = items_of(self.paths, what, "paths", "paths", ordered=True)
        given = instance_of(self.dims, Mapping, what, "dims")  # type: ignore[type-abstract]
        dims = {
            text_of(pattern, what, "each key of dims"): None
            if dim is None
            else integer_of(dim, what, f"dims[{pattern!r:.80}]")
            for pattern, dim in given.items()
        }
        object.__setattr__(self, "paths", tuple([path_of(p, what, "paths") for p in paths]))
        object.__setattr__(self, "dims", dims)


Files = str | Path | RankFiles
"""What can be loaded: a path, or files of ranks."""


def opened(path: Files, step: int | None, what: str, *, checked: bool = False) -> Catalogue:
    """Return the catalogue of a path, or of files of ranks.

    Args:
        path: the path.
        step: the step of a run; None for the newest, if it is the folder of a run.
        what: the function that was called, for messages.
        checked: whether to read the checksums of a checkpoint too.

    Raises:
        MissingFileError: if there is nothing to load.
        CorruptFileError: if it is cut off, was changed, or is malformed.
    """
    if isinstance(path, RankFiles):
        return open_ranks([str(path_of(p, what)) for p in path.paths], path.dims)
    root = _checkpoint(path, step, what)
    while root is not None:
        try:
            return native_catalogue(root, checked=checked)
        except MissingFileError:
            newer = _checkpoint(path, step, what)
            if newer == root:
                raise
            root = newer  # the step was removed, since newer ones have been saved
    return open_catalogue(str(path_of(path, what)))


def is_checkpoint(path: Files, step: int | None, what: str) -> bool:
    """Whether a path is that of a checkpoint of meshard's own."""
    return not isinstance(path, RankFiles) and _checkpoint(path, step, what) is not None


def _checkpoint(path: str | Path, step: int | None, what: str) -> Path | None:
    """Return the folder of the checkpoint that a path means; None if it is another file.

    Raises:
        MissingFileError: if a step is asked for that is not complete.
    """
    root = Path(path_of(path, what))
    if step is not None:
        folder = step_folder(root, count_of(step, what, "step", least=0))
        if not (folder / NAME).is_file():
            raise MissingFileError(
                f"{what}: {root} has no complete step {step}; complete are {steps(root)[-8:]}."
            )
        return folder
    if (root / NAME).is_file():
        return root
    if not root.is_dir():
        return None
    found = steps(root)
    left = unfinished(root) if not found else None
    if left is not None:
        raise MissingFileError(
            f"{what}: {root} has no complete checkpoint and no complete step: the save that made "
            f"{left} has not ended, or was killed before it was complete. Wait for it, or save "
            "again; checkpoint.clean removes what a killed save has left."
        )
    return step_folder(root, found[-1]) if found else None


def in_order(catalogue: Catalogue) -> dict[str, Stored]:
    """Return the tensors in the order of their places in the files: the same for all processes."""

    def place(tensor: Stored) -> tuple[str, int, str]:
        first = tensor.pieces[0] if tensor.pieces else None
        return ("", 0, tensor.name) if first is None else (first.file, first.offset, tensor.name)

    return {t.name: t for t in sorted(catalogue.tensors.values(), key=place)}


def verify(path: Files, *, step: int | None = None, progress: Progress = None) -> list[Damage]:
    """Return what is damaged in a file or folder: nothing, if all is as it was written.

    The processes of a job share the work; all get the whole list. A file of another program that
    has no checksums is told too, since a change could not be noticed.

    Args:
        path: see `load`.
        step: see `load`.
        progress: True shows a bar on process 0, False none, and None one on a terminal if it takes
            longer than a second; or a function, which each process calls with the bytes that it has
            read, and about those that it will have read. In a program of several processes, an
            error that it raises is raised when the work is done.

    Raises:
        MissingFileError: if there is no complete checkpoint at all.
        StorageError: if a file may not be read.

    >>> import numpy as np, pathlib, tempfile
    >>> from meshard.checkpoint import save, verify
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = save(folder, {"w": np.arange(100.0)})
    ...     (file,) = pathlib.Path(folder).glob("data-*/*")
    ...     data = bytearray(file.read_bytes())
    ...     data[-1] ^= 1
    ...     _ = file.write_bytes(data)
    ...     [(d.tensor, str(d.box)) for d in verify(folder)]
    [('w', '[0:100]')]
    """
    what = "checkpoint.verify"
    asked = checked_progress(progress, what)
    world = here()
    everybody = world.processes
    if world.process_count > 1:
        meet(world, everybody, f"`{what}` of {path}")
    found: list[Damage] = []
    with telling(asked, "verifying", world=world, patient=world.process_count > 1) as tell:
        try:
            catalogue = opened(path, step, what, checked=True)
        except (CorruptFileError, MissingFileError) as error:
            if isinstance(error, MissingFileError) and not is_checkpoint(path, step, what):
                raise
            found.append(Damage(str(path), str(error)))
        else:
            try:
                count = len(everybody)
                told = adding(tell, checked_bytes(catalogue) // count)
                found += damages(catalogue, world.place, count, told)
            finally:
                catalogue.reader.close()
        all_found: list[Any] = world.transport.all_gather(found, everybody)
    return list(dict.fromkeys([damage for some in all_found for damage in some]))


_ROWS, _PAGE_ROWS = 24, 200


@final
@dataclass(frozen=True)
class Metadata(Pictured):
    """What a file or folder of arrays holds; it prints as a table.

    Attributes:
        path: the file or folder.
        format: its format: ``"meshard"``, ``"safetensors"``, ``"zarr"``, ``"npy"``, ``"hdf5"`` or
            ``"dcp"``.
        tensors: the tensors by name; with the sharding that each was saved in, if it is known.
        tied: further names of tensors.
        values: numbers, strings and booleans of the tree, by the path to each.
        files: the files that hold elements.
        nbytes: the bytes of all elements.
        pickled: names of values that are pickles of any kind, which are not read.
    """

    path: str
    format: str
    tensors: Mapping[str, ShapeDtypeStruct]
    tied: Mapping[str, str]
    values: Mapping[str, Any]
    files: tuple[str, ...]
    nbytes: int
    structure: Any
    pickled: tuple[str, ...] = ()

    @cached_property
    def tree(self) -> Any:
        """The tree that `load` returns, with a ShapeDtypeStruct for each array."""

        def leaf(name: str) -> ShapeDtypeStruct:
            found = self.tensors.get(self.tied.get(name, name))
            if found is None:
                raise CorruptFileError(f"{self.path}: tensor {name!r} is missing.")
            return found

        names = sorted([*self.tensors, *self.tied])
        return rebuilt(self.structure, leaf, names, "checkpoint.metadata")

    def __str__(self) -> str:
        return self.table().text()

    def _title(self) -> str:
        return f"{self.path}: {count_text(len(self.tensors), 'tensor')}, {size_text(self.nbytes)}"

    def _parts(self) -> Iterator[Markup]:
        yield self.table(_PAGE_ROWS).html()

    def table(self, rows: int | None = _ROWS) -> Table:
        """Return the first ``rows`` tensors as a table; all of them if it is None."""
        if rows is not None:
            rows = count_of(rows, "Metadata.table", "rows")
        names = list(self.tensors)
        shown = names if rows is None else names[:rows]
        lines = [
            (name, self._type(name), bytes_text(self.tensors[name].nbytes), self._layout(name))
            for name in shown
        ]
        count, files = len(names), len(self.files)
        notes = [f"and {count - len(shown):,} more"] if count > len(shown) else []
        notes += [f"{alias} is {name}" for alias, name in list(self.tied.items())[:8]]
        if self.values:
            told = ", ".join(f"{k} = {v!r}" for k, v in list(self.values.items())[:8])
            notes.append(told)
        if self.pickled:
            more = ", ..." if len(self.pickled) > 8 else ""
            notes.append(f"not read, since pickled: {', '.join(self.pickled[:8])}{more}")
        notes.append(
            f"{count_text(count, 'tensor')}, {bytes_text(self.nbytes)}, in "
            f"{count_text(files, 'file')} ({self.format})"
        )
        return Table(
            ("tensor", "type", "bytes", "saved as"),
            lines,
            "~<>~",
            notes,
            spare=("bytes", "saved as"),
        )

    def _type(self, name: str) -> str:
        struct = self.tensors[name]
        return f"{dtype_name(struct.dtype)}[{','.join(map(str, struct.shape))}]"

    def _layout(self, name: str) -> str:
        sharding = self.tensors[name].sharding
        if sharding is None:
            return "whole"
        spec = getattr(sharding, "spec", None)
        if spec is None:
            return f"{sharding.num_devices} device{'s' if sharding.num_devices > 1 else ''}"
        sizes = ", ".join(f"{k}: {n}" for k, n in sharding.mesh.shape.items())
        return f"{spec} on {sizes}"


def metadata(path: Files, *, step: int | None = None) -> Metadata:
    """Return what a file or folder holds, without reading an element or using a device.

    Args:
        path: see `load`.
        step: see `load`.

    Raises:
        MissingFileError: if there is no complete checkpoint, or one of its files is missing.
        CorruptFileError: if a file is cut off, was changed, or contradicts another one.

    >>> import numpy as np, tempfile
    >>> from meshard.checkpoint import metadata, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = save(folder, {"w": np.zeros((2, 3), "f4"), "epoch": 3})
    ...     found = metadata(folder)
    >>> found.tensors["w"].shape, found.nbytes, found.values
    ((2, 3), 24, {'epoch': 3})
    """
    catalogue = opened(path, step, "checkpoint.metadata")
    catalogue.reader.close()
    return metadata_of(catalogue)


def metadata_of(catalogue: Catalogue) -> Metadata:
    """Return what is known about the tensors of a catalogue."""
    manifest = catalogue.values.get("manifest")
    saved = {}
    if isinstance(manifest, Manifest):
        saved = {e.name: e.sharding for e in manifest.entries}
    structs = {
        name: ShapeDtypeStruct(t.shape, t.dtype, sharding=saved.get(name))
        for name, t in catalogue.tensors.items()
    }
    files = dict.fromkeys([p.file for t in catalogue.tensors.values() for p in t.pieces])
    structure = structure_of(catalogue)
    return Metadata(
        catalogue.path,
        catalogue.format,
        structs,
        catalogue.tied,
        leaf_values(structure),
        tuple(files),
        sum([t.nbytes for t in catalogue.tensors.values()]),
        structure,
        catalogue.pickled,
    )
