"""How a process of a job ends, in any way, and what the others and the user learn about it.

In: the end of a program, an error that nobody has caught, a signal. Out: the last letters to the
others, the error told once, and an end for which nobody waits in vain.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn, Protocol, final

from meshard.errors import AgreementError, TransportError
from meshard.runtime.lines.letters import packed
from meshard.runtime.memory.forks import depth
from meshard.runtime.processes import identity
from meshard.runtime.processes.identity import KeeperLine, launcher, parent_of, state_of
from meshard.runtime.processes.watchdog import ENDED, Watchdog, given_up

_SHORT = 3500
"""Bytes that MPI sends at once, so that no sender waits for a letter to be received."""
_SOON = 1e-2
"""Seconds between two checks by a process that ends."""
_FLUSH = 0.2
"""Seconds that letters have to leave before a process ends."""
_HEARD = 0.2
"""Seconds before a job is aborted: mpiexec may drop what was written but has not reached it."""
_COURTESY = 2.0
"""Seconds that a process that has failed gives the others to report it too."""

_LAST = 3
"""Seconds that MPI has to end in a process that ends alone."""
TOLERANT = "OMPI_MCA_mpi_ft_enable"
"""Variable by which mpiexec says that processes outlive the death of others."""
_SEGMENT = "/dev/shm/sm_segment."
"""How the files begin in which Open MPI's processes of a host share memory."""
_DISMISSED = getattr(signal, "SIGRTMIN", 34) + 11
"""The signal by which a process of this host is told that it was given up. It waits for one that is
stopped, whoever has ended meanwhile; and no library is known to use it."""

Show = Callable[[], None]


class Flushed(Protocol):
    """A side channel that can be waited for.

    Attributes:
        keeper: the line to the `meshard run` that has started the job.
    """

    keeper: KeeperLine

    def flush(self, seconds: float) -> None:
        """Give letters in flight some time to leave."""


@final
class ProcessExit:
    """How this process ends, and what the others learn about it.

    Args:
        watchdog: what this process knows about the others.
        channel: the way to reach them.
        abort: ends all processes of the job.
    """

    def __init__(self, watchdog: Watchdog, channel: Flushed, abort: Callable[[], NoReturn]) -> None:
        self._watchdog = watchdog
        self._channel = channel
        self._abort = abort
        self._keeper = channel.keeper
        self._born = depth()

    @property
    def is_copy(self) -> bool:
        """Whether this process is a forked child, whose end does not concern the job."""
        return depth() != self._born

    def is_orderly(self) -> bool:
        """Tell the others that the program has ended, and wait for their end.

        Returns:
            Whether all end this way, so that all can end MPI together. If one has failed or died,
            it must not be waited for: this process ends alone, and its exit code counts.
        """
        self._goodbye(ENDED)
        while not self._watchdog.all_ended():
            if self._watchdog.any_failed():
                self._watchdog.give_up_the_stopped()
                self._wait_for_reports()
                self._channel.flush(_FLUSH)
                return False
            time.sleep(_SOON)
        self._channel.flush(_FLUSH)
        return not self._watchdog.any_died()

    def _wait_for_reports(self) -> None:
        """Give the others time to report what is wrong."""
        until = time.monotonic() + _COURTESY
        while time.monotonic() < until and not self._watchdog.all_reported():
            time.sleep(_SOON)

    def _goodbye(self, how: str) -> None:
        account = self._watchdog.agreement.account(whole=True, ended=how)
        kept = len(account.entries)
        while kept and len(packed(account)) > _SHORT:
            kept //= 2
            dropped = len(account.entries) - kept
            before = account.before + dropped
            account = replace(account, entries=account.entries[dropped:], before=before)
        self._watchdog.goodbye(account)

    def on_error(self, error: BaseException, show: Show) -> NoReturn:
        """End the whole job after an uncaught error.

        Args:
            error: the error.
            show: writes it with its traceback.
        """
        watchdog, me = self._watchdog, self._watchdog.agreement.index
        watchdog.end()
        watchdog.hear()  # a process that was given up ends here: the job is none of its business
        in_vain = isinstance(error, TransportError)
        self._keeper.say(identity.GAVE_UP if in_vain else identity.FAILED)
        if not in_vain:
            self._goodbye(f"has failed with {type(error).__name__}")
        if isinstance(error, AgreementError) and not self._is_first():
            print(f"meshard: process {me} has found this too.", file=sys.stderr, flush=True)
        else:
            show()
            say_failed(me)
        if in_vain:  # all of them see it
            watchdog.report()
            self._wait_for_reports()
            if watchdog.any_ended():  # its exit code is the job's: it ends once all have reported
                time.sleep(_COURTESY)
        time.sleep(_HEARD)
        self._abort()

    def _is_first(self) -> bool:
        """Whether this process is to report what several have found, as the first that reports."""
        self._watchdog.claim()
        until = time.monotonic() + _COURTESY
        while time.monotonic() < until:
            first = self._watchdog.first_to_report()
            if first is not None:
                return first
            time.sleep(_SOON)
        return True


def end_on_error(ending: ProcessExit) -> None:
    """End the whole job when this process fails, since the others would wait for it."""
    before = sys.excepthook

    def report(
        class_: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if ending.is_copy:
            before(class_, error, trace)
        else:
            _let_finish()
            ending.on_error(error, lambda: before(class_, error, trace))

    sys.excepthook = report


def _let_finish() -> None:
    """Let this process tell its error to the end, also if mpiexec ends the job meanwhile.

    It ends by itself when it has; mpiexec does not wait long for one that does not.
    """
    with contextlib.suppress(ValueError):  # not the main thread: the system's own way holds
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def say_failed(process: int) -> None:
    """Report that this process has failed."""
    print(f"meshard: process {process} has failed; the job is ended.", file=sys.stderr, flush=True)
    sys.stdout.flush()


def speak_when_ended(watchdog: Watchdog) -> None:
    """Report where this process waits when mpiexec ends it because another has died."""
    born = depth()

    def speak(number: int, frame: FrameType | None) -> None:
        where = watchdog.interrupted() if depth() == born else None
        if where is not None:
            sys.stderr.write(f"meshard: the job is ended. {where}\n")
            sys.stderr.flush()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    try:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, speak)
    except ValueError:  # not the main thread: the system's own way holds
        return


def dismiss(pid: int, begun: str) -> None:
    """Tell a process of this host, even if it is stopped, that the others have given it up.

    Args:
        pid: its number.
        begun: when it began.
    """
    if begun and state_of(pid)[1] == begun:
        with contextlib.suppress(OSError):
            os.kill(pid, _DISMISSED)


def end_when_dismissed(index: int, *, launched: bool) -> None:
    """End this process as soon as it goes on after the others have given it up.

    Args:
        index: its number.
        launched: whether mpiexec has started it.
    """
    born = depth()

    def end(number: int, frame: FrameType | None) -> None:
        if depth() == born:
            end_alone(given_up(index, "the others"), launched=launched)

    with contextlib.suppress(ValueError):  # not the main thread: the signal ends it, without a word
        signal.signal(_DISMISSED, end)


def end_alone(why: str, *, launched: bool) -> NoReturn:
    """End this process, and none but it.

    mpiexec ends the job of a process that ends by itself with an error. Where others may outlive it
    (ULFM), this one ends as one that was killed; elsewhere as one whose program has ended.

    Args:
        why: what is written to the standard error.
        launched: whether mpiexec has started it.
    """
    with contextlib.suppress(OSError):
        os.write(2, f"meshard: {why}\n".encode())
    with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):
        sys.stdout.flush()
    if launched and os.environ.get(TOLERANT) != "1":
        _finalize_alone()
        os._exit(0)
    if launched:
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _finalize_alone() -> None:
    """End MPI in this process, if it lets it end without the others."""
    from mpi4py import MPI

    if not MPI.Is_finalized() and wait_for_none(MPI):
        with contextlib.suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_LAST)
        MPI.Finalize()


def wait_for_none(mpi: Any) -> bool:
    """Keep Open MPI from waiting for other processes when it is ended; return whether it can be.

    If the program has imported mpi4py before meshard, mpi4py ends MPI with the interpreter, and
    cannot be told not to. Open MPI then waits for all processes, dead ones too, unless its own flag
    is set.
    """
    with contextlib.suppress(OSError, ValueError):  # another MPI
        flag = ctypes.c_bool.in_dll(ctypes.CDLL(mpi.__file__), "ompi_async_mpi_finalize")
        flag.value = True
        return True
    return False


def end_cut_off(process: int) -> NoReturn:
    """End this process, and Open MPI's daemon that has started it: their host is cut off."""
    sys.stderr.write(
        f"meshard: process {process} is cut off from its `meshard run`, whose job goes on without "
        "it or has ended; it ends.\n"
    )
    sys.stderr.flush()
    sys.stdout.flush()
    _remove_segments()
    name, above = parent_of(parent := os.getppid())
    while name and name != "prted":  # a shell, for example
        name, above, parent = *parent_of(above), above
    while name == "prted":  # it waits for its mpiexec for ever
        # Its folder comes first: processes end soon after their daemon.
        shutil.rmtree(os.path.join(tempfile.gettempdir(), f"prted.{parent}"), ignore_errors=True)
        with contextlib.suppress(OSError):
            os.kill(parent, signal.SIGKILL)
        name, above, parent = *parent_of(above), above
    os._exit(1)


def _remove_segments() -> None:
    """Remove the memory that Open MPI shares on this host: its daemon, which would, is killed."""
    with contextlib.suppress(OSError):
        mapped = Path("/proc/self/maps").read_text(errors="replace").split()
        for job in {path.rpartition(".")[0] for path in mapped if path.startswith(_SEGMENT)}:
            for path in Path(job).parent.glob(f"{Path(job).name}.*"):
                path.unlink(missing_ok=True)


def tell_launcher() -> None:
    """Tell the `meshard run` that has started this job that it is being ended.

    An mpiexec that has lost another host waits for it forever: `meshard run` then ends it.
    """
    host, pid, begun = launcher()
    if host == socket.gethostname() and pid and state_of(pid)[1] == begun:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGUSR1)
