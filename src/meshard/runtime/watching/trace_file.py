"""Traces as files: what happened in a run, in the format of chrome://tracing and Perfetto.

In: events with their times, threads and devices. Out: the text of a JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from meshard.algebra.arguments import items_of, path_of
from meshard.errors import ArgumentError
from meshard.plan.captions import time_text
from meshard.plan.file.files import write_text
from meshard.plan.file.json_values import fields
from meshard.plan.show.record import Record
from meshard.runtime.callers import stated_purpose

_FIELDS = ("what", "purpose", "kind", "axes", "array", "total_bytes", "bytes_per_device")
_DEVICES = 1000
"""The number of the first device's lane, after those of threads."""


@final
class Event:
    """One thing that happened, from beginning to end.

    Attributes:
        name: an operation, several that ran as one, a move or a kernel.
        category: ``"step"`` of a jitted function, ``"operation"`` outside of one, ``"body"`` for
            operations in bodies of `shard_map`, ``"move"`` or ``"kernel"``.
        line: where in the program it was written, as ``file:line``.
        purpose: what it is for, if it is part of a derivative, as in ``"gradient of w"``.
        thread: the number of the thread, 0 for the one that opened the profile.
        start: when it began, in nanoseconds since the epoch.
        stop: when it ended.
        inside: nanoseconds of it that inner events took.
        records: the communications that it made, without those of its inner events.
        devices: the ids of the devices that it ran for.
    """

    __slots__ = (
        "category",
        "devices",
        "inside",
        "line",
        "name",
        "purpose",
        "records",
        "start",
        "stop",
        "thread",
    )

    def __init__(self, name: str, category: str, line: str, thread: int, start: int) -> None:
        self.name = name
        self.purpose = stated_purpose()
        self.category = category
        self.line = line
        self.thread = thread
        self.start = self.stop = start
        self.inside = 0
        self.records: list[Record] = []
        self.devices: tuple[int, ...] = ()

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.stop - self.start) / 1e9

    @property
    def own_seconds(self) -> float:
        """How long it took without its inner events."""
        return (self.stop - self.start - self.inside) / 1e9

    @property
    def total_bytes(self) -> int:
        """Bytes that devices received from others in it, without those of inner events."""
        return sum(r.total_bytes for r in self.records)

    def __repr__(self) -> str:
        return f"Event({self.name!r}, {self.category!r}, {time_text(self.seconds)})"


def trace_text(
    process: int,
    threads: Iterable[tuple[int, str]],
    devices: Mapping[int, str],
    events: Sequence[Event],
) -> str:
    """Return a trace.

    Args:
        process: the number of the process.
        threads: the number and the name of each thread.
        devices: the name of each device that has a lane, by its id.
        events: what happened.
    """
    found = list(_lanes(process, threads, devices, events))
    for event in events:
        found += _shown(process, devices, event)
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": found})


def _lanes(
    process: int,
    threads: Iterable[tuple[int, str]],
    devices: Mapping[int, str],
    events: Sequence[Event],
) -> Iterator[dict[str, Any]]:
    yield _named("process_name", process, 0, f"process {process}")
    for number, name in sorted(threads):
        yield _named("thread_name", process, number, name)
    for device in sorted({d for e in events for d in e.devices} & set(devices)):
        yield _named("thread_name", process, _DEVICES + device, devices[device])


def _shown(process: int, devices: Mapping[int, str], event: Event) -> Iterator[dict[str, Any]]:
    """Yield an event in the lane of its thread, and in that of each device."""
    told = {k: v for k, v in (("line", event.line), ("for", event.purpose)) if v}
    more: dict[str, Any] = dict(told)
    if event.records:
        more["total bytes"] = event.total_bytes
        more["communications"] = [
            {key.replace("_", " "): value for key, value in fields(r, *_FIELDS).items()}
            for r in event.records
        ]
    yield _complete(event, process, event.thread, more)
    for device in event.devices:
        if device in devices:
            received = sum(r.received.get(device, 0) for r in event.records)
            own = {"bytes received": received} if received else {}
            yield _complete(event, process, _DEVICES + device, {**told, **own})


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _complete(event: Event, pid: int, tid: int, more: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": event.name,
        "cat": event.category,
        "pid": pid,
        "tid": tid,
        "ts": event.start / 1e3,
        "dur": (event.stop - event.start) / 1e3,
        "args": more,
    }


def join_profiles(paths: Iterable[str | Path], path: str | Path) -> None:
    """Join the traces that several processes wrote into one.

    Args:
        paths: the traces of the processes.
        path: where to write the joined trace.

    Raises:
        ArgumentError: if a file is not a trace, or a path is not a path.
        OSError: if a file cannot be read or written.

    >>> import json, meshard, meshard.numpy as mnp
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     parts = [f"{folder}/trace.{k}.json" for k in (0, 1)]
    ...     for part in parts:
    ...         with meshard.debug.profile(part):
    ...             x = mnp.ones(4) + 1
    ...     meshard.debug.join_profiles(parts, f"{folder}/trace.json")
    ...     sorted(json.loads(Path(folder, "trace.json").read_text()))
    ['displayTimeUnit', 'traceEvents']
    """
    what = "join_profiles"
    target = path_of(path, what)
    if isinstance(paths, (str, Path)):
        paths = [paths]
    events: list[Any] = []
    for part in items_of(paths, what, "paths", "paths"):
        text = path_of(part, what, "each of paths").read_bytes()
        try:
            value = json.loads(text)
            events += value["traceEvents"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ArgumentError(
                f"{what}: {part} is not a trace that meshard.debug.profile has written: it is not "
                f"a JSON object with 'traceEvents' ({error})."
            ) from error
    joined = {"displayTimeUnit": "ms", "traceEvents": events}
    write_text(target, json.dumps(joined), what)
