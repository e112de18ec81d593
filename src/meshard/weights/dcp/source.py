"""A folder of torch's distributed checkpoints as a source.

In: a path. Out: a catalogue. Opening it reads its index only; where the elements of a chunk are in
its archive is read when elements of it are, so that each process reads what it needs.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, final

import numpy as np

from meshard.algebra.box import Box
from meshard.errors import CheckpointError, CorruptFileError, MissingFileError
from meshard.runtime.types import Block, dtype_name
from meshard.tuning import READ_BUFFER
from meshard.weights.catalogue.detect import Format
from meshard.weights.catalogue.stored import (
    Catalogue,
    Foreign,
    OpenFile,
    OpenFiles,
    Piece,
    RawReader,
    Stored,
    check_inside,
    contiguous_boxes,
    file_error,
)
from meshard.weights.dcp.archive import NAMES, Elements, Window, frame
from meshard.weights.dcp.index import METADATA, SUFFIX, Index, Indexed, read_index

_RANK = re.compile(r"__(\d+)\.metadata")
"""The index that each rank writes for itself, if a save uses no collectives."""
_DEEPEST = 100


def open_dcp(path: str) -> Catalogue:
    """Return the tensors of a folder of torch's distributed checkpoints.

    Args:
        path: the folder, or its file ``.metadata``.

    Raises:
        MissingFileError: if it has no index, or one of its files is missing.
        CorruptFileError: if the index is damaged, or a file is shorter than it says.
        CheckpointError: if the index is of another version, or names a class that is not one of
            those that describe tensors.
    """
    folder = path if os.path.isdir(path) else os.path.dirname(path) or os.curdir
    index = _read(folder)
    lengths = {
        (chunk.file, chunk.offset): chunk.length
        for tensor in index.tensors.values()
        for chunk in tensor.pieces
    }
    _check_files(folder, index)
    tensors: dict[str, Stored] = {}
    tied: dict[str, str] = {}
    first: dict[object, str] = {}
    for name, one in index.tensors.items():
        known = first.setdefault((one.shape, one.dtype, one.pieces) if one.pieces else name, name)
        if known != name:
            tied[name] = known
            continue
        pieces = tuple([Piece(c.box, c.file, c.offset) for c in one.pieces])
        tensors[name] = Stored(name, one.shape, one.dtype, pieces)
    reader = _Reader(folder, lengths, ours=index.signed)
    values = {"tree": _structure(index)}
    unchecked = () if index.signed else (METADATA,)
    return Catalogue(
        *(folder, "dcp", tensors, reader, tied, values, unchecked),
        pickled=index.objects,
        damage=reader.damage,
    )


def _read(folder: str) -> Index:
    """Return the index of a folder, or that of all ranks together."""
    path = os.path.join(folder, METADATA)
    try:
        names = sorted([n for n in os.listdir(folder) if _RANK.fullmatch(n)])
    except OSError as error:
        raise file_error(error, folder, "it cannot be listed") from error
    if os.path.lexists(path) or not names:
        if not os.path.lexists(path):
            raise MissingFileError(
                f"{folder}: it has files {SUFFIX} and no {METADATA}: the save did not end, or the "
                "index was not copied with the folder."
            )
        return _read_file(folder, METADATA)
    found = [_read_file(folder, name, whole=False) for name in names]
    return _merged(folder, found)


def _read_file(folder: str, name: str, *, whole: bool = True) -> Index:
    check_inside(folder, folder, name)
    path = os.path.join(folder, name)
    file = OpenFile(path)
    return read_index(file.bytes_at(0, file.size, "it cannot be read"), path, whole=whole)


def _merged(folder: str, indexes: list[Index]) -> Index:
    """Return what several ranks say as one index.

    Raises:
        CorruptFileError: if they contradict each other, or a rank's index is missing.
    """
    tensors: dict[str, Indexed] = {}
    objects: dict[str, None] = {}
    paths: dict[str, tuple[str | int, ...]] = {}
    for index in indexes:
        objects.update(dict.fromkeys(index.objects))
        paths.update(index.paths)
        for name, one in index.tensors.items():
            known = tensors.setdefault(name, one)
            if (known.shape, known.dtype) != (one.shape, one.dtype):
                raise CorruptFileError(
                    f"{folder}: tensor {name!r:.200} has shape {known.shape} and dtype "
                    f"{dtype_name(known.dtype)} by one rank, {one.shape} and "
                    f"{dtype_name(one.dtype)} by another."
                )
            boxes = {chunk.box for chunk in known.pieces}
            more = tuple([chunk for chunk in one.pieces if chunk.box not in boxes])
            tensors[name] = replace(known, pieces=(*known.pieces, *more))
    for name, one in tensors.items():
        one.check(f"{folder}: the indexes of {len(indexes)} ranks", name)
    return Index(tensors, tuple(objects), paths)


def _check_files(folder: str, index: Index) -> None:
    """Refuse a folder of which a file is missing or cut off."""
    ends: dict[str, tuple[int, str]] = {}
    for name, one in index.tensors.items():
        for chunk in one.pieces:
            end = chunk.offset + chunk.length
            if end > ends.get(chunk.file, (-1, ""))[0]:
                ends[chunk.file] = end, name
    for file, (end, name) in ends.items():
        path = os.path.join(folder, file)
        check_inside(os.path.join(folder, METADATA), folder, file)
        try:
            size = os.stat(path).st_size
        except OSError as error:
            raise MissingFileError(
                f"{path} cannot be found ({error.strerror}); it holds tensor {name!r:.200} of "
                f"{len(ends)} files of {folder}."
            ) from error
        if size < end:
            raise CorruptFileError(
                f"{path} has {size:,} bytes, but the metadata says that tensor {name!r:.200} ends "
                f"at byte {end:,}: it was cut off, or belongs to another checkpoint."
            )


def _structure(index: Index) -> Any:
    """Return the tree that the tensors are, as the planner's keys say."""
    paths = {n: index.paths.get(n, (n,)) for n in index.tensors}
    if all(path == (name,) for name, path in paths.items()):
        return {"flat": True}
    root: dict[str | int, Any] = {}
    for name, path in paths.items():
        node: Any = root
        for key in path[:-1]:
            node = node.setdefault(key, {}) if isinstance(node, dict) else None
        taken = not isinstance(node, dict) or path[-1] in node or len(path) > _DEEPEST
        if taken or isinstance(path[0], int):
            return {"flat": True}
        node[path[-1]] = name
    for name in index.objects:
        _lengthen(root, index.paths.get(name, (name,)))
    return _node(root)


def _lengthen(root: dict[str | int, Any], path: tuple[str | int, ...]) -> None:
    """Keep the place in a list of a value that is not read, if the list has tensors too."""
    node: Any = root
    for key in path:
        if not isinstance(node, dict):
            return
        if isinstance(key, int) and node:
            node.setdefault(key, {})
        node = node.get(key)


def _node(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    if not node:
        return {"none": True}
    places = [key for key in node if isinstance(key, int)]
    if len(places) == len(node) and max(places) < 2 * len(node) + 64:
        return {
            "list": [
                _node(node[k]) if k in node else {"none": True} for k in range(max(places) + 1)
            ]
        }
    return {"dict": {str(key): _node(child) for key, child in node.items()}}


@final
class _Reader:
    """Finds the elements of chunks in their archives, and reads them."""

    def __init__(self, folder: str, lengths: Mapping[tuple[str, int], int], *, ours: bool) -> None:
        self._folder, self._lengths, self._ours = folder, lengths, ours
        self._raw, self._files = RawReader(folder), OpenFiles()
        self._found: dict[tuple[str, int], Elements] = {}

    def read(self, tensor: Stored, piece: Piece, box: Box, out: Block) -> None:
        """Fill an array with some elements of a piece; see `Reader.read`."""
        found = self._elements(tensor, piece)
        plain = tuple(range(len(found.order)))
        foreign = Foreign(found.swapped, None, None if found.order == plain else found.order)
        self._raw.read_as(tensor, replace(piece, offset=found.offset), box, out, foreign)
        if box == piece.box and foreign == Foreign() and found.crc not in (None, crc := _crc(out)):
            raise CorruptFileError(
                f"{os.path.join(self._folder, piece.file)}: tensor {tensor.name!r:.200}, box "
                f"{piece.box}: its checksum is {crc:08x}, expected {found.crc:08x}. The file was "
                "damaged or changed."
            )

    def damage(self, tensor: Stored, piece: Piece) -> str | None:
        """Return what is wrong with a piece by the checksum in its archive; None if nothing is."""
        found = self._elements(tensor, piece)
        if found.crc is None:
            return "its archive has no checksum, so that a change would not be noticed."
        crc, size, file = 0, tensor.dtype.itemsize * piece.box.volume, self._file(piece)
        for at in range(0, size, READ_BUFFER):
            part = file.bytes_at(
                found.offset + at, min(READ_BUFFER, size - at), f"tensor {tensor.name!r:.200}"
            )
            crc = zlib.crc32(part, crc)
        if crc != found.crc:
            return f"its checksum is {crc:08x}, expected {found.crc:08x}."
        if self._ours and not self._is_framed(tensor, piece, crc):
            return "what is around its elements in the archive was changed."
        return None

    def _is_framed(self, tensor: Stored, piece: Piece, crc: int) -> bool:
        """Whether an archive is as meshard writes it, apart from its elements."""
        made = frame(piece.box.shape, tensor.dtype)
        behind = len(made.head) + made.size
        if self._lengths[piece.file, piece.offset] != made.length:
            return False
        file, doing = self._file(piece), f"tensor {tensor.name!r:.200}"
        head = bytearray(file.bytes_at(piece.offset, len(made.head), doing))
        tail = bytearray(file.bytes_at(piece.offset + behind, len(made.tail), doing))
        for text, at in (head, made.sums[0]), (tail, made.sums[1] - behind):
            if text[at : at + 4] != crc.to_bytes(4, "little"):
                return False
            text[at : at + 4] = bytes(4)
        return bytes(head) == made.head and bytes(tail) == made.tail

    def close(self) -> None:
        """Close the files."""
        self._raw.close()
        self._files.close()

    def _file(self, piece: Piece) -> OpenFile:
        return self._files[os.path.join(self._folder, piece.file)]

    def _elements(self, tensor: Stored, piece: Piece) -> Elements:
        """Return where the elements of a piece are.

        Raises:
            CorruptFileError: if its archive is damaged, or does not hold that piece.
        """
        key = piece.file, piece.offset
        found = self._found.get(key)
        if found is None:
            try:
                window = Window(self._file(piece), piece.offset, self._lengths[key])
                found = window.elements()
            except CheckpointError as error:
                raise type(error)(f"tensor {tensor.name!r:.200}: {error}") from error
            if found.shape != piece.box.shape or found.dtype != NAMES[tensor.dtype]:
                raise CorruptFileError(
                    f"{os.path.join(self._folder, piece.file)}: tensor {tensor.name!r:.200}, box "
                    f"{piece.box}: the archive at byte {piece.offset:,} holds {found.dtype} of "
                    f"shape {found.shape}, but the metadata says {NAMES[tensor.dtype]} of shape "
                    f"{piece.box.shape}."
                )
            self._found[key] = found
        return found


def _crc(block: Block) -> int:
    """Return the CRC-32 of an array's elements in C order."""
    crc = 0
    for box in contiguous_boxes(block.shape, block.itemsize, READ_BUFFER):
        part = np.ascontiguousarray(block[box.slices])
        crc = zlib.crc32(part.reshape(-1).view(np.uint8).data, crc)
    return crc


def _is_dcp(names: set[str]) -> bool:
    return METADATA in names or any(n.endswith(SUFFIX) or _RANK.fullmatch(n) for n in names)


DCP = Format(open_dcp, _is_dcp, lambda name, start: name == METADATA)
"""The format's row in the table of formats."""
