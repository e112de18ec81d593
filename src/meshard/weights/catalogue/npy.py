"""`.npy`: one array in a file of NumPy's own format, as a source and as a target.

In: a path. Out: a catalogue of one tensor, named as the file is without its suffix, or a writer of
one. Nothing is unpickled.
"""

from __future__ import annotations

import ast
import io
import math
import os
from typing import Any

import numpy as np

from meshard.algebra.box import Box
from meshard.errors import CheckpointError, CorruptFileError, DtypeError
from meshard.runtime.moving.place import checked_dtype
from meshard.runtime.types import dtype_name
from meshard.weights.catalogue.raw_writer import Contents, NewFile, RawWriter
from meshard.weights.catalogue.safetensors_writer import ShapeDtype, WriteOptions
from meshard.weights.catalogue.stored import (
    Catalogue,
    Foreign,
    OpenFile,
    Piece,
    RawReader,
    Stored,
    contiguous_boxes,
)

_MAGIC = b"\x93NUMPY"
_MOST_HEADER = 10_000
"""Characters of a header that are evaluated, as in NumPy."""


def open_npy(path: str) -> Catalogue:
    """Return the array of a `.npy` file.

    Raises:
        MissingFileError: if it does not exist.
        CorruptFileError: if it is cut off or damaged, or is not a `.npy` file.
        CheckpointError: if its elements are not numbers.
    """
    file = OpenFile(path)
    start, descr, fortran, shape = _read_header(file)
    folder, base = os.path.split(path)
    name = base.removesuffix(".npy")
    try:
        dtype = np.lib.format.descr_to_dtype(descr)
        native = checked_dtype(dtype, f"{path}: tensor {name!r}")
    except DtypeError as error:
        raise CheckpointError(f"{error} Nothing is unpickled.") from error
    except (ValueError, TypeError, KeyError, IndexError, SyntaxError) as error:
        raise CorruptFileError(f"{path}: its dtype {descr!r:.60} cannot be read.") from error
    end = start + math.prod(shape) * native.itemsize
    if file.size != end:
        raise CorruptFileError(
            f"{path}: an array of shape {shape} and dtype {dtype} ends at byte {end:,}, but the "
            f"file has {file.size:,} bytes; it was {'cut off' if file.size < end else 'changed'}."
        )
    fortran = fortran and len(shape) > 1
    foreign = Foreign(not dtype.isnative, start if fortran else None)
    pieces = () if 0 in shape else (Piece(Box.whole(shape), base, -1 if fortran else start),)
    stored = Stored(name, shape, native, pieces)
    reader = RawReader(folder, {name: foreign})
    return Catalogue(path, "npy", {name: stored}, reader, unchecked=(base,))


def npy_file(path: str, tensor: ShapeDtype, options: WriteOptions | None = None) -> RawWriter:
    """Return a writer of a `.npy` file; its tensor has the file's name without the suffix.

    Args:
        path: the file.
        tensor: the array's shape and dtype.
        options: how it is written; the format holds neither metadata nor checksums.

    Raises:
        CheckpointError: if the format cannot hold the dtype.
    """
    given = options or WriteOptions()
    folder, base = os.path.split(path)
    name = base.removesuffix(".npy")
    dtype, shape = tensor.dtype, tuple(tensor.shape)
    if dtype.kind not in "biufc" or np.dtype(dtype.str) != dtype:
        raise CheckpointError(
            f"{path}: the .npy format cannot hold {dtype_name(dtype)}: it has no name for it. "
            "Convert it with dtype=, or write a safetensors file."
        )
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": dtype.str, "fortran_order": False, "shape": shape}
    )
    start = len(head.getvalue())
    pieces, at = [], start
    for box in contiguous_boxes(shape, dtype.itemsize, given.piece_bytes):
        pieces.append(Piece(box, base, at))
        at += box.volume * dtype.itemsize
    stored = Stored(name, shape, dtype, tuple(pieces))
    contents = Contents([NewFile(base, at, head.getvalue())], {name: stored}, {}, {})
    return RawWriter(folder, contents, overwrite=given.overwrite)


def _read_header(file: OpenFile) -> tuple[int, Any, bool, tuple[int, ...]]:
    """Return where the data begins, the dtype's description, whether it is transposed, the shape.

    Raises:
        CorruptFileError: if it cannot be read.
    """
    doing = "it is not a .npy file"
    first = file.bytes_at(0, min(12, file.size), doing)
    if first[:6] != _MAGIC or len(first) < 12 or first[6] not in (1, 2, 3):
        raise CorruptFileError(
            f"{file.path}: {doing} of version 1, 2 or 3: it begins with {first[:8]!r} and has "
            f"{file.size:,} bytes."
        )
    begin, width = (10, 2) if first[6] == 1 else (12, 4)
    length = int.from_bytes(first[8 : 8 + width], "little")
    if length > _MOST_HEADER:
        raise CorruptFileError(
            f"{file.path}: its header should be {length:,} bytes long, and {_MOST_HEADER:,} are "
            "allowed; it is damaged, or it holds records, which arrays cannot be."
        )
    text = file.bytes_at(begin, length, "its header was cut off")
    try:
        given = ast.literal_eval(text.decode("utf-8" if first[6] == 3 else "latin-1"))
        match given:
            case {"descr": descr, "fortran_order": bool(fortran), "shape": (*sizes,), **rest} if (
                not rest and isinstance(given["shape"], tuple)
            ):
                if all(type(n) is int and 0 <= n < 1 << 63 for n in sizes) and len(sizes) <= 64:
                    return begin + length, descr, fortran, tuple(sizes)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise CorruptFileError(f"{file.path}: its header cannot be read ({error}).") from error
    raise CorruptFileError(
        f"{file.path}: its header must say descr, fortran_order and shape, got {text[:80]!r}."
    )
