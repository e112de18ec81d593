"""Boxes over lines: between processes that share neither MPI nor memory.

In: the boxes that pass between this process and a peer. Out: generators that move them, and yield
while they wait. A message is stamped with its step; boxes are sent from where they are, and
received to where they are wanted.

A step that is left early leaves messages behind, complete ones or parts. Messages of one peer
arrive in program order, so those of steps that were left come first: they are read and dropped.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from struct import Struct
from typing import final

import numpy as np

from meshard.mpi.mailbox import Stamps, unpack
from meshard.runtime.lines.line import Line
from meshard.runtime.processes.agreement import Stamp
from meshard.runtime.types import Block

Waiting = Generator[int | None, None, None]
_STAMP = Struct("<QQQ")
_SCRATCH = 1 << 20
"""Bytes of a dropped message that are read at a time."""


@final
class _Stream:
    """The messages between this process and a peer, in both directions.

    Args:
        line: the connection.
        peer: the other process.
        stamps: the stamps of messages at this place in the program.

    Attributes:
        line: the connection.
        refused: the stamp of the next message, if it does not belong to this step.
    """

    def __init__(self, line: Line, peer: int, stamps: Stamps) -> None:
        self.line = line
        self.refused: Stamp | None = None
        self._peer = peer
        self._stamps = stamps
        self._next: Stamp | None = None
        self._begun = False
        self._filling: memoryview | None = None

    def put(self, blocks: Sequence[Block]) -> Waiting:
        """Send a message; finish when its memory is no longer read."""
        while self.line.closed:  # the watchdog finds out why
            yield None
        header = _STAMP.pack(*self._stamps.stamp(self._peer))
        self.line.send(header, [_bytes(b) for b in blocks])
        while not self.line.push() or self.line.closed:
            yield None

    def get(self, boxes: Sequence[Block]) -> Waiting:
        """Fill boxes from the next message of this step."""
        while not self.is_ready():
            yield self._peer
        self._begun = True
        for box in boxes:
            if not box.nbytes:
                continue
            if box.flags.c_contiguous:
                yield from self._take(_bytes(box))
            else:
                buffer = np.empty(box.nbytes, np.uint8)
                yield from self._take(buffer.data)
                unpack(buffer, [box])
        self._next = None

    def get_any(self) -> Generator[int | None, None, Block]:
        """Return the bytes of the next message of this step."""
        while not self.is_ready():
            yield self._peer
        buffer = np.empty(self.line.payload, np.uint8)
        yield from self.get([buffer])
        return buffer

    def _take(self, buffer: memoryview) -> Waiting:
        self._filling = buffer
        while not self.line.take(buffer):
            yield self._peer
        self._filling = None

    def is_ready(self) -> bool:
        """Whether a message of this step has begun to arrive; those of left steps are dropped."""
        while True:
            if self._next is None:
                header = self.line.poll()
                if header is None:
                    return False
                if len(header) != _STAMP.size:
                    self.line.close()
                    return False
                self._next, self._begun = _STAMP.unpack(header), False
            if not self._begun:
                if self._next == self._stamps.stamp(self._peer):
                    self.refused = None
                    return True
                if not self._stamps.is_over(self._peer, self._next):
                    self.refused = self._next
                    return False
            if not self._is_dropped():
                return False
            self._next = None

    def _is_dropped(self) -> bool:
        """Read what has arrived of a message that nobody wants; return whether that was all."""
        while self._filling is not None or self.line.payload:
            if self._filling is None:
                self._filling = memoryview(bytearray(min(self.line.payload, _SCRATCH)))
            if not self.line.take(self._filling):
                return False
            self._filling = None
        return True


@final
class Far:
    """The lines of one process for boxes.

    Args:
        stamps: the stamps of messages at this place in the program.
    """

    def __init__(self, stamps: Stamps) -> None:
        self._stamps = stamps
        self._streams: dict[int, _Stream] = {}

    def attach(self, peer: int, line: Line) -> None:
        """Reach a process by a line from now on."""
        self._streams[peer] = _Stream(line, peer, self._stamps)

    def is_closed(self, peer: int) -> bool:
        """Whether the line to a process has ended."""
        found = self._streams.get(peer)
        return found is not None and found.line.closed

    def talk(self, peer: int, going: Sequence[Block], coming: Sequence[Block]) -> list[Waiting]:
        """Return generators that receive boxes from a peer, and send boxes to it."""
        out = [b for b in going if b.nbytes]
        back = [b for b in coming if b.nbytes]
        jobs = [self._get(peer, back)] if back else []
        return [*jobs, self._put(peer, out)] if out else jobs

    def tell(self, peer: int, letter: Block) -> Waiting:
        """Send some bytes; the peer does not know how many."""
        return self._put(peer, [letter])

    def hear(self, peer: int, found: dict[int, Block]) -> Waiting:
        """Receive the bytes that a peer sends, into ``found[peer]``."""
        stream = yield from self._stream(peer)
        found[peer] = yield from stream.get_any()

    def _put(self, peer: int, blocks: Sequence[Block]) -> Waiting:
        stream = yield from self._stream(peer)
        yield from stream.put(blocks)

    def _get(self, peer: int, boxes: Sequence[Block]) -> Waiting:
        stream = yield from self._stream(peer)
        yield from stream.get(boxes)

    def _stream(self, peer: int) -> Generator[int | None, None, _Stream]:
        """Wait until a process has connected."""
        while peer not in self._streams:
            yield None
        return self._streams[peer]

    def refused(self, peer: int) -> Stamp | None:
        """Return the stamp of a process's next message, if it does not belong to this step."""
        found = self._streams.get(peer)
        return None if found is None else found.refused

    def leave(self, peers: Sequence[int]) -> None:
        """Do nothing: stamps tell which messages are over."""

    def sweep(self) -> None:
        """Go on with what was not sent, and drop messages of steps that were left."""
        for stream in self._streams.values():
            stream.line.push()
            stream.is_ready()

    def renew(self, gone: Iterable[int]) -> None:
        """Let go of the lines to processes that are gone."""
        for peer in self._streams.keys() & set(gone):
            self._streams.pop(peer).line.close()

    def complaint(self, error: BaseException) -> str | None:
        """Return None: what has failed here shows by a line that is closed."""
        return None

    def flushed(self, peer: int) -> Waiting:
        """Do nothing: stamps tell which messages are over."""
        yield from ()

    def close(self) -> None:
        """Close all lines."""
        self.renew(tuple(self._streams))


def _bytes(block: Block) -> memoryview:
    """Return the elements as bytes in C order, as a view if they are stored that way."""
    return np.ascontiguousarray(block).reshape(-1).view(np.uint8).data
