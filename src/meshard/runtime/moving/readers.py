"""Readers: how the arrays of other libraries become NumPy arrays where NumPy's way falls short.

A library is known by the name of its package. A reader is installed by the module that knows the
library, or is an entry point of the group ``meshard.readers`` of that name, of this package or of
others, and is loaded when the first value of the library comes.

Arrays in files as values to place: memory maps, and data sets of libraries such as h5py or zarr.

In: a value, asked what it is without importing a library. Out: its shape, dtype and file, and its
elements box by box, so that a process reads what its own devices hold and nothing else.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, final, runtime_checkable

import numpy as np

from meshard.algebra.box import Box
from meshard.errors import StorageError
from meshard.runtime.types import Block
from meshard.tuning import COPY_CHUNK

Reader = Callable[[Any, str], Block]
"""Makes an array of a value, if possible a view, for the function whose name it is told."""

_INSTALLED: dict[str, Reader] = {}
_KNOWN: dict[type[Any], Reader | None] = {}


def install_reader(package: str, reader: Reader) -> None:
    """Say how values of a package's types are read."""
    _INSTALLED[package] = reader
    _KNOWN.clear()


def reader_of(kind: type[Any]) -> Reader | None:
    """Return how values of a type are read; None if NumPy converts them.

    >>> reader_of(list) is None
    True
    """
    try:
        return _KNOWN[kind]
    except KeyError:
        packages = {base.__module__.partition(".")[0] for base in kind.__mro__}
        _KNOWN[kind] = found = _found(packages - {"builtins", "numpy", "meshard"})
        return found


def _found(packages: set[str]) -> Reader | None:
    for package in packages & _INSTALLED.keys():
        return _INSTALLED[package]
    if not packages:
        return None
    from importlib.metadata import entry_points  # slow to import

    for entry in entry_points(group="meshard.readers"):
        if entry.name in packages:
            reader: Reader = entry.load()
            return reader
    return None


@final
@dataclass(frozen=True, slots=True)
class FileSource:
    """An array in a file.

    Attributes:
        shape: its shape.
        dtype: its dtype, in the byte order of the file.
        place: the file and where in it, the same on every process that opened the same array.
        data: what is indexed by slices.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    place: str
    data: Any

    def read(self, box: Box, out: Block) -> None:
        """Fill an array with the elements of a box.

        Raises:
            StorageError: if they cannot be read.
        """
        try:
            self._read(box, out)
        except (OSError, RuntimeError, ValueError) as error:
            raise StorageError(
                f"{self.place}: box {box} of an array of shape {self.shape} cannot be read: "
                f"{error}. The file is damaged, or it was closed."
            ) from error

    def _read(self, box: Box, out: Block) -> None:
        """Read some rows at a time; they end where chunks do, so that none is read twice."""
        if not out.size:
            return
        if not box.starts:
            out[...] = self.data[()]
            return
        chunks = getattr(self.data, "shards", None) or getattr(self.data, "chunks", None) or (1,)
        step = max(1, COPY_CHUNK // (out.nbytes // out.shape[0]) // chunks[0]) * chunks[0]
        first, last = box.starts[0], box.stops[0]
        while first < last:
            end = min(first - first % step + step, last)
            rows = (slice(first, end), *box.slices[1:])
            out[first - box.starts[0] : end - box.starts[0]] = self.data[rows]
            first = end


@runtime_checkable
class _Named(Protocol):
    """An open file of h5py."""

    filename: str


@runtime_checkable
class _InFile(Protocol):
    """A data set of h5py."""

    file: object
    name: str


@runtime_checkable
class _InStore(Protocol):
    """An array of zarr."""

    store_path: object


def file_source(x: object) -> FileSource | None:
    """Return what is known of an array in a file; None for any other value.

    A memory map whose changes are private to the process is not the file's, and neither is an
    array that is stored in memory.
    """
    if isinstance(x, np.memmap):
        return _mapped(x)
    if isinstance(x, (np.ndarray, np.generic)) or not hasattr(x, "__getitem__"):
        return None
    shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
    if not isinstance(shape, tuple) or not isinstance(dtype, np.dtype):
        return None
    if isinstance(x, _InFile) and isinstance(x.file, _Named):
        return FileSource(shape, dtype, f"{os.path.realpath(x.file.filename)}:{x.name}", x)
    if isinstance(x, _InStore) and not str(x.store_path).startswith("memory:"):
        return FileSource(shape, dtype, str(x.store_path), x)
    return None


def _mapped(x: np.memmap[Any, Any]) -> FileSource | None:
    pages = getattr(x, "_mmap", None)  # None for a copy
    if pages is None or x.filename is None or x.mode == "c":
        return None
    start = x.offset - x.offset % mmap.ALLOCATIONGRANULARITY
    start += x.ctypes.data - np.frombuffer(pages, np.uint8).ctypes.data
    place = f"{os.path.realpath(x.filename)} from byte {start}"
    if not x.flags.c_contiguous:
        place += f" in steps of {x.strides}"
    return FileSource(x.shape, x.dtype, place, x.view(np.ndarray))
