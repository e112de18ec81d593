"""Profiles: when each step, operation, move and kernel of a real run began and ended.

In: what runs while a profile is open. Out: Chrome's trace format, which chrome://tracing and
Perfetto draw, and a table of the most expensive lines. Code that can be timed checks ``if
world.profiles:`` first, so that nothing is timed without a profile. A profile is among the open
ledgers too, and so learns what its events move.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from meshard.algebra.arguments import path_of
from meshard.algebra.boundary import context
from meshard.plan.captions import count_text, time_text
from meshard.plan.file.files import write_text
from meshard.plan.show.pictured import Drawn
from meshard.plan.show.record import HostRecord, Record, labels
from meshard.plan.show.report import Table
from meshard.runtime.callers import user_line
from meshard.runtime.watching.trace_file import Event, trace_text
from meshard.runtime.world import RuntimeWorld, here

if TYPE_CHECKING:
    from meshard.plan.show.page import Markup

_LINES = 20
_VAGUE = ("kernel", "<lambda>")
"""Names of kernels that say less than the name of their operation."""


@final
class Profile(Drawn):
    """What happened while it was open, in this process.

    It is made by `profile`, and stays readable afterwards. It prints as a table of the lines that
    took longest, each without the time of other lines that it calls.

    Attributes:
        process: the number of this process.
    """

    def __init__(self, process: int = 0, devices: Mapping[int, str] | None = None) -> None:
        self.process = process
        self._devices = dict(devices or {})
        self._events: list[Event] = []
        self._open: dict[int, list[Event]] = {}
        self._threads: dict[int, tuple[int, str]] = {}
        self._numbering = threading.Lock()
        # Times of the monotonic clock, moved to where the clocks of processes agree.
        self._offset = time.time_ns() - time.perf_counter_ns()
        self._first = self._last = self._now()

    def _now(self) -> int:
        return time.perf_counter_ns() + self._offset

    @property
    def events(self) -> tuple[Event, ...]:
        """The events, in the order in which they ended."""
        return tuple(self._events)

    @property
    def seconds(self) -> float:
        """How long it was open."""
        return (self._last - self._first) / 1e9

    def by_line(self) -> dict[str, float]:
        """Return the seconds that each line of the program took, the most first.

        Time spent at other lines that it calls counts for those, and the time of kernels counts for
        the line that waits for them.
        """
        return {line: _seconds(events) for line, events in self._lines()}

    def _lines(self) -> list[tuple[str, list[Event]]]:
        """Return the lines of the program, the most expensive first, and the events of each."""
        found: dict[str, list[Event]] = {}
        for event in self._events:
            if event.category != "kernel":
                found.setdefault(event.line, []).append(event)
        return sorted(found.items(), key=lambda item: -_seconds(item[1]))

    def to_json(self) -> str:
        """Return all events in Chrome's trace format, as the text of a JSON object.

        Processes are ``pid``. Of each process, threads are ``tid`` 0, 1, ...; device ``d`` is
        ``tid`` 1000 + ``d``, and its lane shows the steps that ran for it, with the bytes that it
        received from other devices. Times are in microseconds since the epoch.
        """
        return trace_text(self.process, self._threads.values(), self._devices, self._events)

    def save(self, path: str | Path) -> Path:
        """Write the text of `to_json` to a file; each of several processes writes its own.

        Returns:
            The path written: for ``trace.json`` with several processes it is ``trace.0.json``,
            ``trace.1.json``, ..., which `join_profiles` makes into one.

        Raises:
            OSError: if the file cannot be written; an existing file then stays as it was.
        """
        target = path_of(path, "Profile.save")
        if self._several and target.name:
            target = target.with_name(f"{target.stem}.{self.process}{target.suffix}")
        write_text(target, self.to_json(), "Profile.save")
        return target

    _several = False

    def __str__(self) -> str:
        lines = self._lines()
        if not lines:
            return f"nothing ran in {time_text(self.seconds)}"
        return self._table(lines).text()

    def _table(self, lines: Sequence[tuple[str, list[Event]]]) -> Table:
        """Return a row for each of the most expensive lines, and notes on all of them."""
        told, rows = labels([line for line, _ in lines if line]), []
        for line, events in lines[:_LINES]:
            seconds, names = _seconds(events), dict.fromkeys(e.name for e in events)
            own = {name: _seconds([e for e in events if e.name == name]) for name in names}
            rows.append(
                (
                    told.get(line, "-"),
                    ", ".join(sorted(own, key=own.__getitem__, reverse=True)),
                    f"{len(events):,}",
                    time_text(seconds),
                    f"{100 * seconds / max(self.seconds, 1e-9):.1f} %",
                    f"{_moved(events):,}",
                )
            )
        notes = []
        if rest := lines[_LINES:]:
            more = sum(_seconds(events) for _, events in rest)
            notes.append(f"and {len(rest):,} more lines, {time_text(more)}")
        count = len(self._events)
        notes.append(
            f"{count:,} event{'s' * (count != 1)} in {time_text(self.seconds)}, "
            f"{sum(_moved(events) for _, events in lines):,} bytes between devices"
        )
        head = ("line", "what", "count", "time", "share", "bytes")
        return Table(head, rows, "<<>>>>", notes, spare=("count", "bytes"))

    def _title(self) -> str:
        return f"Profile: {count_text(len(self._events), 'event')} in {time_text(self.seconds)}"

    def _svg(self) -> Markup:
        return self._timeline(self._title())

    def _timeline(self, heading: str = "") -> Markup:
        from meshard.runtime.watching.run_pictures import lanes_of, lanes_svg

        return lanes_svg(lanes_of(self._events, self._devices), self._first, self._last, heading)

    def _parts(self) -> Iterator[Markup]:
        from meshard.plan.show.page import wide

        yield wide(self._timeline())
        if lines := self._lines():
            yield self._table(lines).html()

    def __repr__(self) -> str:
        return f"Profile({len(self._events)} events, {time_text(self.seconds)})"

    # the code that runs reports itself

    def _thread(self) -> int:
        ident = threading.get_ident()
        found = self._threads.get(ident)
        if found is None:
            with self._numbering:
                name = threading.current_thread().name
                found = self._threads.setdefault(ident, (len(self._threads), name))
        return found[0]

    def _begin(self, name: str, category: str, line: str) -> Event:
        event = Event(name, category, line, self._thread(), self._now())
        self._open.setdefault(event.thread, []).append(event)
        return event

    def _end(self, event: Event) -> None:
        event.stop = self._now()
        stack = self._open[event.thread]
        stack.remove(event)
        if stack:
            stack[-1].inside += event.stop - event.start
        self._events.append(event)

    def _kernel(self, task: Callable[[], None]) -> Callable[[], None]:
        """Return a task of the workers that records when it runs, and for which event."""
        outer = self._open.get(self._thread())
        name, line = _task_name(task), outer[-1].line if outer else ""
        purpose = outer[-1].purpose if outer else ""
        if outer and name in _VAGUE:
            name = outer[-1].name

        def run() -> None:
            event = Event(name, "kernel", line, self._thread(), self._now())
            event.purpose = purpose
            try:
                task()
            finally:
                event.stop = self._now()
                self._events.append(event)

        return run

    # as one of the open ledgers

    def _check(self, coming: Sequence[Record]) -> None:
        """Refuse nothing."""

    def _add(self, record: Record) -> None:
        stack = self._open.get(self._thread())
        if stack:
            stack[-1].records.append(record)
            return
        event = Event(record.what, "move", record.line, self._thread(), self._now())
        event.records.append(record)
        self._events.append(event)

    def _gathered(self, record: HostRecord) -> None:
        """Add nothing: what goes to the host is no time of the program's; the ledger lists it."""


def _seconds(events: Iterable[Event]) -> float:
    return sum(event.own_seconds for event in events)


def _moved(events: Iterable[Event]) -> int:
    return sum(event.total_bytes for event in events)


def _task_name(task: Any) -> str:
    """Return the name of a worker's task: the kernel that it calls."""
    name = "kernel"
    while task is not None:
        name = getattr(task, "__name__", name)
        inner = getattr(task, "func", None)
        if inner is not None and getattr(inner, "__name__", "_").startswith("_"):
            # A private helper is known by the kernel that it is given.
            inner = next((a for a in task.args if callable(a)), inner)
        task = inner
    return name.lstrip("_")


@context
def profile(path: str | Path | None = None) -> Iterator[Profile]:
    """Record what runs within a ``with`` statement, and when.

    It sees the steps of jitted functions, eager operations, operations and collectives in
    `shard_map` bodies, moves, with the bytes that devices receive, and the kernels that run on
    worker threads. Nothing is timed while no profile is open.

    Args:
        path: where to write a trace when the statement ends, even by an error: a JSON file for
            chrome://tracing or https://ui.perfetto.dev. Each of several processes writes its own
            file, with its number before the suffix, and none waits for another; `join_profiles`
            makes one trace of them. None to write nothing.

    Returns:
        The `Profile`. They may nest; each sees all that happens inside it, in this process.

    Raises:
        ArgumentError: if ``path`` is not a path.
        OSError: if the file cannot be written; an existing file then stays as it was.

    >>> import meshard.numpy as mnp
    >>> from meshard.debug import profile
    >>> with profile() as seen:
    ...     x = mnp.arange(4.0) + 1
    >>> [event.name for event in seen.events if event.category == "operation"]
    ['add']
    """
    target = None if path is None else path_of(path, "profile")
    world = here()
    names = {d.id: f"{d.platform}:{d.id}" for d in world.local_devices}
    found = Profile(world.process_index, names)
    found._several = world.process_count > 1
    found._thread()
    world.profiles = (*world.profiles, found)
    world.ledgers = (*world.ledgers, found)
    watch = world.workers.watch
    world.workers.watch = found._kernel if watch is None else _both(watch, found._kernel)
    try:
        yield found
    finally:
        found._last = found._now()
        world.workers.watch = watch
        world.profiles = tuple(p for p in world.profiles if p is not found)
        world.ledgers = tuple(p for p in world.ledgers if p is not found)
        if target is not None:
            found.save(target)


_TaskWatch = Callable[[Callable[[], None]], Callable[[], None]]


def _both(outer: _TaskWatch, inner: _TaskWatch) -> _TaskWatch:
    return lambda task: outer(inner(task))


@contextlib.contextmanager
def timed(
    world: RuntimeWorld, name: str, category: str, line: str | None = None
) -> Iterator[Callable[..., Any]]:
    """Record in all open profiles what runs within a ``with`` statement.

    Callers check ``if world.profiles:`` first.

    Args:
        world: whose profiles are open.
        name: what runs.
        category: its kind, as in `Event`.
        line: where it was written; None for the user's current line.

    Returns:
        A function to call with the shardings of the results; the event ran on their devices.
    """
    where = user_line() if line is None else line
    profiles = world.profiles
    events = [p._begin(name, category, where) for p in profiles]

    def ran_on(shardings: Iterable[Any]) -> None:
        devices = tuple(dict.fromkeys(d.id for s in shardings for d in s.device_order))
        for event in events:
            event.devices = devices

    try:
        yield ran_on
    finally:
        for one, event in zip(profiles, events, strict=True):
            one._end(event)
