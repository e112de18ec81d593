"""What `meshard run` knows of the processes of its job: who has joined, and how each has ended.

In: a line from each process, held for as long as it lives. Out: whether all have ended, and how. A
launcher may wait for ever for a host that is gone, or for nothing at all; the lines say when the
job is over, whatever the launcher says.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import final

from meshard.runtime.lines.connecting import Listener, new_token
from meshard.runtime.lines.line import Line, wait
from meshard.runtime.processes.identity import ENDED, FAILED, GAVE_UP, JOINED, STARTS


@final
@dataclass
class _Member:
    """A process of the job: its line, what it has said last, and when the line was closed."""

    line: Line
    said: str = STARTS
    closed: float | None = None


@final
class Keeper:
    """The lines of a job's processes.

    Attributes:
        variable: The value of `MESHARD_KEEPER`, by which processes find this one.
    """

    def __init__(self) -> None:
        token = new_token()
        self._listener = Listener(token)
        self._members: list[_Member] = []
        self._first_fault: str | None = None
        places = [f"{host}:{port}" for host, port in self._listener.addresses]
        self.variable = " ".join([token.hex(), *places])

    def __enter__(self) -> Keeper:
        """Return the keeper."""
        return self

    def __exit__(self, *ignored: object) -> None:
        """Close all lines."""
        self._listener.close()
        for member in self._members:
            member.line.close()

    @property
    def joined(self) -> int:
        """How many processes have joined."""
        return sum(m.said != STARTS for m in self._members)

    @property
    def never_begins(self) -> bool:
        """Whether a process has gone before all had joined, so that others wait in vain."""
        return any(m.said == STARTS and m.closed is not None for m in self._members)

    @property
    def ended(self) -> int:
        """How many processes have come to the end of their programs."""
        return sum(m.said == ENDED for m in self._members)

    @property
    def blames_program(self) -> bool:
        """Whether no process had gone, or given up, before the first error of a program."""
        return self._first_fault in (None, FAILED)

    def has_ended_well(self, *, elastic: bool) -> bool:
        """Whether all processes that have joined have come to the end of their programs.

        Args:
            elastic: Whether some of them may have been lost; but one must have come to its end.
        """
        faults = [m.said for m in self._members if m.said != ENDED]
        if not elastic or not self.ended:
            return not faults
        return all(said == JOINED for said in faults)

    def over_for(self) -> float:
        """Return for how many seconds all that have joined have been gone; 0 while one lives."""
        closed = [m.closed for m in self._members]
        times = [t for t in closed if t is not None]
        if not times or len(times) < len(closed):
            return 0.0
        return time.monotonic() - max(times)

    def watch(self, seconds: float) -> None:
        """Learn what has happened; wait for that for some time."""
        lines = [m.line for m in self._members]
        wait(lines, seconds, self._listener.files)
        while (line := self._listener.accept()) is not None:
            self._members.append(_Member(line))
        for member in self._members:
            while (said := member.line.poll()) is not None:
                member.said = said.decode("ascii", "replace")
            if member.line.closed and member.closed is None:
                member.closed = time.monotonic()
        if self._first_fault is None:
            faults = [m.said for m in self._members if m.said in (FAILED, GAVE_UP) or m.closed]
            # What was seen at once counts as a loss, if there is one: errors follow from it.
            faults = sorted((f for f in faults if f != ENDED), key=lambda said: said == FAILED)
            self._first_fault = faults[0] if faults else None
