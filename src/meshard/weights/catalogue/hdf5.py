"""HDF5 as a source: the data sets of a file, of a group, or one data set.

In: a path, and a name within the file. Out: a catalogue. Elements that are contiguous in the file
are read at their byte range, chunks by h5py.
"""

from __future__ import annotations

import itertools
import math
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import numpy as np

from meshard.algebra.box import Box
from meshard.errors import CheckpointError, CorruptFileError, DtypeError, MissingFileError
from meshard.runtime.moving.place import checked_dtype
from meshard.runtime.types import Block
from meshard.weights.catalogue.stored import (
    ZLIB,
    Catalogue,
    Foreign,
    OpenFile,
    Piece,
    RawReader,
    Stored,
    grid_boxes,
    grid_steps,
    inflated,
    needed,
)

_FAILURES = (
    *(OSError, RuntimeError, ValueError, KeyError, TypeError, OverflowError, MemoryError),
    zlib.error,
)
"""What h5py raises where a file is damaged."""
_HARMLESS, _MOST_RATIO = 1 << 27, 1032
"""Bytes that a chunk may decode to unseen, and how much longer deflated bytes can become."""


def open_hdf5(path: str, name: str = "/") -> Catalogue:
    """Return the data sets of an HDF5 file.

    Args:
        path: the file.
        name: a group or data set in it. Names of tensors are those within the group.

    Raises:
        MissingFileError: if the file, or the name in it, does not exist.
        CorruptFileError: if the file is damaged, or is not an HDF5 file.
        CheckpointError: if a data set does not hold numbers, or is stored in other files; if h5py
            is not installed.
    """
    h5py: Any = needed("h5py", path)
    OpenFile(path)  # refuses what is missing, or not a regular file, by name
    folder, base = os.path.split(path)
    tensors: dict[str, Stored] = {}
    foreign: dict[str, Foreign] = {}
    sets: dict[str, Any] = {}
    with _named(path):
        file = h5py.File(path, "r")
        if name not in file:
            raise MissingFileError(f"{path}: it has no group or data set {name!r:.200}.")
        found = file[name]
        if found.file.filename != file.filename:
            raise CheckpointError(f"{path}: {name!r:.200} is a link into another file.")
        if isinstance(found, h5py.Dataset):
            sets[name.strip("/")] = found
        else:
            found.visititems(
                lambda key, one: sets.update({key: one}) if isinstance(one, h5py.Dataset) else None
            )
        for key, one in sets.items():
            tensors[key] = _stored(h5py, path, base, key, one)
            foreign[key] = Foreign(not one.dtype.isnative)
    reader = _Reader(RawReader(folder, foreign), file, sets, path)
    return Catalogue(path, "hdf5", tensors, reader, unchecked=(base,))


@contextmanager
def _named(path: str, doing: str = "it cannot be read as HDF5") -> Iterator[None]:
    """Raise what h5py raises as an error that names the file."""
    try:
        yield
    except CheckpointError:
        raise
    except _FAILURES as error:
        raise CorruptFileError(f"{path}: {doing}: {error}") from error


def _stored(h5py: Any, path: str, base: str, key: str, one: Any) -> Stored:
    """Return what is known of a data set; its pieces are at a byte range, or chunks."""
    try:
        dtype = checked_dtype(np.dtype(one.dtype.str), f"{path}: data set {key!r:.200}")
    except (DtypeError, TypeError) as error:
        raise CheckpointError(
            f"{path}: data set {key!r:.200} has dtype {one.dtype}, which is not numeric. Open the "
            "others by their names."
        ) from error
    shape = one.shape
    properties = one.id.get_create_plist()
    kind = properties.get_layout()
    if one.dtype.kind == "b":
        dtype = np.dtype(np.bool_)
    if shape is None or kind == h5py.h5d.VIRTUAL or properties.get_external_count():
        where = "it is empty" if shape is None else "its elements are in other files"
        raise CheckpointError(f"{path}: data set {key!r:.200} cannot be read: {where}.")
    if 0 in shape:
        return Stored(key, shape, dtype, ())
    whole = Box.whole(shape)
    if kind == h5py.h5d.CHUNKED:
        boxes = grid_boxes(shape, grid_steps(shape, one.chunks))
        return Stored(key, shape, dtype, tuple([Piece(box, base, -1) for box in boxes]))
    offset = one.id.get_offset() if kind == h5py.h5d.CONTIGUOUS else None
    plain = one.id.get_type().get_size() == dtype.itemsize and dtype.char not in "gG"
    if offset is None or not plain or one.file.userblock_size:
        offset = -1
    return Stored(key, shape, dtype, (Piece(whole, base, offset),))


@final
class _Reader:
    """Reads byte ranges itself, and chunks by h5py."""

    def __init__(self, raw: RawReader, file: Any, sets: dict[str, Any], path: str) -> None:
        self._raw, self._file, self._sets, self._path = raw, file, sets, path

    def read(self, tensor: Stored, piece: Piece, box: Box, out: Block) -> None:
        """Fill an array with some elements of a piece; see `Reader.read`."""
        if piece.offset >= 0:
            self._raw.read(tensor, piece, box, out)
            return
        with _named(self._path, f"tensor {tensor.name!r:.200}, box {box}, cannot be read"):
            self._check_chunks(self._sets[tensor.name], box)
            out[...] = self._sets[tensor.name][box.slices]

    def _check_chunks(self, one: Any, box: Box) -> None:
        """Refuse chunks of a box that decode to far more than a chunk: the library does it."""
        if one.compression != "gzip":
            return
        most = 2 * math.prod(one.chunks) * one.dtype.itemsize + _HARMLESS
        spans = zip(box.starts, box.stops, one.chunks, strict=True)
        for place in itertools.product(*[range(a - a % n, b, n) for a, b, n in spans]):
            stored = one.id.get_chunk_info_by_coord(place)
            if stored.byte_offset is None or stored.size * _MOST_RATIO <= most:
                continue
            _, raw = one.id.read_direct_chunk(place)
            if inflated(raw, most, ZLIB) is None:
                raise ValueError(f"the chunk at {place} decodes to more than {most:,} bytes")

    def close(self) -> None:
        """Close the file."""
        self._raw.close()
        self._file.close()
