"""Values in JSON: writing objects, reading and checking values, and packing device ids.

Device ids are a list, or ``{"runs": [[first id, count], ...]}`` of consecutive ids, or
``{"zlib": ...}``: little-endian 64-bit ids, packed by zlib, in base64.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")

_LISTED = 64
"""Devices that are written as a plain list."""
MOST_DEVICES = 1 << 20
"""Devices of one text at most: a short text can stand for more than fit into memory."""


def fields(value: object, *names: str) -> dict[str, object]:
    """Return attributes of a value as JSON values.

    Tuples become lists, and keys become text, in the ascending order of the original keys.

    >>> from meshard.algebra.box import Box
    >>> fields(Box((0, 2), (4, 6)), "starts", "shape")
    {'starts': [0, 2], 'shape': [4, 4]}
    """
    return {name: _plain(getattr(value, name)) for name in names}


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {str(key): _plain(value[key]) for key in sorted(value)}
    return value


def _reader(kind: type[T], what: str) -> Callable[[object], T]:
    def read(given: object) -> T:
        if not isinstance(given, kind) or isinstance(given, bool):
            raise TypeError(f"expected {what}, got {given!r}")
        return given

    return read


# Each returns its argument, or refuses one of another type.
as_list: Callable[[object], Sequence[object]] = _reader(list, "a list")
as_mapping: Callable[[object], Mapping[str, object]] = _reader(dict, "an object")
as_text = _reader(str, "a text")
as_number = _reader(int, "an integer")


def as_numbers(given: object) -> tuple[int, ...]:
    """Return the integers of a list; refuse anything else."""
    return tuple([as_number(n) for n in as_list(given)])


def optional(given: object, read: Callable[[object], T]) -> T | None:
    """Return None as it is, and read any other value."""
    return None if given is None else read(given)


def ids_form(ids: NDArray[np.int64]) -> object:
    """Return the JSON of device ids."""
    if len(ids) <= _LISTED:
        return ids.tolist()
    starts = np.flatnonzero(np.concatenate([[True], np.diff(ids) != 1]))
    if len(starts) <= len(ids) // 4:
        counts = np.diff([*starts.tolist(), len(ids)])
        return {"runs": np.stack([ids[starts], counts], axis=1).tolist()}
    packed = zlib.compress(ids.astype("<i8").tobytes())
    return {"zlib": base64.b64encode(packed).decode("ascii")}


def read_ids(form: object, count: int) -> NDArray[np.int64]:
    """Return device ids, of which there should be ``count``; at most one more is read.

    Raises:
        ValueError, TypeError, KeyError: if they are malformed.
    """
    if isinstance(form, list):
        return np.array(as_numbers(form), np.int64)
    if count > MOST_DEVICES:
        raise ValueError(f"it has {count:,} devices; at most {MOST_DEVICES:,} can be read")
    given = as_mapping(form)
    if "runs" in given:
        runs = [as_numbers(run) for run in as_list(given["runs"])]
        if sum(n for _, n in runs) != count or min(n for _, n in runs) < 0:
            raise ValueError(f"it does not list {count:,} devices")
        return np.concatenate([np.arange(first, first + n) for first, n in runs])
    try:
        packed = base64.b64decode(as_text(given["zlib"]), validate=True)
        raw = zlib.decompressobj().decompress(packed, 8 * count + 1)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"its devices cannot be unpacked: {error}") from error
    return np.frombuffer(raw, "<i8").astype(np.int64)
