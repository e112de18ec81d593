"""How far long work has come: a bar on a terminal, lines elsewhere, or a function of the user's.

In: what the user has asked for, and from time to time how much is done. Out: texts on standard
error. The bar is drawn by the work itself, when it tells how far it is; there is no thread that
could outlive it, and the cursor stays as it is.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import IO, final

from meshard.algebra.arguments import function_of, refusal
from meshard.algebra.world import World
from meshard.errors import ArgumentError
from meshard.plan.captions import size_text, time_text
from meshard.plan.show.terminal import columns, encoding_of, is_console, is_terminal, printable

Progress = bool | Callable[[int, int], None] | None
"""None: a bar on a terminal, if the work takes long; True: in any case; False: nothing; or a
function of what is done and of the whole."""

Tell = Callable[[int, int], None]
_NOBODY: nullcontext[None] = nullcontext()
_DELAY = 1.0
_DRAWN, _WRITTEN = 0.1, 5.0
"""Seconds between two states of a bar, and between two lines where there is no terminal."""
_WIDEST = 100


def checked_progress(given: object, what: str) -> Progress:
    """Return the argument ``progress`` of a function.

    Raises:
        ArgumentError: if it is neither a boolean nor None nor a function of two numbers.
    """
    if given is None or isinstance(given, bool):
        return given
    function = function_of(given, what, "progress", "True shows a bar.")
    try:
        inspect.signature(function).bind(0, 1)
    except TypeError:
        law = "a function of the bytes that are done and of all bytes"
        raise ArgumentError(refusal(what, "progress", law, given)) from None
    except ValueError:  # it does not say what it takes
        pass
    return function


def is_watched() -> bool:
    """Return whether somebody would see a bar that nobody has asked for.

    It needs a real terminal, and the main thread: what others do goes on behind the program.
    """
    if threading.current_thread() is not threading.main_thread() or not is_console(sys.stderr):
        return False
    return not os.environ.get("CI") and os.environ.get("TERM") != "dumb"


def telling(
    progress: Progress,
    doing: str,
    *,
    unit: str = "bytes",
    world: World | None = None,
    patient: bool = False,
) -> AbstractContextManager[Tell | None]:
    """Give what is to be told how much is done, and of how much; None if nobody listens.

    Args:
        progress: what the user has asked for.
        doing: the work, as in ``"loading"``.
        unit: what is counted.
        world: who takes part; only the first process shows bars.
        patient: whether an error of the user's function is raised when the work is done, since
            other processes count on this one.
    """
    if callable(progress):
        return _patiently(progress) if patient else nullcontext(progress)
    if progress is False or (world is not None and world.process_index != world.first):
        return _NOBODY
    if _Bar.shown or (progress is None and not is_watched()):
        return _NOBODY
    return _shown(doing, unit, asked=bool(progress))


@contextmanager
def _patiently(function: Tell) -> Iterator[Tell]:
    """Give a function that calls another one until that raises an error, which comes at the end."""
    failures: list[Exception] = []

    def tell(done: int, total: int) -> None:
        if not failures:
            try:
                function(done, total)
            except Exception as error:
                failures.append(error)

    yield tell
    if failures:
        raise failures[0]


@contextmanager
def _shown(doing: str, unit: str, *, asked: bool) -> Iterator[Tell]:
    _Bar.shown = True
    bar = _Bar(doing, sys.stderr, unit, asked=asked)
    try:
        yield bar.tell
    finally:
        _Bar.shown = False
        bar.end()


def adding(tell: Tell | None, total: int) -> Callable[[int], None] | None:
    """Return what is to be told how much more is done; None if nobody listens."""
    if tell is None:
        return None
    done, lock = 0, threading.Lock()

    def told(more: int) -> None:
        nonlocal done
        with lock:
            done += more
            now = min(done, total)
        tell(now, total)

    return told


@final
class _Bar:
    """A bar that is drawn over itself; where that is impossible, a line from time to time."""

    shown = False  # only the outermost work has a bar

    def __init__(self, doing: str, stream: IO[str], unit: str, *, asked: bool) -> None:
        self._doing, self._stream, self._unit = doing, stream, unit
        self._terminal = is_terminal(stream)
        self._every = _DRAWN if self._terminal else _WRITTEN
        self._start = time.monotonic()
        self._next = self._start + (_DELAY if not asked else 0.0 if self._terminal else _WRITTEN)
        self._lock = threading.Lock()
        self._state: tuple[int, int] | None = None
        self._length = 0

    def tell(self, done: int, total: int) -> None:
        """Show how much is done, unless that was shown a moment ago."""
        self._state = done, total
        now = time.monotonic()
        if now < self._next or not self._lock.acquire(blocking=False):
            return
        try:
            self._next = now + self._every
            if self._terminal:
                self._draw(self._bar(done, total, now - self._start))
            else:
                self._write(f"{self._doing}: {self._share(done, total)}\n")
        finally:
            self._lock.release()

    def end(self) -> None:
        """Remove the bar; where there is no terminal, say how long it took."""
        if self._length:
            self._draw("")
        elif not self._terminal and self._state is not None:
            seconds = time_text(time.monotonic() - self._start)
            self._write(f"{self._doing}: {self._share(*self._state)} in {seconds}\n")

    def _share(self, done: int, total: int) -> str:
        percent = 100 * done // max(total, 1)
        if self._unit == "bytes":
            return f"{size_text(done)} of {size_text(total)}, {percent} %"
        return f"{done:,} of {total:,} {self._unit}, {percent} %"

    def _bar(self, done: int, total: int, seconds: float) -> str:
        """Return the line, which is shorter than the terminal is wide."""
        words = self._share(done, total)
        left = seconds * (total - done) / max(done, 1)
        if done and left >= 1:
            words += f", {left:,.0f} s left"
        width = min(columns(self._stream) or _WIDEST, _WIDEST) - 1
        room = width - len(self._doing) - len(words) - 4
        if room < 5:
            return f"{self._doing}  {words}"[:width]
        full = room * done // max(total, 1)
        return f"{self._doing}  {'━' * full}{'·' * (room - full)}  {words}"

    def _draw(self, text: str) -> None:
        text = printable(text, encoding_of(self._stream))
        blanks = " " * (self._length - len(text))
        back = "" if text else "\r"
        self._length = len(text)
        self._write(f"\r{text}{blanks}{back}")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal has gone; the work has not
            self._next = float("inf")
