"""Letters: what processes tell each other, as data that cannot do anything.

In: None, numbers, texts, bytes, containers of them, NumPy's arrays and dtypes, classes of errors,
and values of the classes that are marked as sent. Out: bytes; and from bytes the same values again.
Pickles are not used, since reading one runs whatever its writer wants. What arrives is read with
limits: what is made is in proportion to the bytes that have come, and whatever is malformed is one
kind of error.
"""

from __future__ import annotations

import builtins
import importlib
import math
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from struct import Struct
from typing import Any, TypeVar, final

import ml_dtypes
import numpy as np

from meshard import errors
from meshard.algebra.box import Box
from meshard.algebra.device import Device
from meshard.algebra.layout import Layout
from meshard.errors import ArgumentError, TransportError

_DEEPEST = 200
"""Containers within each other, at most."""
_MOST = (1 << 32) - 1
"""Bytes, or elements, of one value."""
_MOST_DIGITS = 1 << 12
"""Bytes of an integer."""
MOST_LETTER = 1 << 28
"""Bytes of a letter once it is decompressed."""
_COUNT, _INT, _FLOAT, _COMPLEX = Struct("<I"), Struct("<q"), Struct("<d"), Struct("<dd")
_NONE, _TRUE, _FALSE, _SHORT, _LONG, _REAL, _PAIR = b"N", b"T", b"F", b"i", b"I", b"f", b"c"
_TEXT, _BYTES, _TUPLE, _LIST, _DICT, _SET, _FIXED = b"s", b"b", b"t", b"l", b"d", b"e", b"z"
_ARRAY, _SCALAR, _DTYPE, _ERROR, _MADE, _AGAIN = b"a", b"n", b"y", b"x", b"m", b"r"
_PLAIN_DTYPE = re.compile(r"[<>|=](?:[biufcSUV]\d{1,9}|[mM]8(?:\[\d{0,9}[A-Za-z\u03bc]{1,3}\])?)")
_SMALL_DTYPES = {
    found.name: found
    for name in dir(ml_dtypes)
    if isinstance(kind := getattr(ml_dtypes, name), type) and issubclass(kind, np.generic)
    for found in [np.dtype(kind)]
}
_LATE = "meshard.resilience."
"""Where classes may be of which a letter arrives before their module was needed."""
Class = TypeVar("Class", bound=type)
_Apart = Callable[[Any], Iterable[Any]]
_sent: dict[type, tuple[str, _Apart]] = {}
_made: dict[str, Callable[..., Any]] = {}
_Put = Callable[[bytearray, Any, int, dict[int, tuple[int, Any]]], None]


def sent(cls: Class) -> Class:
    """Mark a frozen dataclass, or a NamedTuple, as one whose values letters may hold."""
    if is_dataclass(cls):
        names = [field.name for field in fields(cls) if field.init]
        _register(
            cls,
            lambda x: [getattr(x, name) for name in names],
            lambda *given: cls(**dict(zip(names, given, strict=True))),
        )
    else:
        _register(cls, tuple, cls)
    return cls


def sent_as(cls: type, apart: _Apart, make: Callable[..., Any]) -> None:
    """Let letters hold values of a class.

    Args:
        cls: the class.
        apart: returns what a value is made of.
        make: makes it again.
    """
    _register(cls, apart, make)


def _register(cls: type, apart: _Apart, make: Callable[..., Any]) -> None:
    name = f"{cls.__module__}:{cls.__qualname__}"
    _sent[cls], _made[name] = (name, apart), make


# writing


def encode(value: object) -> bytes:
    """Return a value as bytes.

    Raises:
        ArgumentError: if it is, or holds, something that is not data; it says what.
    """
    out = bytearray()
    try:
        _put(out, value, 0, {})
    except RecursionError as error:
        raise _too_deep() from error
    return bytes(out)


def _put(out: bytearray, value: Any, depth: int, known: dict[int, tuple[int, Any]]) -> None:
    kind = type(value)
    put = _PUT.get(kind)
    if put is not None:
        if depth > _DEEPEST:
            raise _too_deep()
        put(out, value, depth, known)
    elif kind in _sent:
        _put_made(out, value, depth, known)
    else:
        _put_other(out, value)


def _too_deep() -> ArgumentError:
    return ArgumentError(
        f"A value whose containers are nested more than {_DEEPEST} deep cannot be sent to another "
        "process."
    )


def _put_int(out: bytearray, value: int, *_: Any) -> None:
    if -(1 << 63) <= value < 1 << 63:
        out += _SHORT + _INT.pack(value)
        return
    digits = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    if len(digits) > _MOST_DIGITS:
        raise ArgumentError(
            f"An integer of {len(digits)} bytes cannot be sent to another process; at most "
            f"{_MOST_DIGITS} can."
        )
    _put_bytes(out, digits, _LONG)


def _put_bytes(out: bytearray, data: bytes | memoryview, mark: bytes) -> None:
    if len(data) > _MOST:
        raise ArgumentError(
            f"A value of {len(data)} bytes cannot be sent to another process; at most {_MOST}."
        )
    out += mark + _COUNT.pack(len(data))
    out += data


def _put_many(mark: bytes) -> _Put:
    def put(out: bytearray, value: Any, depth: int, known: dict[int, tuple[int, Any]]) -> None:
        out += mark + _COUNT.pack(len(value))
        for item in value:
            _put(out, item, depth + 1, known)

    return put


def _put_dict(
    out: bytearray, value: Mapping[Any, Any], depth: int, known: dict[int, tuple[int, Any]]
) -> None:
    out += _DICT + _COUNT.pack(len(value))
    for key, item in value.items():
        _put(out, key, depth + 1, known)
        _put(out, item, depth + 1, known)


def _put_made(out: bytearray, value: Any, depth: int, known: dict[int, tuple[int, Any]]) -> None:
    """Write a value of a class that is sent; one that comes again, such as a layout, only once."""
    seen = known.get(id(value))
    if seen is not None:
        out += _AGAIN + _COUNT.pack(seen[0])
        return
    if depth > _DEEPEST:
        raise _too_deep()
    name, apart = _sent[type(value)]
    _put_bytes(out, name.encode(), _MADE)
    _put(out, tuple(apart(value)), depth + 1, known)
    known[id(value)] = len(known), value  # kept, so that nobody else gets its id


def _put_other(out: bytearray, value: Any) -> None:
    if isinstance(value, np.ndarray) and type(value) is np.ndarray:
        _put_text(out, _dtype_name(value.dtype), _ARRAY)
        _put(out, value.shape, 0, {})
        _put_bytes(out, value.tobytes(), _BYTES)
    elif isinstance(value, np.generic):
        out += _SCALAR
        _put_other(out, np.asarray(value))
    elif isinstance(value, np.dtype):
        _put_text(out, _dtype_name(value), _DTYPE)
    elif isinstance(value, type) and issubclass(value, Exception):
        _put_text(out, _error_name(value), _ERROR)
    else:
        raise ArgumentError(
            f"A value of type {type(value).__name__} cannot be sent to another process. What can "
            "be: None, booleans, numbers, strings, bytes, NumPy arrays and dtypes, and tuples, "
            "lists, dicts and sets of these."
        )


def _put_text(out: bytearray, value: str, mark: bytes = _TEXT) -> None:
    _put_bytes(out, value.encode("utf-8", "surrogatepass"), mark)


def _dtype_name(dtype: np.dtype[Any]) -> str:
    if dtype.name in _SMALL_DTYPES and dtype == _SMALL_DTYPES[dtype.name]:
        return dtype.name
    if dtype.hasobject or not _PLAIN_DTYPE.fullmatch(dtype.str) or dtype.names is not None:
        raise ArgumentError(f"An array of dtype {dtype} cannot be sent to another process.")
    return dtype.str


def _error_name(kind: type[Exception]) -> str:
    """Return the name of an error, or of the first above it that is known to all."""
    return next(k.__name__ for k in kind.__mro__ if _error(k.__name__) is k)


def _error(name: str) -> type[Exception] | None:
    found = getattr(errors, name, None) or getattr(builtins, name, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None


_PUT: dict[type, _Put] = {
    type(None): lambda out, *_: out.extend(_NONE),
    bool: lambda out, value, *_: out.extend(_TRUE if value else _FALSE),
    int: _put_int,
    float: lambda out, value, *_: out.extend(_REAL + _FLOAT.pack(value)),
    complex: lambda out, value, *_: out.extend(_PAIR + _COMPLEX.pack(value.real, value.imag)),
    str: lambda out, value, *_: _put_text(out, value),
    bytes: lambda out, value, *_: _put_bytes(out, value, _BYTES),
    tuple: _put_many(_TUPLE),
    list: _put_many(_LIST),
    set: _put_many(_SET),
    frozenset: _put_many(_FIXED),
    dict: _put_dict,
}


# reading


def decode(data: bytes | memoryview) -> Any:
    """Return the value that bytes hold.

    Raises:
        TransportError: if they are malformed, in whatever way.
    """
    reader = _Letter(data)
    try:
        value = reader.value(0)
        if reader.at != len(data):
            raise ValueError(f"{len(data) - reader.at} bytes are left over")
    except Exception as error:
        raise TransportError(
            f"A letter of {len(data)} bytes is malformed at byte {reader.at}: "
            f"{type(error).__name__}: {error}. It is dropped; whoever has sent it is not a process "
            "of this version of meshard."
        ) from error
    return value


@final
class _Letter:
    """A letter that is read, and how far."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.at = 0
        self._data = bytes(data)
        self._known: list[Any] = []

    def value(self, depth: int) -> Any:
        """Read a value."""
        if depth > _DEEPEST:
            raise ValueError(f"containers are nested more than {_DEEPEST} deep")
        mark = self._data[self.at] if self.at < len(self._data) else -1
        read = _READ.get(mark)
        if read is None:
            raise ValueError("no value begins there")
        self.at += 1
        return read(self, depth)

    def _take(self, count: int) -> bytes:
        found = self._data[self.at : self.at + count]
        if len(found) < count:
            raise ValueError(f"{count} bytes were expected, and {len(found)} are left")
        self.at += count
        return found

    def number(self, form: Struct) -> Any:
        """Read a number of a fixed size."""
        (found,) = form.unpack_from(self._data, self.at)
        self.at += form.size
        return found

    def complex(self, depth: int) -> complex:
        """Read a complex number."""
        return complex(*_COMPLEX.unpack(self._take(_COMPLEX.size)))

    def bytes(self) -> bytes:
        """Read bytes with their length before them."""
        return self._take(self.number(_COUNT))

    def text(self) -> str:
        """Read a text."""
        return self.bytes().decode("utf-8", "surrogatepass")

    def long(self, depth: int) -> int:
        """Read a large integer."""
        digits = self.bytes()
        if len(digits) > _MOST_DIGITS:
            raise ValueError(f"an integer of {len(digits)} bytes")
        return int.from_bytes(digits, "little", signed=True)

    def many(self, depth: int, each: int = 1) -> list[Any]:
        """Read the elements of a container; there is at least a byte for each."""
        count = each * self.number(_COUNT)
        if count > len(self._data) - self.at:
            raise ValueError(f"{count} elements were announced, and fewer bytes are left")
        return [self.value(depth + 1) for _ in range(count)]

    def dict(self, depth: int) -> dict[Any, Any]:
        """Read a dict."""
        found = self.many(depth, 2)
        return dict(zip(found[::2], found[1::2], strict=True))

    def array(self, depth: int) -> Any:
        """Read an array."""
        dtype, shape, data = _dtype(self.text()), self.value(depth + 1), self.value(depth + 1)
        if type(shape) is not tuple or type(data) is not bytes or len(shape) > 64:
            raise ValueError("an array has no shape, or no bytes")
        shape = tuple(map(_size, shape))
        if math.prod(shape) * dtype.itemsize != len(data):
            raise ValueError(f"{dtype}{shape} has another size than {len(data)} bytes")
        return np.ndarray(shape, dtype, bytearray(data))

    def scalar(self, depth: int) -> Any:
        """Read a scalar of NumPy's."""
        found = self.value(depth + 1)
        if not isinstance(found, np.ndarray) or found.shape:
            raise ValueError("a scalar is not an array without dims")
        return found[()]

    def error(self, depth: int) -> type[Exception]:
        """Read a class of errors."""
        found = _error(name := self.text())
        if found is None:
            raise ValueError(f"{name!r} is not an error that is known here")
        return found

    def made(self, depth: int) -> Any:
        """Read a value of a class that is sent."""
        name = self.text()
        if name not in _made and re.fullmatch(r"[a-z_.]{1,200}:\w{1,100}", name):
            module = name.partition(":")[0]
            if module.startswith(_LATE) and module not in sys.modules:
                importlib.import_module(module)
        if name not in _made:
            raise ValueError(f"{name!r} is not a class of which values are sent")
        given = self.value(depth + 1)
        if type(given) is not tuple:
            raise ValueError(f"a {name!r} is not made of a tuple")
        self._known.append(found := _made[name](*given))
        return found

    def again(self, depth: int) -> Any:
        """Return a value that was read before."""
        number: int = self.number(_COUNT)
        return self._known[number]


def _size(given: object) -> int:
    if type(given) is not int or given < 0:
        raise ValueError(f"{given!r} is not the size of a dim")
    return given


def _dtype(name: str) -> np.dtype[Any]:
    if name in _SMALL_DTYPES:
        return _SMALL_DTYPES[name]
    if not _PLAIN_DTYPE.fullmatch(name):
        raise ValueError(f"{name!r} is not a dtype")
    return np.dtype(name)


_BY_MARK: dict[bytes, Callable[[_Letter, int], Any]] = {
    _NONE: lambda letter, depth: None,
    _TRUE: lambda letter, depth: True,
    _FALSE: lambda letter, depth: False,
    _SHORT: lambda letter, depth: letter.number(_INT),
    _LONG: _Letter.long,
    _REAL: lambda letter, depth: letter.number(_FLOAT),
    _PAIR: _Letter.complex,
    _TEXT: lambda letter, depth: letter.text(),
    _BYTES: lambda letter, depth: letter.bytes(),
    _TUPLE: lambda letter, depth: tuple(letter.many(depth)),
    _LIST: _Letter.many,
    _SET: lambda letter, depth: set(letter.many(depth)),
    _FIXED: lambda letter, depth: frozenset(letter.many(depth)),
    _DICT: _Letter.dict,
    _ARRAY: _Letter.array,
    _SCALAR: _Letter.scalar,
    _DTYPE: lambda letter, depth: _dtype(letter.text()),
    _ERROR: _Letter.error,
    _MADE: _Letter.made,
    _AGAIN: _Letter.again,
}
_READ = {mark[0]: read for mark, read in _BY_MARK.items()}


# short ones


def packed(value: object) -> bytes:
    """Return a value as bytes, compressed."""
    return zlib.compress(encode(value), 1)


def unpacked(data: bytes | memoryview) -> Any:
    """Return the value that compressed bytes hold.

    Raises:
        TransportError: if they are malformed, or become larger than a letter may be.
    """
    inflating = zlib.decompressobj()
    try:
        found = inflating.decompress(data, MOST_LETTER)
    except zlib.error as error:
        raise TransportError(f"A letter of {len(data)} bytes is malformed: {error}.") from error
    if not inflating.eof or inflating.unused_data:
        raise TransportError(
            f"A letter of {len(data)} bytes is cut off, or has more than {MOST_LETTER} bytes once "
            "it is decompressed."
        )
    return decode(found)


for _kind in (slice, range):
    sent_as(_kind, lambda x: (x.start, x.stop, x.step), _kind)
sent(Box)
sent_as(Device, lambda x: x.__reduce__()[1], Device)
sent_as(
    Layout,
    lambda x: x.__reduce__()[1],
    lambda shape, cuts, tensor, boxes, holders: Layout(
        shape, cuts, tensor, boxes=boxes, box_holders=holders
    ),
)
