"""Pickles as data: reading them without running anything that they name, and writing them.

In: bytes, and the few names that may occur in them. Out: tuples, dicts, numbers, texts and records.
Python's unpickler is not used. A call in a pickle becomes a record of the name and the arguments; a
pickle that has any other name than those is refused before it is looked up.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

from meshard.errors import CheckpointError, CorruptFileError

Name = tuple[str, str]
"""A module and a name in it."""

ADVICE = (
    "Nothing in it was run. If you trust it, load it with torch where it was made, and save its "
    "tensors alone."
)


@final
class Record:
    """What a pickle says that it would make.

    Args:
        kind: the name of the class or function.
        args: the arguments of the call.

    Attributes:
        state: the state that it would be given.
    """

    __slots__ = ("args", "kind", "state")

    def __init__(self, kind: str, args: tuple[Any, ...]) -> None:
        self.kind, self.args = kind, args
        self.state: Any = None

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute that the state gives."""
        return self.state.get(name, default) if type(self.state) is dict else default


RECORD = object()
"""In a list of names: a call of it becomes a record."""


@final
class _Made:
    """A name whose calls become records."""

    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind = kind


def unpickled(data: bytes, known: Mapping[Name, Any], path: str) -> Any:
    """Return what a pickle says, as data.

    Args:
        data: the pickle.
        known: the names that may occur. Each is `RECORD`, a text that stands for it, or one of the
            types tuple, int and dict.
        path: the file, for messages.

    Raises:
        CheckpointError: if another name occurs in it.
        CorruptFileError: if it is not a complete pickle, or has other instructions than data needs.
    """
    try:
        return _Reading(data, known, path).result()
    except CheckpointError:
        raise
    except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise CorruptFileError(
            f"{path}: its pickle is damaged: {type(error).__name__}: {error}"
        ) from error


@final
class _Reading:
    """The values that a pickle has made so far: a stack, marks in it, and remembered ones."""

    __slots__ = ("data", "known", "marks", "memo", "path", "stack")

    def __init__(self, data: bytes, known: Mapping[Name, Any], path: str) -> None:
        self.data, self.known, self.path = data, known, path
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def result(self) -> Any:
        """Follow the instructions, and return the last value."""
        data, table, at = self.data, _TABLE, 0
        while at < len(data):
            code = data[at]
            if code == 0x2E:
                return self.stack.pop()
            step = table[code]
            if step is None:
                raise CorruptFileError(
                    f"{self.path}: its pickle is damaged, or not one of data: it has instruction "
                    f"{bytes([code])!r} at byte {at:,}. Nothing in it was run."
                )
            at = step(self, at + 1)
        raise CorruptFileError(
            f"{self.path}: its pickle is damaged: it ends at byte {len(data):,}."
        )

    def text(self, at: int, width: int) -> int:
        """Add a text before which its length is."""
        begin = at + width
        end = begin + int.from_bytes(self.data[at:begin], "little")
        if end > len(self.data):
            raise ValueError(f"a text is cut off at byte {at:,}")
        self.stack.append(self.data[begin:end].decode("utf-8", "surrogatepass"))
        return end

    def number(self, form: struct.Struct, at: int) -> int:
        """Add a number."""
        self.stack.append(form.unpack_from(self.data, at)[0])
        return at + form.size

    def long(self, at: int) -> int:
        """Add a number before which its length is."""
        end = at + 1 + self.data[at]
        self.stack.append(int.from_bytes(self.data[at + 1 : end], "little", signed=True))
        return end

    def marked(self) -> list[Any]:
        """Take the values since the last mark."""
        begin = self.marks.pop()
        found = self.stack[begin:]
        del self.stack[begin:]
        return found

    def several(self, count: int, at: int) -> int:
        """Make a tuple of some values, or of those since the last mark."""
        if count < 0:
            self.stack.append(tuple(self.marked()))
            return at
        found = tuple(self.stack[-count:])
        del self.stack[-count:]
        self.stack.append(found)
        return at

    def remember(self, number: int, at: int) -> int:
        """Remember the last value under a number."""
        self.memo[number] = self.stack[-1]
        return at

    def again(self, number: int, at: int) -> int:
        """Add a value that is remembered."""
        self.stack.append(self.memo[number])
        return at

    def push(self, value: Any, at: int) -> int:
        """Add a value."""
        self.stack.append(value)
        return at

    def mark(self, at: int) -> int:
        """Set a mark."""
        self.marks.append(len(self.stack))
        return at

    def extend(self, items: list[Any], at: int) -> int:
        """Add values to the list before them."""
        target = self.stack[-1]
        if type(target) is not list:
            raise TypeError("values are added to what is not a list")
        target += items
        return at

    def update(self, items: list[Any], at: int) -> int:
        """Add keys and values to the dict before them; keys are texts or records."""
        target = self.stack[-1]
        keys = items[::2]  # others, such as tuples in tuples, may take for ever to hash
        if type(target) is not dict or any(type(k) not in (str, Record) for k in keys):
            raise TypeError("keys are of what is not a dict, or are neither texts nor records")
        target.update(zip(keys, items[1::2], strict=True))
        return at

    def line(self, at: int) -> int:
        """Add what a name stands for, which is two lines."""
        middle = self.data.index(b"\n", at)
        end = self.data.index(b"\n", middle + 1)
        self.name(self.data[at:middle].decode(), self.data[middle + 1 : end].decode())
        return end + 1

    def name(self, module: Any, name: Any) -> None:
        """Add what a name stands for.

        Raises:
            CheckpointError: if it is not in the list.
        """
        if type(module) is not str or type(name) is not str:
            raise TypeError("a name is not a text")
        if (module, name) not in self.known:
            raise CheckpointError(
                f"{self.path}: its pickle names {module:.100}.{name:.100}, which is not one of the "
                f"classes that describe tensors. {ADVICE}"
            )
        found = self.known[module, name]
        self.stack.append(_Made(name) if found is RECORD else found)

    def name_of_two(self, at: int) -> int:
        """Add what a name stands for, whose parts are the last two values."""
        name, module = self.stack.pop(), self.stack.pop()
        self.name(module, name)
        return at

    def call(self, at: int) -> int:
        """Put a record of a call in the place of what is called and its arguments."""
        args, called = self.stack.pop(), self.stack.pop()
        if type(args) is not tuple:
            raise TypeError("the arguments of a call are not a tuple")
        if type(called) is _Made:
            made: Any = Record(called.kind, args)
        elif called in (tuple, int) and len(args) == 1 and type(args[0]) is called:
            (made,) = args  # not a copy, of which a small file could ask for many
        elif called is dict and not args:
            made = {}
        else:
            raise TypeError("something is called that is not a name, or with other arguments")
        self.stack.append(made)
        return at

    def build(self, at: int) -> int:
        """Give a record its state."""
        state, target = self.stack.pop(), self.stack[-1]
        if type(target) is not Record:
            raise TypeError("a state is given to what is not a record")
        target.state = state
        return at


_Step = Callable[[_Reading, int], int]
_U1, _U2, _I4, _U4, _F8 = (struct.Struct(form) for form in ("<B", "<H", "<i", "<I", ">d"))
_STEPS: dict[bytes, _Step] = {
    b"\x80": lambda m, at: at + 1,  # the protocol
    b"\x95": lambda m, at: at + 8,  # the length of a frame
    b"(": _Reading.mark,
    b"N": lambda m, at: m.push(None, at),
    b"\x88": lambda m, at: m.push(True, at),
    b"\x89": lambda m, at: m.push(False, at),
    b"K": lambda m, at: m.number(_U1, at),
    b"M": lambda m, at: m.number(_U2, at),
    b"J": lambda m, at: m.number(_I4, at),
    b"G": lambda m, at: m.number(_F8, at),
    b"\x8a": _Reading.long,
    b"\x8c": lambda m, at: m.text(at, 1),
    b"X": lambda m, at: m.text(at, 4),
    b")": lambda m, at: m.push((), at),
    b"]": lambda m, at: m.push([], at),
    b"}": lambda m, at: m.push({}, at),
    b"t": lambda m, at: m.several(-1, at),
    b"\x85": lambda m, at: m.several(1, at),
    b"\x86": lambda m, at: m.several(2, at),
    b"\x87": lambda m, at: m.several(3, at),
    b"a": lambda m, at: m.extend([m.stack.pop()], at),
    b"e": lambda m, at: m.extend(m.marked(), at),
    b"s": lambda m, at: m.update([m.stack.pop(-2), m.stack.pop()], at),
    b"u": lambda m, at: m.update(m.marked(), at),
    b"q": lambda m, at: m.remember(m.data[at], at + 1),
    b"r": lambda m, at: m.remember(_U4.unpack_from(m.data, at)[0], at + 4),
    b"\x94": lambda m, at: m.remember(len(m.memo), at),
    b"h": lambda m, at: m.again(m.data[at], at + 1),
    b"j": lambda m, at: m.again(_U4.unpack_from(m.data, at)[0], at + 4),
    b"c": _Reading.line,
    b"\x93": _Reading.name_of_two,
    b"R": _Reading.call,
    b"\x81": _Reading.call,  # a new object
    b"b": _Reading.build,
    b"Q": lambda m, at: at,  # data beside the pickle: what is said about it
}
"""What each instruction does; there are no others."""
_TABLE: list[_Step | None] = [_STEPS.get(bytes([code])) for code in range(256)]


def kind_of(value: Any) -> str:
    """Return the name of the class that a record stands for; of others, their type's."""
    return value.kind if type(value) is Record else type(value).__name__


def told(value: Any) -> str:
    """Return a value for messages: one that holds others, by its kind alone."""
    return repr(value)[:80] if type(value) in (str, int, float, bool) else kind_of(value)


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
