"""Rows of a safetensors file, and errors that name the file and the tensor at fault.

The safetensors library reads the file. Its refusals are short, so `_explain` reads the header again
to say which tensor is cut off, and where.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from meshard.cli.errors import CommandError

Shape = tuple[int, ...]
Index = tuple[slice, ...]

# The names in safetensors of the dtypes that NumPy has.
_NUMPY_NAMES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}


class WeightsError(CommandError, ValueError):
    """The weights file cannot be used; the message names the file and, if known, the tensor."""


@final
class Weights:
    """The expected tensors of one safetensors file, checked when it is opened, read row by row.

    Args:
        path: The file.
        expected: The shape and the dtype of every tensor that the model needs, by name. Other
            tensors of the file are ignored.
        optional: Names in `expected` that the file may lack.

    Raises:
        WeightsError: The file is missing, truncated or unreadable, or a tensor is missing or has
            another shape or dtype.
    """

    def __init__(
        self,
        path: Path,
        expected: Mapping[str, tuple[Shape, str]],
        *,
        optional: frozenset[str] = frozenset(),
    ) -> None:
        self.path = path
        try:
            # The handle has no type stubs; everything that leaves this class is typed again.
            self._file: Any = safe_open(path, framework="numpy")
        except FileNotFoundError:
            raise WeightsError(f"{path}: there is no such file") from None
        except SafetensorError as error:
            raise WeightsError(f"{path}: {_explain(path) or error}") from error
        except OSError as error:
            raise WeightsError(f"{path}: the file cannot be read ({error})") from error
        try:
            self.tensors = self._check(expected, optional)
        except WeightsError:
            self.close()
            raise

    def _check(
        self, expected: Mapping[str, tuple[Shape, str]], optional: frozenset[str]
    ) -> dict[str, tuple[Shape, str]]:
        present = set(self._file.keys())
        missing = [name for name in expected if name not in present | optional]
        if missing:
            others = f", and {len(missing) - 1} more tensors" if len(missing) > 1 else ""
            raise WeightsError(
                f"{self.path}: tensor {missing[0]!r} is missing{others}; "
                f"the file holds {len(present)} tensors and the model needs "
                f"{len(expected) - len(optional)}"
            )
        tensors = {}
        for name, (shape, dtype) in expected.items():
            if name not in present:
                continue
            found = self._file.get_slice(name)
            found_shape = tuple(found.get_shape())
            found_dtype = _NUMPY_NAMES.get(found.get_dtype(), found.get_dtype())
            if found_shape != shape:
                raise WeightsError(
                    f"{self.path}: tensor {name!r} has shape {found_shape}, "
                    f"but the model needs {shape}"
                )
            if found_dtype != dtype:
                raise WeightsError(
                    f"{self.path}: tensor {name!r} holds {found_dtype}, but the model needs {dtype}"
                )
            tensors[name] = (shape, dtype)
        return tensors

    @property
    def nbytes(self) -> int:
        """The size of all expected tensors that the file has, in bytes."""
        return sum(
            math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in self.tensors.values()
        )

    def read(self, name: str, index: Index = ()) -> npt.NDArray[Any]:
        """Read the part of a tensor that `index` covers, and nothing else.

        Args:
            name: The tensor.
            index: One slice per dim, with step 1; dims that are left out are read whole.

        Raises:
            WeightsError: The part cannot be read, or holds NaN or infinity.
        """
        shape, dtype = self.tensors[name]
        whole = (*index, *(slice(None),) * (len(shape) - len(index)))
        bounds = [part.indices(size)[:2] for part, size in zip(whole, shape, strict=True)]
        lengths = tuple(max(stop - start, 0) for start, stop in bounds)
        if 0 in lengths:  # safetensors refuses a slice that starts at the end of a dim
            return np.empty(lengths, dtype)
        try:
            part = self._file.get_slice(name)[tuple(slice(*bound) for bound in bounds)]
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{self.path}: tensor {name!r} cannot be read ({error})") from error
        block: npt.NDArray[Any] = np.asarray(part)
        if block.dtype.kind == "f" and not np.isfinite(block).all():
            rows = "{}:{}".format(*bounds[0]) if bounds else ""
            raise WeightsError(
                f"{self.path}: tensor {name!r} holds NaN or infinity in rows {rows}; "
                "the file is corrupt"
            )
        return block

    def close(self) -> None:
        """Let go of the file."""
        self._file.__exit__(None, None, None)

    def __enter__(self) -> Self:
        """Return the weights themselves."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Let go of the file."""
        self.close()


def _explain(path: Path) -> str | None:
    """Return what is wrong with a file that safetensors refused; None if nothing is found.

    A safetensors file is 8 bytes with the header's length, the header (JSON: for each tensor its
    dtype, shape and begin and end in the data), and the data.
    """
    size = path.stat().st_size
    if size < 8:
        return f"not a safetensors file: it has {size} bytes, and the header's length alone takes 8"
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > size - 8:
            return (
                f"the header is unreadable: it should be {length:,} bytes long, but only "
                f"{size - 8:,} bytes follow; the file is truncated or not a safetensors file"
            )
        text = file.read(length)
    try:
        header = json.loads(text)
    except ValueError as error:  # bad UTF-8 or bad JSON
        return f"the header is unreadable ({error}); the file is corrupt"
    if not isinstance(header, dict):
        return "the header is unreadable (it is not a JSON object); the file is corrupt"
    data = size - 8 - length
    ends: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        span = _span(entry)
        if span is None:
            return f"tensor {name!r} has a corrupt header entry: {json.dumps(entry)}"
        ends.append((*span, name))
    cut = sorted(entry for entry in ends if entry[1] > data)
    if cut:
        begin, end, name = cut[0]
        others = f", and {len(cut) - 1} of {len(ends)} tensors after it" if len(cut) > 1 else ""
        return (
            f"the file is truncated: tensor {name!r} takes bytes {begin:,} to {end:,} of the data, "
            f"but the data ends at {data:,}{others}"
        )
    last = max((end for _, end, _ in ends), default=0)
    if last < data:
        return f"{data - last:,} bytes follow the last tensor; the file is corrupt"
    return None


def _span(entry: object) -> tuple[int, int] | None:
    """Return a tensor's place by its header entry; None if the entry contradicts itself."""
    match entry:
        case {"dtype": str(dtype), "shape": [*sizes], "data_offsets": [int(begin), int(end)]} if (
            0 <= begin <= end and all(isinstance(size, int) and size >= 0 for size in sizes)
        ):
            known = _NUMPY_NAMES.get(dtype)
            if known is None or end - begin == np.dtype(known).itemsize * math.prod(sizes):
                return begin, end
    return None
