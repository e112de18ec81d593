"""The index of a folder of torch's distributed checkpoints, its file `.metadata`.

In: the file. Out: for each tensor its shape, its dtype, and where its chunks are; and the same
written. The file is a pickle; only the names in `_KNOWN` may occur in it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add, gt
from typing import Any, final

import numpy as np
import xxhash

from meshard.algebra.box import Box
from meshard.errors import CheckpointError, CorruptFileError, did_you_mean
from meshard.weights.dcp.archive import DTYPES, NAMES, WITHOUT
from meshard.weights.dcp.pickled import (
    ADVICE,
    RECORD,
    Name,
    Pickle,
    Record,
    kind_of,
    told,
    unpickled,
)

METADATA = ".metadata"
SUFFIX = ".distcp"
VERSION = "1.0.0"
_MARK = b"\nmeshard xxh3 "
"""What comes between the pickle, at whose end torch stops reading, and its checksum."""

_HOME = "torch.distributed.checkpoint.metadata"
_FILES = "torch.distributed.checkpoint.filesystem"
_OLD = "torch.distributed._shard.sharded_tensor.metadata"
_KNOWN: dict[Name, Any] = {
    **{
        (_HOME, name): RECORD
        for name in (
            *("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties"),
            *("ChunkStorageMetadata", "MetadataIndex", "StorageMeta"),
        )
    },
    (_HOME, "_MEM_FORMAT_ENCODING"): int,
    (_OLD, "TensorProperties"): RECORD,
    (_OLD, "MEM_FORMAT_ENCODING"): int,
    (_FILES, "_StorageInfo"): RECORD,
    ("torch", "Size"): tuple,
    ("torch.serialization", "_get_layout"): RECORD,
    ("collections", "OrderedDict"): dict,
    **{
        (module, name): RECORD
        for module in ("pathlib", "pathlib._local")
        for name in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath", "Path")
    },
    **{("torch", name): name for name in (*DTYPES, *WITHOUT)},
}


@final
@dataclass(frozen=True, slots=True)
class Chunk:
    """A box of a tensor in a file.

    Attributes:
        box: the elements.
        file: the file, relative to the folder.
        offset: the byte at which its archive begins.
        length: the bytes of the archive.
    """

    box: Box
    file: str
    offset: int
    length: int


@final
@dataclass(frozen=True)
class Indexed:
    """A tensor: its shape, its dtype, and its chunks."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    pieces: tuple[Chunk, ...]

    def check(self, path: str, name: str) -> None:
        """Refuse chunks that overlap, or are not all of the tensor.

        Raises:
            CorruptFileError: if they do; the message begins with the path.
        """
        try:
            _check_cover(name, self.shape, self.pieces)
        except _Malformed as error:
            raise CorruptFileError(f"{path}: the metadata is malformed: {error}.") from error


@final
@dataclass(frozen=True)
class Index:
    """What a folder holds.

    Attributes:
        tensors: the tensors by name.
        objects: the names of other values, which are pickles of any kind.
        paths: the keys that lead to each in the tree that was saved, by name.
        signed: whether the file had its own checksum.
    """

    tensors: Mapping[str, Indexed]
    objects: tuple[str, ...] = ()
    paths: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)
    signed: bool = False


class _Malformed(ValueError):
    """What is wrong with an index, as the end of a sentence."""


def read_index(data: bytes, path: str, *, whole: bool = True) -> Index:
    """Return what an index says.

    Args:
        data: its bytes.
        path: the file, for messages.
        whole: whether all chunks of each tensor must be in it.

    Raises:
        CorruptFileError: if it is damaged, or contradicts itself.
        CheckpointError: if it is of another version, names another class than those of DCP's
            metadata, or describes what cannot be read.
    """
    signed = _check_sum(data, path)
    form = unpickled(data, _KNOWN, path)
    try:
        if not isinstance(form, Record) or kind_of(form) != "Metadata":
            raise _Malformed(f"it holds a {kind_of(form)}, not DCP's metadata")
        version = form.get("version")
        if version is not None and not str(version).startswith("1."):
            raise CheckpointError(
                f"{path}: it is of DCP's version {told(version)}, and versions 1 can be read. "
                f"{ADVICE}"
            )
        described = _dict(form.get("state_dict_metadata"), "tensors")
        places = _places(_dict(form.get("storage_data"), "places"), path)
        tensors, objects = {}, []
        for name, one in described.items():
            if not isinstance(name, str):
                raise _Malformed(f"{told(name)} is not a name")
            if kind_of(one) == "BytesStorageMetadata":
                objects.append(name)
            else:
                tensors[name] = _tensor(path, name, one, places)
                if whole:
                    tensors[name].check(path, name)
        paths = _paths(form.get("planner_data"), described)
        return Index(tensors, tuple(objects), paths, signed)
    except _Malformed as error:
        raise CorruptFileError(f"{path}: the metadata is malformed: {error}.") from error


def _check_sum(data: bytes, path: str) -> bool:
    """Return whether a file has a checksum behind its pickle, as those have that meshard writes.

    Raises:
        CorruptFileError: if it has another one than it says.
    """
    body, mark, rest = data.rpartition(_MARK)
    if not mark or len(rest) != 17:
        return False
    found = xxhash.xxh3_64_hexdigest(body)
    if rest != f"{found}\n".encode():
        raise CorruptFileError(
            f"{path}: it was damaged or changed: its checksum is {found}, but it says "
            f"{rest[:16]!r}."
        )
    return True


_Places = dict[tuple[str, tuple[int, ...] | None], tuple[str, int, int]]


def _places(given: Mapping[Any, Any], path: str) -> _Places:
    """Return the file, offset and length of each chunk, by tensor and first element."""
    found: _Places = {}
    for index, info in given.items():
        if kind_of(index) != "MetadataIndex" or kind_of(info) != "_StorageInfo":
            raise _Malformed(f"a place is given as {kind_of(info)} of {kind_of(index)}")
        name, first = index.get("fqn"), index.get("offset")
        file, offset, length = (info.get(k) for k in ("relative_path", "offset", "length"))
        if not isinstance(name, str) or not isinstance(file, str) or not file:
            raise _Malformed(f"a place has the name {told(name)} and the file {told(file)}")
        if info.get("transform_descriptors"):
            raise CheckpointError(
                f"{path}: {name!r:.200} was stored through extensions of DCP that change the "
                "bytes, such as compression. Save it without them."
            )
        if os.path.isabs(file) or ".." in file.split("/") or "\0" in file:
            raise CheckpointError(f"{path}: the file {file!r:.200} is not within the folder.")
        if not (_is_size(offset) and _is_size(length)):
            raise _Malformed(f"{name!r:.200} is at byte {told(offset)}, of {told(length)}")
        found[name, None if first is None else _sizes(first, name)] = file, offset, length
    return found


def _tensor(path: str, name: str, one: Any, places: _Places) -> Indexed:
    """Return what is known of a tensor."""
    if kind_of(one) != "TensorStorageMetadata":
        raise _Malformed(f"{name!r:.200} is described by a {kind_of(one)}")
    shape, dtype = _sizes(one.get("size"), name), _dtype(path, name, one.get("properties"))
    chunks, seen = [], set()
    for chunk in _list(one.get("chunks"), name):
        box = _box(name, shape, chunk)
        if not box.volume or box in seen:
            continue
        seen.add(box)
        place = places.get((name, box.starts)) or places.get((name, None))
        if place is None:
            raise _Malformed(f"it does not say where chunk {box} of tensor {name!r:.200} is")
        chunks.append(Chunk(box, *place))
    return Indexed(shape, dtype, tuple(chunks))


def _dtype(path: str, name: str, properties: Any) -> np.dtype[Any]:
    """Return the dtype that the properties of a tensor say."""
    state = getattr(properties, "state", None)
    given = state[0] if isinstance(state, tuple) and state else None
    if isinstance(state, dict):
        given = state.get("dtype")
    if not isinstance(given, str) or given not in DTYPES:
        raise CheckpointError(
            f"{path}: tensor {name!r:.200} has dtype {told(given)}, which NumPy does not have."
        )
    return DTYPES[given]


def _box(name: str, shape: tuple[int, ...], chunk: Record) -> Box:
    """Return the box of a chunk, within its tensor."""
    starts, sizes = _sizes(chunk.get("offsets"), name), _sizes(chunk.get("sizes"), name)
    if not len(starts) == len(sizes) == len(shape):
        raise _Malformed(f"tensor {name!r:.200} of shape {shape} has a chunk of shape {sizes}")
    stops = tuple(map(add, starts, sizes))
    if any(map(gt, stops, shape)):
        raise _Malformed(f"tensor {name!r:.200} of shape {shape} has a chunk {Box(starts, stops)}")
    return Box(starts, stops)


def _check_cover(name: str, shape: tuple[int, ...], chunks: Sequence[Chunk]) -> None:
    """Refuse chunks that overlap, or are not all of a tensor."""
    total = sum([chunk.box.volume for chunk in chunks])
    if total != math.prod(shape):
        raise _Malformed(
            f"tensor {name!r:.200} of shape {shape} has {math.prod(shape):,} elements, but its "
            f"{len(chunks)} chunks have {total:,}"
        )
    if _is_grid([chunk.box for chunk in chunks]):
        return
    ordered = sorted(chunks, key=lambda chunk: chunk.box.starts)
    for number, chunk in enumerate(ordered):
        for other in ordered[number + 1 :]:
            if other.box.starts[0] >= chunk.box.stops[0]:
                break  # all further ones begin behind it
            if chunk.box.intersect(other.box).volume:
                raise _Malformed(
                    f"chunks {chunk.box} and {other.box} of tensor {name!r:.200} overlap"
                )


def _is_grid(boxes: Sequence[Box]) -> bool:
    """Whether distinct boxes are cells of one grid, so that they do not overlap."""
    if not boxes or not boxes[0].starts:
        return True
    cells: list[dict[int, int]] = [{} for _ in boxes[0].starts]
    return all(
        ends.setdefault(a, b) == b
        for box in boxes
        for ends, a, b in zip(cells, box.starts, box.stops, strict=True)
    ) and all(
        stop <= after
        for ends in cells
        for stop, after in zip(
            [ends[a] for a in sorted(ends)], [*sorted(ends)[1:], 1 << 63], strict=True
        )
    )


def _paths(given: Any, names: Mapping[str, Any]) -> dict[str, tuple[str | int, ...]]:
    """Return the keys that lead to each value; another planner than torch's own may give none."""
    found = {}
    for name, keys in given.items() if isinstance(given, dict) else ():
        keyed = isinstance(keys, tuple) and all(isinstance(k, str) or _is_size(k) for k in keys)
        if name in names and keyed and keys:
            found[name] = keys
    return found


def _dict(value: Any, of: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise _Malformed(f"the {of} are given as a {kind_of(value)}")
    return value


def _list(value: Any, name: str) -> Iterator[Record]:
    if not isinstance(value, (list, tuple)) or any(
        kind_of(one) != "ChunkStorageMetadata" for one in value
    ):
        raise _Malformed(f"the chunks of tensor {name!r:.200} are not a list of chunks")
    return iter(value)


def _sizes(value: Any, name: object) -> tuple[int, ...]:
    found = tuple(value) if isinstance(value, (tuple, list)) else (None,)
    whole = len(found) <= 64 and set(map(type, found)) <= {int}
    if whole and min(found, default=0) >= 0 and max(found, default=0) < 1 << 63:
        return found
    raise _Malformed(f"{told(name)} has the sizes {told(value)}")


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def check_dtype(path: str, name: str, dtype: np.dtype[Any]) -> str:
    """Return torch's name of a dtype.

    Raises:
        CheckpointError: if torch does not have it.
    """
    if dtype not in NAMES:
        raise CheckpointError(
            f"{path}: tensor {name!r:.200} has dtype {dtype}, which torch does not have. Convert "
            f"it with dtype=, or save a meshard checkpoint.{did_you_mean(str(dtype), DTYPES)}"
        )
    return NAMES[dtype]


def index_bytes(index: Index) -> bytes:
    """Return the index as torch reads it."""
    out = Pickle()
    out.instance(_HOME, "Metadata")
    out.op(b"}(")
    out.add("state_dict_metadata")
    out.op(b"}(")
    for name, tensor in index.tensors.items():
        out.add(name)
        _add_tensor(out, tensor)
    out.op(b"u")
    out.add("planner_data")
    out.add(dict(index.paths))
    out.add("storage_data")
    out.op(b"}(")
    for name, tensor in index.tensors.items():
        for number, chunk in enumerate(tensor.pieces):
            _add_place(out, name, number, chunk)
    out.op(b"u")
    out.add("version")
    out.add(VERSION)
    out.op(b"ub")
    data = out.done()
    return data + _MARK + f"{xxhash.xxh3_64_hexdigest(data)}\n".encode()


def _add_tensor(out: Pickle, tensor: Indexed) -> None:
    out.instance(_HOME, "TensorStorageMetadata")
    out.op(b"}(")
    out.add("properties")
    out.instance(_HOME, "TensorProperties")
    out.op(b"(")
    out.name("torch", NAMES[tensor.dtype])
    out.call("torch.serialization", "_get_layout", "torch.strided")
    out.add(False)  # whether it requires a gradient
    out.call(_HOME, "_MEM_FORMAT_ENCODING", 0)  # contiguous
    out.add(False)  # whether its memory is pinned
    out.op(b"tb")
    out.add("size")
    out.size(tensor.shape)
    out.add("chunks")
    out.op(b"](")
    for chunk in tensor.pieces:
        out.instance(_HOME, "ChunkStorageMetadata")
        out.op(b"}(")
        out.add("offsets")
        out.size(chunk.box.starts)
        out.add("sizes")
        out.size(chunk.box.shape)
        out.op(b"ub")
    out.op(b"eub")


def _add_place(out: Pickle, name: str, number: int, chunk: Chunk) -> None:
    out.instance(_HOME, "MetadataIndex")
    out.op(b"}(")
    out.add("fqn")
    out.add(name)
    out.add("offset")
    out.size(chunk.box.starts)
    out.add("index")
    out.add(number)
    out.op(b"ub")
    out.instance(_FILES, "_StorageInfo")
    out.op(b"}(")
    for key, value in (
        ("relative_path", chunk.file),
        ("offset", chunk.offset),
        ("length", chunk.length),
    ):
        out.add(key)
        out.add(value)
    out.op(b"ub")
