"""A catalogue: tensors in files, as boxes at byte ranges, and how to read and write them.

In: what a format says about its files. Out: values that the transfers plan with.

Elements at byte ranges of files: reading boxes of them with explicit reads, no memory maps.

In: pieces whose elements are at an offset, in C order. Out: arrays filled with any box of them, or
an error that names the file and the tensor.

What formats that a library reads have in common: regular grids of chunks, optional libraries.

In: shapes of arrays and chunks, which a file may state as it likes. Out: boxes, not too many; a
library, or a refusal that says what to install.
"""

from __future__ import annotations

import errno
import importlib
import itertools
import math
import os
import stat
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any, Protocol, final

import numpy as np
import xxhash

from meshard.algebra.box import Box
from meshard.errors import CheckpointError, CorruptFileError, MissingFileError, StorageError
from meshard.runtime.types import Block
from meshard.tuning import MOST_CHUNK_BOXES, MOST_OPEN_FILES, READ_BUFFER


@final
@dataclass(frozen=True, slots=True)
class Piece:
    """One box of a tensor in a file.

    Attributes:
        box: the elements.
        file: the file's path, relative to the catalogue's folder.
        offset: the byte at which they begin, in C order and without gaps; -1 where a library reads
            the file, so that bytes have no fixed place (chunks that are compressed).
        checksum: XXH3 (64 bits) of the piece's bytes, if the file has one.
    """

    box: Box
    file: str
    offset: int
    checksum: int | None = None


@final
@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor in files.

    Attributes:
        name: its name.
        shape: its shape.
        dtype: its dtype, in this machine's byte order.
        pieces: distinct boxes that hold all elements, each element once.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    pieces: tuple[Piece, ...]

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize


class Reader(Protocol):
    """Reads elements of pieces; may be called by several threads at once."""

    def read(self, tensor: Stored, piece: Piece, box: Box, out: Block) -> None:
        """Fill an array with some elements of a piece.

        Args:
            tensor: the tensor.
            piece: one of its pieces.
            box: the elements, in the tensor's coordinates, within the piece.
            out: a writable array of the box's shape and the tensor's dtype, strided or not.

        Raises:
            CheckpointError: if the file is missing, cut off or cannot be read; the message names
                the file and the tensor.
        """

    def close(self) -> None:
        """Close the files."""


@final
@dataclass(frozen=True)
class Catalogue:
    """The tensors of a file or folder.

    Attributes:
        path: the file or folder, as it was given.
        format: the format's name: "safetensors", "zarr", "npy", "hdf5", "dcp", "meshard".
        tensors: by name, in the order of the files.
        tied: names that are other names of a tensor.
        values: leaves that are not arrays, and what else the format stores about all tensors.
        unchecked: files in which a change would not be noticed: not all of it has a checksum.
        reader: reads elements.
        pickled: names of values that are pickles, which are not read.
        damage: returns what is wrong with a piece by a checksum of the format's own, None if
            nothing is; for pieces that have no other checksum.
    """

    path: str
    format: str
    tensors: Mapping[str, Stored]
    reader: Reader
    tied: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    unchecked: tuple[str, ...] = ()
    pickled: tuple[str, ...] = ()
    damage: Callable[[Stored, Piece], str | None] | None = None

    @property
    def folder(self) -> str:
        """The folder that the pieces' files are relative to."""
        return self.path if os.path.isdir(self.path) else os.path.dirname(self.path)


class Writer(Protocol):
    """Writes elements to files that have been laid out; may be called by several threads at once.

    A job's processes write different pieces of the same files. One of them makes the files
    (`begin`), all write, then each syncs what it has written (`sync`), and one names the
    files as they are to be called (`commit`).
    """

    @property
    def tensors(self) -> Mapping[str, Stored]:
        """What the files will hold: which elements are one piece, and in which file."""

    def begin(self) -> None:
        """Make the files, under names that no reader looks at, in their full size."""

    def write(self, tensor: Stored, piece: Piece, box: Box, block: Block) -> None:
        """Write some elements of a piece.

        Args:
            tensor: the tensor.
            piece: one of its pieces.
            box: the elements, within the piece: whole leading rows of it, or all of it where the
                piece's offset is -1.
            block: their values, strided or not.

        Raises:
            CheckpointError: if they cannot be written; the message names the file and the tensor.
        """

    def sync(self, sums: Mapping[tuple[str, int], int]) -> None:
        """Bring what this process has written to the disk.

        Args:
            sums: the checksums of the pieces that it has written, by tensor and number of the
                piece; formats that have no place for them ignore them.
        """

    def commit(self) -> None:
        """Give the files their names, the one that refers to the others last."""

    def abandon(self) -> None:
        """Remove what was made."""


_MOST_NAME = 1024
"""Characters of a file's name that another file gives."""
_MOST_AT_ONCE = 1 << 30
"""Bytes that one call reads or writes; Linux does at most 2 GiB in one."""


def file_error(error: OSError, path: str, doing: str) -> CheckpointError:
    """Return what a failed operation on a file is raised as.

    Args:
        error: what the system says.
        path: the file or folder.
        doing: what failed, such as "tensor 'w' cannot be read".
    """
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        missing = MissingFileError(f"{path}: {doing}: there is no such file.")
        missing.errno = error.errno
        return missing
    advice = ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = " The disk is full: nothing was left half-made; free some space and try again."
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        advice = " Ask for permission to it, or choose another place."
    found = StorageError(f"{path}: {doing}: {reason}.{advice}")
    found.errno = error.errno
    return found


def check_inside(source: str, folder: str, name: str) -> None:
    """Refuse a name of a file that leads out of a folder, by itself or through a link.

    What a folder from elsewhere holds must not decide which other files of this machine are read.
    The cache of the Hugging Face hub has links from ``snapshots/REVISION`` to ``blobs``, which
    belongs to the same model.

    Args:
        source: the file or folder that has the name, for messages.
        folder: the folder.
        name: the file's path in it.

    Raises:
        CheckpointError: if it leads out of it.
    """
    parts = name.split("/")
    outside = os.path.isabs(name) or ".." in parts
    if outside or not name or len(name) > _MOST_NAME or not is_file_name(name):
        raise CheckpointError(
            f"{source}: it names the file {name!r:.200}, which is not in the folder {folder}. Only "
            "files in it are read."
        )
    home = os.path.realpath(folder)
    real = os.path.realpath(os.path.join(folder, name))
    allowed = [home]
    if os.path.basename(os.path.dirname(home)) == "snapshots":
        allowed.append(os.path.join(os.path.dirname(os.path.dirname(home)), "blobs"))
    if not any(os.path.commonpath([real, one]) == one for one in allowed):
        raise CheckpointError(
            f"{source}: it names the file {name!r:.200}, which is a link to {real}, outside of the "
            f"folder {folder}. Only files in it are read."
        )


def is_file_name(text: str) -> bool:
    """Whether the system takes a text as the path of a file."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


@final
class OpenFile:
    """A regular file that is open for reading; it is closed when nothing refers to it any more.

    Raises:
        CheckpointError: if it does not exist, is not a regular file, or may not be read.
    """

    __slots__ = ("number", "path", "size")

    def __init__(self, path: str, doing: str = "it cannot be read") -> None:
        self.number, self.path = -1, path
        if not is_file_name(path):
            raise MissingFileError(f"{path!r}: {doing}: no file can have this name.")
        try:
            # A pipe without a writer would be waited for; it is refused below.
            self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            found = os.fstat(self.number)
        except OSError as error:
            raise file_error(error, path, doing) from error
        if not stat.S_ISREG(found.st_mode):
            kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe, socket or device"
            raise CheckpointError(f"{path}: {doing}: it is {kind}, not a regular file.")
        self.size = found.st_size

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)

    def fill(self, flat: memoryview, offset: int) -> None:
        """Fill bytes with those at an offset.

        Raises:
            EOFError: if the file ends before; its argument is the byte at which it does.
            OSError: if it cannot be read.
        """
        done, size = 0, len(flat)
        while done < size:
            part = flat[done : done + _MOST_AT_ONCE] if done or size > _MOST_AT_ONCE else flat
            count = os.preadv(self.number, [part], offset + done)
            if count == 0:
                raise EOFError(offset + done)
            done += count

    def bytes_at(self, offset: int, size: int, doing: str) -> bytes:
        """Return bytes of the file.

        Raises:
            CorruptFileError: if the file ends before.
            StorageError: if it cannot be read.
        """
        found = bytearray(size)
        try:
            self.fill(memoryview(found), offset)
        except EOFError as error:
            raise CorruptFileError(
                f"{self.path}: {doing}: expected {size:,} bytes from byte {offset:,} on, but the "
                f"file ends at byte {error.args[0]:,}; it was cut off."
            ) from error
        except OSError as error:
            raise file_error(error, self.path, doing) from error
        return bytes(found)


@final
class OpenFiles:
    """Files that are kept open for reading, at most some at a time; threads may share it."""

    def __init__(self, most: int = MOST_OPEN_FILES) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._files: OrderedDict[str, OpenFile] = OrderedDict()

    def __getitem__(self, path: str) -> OpenFile:
        with self._lock:
            found = self._files.get(path)
            if found is None:
                while len(self._files) >= self._most:
                    self._files.popitem(last=False)  # a thread that reads it keeps it open
                found = self._files[path] = OpenFile(path)
            else:
                self._files.move_to_end(path)
            return found

    def close(self) -> None:
        """Forget the files; each is closed as soon as no thread reads it."""
        with self._lock:
            self._files.clear()


@final
@dataclass(frozen=True, slots=True)
class Foreign:
    """How a tensor's bytes differ from a piece in C order and in this machine's byte order.

    Attributes:
        swapped: whether the bytes of each number are in the other order.
        fortran_offset: the byte at which the elements begin, the first dim running fastest; None
            where they are in C order, from the piece's own offset on.
        order: the dims from the slowest to the fastest one; None for C order.
    """

    swapped: bool = False
    fortran_offset: int | None = None
    order: tuple[int, ...] | None = None


@final
class RawReader:
    """Reads boxes of pieces at byte ranges: only the bytes asked for, in as few calls as possible.

    Args:
        folder: the folder that files of pieces are relative to.
        foreign: the tensors whose bytes are not simply in C order, by name.
        sums: returns the checksums of the pieces in a file, by offset, where the pieces themselves
            do not say them; it is asked once for a file of which a piece is read.
        files: files that are open already, by path.
    """

    def __init__(
        self,
        folder: str,
        foreign: Mapping[str, Foreign] | None = None,
        sums: Callable[[str], Mapping[int, int]] | None = None,
        files: OpenFiles | None = None,
    ) -> None:
        self.folder = folder
        self._foreign = foreign or {}
        self._sums_of = cache(sums) if sums is not None else None
        self._files = OpenFiles() if files is None else files

    def read(self, tensor: Stored, piece: Piece, box: Box, out: Block) -> None:
        """Fill an array with some elements of a piece; see `Reader.read`."""
        self.read_as(tensor, piece, box, out, self._foreign.get(tensor.name, Foreign()))

    def read_as(self, tensor: Stored, piece: Piece, box: Box, out: Block, foreign: Foreign) -> None:
        """Fill an array with some elements of a piece whose bytes are as `foreign` says."""
        offset, shape, part = piece.offset, piece.box.shape, box.within(piece.box)
        target, order = out, foreign.order
        if foreign.fortran_offset is not None:
            offset, order = foreign.fortran_offset, tuple(range(len(shape)))[::-1]
        if order is not None:
            shape, target = tuple([shape[d] for d in order]), out.transpose(order)
            part = Box(
                tuple([part.starts[d] for d in order]), tuple([part.stops[d] for d in order])
            )
        path = os.path.join(self.folder, piece.file)
        try:
            _fill_box(self._files[path], offset, shape, part, target)
        except EOFError as error:
            expected = offset + math.prod(shape) * out.itemsize
            raise CorruptFileError(
                f"{path}: tensor {tensor.name!r:.200} is cut off: box {piece.box} takes bytes "
                f"{offset:,} to {expected:,}, but the file ends at byte {error.args[0]:,}."
            ) from error
        except CheckpointError as error:  # from opening it, which knows no tensor
            raise type(error)(f"tensor {tensor.name!r:.200}: {error}") from error
        except OSError as error:
            doing = f"tensor {tensor.name!r:.200}, box {box}, cannot be read"
            raise file_error(error, path, doing) from error
        if box == piece.box and order is None:
            self._check(tensor, piece, out)
        if foreign.swapped:
            out.byteswap(inplace=True)
        if out.dtype == np.bool_ and out.size and out.view(np.uint8).max() > 1:
            raise CorruptFileError(
                f"{path}: tensor {tensor.name!r:.200} holds bools, but box {box} has bytes other "
                "than 0 and 1; the file is corrupt."
            )

    def _check(self, tensor: Stored, piece: Piece, out: Block) -> None:
        """Refuse a piece, all of which was read just now, that is not what was written."""
        expected = piece.checksum
        if expected is None and self._sums_of is not None:
            expected = self._sums_of(piece.file).get(piece.offset)
        if expected is None:
            return
        found = _sum(out)
        if found != expected:
            raise CorruptFileError(
                f"{os.path.join(self.folder, piece.file)}: tensor {tensor.name!r}, box "
                f"{piece.box}: its checksum is {found:016x}, expected {expected:016x}. The file "
                "was damaged or changed."
            )

    def close(self) -> None:
        """Close the files."""
        self._files.close()


def _sum(block: Block) -> int:
    """Return the checksum of an array's elements in C order."""
    if block.flags.c_contiguous:
        return xxhash.xxh3_64_intdigest(_flat(block))
    sum_ = xxhash.xxh3_64()
    for box in contiguous_boxes(block.shape, block.itemsize, READ_BUFFER):
        sum_.update(_flat(np.ascontiguousarray(block[box.slices])))
    return sum_.intdigest()


def _fill_box(file: OpenFile, offset: int, shape: tuple[int, ...], part: Box, out: Block) -> None:
    """Fill an array with a box of an array of some shape that begins at an offset of a file."""
    if not out.size:
        return
    steps = [out.itemsize * n for n in _volumes(shape)]
    run = len(shape)  # from here on dims are read whole, so that elements follow each other
    while run and part.stops[run - 1] - part.starts[run - 1] == shape[run - 1]:
        run -= 1
    run = max(run - 1, 0)
    first = offset + sum([a * step for a, step in zip(part.starts, steps, strict=True)])
    extents = out.shape[:run]
    if math.prod(extents) == 1:
        _fill_run(file, first, out)
        return
    places = itertools.product(*[range(0, n * s, s) for n, s in zip(extents, steps, strict=False)])
    if out.flags.c_contiguous:
        flat, at = _flat(out), 0
        size = math.prod(out.shape[run:]) * out.itemsize
        for place in places:
            file.fill(flat[at : at + size], first + sum(place))
            at += size
        return
    for index, place in zip(np.ndindex(*extents), places, strict=True):
        _fill_run(file, first + sum(place), out[(*index, ...)])


def _fill_run(file: OpenFile, offset: int, out: Block) -> None:
    """Fill an array, strided or not, with consecutive elements of a file."""
    if out.flags.c_contiguous:
        file.fill(_flat(out), offset)
    elif out.nbytes <= READ_BUFFER:
        buffer = _buffer(out.nbytes)
        file.fill(buffer.data, offset)
        out[...] = buffer.view(out.dtype).reshape(out.shape)
    else:
        dim = next(d for d, n in enumerate(out.shape) if n > 1)
        row = out.nbytes // out.shape[dim]
        rows = max(1, READ_BUFFER // row)
        for at in range(0, out.shape[dim], rows):
            part = out[(slice(None),) * dim + (slice(at, at + rows),)]
            # One long row has nothing to split here: it is split along its own dims.
            _fill_run(file, offset + at * row, part if rows > 1 else part.squeeze(dim))


_thread = threading.local()


def _buffer(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return some bytes that this thread uses again and again."""
    found: np.ndarray[Any, np.dtype[np.uint8]] | None = getattr(_thread, "buffer", None)
    if found is None:
        found = _thread.buffer = np.empty(READ_BUFFER, np.uint8)
    return found[:size]


def _flat(block: Block) -> memoryview:
    """Return the bytes of a contiguous array."""
    return block.reshape(-1).view(np.uint8).data


def _volumes(shape: tuple[int, ...]) -> list[int]:
    """Return how many elements one step along each dim passes over."""
    return [math.prod(shape[d + 1 :]) for d in range(len(shape))]


def contiguous_boxes(shape: tuple[int, ...], itemsize: int, most: int) -> Iterator[Box]:
    """Yield boxes of a tensor, in order, whose elements follow each other in C order.

    They are as equal as rows allow.

    Args:
        shape: the tensor's shape.
        itemsize: bytes of an element.
        most: bytes of a box, at most; a box has one element at least.

    >>> [str(box) for box in contiguous_boxes((2, 5, 3), 4, 40)]
    ['[0:1, 0:2, 0:3]', '[0:1, 2:5, 0:3]', '[1:2, 0:2, 0:3]', '[1:2, 2:5, 0:3]']
    """
    dim, parts = _cut(shape, itemsize, most)
    size, tail = shape[dim : dim + 1], shape[dim + 1 :]
    for outer in itertools.product(*map(range, shape[:dim])):
        ends = tuple([i + 1 for i in outer])
        for i in range(parts):
            starts = tuple([n * i // parts for n in size])
            stops = tuple([n * (i + 1) // parts for n in size])
            yield Box((*outer, *starts, *(0,) * len(tail)), (*ends, *stops, *tail))


def box_count(shape: tuple[int, ...], itemsize: int, most: int) -> int:
    """Return how many boxes `contiguous_boxes` yields."""
    dim, parts = _cut(shape, itemsize, most)
    return math.prod(shape[:dim]) * parts


def box_shape(shape: tuple[int, ...], itemsize: int, most: int) -> tuple[int, ...]:
    """Return the shape of the largest box that `contiguous_boxes` yields.

    >>> box_shape((2, 5, 3), 4, 40)
    (1, 3, 3)
    """
    dim, parts = _cut(shape, itemsize, most)
    size = [-(-n // max(parts, 1)) for n in shape[dim : dim + 1]]
    return (*(1,) * len(shape[:dim]), *size, *shape[dim + 1 :])


def _cut(shape: tuple[int, ...], itemsize: int, most: int) -> tuple[int, int]:
    """Return the dim that boxes of at most some bytes cut, and in how many parts."""
    if math.prod(shape) * itemsize <= most or not shape:
        return 0, int(0 not in shape)
    steps = [n * itemsize for n in _volumes(shape)]
    dim = next((d for d, step in enumerate(steps) if step <= most), len(shape) - 1)
    return dim, -(-shape[dim] // max(1, most // steps[dim]))


def needed(name: str, path: str) -> ModuleType:
    """Return an optional library.

    Raises:
        CheckpointError: if it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CheckpointError(
            f"{path}: the library {name} is needed for it, and cannot be imported ({error}). "
            "Install it: pip install 'meshard[checkpoint]'."
        ) from error


def inflated(data: bytes, most: int, wbits: int) -> bytes | None:
    """Return what deflated bytes decode to; None if that is more than some bytes.

    Libraries decode as much as a file says, a thousand times its size: so a few megabytes can take
    all memory, however small the chunk is that they should be.

    Args:
        data: the bytes; more than one member, as gzip allows, follow each other.
        most: the most bytes of the result.
        wbits: the kind of the stream, as of `zlib.decompress`.

    Raises:
        zlib.error: if they are damaged.
    """
    found = bytearray()
    while data:
        stream = zlib.decompressobj(wbits)
        found += stream.decompress(data, most + 1 - len(found))
        if len(found) > most:
            return None
        if not stream.eof:
            raise zlib.error("the stream is cut off")
        data = stream.unused_data if wbits == GZIP else b""
        if not data.startswith(b"\x1f\x8b"):  # padding
            break
    return bytes(found)


GZIP, ZLIB = 31, 15


def grid_steps(shape: tuple[int, ...], chunk: tuple[int, ...]) -> tuple[int, ...]:
    """Return the size of boxes that are chunks, or several each where there are very many.

    >>> grid_steps((10, 7), (4, 8))
    (4, 8)
    """
    steps = [max(c, 1) for c in chunk]
    counts = [-(-n // c) for n, c in zip(shape, steps, strict=True)]
    while math.prod(counts) > MOST_CHUNK_BOXES:
        dim = max(range(len(shape)), key=counts.__getitem__)
        steps[dim] *= 2
        counts[dim] = -(-shape[dim] // steps[dim])
    return tuple(steps)


def grid_boxes(shape: tuple[int, ...], steps: tuple[int, ...]) -> Iterator[Box]:
    """Yield the boxes of a grid in C order; those at the ends of dims may be smaller.

    >>> [str(box) for box in grid_boxes((5, 2), (3, 2))]
    ['[0:3, 0:2]', '[3:5, 0:2]']
    """
    starts = [range(0, n, step) for n, step in zip(shape, steps, strict=True)]
    for start in itertools.product(*starts):
        stops = [min(a + s, n) for a, s, n in zip(start, steps, shape, strict=True)]
        yield Box(start, tuple(stops))
