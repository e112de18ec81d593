"""How a process waits for others: it gives its core away, and sleeps where that is dear or vain.

In: moments in which nothing could be done. Out: time that others have. Giving the core away is the
quickest way to pass work on between processes that share a core, and costs nothing where each has
its own. But a program that does not wait keeps the core that it is given for milliseconds. Sleep at
a doorbell costs two calls of the system, and ends as soon as a neighbour rings.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import final

from meshard.mpi.doorbell import Doorbell
from meshard.tuning import EAGER_SECONDS, LOST_CORE, REGRETS

_NAP = 1e-4
"""Seconds of a sleep that nobody ends."""
_SHORT, _LONG = 1e-3, 1e-2
"""Seconds after which a sleeper looks around by itself: the first time, and at most."""
_GIVE_AWAY: Callable[[], None] | None = getattr(os, "sched_yield", None)
_AWAKE = -2
_ANYTHING = -1


@final
class Patience:
    """How one process waits.

    Attributes:
        doorbell: where it sleeps; None if no neighbour can ring.
    """

    def __init__(self) -> None:
        self.doorbell: Doorbell | None = None
        self._dear_until = 0.0
        self._begun = 0.0
        self._announced = _AWAKE
        self._most = _SHORT

    def begin(self) -> None:
        """Begin to wait."""
        self._begun = 0.0
        self._most = _SHORT

    def end(self) -> None:
        """End to wait."""
        if self._announced != _AWAKE:
            self._announced = _AWAKE
            assert self.doorbell is not None
            self.doorbell.withdraw()

    def gave_core_away(self) -> bool:
        """Let others run, if that is likely to be short; return whether it was done."""
        now = time.monotonic()
        if not self._begun:
            self._begun = now
        if now < self._dear_until or now - self._begun >= EAGER_SECONDS or _GIVE_AWAY is None:
            return False
        _GIVE_AWAY()
        lost = time.monotonic() - now
        if lost > LOST_CORE:
            self._dear_until = now + lost * REGRETS
        return True

    def nap(self) -> bool:
        """Sleep for a moment, where nobody rings."""
        time.sleep(_NAP)
        return True

    def slept(self, place: int | None) -> bool:
        """Sleep until a neighbour rings; the first time only say so, and return False.

        The process is to look once more then, since a neighbour may just have written.

        Args:
            place: the number on the host of the neighbour whose letter is waited for; None if
                anything that a neighbour does may help.
        """
        bell = self.doorbell
        assert bell is not None
        wanted = _ANYTHING if place is None else place
        if self._announced != wanted:
            self._announced = wanted
            bell.announce(place)
            return False
        bell.sleep(self._most)
        self._announced = _AWAKE
        self._most = min(2 * self._most, _LONG)
        return True
