"""The archive in which torch saves one tensor: a zip with a pickle of its form and its bytes.

In: bytes of a file. Out: where the elements are and in which order, without unpickling what could
run; and the bytes around the elements of an archive that torch loads.

The dtypes of torch: their names, and the classes of storages that its files name.

In: a NumPy dtype. Out: torch's name of it, and the other way round.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import ml_dtypes
import numpy as np

from meshard.errors import CheckpointError, CorruptFileError
from meshard.weights.catalogue.stored import OpenFile
from meshard.weights.dcp.pickled import RECORD, Name, Pickle, Record, unpickled

_PLAIN = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_SMALL = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")

DTYPES: dict[str, np.dtype[Any]] = {
    **{name: np.dtype(name) for name in _PLAIN},
    **{name: np.dtype(getattr(ml_dtypes, name)) for name in (*_SMALL, "float8_e8m0fnu")},
}
"""NumPy's dtype of each of torch's that NumPy has, by torch's name."""

NAMES = {dtype: name for name, dtype in DTYPES.items()}
"""Torch's name of each dtype that it has."""

WITHOUT = ("complex32", "qint8", "quint8", "qint32", "quint4x2", "quint2x4", "float4_e2m1fn_x2")
"""Names of dtypes that NumPy does not have."""

STORAGES = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}
"""The dtype of the elements in each class of storages; others are named as untyped ones."""


_ALIGNMENT = 64
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_END = struct.Struct("<4sHHHHIIH")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR = struct.Struct("<4sIQI")
_ENDS = _END64.size + _LOCATOR.size + _END.size
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_AT_ONCE = 2048
"""Bytes of an archive's end that are read at first; torch's own have a directory of 700."""
_MOST_PICKLE = 1 << 16

_V2, _V3 = ("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_tensor_v3")
_PARAMETER = ("torch._utils", "_rebuild_parameter")
_KNOWN: dict[Name, Any] = {
    **dict.fromkeys((_V2, _V3, _PARAMETER), RECORD),
    ("collections", "OrderedDict"): dict,
    ("torch", "Size"): tuple,
    ("torch.storage", "UntypedStorage"): "untyped",
    **{("torch", name): dtype for name, dtype in STORAGES.items()},
    **{("torch", name): name for name in (*DTYPES, *WITHOUT)},
}


@final
@dataclass(frozen=True, slots=True)
class Member:
    """One file of a zip: where its bytes are, and what they should be.

    Attributes:
        header: the byte of the file at which its header begins.
        size: its bytes.
        crc: their CRC-32; 0 where the writer has not computed it.
        stored: whether they are there as they are.
    """

    header: int
    size: int
    crc: int
    stored: bool


@final
@dataclass(frozen=True, slots=True)
class Elements:
    """Where the elements of a tensor are.

    Attributes:
        offset: the byte of the file at which the first one is.
        shape: the tensor's shape.
        order: its dims from the slowest to the fastest one.
        dtype: torch's name of its dtype.
        swapped: whether the bytes of each number are in the other order than this machine's.
        crc: the CRC-32 of the bytes; None where it is not known.
    """

    offset: int
    shape: tuple[int, ...]
    order: tuple[int, ...]
    dtype: str
    swapped: bool
    crc: int | None


@final
class Window:
    """An archive in a file, which may hold many.

    Args:
        file: the file.
        offset: the byte at which it begins.
        length: its bytes.
    """

    def __init__(self, file: OpenFile, offset: int, length: int) -> None:
        self.path, self._file, self._offset, self._length = file.path, file, offset, length
        self._start = self._bytes(0, min(length, _AT_ONCE))

    def elements(self) -> Elements:
        """Return where the elements of its tensor are.

        Raises:
            CorruptFileError: if it is damaged.
            CheckpointError: if it is not an archive of one dense tensor.
        """
        members = self.members()
        by_name = {name.partition("/")[2]: member for name, member in members.items()}
        if "data.pkl" not in by_name:
            raise CorruptFileError(
                self._told("it has no data.pkl: it is not an archive of torch's")
            )
        form = by_name["data.pkl"]
        if form.size > _MOST_PICKLE:
            raise CheckpointError(self._told(f"its data.pkl has {form.size:,} bytes"))
        pickle = self._bytes(self._place(form), form.size)
        if zlib.crc32(pickle) != form.crc and form.crc:
            raise CorruptFileError(self._told("its data.pkl does not have its checksum"))
        key, elements = _form(unpickled(pickle, _KNOWN, self._where()), self._told)
        data = by_name.get(f"data/{key}")
        if data is None:
            raise CorruptFileError(self._told(f"it has no data/{key}, which its data.pkl names"))
        return self._located(elements, data, by_name.get("byteorder"))

    def _located(self, found: Elements, data: Member, order: Member | None) -> Elements:
        """Return elements whose offsets were relative to their data."""
        size = math.prod(found.shape) * DTYPES[found.dtype].itemsize
        if found.offset + size > data.size:
            raise CorruptFileError(
                self._told(f"it has {data.size:,} bytes of data, and its tensor needs {size:,}")
            )
        told = b"little"
        if order is not None:
            told = self._bytes(self._place(order), min(order.size, 8)).strip()
        if told not in (b"little", b"big"):
            raise CorruptFileError(self._told(f"its byte order is {told!r}"))
        start = self._offset + (self._place(data) if size else 0) + found.offset
        whole = found.offset == 0 and size == data.size
        native = b"little" if np.little_endian else b"big"
        crc = data.crc if whole and data.crc else None
        return Elements(start, found.shape, found.order, found.dtype, told != native, crc)

    def members(self) -> dict[str, Member]:
        """Return its files by name, as its directory at the end says.

        Raises:
            CorruptFileError: if there is no directory, or it does not fit the archive.
        """
        tail = self._tail(_AT_ONCE)
        if len(tail) < _END.size or tail[-_END.size :][:4] != b"PK\5\6":
            why = "it was cut off" if self._start[:4] == b"PK\3\4" else "it is not a zip archive"
            raise CorruptFileError(self._told(f"it has no directory at its end: {why}"))
        *_, count, size, start, _ = _END.unpack(tail[-_END.size :])
        ends = tail[-_ENDS:]
        if ends[:4] == b"PK\6\6" and ends[_END64.size :][:4] == b"PK\6\7":
            *_, count, size, start = _END64.unpack(ends[: _END64.size])
        if start + size > self._length:
            raise CorruptFileError(self._told("its directory is outside of it"))
        table = self._bytes(start, size)
        found, at = {}, 0
        for _ in range(count):
            name, member, at = self._entry(table, at)
            found[name] = member
        return found

    def _entry(self, table: bytes, at: int) -> tuple[str, Member, int]:
        """Return the entry at a place of the directory, and where the next one is."""
        if at + _CENTRAL.size > len(table) or table[at : at + 4] != b"PK\1\2":
            raise CorruptFileError(self._told("its directory is damaged"))
        fields = _CENTRAL.unpack_from(table, at)
        flags, method, crc, packed, size = fields[3], fields[4], *fields[7:10]
        name_size, extra_size, comment_size = fields[10:13]
        header = fields[16]
        begin = at + _CENTRAL.size
        name = table[begin : begin + name_size].decode("utf-8", "replace")
        extra = table[begin + name_size : begin + name_size + extra_size]
        if _FULL32 in (packed, size, header):
            given = _zip64(extra)
            size, packed, header = (
                next(given, n) if n == _FULL32 else n for n in (size, packed, header)
            )
        stored = method == 0 and packed == size and not flags & 1
        if header + _LOCAL.size + size > self._length:
            raise CorruptFileError(self._told(f"its {name!r:.80} is outside of it"))
        return (
            name,
            Member(header, size, crc, stored),
            begin + name_size + extra_size + comment_size,
        )

    def _place(self, member: Member) -> int:
        """Return where in the archive the bytes of a member begin."""
        if not member.stored:
            raise CheckpointError(self._told("it is compressed"))
        head = self._bytes(member.header, _LOCAL.size)
        if head[:4] != b"PK\3\4":
            raise CorruptFileError(self._told(f"there is no member at byte {member.header:,}"))
        *_, name_size, extra_size = _LOCAL.unpack(head)
        found: int = member.header + _LOCAL.size + name_size + extra_size
        if found + member.size > self._length:
            raise CorruptFileError(self._told("a member is outside of it"))
        return found

    def _tail(self, size: int) -> bytes:
        size = min(size, self._length)
        return self._bytes(self._length - size, size)

    def _bytes(self, start: int, size: int) -> bytes:
        """Return bytes of the archive; those at its start were read already."""
        if hasattr(self, "_start") and start + size <= len(self._start):
            return self._start[start : start + size]
        if start + size > self._length:
            raise CorruptFileError(self._told("it was cut off"))
        return self._file.bytes_at(self._offset + start, size, "an archive cannot be read")

    def _where(self) -> str:
        return f"{self.path}: the archive of {self._length:,} bytes at byte {self._offset:,}"

    def _told(self, reason: str) -> str:
        return f"{self._where()} cannot be read: {reason}."


def _zip64(extra: bytes) -> Any:
    """Yield the long numbers in the extra field of an entry."""
    at = 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            for place in range(at + 4, min(at + 4 + size, len(extra)) - 7, 8):
                yield struct.unpack_from("<Q", extra, place)[0]
        at += 4 + size


def _form(made: Any, told: Any) -> tuple[str, Elements]:
    """Return which data a tensor has, and how its elements are in it."""
    if isinstance(made, Record) and made.kind == _PARAMETER[1] and made.args:
        made = made.args[0]
    match made:
        case Record(
            args=(("storage", str(kind), str(key), _, int()), int(first), sizes, strides, _, *rest)
        ):
            names = {_V2[1]: kind, _V3[1]: rest[1] if len(rest) > 1 else None}
            dtype = names.get(made.kind)
        case _:
            raise CheckpointError(told("it does not hold one dense tensor"))
    if dtype not in DTYPES:
        raise CheckpointError(
            told(f"its tensor has dtype {dtype!r:.40}, which NumPy does not have")
        )
    if not (_are_sizes(sizes) and _are_sizes(strides) and len(sizes) == len(strides)) or first < 0:
        raise CorruptFileError(told("its tensor's shape is damaged"))
    order = _order(sizes, strides)
    if order is None:
        raise CheckpointError(
            told(
                f"its tensor of shape {sizes} has strides {strides}, between which there are gaps "
                "or overlaps. Save a copy: tensor.contiguous()"
            )
        )
    return key, Elements(first * DTYPES[dtype].itemsize, sizes, order, dtype, False, None)


def _are_sizes(given: Any) -> bool:
    return isinstance(given, tuple) and all(type(n) is int and 0 <= n < 1 << 63 for n in given)


def _order(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """Return dims from the slowest to the fastest; None where elements do not fill their memory."""
    if 0 in sizes:
        return tuple(range(len(sizes)))
    dims = sorted(range(len(sizes)), key=lambda d: (-strides[d], d) if sizes[d] > 1 else (0, d))
    expected = 1
    for d in reversed(dims):
        if sizes[d] > 1:
            if strides[d] != expected:
                return None
            expected *= sizes[d]
    long = [d for d in dims if sizes[d] > 1]
    return tuple(range(len(sizes))) if long == sorted(long) else tuple(dims)


@final
@dataclass(frozen=True)
class Frame:
    """What stands around the elements of a tensor in its archive.

    Attributes:
        head: the bytes before them.
        size: the bytes of the elements.
        tail: the bytes behind them.
        sums: where the CRC-32 of the elements stands, from the beginning of the archive on.
    """

    head: bytes
    size: int
    tail: bytes
    sums: tuple[int, int]

    @property
    def length(self) -> int:
        """The bytes of the archive."""
        return len(self.head) + self.size + len(self.tail)


def frame(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Frame:
    """Return the archive of a tensor in C order, as torch loads it; a multiple of 64 bytes."""
    size = math.prod(shape) * dtype.itemsize
    order = b"little" if np.little_endian else b"big"
    small = {"data.pkl": _pickle(shape, dtype), "byteorder": order, "version": b"3\n"}
    head, table = b"", b""
    for name, data in small.items():
        entry = _Entry(f"archive/{name}", len(data), zlib.crc32(data), len(head))
        head += entry.local() + data
        table += entry.central()
    entry = _Entry("archive/data/0", size, 0, len(head))
    place = len(head)
    head += entry.local()
    at = len(head) + size
    bare = len(head) + size + len(table) + len(entry.central()) + _ENDS
    last = entry.central(-bare % _ALIGNMENT)
    sums = place + 14, at + len(table) + 16
    table += last
    count = len(small) + 1
    ends = _END64.pack(
        b"PK\6\6", _END64.size - 12, 45, 45, 0, 0, count, count, len(table), at
    ) + _LOCATOR.pack(b"PK\6\7", 0, at + len(table), 1)
    start = min(at, _FULL32)
    ends += _END.pack(b"PK\5\6", 0, 0, count, count, len(table), start, 0)
    return Frame(head, size, table + ends, sums)


@final
@dataclass(frozen=True)
class _Entry:
    """A member to be written, with what its two headers say."""

    name: str
    size: int
    crc: int
    header: int

    def local(self) -> bytes:
        """Return what stands before its bytes, which begin at a multiple of 64."""
        name = self.name.encode()
        extra = struct.pack("<HHQQ", 1, 16, self.size, self.size) if self._is_long else b""
        bare = self.header + _LOCAL.size + len(name) + len(extra)
        gap = -(bare + 4) % _ALIGNMENT
        extra += b"FB" + struct.pack("<H", gap) + b"Z" * gap
        sizes = [min(self.size, _FULL32)] * 2 if not self._is_long else [_FULL32] * 2
        version = 45 if self._is_long else 20
        head = _LOCAL.pack(
            b"PK\3\4", version, 0, 0, 0, 0x21, self.crc, *sizes, len(name), len(extra)
        )
        return head + name + extra

    def central(self, gap: int = 0) -> bytes:
        """Return its entry in the directory, which further bytes make longer."""
        name, long = self.name.encode(), self._is_long
        extra = struct.pack("<HHQQ", 1, 16, self.size, self.size) if long else b""
        if gap:
            more = gap - 4 if gap > 3 else gap - 4 + _ALIGNMENT
            extra += b"FB" + struct.pack("<H", more) + b"Z" * more
        sizes = [_FULL32 if long else self.size] * 2
        version = 45 if long else 20
        head = _CENTRAL.pack(
            *(b"PK\1\2", version, version, 0, 0, 0, 0x21, self.crc, *sizes),
            *(len(name), len(extra), 0, 0, 0, 0, self.header),
        )
        return head + name + extra

    @property
    def _is_long(self) -> bool:
        return self.size >= _FULL32


def _pickle(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Return what torch unpickles to make a tensor of its data."""
    out, name = Pickle(), NAMES[dtype]
    kinds: Mapping[str, str] = {dtype: kind for kind, dtype in STORAGES.items()}
    kind = kinds.get(name)
    count = math.prod(shape)
    out.name(*(_V2 if kind else _V3))
    out.op(b"((")
    out.add("storage")
    out.name(*(("torch", kind) if kind else ("torch.storage", "UntypedStorage")))
    out.add("0")
    out.add("cpu")
    out.add(count if kind else count * dtype.itemsize)
    out.op(b"tQ")
    out.add(0)
    out.add(shape)
    steps = [math.prod([max(n, 1) for n in shape[d + 1 :]]) for d in range(len(shape))]
    out.add(tuple(steps))
    out.add(False)  # whether it requires a gradient
    out.call("collections", "OrderedDict")
    if not kind:
        out.name("torch", name)
    out.op(b"tR")
    return out.done()


def combined(first: int, second: int, size: int) -> int:
    """Return the CRC-32 of two runs of bytes, one after the other.

    Args:
        first: the CRC-32 of the first run.
        second: that of the second.
        size: the bytes of the second.

    >>> combined(zlib.crc32(b"ab"), zlib.crc32(b"cde"), 3) == zlib.crc32(b"abcde")
    True
    """
    power, square = 1 << 31, 1 << 23  # 1, and x to the eighth: one byte
    while size:
        if size & 1:
            power = _times(square, power)
        square = _times(square, square)
        size >>= 1
    return _times(power, first) ^ second


def _times(a: int, b: int) -> int:
    """Return the product of two polynomials modulo that of CRC-32, lowest powers first."""
    found = 0
    for place in range(31, -1, -1):
        if a >> place & 1:
            found ^= b
        b = (b >> 1) ^ (0xEDB88320 if b & 1 else 0)
    return found
