"""Running a launcher to its end: its signals, its exit code, and the processes it leaves behind.

In: the command line of an mpiexec. Out: its exit code. An mpiexec that has lost another host waits
for it forever, and ignores requests to end: the processes that it has started are then ended here.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import final

GRACE = 20.0
"""Seconds that a launcher has to end its job, once it was told to or one of its processes has
failed; then all that it has started is ended."""
_SOON = 0.05
_LAST = 1.0
"""Seconds that what a failed job has left has to end by itself."""
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
_PROC = Path("/proc")


def launcher_name() -> str:
    """Return this process's name for the processes of a job: its host, number and start time."""
    return f"{socket.gethostname()}:{os.getpid()}@{_stat(os.getpid())[1]}"


def supervise(line: Sequence[str], settings: Mapping[str, str], grace: float = GRACE) -> int:
    """Run a launcher in a session of its own, and return its exit code.

    Signals that end this process are passed on to it. If it has not ended after the grace
    period, or leaves processes behind when its job has failed, these are killed.

    Args:
        line: The command line.
        settings: Its environment.
        grace: Seconds that it has to end its job.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is not None:  # processes that its processes leave behind become children of this one
        libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def begin() -> None:
        if libc is not None:  # no process is left behind if this one is killed
            libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)

    before = _own_children()
    with _Watch(grace) as watch:
        child = subprocess.Popen(line, env=dict(settings), start_new_session=True, preexec_fn=begin)
        watch.child = child
        while child.poll() is None and not watch.is_over():
            time.sleep(_SOON)
        if child.poll() is None:
            sys.stderr.write(
                f"meshard run: {line[0]} has not ended {grace:g} s after its job was to end; it "
                "and what it has started are killed.\n"
            )
            _kill(_descendants(os.getpid()) - before | {child.pid})
        code = child.wait()
        if code != 0:
            _end_the_rest(before)
    return code if code >= 0 else 128 - code


@final
class _Watch:
    """The signals that come while a launcher runs."""

    def __init__(self, grace: float) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self._grace = grace
        self._until: float | None = None
        self._handlers: dict[int, object] = {}

    def __enter__(self) -> _Watch:
        for number in _FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                self._handlers[number] = signal.signal(number, self._forward)
        self._handlers[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self._note)
        return self

    def __exit__(self, *ignored: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def is_over(self) -> bool:
        """Whether the launcher's grace period is over."""
        return self._until is not None and time.monotonic() >= self._until

    def _forward(self, number: int, frame: FrameType | None) -> None:
        """Pass a signal on; a second one ends the grace period."""
        again = self._until is not None
        self._note(number, frame)
        if again:
            self._until = time.monotonic()
        if self.child is not None and self.child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.child.send_signal(number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Record that the job is to end: one of its processes or a signal says so."""
        if self._until is None:
            self._until = time.monotonic() + self._grace


def _end_the_rest(before: set[int]) -> None:
    """End what a failed job has left behind, if it does not end by itself."""
    until = time.monotonic() + _LAST
    while left := _descendants(os.getpid()) - before:
        if time.monotonic() >= until:
            _kill(left)
        for pid in left:
            with contextlib.suppress(ChildProcessError, PermissionError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(_SOON)


def _own_children() -> set[int]:
    return _descendants(os.getpid())


def _kill(processes: set[int]) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _descendants(root: int) -> set[int]:
    """Return the processes that a process has started, and those that these have."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    left = [root]
    while left:
        new = children.get(left.pop(), [])
        found.update(new)
        left += new
    return found


def _parents() -> Iterator[tuple[int, int]]:
    if _PROC.is_dir():
        for entry in _PROC.iterdir():
            if entry.name.isdecimal():
                parent = _stat(int(entry.name))[0]
                if parent:
                    yield int(entry.name), parent


def _stat(pid: int) -> tuple[int, str]:
    """Return a process's parent and start time; 0 and an empty text if it does not exist."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0, ""
    told = text.rpartition(")")[2].split()
    return int(told[1]), told[19]
