"""A catalogue: tensors in files, as boxes at byte ranges, and how to read and write them.

In: what a format says about its files. Out: values that the transfers plan with.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, final

import numpy as np

from meshard.algebra.box import Box
from meshard.runtime.types import Block


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
