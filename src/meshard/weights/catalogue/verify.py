"""Checking files against the checksums that they have.

In: a catalogue; opening it has checked headers and indexes. Out: what is damaged: which file,
tensor and box.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import xxhash

from meshard.algebra.box import Box
from meshard.errors import CheckpointError, visible
from meshard.runtime.lines.letters import sent
from meshard.runtime.types import Block
from meshard.tuning import READ_BUFFER
from meshard.weights.catalogue.stored import Catalogue, Piece, Reader, Stored, contiguous_boxes


@sent
@final
@dataclass(frozen=True, slots=True)
class Damage:
    """Something that a file should hold and does not, or that cannot be known.

    Attributes:
        file: the file's path.
        reason: what is wrong, as a sentence.
        tensor: the tensor's name; None where it concerns the file as a whole.
        box: the elements of the tensor.
    """

    file: str
    reason: str
    tensor: str | None = None
    box: Box | None = None

    def __str__(self) -> str:
        where = "" if self.tensor is None else f"tensor {self.tensor!r}, box {self.box}: "
        return visible(f"{self.file}: {where}{self.reason}")


def checked_bytes(catalogue: Catalogue) -> int:
    """Return the bytes that have checksums."""
    return sum(
        piece.box.volume * tensor.dtype.itemsize
        for tensor in catalogue.tensors.values()
        for piece in tensor.pieces
        if piece.checksum is not None or catalogue.damage is not None
    )


def verify(
    catalogue: Catalogue,
    process: int = 0,
    count: int = 1,
    told: Callable[[int], None] | None = None,
) -> Iterator[Damage]:
    """Yield what does not have its checksum; nothing where all is as it was written.

    A file that has no checksums for all of it is told as well: whether it changed is not known.

    Args:
        catalogue: what was opened.
        process: which share of the pieces to read.
        count: how many processes share the work.
        told: called with the bytes that have been read here since the last call.
    """
    if told is not None:
        catalogue = replace(catalogue, reader=_Counting(catalogue.reader, told))
    home = catalogue.folder
    if process == 0:
        for file in catalogue.unchecked:
            reason = "it has no checksums, so that a change would not be noticed."
            yield Damage(os.path.join(home, file), reason)
    number = 0
    for tensor in catalogue.tensors.values():
        for piece in tensor.pieces:
            if piece.checksum is None and piece.offset >= 0 and catalogue.damage is None:
                continue  # what a library reads is checked by the library
            number += 1
            if number % count != process:
                continue
            try:
                wrong = _damage(catalogue, tensor, piece, told)
            except CheckpointError as error:
                wrong = f"it cannot be read: {error}"
            if wrong is not None:
                yield Damage(os.path.join(home, piece.file), wrong, tensor.name, piece.box)


def _damage(
    catalogue: Catalogue, tensor: Stored, piece: Piece, told: Callable[[int], None] | None
) -> str | None:
    """Return what is wrong with a piece; None if nothing is."""
    if piece.checksum is None and catalogue.damage is not None:
        wrong = catalogue.damage(tensor, piece)
        if told is not None:
            told(piece.box.volume * tensor.dtype.itemsize)
        return wrong
    found = piece_sum(catalogue, tensor, piece)
    if piece.checksum in (None, found):
        return None
    return f"its checksum is {found:016x}, expected {piece.checksum:016x}."


@final
class _Counting:
    """A reader that tells how many bytes it has read."""

    def __init__(self, reader: Reader, told: Callable[[int], None]) -> None:
        self._reader, self._told = reader, told

    def read(self, tensor: Stored, piece: Piece, box: Box, out: Block) -> None:
        """Fill an array, as the reader does."""
        self._reader.read(tensor, piece, box, out)
        self._told(out.nbytes)

    def close(self) -> None:
        """Close the files."""
        self._reader.close()


def piece_sum(catalogue: Catalogue, tensor: Stored, piece: Piece) -> int:
    """Return the checksum of a piece's bytes as they are in the file now.

    Raises:
        CheckpointError: if they cannot be read.
    """
    sum_ = xxhash.xxh3_64()
    most = 4 * READ_BUFFER
    plain = replace(piece, checksum=None)  # it is compared here
    for part in contiguous_boxes(piece.box.shape, tensor.dtype.itemsize, most):
        starts = [a + o for a, o in zip(part.starts, piece.box.starts, strict=True)]
        stops = [b + o for b, o in zip(part.stops, piece.box.starts, strict=True)]
        block = np.empty(part.shape, tensor.dtype)
        catalogue.reader.read(tensor, plain, Box(tuple(starts), tuple(stops)), block)
        sum_.update(block.reshape(-1).view(np.uint8).data)
    return sum_.intdigest()
