"""Tasks: what a feed does behind the program, in a thread of its own.

In: an action that sends no messages of the job. Out: what it has given, once it is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, Generic, TypeVar, final

T = TypeVar("T")


@final
class Task(Generic[T]):
    """An action that runs in a thread, as if it were called here.

    Args:
        action: what is to be done.
    """

    def __init__(self, action: Callable[[], T]) -> None:
        self._action = action
        self._value: Any = None
        self._raised: BaseException | None = None
        context = copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._run,), name="meshard-feeding", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._action()
        except Exception as error:
            self._raised = error

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def result(self) -> T:
        """Wait for the end; return what the action gives, or raise what it has raised."""
        self._thread.join()
        if self._raised is not None:
            raise self._raised
        value: T = self._value
        return value

    def drop(self) -> None:
        """Wait for the end, whatever it is."""
        self._thread.join()
