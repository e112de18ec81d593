"""A folder of torch's distributed checkpoints as a target.

In: tensors, and which process writes which box of each. Out: a writer. Each process has a file of
its own, an archive for each box in it; the index is renamed last, so that readers see the old
folder or the new one.
"""

from __future__ import annotations

import os
import re
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import final

from meshard.algebra.box import Box
from meshard.errors import CheckpointError
from meshard.runtime.types import Block
from meshard.weights.catalogue.raw_writer import Contents, NewFile, Place, RawWriter
from meshard.weights.catalogue.safetensors_writer import ShapeDtype, WriteOptions
from meshard.weights.catalogue.stored import Piece, Stored, contiguous_boxes
from meshard.weights.dcp.archive import Frame, combined, frame
from meshard.weights.dcp.index import (
    METADATA,
    SUFFIX,
    Chunk,
    Index,
    Indexed,
    check_dtype,
    index_bytes,
)

_OURS = re.compile(r"__\d+_\d+\.distcp|__\d+\.metadata")

Boxes = Mapping[str, Sequence[tuple[Box, int]]]
"""For each tensor the boxes in which it is stored, and the process that writes each."""


@final
class DcpWriter:
    """Writes a folder of torch's distributed checkpoints; see `Writer`.

    Args:
        folder: the folder.
        tensors: the shape and dtype of each tensor, by name.
        boxes: the boxes in which each is stored, which are all of it, and who writes each.
        paths: the keys that lead to each tensor in the tree, by name; its name where there are
            none.
        options: how it is written; the format holds no metadata.

    Attributes:
        owners: for each piece of each tensor the process that writes it.

    Raises:
        CheckpointError: if torch does not have a dtype.
    """

    def __init__(
        self,
        folder: str,
        tensors: Mapping[str, ShapeDtype],
        boxes: Boxes,
        paths: Mapping[str, tuple[str | int, ...]],
        options: WriteOptions,
    ) -> None:
        for name, x in tensors.items():
            check_dtype(folder, name, x.dtype)
        replaced = _replaced(folder) if options.overwrite else []
        placing = _Placing(tensors, boxes, _generation(replaced))
        self.owners = placing.owners(options.piece_bytes)
        self._frames, self._homes = placing.frames, placing.homes
        self._glue = placing.glue()
        text = index_bytes(_index(tensors, placing.archives, options.tied, paths))
        files = [NewFile(name, size) for name, size in placing.sizes.items()]
        stored = {
            n: Stored(n, tuple(x.shape), x.dtype, placing.pieces[n]) for n, x in tensors.items()
        }
        contents = Contents([*files, NewFile(METADATA, len(text), text)], stored, {}, {}, replaced)
        self._raw = RawWriter(folder, contents, overwrite=options.overwrite)
        self._lock = threading.Lock()
        self._sums: dict[Place, dict[int, tuple[int, int]]] = {}

    @property
    def tensors(self) -> Mapping[str, Stored]:
        """What the files will hold: which elements are one piece, and in which file."""
        return self._raw.tensors

    def begin(self) -> None:
        """Make the files, under names that no reader looks at, with all but the elements."""
        self._raw.begin()
        try:
            self._raw.put(self._glue)
        except CheckpointError:
            self._raw.abandon()
            raise

    def write(self, tensor: Stored, piece: Piece, box: Box, block: Block) -> None:
        """Write some leading rows of a piece; see `Writer.write`."""
        self._raw.write(tensor, piece, box, block)
        data = block.reshape(-1).view("u1").data
        at = piece.offset + _before(piece.box, box) * tensor.dtype.itemsize
        crc = zlib.crc32(data)
        with self._lock:
            home = self._homes[piece.file, piece.offset]
            self._sums.setdefault(home, {})[at] = crc, len(data)

    def sync(self, sums: Mapping[tuple[str, int], int]) -> None:
        """Write the checksums of archives, and bring what was written to the disk."""
        texts: dict[Place, bytes] = {}
        for (file, offset), parts in self._sums.items():
            crc = 0
            for at in sorted(parts):
                crc = combined(crc, *parts[at])
            for place in self._frames[file, offset].sums:
                texts[file, offset + place] = crc.to_bytes(4, "little")
        self._raw.put(texts)
        self._raw.sync({})

    def commit(self) -> None:
        """Give the files their names, the index last, and remove those that they replace."""
        self._raw.commit()

    def abandon(self) -> None:
        """Remove what was made."""
        self._raw.abandon()


@final
class _Placing:
    """Where the archives are.

    Attributes:
        archives: the archives of each tensor.
        pieces: the pieces of each tensor, the elements of some archives in several.
        sizes: the bytes of each file.
        frames: what stands around the elements of each archive, by file and offset.
        homes: the archive of each piece, by file and offset.
    """

    def __init__(self, tensors: Mapping[str, ShapeDtype], boxes: Boxes, generation: int) -> None:
        self.archives: dict[str, list[Chunk]] = {name: [] for name in tensors}
        self.pieces: dict[str, tuple[Piece, ...]] = {}
        self.frames: dict[Place, Frame] = {}
        self.homes: dict[Place, Place] = {}
        self._tensors = tensors
        self._owners: dict[str, list[int]] = {name: [] for name in tensors}
        ends: dict[str, int] = {}
        for name, x in tensors.items():
            for box, process in boxes[name]:
                file = f"__{process}_{generation}{SUFFIX}"
                at = ends.get(file, 0)
                made = self.frames[file, at] = frame(box.shape, x.dtype)
                self.archives[name].append(Chunk(box, file, at, made.length))
                self._owners[name].append(process)
                ends[file] = at + made.length
        self.sizes = dict(sorted(ends.items()))

    def owners(self, most: int) -> dict[str, tuple[int, ...]]:
        """Cut the elements of archives into pieces, and return who writes each.

        Args:
            most: the most bytes of a piece.
        """
        found = {}
        for name, x in self._tensors.items():
            pieces, owners = [], []
            for chunk, owner in zip(self.archives[name], self._owners[name], strict=True):
                home = chunk.file, chunk.offset
                at = chunk.offset + len(self.frames[home].head)
                for box in _moved(chunk.box, x.dtype.itemsize, most):
                    pieces.append(Piece(box, chunk.file, at))
                    owners.append(owner)
                    self.homes[chunk.file, at] = home
                    at += box.volume * x.dtype.itemsize
            self.pieces[name], found[name] = tuple(pieces), tuple(owners)
        return found

    def glue(self) -> dict[Place, bytes]:
        """Return all that is not elements, by file and byte."""
        found = {}
        for (file, offset), made in self.frames.items():
            found[file, offset] = made.head
            found[file, offset + len(made.head) + made.size] = made.tail
        return found


def _moved(home: Box, itemsize: int, most: int) -> Iterator[Box]:
    """Yield the pieces of a box, in the coordinates of the whole tensor."""
    for box in contiguous_boxes(home.shape, itemsize, most):
        starts = [a + o for a, o in zip(box.starts, home.starts, strict=True)]
        stops = [b + o for b, o in zip(box.stops, home.starts, strict=True)]
        yield Box(tuple(starts), tuple(stops))


def _before(home: Box, box: Box) -> int:
    """Return how many elements of a box are before the first one of a part of it."""
    place = 0
    for size, start in zip(home.shape, box.within(home).starts, strict=True):
        place = place * size + start
    return place


def _index(
    tensors: Mapping[str, ShapeDtype],
    chunks: Mapping[str, Sequence[Chunk]],
    tied: Mapping[str, str],
    paths: Mapping[str, tuple[str | int, ...]],
) -> Index:
    """Return the index: a name that is tied to another one has the same chunks."""
    found = {
        name: Indexed(tuple(x.shape), x.dtype, tuple(chunks[name])) for name, x in tensors.items()
    }
    found.update({alias: found[name] for alias, name in tied.items()})
    return Index(found, (), {name: paths.get(name, (name,)) for name in found})


def _replaced(folder: str) -> list[str]:
    """Return the files of a folder that a new index replaces."""
    try:
        return sorted([name for name in os.listdir(folder) if _OURS.fullmatch(name)])
    except OSError:
        return []  # there is no such folder, or what is wrong shows when it is written


def _generation(replaced: Sequence[str]) -> int:
    """Return the second number of new files, which those that they replace do not have."""
    used = [int(n[2 : -len(SUFFIX)].split("_")[1]) for n in replaced if n.endswith(SUFFIX)]
    return max(used, default=-1) + 1
