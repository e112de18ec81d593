"""What a process of an MPI job sees of the others beside their messages.

In: a communicator of its own, and what the system says of processes of the same host. Out: the side
channel of `Lookout`, and the last words of a process that ends.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import socket
import sys
import time
import zlib
from dataclasses import replace
from types import FrameType
from typing import Any, final

import numpy as np
from mpi4py import MPI

from meshard.errors import TransportError
from meshard.runtime.lookout import Lookout

__all__ = [
    "MpiLetters",
    "Whereabouts",
    "say_goodbye",
    "speak_before_abort",
    "speak_when_ended",
    "whereabouts",
]

_LETTER = 7
_SHORT = 3500
"""Bytes that MPI sends at once, so that nobody must wait for a letter to be taken."""
_COURTESY = 2.0
"""Seconds that a process that has failed gives the others to say so too."""

Whereabouts = tuple[str, int, str]
"""A process's host, its number there, and when it began."""


def whereabouts() -> Whereabouts:
    """Return where this process is."""
    return socket.gethostname(), os.getpid(), _state(os.getpid())[1]


def _state(pid: int) -> tuple[str, str]:
    """Return what the system says of a process, and when it began; empty if it is not there."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            told = file.read().rpartition(")")[2].split()
        return told[0], told[19]
    except (OSError, IndexError):
        return "", ""


@final
class MpiLetters:
    """The side channel between the processes of a communicator.

    Args:
        communicator: the processes; a duplicate of it is used.
    """

    def __init__(self, communicator: MPI.Intracomm) -> None:
        self._comm = communicator.Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._host = socket.gethostname()
        self._known: dict[int, tuple[int, str]] = {}
        self._going: list[tuple[MPI.Request, Any]] = []
        self._coming: list[tuple[MPI.Request, Any]] = []
        self._dead: set[int] = set()

    def know(self, told: list[Whereabouts]) -> None:
        """Learn where the processes are; those of this host can be looked at."""
        for peer, (host, pid, begun) in enumerate(told):
            if host == self._host and begun and _state(pid)[1] == begun:
                self._known[peer] = pid, begun

    def post(self, peer: int, letter: object) -> None:
        """Send a letter; what cannot be sent is lost."""
        self._going = [one for one in self._going if not _done(one[0])]
        buffer = np.frombuffer(zlib.compress(pickle.dumps(letter), 1), np.uint8)
        try:
            self._going.append((self._comm.Isend([buffer, MPI.BYTE], peer, _LETTER), buffer))
        except MPI.Exception:  # it is dead; whoever waits for it is told so elsewhere
            return

    def collect(self) -> list[Any]:
        """Return the letters that have come since."""
        if self._dead or not self._receive(MPI.ANY_SOURCE):
            # MPI refuses to receive from anybody while one has died: each is asked then.
            everybody = range(self._comm.Get_size())
            self._dead |= {p for p in everybody if p not in self._dead and not self._receive(p)}
        found = []
        while self._coming:
            request, buffer = self._coming[0]
            try:
                if not request.Test():
                    break
            except MPI.Exception:  # who sent it has died on the way
                buffer = None
            del self._coming[0]
            if buffer is not None:
                found.append(pickle.loads(zlib.decompress(buffer.tobytes())))
        return found

    def _receive(self, peer: int) -> bool:
        """Begin to receive the letters of a process; return whether it lives."""
        try:
            while message := self._comm.Improbe(peer, _LETTER, status=(status := MPI.Status())):
                buffer = np.empty(status.Get_count(MPI.BYTE), np.uint8)
                self._coming.append((message.Irecv([buffer, MPI.BYTE]), buffer))
        except MPI.Exception:
            return False
        return True

    def fate(self, peer: int) -> tuple[str, bool] | None:
        """Return what the system says of a process of this host; None if nothing is the matter."""
        if peer not in self._known:
            return ("has died", True) if peer in self._dead else None
        pid, begun = self._known[peer]
        state, since = _state(pid)
        if since != begun or state in ("Z", "X"):
            return f"has died (pid {pid})", True
        if state in ("T", "t"):
            return f"is stopped (pid {pid})", False
        return None

    def notice(self, text: str) -> None:
        """Write to the standard error."""
        print(f"meshard: {text}", file=sys.stderr, flush=True)

    def flush(self, seconds: float) -> None:
        """Give letters that are on their way some time to leave."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._going = [one for one in self._going if not _done(one[0])]
            if not self._going:
                return
            time.sleep(1e-3)


def _done(request: MPI.Request) -> bool:
    try:
        return bool(request.Test())
    except MPI.Exception:
        return True


def say_goodbye(lookout: Lookout, letters: MpiLetters) -> None:
    """Tell the others when this process's program ends, since they may wait for it in vain."""

    def leave() -> None:
        if MPI.Is_finalized():
            return
        account = lookout.agreement.account(whole=True, ended="has ended its program")
        kept = len(account.entries)
        while kept and len(zlib.compress(pickle.dumps(account), 1)) > _SHORT:
            kept //= 2
            dropped = len(account.entries) - kept
            before = account.before + dropped
            account = replace(account, entries=account.entries[dropped:], before=before)
        lookout.goodbye(account)
        letters.flush(0.2)

    atexit.register(leave)


def speak_before_abort(lookout: Lookout, error: BaseException) -> None:
    """Give the others time to say what is wrong, if it is something that all of them see."""
    lookout.end()
    if not isinstance(error, TransportError):
        return
    lookout.report()
    until = time.monotonic() + _COURTESY
    while time.monotonic() < until and not lookout.all_reported():
        time.sleep(1e-2)


def speak_when_ended(lookout: Lookout) -> None:
    """Say where this process waits when mpiexec ends it, as it does when another has died."""

    def speak(number: int, frame: FrameType | None) -> None:
        told = lookout.interrupted()
        if told is not None:
            sys.stderr.write(f"meshard: the job is ended. {told}\n")
            sys.stderr.flush()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    try:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, speak)
    except ValueError:  # not the main thread: the system's own way holds
        return
