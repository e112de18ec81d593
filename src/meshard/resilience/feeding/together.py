"""Acting together: what the processes of a job do alike, or not at all.

In: an action of each process. Out: what all of them gave; or, on all of them, the error that one
has raised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from meshard.errors import TransportError
from meshard.runtime.agree import meet
from meshard.runtime.world import RuntimeWorld

T = TypeVar("T")


def together(world: RuntimeWorld, what: str, action: Callable[[], T]) -> list[T]:
    """Return what an action gives on each process that takes part, in their order.

    Args:
        world: this process's world.
        what: the function that was called, for messages.
        action: called on each process; it does not meet others.

    Raises:
        Exception: on all processes, if the action has raised on one of them; the same error.
        TransportError: if a process is lost.
    """
    value: Any = None
    raised: Exception | None = None
    try:
        value = action()
    except Exception as error:
        if len(world.processes) == 1:
            raise
        raised = error
    if len(world.processes) == 1:
        return [value]
    meet(world, world.processes, f"`{what}`")
    mine = None if raised is None else (type(raised), str(raised))
    found: list[Any] = world.transport.all_gather((mine, value), world.processes)
    for process, (told, _) in zip(world.processes, found, strict=True):
        if told is not None and process == world.process_index and raised is not None:
            raised.add_note(f"All {len(world.processes)} processes of the job raise it.")
            raise raised
        if told is not None:
            kind, text = told
            raise _again(kind, text, process) from raised
    return [value for _, value in found]


def _again(kind: type[Exception], text: str, process: int) -> Exception:
    """Return another process's error."""
    try:
        error = kind(text)
    except TypeError:
        error = TransportError(text)
    error.add_note(f"Process {process} of the job has raised it.")
    return error


def first(world: RuntimeWorld) -> int:
    """Return the process that speaks for the job."""
    return world.processes[0]
