"""Files that are laid out beforehand, and filled by several processes with explicit writes.

In: for each file its size and what stands at its beginning; which elements go where. Out: files
that have their names only when they are complete and on the disk.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import final

import numpy as np

from meshard.algebra.box import Box
from meshard.errors import CheckpointError, FileInUseError
from meshard.runtime.types import Block
from meshard.tuning import READ_BUFFER
from meshard.weights.catalogue.stored import Piece, Stored, file_error

Place = tuple[str, int]
"""A file and a byte in it."""
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


@final
@dataclass(frozen=True, slots=True)
class NewFile:
    """A file to be made.

    Attributes:
        name: its path, relative to the writer's folder.
        size: its bytes.
        head: what stands at its beginning.
    """

    name: str
    size: int
    head: bytes = b""


@final
@dataclass(frozen=True)
class Contents:
    """What files are to hold.

    Attributes:
        files: the files, in the order in which they get their names.
        tensors: which elements are one piece, and where it is.
        copies: further places of pieces that are in several files, by tensor and number.
        sums: where the checksum of a piece stands, as 16 digits, by tensor and number.
        replaced: files that are removed once all of these have their names.
    """

    files: Sequence[NewFile]
    tensors: Mapping[str, Stored]
    copies: Mapping[tuple[str, int], Sequence[Place]]
    sums: Mapping[tuple[str, int], Sequence[Place]]
    replaced: Sequence[str] = ()


def partial_name(name: str) -> str:
    """Return the name that a file has until it is complete.

    >>> partial_name("a/model.safetensors")
    'a/.model.safetensors.partial'
    """
    folder, last = os.path.split(name)
    return os.path.join(folder, f".{last}.partial")


@final
class RawWriter:
    """Writes pieces at byte ranges; see `Writer`.

    Args:
        folder: the folder that the files are in; it is made if it does not exist.
        contents: what they hold.
        overwrite: whether files that exist are replaced.
    """

    def __init__(self, folder: str, contents: Contents, *, overwrite: bool = False) -> None:
        self.folder = folder
        self._contents = contents
        self._overwrite = overwrite
        self._lock = threading.Lock()
        self._open: dict[str, int] = {}
        self._named: list[str] = []
        self._folders: list[str] = []
        self._copies = {
            (
                contents.tensors[name].pieces[number].file,
                contents.tensors[name].pieces[number].offset,
            ): more
            for (name, number), more in contents.copies.items()
        }

    @property
    def tensors(self) -> Mapping[str, Stored]:
        """What the files will hold: which elements are one piece, and in which file."""
        return self._contents.tensors

    def begin(self) -> None:
        """Make the files, under names that no reader looks at, in their full size.

        Raises:
            FileInUseError: if one of the files exists and may not be replaced.
            StorageError: if the disk has no room for them, or they may not be made. Nothing is
                left of them.
        """
        self._check_targets()
        made = self.folder
        try:
            for name in {os.path.dirname(f.name) for f in self._contents.files}:
                self._make_folder(os.path.join(self.folder, name) if name else self.folder)
            for file in self._contents.files:
                made = os.path.join(self.folder, file.name)
                self._make(file)
        except BaseException as error:
            self.abandon()
            if isinstance(error, OverflowError):
                error = OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            if isinstance(error, OSError) and not isinstance(error, CheckpointError):
                raise file_error(error, made, "it cannot be made") from error
            raise

    def _check_targets(self) -> None:
        for file in self._contents.files:
            path = os.path.join(self.folder, file.name)
            try:
                kind = os.lstat(path).st_mode
            except OSError:
                continue  # it is not there, or what is wrong shows when it is made
            if stat.S_ISDIR(kind):
                raise FileInUseError(f"{path}: it is a folder, where a file is to be written.")
            if not self._overwrite:
                raise FileInUseError(
                    f"{path}: it exists. Choose another name, remove it, or say overwrite=True."
                )

    def _make_folder(self, path: str) -> None:
        missing = []
        while path and not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for one in reversed(missing):
            os.mkdir(one)
            self._folders.append(one)

    def _make(self, file: NewFile) -> None:
        path = self._path(file.name)
        with suppress(FileNotFoundError):
            os.unlink(path)  # of a save that was killed
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        number = self._open[file.name] = os.open(path, flags, 0o666)
        if file.size:
            try:
                os.posix_fallocate(number, 0, file.size)
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise
                os.ftruncate(number, file.size)
        _write_all(number, memoryview(file.head), 0)

    def write(self, tensor: Stored, piece: Piece, box: Box, block: Block) -> None:
        """Write some leading rows of a piece; see `Writer.write`."""
        first = _place(piece.box.shape, box.within(piece.box)) * tensor.dtype.itemsize
        for name, offset in [
            (piece.file, piece.offset),
            *self._copies.get((piece.file, piece.offset), ()),
        ]:
            try:
                number = self._number(name)
                _write_block(number, offset + first, block)
                if block.nbytes >= READ_BUFFER:
                    _begin_sync(number, offset + first, block.nbytes)
            except OSError as error:
                doing = f"tensor {tensor.name!r:.200}, box {box}, cannot be written"
                raise file_error(error, os.path.join(self.folder, name), doing) from error

    def put(self, texts: Mapping[Place, bytes]) -> None:
        """Write bytes that are not elements, such as checksums, at their places."""
        name = ""
        try:
            for (name, offset), text in _side_by_side(texts):
                _write_all(self._number(name), memoryview(text), offset)
        except OSError as error:
            path = os.path.join(self.folder, name)
            raise file_error(error, path, "it cannot be brought to the disk") from error

    def sync(self, sums: Mapping[tuple[str, int], int]) -> None:
        """Write the checksums of pieces, and bring what was written to the disk."""
        self.put({p: b"%016x" % v for k, v in sums.items() for p in self._contents.sums.get(k, ())})
        name = ""
        try:
            for name in list(self._open):
                os.fsync(self._open[name])
        except OSError as error:
            path = os.path.join(self.folder, name)
            raise file_error(error, path, "it cannot be brought to the disk") from error

    def commit(self) -> None:
        """Give the files their names, in their order, and bring the folder to the disk.

        Raises:
            FileInUseError: if one of the names was taken meanwhile.
            StorageError: if a name cannot be given.
        """
        self._check_targets()
        path = self.folder
        try:
            for file in self._contents.files:
                path = os.path.join(self.folder, file.name)
                os.replace(self._path(file.name), path)
                self._named.append(path)
            self._close()
            path = self.folder
            homes = [os.path.join(self.folder, f.name) for f in self._contents.files]
            for path in dict.fromkeys(map(os.path.dirname, [*homes, *self._folders])):
                sync_folder(path)
        except OSError as error:
            self.abandon()
            raise file_error(error, path, "it cannot be given its name") from error
        self._named, self._folders = [], []
        for name in self._contents.replaced:
            with suppress(OSError):
                os.unlink(os.path.join(self.folder, name))

    def abandon(self) -> None:
        """Remove what was made, named files too unless they may have replaced others."""
        self._close()
        names = [] if self._overwrite else self._named
        for path in [*[self._path(f.name) for f in self._contents.files], *names]:
            with suppress(OSError):
                os.unlink(path)
        for path in reversed(self._folders):
            with suppress(OSError):
                os.rmdir(path)
        self._named, self._folders = [], []

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, partial_name(name))

    def _number(self, name: str) -> int:
        """Return the open file of a name."""
        with self._lock:
            if name not in self._open:
                self._open[name] = os.open(self._path(name), os.O_RDWR | os.O_CLOEXEC)
            return self._open[name]

    def _close(self) -> None:
        with self._lock:
            for number in self._open.values():
                os.close(number)
            self._open.clear()

    def __del__(self) -> None:
        self._close()


def exchange_names(one: str, other: str) -> bool:
    """Exchange the names of two files or folders in one step; return whether that is possible."""
    call = _system_call("renameat2")
    if call is None:
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return call(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


@cache
def _system_call(name: str) -> Callable[..., int] | None:
    """Return a call of Linux that Python does not name; None where it does not exist."""
    return getattr(ctypes.CDLL(None), name, None)


def _begin_sync(number: int, offset: int, size: int) -> None:
    """Let the disk begin with what was written, so that there is less to wait for at the end.

    That brought half a gigabyte to the disk in two thirds of the time.
    """
    call = _system_call("sync_file_range")
    if call is not None:
        call(number, ctypes.c_int64(offset), ctypes.c_int64(size), 2)  # SYNC_FILE_RANGE_WRITE


def sync_folder(path: str) -> None:
    """Bring the names in a folder to the disk.

    Raises:
        OSError: if that fails; a file system that cannot do it is not asked again.
    """
    number = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(number)


def _side_by_side(texts: Mapping[Place, bytes]) -> Iterator[tuple[Place, bytes]]:
    """Yield texts that follow each other in a file as one."""
    first, found = ("", 0), b""
    for place in sorted(texts):
        if found and place != (first[0], first[1] + len(found)):
            yield first, found
            found = b""
        first = first if found else place
        found += texts[place]
    if found:
        yield first, found


def _place(shape: Iterable[int], part: Box) -> int:
    """Return how many elements of an array are before the first one of a box."""
    place = 0
    for size, start in zip(shape, part.starts, strict=True):
        place = place * size + start
    return place


def _write_block(number: int, offset: int, block: Block) -> None:
    """Write the elements of an array, strided or not, one after the other."""
    if block.flags.c_contiguous:
        _write_all(number, block.reshape(-1).view(np.uint8).data, offset)
    elif block.nbytes <= READ_BUFFER:
        _write_block(number, offset, np.ascontiguousarray(block))
    else:
        dim = next(d for d, n in enumerate(block.shape) if n > 1)
        row = block.nbytes // block.shape[dim]
        rows = max(1, READ_BUFFER // row)
        for at in range(0, block.shape[dim], rows):
            part = block[(slice(None),) * dim + (slice(at, at + rows),)]
            _write_block(number, offset + at * row, part if rows > 1 else part.squeeze(dim))


def _write_all(number: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(number, data[done : done + (1 << 30)], offset + done)
