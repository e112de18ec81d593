"""Pickles as data: reading them without running anything that they name, and writing them.

In: bytes, and the few names that may occur in them. Out: tuples, dicts, numbers, texts and records.
A name of the list becomes a text, a builtin type that only holds data, or a class of records that
is made for this one reading; a pickle that has any other name is refused before it is looked up.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Iterable, Mapping
from typing import Any, final

from meshard.errors import CheckpointError, CorruptFileError

Name = tuple[str, str]
"""A module and a name in it."""

ADVICE = (
    "Nothing in it was run. If you trust it, load it with torch where it was made, and save its "
    "tensors alone."
)


class Record:
    """What a pickle says that it would make: the arguments of a call, and a state.

    Attributes:
        args: the arguments.
        state: the state.
    """

    args: tuple[Any, ...] = ()
    state: Any = None

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        """Keep a state."""
        self.state = state

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute that the state gives."""
        return self.state.get(name, default) if type(self.state) is dict else default


RECORD = object()
"""In a list of names: the name becomes a class of records."""


def unpickled(data: bytes, known: Mapping[Name, Any], path: str) -> Any:
    """Return what a pickle says, as data.

    Args:
        data: the pickle.
        known: the names that may occur. Each is `RECORD`, a text that stands for it, or one of the
            types tuple, int and dict.
        path: the file, for messages.

    Raises:
        CheckpointError: if another name occurs in it.
        CorruptFileError: if it is not a complete pickle.
    """
    _check(data, path)
    try:
        return _Unpickler(data, known, path).load()
    except CheckpointError:
        raise
    except Exception as error:  # whatever damaged bytes lead to
        raise CorruptFileError(
            f"{path}: its pickle is damaged: {type(error).__name__}: {error}"
        ) from error


_BYTES = {
    **dict.fromkeys(b"(.}])0112NRabeltsu\x81\x85\x86\x87\x88\x89\x93\x94", 0),
    **dict.fromkeys(b"Khq\x80", 1),
    **dict.fromkeys(b"M", 2),
    **dict.fromkeys(b"Jj", 4),
    **dict.fromkeys(b"G\x95", 8),
}
"""How many bytes follow each instruction that is allowed, if they are always as many."""
_COUNTED = {0x8A: 1, 0x8C: 1, ord("X"): 4}
"""The size of the number that says how many bytes follow."""


def _check(data: bytes, path: str) -> None:
    """Refuse a pickle of other instructions than those that data needs, or that asks for much.

    A few damaged bytes would otherwise let Python ask for any amount of memory; and a pickle could
    name classes by numbers, which are not looked up by name.

    Raises:
        CorruptFileError: if it has one, or is cut off.
    """
    at, size, sizes = 0, len(data), [_BYTES.get(code, -1) for code in range(256)]
    while at < size:
        code = data[at]
        more = sizes[code]
        if more < 0:
            more = _following(data, at, path)
        at += 1 + more
        if code == 0x2E:  # it ends
            return
    raise CorruptFileError(f"{path}: its pickle is damaged: it ends at byte {size:,}.")


def _following(data: bytes, at: int, path: str) -> int:
    """Return how many bytes follow an instruction at a place."""
    code, begin = data[at], at + 1
    if code in _COUNTED:
        width = _COUNTED[code]
        return width + int.from_bytes(data[begin : begin + width], "little")
    if code == 0x72 and int.from_bytes(data[begin : begin + 4], "little") <= at:
        return 4  # it keeps a value under a number; there are no more of them than bytes
    if code == 0x63:  # two lines name a class
        end = data.find(b"\n", data.find(b"\n", begin) + 1)
        if end > 0:
            return end - at
    if code == 0x51:
        return 0  # data that is beside the pickle
    raise CorruptFileError(
        f"{path}: its pickle is damaged, or not one of data: it has instruction {bytes([code])!r} "
        f"at byte {at:,}. Nothing in it was run."
    )


@final
class _Unpickler(pickle.Unpickler):
    """Looks up names in a list, and nowhere else."""

    def __init__(self, data: bytes, known: Mapping[Name, Any], path: str) -> None:
        super().__init__(io.BytesIO(data))
        self._known, self._path = known, path
        # New classes for each reading: a pickle can set attributes of what it has, and these are
        # then gone with it.
        self._made: dict[Name, type[Record]] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a name; see `unpickled`."""
        key = module, name
        if key not in self._known:
            raise CheckpointError(
                f"{self._path}: its pickle names {module}.{name}, which is not one of the classes "
                f"that describe tensors. {ADVICE}"
            )
        found = self._known[key]
        if found is not RECORD:
            return found
        if key not in self._made:
            self._made[key] = type(name, (Record,), {"__slots__": ()})
        return self._made[key]

    def persistent_load(self, pid: Any) -> Any:
        """Return what the pickle says about data beside it."""
        return pid


def kind_of(value: Any) -> str:
    """Return the name of the class that a record stands for; of others, their type's."""
    return type(value).__name__


@final
class Pickle:
    """A pickle, written piece by piece; protocol 2, which all versions of torch read."""

    def __init__(self) -> None:
        self._parts = [b"\x80\x02"]
        self._memo: dict[Any, int] = {}

    def add(self, value: Any) -> None:
        """Add None, a boolean, a number, a text, or a tuple, list or dict of such values."""
        parts = self._parts
        if value is None or isinstance(value, bool):
            parts.append({None: b"N", True: b"\x88", False: b"\x89"}[value])
        elif isinstance(value, int):
            parts.append(_integer(value))
        elif isinstance(value, str):
            if not self._again(value):
                text = value.encode("utf-8", "surrogatepass")
                parts.append(b"X" + struct.pack("<I", len(text)) + text)
                self._keep(value)
        elif isinstance(value, tuple):
            self._several(b"(", value, b"t")
        elif isinstance(value, list):
            self._several(b"](", value, b"e")
        else:
            self._several(b"}(", [x for pair in value.items() for x in pair], b"u")

    def name(self, module: str, name: str) -> None:
        """Add the name of a class or function."""
        if not self._again((module, name)):
            self._parts.append(f"c{module}\n{name}\n".encode())
            self._keep((module, name))

    def call(self, module: str, name: str, *args: Any) -> None:
        """Add the result of a call."""
        self.name(module, name)
        self.add(args)
        self.op(b"R")

    def instance(self, module: str, name: str) -> None:
        """Add a new object of a class, whose state is to be added next and followed by ``b``."""
        self.name(module, name)
        self.op(b")\x81")

    def size(self, sizes: Iterable[int]) -> None:
        """Add a torch.Size."""
        self.call("torch", "Size", tuple(sizes))

    def op(self, code: bytes) -> None:
        """Add an instruction."""
        self._parts.append(code)

    def done(self) -> bytes:
        """Return the pickle."""
        return b"".join([*self._parts, b"."])

    def _several(self, start: bytes, values: Iterable[Any], end: bytes) -> None:
        self.op(start)
        for value in values:
            self.add(value)
        self.op(end)

    def _again(self, key: Any) -> bool:
        """Add what was added before; return whether it was."""
        number = self._memo.get(key)
        if number is not None:
            self.op(b"j" + struct.pack("<I", number))
        return number is not None

    def _keep(self, key: Any) -> None:
        number = self._memo[key] = len(self._memo)
        self.op(b"r" + struct.pack("<I", number))


def _integer(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    size = value.bit_length() // 8 + 1
    return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)
