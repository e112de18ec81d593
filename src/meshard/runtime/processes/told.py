"""What a process of a job says of itself to the `meshard run` that has started it.

In: the variable `MESHARD_KEEPER`. Out: a line that is held for as long as the process lives, and
words on it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Collection
from typing import final

from meshard.errors import TransportError
from meshard.runtime.lines.connecting import connect
from meshard.runtime.lines.line import Line
from meshard.runtime.processes.whereabouts import launcher

KEEPER = "MESHARD_KEEPER"
"""The variable: a token, and the addresses at which `meshard run` listens."""
STARTS, JOINED, ENDED, FAILED, GAVE_UP = "starts", "joined", "ended", "failed", "gave up"
"""What it says: it waits for all to start; it has joined them; its program has ended, or has
failed; it waited for others in vain."""
_OUT_OF_REACH = tuple(
    os.strerror(code)
    for code in (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN)
)
_PATIENCE = 5.0
"""Seconds that the `meshard run` has to answer; without it the job runs as without one."""

_ANSWER = 1.0
"""Seconds that it has to answer when it is asked whether it can be reached."""


def is_out_of_reach(reason: str) -> bool:
    """Whether a line was closed because its other end does not answer: it may well live."""
    return any(told in reason for told in _OUT_OF_REACH)


@final
class KeeperLine:
    """The line of this process to the `meshard run` that has started it, if there is one.

    Args:
        word: how this process is.
    """

    def __init__(self, word: str = JOINED) -> None:
        token, *places = os.environ.get(KEEPER, "").split() or [""]
        self._line: Line | None = None
        self._places = [(p.rpartition(":")[0], int(p.rpartition(":")[2])) for p in places]
        with contextlib.suppress(TransportError, ValueError):
            self._line = connect(self._places, bytes.fromhex(token), _PATIENCE) if token else None
            os.register_at_fork(after_in_child=self._forget)
            self.say(word)

    def say(self, word: str) -> None:
        """Say how this process is."""
        if self._line is not None:
            with contextlib.suppress(TransportError):
                self._line.send(word.encode())

    def is_cut(self, far: Collection[str] = ()) -> bool:
        """Whether the `meshard run` is out of reach, so that its job goes on without this process.

        Of the two sides of a cut link, the one with the `meshard run` may go on. It closes the line
        of no process that takes part; a host that was paused, or cut off for a while, finds it
        closed.

        Args:
            far: hosts that were found to be out of reach.
        """
        if self._line is None:
            return False
        self._line.poll()
        return self._line.closed or launcher()[0] in far

    def answers(self) -> bool:
        """Whether the `meshard run` can be reached now, whatever has become of the line to it."""
        for place in self._places:
            with contextlib.suppress(OSError), socket.create_connection(place, _ANSWER):
                return True
        return False

    def _forget(self) -> None:
        """Close this copy of the line, in a forked child: it must end with its owner."""
        if self._line is not None:
            self._line.close()
            self._line = None
