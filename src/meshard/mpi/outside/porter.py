"""The porter: lets processes in that come to a job from outside, whatever its process computes.

In: connections of processes that know the job's token. Out: their lines, for the thread of the
program; and at once a ticket for each that asks to join: the number that it will have, and the ids
of its devices. Nothing but JSON is read of one that has not got a ticket.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, final

import numpy as np

from meshard._version import __version__
from meshard.errors import TransportError
from meshard.runtime.lines.connecting import ANYWHERE, Address, Listener
from meshard.runtime.lines.line import Line, wait

_PATIENCE = 5.0
"""Seconds that somebody who has connected has to say what for."""
_TICK, _LONG = 1.0, 3600.0
SIDE, DATA, TICKET, WAITS = "side", "data", "ticket", "waits"
"""What a line is for: letters, boxes, asking for a ticket; and what one with a ticket says."""


def builds() -> dict[str, str]:
    """Return the versions that processes of one job share."""
    return {
        "meshard": __version__,
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "NumPy": np.__version__.partition(".")[0],
    }


@final
@dataclass(frozen=True)
class Ticket:
    """What one that joins gets before anything else.

    Attributes:
        number: the number that it has from now on.
        device: the id of its first device.
        job: the job's name in files.
        table: the sizes that decide how blocks are moved.
        members: where those who take part listen.
    """

    number: int
    device: int
    job: str
    table: Mapping[str, Any]
    members: tuple[tuple[Address, ...], ...]

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Ticket:
        """Return the ticket that a message holds."""
        members = tuple(tuple((str(h), int(p)) for h, p in some) for some in told["members"])
        return cls(told["number"], told["device"], told["job"], told["table"], members)


@final
class Porter:
    """The open port of one process, and the thread that serves it.

    Args:
        token: the secret of the job.
        host: the address at which it listens; by default those of all interfaces.
    """

    def __init__(self, token: bytes, host: str = ANYWHERE) -> None:
        self.token = token
        self._listener = Listener(token, host=host)
        self.addresses = self._listener.addresses
        self._arrived: deque[tuple[Mapping[str, Any], Line]] = deque()
        self._asking = threading.Lock()
        self._next: Ticket | None = None
        self._given: dict[int, Any] = {}
        self._open = True
        self._waking, self._wake = os.pipe()
        os.register_at_fork(after_in_child=self._listener.close)
        self._thread = threading.Thread(target=self._serve, name="meshard porter", daemon=True)
        self._thread.start()

    def offer(self, ticket: Ticket | None) -> None:
        """Give this ticket to the next that asks; None if another process gives them."""
        with self._asking:
            if ticket is not None and self._next is not None:
                number = max(ticket.number, self._next.number)
                ticket = replace(
                    ticket, number=number, device=max(ticket.device, self._next.device)
                )
            self._next = ticket

    def arrived(self) -> Iterator[tuple[Mapping[str, Any], Line]]:
        """Yield who has come since the last call: what it has said, and the line to it."""
        while self._arrived:
            yield self._arrived.popleft()

    def close(self) -> None:
        """Let nobody in any more."""
        if self._open:
            self._open = False
            os.write(self._wake, b"!")
            self._thread.join()
            os.close(self._wake)
            os.close(self._waking)

    def _serve(self) -> None:
        strangers: list[tuple[Line, float]] = []
        while self._open:
            files = [self._waking, *self._listener.files]
            busy = strangers or len(files) > 2
            wait([line for line, _ in strangers], _TICK if busy else _LONG, files)
            while (line := self._listener.accept()) is not None:
                strangers.append((line, time.monotonic() + _PATIENCE))
            strangers = [one for one in strangers if self._is_strange(*one)]
        self._listener.close()
        for line in [*[line for line, _ in strangers], *[line for _, line in self.arrived()]]:
            line.close()

    def _is_strange(self, line: Line, until: float) -> bool:
        """Whether it is still open what a line is for."""
        header = line.poll()
        if header is None:
            if line.closed or time.monotonic() > until:
                line.close()
                return False
            return True
        told = _read(header)
        if told.get("for") == TICKET:
            try:
                told = told | self._ticket(told)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                told["refused"] = f"Its question is malformed: {type(error).__name__}: {error}."
            with contextlib.suppress(TransportError):
                line.send(json.dumps(told).encode())
        elif type(told.get("index")) is not int:
            told = {}
        if told.get("for") not in (SIDE, DATA, TICKET) or "refused" in told:
            while not line.push() and time.monotonic() < until:
                wait([line], _TICK)
            line.close()
        else:
            self._arrived.append((told, line))
        return False

    def _ticket(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the ticket for one that asks, or why it gets none."""
        mine, theirs = builds(), asked.get("builds", {})
        other = [name for name in mine if theirs.get(name) != mine[name]]
        if other:
            told = ", ".join(f"{n} {theirs.get(n, 'unknown')} instead of {mine[n]}" for n in other)
            return {"refused": f"It has {told}; all processes of a job have the same."}
        with self._asking:
            ticket = self._next
            if ticket is None:
                return {"elsewhere": True}
            number, device = asked.get("number"), asked.get("device")
            if number is not None and device is not None:
                if self._given.get(number) == asked["place"]:
                    return asdict(replace(ticket, number=number, device=device))
                if number < ticket.number or device < ticket.device:
                    return {
                        "refused": f"Its number, {number}, was given to another process while "
                        "nobody could be asked. Start it again."
                    }
                ticket = replace(ticket, number=number, device=device)
            self._given[ticket.number] = asked["place"]
            self._next = replace(
                ticket, number=ticket.number + 1, device=ticket.device + int(asked["devices"])
            )
            return asdict(ticket)


def _read(header: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(header)
        if isinstance(found, dict):
            return found
    return {}
