"""The header of a safetensors file: parsed strictly and in bounded memory, and written.

The format is the header's length in 8 bytes, the header in JSON (for each tensor its dtype, shape,
and begin and end in the data), and the data. In: bytes that may be anything. Out: the tensors in
the order of their data, or a refusal that says which file and tensor. The safetensors library
itself maps the file into memory and reads tensors whole, so it is not used.

Files written here end their header with checksums: ``"meshard.xxh3": "SIZE:HEADERSUMSUM..."``, the
size of a piece in bytes, the checksum of the header and its length with all these digits zero, and
that of each piece in the order of the data; numbers are hexadecimal, checksums have 16 digits.

Going once through the text of a large JSON object, piece by piece, in bounded memory.

In: bytes that may be anything. Out: names, texts and small values one at a time, or a refusal that
names the file and the byte. A parser of all JSON makes of a hostile text objects of thirty times
its size.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, final

import ml_dtypes
import numpy as np
import xxhash

from meshard.errors import CheckpointError, CorruptFileError
from meshard.runtime.types import dtype_name
from meshard.weights.catalogue.stored import OpenFile, box_count

_SPACE = rb"[ \t\r\n]*+"
_NUMBER = rb"(?:0|[1-9][0-9]{0,18})"
_MOST_VALUE = 1 << 16
"""Bytes of a value that is parsed as any JSON."""


def pattern(text: bytes) -> re.Pattern[bytes]:
    """Return a pattern; a blank is any white space, N a number, T a text, C characters of one."""
    chars = rb"[^\x22\\\x00-\x1f]*+"
    texts = rb'"(%b(?:\\[^\x00-\x1f]%b)*+)"' % (chars, chars)
    text = text.replace(b"C", chars).replace(b"T", texts).replace(b"N", _NUMBER)
    return re.compile(text.replace(b" ", _SPACE))


_BEGIN = pattern(rb" \{")
_NAME = pattern(rb" T : ")
_NEXT = pattern(rb" ([,}])")
_PAIR = pattern(rb" T : T ([,}])")
_EMPTY = pattern(rb" \{ \}")


class JsonScan:
    """A place in the text of a JSON object.

    Args:
        path: the file, for messages.
        text: the text.
        kind: what the file should be, for messages.

    Attributes:
        at: the byte that comes next.
        more: whether the object has another name.
    """

    def __init__(self, path: str, text: bytes, kind: str) -> None:
        self._path, self._text, self._kind = path, text, kind
        self._names: set[str] = set()
        self.at, self.more = 0, False

    def begin(self) -> None:
        """Enter the object."""
        self.at, self.more = self._enter("a JSON object")

    def _enter(self, what: str) -> tuple[int, bool]:
        empty = _EMPTY.match(self._text, self.at)
        found = empty or _BEGIN.match(self._text, self.at)
        if found is None:
            self.refuse(f"expected {what}")
        return found.end(), empty is None

    def name(self) -> str:
        """Return the next name; its value is next."""
        found = _NAME.match(self._text, self.at)
        if found is None:
            self.refuse("expected a name and a colon")
        name = self.new_name(found[1])
        self.at = found.end()
        return name

    def new_name(self, raw: bytes) -> str:
        """Return a name as it is meant, which must be new."""
        name = self._decoded(raw)
        if name in self._names:
            self.refuse(f"it names {name!r:.200} twice")
        self._names.add(name)
        return name

    def after(self) -> None:
        """Pass the comma after a value, or leave the object."""
        found = _NEXT.match(self._text, self.at)
        if found is None:
            self.refuse("expected a comma or the end")
        self.at, self.more = found.end(), found[1] == b","

    def end(self) -> None:
        """Refuse what comes after the object."""
        if self._text[self.at :].strip(b" \t\r\n"):
            self.refuse("there is more after its end")

    def texts(self, what: str) -> dict[str, str]:
        """Return an object of texts, and pass it."""
        found: dict[str, str] = {}
        self.at, more = self._enter(f"{what}, an object of texts")
        while more:
            pair = _PAIR.match(self._text, self.at)
            if pair is None:
                self.refuse(f"expected {what}, an object of texts")
            name = self._decoded(pair[1])
            if name in found:
                self.refuse(f"{what} names {name!r:.200} twice")
            found[name] = self._decoded(pair[2])
            self.at, more = pair.end(), pair[3] == b","
        return found

    def value(self, what: str) -> Any:
        """Return a small value of any kind, and pass it; names in it are plain ASCII."""
        window = self._text[self.at : self.at + _MOST_VALUE].decode("latin-1")
        decoder = json.JSONDecoder(object_pairs_hook=self._object, parse_constant=self._constant)
        try:
            found, size = decoder.raw_decode(window)
        except (ValueError, RecursionError) as error:
            if isinstance(error, CheckpointError):
                raise
            self.refuse(f"{what} cannot be read ({error})")
        self.at += size
        return found

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            self.refuse("a name is there twice in an object")
        return found

    def _constant(self, text: str) -> NoReturn:
        self.refuse(f"{text} is not a number")

    def _decoded(self, raw: bytes) -> str:
        """Return a text as it is meant."""
        try:
            text = raw.decode("utf-8")
            if b"\\" in raw:
                text = str(json.loads(f'"{text}"'))
                text.encode("utf-8")  # half of a surrogate pair cannot be printed
        except ValueError as error:
            self.refuse(f"a text cannot be decoded ({error})")
        return text

    def refuse(self, why: str) -> NoReturn:
        """Raise an error that says what is wrong, and where.

        Raises:
            CorruptFileError: always.
        """
        near = self._text[self.at : self.at + 40].decode("utf-8", "backslashreplace")
        raise CorruptFileError(
            f"{self._path}: it cannot be read: {why}, at byte {self.at:,} of its JSON ({near!r}). "
            f"The file is damaged, or it is not {self._kind}."
        )


MOST_HEADER = 100_000_000
"""Bytes of a header at most, as in the reference library."""
_MOST_DIMS = 64
PARTS_KEY = "meshard.parts"
"""Metadata: the shapes of tensors of which a file has a part, and where the parts begin."""
SUMS_KEY = "meshard.xxh3"
_DIGITS = 16

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "F8_E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
    "C64": np.dtype(np.complex64),
}
"""The dtypes of the format, by their names in it, those that are shorter than a byte left out."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_FIELDS = {"dtype", "shape", "data_offsets"}
_PACKED = ("F4", "F6_E2M3", "F6_E3M2")

_WHOLE = pattern(
    rb' "(?!__metadata__")(C)" : \{ "dtype" : "([\x41-\x5a0-9_]{1,16})" , '
    rb'"shape" : \[((?: N(?: , N){0,63})?) \] , "data_offsets" : \[ (N) , (N) \] \} ([,}])'
)
"""A tensor as programs write it, up to the comma after it or the end."""
_SUMS = re.compile(r"([0-9a-f]{1,12}):([0-9a-f]{16,})")
_TAIL = re.compile(b'"%b":"[0-9a-f]{1,12}:([0-9a-f]*+)"\\}\\}' % SUMS_KEY.encode())


@final
class Entry(NamedTuple):
    """One tensor of a header: its dtype, shape, and begin and end in the data."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    end: int


@final
class Header(NamedTuple):
    """What a header says.

    Attributes:
        start: the byte at which the data begins.
        entries: the tensors, in the order of their data.
        metadata: the texts that it has besides, without the checksums.
        piece_bytes: bytes of a piece at most; 0 if the file has no checksums that hold.
        sums: the checksums of all pieces, in the order of their data.
    """

    start: int
    entries: Sequence[Entry]
    metadata: Mapping[str, str]
    piece_bytes: int
    sums: Sequence[int]


def read_header(file: OpenFile) -> Header:
    """Read and check the header of a file.

    Raises:
        CorruptFileError: if it is not a safetensors file, or contradicts itself.
        CheckpointError: if it has a dtype that cannot be read.
    """
    doing = "it is not a safetensors file"
    if file.size < 8:
        raise CorruptFileError(
            f"{file.path}: {doing}: it has {file.size} bytes, and the header's length alone "
            "takes 8."
        )
    first = file.bytes_at(0, 8, doing)
    length = int.from_bytes(first, "little")
    if length > MOST_HEADER or length > file.size - 8:
        raise CorruptFileError(
            f"{file.path}: its header should be {length:,} bytes long, but "
            f"{file.size - 8:,} bytes follow, and {MOST_HEADER:,} are allowed; the file was cut "
            "off, or it is not a safetensors file."
        )
    text = file.bytes_at(8, length, "its header cannot be read")
    reading = _Reading(file.path, text)
    reading.run()
    entries = _in_order(file, reading.entries, file.size - 8 - length)
    size, sums = _checked_sums(file.path, first, text, reading.metadata, entries)
    return Header(8 + length, entries, reading.metadata, size, sums)


@final
class _Reading(JsonScan):
    """Goes through a header, and notes its tensors and texts."""

    def __init__(self, path: str, text: bytes) -> None:
        super().__init__(path, text, "a safetensors file")
        self.entries: list[Entry] = []
        self.metadata: dict[str, str] = {}

    def run(self) -> None:
        """Read all of it."""
        if self._text[:1] != b"{":
            self.refuse("it does not begin with {")
        self.begin()
        while self.more:
            found = _WHOLE.match(self._text, self.at)
            if found is None:
                self._unusual()
                continue
            raw, dtype, sizes, begin, end, after = found.groups()
            name = self.new_name(raw)
            shape = tuple(map(int, sizes.split(b","))) if sizes else ()
            self._add(name, dtype.decode(), shape, (int(begin), int(end)))
            self.at, self.more = found.end(), after == b","
        self.end()

    def _unusual(self) -> None:
        """Read what does not look as programs write tensors."""
        name = self.name()
        if name == "__metadata__":
            self.metadata = self.texts("__metadata__")
        else:
            fields = self.value(f"the entry of tensor {name!r:.200}")
            if not isinstance(fields, dict) or set(fields) != _FIELDS:
                self.refuse(f"tensor {name!r:.200} must have {', '.join(sorted(_FIELDS))}")
            match fields["dtype"], fields["shape"], fields["data_offsets"]:
                case str(dtype), [*sizes], [begin, end]:
                    pass
                case _:
                    self.refuse(f"tensor {name!r:.200} has fields of wrong types")
            if not all(type(n) is int and 0 <= n < 1 << 63 for n in (*sizes, begin, end)):
                self.refuse(f"tensor {name!r:.200} has sizes or offsets that are not sizes")
            if len(sizes) > _MOST_DIMS:
                self.refuse(f"tensor {name!r:.200} has {len(sizes)} dims, of at most {_MOST_DIMS}")
            self._add(name, dtype, tuple(sizes), (begin, end))
        self.after()

    def _add(self, name: str, dtype: str, shape: tuple[int, ...], span: tuple[int, int]) -> None:
        known = DTYPES.get(dtype)
        if known is None:
            why = "not a dtype of the format"
            if dtype in _PACKED:
                why = "shorter than a byte, and meshard does not read packed elements"
            raise CheckpointError(
                f"{self._path}: tensor {name!r:.200} has dtype {dtype!r:.40}, which is {why}. It "
                f"reads {', '.join(DTYPES)}."
            )
        size = math.prod(shape) * known.itemsize
        if span[1] - span[0] != size:
            raise CorruptFileError(
                f"{self._path}: tensor {name!r:.200} of shape {shape} and dtype {dtype} takes "
                f"{size:,} bytes, but its header gives it bytes {span[0]:,} to {span[1]:,} of the "
                f"data, which are {span[1] - span[0]:,}."
            )
        self.entries.append(Entry(name, known, shape, *span))


def _in_order(file: OpenFile, entries: list[Entry], size: int) -> list[Entry]:
    """Return tensors in the order of their data, which they must fill exactly."""
    end = 0
    for entry in entries:
        if entry.begin != end:
            entries = sorted(entries, key=lambda e: (e.begin, e.end))
            break
        end = entry.end
    end, before = 0, "the header"
    for entry in entries:
        if entry.begin != end:
            how = "overlaps" if entry.begin < end else "leaves a gap after"
            raise CorruptFileError(
                f"{file.path}: tensor {entry.name!r:.200} {how} {before}: it begins at byte "
                f"{entry.begin:,} of the data, expected {end:,}."
            )
        end, before = entry.end, f"tensor {entry.name!r:.200}"
        if end > size:
            raise CorruptFileError(
                f"{file.path}: it was cut off: {before} takes bytes {entry.begin:,} to {end:,} of "
                f"the data, but the data ends at {size:,}."
            )
    if end < size:
        raise CorruptFileError(
            f"{file.path}: {size - end:,} bytes follow the last tensor; expected a file of "
            f"{file.size - size + end:,} bytes, found {file.size:,}."
        )
    return entries


def _checked_sums(
    path: str, first: bytes, text: bytes, metadata: dict[str, str], entries: Sequence[Entry]
) -> tuple[int, Sequence[int]]:
    """Take the checksums out of the metadata, and compare that of the header.

    A program that writes the file anew and keeps its metadata puts them elsewhere in the header:
    then they are those of another file, and are left alone.
    """
    given = metadata.pop(SUMS_KEY, None)
    if given is None:
        return 0, ()
    form = _SUMS.fullmatch(given)
    body = text.rstrip(b" ")
    at = body.rfind(b'"%b":"' % SUMS_KEY.encode())
    tail = _TAIL.fullmatch(body, at) if at >= 0 else None
    if form is not None and tail is None:
        return 0, ()  # of the file that it was made of
    advice = "It was damaged or edited after it was written."
    if form is None or tail is None or len(form[2]) % _DIGITS:
        raise CorruptFileError(
            f"{path}: its header has checksums that cannot be read: {given[:60]!r}. {advice}"
        )
    size, digits = int(form[1], 16), form[2]
    start, end = tail.span(1)
    zeros = b"0" * (end - start)
    found = _header_sum(first, text[:start] + zeros + text[end:])
    if digits[:_DIGITS] != f"{found:016x}":
        raise CorruptFileError(
            f"{path}: its header has checksum {found:016x}, expected {digits[:_DIGITS]}. {advice}"
        )
    sums = [int(digits[i : i + _DIGITS], 16) for i in range(_DIGITS, len(digits), _DIGITS)]
    count = sum([box_count(e.shape, e.dtype.itemsize, size) for e in entries]) if size else -1
    if len(sums) != count:
        raise CorruptFileError(
            f"{path}: its header has {len(sums)} checksums, expected {count}. {advice}"
        )
    return size, sums


def written_sums(head: bytes) -> list[int]:
    """Return the checksums of the pieces of a file of ours, whose head is known to be whole.

    Args:
        head: the file's bytes before the data.
    """
    body = head.rstrip(b" ")
    tail = _TAIL.fullmatch(body, body.rfind(b'"%b":"' % SUMS_KEY.encode()))
    digits = b"" if tail is None else tail[1]
    return [int(digits[i : i + _DIGITS], 16) for i in range(_DIGITS, len(digits), _DIGITS)]


def _header_sum(first: bytes, text: bytes) -> int:
    return xxhash.xxh3_64_intdigest(first + text)


def format_header(
    tensors: Iterable[tuple[str, np.dtype[Any], tuple[int, ...]]],
    metadata: Mapping[str, str],
    piece_bytes: int,
) -> tuple[bytes, list[Entry], int]:
    """Return the length and header of a file, its entries, and where the pieces' checksums begin.

    Tensors of longer elements come first, as the reference library has it, so that each begins at
    a multiple of its elements' size.

    Raises:
        CheckpointError: if the format cannot hold a dtype, or the header would be too long.
    """
    entries, end = [], 0
    for name, dtype, shape in sorted(tensors, key=lambda t: -t[1].itemsize):
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        entries.append(Entry(name, dtype, shape, begin, end))
    form = {
        e.name: {
            "dtype": format_name(e.dtype, e.name),
            "shape": list(e.shape),
            "data_offsets": [e.begin, e.end],
        }
        for e in entries
    }
    count = sum([box_count(e.shape, e.dtype.itemsize, piece_bytes) for e in entries])
    digits = "0" * _DIGITS * (1 + count)
    sums = {**metadata, SUMS_KEY: f"{piece_bytes:x}:{digits}"}
    text = json.dumps({**form, "__metadata__": sums}, separators=(",", ":"), ensure_ascii=False)
    body = encoded(text)
    at = len(body) - len(digits) - len('"}}')
    body += b" " * (-len(body) % 8)
    if len(body) > MOST_HEADER:
        raise CheckpointError(
            f"a safetensors file of {len(entries):,} tensors needs a header of {len(body):,} "
            f"bytes, and {MOST_HEADER:,} are allowed. Write several files."
        )
    first = len(body).to_bytes(8, "little")
    own = b"%016x" % _header_sum(first, body)
    body = body[:at] + own + body[at + _DIGITS :]
    return first + body, entries, 8 + at + _DIGITS


def encoded(text: str) -> bytes:
    """Return a text in UTF-8.

    Raises:
        CheckpointError: if it cannot be encoded.
    """
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        part = text[max(error.start - 20, 0) : error.end + 20]
        raise CheckpointError(
            f"safetensors: a name cannot be written in UTF-8: ...{part!r}..."
        ) from error


def format_name(dtype: np.dtype[Any], name: str) -> str:
    """Return the format's name of a dtype.

    Raises:
        CheckpointError: if it has none; ``name`` is the tensor's.
    """
    found = _NAMES.get(dtype)
    if found is None:
        raise CheckpointError(
            f"safetensors: tensor {name!r:.200} has dtype {dtype_name(dtype)}, which the format "
            f"cannot hold; it holds {', '.join([d.name for d in _NAMES])}. Convert it with dtype=, "
            "or save it as a meshard checkpoint."
        )
    return found
