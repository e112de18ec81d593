"""What a stream can show: how many columns it has, which characters, and whether it has colours.

In: a stream, and the environment. Out: a width, texts, yes or no.

What has a ``__str__`` may be printed anywhere, and does not know where. So such texts consist of
ASCII characters. Only functions that print by themselves know their stream, and ask here whether it
has lines for their drawings.
"""

from __future__ import annotations

import codecs
import os
import sys
from typing import IO, Protocol, runtime_checkable

WIDTH = 100
"""The columns of a text that is printed elsewhere than on a terminal."""

_FALLBACK = 80
_LEAST = 40
_OFF = ("", "0", "false")
_BARE = ("dumb", "unknown")

ASCII: dict[int, str | int | None] = {
    **str.maketrans("│─┌┐└┘├┤┬┴┼╵╷╴╶╭╮╰╯━╸╺⋯⋮⋱", "|-+++++++++||--++++=--.:."),
    **{ord(c): text for c, text in (("…", "..."), ("≤", "<="), ("≥", ">="), ("→", "->"))},
    **str.maketrans("×·█", "x-#"),
}
"""For characters that drawings and other people's texts have what stands for them in ASCII."""


@runtime_checkable
class Writable(Protocol):
    """What texts can be written to."""

    def write(self, text: str, /) -> object:
        """Write a text."""


@runtime_checkable
class Measured(Protocol):
    """A stream that knows how many columns are left of those of a terminal behind it."""

    columns: int | None


@runtime_checkable
class _Encoding(Protocol):
    encoding: str | None


def is_terminal(stream: IO[str] | None = None) -> bool:
    """Return whether somebody looks at a stream, by default standard output, in a terminal.

    mpiexec may give its processes a terminal where the user has none; `meshard run` tells them.
    """
    stream = sys.stdout if stream is None else stream
    if os.environ.get("TTY_COMPATIBLE") == "0":
        return False
    try:
        return stream is not None and stream.isatty()
    except (AttributeError, ValueError):  # not quite a stream, or a closed one
        return False


def is_console(stream: IO[str]) -> bool:
    """Return whether a stream is the process's own, and goes to a terminal.

    Notebooks and test runners put others in its place, some of which claim to be terminals, with
    the number of a file that is one.
    """
    if stream not in (sys.__stdout__, sys.__stderr__) or not is_terminal(stream):
        return False
    try:
        return os.isatty(stream.fileno())
    except (AttributeError, ValueError, OSError):
        return False


def has_colors(stream: IO[str] | None = None) -> bool:
    """Return whether to print in colour.

    ``NO_COLOR`` says no. Otherwise ``FORCE_COLOR`` and ``CLICOLOR_FORCE`` say yes, and ``0`` in
    ``FORCE_COLOR`` or ``CLICOLOR`` says no. Otherwise terminals have colours, except dumb ones.
    """
    known = os.environ.get
    if known("NO_COLOR") or known("FORCE_COLOR", "1") in ("0", "false"):
        return False
    if known("FORCE_COLOR", "") not in _OFF or known("CLICOLOR_FORCE", "") not in _OFF:
        return True
    return is_terminal(stream) and known("TERM") not in _BARE and known("CLICOLOR") != "0"


def columns(stream: IO[str] | None = None) -> int | None:
    """Return how many columns a stream has, by default standard output; None if nothing limits it.

    ``COLUMNS`` in the environment says so for any stream; otherwise only a terminal has a width.
    """
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said):
        return max(int(said), _LEAST)
    stream = sys.stdout if stream is None else stream
    if isinstance(stream, Measured):
        return stream.columns
    if not is_console(stream):
        return None
    return max(os.get_terminal_size(stream.fileno()).columns or _FALLBACK, _LEAST)


def line_width(usual: int = WIDTH) -> int:
    """Return the width of what `print` prints: that of the terminal, elsewhere the usual one."""
    return columns() or usual


def encoding_of(stream: IO[str]) -> str | None:
    """Return a stream's encoding; None if it takes all characters."""
    return stream.encoding if isinstance(stream, _Encoding) else None


def rule(width: int) -> str:
    """Return a line across a table, in ASCII where standard output needs it."""
    return printable("─" * width, encoding_of(sys.stdout))


def is_encodable(text: str, encoding: str | None) -> bool:
    """Return whether an encoding has all characters of a text."""
    try:
        text.encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def printable(text: str, encoding: str | None) -> str:
    r"""Return a text with what stands in ASCII for characters that an encoding lacks.

    A text that is not encodable is translated as a whole, so that its lines look alike. Other
    people's characters become escapes.

    >>> printable("├─ é", "ascii"), printable("├─ é", "latin-1"), printable("├─ é", "utf-8")
    ('+- \\xe9', '+- é', '├─ é')
    """
    return text if is_encodable(text, encoding) else replaced(text, encoding)


def replaced(text: str, encoding: str | None) -> str:
    """Return a text in ASCII, but for other people's characters that an encoding has."""
    try:
        name = codecs.lookup(encoding or "utf-8").name
    except LookupError:
        name = "ascii"
    return text.translate(ASCII).encode(name, "backslashreplace").decode(name)
