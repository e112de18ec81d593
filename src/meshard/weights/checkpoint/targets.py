"""Targets: the writer of the files that a save is to make, by format.

In: a path, a format, and the tensors to be written. Out: a writer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from meshard.algebra.arguments import choice_of
from meshard.algebra.box import Box
from meshard.errors import ArgumentError, CheckpointError, FileInUseError
from meshard.weights.catalogue.npy import npy_file
from meshard.weights.catalogue.safetensors_writer import (
    WriteOptions,
    one_file,
    rank_files,
    several_files,
)
from meshard.weights.catalogue.stored import Writer
from meshard.weights.catalogue.zarr_store import zarr_store
from meshard.weights.dcp.target import DcpWriter
from meshard.weights.native.manifest import Entry, native_pieces
from meshard.weights.native.structure import Named, leaf_paths, leaf_values

FORMATS = ("meshard", "safetensors", "safetensors-ranks", "npy", "zarr", "dcp")
_BY_SUFFIX = {".safetensors": "safetensors", ".npy": "npy", ".zarr": "zarr"}
_OTHERS = {
    **dict.fromkeys((".h5", ".hdf5", ".hdf", ".he5"), "HDF5"),
    **dict.fromkeys((".pt", ".pth", ".bin"), "torch.save's format, a pickle"),
    **dict.fromkeys((".pkl", ".pickle"), "a pickle"),
    ".npz": "NumPy's archives",
    ".gguf": "GGUF",
    ".onnx": "ONNX",
    ".msgpack": "MessagePack",
}
"""Suffixes of files that other programs write and meshard does not."""


def format_of(path: Path, given: str | None, what: str) -> str:
    """Return the format that is meant: the one given, or that of the path's suffix.

    Raises:
        ArgumentError: if there is no such format, or the suffix is that of files which meshard
            does not write: a folder of that name would not be what was asked for.
    """
    other = _OTHERS.get(path.suffix.lower()) if given is None else None
    if other is not None:
        raise ArgumentError(
            f"{what}: {path.name!r:.80} has the suffix of {other}, which meshard does not write. "
            f"It writes {', '.join(FORMATS)}: by the suffix {', '.join(_BY_SUFFIX)}, or by "
            'format=; format="meshard" makes a folder of any name.'
        )
    if given is None:
        return _BY_SUFFIX.get(path.suffix, "meshard")
    return choice_of(given, FORMATS, what, "format")


@final
@dataclass(frozen=True)
class Limits:
    """How files are written.

    Attributes:
        overwrite: whether files that exist are replaced.
        shard_bytes: the most bytes of one of several files.
    """

    overwrite: bool
    shard_bytes: int


def foreign_writer(
    path: Path,
    format_: str,
    entries: Mapping[str, Entry],
    tree: Named,
    limits: Limits,
) -> Writer:
    """Return the writer of another format than meshard's own.

    Args:
        path: the file or folder.
        format_: the format.
        entries: the tensors, and how they are laid out.
        tree: the tree that they are of.
        limits: how they are written.

    Raises:
        CheckpointError: if the format cannot hold the tree.
        FileInUseError: if the target exists and must not be replaced.
    """
    values = leaf_values(tree.structure)
    if values:
        name, value = next(iter(values.items()))
        raise CheckpointError(
            f"{path}: {format_} holds arrays only, but {name!r} of the tree is {value!r}. Save a "
            "meshard checkpoint, or leave it out."
        )
    options = WriteOptions(tied=tree.tied, overwrite=limits.overwrite)
    if format_ == "npy":
        if len(entries) != 1 or tree.tied:
            raise CheckpointError(
                f"{path}: a .npy file holds one array, and the tree has "
                f"{len(entries) + len(tree.tied)}."
            )
        (entry,) = entries.values()
        return npy_file(str(path), entry, WriteOptions(metadata={}, overwrite=limits.overwrite))
    if format_ == "dcp":
        _check_folder(path, overwrite=limits.overwrite)
        boxes = {e.name: list(native_pieces(e, k)) for k, e in enumerate(entries.values())}
        return DcpWriter(str(path), entries, boxes, leaf_paths(tree.structure), options)
    if format_ == "zarr":
        return zarr_store(str(path), entries, options)
    if format_ == "safetensors-ranks":
        _check_folder(path, overwrite=limits.overwrite)
        return rank_files(str(path), entries, _ranks(entries.values()), options)
    if path.suffix == ".safetensors":
        return one_file(str(path), entries, options)
    _check_folder(path, overwrite=limits.overwrite)
    return several_files(str(path), entries, options, shard_bytes=limits.shard_bytes)


def _check_folder(path: Path, *, overwrite: bool) -> None:
    """Refuse a folder that holds something that would not be replaced.

    Raises:
        FileInUseError: if it does.
    """
    try:  # in one step, since another process may be making it
        names = sorted([p.name for p in path.iterdir() if not p.name.startswith(".")])
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise FileInUseError(f"{path} is a file; several files need a folder.") from None
    if names and not overwrite:
        raise FileInUseError(
            f"{path} holds {names[0]!r}. Give a new folder, or overwrite=True to replace it."
        )


def _ranks(entries: Iterable[Entry]) -> dict[str, list[Box]]:
    """Return the box of each device for each tensor: device by device in the shardings' order.

    Raises:
        ArgumentError: if the tensors are on different numbers of devices.
    """
    found: dict[str, list[Box]] = {}
    for entry in entries:
        layout = entry.sharding.layout(entry.shape)
        ids = [d.id for d in entry.sharding.device_order]
        found[entry.name] = [layout.box(layout.piece_of[i]) for i in ids]
    counts = {len(boxes): name for name, boxes in found.items()}
    if len(counts) > 1:
        (a, first), (b, second), *_ = counts.items()
        raise ArgumentError(
            f"safetensors-ranks writes a file for each device, but {first!r} is on {a} and "
            f"{second!r} on {b} devices. Reshard them to one mesh first."
        )
    return found
