"""The programs of one jitted function in one world: kept by signature, up to a number.

In: signatures. Out: what was made for them before. The oldest are forgotten when there are too
many, as for a function that is called with a new shape each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, final

from meshard.runtime.world import RuntimeWorld
from meshard.transforms.jit.stages import ProgramEntry
from meshard.transforms.tracing.signature import Trace
from meshard.tuning import MOST_PROGRAMS

Made = TypeVar("Made")


@final
class Programs:
    """What was traced and lowered.

    Attributes:
        world: the world in which it was.
        entries: for each signature and layout of arguments what a call runs.
        traces: for each signature without it, the trace.
        nested: for each signature inside other functions, the trace.
        plain: the entries of signatures that were met with a flat list of arrays and numbers: by
            the types of these, and what else a signature holds.
    """

    __slots__ = ("__weakref__", "_making", "entries", "nested", "plain", "traces", "world")

    def __init__(self, world: RuntimeWorld) -> None:
        self.world = world
        self.entries: dict[Any, ProgramEntry] = {}
        self.traces: dict[Any, Trace] = {}
        self.nested: dict[Any, Any] = {}
        self.plain: dict[tuple[Any, ...], ProgramEntry] = {}
        # Two threads that call a function for the first time trace it once. A function that calls
        # itself with arrays gets here again.
        self._making = threading.RLock()

    def entry(self, key: Hashable, make: Callable[[], ProgramEntry]) -> ProgramEntry:
        """Return what a call of this signature runs, made now if it is not known yet."""
        return self._kept(self.entries, key, make)

    def trace(self, key: Hashable, make: Callable[[], Trace]) -> Trace:
        """Return the trace of this signature, made now if it is not known yet."""
        return self._kept(self.traces, key, make)

    def _kept(self, known: dict[Any, Made], key: Hashable, make: Callable[[], Made]) -> Made:
        with self._making:
            found = known.get(key)
            if found is None:
                found = make()
                self.keep(known, key, found)
            return found

    def keep(self, known: dict[Any, Made], key: Hashable, made: Made) -> None:
        """Keep what was made of a signature, and forget the oldest where there are too many."""
        with self._making:
            while len(known) >= MOST_PROGRAMS:
                del known[next(iter(known))]
            known[key] = made
