"""Zarr, version 3, as a source and as a target: a group of arrays, or one array.

In: a folder. Out: a catalogue whose pieces are shards or chunks, or a writer whose pieces are
shards: each is one file, which one process writes. The library zarr reads and writes them. Dtypes
of ml_dtypes, which Zarr does not have, are stored as unsigned integers of the same size, with the
attribute ``meshard.dtype``. Chunks written here end with a CRC32C, which zarr compares; the root's
attributes have a checksum of each array's metadata and of their own file.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any, final

import ml_dtypes
import numpy as np
import xxhash

from meshard.algebra.box import Box
from meshard.errors import CheckpointError, CorruptFileError, DtypeError, FileInUseError
from meshard.plan.file.files import write_bytes
from meshard.runtime.moving.place import checked_dtype
from meshard.runtime.types import Block, dtype_name
from meshard.tuning import MOST_CHUNK_BOXES, ZARR_CHUNK
from meshard.weights.catalogue.raw_writer import exchange_names, partial_name, sync_folder
from meshard.weights.catalogue.safetensors_writer import ShapeDtype, WriteOptions
from meshard.weights.catalogue.stored import (
    GZIP,
    Catalogue,
    OpenFile,
    Piece,
    Stored,
    box_shape,
    check_inside,
    file_error,
    grid_boxes,
    grid_steps,
    inflated,
    needed,
)

_ROOT = "zarr.json"
_NOT_NAMES = ("", ".", "..", _ROOT)
_DTYPE, _SUM, _FILES, _TIED = "meshard.dtype", "meshard.xxh3", "meshard.files", "meshard.tied"
_OWN = re.compile(rb'"meshard\.xxh3": "([0-9a-f]{16})"')
_MOST_METADATA = 100_000_000
_MOST_DIMS = 64
_MOST_CHUNK = 1 << 32
"""Bytes of a chunk at most: the library makes it whole in memory."""


def open_zarr(path: str) -> Catalogue:
    """Return the arrays of a Zarr store in a folder.

    Args:
        path: the folder of a group or an array.

    Raises:
        CorruptFileError: if metadata is damaged.
        CheckpointError: if an array does not hold numbers, or is of another version of Zarr; if
            the library zarr is not installed.
    """
    zarr: Any = needed("zarr", path)
    check_inside(path, path, _ROOT)
    checked, root = _checked_root(path)
    with _named(path, "it cannot be read as Zarr, version 3"), zarr.config.set(_limited_codecs()):
        top = zarr.open(path, mode="r", zarr_format=3)
        members = {"": top} if isinstance(top, zarr.Array) else dict(top.members(max_depth=None))
        # The library lists them in the order of answers, which differs between processes.
        arrays = {name: one for name, one in sorted(members.items()) if isinstance(one, zarr.Array)}
    tensors = {}
    for name, one in arrays.items():
        check_inside(path, path, os.path.join(name, _ROOT))
        with _named(path, f"array {name!r:.200} cannot be read"):
            tensors[name] = _stored(path, name, one)
    tied = root.pop(_TIED, {})
    if not isinstance(tied, dict) or not all(
        isinstance(name, str) and name in tensors for name in tied.values()
    ):
        raise CorruptFileError(f"{path}: its attribute {_TIED} must name arrays, got {tied!r:.80}.")
    unchecked = () if checked else (_ROOT,)
    reader = _Reader(path, arrays, checked)
    return Catalogue(path, "zarr", tensors, reader, tied, root, unchecked)


@contextmanager
def _named(path: str, doing: str) -> Iterator[None]:
    """Raise whatever the library raises as an error that names the folder."""
    try:
        yield
    except CheckpointError:
        raise
    except PermissionError as error:
        raise file_error(error, path, doing) from error
    except Exception as error:  # of the library, its codecs, JSON, or NumPy
        text = " ".join(str(error).split())[:300]
        raise CorruptFileError(f"{path}: {doing}: {type(error).__name__}: {text}") from error


def _checked_root(path: str) -> tuple[bool, dict[str, Any]]:
    """Return whether metadata has checksums, which then hold, and the root's attributes."""
    place = os.path.join(path, _ROOT)
    file = OpenFile(place, "it is not a Zarr store, version 3")
    if file.size > _MOST_METADATA:
        raise CorruptFileError(f"{place}: it has {file.size:,} bytes; it is not Zarr's metadata.")
    text = file.bytes_at(0, file.size, "it cannot be read")
    try:
        attributes = json.loads(text).get("attributes", {})
        attributes = dict(attributes)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptFileError(f"{place}: it is not Zarr's metadata ({error}).") from error
    given, files = attributes.pop(_SUM, None), attributes.pop(_FILES, {})
    if given is None:
        return False, attributes
    found = _OWN.search(text)
    own = _sum(text[: found.start(1)] + b"0" * 16 + text[found.end(1) :]) if found else "none"
    if own != given or not isinstance(files, dict):
        raise CorruptFileError(f"{place}: it has checksum {own}, expected {given!r:.40}.")
    for name, sum_ in files.items():
        check_inside(place, path, name)
        one = OpenFile(os.path.join(path, name))
        now = _sum(one.bytes_at(0, min(one.size, _MOST_METADATA), "it cannot be read"))
        if now != sum_:
            raise CorruptFileError(f"{one.path}: it has checksum {now}, expected {sum_!r:.40}.")
    return True, attributes


@cache
def _limited_codecs() -> dict[str, str]:
    """Return the setting by which the library takes codecs that decode to a chunk at most.

    Its own decode whatever is in a file, also if that is a thousand times as long as the chunk.
    """
    zarr: Any = importlib.import_module("zarr")
    found = {}
    for name, base, length in (
        ("gzip", zarr.codecs.GzipCodec, None),
        ("zstd", zarr.codecs.ZstdCodec, _zstd_length),
        ("blosc", zarr.codecs.BloscCodec, _blosc_length),
    ):
        made = type(f"Limited{base.__name__}", (base,), {"__module__": __name__})
        for method in ("_decode_single", "_decode_sync"):  # newer versions have both
            if hasattr(base, method):
                setattr(made, method, _decoding(getattr(base, method), length))
        zarr.registry.register_codec(name, made)
        found[f"codecs.{name}"] = f"{made.__module__}.{made.__qualname__}"
    return found


def _decoding(base: Callable[..., Any], length: Callable[[bytes], int] | None) -> Any:
    """Return the method that decodes a chunk; without a length that its bytes say, of gzip."""

    def limited(self: Any, data: Any, spec: Any) -> Any:
        dtype = spec.dtype.to_native_dtype() if hasattr(spec.dtype, "to_native_dtype") else None
        size = (dtype or np.dtype(spec.dtype)).itemsize * math.prod(spec.shape)
        most = 2 * size + _BESIDE
        raw = data.to_bytes()
        if length is None:
            found = inflated(raw, most, GZIP)
            if found is not None:
                return spec.prototype.buffer.from_bytes(found)
        elif length(raw) <= most:
            return base(self, data, spec)
        raise ValueError(f"a chunk of {size:,} bytes decodes to more than {most:,}")

    async def awaited(self: Any, data: Any, spec: Any) -> Any:
        found = limited(self, data, spec)
        return await found if inspect.isawaitable(found) else found

    return awaited if inspect.iscoroutinefunction(base) else limited


_BESIDE = 1 << 16
"""Bytes by which what a codec has encoded may be longer than what it was given, at most."""


def _blosc_length(data: bytes) -> int:
    return int.from_bytes(data[4:8], "little")


def _zstd_length(data: bytes) -> int:
    """Return how long what a frame of Zstandard holds is, or can be at most if it does not say."""
    flags = data[4] if data[:4] == b"\x28\xb5\x2f\xfd" and len(data) > 4 else 0
    single = flags >> 5 & 1
    at = 5 + (1 - single) + (0, 1, 2, 4)[flags & 3]
    width = (single, 2, 4, 8)[flags >> 6]
    if width:
        return int.from_bytes(data[at : at + width], "little") + (256 if width == 2 else 0)
    found, last = 0, 0
    while not last and at + 3 <= len(data):
        head = int.from_bytes(data[at : at + 3], "little")
        last, kind, size = head & 1, head >> 1 & 3, head >> 3
        found += size if kind < 2 else 1 << 17
        at += 3 + (1 if kind == 1 else size)
    return found


def _sum(text: bytes) -> str:
    return f"{xxhash.xxh3_64_intdigest(text):016x}"


def _stored(path: str, name: str, one: Any) -> Stored:
    if any(part in ("", ".", "..") for part in name.split("/")) and name:
        raise CheckpointError(f"{path}: the name {name!r:.200} leads out of the store.")
    told = one.attrs.get(_DTYPE)
    try:
        dtype = checked_dtype(np.dtype(one.dtype), f"{path}: array {name!r:.200}")
    except (DtypeError, TypeError) as error:
        raise CheckpointError(
            f"{path}: array {name!r:.200} has dtype {one.dtype}, which is not numeric."
        ) from error
    if told is not None:
        real = _SMALL.get(told) if isinstance(told, str) else None
        if real is None or f"uint{8 * real.itemsize}" != dtype.name:
            raise CorruptFileError(
                f"{path}: array {name!r:.200} holds {dtype.name}, and its attribute {_DTYPE} says "
                f"{told!r:.40}."
            )
        dtype = real
    return Stored(name, tuple(one.shape), dtype, _shards_of(path, name, one, dtype))


def _shards_of(path: str, name: str, one: Any, dtype: np.dtype[Any]) -> tuple[Piece, ...]:
    """Return the pieces of an array: its shards, or its chunks."""
    if math.prod(one.chunks) * dtype.itemsize > _MOST_CHUNK:
        raise CheckpointError(
            f"{path}: array {name!r:.200} has chunks of shape {one.chunks}, which are "
            f"{math.prod(one.chunks) * dtype.itemsize:,} bytes; at most {_MOST_CHUNK:,} are read."
        )
    shape = tuple(one.shape)
    if len(shape) > _MOST_DIMS or not all(0 <= n < 1 << 63 for n in shape):
        raise CorruptFileError(f"{path}: array {name!r:.200} has a shape that no array can have.")
    if 0 in shape:
        return ()
    unit = one.shards or one.chunks
    _check_count(
        path, name, math.prod([-(-n // max(c, 1)) for n, c in zip(shape, unit, strict=True)])
    )
    steps = grid_steps(shape, unit)
    pieces = []
    for box in grid_boxes(shape, steps):
        place = tuple([a // n for a, n in zip(box.starts, unit, strict=True)])
        pieces.append(Piece(box, os.path.join(name, one.metadata.encode_chunk_key(place)), -1))
    return tuple(pieces)


def _check_count(path: str, name: str, count: int) -> None:
    """Refuse an array of very many chunks of which nearly none has a file.

    Chunks without one have all elements alike; a few bytes of metadata can name any number of them.
    """
    if count <= MOST_CHUNK_BOXES:
        return
    found = 0
    for _, _, names in os.walk(os.path.join(path, name)):
        found += len(names)
        if found * _MOST_SPARSE >= count:
            return
    raise CheckpointError(
        f"{path}: array {name!r:.200} has {count:,} chunks, of which {found:,} have files. At most "
        f"{_MOST_SPARSE:,} times as many chunks as files are read."
    )


_MOST_SPARSE = 64
_SMALL = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in dir(ml_dtypes)
    if isinstance(getattr(ml_dtypes, name), type)
    and issubclass(getattr(ml_dtypes, name), np.generic)
}
"""The dtypes of ml_dtypes, by name."""


@final
class _Reader:
    """Reads boxes by the library, which reads only the chunks that they need."""

    def __init__(self, path: str, arrays: Mapping[str, Any], complete: bool) -> None:
        self._path, self._arrays, self._complete = path, arrays, complete

    def read(self, tensor: Stored, piece: Piece, box: Box, out: Block) -> None:
        """Fill an array with some elements of a piece; see `Reader.read`."""
        file = os.path.join(self._path, piece.file)
        doing = f"tensor {tensor.name!r:.200}, box {box}, cannot be read"
        if self._complete or (os.path.lexists(file) and not os.path.isfile(file)):
            OpenFile(file, doing)  # a chunk that is missing would be read as zeros
        self._check_links(tensor.name, box)
        with _named(file, doing):
            found = np.asarray(self._arrays[tensor.name][box.slices])
            out[...] = found.view(tensor.dtype) if found.dtype != tensor.dtype else found

    def _check_links(self, name: str, box: Box) -> None:
        """Refuse chunks that are links out of the store, which the library would follow."""
        array = self._arrays[name]
        unit = array.shards or array.chunks
        places = [
            range(a // n, -(-b // n)) for a, b, n in zip(box.starts, box.stops, unit, strict=True)
        ]
        for place in itertools.product(*places):
            key = os.path.join(name, array.metadata.encode_chunk_key(place))
            check_inside(self._path, self._path, key)

    def close(self) -> None:
        """Close nothing: the library opens files when it reads them."""


def zarr_store(
    path: str, tensors: Mapping[str, ShapeDtype], options: WriteOptions | None = None
) -> ZarrWriter:
    """Return a writer of a Zarr store.

    Args:
        path: the folder, which must not exist.
        tensors: the shape and dtype of each tensor, by name; a slash begins a group, and the only
            tensor of an empty name is the store's own array.
        options: how it is written; ``piece_bytes`` is the size of a shard.

    Raises:
        CheckpointError: if Zarr cannot hold a dtype or name, or the library is not installed.
    """
    return ZarrWriter(path, tensors, options or WriteOptions(metadata={}))


@final
class ZarrWriter:
    """Writes shards of a Zarr store; see `Writer` and `zarr_store`."""

    def __init__(self, path: str, tensors: Mapping[str, ShapeDtype], options: WriteOptions) -> None:
        self._zarr: Any = needed("zarr", path)
        self.path = path.rstrip("/") or path
        self._options = options
        self._partial = os.path.join(
            os.path.dirname(self.path), partial_name(os.path.basename(self.path))
        )
        _check_names(path, tensors, options)
        self._shards = {name: _shards(x, options.piece_bytes) for name, x in tensors.items()}
        self._tensors = {name: self._planned(path, name, x) for name, x in tensors.items()}
        self._arrays: dict[str, Any] = {}
        self._written: set[str] = set()

    def _planned(self, path: str, name: str, x: ShapeDtype) -> Stored:
        shard, _ = self._shards[name]
        shape = tuple(x.shape)
        if x.dtype.name not in _SMALL and (x.dtype.kind not in "biufc" or x.dtype.char in "gG"):
            raise CheckpointError(
                f"{path}: tensor {name!r:.200} has dtype {dtype_name(x.dtype)}, which Zarr cannot "
                "hold. Convert it with dtype=, or save it as a meshard checkpoint."
            )
        pieces = []
        for box in grid_boxes(shape, shard) if 0 not in shape else ():
            place = [str(a // n) for a, n in zip(box.starts, shard, strict=True)]
            pieces.append(Piece(box, os.path.join(name, "/".join(["c", *place])), -1))
        return Stored(name, shape, x.dtype, tuple(pieces))

    @property
    def tensors(self) -> Mapping[str, Stored]:
        """What the store will hold: each piece is one shard."""
        return self._tensors

    def begin(self) -> None:
        """Make the store's folders and metadata, under a name that no reader looks at.

        Raises:
            FileInUseError: if the target exists and may not be replaced.
            StorageError: if the folder cannot be made. Nothing is left of it.
        """
        self._check_target()
        try:
            for left in (self._partial, self._partial + ".replaced"):  # of a save that was killed
                _remove(left)
            os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
            with _written_by(self._partial):
                root: Any = None
                if "" not in self._tensors:
                    root = self._zarr.create_group(
                        self._partial, zarr_format=3, attributes=self._attributes()
                    )
                for name in self._tensors:
                    self._create(root, name)
                self._sign()
        except BaseException:
            self.abandon()
            raise

    def _check_target(self) -> None:
        if os.path.lexists(self.path) and not self._options.overwrite:
            raise FileInUseError(
                f"{self.path}: it exists. Choose another name, remove it, or say overwrite=True."
            )

    def _attributes(self) -> dict[str, Any]:
        tied = {_TIED: dict(self._options.tied)} if self._options.tied else {}
        return {**self._options.metadata, **tied}

    def _create(self, root: Any, name: str) -> None:
        """Make an array in the root's group, or the one that is the root itself."""
        stored, (shard, chunk) = self._tensors[name], self._shards[name]
        small = stored.dtype.name in _SMALL
        told = {_DTYPE: stored.dtype.name} if small else {}
        create = partial(root.create_array, name) if name else self._create_root
        create(
            shape=stored.shape,
            shards=shard if stored.shape else None,
            chunks=chunk,
            dtype=f"uint{8 * stored.dtype.itemsize}" if small else stored.dtype,
            compressors=[self._zarr.codecs.Crc32cCodec()],
            fill_value=0,
            attributes=told if name else {**self._attributes(), **told},
        )

    def _create_root(self, **given: Any) -> None:
        self._zarr.create_array(self._partial, zarr_format=3, **given)

    def _sign(self) -> None:
        """Store a checksum of the metadata of each array, and of the root's own."""
        files = {}
        for folder, _, names in os.walk(self._partial):
            if _ROOT in names and folder != self._partial:
                place = os.path.join(folder, _ROOT)
                with open(place, "rb") as file:
                    files[os.path.relpath(place, self._partial)] = _sum(file.read())
        place = os.path.join(self._partial, _ROOT)
        with open(place, encoding="utf-8") as text:
            form = json.load(text)
        zeros = "0" * 16
        form["attributes"] = {_SUM: zeros, **form.get("attributes", {}), _FILES: files}
        body = json.dumps(form, indent=2).encode()
        write_bytes(place, body.replace(zeros.encode(), _sum(body).encode(), 1))

    def write(self, tensor: Stored, piece: Piece, box: Box, block: Block) -> None:
        """Write a shard: all elements of a piece."""
        doing = f"tensor {tensor.name!r:.200}, box {box}, cannot be written"
        with _written_by(os.path.join(self.path, piece.file), doing):
            array = self._arrays.get(tensor.name)
            if array is None:
                place = os.path.join(self._partial, tensor.name)
                array = self._zarr.open_array(place, mode="r+", zarr_format=3)
                array = array.with_config({"write_empty_chunks": True, "order": "C"})
                self._arrays[tensor.name] = array
            small = tensor.dtype.name in _SMALL
            array[box.slices] = (
                np.ascontiguousarray(block).view(array.dtype).reshape(block.shape)
                if small
                else block
            )
            self._written.add(piece.file)

    def sync(self, sums: Mapping[tuple[str, int], int]) -> None:
        """Bring what this process has written to the disk; chunks have checksums of their own."""
        _sync(self._partial, self._written)

    def commit(self) -> None:
        """Give the store its name.

        Raises:
            FileInUseError: if the name was taken meanwhile.
            StorageError: if the name cannot be given.
        """
        self._check_target()
        old = self._partial
        with _written_by(self.path, "it cannot be given its name"):
            names = [os.path.join(f, _ROOT) for f, _, n in os.walk(self._partial) if _ROOT in n]
            _sync(self._partial, [os.path.relpath(name, self._partial) for name in names])
            if not os.path.lexists(self.path):
                os.rename(self._partial, self.path)
            elif not exchange_names(self._partial, self.path):
                old = self._partial + ".replaced"
                os.rename(self.path, old)
                os.rename(self._partial, self.path)
            sync_folder(os.path.dirname(self.path))
        _remove(old)

    def abandon(self) -> None:
        """Remove what was made."""
        _remove(self._partial)


def _remove(path: str) -> None:
    """Remove a file or folder, as far as that is allowed."""
    with suppress(OSError):
        os.unlink(path) if os.path.isfile(path) else shutil.rmtree(path, ignore_errors=True)


def _sync(root: str, names: Iterable[str]) -> None:
    """Bring files below a folder to the disk, and the folders that they are in."""
    folders: dict[str, None] = {}
    with _written_by(root, "it cannot be brought to the disk"):
        for name in names:
            number = os.open(os.path.join(root, name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(number)
            finally:
                os.close(number)
            folder = os.path.dirname(name)
            while folder not in folders:
                folders[folder] = None
                folder = os.path.dirname(folder)
        for folder in folders:
            sync_folder(os.path.join(root, folder))


@contextmanager
def _written_by(path: str, doing: str = "it cannot be made") -> Iterator[None]:
    """Raise whatever the library or the system raises as an error that names the path."""
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        raise file_error(error, path, doing) from error
    except Exception as error:  # of the library
        raise CheckpointError(f"{path}: {doing}: {type(error).__name__}: {error}") from error


def _shards(x: ShapeDtype, most: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of shards and of chunks: rows, unless one row is too long.

    A shard is a whole number of chunks.
    """
    shape, size = tuple([max(n, 1) for n in x.shape]), x.dtype.itemsize
    least, largest = ZARR_CHUNK
    chunk_bytes = min(max(math.prod(shape) * size // 64, least), largest, most)
    chunk = box_shape(shape, size, chunk_bytes)
    grid = tuple([-(-n // c) for n, c in zip(shape, chunk, strict=True)])
    count = box_shape(grid, math.prod(chunk) * size, most)
    return tuple([c * n for c, n in zip(chunk, count, strict=True)]), chunk


def _check_names(path: str, tensors: Mapping[str, ShapeDtype], options: WriteOptions) -> None:
    """Refuse names that are not folders of their own within the store."""
    for name in tensors:
        parts = name.split("/") if name else []
        above = ["/".join(parts[:i]) for i in range(len(parts))]
        why = next((f"it would be inside of the array {a!r}" for a in above if a in tensors), "")
        if "\0" in name or any(p in _NOT_NAMES or p.startswith("__") for p in parts):
            why = "it is not a path in a store"
        if why:
            raise CheckpointError(f"{path}: Zarr cannot hold a tensor named {name!r:.200}: {why}.")
    for alias, name in options.tied.items():
        if name not in tensors or alias in tensors:
            raise CheckpointError(
                f"{path}: {alias!r:.200} is tied to {name!r:.200}: the second must be a tensor "
                "that is stored, and the first a name that is not used."
            )
