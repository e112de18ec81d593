"""How a process of an MPI job observes the others, apart from their messages.

In: a communicator of its own, and the system's view of processes on the same host. Out: the side
channel of `Watchdog`.
"""

from __future__ import annotations

import socket
import sys
import time
from typing import Any, NoReturn, final

import numpy as np
from mpi4py import MPI

from meshard.mpi.ending import dismiss, end_alone, end_cut_off
from meshard.mpi.lifelines import Gather, Gone, Lifelines
from meshard.runtime.lines.letters import packed, unpacked
from meshard.runtime.processes.told import KeeperLine
from meshard.runtime.processes.watchdog import ENDED, Closed, given_up
from meshard.runtime.processes.whereabouts import Whereabouts, state_of
from meshard.runtime.settings import STOPPED

_LETTER = 7
_OFTEN, _VALID = 0.3, 2.0
"""Seconds between two questions about a process of another host, and for which an answer holds."""
_ASKED = 4
"""The most processes that are asked."""


@final
class MpiSideChannel(Closed):
    """The side channel between the processes of a communicator.

    A process that sees another one gone tells all others, so that all know within a moment, also
    those that have no line to it. What cannot be seen from another host, that a process is
    stopped, the others ask a neighbour of it.

    Args:
        communicator: the processes; a duplicate of it is used.
        keeper: the line to the `meshard run` that has started the job.

    Attributes:
        keeper: the same.
    """

    def __init__(self, communicator: MPI.Intracomm, keeper: KeeperLine) -> None:
        self._comm = communicator.Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._host = socket.gethostname()
        self._known: dict[int, tuple[int, str]] = {}
        self._going: list[tuple[MPI.Request, Any]] = []
        self._coming: list[tuple[MPI.Request, Any]] = []
        self._dead: set[int] = set()
        self._places: list[Whereabouts] = []
        self._lifelines: Lifelines | None = None
        self.keeper = keeper
        self._gone: dict[int, Gone] = {}
        self._well: set[int] = set()
        self._stopped: dict[int, tuple[str, float]] = {}
        self._next_question: dict[int, float] = {}
        self._unanswered: set[tuple[int, int]] = set()

    def know(self, places: list[Whereabouts]) -> None:
        """Learn where the processes are; those of this host can be observed."""
        self._places = places
        for peer, (host, pid, begun) in enumerate(places):
            if host == self._host and begun and state_of(pid)[1] == begun:
                self._known[peer] = pid, begun

    def hold(self, gather: Gather) -> None:
        """Hold lines to processes of other hosts; all processes do this together.

        Args:
            gather: returns what each process gives.
        """
        me = self._comm.Get_rank()
        self._lifelines = lines = Lifelines(me, self._places)
        for peer, (pid, _) in self._known.items():
            if peer != me:
                lines.watch(peer, pid)
        lines.reach(gather)

    def post(self, peer: int, letter: object) -> None:
        """Send a letter; one that cannot be sent is lost."""
        self._going = [one for one in self._going if not _done(one[0])]
        buffer = np.frombuffer(packed(letter), np.uint8)
        try:
            self._going.append((self._comm.Isend([buffer, MPI.BYTE], peer, _LETTER), buffer))
        except MPI.Exception:  # it is dead; processes that wait for it learn so elsewhere
            return

    def collect(self) -> list[Any]:
        """Return the letters that have arrived since the last call."""
        if self._dead or not self._receive(MPI.ANY_SOURCE):
            # MPI refuses to receive from any source if one has died, so each is asked.
            everybody = range(self._comm.Get_size())
            self._dead |= {p for p in everybody if p not in self._dead and not self._receive(p)}
        found = []
        while self._coming:
            request, buffer = self._coming[0]
            try:
                if not request.Test():
                    break
            except MPI.Exception:  # its sender has died while sending
                buffer = None
            del self._coming[0]
            if buffer is not None:
                letter = unpacked(buffer.data)
                if not self._is_ours(*letter):
                    found.append(letter)
        self._see()
        return found

    def _is_ours(self, topic: str, letter: Any) -> bool:
        """Whether a letter is between side channels; it is read here then."""
        if topic == "gone":
            peer, how = letter
            # A host may be out of reach from one side only: whoever reaches it still knows better.
            if how.for_sure or self._lifelines is None or not self._lifelines.holds(peer):
                self._gone.setdefault(peer, how)
        elif topic == "how is":
            peer, asker = letter
            fate = self._fate_here(peer)
            mine = peer, self._comm.Get_rank(), None if fate is None else fate[0]
            self.post(asker, ("is", mine))
        elif topic == "is":
            peer, other, how = letter
            self._unanswered.discard((peer, other))
            if how is None:
                self._stopped.pop(peer, None)
            else:
                self._stopped[peer] = how, time.monotonic() + _VALID
        else:
            if topic == "bye" and letter.ended == ENDED:
                self._well.add(letter.index)
            return False
        return True

    def _see(self) -> None:
        """Look which processes are gone, and tell the others."""
        if self._lifelines is None:
            return
        ended = self._lifelines.ended()
        far = {self._places[peer][0] for peer, how in ended.items() if not how.for_sure}
        if self.keeper.is_cut(far):
            me = self._comm.Get_rank()
            if self.keeper.answers():  # and so does mpiexec, to which the death of a daemon is one
                end_alone(given_up(me, "its `meshard run`"), launched=True)  # of the whole job
            end_cut_off(me)
        for peer, how in ended.items():
            if peer in self._well or peer in self._gone:
                continue
            self._gone[peer] = how
            for other in range(len(self._places)):
                if other != self._comm.Get_rank() and other not in self._gone:
                    self.post(other, ("gone", (peer, how)))

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
        """Return what is wrong with a process, as far as it can be seen; None if nothing is."""
        self._see()
        if peer in self._known:
            return self._fate_here(peer)
        if peer in self._gone:
            return self._gone[peer].how, True
        if peer in self._dead:
            return "has died", True
        self._ask_neighbours(peer)
        how, until = self._stopped.get(peer, ("", 0.0))
        return (how, STOPPED.value == "fail") if time.monotonic() < until else None

    def seen(self, peer: int) -> str | None:
        """Return how a process was lost, as any thread may ask: nothing is sent or received."""
        if peer in self._gone:
            return self._gone[peer].how
        found = self._fate_here(peer)
        return found[0] if found is not None and found[1] else None

    def _fate_here(self, peer: int) -> tuple[str, bool] | None:
        """Return what the system says is wrong with a process of this host; None if nothing."""
        if peer not in self._known:
            return None
        pid, begun = self._known[peer]
        state, since = state_of(pid)
        if since != begun or state in ("Z", "X"):
            return f"has died (pid {pid})", True
        if state in ("T", "t"):
            return f"is stopped (pid {pid})", STOPPED.value == "fail"
        return None

    def dismiss(self, peer: int) -> None:
        """Tell a process that was given up, if it is of this host: also one that is stopped."""
        if peer in self._known:
            dismiss(*self._known[peer])

    def dismissed(self, how: str) -> NoReturn:
        """End this process, which others have given up, and none but this one."""
        end_alone(how, launched=True)

    def _ask_neighbours(self, peer: int) -> None:
        """Ask processes of a process's host how it is."""
        now = time.monotonic()
        if now < self._next_question.get(peer, 0.0) or not self._places:
            return
        self._next_question[peer] = now + _OFTEN
        host = self._places[peer][0]
        near = [p for p, place in enumerate(self._places) if place[0] == host and p != peer]
        for other in [p for p in near if p not in self._gone][:_ASKED]:
            # A process that computes does not answer; letters must not pile up before it.
            if (peer, other) not in self._unanswered:
                self._unanswered.add((peer, other))
                self.post(other, ("how is", (peer, self._comm.Get_rank())))

    def notice(self, text: str) -> None:
        """Write to the standard error."""
        print(f"meshard: {text}", file=sys.stderr, flush=True)

    def flush(self, seconds: float) -> None:
        """Give letters in flight some time to leave."""
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
