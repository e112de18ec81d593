"""How a process waits for others: it gives its core away, and sleeps where that is dear or vain.

In: moments in which nothing could be done. Out: time that others have. Giving the core away is the
quickest way to pass work on between processes that share a core, and costs nothing where each has
its own. But a program that does not wait keeps the core that it is given for milliseconds. Sleep at
a doorbell costs two calls of the system, and ends as soon as a neighbour rings.

Doorbells: where a process of a host sleeps until a neighbour has written to it.

In: a word of memory that both see. Out: sleep that ends when a neighbour rings. Only its owner says
in the word that it sleeps, and for whom; neighbours only take that back. So nothing is rung for a
process that is awake, and no ring is lost between the last look and the sleep.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import cache
from struct import Struct, calcsize
from typing import final

import numpy as np

from meshard.tuning import EAGER_SECONDS, LOST_CORE, REGRETS

_WORD_AWAKE, ANYTHING, _FIRST = 0, 1, 2
"""What a word says: its owner is awake, waits for anything, or for a letter of place 0 (and on)."""
_SYSTEM_CALLS = {"x86_64": 202, "amd64": 202, "aarch64": 98, "arm64": 98, "riscv64": 98}
"""The number of Linux's ``futex``."""
_WAIT, _WAKE = 0, 1
_TIME = Struct("qq")
_NAP = 1e-4
"""Seconds of a sleep that nobody can end, where the system has no futex."""


@cache
def _futex() -> Callable[..., int] | None:
    """Return Linux's way to sleep on a word of memory; None on other systems."""
    number = _SYSTEM_CALLS.get(platform.machine().lower())
    if number is None or sys.platform != "linux" or calcsize("P") != 8:
        return None
    call = ctypes.CDLL(None).syscall
    call.restype = ctypes.c_long
    word, flags = ctypes.c_void_p, ctypes.c_uint32
    call.argtypes = [ctypes.c_long, word, ctypes.c_int, flags, ctypes.c_char_p, word, flags]
    return lambda address, what, value, until: call(number, address, what, value, until, None, 0)


@final
class Doorbell:
    """The doorbell of one process of a host, as its owner or a neighbour sees it.

    Args:
        memory: its word, of four bytes.

    Attributes:
        word: what the owner says of itself.
    """

    def __init__(self, memory: memoryview) -> None:
        self.word = memory.cast("I")
        self._address: int = np.asarray(self.word).__array_interface__["data"][0]
        self._call = _futex()

    def announce(self, place: int | None) -> None:
        """Say that the owner is about to sleep; it looks around once more, and then sleeps.

        Args:
            place: the number on the host of the process whose letter it waits for; None if
                anything that a neighbour does may help.
        """
        self.word[0] = ANYTHING if place is None else _FIRST + place

    def withdraw(self) -> None:
        """Say that the owner is awake."""
        self.word[0] = _WORD_AWAKE

    def sleep(self, seconds: float) -> None:
        """Sleep until a neighbour rings, or some time has passed; at once if one has rung."""
        said = self.word[0]
        if said == _WORD_AWAKE:
            return
        if self._call is None:
            time.sleep(_NAP)
        else:
            whole = int(seconds)
            until = _TIME.pack(whole, int((seconds - whole) * 1e9))
            self._call(self._address, _WAIT, said, until)
        self.word[0] = _WORD_AWAKE

    def ring(self) -> None:
        """Wake the owner."""
        # Several neighbours may do this at once: all write the same.
        self.word[0] = _WORD_AWAKE
        if self._call is not None:
            self._call(self._address, _WAKE, 1, None)

    def after_letter(self, place: int) -> None:
        """Wake the owner if it waits for a letter of the process of that number."""
        said = self.word[0]
        if said == ANYTHING or said == _FIRST + place:
            self.ring()


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
