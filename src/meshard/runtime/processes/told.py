"""What a process of a job says of itself to the `meshard run` that has started it.

In: the variable `MESHARD_KEEPER`. Out: a line that is held for as long as the process lives, and
words on it.
"""

from __future__ import annotations

import contextlib
import os
from typing import final

from meshard.errors import TransportError
from meshard.runtime.lines.connecting import connect
from meshard.runtime.lines.line import Line

KEEPER = "MESHARD_KEEPER"
"""The variable: a token, and the addresses at which `meshard run` listens."""
JOINED, ENDED, FAILED, GAVE_UP = "joined", "ended", "failed", "gave up"
"""What it says: it has joined; its program has ended, or has failed; it waited for others in vain.
"""
_PATIENCE = 5.0
"""Seconds that the `meshard run` has to answer; without it the job runs as without one."""


@final
class KeeperLine:
    """The line of this process to the `meshard run` that has started it, if there is one."""

    def __init__(self) -> None:
        token, *places = os.environ.get(KEEPER, "").split() or [""]
        self._line: Line | None = None
        addresses = [(p.rpartition(":")[0], int(p.rpartition(":")[2])) for p in places]
        with contextlib.suppress(TransportError, ValueError):
            self._line = connect(addresses, bytes.fromhex(token), _PATIENCE) if token else None
            os.register_at_fork(after_in_child=self._forget)
            self.say(JOINED)

    def say(self, word: str) -> None:
        """Say how this process is."""
        if self._line is not None:
            with contextlib.suppress(TransportError):
                self._line.send(word.encode())

    def _forget(self) -> None:
        """Close this copy of the line, in a forked child: it must end with its owner."""
        if self._line is not None:
            self._line.close()
            self._line = None
