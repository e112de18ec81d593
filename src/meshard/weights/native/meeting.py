"""Meetings: each process of a save tells the others whether its part is written.

In: a small record of each process. Out: those of all. A save that is waited for meets by messages,
one round of them; one that goes on behind the program meets by files beside the data, because only
the program's own thread may send messages.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar, final

from meshard.errors import CheckpointError, CorruptFileError
from meshard.runtime.settings import TIMEOUT
from meshard.runtime.world import RuntimeWorld
from meshard.weights.native.files import replace_file

T = TypeVar("T")
Record = list[str | int | None]
_OFTEN, _SELDOM = 2e-3, 0.1


class Meeting(Protocol):
    """How the processes of one save learn about each other."""

    def gather(self, record: Record) -> list[Record] | None:
        """Return the records of all processes, in order, to the first; None to the others."""

    def announce(self, outcome: str | None) -> str | None:
        """Return what the first process says about the save: None if it is complete."""


@final
class ByMessages:
    """A meeting by messages.

    Args:
        world: this process's world.
    """

    def __init__(self, world: RuntimeWorld) -> None:
        self._world = world

    def gather(self, record: Record) -> list[Record] | None:
        """Return the records of all processes, in order, to the first; None to the others."""
        found: list[Record] = self._all(record)
        return found if self._world.process_index == self._world.first else None

    def announce(self, outcome: str | None) -> str | None:
        """Return what the first process says about the save: None if it is complete."""
        told: str | None = self._all(outcome)[0]
        return told

    def _all(self, value: object) -> Any:
        return self._world.transport.all_gather(value, self._world.processes)


@final
class ByFiles:
    """A meeting by files in the folder of the data, which all processes see.

    Args:
        folder: the folder.
        process: this process.
        processes: all of them, ascending.
        is_complete: whether the checkpoint that is saved can be seen.
        lost_of: which of some processes are lost, and how; any thread may call it.
    """

    def __init__(
        self,
        folder: Path,
        process: int,
        processes: Sequence[int],
        is_complete: Callable[[], bool],
        lost_of: Callable[[Sequence[int]], Mapping[int, str]] = lambda peers: {},
    ) -> None:
        self._folder = folder
        self._process = process
        self._processes = tuple(processes)
        self._is_complete = is_complete
        self._lost_of = lost_of

    def gather(self, record: Record) -> list[Record] | None:
        """Return the records of all processes, in order, to the first; None to the others.

        Raises:
            CheckpointError: if one is not there in time, or is lost before.
        """
        if self._process != self._processes[0]:
            replace_file(self._path(self._process), json.dumps(record).encode("utf-8"))
            return None
        found = {self._process: record}

        def arrived() -> bool:
            for process in self._processes:
                if process not in found:
                    with suppress(FileNotFoundError):
                        found[process] = _read(self._path(process), list)
            return len(found) == len(self._processes)

        def lost() -> bool:
            return bool(self._lost_of([p for p in self._processes if p not in found]))

        if not _waited(arrived, lost):
            self._refuse_lost([p for p in self._processes if p not in found])
            missing = next(p for p in self._processes if p not in found)
            raise CheckpointError(
                f"process {missing} has not written its part within {TIMEOUT.value:g} s: "
                f"{self._path(missing)} is missing. All processes must see one folder."
            )
        return [found[p] for p in self._processes]

    def announce(self, outcome: str | None) -> str | None:
        """Return what the first process says about the save: None if it is complete.

        Raises:
            CheckpointError: if it says nothing in time, or is lost before.
        """
        failed = self._folder / "failed.json"
        if self._process == self._processes[0]:
            if outcome is not None and len(self._processes) > 1:
                replace_file(failed, json.dumps(outcome).encode("utf-8"))
            for process in self._processes[1:]:
                with suppress(OSError):
                    os.unlink(self._path(process))
            return outcome
        # The first process takes the record away when it has done all that follows the commit.
        own = self._path(self._process)
        first = self._processes[:1]
        ended = _waited(
            lambda: failed.exists() or not own.exists(), lambda: bool(self._lost_of(first))
        )
        if not ended and not self._is_complete():
            self._refuse_lost(first)
            raise CheckpointError(
                f"the first process has not completed the checkpoint within {TIMEOUT.value:g} s."
            )
        if self._is_complete():
            return None
        # It was completed, and another save has replaced it or a later step removed it since.
        with suppress(FileNotFoundError):
            return _read(failed, str)
        return None

    def _refuse_lost(self, peers: Sequence[int]) -> None:
        """Say that the checkpoint is not complete, if one of some processes is lost.

        Raises:
            CheckpointError: if one is.
        """
        for peer, how in sorted(self._lost_of(peers).items()):
            raise CheckpointError(
                f"process {peer} {how} before its part of the checkpoint was complete. What was "
                "there before is as it was; save again once the others have recovered."
            )

    def _path(self, process: int) -> Path:
        return self._folder / f"{process:05d}.json"


def _waited(arrived: Callable[[], bool], lost: Callable[[], bool]) -> bool:
    """Wait until something has happened; return whether it has.

    It has not if the deadline has passed, or whoever was to do it is lost.
    """
    until, pause = time.monotonic() + TIMEOUT.value, _OFTEN
    while not arrived():
        # What is lost now may have done it since the last look.
        if time.monotonic() > until or lost():
            return arrived()
        time.sleep(pause)
        pause = min(2 * pause, _SELDOM)
    return True


def _read(path: Path, kind: type[T]) -> T:
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise CorruptFileError(f"{path} is malformed: {error}.") from error
    if not isinstance(found, kind):
        raise CorruptFileError(f"{path} is malformed: it is not a {kind.__name__}.")
    return found
