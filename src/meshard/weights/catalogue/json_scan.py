"""Going once through the text of a large JSON object, piece by piece, in bounded memory.

In: bytes that may be anything. Out: names, texts and small values one at a time, or a refusal that
names the file and the byte. A parser of all JSON makes of a hostile text objects of thirty times
its size.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from meshard.errors import CheckpointError, CorruptFileError

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
