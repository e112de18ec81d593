"""Where in the user's program a call comes from, for messages that name the line.

In: running frames. Out: ``file:line``, and in a notebook the cell instead: ``In[9]:2``. What runs
for another line, such as the way back of a derivative, says for which, and what for.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import CodeType
from typing import Any, ParamSpec, TypeVar, final

from meshard.algebra.arguments import function_of, text_of
from meshard.algebra.boundary import is_library

P = ParamSpec("P")
R = TypeVar("R")

Purpose = str | Callable[[], str]
"""What something is done for, or what tells it when it is asked."""

_stated: ContextVar[at_line | None] = ContextVar("meshard_line", default=None)

_CALLED = ("optree", "contextlib", "functools", "numpy")
_NUMBERED = re.compile(r"<ipython-input-(\d+)-[^>]*>")
_USERS = "meshard.cli"


def user_line() -> str:
    """Return file and line of the innermost running frame that is not the library's own.

    Within `at_line` it is the line that was stated.
    """
    stated = _stated.get()
    if stated is not None and stated.line:
        return stated.line
    frame = sys._getframe(1)
    while frame.f_back is not None and is_ours(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return place_text(frame.f_code.co_filename, frame.f_lineno)


def frames_below_user() -> int:
    """Return how many frames are between the caller and the user's, both counted: a stack level."""
    frame, count = sys._getframe(1), 1
    while frame.f_back is not None and is_ours(frame.f_globals.get("__name__", "")):
        frame, count = frame.f_back, count + 1
    return count


def place_text(file: str, line: int) -> str:
    """Return a file and a line as messages name them; of a notebook's cell its number.

    The file of a cell is a name that nobody has chosen, such as ``/tmp/ipykernel_7/123.py``.
    """
    return f"{_cell(file) if 'ipy' in file else file}:{line}"


def _cell(file: str) -> str:
    """Return the name of the cell that IPython keeps as this file; any other file as it is."""
    ipython: Any = sys.modules.get("IPython")
    with contextlib.suppress(AttributeError):  # there is no session, or it is an old one
        if known := ipython.get_ipython().compile.format_code_name(file):
            return str(known[1])
    numbered = _NUMBERED.match(file)  # the files' names before IPython 8, and after the session
    return f"In[{numbered[1]}]" if numbered else file


@final
class at_line:
    """Attribute all that runs within a ``with`` statement to one line and one purpose.

    Code without a line of its own, such as a loop between its iterations, keeps the line before;
    code without a purpose keeps that before.

    Args:
        line: the line, as `user_line` returns it.
        purpose: what it is done for, as in ``"gradient of w"``.

    Attributes:
        line: the line. What runs one operation after another changes it, and the purpose, within
            one statement.
        purpose: what it is done for.
        around: what that is for which this runs; it holds where there is no purpose.
    """

    __slots__ = ("_token", "around", "line", "purpose")

    def __init__(self, line: str, purpose: Purpose = "") -> None:
        self.line, self.purpose = line, purpose
        self.around: Purpose = ""

    def __enter__(self) -> at_line:
        before = _stated.get()
        if before is not None:
            self.line, self.around = self.line or before.line, before.told
        self._token = _stated.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _stated.reset(self._token)

    def told(self) -> str:
        """Return what is done within is for."""
        for found in (self.purpose, self.around):
            text = found if isinstance(found, str) else found()
            if text:
                return text
        return ""


@contextlib.contextmanager
def at_own_lines() -> Iterator[None]:
    """Attribute what runs within a ``with`` statement to the user's lines there; keep the purpose.

    A rule that the user wrote has lines of its own.
    """
    before = _stated.get()
    token = _stated.set(at_line("", "" if before is None else before.told))
    try:
        yield
    finally:
        _stated.reset(token)


def named_scope(name: str) -> contextlib._GeneratorContextManager[None]:
    """Name what runs within a ``with`` statement, or a function that this decorates.

    Listings and explanations of programs, ledgers and profiles show the name beside each operation;
    names within names are joined by ``/``.

    Args:
        name: the name.

    Raises:
        ArgumentError: if it is not a string.

    >>> import meshard
    >>> @meshard.jit
    ... def f(x):
    ...     with meshard.named_scope("scale"):
    ...         return 2 * x
    >>> "scale" in f.lower(meshard.numpy.ones(3)).as_text()
    True
    """
    return _named(text_of(name, "named_scope", "name"))


@contextlib.contextmanager
def _named(own: str) -> Iterator[None]:
    before = stated_purpose()
    with at_line("", f"{before}/{own}" if before else own):
        yield


def named_call(fun: Callable[P, R], *, name: str | None = None) -> Callable[P, R]:
    """Return a function whose operations are listed under its name.

    Args:
        fun: the function.
        name: another name than the function's own.

    Raises:
        ArgumentError: if ``fun`` is not a function.

    >>> import meshard
    >>> attention = meshard.named_call(lambda q, k: q @ k.T, name="attention")
    >>> x = meshard.numpy.ones((2, 2))
    >>> "attention" in meshard.jit(attention).lower(x, x).as_text()
    True
    """
    function_of(fun, "named_call", "fun")
    own: str = "" if name is None else text_of(name, "named_call", "name")
    own = own or getattr(fun, "__name__", None) or type(fun).__name__
    return named_scope(own)(fun)


def stated_line() -> str | None:
    """Return the line that `at_line` states; None if it states none."""
    stated = _stated.get()
    return stated.line or None if stated is not None else None


def stated_purpose() -> str:
    """Return what `at_line` says that is done for; nothing for what a program does by itself."""
    stated = _stated.get()
    return "" if stated is None else stated.told()


def line_of(code: CodeType, place: int) -> int:
    """Return the line of a place in a function: a frame's ``f_lasti``, which is quick to take."""
    for start, end, line in code.co_lines():
        if line is not None and start <= place < end:
            return line
    return code.co_firstlineno


@functools.cache
def is_ours(module: str) -> bool:
    """Whether a module's frames are the library's own."""
    if is_library(module):
        return not module.startswith(_USERS)
    return module.partition(".")[0] in _CALLED
