"""Where in the user's program a call comes from, for messages that name the line."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from types import CodeType

from meshard.algebra.boundary import is_library

_stated: ContextVar[str | None] = ContextVar("meshard_line", default=None)

_CALLED = ("optree", "contextlib", "functools")
_USERS = "meshard.cli"


def user_line() -> str:
    """Return file and line of the innermost running frame that is not the library's own.

    Within `at_line` it is the line that was stated.
    """
    stated = _stated.get()
    if stated is not None:
        return stated
    frame = sys._getframe(1)
    while frame.f_back is not None and is_ours(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@contextlib.contextmanager
def at_line(line: str) -> Iterator[None]:
    """Attribute all that runs within a ``with`` statement to one line.

    Code without a line of its own, such as a loop between its iterations, keeps the line before.
    """
    token = _stated.set(line or _stated.get())
    try:
        yield
    finally:
        _stated.reset(token)


def stated_line() -> str | None:
    """Return the line that `at_line` states; None if it states none."""
    return _stated.get()


def line_of(code: CodeType, place: int) -> int:
    """Return the line of a place in a function: a frame's ``f_lasti``, which is quick to take."""
    for start, end, line in code.co_lines():
        if line is not None and start <= place < end:
            return line
    return code.co_firstlineno


def is_ours(module: str) -> bool:
    """Whether a module's frames are the library's own."""
    if is_library(module):
        return not module.startswith(_USERS)
    return module.partition(".")[0] in _CALLED
