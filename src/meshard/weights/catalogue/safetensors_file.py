"""Safetensors as a source: one file, a folder with or without an index, a file for each rank.

In: paths. Out: a catalogue of tensors, whose pieces are byte ranges of the files.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, NoReturn, final

import numpy as np
import xxhash

from meshard.algebra.box import Box
from meshard.errors import ArgumentError, CheckpointError, CorruptFileError, MissingFileError
from meshard.plan.file.json_values import as_list, as_mapping, as_numbers
from meshard.weights.catalogue.safetensors_header import (
    PARTS_KEY,
    SUMS_KEY,
    Entry,
    Header,
    JsonScan,
    read_header,
)
from meshard.weights.catalogue.stored import (
    Catalogue,
    OpenFile,
    Piece,
    RawReader,
    Stored,
    box_count,
    check_inside,
    contiguous_boxes,
    file_error,
)

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
MOST_INDEX = 400_000_000
"""Bytes of an index at most: a header's bytes for each of four names that a tensor may need."""
_OFFSETS_KEY, _OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"
"""In the metadata of files that torch's HuggingFaceStorageWriter makes of each rank's shards: where
these begin. The shapes of the whole tensors are not told."""
INDEX_SUM = re.compile(b'"%b": "([0-9a-f]{16})"' % SUMS_KEY.encode())
_COUNTED = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors")


def open_safetensors(path: str) -> Catalogue:
    """Return the tensors of a safetensors file, or of a folder of them.

    A folder has an index that says which tensor is in which file, or one file, or several whose
    tensors have different names, or whose metadata say which parts of tensors they have.

    Args:
        path: the file, the index, or the folder.

    Raises:
        MissingFileError: if it, or a file that belongs to it, does not exist.
        CorruptFileError: if a file is cut off or damaged, or files contradict each other.
        CheckpointError: if a file has a dtype that cannot be read, or a name in an index leads
            out of the folder.
    """
    if os.path.isdir(path):
        index = _find_index(path)
        if index is None:
            names = _files_without_index(path)
            for name in names:
                check_inside(path, path, name)
            return _join(path, path, names)
        return _open_index(path, path, index)
    folder, name = os.path.split(path)
    if name.endswith(INDEX_SUFFIX):
        return _open_index(path, folder, name)
    return _join(path, folder, [name])


def open_ranks(paths: Sequence[str], dims: Mapping[str, int | None]) -> Catalogue:
    """Return the whole tensors whose shards are in one safetensors file for each rank.

    All files have tensors of the same names, as tensor-parallel runtimes write them.

    Args:
        paths: the files, in the order of the ranks.
        dims: the dim along which tensors are cut, by pattern of names such as
            ``"*.o_proj.weight"``; None where every file has all of the tensor. A tensor that is
            in one file only needs none.

    Raises:
        ArgumentError: if no pattern, or patterns that differ, say how a tensor is cut; if a
            pattern matches none.
        CorruptFileError: if shards do not fit together.
        CheckpointError: if a file cannot be read.
    """
    if not paths:
        raise ArgumentError("open_ranks: paths must name at least one file, got none.")
    whole = [os.path.abspath(path) for path in paths]
    folder = os.path.commonpath([os.path.dirname(path) for path in whole])
    names = [os.path.relpath(path, folder) for path in whole]
    headers = {name: read_header(OpenFile(os.path.join(folder, name))) for name in names}
    found: dict[str, list[tuple[str, _Found]]] = {}
    for name, header in headers.items():
        for one in _found(header):
            found.setdefault(one.entry.name, []).append((name, one))
    used: set[str] = set()
    tensors = {name: _joined(name, parts, dims, used) for name, parts in found.items()}
    idle = [pattern for pattern in dims if pattern not in used]
    if idle:
        raise ArgumentError(
            f"open_ranks: the pattern {idle[0]!r} of dims matches no tensor that is in several "
            f"files; there are {', '.join(list(found)[:5])}, ..."
        )
    return Catalogue(
        os.fspath(folder), "safetensors", tensors, RawReader(folder), unchecked=_unchecked(headers)
    )


def _joined(
    name: str,
    parts: list[tuple[str, _Found]],
    dims: Mapping[str, int | None],
    used: set[str],
) -> Stored:
    """Return the tensor that shards of several files make."""
    first, entry = parts[0][0], parts[0][1].entry
    dim = _cut_dim(entry, len(parts), dims, used) if len(parts) > 1 else None
    for file, one in parts:
        other = one.entry
        if other.dtype != entry.dtype or _beside(other, dim) != _beside(entry, dim):
            raise CorruptFileError(
                f"open_ranks: the shards of tensor {name!r:.200} do not fit together along dim "
                f"{dim}: {first} has {entry.dtype}{list(entry.shape)}, {file} has "
                f"{other.dtype}{list(other.shape)}."
            )
    if dim is None:
        return Stored(name, entry.shape, entry.dtype, tuple(_pieces(*parts[0])))
    at = 0
    pieces: list[Piece] = []
    for file, one in parts:
        pieces += _pieces(file, one, dim, at)
        at += one.entry.shape[dim]
    whole = (*entry.shape[:dim], at, *entry.shape[dim + 1 :])
    return Stored(name, whole, entry.dtype, tuple(pieces))


def _beside(entry: Entry, dim: int | None) -> tuple[int, ...]:
    """Return a shape with one size left out."""
    return tuple([-1 if d == dim else n for d, n in enumerate(entry.shape)])


def _cut_dim(
    entry: Entry, count: int, dims: Mapping[str, int | None], used: set[str]
) -> int | None:
    """Return the dim along which a tensor is cut, as patterns say."""
    patterns = [pattern for pattern in dims if fnmatchcase(entry.name, pattern)]
    used.update(patterns)
    told = {dims[pattern] for pattern in patterns}
    if len(told) != 1:
        how = "no pattern of dims says" if not told else f"the patterns {patterns} differ about"
        raise ArgumentError(
            f"open_ranks: tensor {entry.name!r:.200} is in {count} files, and {how} how it is "
            "cut. Give the dim, or None where every file has all of it."
        )
    (dim,) = told
    if dim is None:
        return None
    if not -len(entry.shape) <= dim < len(entry.shape):
        raise ArgumentError(
            f"open_ranks: tensor {entry.name!r:.200} cannot be cut along dim {dim}: its shards "
            f"have shape {entry.shape}."
        )
    return dim % len(entry.shape)


@final
class _Found(NamedTuple):
    """A tensor in a file: its entry, the data's first byte, and its pieces' checksums."""

    entry: Entry
    start: int
    piece_bytes: int
    sums: Sequence[int]


def _found(header: Header) -> Iterator[_Found]:
    at = 0
    for entry in header.entries:
        sums: Sequence[int] = ()
        if header.piece_bytes:
            count = box_count(entry.shape, entry.dtype.itemsize, header.piece_bytes)
            sums, at = header.sums[at : at + count], at + count
        yield _Found(entry, header.start, header.piece_bytes, sums)


def _pieces(file: str, found: _Found, dim: int = 0, shift: int = 0) -> Iterator[Piece]:
    """Yield the pieces of a tensor in a file, or of a shard that begins later along a dim."""
    entry, sums = found.entry, found.sums
    place, size = found.start + entry.begin, entry.end - entry.begin
    if 0 < size <= (found.piece_bytes or size):
        boxes: Iterable[Box] = (Box.whole(entry.shape),)
    else:
        boxes = contiguous_boxes(entry.shape, entry.dtype.itemsize, found.piece_bytes or size)
    for number, box in enumerate(boxes):
        if shift:
            starts, stops = list(box.starts), list(box.stops)
            starts[dim] += shift
            stops[dim] += shift
            box = Box(tuple(starts), tuple(stops))
        yield Piece(box, file, place, sums[number] if sums else None)
        if number + 1 < len(sums):
            place += box.volume * entry.dtype.itemsize


def _unchecked(headers: Mapping[str, Header]) -> tuple[str, ...]:
    return tuple([name for name, header in headers.items() if not header.piece_bytes])


def _join(path: str, folder: str, names: Sequence[str]) -> Catalogue:
    """Return the tensors of files of a folder, which have different names."""
    headers = {name: read_header(OpenFile(os.path.join(folder, name))) for name in names}
    if len(names) > 1 and any(PARTS_KEY in header.metadata for header in headers.values()):
        told = {name: _told_parts(f"{folder}/{name}", one) for name, one in headers.items()}
        return _Assembly(path, folder).of(headers, told)
    if any(_OFFSETS_KEY in header.metadata for header in headers.values()):
        begins = {name: _told_offsets(f"{folder}/{name}", one) for name, one in headers.items()}
        return _Assembly(path, folder).of(headers, _with_shapes(headers, begins))
    tensors = _apart(path, headers)
    values: dict[str, Any] = {}
    for header in headers.values():
        values |= header.metadata
    tied = {  # as safetensors.torch.save_model writes tied tensors
        key: values.pop(key)
        for key, value in list(values.items())
        if value in tensors and key not in tensors and key != "format"
    }
    return Catalogue(
        path, "safetensors", tensors, RawReader(folder), tied, values, _unchecked(headers)
    )


def _apart(path: str, headers: Mapping[str, Header]) -> dict[str, Stored]:
    """Return the tensors of files each of which has others.

    Raises:
        CorruptFileError: if two have the same one.
    """
    tensors: dict[str, Stored] = {}
    for name, header in headers.items():
        for found in _found(header):
            entry = found.entry
            if entry.name in tensors:
                other = tensors[entry.name].pieces
                raise CorruptFileError(
                    f"{path}: tensor {entry.name!r:.200} is in "
                    f"{other[0].file if other else 'another'} "
                    f"and in {name}. If each file has the shards of one rank, open them with "
                    "open_ranks, which is told how they are cut."
                )
            tensors[entry.name] = Stored(
                entry.name, entry.shape, entry.dtype, tuple(_pieces(name, found))
            )
    return tensors


@final
class _Assembly:
    """The whole tensors of files that say which parts of them they have."""

    def __init__(self, path: str, folder: str) -> None:
        self._path = path
        self._folder = folder
        self._kinds: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        self._parts: dict[str, dict[Box, list[Piece]]] = {}

    def of(
        self, headers: Mapping[str, Header], told: Mapping[str, Mapping[str, _Part]]
    ) -> Catalogue:
        """Return the tensors of all files.

        Args:
            headers: their headers, by name.
            told: which parts of tensors each has.

        Raises:
            CorruptFileError: if parts are missing, or files contradict each other.
        """
        for name, header in headers.items():
            for found in _found(header):
                self._add(name, found, told[name])
        tensors = {name: self._whole(name) for name in self._kinds}
        told_of = {k: v for header in headers.values() for k, v in header.metadata.items()}
        tied = {k: v for k, v in told_of.items() if v in tensors and k not in tensors}
        tied.pop("format", None)
        reader, unchecked = RawReader(self._folder), _unchecked(headers)
        return Catalogue(self._path, "safetensors", tensors, reader, tied, unchecked=unchecked)

    def _add(self, file: str, found: _Found, told: Mapping[str, _Part]) -> None:
        """Add what one file has of a tensor; of replicas the first file's is taken."""
        entry = found.entry
        shape, starts = told.get(entry.name, (entry.shape, (0,) * len(entry.shape)))
        known = self._kinds.setdefault(entry.name, (shape, entry.dtype))
        home = _shifted(Box.whole(entry.shape), starts)
        if known != (shape, entry.dtype) or home.intersect(Box.whole(shape)) != home:
            raise CorruptFileError(
                f"{self._path}: tensor {entry.name!r:.200} is {known[1]}{list(known[0])} in one "
                f"file, and {entry.dtype}{list(shape)}, box {home}, in {file}."
            )
        pieces = [replace(p, box=_shifted(p.box, starts)) for p in _pieces(file, found)]
        self._parts.setdefault(entry.name, {}).setdefault(home, pieces)

    def _whole(self, name: str) -> Stored:
        """Return a tensor, all of which the files must have."""
        shape, dtype = self._kinds[name]
        homes = [box for box in self._parts[name] if box.volume]
        held = sum([box.volume for box in homes])
        apart = not any(a.intersect(b).volume for k, a in enumerate(homes) for b in homes[:k])
        if held != math.prod(shape) or not apart:
            raise CorruptFileError(
                f"{self._path}: the files hold {held:,} of {math.prod(shape):,} elements of tensor "
                f"{name!r:.200}; files of some ranks are missing, or do not belong together."
            )
        every = [piece for pieces in self._parts[name].values() for piece in pieces]
        return Stored(name, shape, dtype, tuple(every))


def _shifted(box: Box, by: Sequence[int]) -> Box:
    """Return a box further on."""
    return Box(
        tuple([a + n for a, n in zip(box.starts, by, strict=True)]),
        tuple([b + n for b, n in zip(box.stops, by, strict=True)]),
    )


_Part = tuple[tuple[int, ...], tuple[int, ...]]
"""The shape of a tensor of which a file has a part, and where the part begins."""


def _told_parts(path: str, header: Header) -> dict[str, _Part]:
    """Return the shapes of tensors of which a file has a part, and where the parts begin.

    Raises:
        CorruptFileError: if the metadata is malformed.
    """
    try:
        form = as_mapping(json.loads(header.metadata.get(PARTS_KEY, "{}")))
        found = {}
        ranks = {entry.name: len(entry.shape) for entry in header.entries}
        for name, one in form.items():
            shape, starts = map(as_numbers, as_list(one))
            if not len(shape) == len(starts) == ranks[name] or min((*shape, *starts)) < 0:
                raise ValueError(f"the part of {name!r:.200} is {one!r:.200}")
            found[name] = shape, starts
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptFileError(
            f"{path}: its metadata {PARTS_KEY!r} is malformed: {error}"
        ) from error
    return found


def _told_offsets(path: str, header: Header) -> dict[str, tuple[int, ...]]:
    """Return where the parts of tensors begin, as torch says it.

    Raises:
        CorruptFileError: if the metadata is malformed.
    """
    try:
        form = as_mapping(json.loads(header.metadata.get(_OFFSETS_KEY, "{}")))
        found = {}
        ranks = {entry.name: len(entry.shape) for entry in header.entries}
        for name, one in form.items():
            starts = as_numbers(as_mapping(one)[_OFFSETS])
            if name in ranks and (len(starts) != ranks[name] or min(starts, default=0) < 0):
                raise ValueError(f"the part of {name!r:.200} is {one!r:.200}")
            found[name] = starts
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptFileError(
            f"{path}: its metadata {_OFFSETS_KEY!r} is malformed: {error}"
        ) from error
    return found


def _with_shapes(
    headers: Mapping[str, Header], begins: Mapping[str, Mapping[str, tuple[int, ...]]]
) -> dict[str, dict[str, _Part]]:
    """Return the parts with the shapes of the whole tensors, which end where the last parts do."""
    ends: dict[str, tuple[int, ...]] = {}
    parts: dict[str, dict[str, tuple[int, ...]]] = {}
    for file, header in headers.items():
        parts[file] = {}
        for entry in header.entries:
            starts = begins[file].get(entry.name, (0,) * len(entry.shape))
            parts[file][entry.name] = starts
            stops = tuple([a + n for a, n in zip(starts, entry.shape, strict=True)])
            known = ends.get(entry.name, stops)
            if len(known) == len(stops):
                stops = tuple(map(max, known, stops)) if stops else stops
            ends[entry.name] = stops
    return {
        file: {name: (ends[name], starts) for name, starts in told.items()}
        for file, told in parts.items()
    }


def _files_without_index(folder: str) -> list[str]:
    names = sorted([n for n in _listed(folder) if n.endswith(SUFFIX) and not n.startswith(".")])
    if not names:
        raise MissingFileError(
            f"{folder}: it has no file whose name ends in {SUFFIX}, and no index "
            f"(model{INDEX_SUFFIX})."
        )
    for name in names:
        counted = _COUNTED.fullmatch(name)
        if counted is None:
            continue
        count = int(counted[3])
        others = [c for c in map(_COUNTED.fullmatch, names) if c is not None]
        have = len([c for c in others if (c[1], c[3]) == (counted[1], counted[3])])
        if have != count:
            raise MissingFileError(
                f"{folder}: {name} is one of {count} files, but {have} of them are here, and there "
                "is no index. Some are missing, or writing them did not end."
            )
    return names


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        raise file_error(error, folder, "it cannot be listed") from error


def _find_index(folder: str) -> str | None:
    found = [n for n in _listed(folder) if n.endswith(INDEX_SUFFIX) and not n.startswith(".")]
    usual = f"model{INDEX_SUFFIX}"
    if len(found) > 1 and usual not in found:
        raise CheckpointError(
            f"{folder}: it has {len(found)} indexes: {', '.join(sorted(found))}. Open one of them "
            "by its own path."
        )
    return usual if usual in found else next(iter(found), None)


def _open_index(path: str, folder: str, name: str) -> Catalogue:
    """Return the tensors of the files that an index names."""
    place = os.path.join(folder, name)
    check_inside(path, folder, name)
    index = _Index(place)
    names = list(dict.fromkeys(index.files.values()))
    alone = name.removesuffix(INDEX_SUFFIX) + SUFFIX
    if path == folder and alone not in names and os.path.lexists(os.path.join(folder, alone)):
        raise CheckpointError(
            f"{path}: it has {alone}, and {name}, which does not name that file: two models, of "
            "which one may be old. Open the file or the index by its own path."
        )
    for one in names:
        check_inside(place, folder, one)
    found = _join(path, folder, names)
    _check_index(place, index, found)
    unchecked = found.unchecked if index.checked else (name, *found.unchecked)
    return replace(found, unchecked=unchecked)


def _check_index(place: str, index: _Index, found: Catalogue) -> None:
    """Refuse an index that does not say what its files hold."""
    for tensor, file in index.files.items():
        stored = found.tensors.get(tensor)
        there = {p.file for p in stored.pieces} if stored is not None else set()
        if stored is None or there - {file}:
            where = f"it is in {there.pop()}" if there else "none of its files has it"
            raise CorruptFileError(
                f"{place}: it says that tensor {tensor!r:.200} is in {file!r:.200}, but {where}."
            )
    for tensor, stored in found.tensors.items():
        if tensor not in index.files:
            file = stored.pieces[0].file if stored.pieces else "one of its files"
            raise CorruptFileError(f"{place}: it lacks tensor {tensor!r:.200}, which {file} has.")
    size = sum([t.nbytes for t in found.tensors.values()])
    if index.size is not None and index.size != size:
        raise CorruptFileError(
            f"{place}: it says that the tensors have {index.size:,} bytes (metadata.total_size), "
            f"but they have {size:,}. Correct or remove that number if the files are right."
        )


@final
class _Index:
    """An index: the file of each tensor, the bytes of all, and whether it has a checksum."""

    def __init__(self, path: str) -> None:
        self._path = path
        file = OpenFile(path)
        if file.size > MOST_INDEX:
            self._refuse(f"it has {file.size:,} bytes, and {MOST_INDEX:,} are allowed")
        text = file.bytes_at(0, file.size, "it cannot be read")
        scan = JsonScan(path, text, "an index of safetensors files")
        given: dict[str, Any] = {}
        scan.begin()
        while scan.more:
            key = scan.name()
            given[key] = scan.texts(key) if key == "weight_map" else scan.value(f"{key:.200}")
            scan.after()
        scan.end()
        self.files: dict[str, str] = given.get("weight_map", {})
        metadata = given.get("metadata", {})
        if not self.files or not isinstance(metadata, dict):
            self._refuse('it must have "weight_map", an object with the file of each tensor')
        self.size = self._size(metadata.get("total_size"))
        self.checked = SUMS_KEY in metadata
        if self.checked:
            self._check(text, metadata[SUMS_KEY])

    def _size(self, given: object) -> int | None:
        if isinstance(given, float) and given.is_integer():
            given = int(given)
        if given is not None and not (type(given) is int and given >= 0):
            self._refuse(f"metadata.total_size must be a number of bytes, got {given!r:.60}")
        return given

    def _check(self, text: bytes, given: object) -> None:
        found = INDEX_SUM.search(text)
        sum_ = index_sum(text[: found.start(1)] + b"0" * 16 + text[found.end(1) :]) if found else ""
        if given != sum_:
            self._refuse(f"it has checksum {sum_}, expected {given!r:.60}")

    def _refuse(self, why: str) -> NoReturn:
        raise CorruptFileError(
            f"{self._path}: {why}. It was damaged or edited, or it is not an index of safetensors "
            "files."
        )


def index_sum(text: bytes) -> str:
    """Return the checksum of an index whose own checksum is 16 zeros."""
    return f"{xxhash.xxh3_64_intdigest(text):016x}"
