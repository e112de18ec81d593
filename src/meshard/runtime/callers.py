"""Where in the user's program a call comes from, for messages that name the line."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar

__all__ = ["at_line", "user_line"]

_stated: ContextVar[str | None] = ContextVar("meshard_line", default=None)

_OURS = ("meshard", "optree", "contextlib", "functools")
_USERS = ("meshard.examples", "meshard.cli")


def user_line() -> str:
    """Return file and line of the innermost running frame that is not the library's own.

    Within `at_line` it is the line that was stated.
    """
    stated = _stated.get()
    if stated is not None:
        return stated
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@contextlib.contextmanager
def at_line(line: str) -> Iterator[None]:
    """State the line that what runs within a ``with`` statement comes from."""
    token = _stated.set(line)
    try:
        yield
    finally:
        _stated.reset(token)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in _OURS and not module.startswith(_USERS)
