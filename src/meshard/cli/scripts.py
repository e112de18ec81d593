"""Scripts in simulated processes: each runs as `__main__` in a thread, and its lines say which.

In: a script and how many processes. Out: its lines with the number of the process, the first error
with its traceback, and an exit code.
"""

from __future__ import annotations

import io
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import CodeType
from typing import TextIO, final

import click

from meshard.cli.errors import DONE, FAILED, CommandError
from meshard.plan.show.terminal import columns, has_colors
from meshard.runtime.simulated import simulate

_process: ContextVar[int | None] = ContextVar("meshard_process", default=None)
_COLORS = ("cyan", "yellow", "green", "magenta", "blue", "red")


def run_script(
    script: Path,
    arguments: Sequence[str],
    *,
    processes: int,
    devices_per_process: int,
    timeout: float,
) -> int:
    """Run a script in several simulated processes, and return its exit code.

    Args:
        script: the script.
        arguments: what it finds in ``sys.argv``.
        processes: how many processes there are.
        devices_per_process: the devices of each.
        timeout: seconds that a process waits for another.

    Returns:
        0, or the exit code of the first process that ended with another, or 1 if one failed.

    Raises:
        CommandError: if the script cannot be read.
    """
    try:
        text = script.read_bytes()
    except OSError as error:
        raise CommandError(f"{script}: {error.strerror or error}") from error
    try:
        program = compile(text, str(script), "exec")
    except (SyntaxError, ValueError) as error:
        lines = traceback.format_exception_only(error)
        raise CommandError(
            f"{script} is not a Python program\n{''.join(lines).rstrip()}"
        ) from error
    job = _Job(program, str(script))
    with _as_main(script, arguments), _prefixed(processes):
        try:
            simulate(processes, devices_per_process, job.run, deadline=timeout)
        except KeyboardInterrupt:
            raise
        except BaseException:
            if job.first is None:
                raise
    return job.report()


def traceback_from(error: BaseException, file: str) -> str:
    """Return an error's traceback from the first line of a file on; without one the error alone."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != file:
        frames = frames.tb_next
    if frames is None:
        return "".join(traceback.format_exception_only(error)).rstrip()
    return "".join(traceback.format_exception(type(error), error, frames)).rstrip()


@final
class _Job:
    """A program that several simulated processes run, and what went wrong first."""

    def __init__(self, program: CodeType, name: str) -> None:
        self._program, self._name = program, name
        self._lock = threading.Lock()
        self.first: tuple[int, BaseException] | None = None

    def run(self) -> None:
        """Run the program as one process; `simulate` calls it in a world of its own."""
        import meshard

        index = meshard.process_index()
        _process.set(index)
        try:
            exec(self._program, {"__name__": "__main__", "__file__": self._name, "__doc__": None})
        except SystemExit as exit:
            if exit.code not in (None, DONE):
                self.failed(index, exit)
                raise
        except BaseException as error:
            self.failed(index, error)
            raise

    def failed(self, index: int, error: BaseException) -> None:
        """Note the error of a process, unless another was noted before."""
        with self._lock:
            if self.first is None:
                self.first = index, error

    def report(self) -> int:
        """Print the first error, and return the exit code."""
        if self.first is None:
            return DONE
        index, error = self.first
        who = f"process {index}"
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else FAILED
            said = "" if isinstance(error.code, int) else f": {error.code}"
            click.echo(f"meshard simulate: {who} ended with exit code {code}{said}", err=True)
            return code
        click.echo(traceback_from(error, self._name), err=True)
        click.echo(f"meshard simulate: {who} failed; the others were ended", err=True)
        return FAILED


@contextmanager
def _as_main(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Let a script find its arguments, and the modules beside it."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


@contextmanager
def _prefixed(processes: int) -> Iterator[None]:
    """Begin each line that a simulated process prints with its number."""
    lock = threading.Lock()
    kept = sys.stdout, sys.stderr
    mine = [_Prefixed(stream, processes, lock) for stream in kept]
    sys.stdout, sys.stderr = mine
    try:
        yield
    finally:
        sys.stdout, sys.stderr = kept
        for stream in mine:
            stream.end()


@final
class _Prefixed(io.TextIOBase):
    """A stream that passes whole lines on, each with the number of the process that wrote it."""

    def __init__(self, stream: TextIO, processes: int, lock: threading.Lock) -> None:
        self._stream, self._lock = stream, lock
        self._width = len(str(processes - 1))
        self._started: dict[int | None, str] = {}

    @property
    def columns(self) -> int | None:
        """The columns that the numbers leave."""
        whole = columns(self._stream)
        return None if whole is None else whole - self._width - 2

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The stream's encoding."""
        return self._stream.encoding

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Take a text, and print the lines that it ends."""
        index = _process.get()
        with self._lock:
            *lines, self._started[index] = (self._started.get(index, "") + text).split("\n")
            for line in lines:
                self._print(index, line)
        return len(text)

    def end(self) -> None:
        """Print the lines that were not ended."""
        for index, line in sorted(self._started.items(), key=str):
            if line:
                self._print(index, line)
        self._stream.flush()

    def _print(self, index: int | None, line: str) -> None:
        number = "" if index is None else f"{index:>{self._width}}: "
        if number and has_colors(self._stream):
            number = click.style(number, fg=_COLORS[index % len(_COLORS)] if index else _COLORS[0])
        self._stream.write(f"{number}{line}\n")
