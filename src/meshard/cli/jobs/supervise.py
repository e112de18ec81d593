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
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import final

from meshard.cli.jobs.keeper import Keeper
from meshard.cli.jobs.launcher import Outliving
from meshard.runtime.processes.identity import KEEPER

GRACE = 20.0
"""Seconds that a launcher has to end its job, once it was told to or one of its processes has
failed; then all that it has started is ended."""
_LINGER = 5.0
"""Seconds that a launcher has to end once all processes of its job have."""
FUTILE = 10.0
"""Seconds within which an error of the program ends an attempt that need not be repeated."""
_SOON = 0.05
_LAST = 1.0
"""Seconds that what a failed job has left has to end by itself."""
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
_PROC = Path("/proc")
_FOLDERS = "PRTE_MCA_prte_local_tmpdir_base"
"""Variable that says where Open MPI's mpiexec makes the folder of its job on this host."""


def launcher_name() -> str:
    """Return this process's name for the processes of a job: its host, number and start time."""
    return f"{socket.gethostname()}:{os.getpid()}@{_stat(os.getpid())[1]}"


@final
@dataclass(frozen=True)
class Outcome:
    """How a launcher has ended.

    Attributes:
        code: Its exit code, or that of its job if the launcher did not know it.
        was_told: Whether a signal has ended the job.
        was_futile: Whether an error of the program itself has ended it, within seconds.
    """

    code: int
    was_told: bool
    was_futile: bool


def supervise(
    line: Sequence[str],
    settings: Mapping[str, str],
    *,
    processes: int = 0,
    elastic: bool = False,
    strict: bool = False,
    grace: float = GRACE,
) -> Outcome:
    """Run a launcher in a session of its own, and return how it has ended.

    Signals that end this process are passed on to it. It is killed, with all that it has started
    on this host, if it has not ended within the grace period, if it does not end although all
    processes of its job have, or if it leaves processes behind when its job has failed.

    Args:
        line: The command line.
        settings: Its environment.
        processes: How many processes it starts; 0 if that is not known.
        elastic: Whether the job may lose processes, and yet end well.
        strict: Whether a process that ends without a word has failed, whatever the launcher says:
            Open MPI's was seen to end with 0 when it had lost a host.
        grace: Seconds that it has to end its job.
    """
    begun = time.monotonic()
    with Keeper() as keeper, _Watch(grace) as watch, _own_folder() as folder:
        before = _descendants(os.getpid())
        settings = {_FOLDERS: folder, **settings, KEEPER: keeper.variable}
        agent = Outliving(folder, settings, elastic=elastic)
        settings |= agent.settings
        child = watch.child = _start(line, settings)
        alone = _wait(child, watch, keeper, processes, agent)
        killed = child.poll() is None
        if killed:
            why = "although all its processes have" if alone else f"in {grace:g} s"
            _say(f"{line[0]} has not ended its job {why}; it and what it has started are killed.")
            child.kill()
        code = child.wait()
        code = code if code >= 0 else 128 - code
        keeper.watch(0.0)
        well = keeper.has_ended_well(elastic=elastic)
        if killed and alone:
            code = 0 if well else 1
        elif strict and code == 0 and not well:
            _say(f"{keeper.joined - keeper.ended} of {keeper.joined} processes ended too early.")
            code = 1
        if code != 0 or killed:
            _end_the_rest(before)
        quick = time.monotonic() - begun < FUTILE
        return Outcome(code, watch.was_told, quick and 0 < code < 128 and keeper.blames_program)


def _own_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a folder for the files of one launcher.

    Open MPI's mpiexec makes a folder named after its process number, which stays if it is killed;
    a later one of that number then refuses to start.
    """
    return tempfile.TemporaryDirectory(prefix="meshard-run-", ignore_cleanup_errors=True)


def _start(line: Sequence[str], settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a launcher whose processes become this one's if it dies."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is not None:
        libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def begin() -> None:
        if libc is not None:  # no process is left behind if this one is killed
            libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)

    return subprocess.Popen(line, env=settings, start_new_session=True, preexec_fn=begin)


def _wait(
    child: subprocess.Popen[bytes],
    watch: _Watch,
    keeper: Keeper,
    processes: int,
    agent: Outliving,
) -> bool:
    """Wait until a launcher has ended, or is to be killed; return whether it waits for nobody."""
    ending = False
    while child.poll() is None and not watch.is_over():
        keeper.watch(_SOON)
        if 0 < processes <= keeper.joined:
            agent.begin()
        elif agent.elastic and keeper.never_begins and not ending:
            ending = True
            _say("a process has ended before the job began, and the others wait for it; all end.")
            watch.end()
        if 0 < processes <= keeper.joined and keeper.over_for() >= _LINGER:
            return True
    return False


def _say(text: str) -> None:
    sys.stderr.write(f"meshard run: {text}\n")
    sys.stderr.flush()


@final
class _Watch:
    """The signals that come while a launcher runs.

    Attributes:
        child: The launcher.
        was_told: Whether a signal has said that the job is to end.
    """

    def __init__(self, grace: float) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self._grace = grace
        self.was_told = False
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

    def end(self) -> None:
        """Have the launcher end its job, which cannot go on."""
        self._note(signal.SIGTERM, None)
        if self.child is not None and self.child.poll() is None:
            self.child.terminate()

    def _forward(self, number: int, frame: FrameType | None) -> None:
        """Pass a signal on; a second one ends the grace period."""
        again, self.was_told = self._until is not None, True
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
