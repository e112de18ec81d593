"""Printing once for all processes, and timing what all of them do.

In: what to print; a block of code. Out: lines on one process; seconds.
"""

from __future__ import annotations

import sys
import time
from contextlib import ContextDecorator
from types import TracebackType
from typing import IO, final

from meshard.algebra.arguments import flag_of, refusal, text_of
from meshard.errors import AgreementError, ArgumentError
from meshard.plan.captions import count_text, time_text
from meshard.plan.show.terminal import Writable, encoding_of, printable
from meshard.runtime.agree import meet
from meshard.runtime.world import RuntimeWorld, here


def print0(
    *values: object,
    sep: str | None = " ",
    end: str | None = "\n",
    file: IO[str] | None = None,
    flush: bool = True,
) -> None:
    r"""Print on process 0 only, as the built-in ``print`` does; the other processes do nothing.

    Nothing is sent. For an array that spans processes, it shows the pieces of process 0, as
    ``print(x)`` does there. To print all of it, gather it first, on all processes:
    ``print0(meshard.multihost_utils.process_allgather(x))``. If process 0 was lost and the others
    go on without it, the first of them prints. Characters that the stream cannot encode are
    replaced.

    Args:
        *values: what to print; only process 0 converts them to text.
        sep: what stands between two values.
        end: what stands after the last.
        file: where to print; None for standard output.
        flush: whether the line is passed on at once, so that lines of several processes, and of a
            job that is killed, appear in order.

    Raises:
        ArgumentError: on all processes, if ``sep`` or ``end`` is not a string, or ``file`` is not
            one; on process 0, if a value is nested too deeply.

    >>> import meshard
    >>> meshard.print0("mean", meshard.numpy.arange(4.0).mean(), sep=": ")
    mean: 1.5
    """
    what = "print0"
    between = " " if sep is None else text_of(sep, what, "sep")
    after = "\n" if end is None else text_of(end, what, "end")
    flush = flag_of(flush, what, "flush")
    if file is not None and not isinstance(file, Writable):
        raise ArgumentError(refusal(what, "file", "a file that can be written", file))
    world = here()
    if world.process_index != world.first:
        return
    stream = sys.stdout if file is None else file
    try:
        text = between.join(map(str, values)) + after
    except RecursionError:
        raise ArgumentError(f"{what}: a value is nested too deeply to be printed.") from None
    print(printable(text, encoding_of(stream)), end="", file=stream, flush=flush)


@final
class Timer(ContextDecorator):
    """The seconds that a block of code takes; `timer` makes it.

    Attributes:
        name: what is timed; None prints nothing.
    """

    def __init__(self, name: str | None, together: bool) -> None:
        self.name = name
        self._together = together
        self._starts: list[float] = []
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """How long the block took the last time; inside of it, how long it has taken so far."""
        if self._starts:
            return time.perf_counter() - self._starts[-1]
        return self._seconds

    def __enter__(self) -> Timer:
        if self._together:
            self._slowest(here(), 0.0)
        self._starts.append(time.perf_counter())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        seconds = time.perf_counter() - self._starts.pop()
        world, among = here(), ""
        if self._together and error is None:  # after an error nobody waits for the others
            seconds = self._slowest(world, seconds)
            among = f" (the slowest of {count_text(len(world.processes), 'process')})"
        self._seconds = seconds
        if self.name is not None and error is None:
            print0(f"{self.name}: {time_text(seconds)}{among}")

    def _slowest(self, world: RuntimeWorld, seconds: float) -> float:
        """Return the most seconds that a process took, when all processes have come here."""
        meet(world, world.processes, f"`timer` of {self.name!r}")
        told = world.transport.all_gather((self.name, seconds), world.processes)
        answers = [(str(x[0]), float(x[1])) for x in told if isinstance(x, tuple)]
        if len({name for name, _ in answers}) > 1:
            names = ", ".join(
                f"process {p}: {name!r}"
                for p, (name, _) in zip(world.processes, answers, strict=True)
            )
            raise AgreementError(
                f"timer: the processes time different blocks together ({names}). With "
                "together=True all of them must run the same blocks in the same order."
            )
        return max(found for _, found in answers)

    def _recreate_cm(self) -> Timer:
        """Return the timer of one call of a function that is decorated."""
        return Timer(self.name, self._together)

    def __repr__(self) -> str:
        return f"Timer({self.name!r}, {time_text(self.seconds)})"


def timer(name: str | None = None, *, together: bool = False) -> Timer:
    """Time a block of code, or each call of a function that it decorates.

    Arrays are complete as soon as they exist, so no work of this process is left when the
    clock stops. Other processes may be ahead or behind. With ``together`` the clock starts when all
    of them have come to the block, and the time is that of the slowest.

    Args:
        name: what is timed. Process 0 prints it with the time when the block ends; without a name
            nothing is printed, and ``seconds`` says the time.
        together: whether all processes of the job wait for each other before and after the block,
            which all of them must then run.

    Returns:
        A context manager and decorator, with the time in ``seconds``. Timers may be nested. If the
        block raises, nothing is printed, and no process waits for the others.

    Raises:
        ArgumentError: if the name is not a string.
        AgreementError: if a process times another block together with the others.

    Inside a jitted function it measures the tracing, which happens once. The first call of anything
    includes the decisions and plans that later calls find made: time the second.

    >>> import meshard
    >>> x = meshard.numpy.ones((64, 64))
    >>> with meshard.debug.timer() as t:
    ...     y = x @ x
    >>> 0 < t.seconds < 60
    True
    """
    what = "timer"
    if name is not None:
        text_of(name, what, "name")
    return Timer(name, flag_of(together, what, "together"))
