"""Lines: messages between two processes over a TCP connection, without threads.

In: a connected socket whose other end has shown that it knows the token. Out: messages, each a
small header and a payload that goes from and to the caller's buffers without a copy. No call waits:
whoever waits does so in a loop of his own, with `wait` and a deadline.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import final

from meshard.errors import TransportError

Buffer = bytes | bytearray | memoryview
"""Contiguous bytes; those of an array of bytes are its ``data``."""

MOST_HEADER = 1 << 28
"""The most bytes of a header."""
_PREFIX = struct.Struct("<4sIQ")  # mark, bytes of the header, bytes of the payload
_MARK = b"mshd"
_MOST_PIECES = 512  # buffers of one system call; Linux allows 1024
_IDLE, _PROBES, _SILENT_MS = 1, 3, 4000
_KEEPALIVE = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", _IDLE),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", _IDLE),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", _PROBES),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", _SILENT_MS),
)


def tune(connection: socket.socket) -> None:
    """Have the kernel send at once, and find within seconds that the other end is unreachable."""
    for level, name, value in _KEEPALIVE:
        number = getattr(socket, name, None)
        if number is not None:
            with contextlib.suppress(OSError):
                connection.setsockopt(level, number, value)


@final
class Line:
    """One end of a connection. Messages arrive whole and in order, or the line is closed.

    One thread uses it at a time.

    Args:
        connection: a connected socket; the line owns it.

    Attributes:
        reason: why the line is closed; None while it is open.
        sent: bytes that were given to the kernel.
        received: bytes that were taken from the kernel.
        payload: bytes of the current message that `take` has not been asked for yet.
    """

    def __init__(self, connection: socket.socket) -> None:
        tune(connection)
        connection.setblocking(False)
        self._socket = connection
        self.reason: str | None = None
        self.sent = self.received = self.payload = 0
        self._queue: deque[memoryview] = deque()
        self._header: bytearray | None = None
        self._filled = 0
        self._head = bytearray(_PREFIX.size)
        self._head_filled = 0
        self._next_payload = 0

    def fileno(self) -> int:
        """Return the socket's number, for `select`; -1 once the line is closed."""
        return self._socket.fileno()

    @property
    def closed(self) -> bool:
        """Whether the connection has ended, for whatever reason; what had arrived can be read."""
        return self.reason is not None

    @property
    def unsent(self) -> int:
        """Bytes of messages that the kernel has not taken yet."""
        return sum([piece.nbytes for piece in self._queue])

    @property
    def is_sending(self) -> bool:
        """Whether there is something that `push` has to give to the kernel."""
        return bool(self._queue)

    @property
    def peer(self) -> str:
        """The address of the other end, for messages."""
        with contextlib.suppress(OSError):
            host, port = self._socket.getpeername()[:2]
            return f"{host}:{port}"
        return "an address that is gone"

    def send(self, header: bytes, blocks: Iterable[Buffer] = ()) -> None:
        """Begin to send a message; `push` goes on with it.

        Args:
            header: what the other end's `poll` returns.
            blocks: C-contiguous buffers, the payload; they must not change while `is_sending`.

        Raises:
            TransportError: if the line is closed.
        """
        self.check()
        pieces = [memoryview(block).cast("B") for block in blocks if memoryview(block).nbytes]
        nbytes = sum([piece.nbytes for piece in pieces])
        if len(header) > MOST_HEADER:
            raise TransportError(
                f"A message has a header of {len(header)} bytes; at most {MOST_HEADER} are sent."
            )
        head = memoryview(_PREFIX.pack(_MARK, len(header), nbytes) + header)
        self._queue.extend((head, *pieces))
        self.push()

    def push(self) -> bool:
        """Give the kernel what it takes now. Return whether it has everything."""
        while self._queue and self.reason is None:
            pieces = [piece for piece, _ in zip(self._queue, range(_MOST_PIECES), strict=False)]
            try:
                count = self._socket.sendmsg(pieces)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self._end(f"sending failed: {error.strerror or error}")
                break
            self.sent += count
            while count:
                first = self._queue[0]
                if count < first.nbytes:
                    self._queue[0] = first[count:]
                    break
                count -= first.nbytes
                self._queue.popleft()
        return not self._queue

    def poll(self) -> bytes | None:
        """Return the header of the next message, once it has arrived.

        Before it looks for another message, the whole payload must have been taken.
        """
        if self.payload:
            raise AssertionError(f"{self.payload} bytes of the current payload were not taken")
        if self._header is None:
            self._head_filled = self._read(self._head, self._head_filled)
            if self._head_filled < _PREFIX.size:
                return None
            mark, length, self._next_payload = _PREFIX.unpack(self._head)
            if mark != _MARK or length > MOST_HEADER:
                self._end("what arrived is not a message")
                return None
            self._header, self._filled = bytearray(length), 0
        self._filled = self._read(self._header, self._filled)
        if self._filled < len(self._header):
            return None
        header = bytes(self._header)
        self._header, self._head_filled = None, 0
        self.payload, self._filled = self._next_payload, 0
        return header

    def take(self, buffer: Buffer) -> bool:
        """Read the payload, or the next part of it, into a writable buffer.

        Returns whether the buffer is full; until then, the next call must bring the same one.
        """
        into = memoryview(buffer).cast("B")
        assert into.nbytes <= self.payload
        self._filled = self._read(into, self._filled)
        if self._filled < into.nbytes:
            return False
        self.payload -= into.nbytes
        self._filled = 0
        return True

    def _read(self, into: Buffer, filled: int) -> int:
        """Fill a buffer as far as bytes have arrived; return how far it is filled."""
        room = memoryview(into).cast("B")
        while filled < room.nbytes and self.reason is None:
            try:
                count = self._socket.recv_into(room[filled:])
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self._end(f"receiving failed: {error.strerror or error}")
                break
            if not count:
                self._end("the other end has closed it, or its process has ended")
                break
            filled += count
            self.received += count
        return filled

    def check(self) -> None:
        """Refuse to go on with a closed line.

        Raises:
            TransportError: if the line is closed; it says why.
        """
        if self.reason is not None:
            raise TransportError(f"The connection is closed: {self.reason}.")

    def look(self) -> bool:
        """Find out, without reading, whether the other end has gone. Return whether it is open."""
        if self.reason is None:
            try:
                if not self._socket.recv(1, socket.MSG_PEEK):
                    self._end("the other end has closed it, or its process has ended")
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                self._end(f"{error.strerror or error}")
        return self.reason is None

    def _end(self, reason: str) -> None:
        self.reason = reason
        self._queue.clear()
        self._socket.close()

    def close(self) -> None:
        """End the connection; what was not sent is dropped."""
        if self.reason is None:
            self._end("it was closed here")


def wait(lines: Sequence[Line], seconds: float, others: Sequence[int] = ()) -> None:
    """Wait until one of some lines may go on, or one of other files can be read.

    Args:
        lines: closed ones among them are passed over.
        seconds: the longest wait.
        others: file numbers, such as a listener's.
    """
    open_lines = [line for line in lines if not line.closed]
    if not open_lines and not others:
        time.sleep(max(0.0, seconds))
        return
    watched = select.poll()
    for line in open_lines:
        asked = select.POLLIN | (select.POLLOUT if line.is_sending else 0)
        watched.register(line.fileno(), asked)
    for number in others:
        watched.register(number, select.POLLIN)
    watched.poll(max(0.0, seconds) * 1000)
