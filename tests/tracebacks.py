"""Tracebacks as users see them: what tests of errors look at.

Tests run with full tracebacks, for those who read failures. Within `watched` they are short, as
they are for users, and where each error was raised is still known.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import meshard
from meshard.algebra import boundary
from meshard.algebra.boundary import TRACEBACK

ROOT = str(Path(meshard.__file__).parent) + os.sep
"""Where the library's files are, whatever the folders above it are called."""
Origin = Callable[[BaseException], traceback.FrameSummary]


@contextlib.contextmanager
def watched() -> Iterator[Origin]:
    """Shorten tracebacks within a ``with`` statement; yield what tells where one was raised."""
    first: dict[int, tuple[BaseException, TracebackType | None]] = {}
    before, shorten = TRACEBACK.value, boundary.shorten

    def noted(error: BaseException) -> None:
        first.setdefault(id(error), (error, error.__traceback__))
        shorten(error)

    def origin(error: BaseException) -> traceback.FrameSummary:
        _, trace = first.get(id(error), (error, error.__traceback__))
        return traceback.extract_tb(trace)[-1]

    TRACEBACK.value, boundary.shorten = "short", noted
    try:
        yield origin
    finally:
        TRACEBACK.value, boundary.shorten = before, shorten


def shown(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that are printed with it."""
    seen: set[int] = set()
    todo = [error]
    while todo:
        error = todo.pop()
        if id(error) in seen:
            continue
        seen.add(id(error))
        yield error
        if isinstance(error, BaseExceptionGroup):
            todo.extend(error.exceptions)
        if error.__cause__ is not None:
            todo.append(error.__cause__)
        elif error.__context__ is not None and not error.__suppress_context__:
            todo.append(error.__context__)


def internal_frames(error: BaseException) -> list[str]:
    """Return the frames of the library that are printed with an error."""
    return [
        f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}"
        for one in shown(error)
        for frame, line in traceback.walk_tb(one.__traceback__)
        if frame.f_code.co_filename.startswith(ROOT)
        or boundary.is_library(frame.f_globals.get("__name__") or "")
    ]
