"""What a file or folder holds, without its data.

In: a path. Out: shapes, dtypes and saved layouts, as a value that prints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

from meshard.algebra.arguments import count_of
from meshard.errors import CorruptFileError
from meshard.plan.captions import bytes_text, count_text, size_text
from meshard.plan.show.pictured import Pictured
from meshard.plan.show.report import Table
from meshard.runtime.moving.structs import ShapeDtypeStruct
from meshard.runtime.types import dtype_name
from meshard.weights.catalogue.stored import Catalogue
from meshard.weights.checkpoint.opening import Files, opened
from meshard.weights.native.manifest import Manifest
from meshard.weights.native.structure import leaf_values, rebuilt, structure_of

if TYPE_CHECKING:
    from meshard.plan.show.page import Markup

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
