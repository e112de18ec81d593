"""Where in the user's program a call comes from, for messages that name the line."""

from __future__ import annotations

import sys

__all__ = ["user_line"]

_OURS = ("meshard", "optree", "contextlib", "functools")
_USERS = ("meshard.examples", "meshard.cli")


def user_line() -> str:
    """Return file and line of the innermost running frame that is not the library's own."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in _OURS and not module.startswith(_USERS)
