"""The files of a checkpoint: one file of data for each process that writes, and the manifest.

In: tensors with their layouts. Out: a writer, and for reading a catalogue. A data file is a
safetensors file whose tensors are the boxes that its process has written, so that other tools can
read it; its header holds the checksum of each.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, final

import numpy as np
import xxhash

from meshard.algebra.box import Box
from meshard.errors import CorruptFileError, MissingFileError, StorageError
from meshard.runtime.types import Block
from meshard.weights.catalogue.stored import Catalogue, Piece, Stored
from meshard.weights.checkpoint.manifest import (
    NAME,
    DataFile,
    Entry,
    Manifest,
    native_pieces,
    read_manifest,
)

_SUMS = "meshard.xxh3"
_ALIGNED = 64
_SAFETENSORS = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}


def data_name(process: int) -> str:
    """Return the name of the data file that a process writes."""
    return f"{process:05d}.safetensors"


def stored_pieces(
    entries: Sequence[Entry], folder: str, starts: Mapping[int, int]
) -> dict[str, tuple[Stored, tuple[int, ...]]]:
    """Return where the tensors of a checkpoint are, and who writes each piece.

    Args:
        entries: the tensors, in the order of the files.
        folder: the folder of the data files.
        starts: for each process the byte at which the data in its file begins.
    """
    ends: dict[int, int] = {}
    found = {}
    for number, entry in enumerate(entries):
        pieces, owners = [], []
        for box, process in native_pieces(entry, number):
            at = ends.get(process, 0)
            ends[process] = at + box.volume * entry.dtype.itemsize
            file = f"{folder}/{data_name(process)}"
            pieces.append(Piece(box, file, starts.get(process, 0) + at))
            owners.append(process)
        stored = Stored(entry.name, entry.shape, entry.dtype, tuple(pieces))
        found[entry.name] = stored, tuple(owners)
    return found


@final
class Header:
    """What comes before the data in the file of one process.

    Args:
        pieces: the tensors' names, dtypes, shapes and the boxes in the file, in order.

    Attributes:
        size: the bytes of it; the data begins there.
        data: the bytes of the data.
    """

    def __init__(self, pieces: Sequence[tuple[Stored, Box]]) -> None:
        self._count = len(pieces)
        entries: dict[str, object] = {}
        at = 0
        for stored, box in pieces:
            dtype = _SAFETENSORS.get(stored.dtype.name)
            end = at + box.volume * stored.dtype.itemsize
            shape = list(box.shape) if dtype else [*box.shape, stored.dtype.itemsize]
            name = stored.name if box == Box.whole(stored.shape) else f"{stored.name}{box}"
            entries[name] = {"dtype": dtype or "U8", "shape": shape, "data_offsets": [at, end]}
            at = end
        metadata = {"format": "meshard checkpoint", _SUMS: "0" * 16 * self._count}
        text = json.dumps({"__metadata__": metadata, **entries}, separators=(",", ":"))
        text += " " * (-(8 + len(text)) % _ALIGNED)
        self._text = bytearray(len(text).to_bytes(8, "little") + text.encode("ascii"))
        self._sums = self._text.index(b'"0' if self._count else b'""') + 1
        self.size = len(self._text)
        self.data = at

    def filled(self, sums: Sequence[int]) -> bytes:
        """Return the header with the checksums of the pieces."""
        text = "".join([f"{n:016x}" for n in sums]).encode("ascii")
        self._text[self._sums : self._sums + len(text)] = text
        return bytes(self._text)


@final
class NativeWriter:
    """The data file of this process, while it is written.

    Args:
        root: the checkpoint's folder.
        folder: the folder of the data files in it.
        process: this process.
        pieces: the tensors, and who writes each piece.
    """

    def __init__(
        self,
        root: Path,
        folder: str,
        process: int,
        pieces: Mapping[str, tuple[Stored, tuple[int, ...]]],
    ) -> None:
        self._process = process
        self._mine = [
            (stored, number)
            for stored, owners in pieces.values()
            for number, owner in enumerate(owners)
            if owner == process
        ]
        self._folder = root / folder
        self._path = self._folder / data_name(process)
        self._header = Header([(s, s.pieces[k].box) for s, k in self._mine])
        self._file = -1
        self.tensors = {name: stored for name, (stored, _) in pieces.items()}
        self.record: DataFile | None = None

    def begin(self) -> None:
        """Make the folder and the file, in its full size.

        Raises:
            StorageError: if there is no space or no permission.
        """
        with self._storing():
            self._folder.mkdir(parents=True, exist_ok=True)
        if not self._mine:
            return
        with self._storing():
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
            self._file = os.open(self._path, flags, 0o666)
            size = self._header.size + self._header.data
            reserve(self._file, size)

    def _storing(self) -> Storing:
        return Storing(self._path)

    def write(self, tensor: Stored, piece: Piece, box: Box, block: Block) -> None:
        """Write some rows of a piece of this process's."""
        at = self._header.size + piece.offset + offset_in(piece.box, box) * tensor.dtype.itemsize
        with self._storing():
            write_at(self._file, memoryview(block.reshape(-1).view(np.uint8).data), at)

    def sync(self, sums: Mapping[tuple[str, int], int]) -> None:
        """Write the header, and bring all to the disk."""
        if not self._mine:
            return
        header = self._header.filled([sums[s.name, k] for s, k in self._mine])
        with self._storing():
            write_at(self._file, memoryview(header), 0)
            os.fsync(self._file)
            self._close()
            sync_folder(self._folder)
        size = self._header.size + self._header.data
        digest = xxhash.xxh3_64_intdigest(header)
        self.record = DataFile(self._process, self._header.size, size, digest)

    def _close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def commit(self) -> None:
        """Do nothing: the manifest, which one process writes, makes the file part of it."""

    def abandon(self) -> None:
        """Remove what this process has made."""
        with suppress(OSError):
            self._close()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        with suppress(OSError):
            self._folder.rmdir()
        with suppress(OSError):
            self._folder.parent.rmdir()  # only if it is empty


@final
class Storing:
    """Turns the system's errors about a file into errors that name it.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Raise the error that names the file."""
        if isinstance(error, OSError) and not isinstance(error, StorageError):
            told = os.strerror(error.errno) if error.errno else str(error)
            raise StorageError(f"{self._path} cannot be written: {told}.") from error


def reserve(file: int, size: int) -> None:
    """Reserve a file's bytes on the disk, so that a full one is found before data is written."""
    if size and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file, 0, size)
            return
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
    os.ftruncate(file, size)


_UNSUPPORTED = frozenset({22, 38, 95})  # EINVAL, ENOSYS, EOPNOTSUPP


def write_at(file: int, data: memoryview, at: int) -> None:
    """Write all bytes at a place in a file."""
    while data:
        written = os.pwrite(file, data, at)
        data, at = data[written:], at + written


def sync_folder(folder: Path) -> None:
    """Bring a folder's list of files to the disk."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def offset_in(whole: Box, box: Box) -> int:
    """Return how many elements of a box in C order come before the first of a box in it.

    >>> offset_in(Box((0, 0), (4, 3)), Box((2, 0), (3, 3)))
    6
    """
    at = 0
    for start, stop, a in zip(whole.starts, whole.stops, box.starts, strict=True):
        at = at * (stop - start) + a - start
    return at


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Make a checkpoint complete: from now on readers see it.

    Raises:
        StorageError: if the file cannot be written; there is then the checkpoint that was before.
    """
    replace_file(root / NAME, manifest.to_text().encode("utf-8"))


def replace_file(path: Path, data: bytes) -> None:
    """Write a file beside its place, bring it to the disk, and rename it.

    Raises:
        StorageError: if it cannot be written; the file is then as it was.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    with Storing(path):
        try:
            file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            try:
                write_at(file, memoryview(data), 0)
                os.fsync(file)
            finally:
                os.close(file)
            os.replace(beside, path)
        except OSError:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def remove_folder(folder: Path) -> None:
    """Remove a folder and what is in it, as far as that is allowed."""
    shutil.rmtree(folder, ignore_errors=True)


def load_manifest(root: Path) -> Manifest:
    """Return the manifest of a checkpoint.

    Raises:
        MissingFileError: if there is none.
        CorruptFileError: if it is cut off, was changed, or is malformed.
    """
    path = root / NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise MissingFileError(
            f"{root}: there is no complete checkpoint: it has no {NAME}."
        ) from None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}.") from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"{path}: the manifest is not text: {error}.") from error
    return read_manifest(text, str(path))


def native_catalogue(root: Path) -> Catalogue:
    """Return the catalogue of a checkpoint.

    Args:
        root: its folder.

    Raises:
        MissingFileError: if there is no manifest, or a data file is missing.
        CorruptFileError: if a file has another size than the manifest says.
    """
    manifest = load_manifest(root)
    starts = {}
    for file in manifest.files:
        path = root / manifest.folder / data_name(file.process)
        try:
            size = path.stat().st_size
        except OSError:
            raise MissingFileError(
                f"{path} is missing; the checkpoint {root} has {len(manifest.files)} data files."
            ) from None
        if size != file.size:
            raise CorruptFileError(
                f"{path} has {size:,} bytes, but the manifest says {file.size:,}: it is cut off, "
                "or belongs to another checkpoint."
            )
        starts[file.process] = file.start
    pieces = stored_pieces(manifest.entries, manifest.folder, starts)
    tensors = {name: stored for name, (stored, _) in pieces.items()}
    missing = [s.name for s in tensors.values() if _needed(s) - starts.keys()]
    if missing:
        raise CorruptFileError(f"{root}: the manifest names no file for {missing[0]!r}.")
    values = {"tree": manifest.structure, "manifest": manifest}
    return Catalogue(str(root), "meshard", tensors, _Reader(root), manifest.tied, values)


def _needed(stored: Stored) -> set[int]:
    return {int(Path(p.file).stem) for p in stored.pieces}


class _Reader:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._files: dict[str, int] = {}

    def read(self, tensor: Stored, piece: Piece, box: Box, out: Block) -> None:
        file = self._files.get(piece.file)
        if file is None:
            file = self._files[piece.file] = os.open(self._root / piece.file, os.O_RDONLY)
        shape = piece.box.shape
        n = piece.box.volume * tensor.dtype.itemsize
        data = np.frombuffer(os.pread(file, n, piece.offset), tensor.dtype).reshape(shape)
        out[...] = data[box.within(piece.box).slices]

    def close(self) -> None:
        for f in self._files.values():
            os.close(f)
