"""Which format a file or folder has, and opening it.

In: a path. Out: its catalogue. Formats are rows of a table; floors above add theirs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from meshard.errors import ArgumentError, CheckpointError, MissingFileError, did_you_mean
from meshard.weights.catalogue.hdf5 import open_hdf5
from meshard.weights.catalogue.npy import open_npy
from meshard.weights.catalogue.safetensors_file import INDEX_SUFFIX, SUFFIX, open_safetensors
from meshard.weights.catalogue.stored import Catalogue, OpenFile, file_error
from meshard.weights.catalogue.zarr_store import open_zarr


@final
@dataclass(frozen=True)
class Format:
    """A format of files.

    Attributes:
        open: returns the catalogue of a path.
        in_folder: whether a folder that has these names is one of this format.
        in_file: whether a file of a name that begins with these bytes is one of this format.
    """

    open: Callable[[str], Catalogue]
    in_folder: Callable[[set[str]], bool] = lambda names: False
    in_file: Callable[[str, bytes], bool] = lambda name, start: False


def _is_safetensors(name: str, start: bytes) -> bool:
    length = int.from_bytes(start[:8], "little")
    like = len(start) > 9 and start[8:9] == b"{" and length < 1 << 40
    return name.endswith((SUFFIX, INDEX_SUFFIX)) or like


FORMATS: dict[str, Format] = {
    "safetensors": Format(
        open_safetensors,
        lambda names: any(n.endswith((SUFFIX, INDEX_SUFFIX)) and n[0] != "." for n in names),
        _is_safetensors,
    ),
    "zarr": Format(open_zarr, lambda names: bool(names & {"zarr.json", ".zgroup", ".zarray"})),
    "npy": Format(open_npy, in_file=lambda name, start: start.startswith(b"\x93NUMPY")),
    "hdf5": Format(
        open_hdf5, in_file=lambda name, start: b"\x89HDF\r\n\x1a\n" in (start[:8], start[512:520])
    ),
}
"""The formats by name; one whose files another one may contain comes first."""


def open_catalogue(path: str, format: str | None = None) -> Catalogue:
    """Return the tensors of a file or folder.

    Args:
        path: the file or folder.
        format: the format's name; None to find it out from the names and first bytes.

    Raises:
        MissingFileError: if there is nothing at the path, or an empty folder.
        CheckpointError: if it has no format that can be read, or several.
        CorruptFileError: if it is damaged.
        ArgumentError: if there is no format of that name.
    """
    if format is not None:
        if format not in FORMATS:
            raise ArgumentError(
                f"open_catalogue: there is no format {format!r}; there are {', '.join(FORMATS)}."
                f"{did_you_mean(format, FORMATS)}"
            )
        return FORMATS[format].open(path)
    found = _formats_of_folder(path) if os.path.isdir(path) else _formats_of_file(path)
    if len(found) > 1:
        raise CheckpointError(
            f"{path}: it may be {' or '.join(found)}. Say which, by format=, or give the path of "
            "the file that is meant."
        )
    return FORMATS[found[0]].open(path)


def _formats_of_folder(path: str) -> list[str]:
    try:
        names = set(os.listdir(path))
    except OSError as error:
        raise file_error(error, path, "it cannot be listed") from error
    found = [name for name, one in FORMATS.items() if one.in_folder(names)]
    if not found and not {n for n in names if not n.startswith(".")}:
        left = f"; {min(names)} is of a save that did not end" if names else ""
        raise MissingFileError(f"{path}: the folder is empty{left}.")
    if not found:
        listed = ", ".join(sorted(names)[:5])
        raise CheckpointError(
            f"{path}: the folder has no file of a known format ({', '.join(FORMATS)}). It has "
            f"{listed}{', ...' if len(names) > 5 else ''}."
        )
    return found


def _formats_of_file(path: str) -> list[str]:
    file = OpenFile(path)
    start = file.bytes_at(0, min(file.size, 520), "it cannot be read")
    name = os.path.basename(path)
    found = [key for key, one in FORMATS.items() if one.in_file(name, start)]
    if not found:
        why = f"it begins with {start[:8]!r}"
        if start.startswith((b"PK\x03\x04", b"\x80")):
            why = (
                "it is a zip archive or a pickle, such as torch and numpy.savez write. Pickles can "
                "run code and are not read; convert it to safetensors where it was made"
            )
        raise CheckpointError(
            f"{path}: it has no known format ({', '.join(FORMATS)}): "
            f"{why if start else 'it is empty'}."
        )
    return found
