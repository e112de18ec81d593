"""The files of a checkpoint: one file of data for each process that writes, and the manifest.

In: tensors with their layouts. Out: a writer, and for reading a catalogue. A data file is a
safetensors file whose tensors are the boxes that its process has written, so that other tools can
read it; its header holds the checksums of their pieces.

Steps: the checkpoints of a run, each in a folder of its own beneath one.

In: the folder of a run. Out: which steps are complete, the newest, and what older ones are removed.
What is on the disk counts, never what a program remembers.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import xxhash

from meshard.algebra.arguments import path_of
from meshard.algebra.box import Box
from meshard.errors import CheckpointError, CorruptFileError, MissingFileError, StorageError
from meshard.runtime.processes.identity import job_name, whereabouts
from meshard.weights.catalogue.raw_writer import Contents, NewFile, RawWriter, sync_folder
from meshard.weights.catalogue.safetensors_header import DTYPES, format_header, written_sums
from meshard.weights.catalogue.stored import (
    Catalogue,
    OpenFile,
    OpenFiles,
    Piece,
    RawReader,
    Stored,
    box_count,
    check_inside,
    contiguous_boxes,
)
from meshard.weights.native.manifest import (
    NAME,
    DataFile,
    Entry,
    Manifest,
    Saver,
    native_pieces,
    read_folder,
    read_manifest,
    read_saver,
)


def data_name(process: int) -> str:
    """Return the name of the data file that a process writes."""
    return f"{process:05d}.safetensors"


Shards = dict[int, list[tuple[Entry, Box]]]
"""For each process the boxes that it writes, in the order of its file."""


def shards_of(entries: Sequence[Entry]) -> Shards:
    """Return which boxes each process writes, and in which order.

    Args:
        entries: the tensors, in the order of the manifest.
    """
    found: Shards = {}
    for number, entry in enumerate(entries):
        for box, process in native_pieces(entry, number):
            found.setdefault(process, []).append((entry, box))
    return {
        process: sorted(boxes, key=lambda one: -_file_form(one[0].dtype)[0].itemsize)
        for process, boxes in found.items()
    }


def stored_pieces(
    shards: Shards, folder: str, starts: Mapping[int, int], piece_bytes: int
) -> dict[str, tuple[list[Piece], list[int]]]:
    """Return the pieces of all tensors, and who writes each.

    Args:
        shards: which boxes each process writes.
        folder: the folder of the data files.
        starts: for each process the byte at which the data in its file begins.
        piece_bytes: the most bytes of a piece.
    """
    found: dict[str, tuple[list[Piece], list[int]]] = {}
    for process, boxes in shards.items():
        at, file = starts.get(process, 0), f"{folder}/{data_name(process)}"
        for entry, home in boxes:
            pieces, owners = found.setdefault(entry.name, ([], []))
            for box in _cut(home, entry.dtype.itemsize, piece_bytes):
                pieces.append(Piece(box, file, at))
                owners.append(process)
                at += box.volume * entry.dtype.itemsize
    return found


def _cut(home: Box, itemsize: int, most: int) -> Iterator[Box]:
    """Yield the pieces of a box, in the coordinates of the whole tensor."""
    if 0 < home.volume * itemsize <= most:
        yield home
        return
    for box in contiguous_boxes(home.shape, itemsize, most):
        yield Box(
            tuple([a + o for a, o in zip(box.starts, home.starts, strict=True)]),
            tuple([b + o for b, o in zip(box.stops, home.starts, strict=True)]),
        )


def _file_form(dtype: np.dtype[Any]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the dtype that a data file names, and a further dim: the format has not all dtypes."""
    if dtype in DTYPES.values():
        return dtype, ()
    if dtype.itemsize in (1, 2, 4, 8):
        return np.dtype(f"u{dtype.itemsize}"), ()
    return np.dtype(np.uint64), (dtype.itemsize // 8,)


@final
class NativeWriter:
    """The data file of this process, while it is written.

    Args:
        root: the checkpoint's folder.
        folder: the folder of the data files in it.
        process: this process.
        shards: which boxes each process writes.
        piece_bytes: the most bytes of a piece.

    Attributes:
        pieces: the pieces of all tensors, and who writes each.
        tensors: the same for readers.
        record: what the manifest is to say about the file, once it is written.
    """

    def __init__(
        self, root: Path, folder: str, process: int, shards: Shards, piece_bytes: int
    ) -> None:
        self._process = process
        self._path = root / folder / data_name(process)
        mine = shards.get(process, [])
        head, entries, sums = format_header(
            _named(mine),
            {"format": "meshard checkpoint"},
            piece_bytes,
        )
        self._head = len(head)
        self._size = len(head) + (entries[-1].end if entries else 0)
        self.pieces = stored_pieces(shards, folder, {process: len(head)}, piece_bytes)
        dtypes = {e.name: (e.shape, e.dtype) for boxes in shards.values() for e, _ in boxes}
        self.tensors = {
            name: Stored(name, *dtypes[name], tuple(pieces))
            for name, (pieces, _) in self.pieces.items()
        }
        own = {
            name: iter([n for n, owner in enumerate(owners) if owner == process])
            for name, (_, owners) in self.pieces.items()
        }
        places = {}
        for entry, home in mine:
            for _ in range(box_count(home.shape, entry.dtype.itemsize, piece_bytes)):
                places[entry.name, next(own[entry.name])] = [
                    (f"{folder}/{data_name(process)}", sums)
                ]
                sums += 16
        file = NewFile(f"{folder}/{data_name(process)}", self._size, head)
        contents = Contents([file] if mine else [], self.tensors, {}, places)
        self._writer = RawWriter(str(root), contents)
        self.write = self._writer.write
        self._new: list[Path] = []
        self.record: DataFile | None = None

    def begin(self) -> None:
        """Make the folder, unless another process has, and the file in its full size.

        Raises:
            StorageError: if there is no space or no permission.
        """
        folder = self._path.parent
        with Storing(folder):
            self._new = [one for one in (folder, *folder.parents) if not one.exists()]
            folder.mkdir(parents=True, exist_ok=True)
        self._writer.begin()

    def sync(self, sums: Mapping[tuple[str, int], int]) -> None:
        """Write the checksums, bring all to the disk, and give the file its name."""
        self._writer.sync(sums)
        self._writer.commit()
        for folder in self._new:
            with Storing(folder):
                sync_folder(str(folder.parent))
        if self._size > self._head:
            file = OpenFile(str(self._path))
            head = file.bytes_at(0, self._head, "its header cannot be read")
            digest = xxhash.xxh3_64_intdigest(head)
            self.record = DataFile(self._process, self._head, self._size, digest)

    def commit(self) -> None:
        """Do nothing: the manifest, which one process writes, makes the file part of it."""

    def abandon(self) -> None:
        """Remove what this process has made."""
        self._writer.abandon()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        for folder in (self._path.parent, self._path.parent.parent):
            with suppress(OSError):
                folder.rmdir()  # only if it is empty


def _named(boxes: Sequence[tuple[Entry, Box]]) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
    """Return how a data file calls boxes, for other tools, with the dtype and shape of each there.

    A name that the file has already, or that has a meaning of its own there, gets further marks.
    """
    found: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
    for entry, box in boxes:
        dtype, more = _file_form(entry.dtype)
        name = entry.name if box == Box.whole(entry.shape) else f"{entry.name}{box}"
        while name in found or name == "__metadata__":
            name += "'"
        found[name] = dtype, (*box.shape, *more)
    return [(name, *form) for name, form in found.items()]


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


def write_manifest(root: Path, manifest: Manifest, check: Callable[[], None]) -> None:
    """Make a checkpoint complete: from now on readers see it.

    Args:
        root: its folder.
        manifest: what it holds.
        check: raises an error if it must not be complete; called at the last moment.

    Raises:
        StorageError: if the file cannot be written; there is then the checkpoint that was before.
    """
    replace_file(root / NAME, manifest.to_text().encode("utf-8"), check)


def replace_file(path: Path, data: bytes, check: Callable[[], None] = lambda: None) -> None:
    """Write a file beside its place, bring it to the disk, and rename it.

    Args:
        path: its place.
        data: its contents.
        check: raises an error if it must not be renamed; called at the last moment.

    Raises:
        StorageError: if it cannot be written; the file is then as it was.
    """
    mine = f"by-{job_name(whereabouts())}.{secrets.token_hex(4)}"
    beside = path.with_name(f".{path.name}.{mine}.partial")
    with Storing(path):
        try:
            file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            try:
                _write_all(file, data)
                os.fsync(file)
            finally:
                os.close(file)
            check()
            os.replace(beside, path)
        except (OSError, CheckpointError):
            with suppress(OSError):
                beside.unlink(missing_ok=True)
            raise
        sync_folder(str(path.parent))


def remove_folder(folder: Path) -> None:
    """Remove a folder and what is in it, as far as that is allowed."""
    shutil.rmtree(folder, ignore_errors=True)


def data_folder(root: Path) -> str:
    """Return the name of the folder in which the data of a checkpoint is.

    Raises:
        MissingFileError: if there is no manifest.
        CorruptFileError: if it is cut off, was changed, or is malformed.
    """
    return read_folder(_text_of(root), str(root / NAME))


def saver_of(root: Path) -> Saver | None:
    """Return who has saved a checkpoint; None if nothing says it.

    Raises:
        CheckpointError: if the manifest cannot be read.
    """
    return read_saver(_text_of(root), str(root / NAME))


def _text_of(root: Path) -> str:
    path = root / NAME
    if not os.path.lexists(path):
        raise MissingFileError(f"{root}: there is no complete checkpoint: it has no {NAME}.")
    check_inside(str(root), str(root), NAME)
    file = OpenFile(str(path))
    try:
        return file.bytes_at(0, file.size, "it cannot be read").decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"{path}: the manifest is not text: {error}.") from error


def _check_sizes(root: Path, opened: OpenFiles, folder: str, files: Sequence[DataFile]) -> None:
    """Refuse a checkpoint of which a data file is missing, or is not the one that was written."""
    for file in files:
        name = f"{folder}/{data_name(file.process)}"
        check_inside(str(root / NAME), str(root), name)
        try:
            size = opened[str(root / name)].size
        except MissingFileError:
            raise MissingFileError(
                f"{root / name} is missing; the checkpoint {root} has {len(files)} data files."
            ) from None
        if size != file.size:
            raise CorruptFileError(
                f"{root / name} has {size:,} bytes, but the manifest says {file.size:,}: it is cut "
                "off, or belongs to another checkpoint."
            )


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


_REPLACED = 20
"""How often a checkpoint may be replaced while it is being opened."""


def native_catalogue(root: Path, *, checked: bool = False) -> Catalogue:
    """Return the catalogue of a checkpoint.

    Another job may replace the checkpoint meanwhile, and remove the data that a manifest names. So
    the files are opened at once, which keeps their data, and if one is gone and there is another
    manifest by then, that one is read.

    Args:
        root: its folder.
        checked: whether to read the headers of the data files too, which hold the checksums.

    Raises:
        MissingFileError: if there is no manifest, or a data file is missing.
        CorruptFileError: if a file has another size, or another header, than the manifest says; if
            the manifest is cut off, was changed, or is malformed.
        CheckpointError: if a file is a link that leads out of the folder.
    """
    for _ in range(_REPLACED):
        text = _text_of(root)
        try:
            return _catalogue(root, text, checked=checked)
        except CheckpointError:
            if _text_of(root) == text:
                raise
    raise CheckpointError(
        f"{root}: it was replaced {_REPLACED} times while it was being opened. Save to it less "
        "often, or save steps: step=."
    )


def _catalogue(root: Path, text: str, *, checked: bool) -> Catalogue:
    opened = OpenFiles()
    manifest = read_manifest(text, str(root / NAME), partial(_check_sizes, root, opened))
    shards = shards_of(manifest.entries)
    starts = {file.process: file.start for file in manifest.files}
    lacking = shards.keys() - starts.keys()
    if lacking:
        raise CorruptFileError(f"{root}: the manifest names no file of process {min(lacking)}.")
    pieces = stored_pieces(shards, manifest.folder, starts, manifest.piece_bytes)
    places: dict[str, list[int]] = {}
    for some, _ in pieces.values():
        for piece in some:
            places.setdefault(piece.file, []).append(piece.offset)
    files = {f"{manifest.folder}/{data_name(r.process)}": r for r in manifest.files}

    def sums_of(name: str) -> dict[int, int]:
        return _sums(opened[str(root / name)], files[name], sorted(places.get(name, ())))

    sums = {name: sums_of(name) for name in files} if checked else {}
    tensors = {}
    for entry in manifest.entries:
        found = pieces.get(entry.name, ([], []))[0]
        if checked:
            found = [replace(p, checksum=sums[p.file].get(p.offset)) for p in found]
        tensors[entry.name] = Stored(entry.name, entry.shape, entry.dtype, tuple(found))
    values = {"tree": manifest.structure, "manifest": manifest}
    reader = RawReader(str(root), sums=None if checked else sums_of, files=opened)
    return Catalogue(str(root), "meshard", tensors, reader, manifest.tied, values)


def _sums(file: OpenFile, record: DataFile, offsets: Sequence[int]) -> dict[int, int]:
    """Return the checksums of the pieces in a data file, by offset.

    Args:
        file: the file.
        record: what the manifest says about it.
        offsets: where its pieces begin, in order.

    Raises:
        CorruptFileError: if its header is not the one that was written.
    """
    head = file.bytes_at(0, record.start, "its header cannot be read")
    if xxhash.xxh3_64_intdigest(head) != record.header:
        raise CorruptFileError(
            f"{file.path}: its header was changed: its checksum is "
            f"{xxhash.xxh3_64_hexdigest(head)}, but the manifest says {record.header:016x}."
        )
    sums = written_sums(head)
    if len(sums) != len(offsets):
        raise CorruptFileError(
            f"{file.path}: its header has {len(sums)} checksums, but by the manifest it has "
            f"{len(offsets)} pieces."
        )
    return dict(zip(offsets, sums, strict=True))


_LATEST = "latest"
_STEP = re.compile(r"step-(\d{8,})")


def unfinished(root: Path) -> str | None:
    """Return which save to a folder has not ended; None if the folder holds anything else."""
    names = [entry.name for entry in root.iterdir() if not entry.name.startswith(".")]
    left = [name for name in names if _STEP.fullmatch(name) or name.startswith("data-")]
    others = [name for name in names if name not in left and name != _LATEST]
    return max(left) if left and not others else None


def step_folder(root: Path, step: int) -> Path:
    """Return the folder of a step."""
    return root / f"step-{step:08d}"


def steps(path: str | Path) -> list[int]:
    """Return the complete steps of a run, in ascending order.

    Args:
        path: the folder that was given to `save` together with ``step``.

    Raises:
        MissingFileError: if there is no such folder.
        StorageError: if it may not be read.

    >>> import numpy as np, tempfile
    >>> from meshard.checkpoint import latest, save, steps
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for step in (10, 20, 30):
    ...         _ = save(folder, {"w": np.arange(4.0)}, step=step, keep=2)
    ...     steps(folder), latest(folder)
    ([20, 30], 30)
    """
    root = Path(path_of(path, "checkpoint.steps"))
    try:
        names = [entry.name for entry in root.iterdir()]
    except FileNotFoundError:
        raise MissingFileError(f"{root} does not exist.") from None
    except OSError as error:
        raise StorageError(f"{root} cannot be read: {error.strerror}.") from error
    numbers = [int(m[1]) for m in map(_STEP.fullmatch, names) if m is not None]
    return sorted([n for n in numbers if (step_folder(root, n) / NAME).is_file()])


def latest(path: str | Path) -> int | None:
    """Return the newest complete step of a run; None if there is none.

    Args:
        path: the folder that was given to `save` together with ``step``.

    Raises:
        MissingFileError: if there is no such folder.

    >>> import numpy as np, tempfile
    >>> from meshard.checkpoint import latest, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for step in (10, 20):
    ...         handle = save(folder, {"w": np.arange(4.0)}, step=step)
    ...     latest(folder)
    20
    """
    found = steps(path)
    return found[-1] if found else None


def point_to(root: Path, step: int) -> None:
    """Write which step was saved last, for people and other tools."""
    replace_file(root / _LATEST, f"{step_folder(root, step).name}\n".encode())


def last_saved(folder: Path) -> Path | None:
    """Return the folder of the step that was saved last in the run that a step belongs to.

    Args:
        folder: the step's.

    Returns:
        The folder; None if nothing says it, or ``folder`` is not one of a step.
    """
    try:
        name = (folder.parent / _LATEST).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
    both = _STEP.fullmatch(folder.name) and _STEP.fullmatch(name)
    return folder.parent / name if both else None


def keep_newest(root: Path, keep: int, saved: int) -> None:
    """Remove all complete steps but the newest, and the one just saved.

    A run that goes back to step 50 saves it beside 100 and 200: it is the one that is needed. Each
    step that is removed stops being one at once.
    """
    for step in steps(root)[:-keep]:
        if step == saved:
            continue
        folder = step_folder(root, step)
        (folder / NAME).unlink(missing_ok=True)
        sync_folder(str(folder))
        remove_folder(folder)
