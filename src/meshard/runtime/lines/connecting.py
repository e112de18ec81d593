"""Connecting: lines between processes that know the same secret.

In: addresses and a token. Out: lines. Both ends prove that they know the token, by a keyed hash of
the other's random number, before either reads a message; the token itself is not sent.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import secrets
import select
import socket
import time
from collections.abc import Sequence
from typing import final

from meshard.errors import TransportError
from meshard.runtime.lines.addresses import own_addresses
from meshard.runtime.lines.line import Line

Address = tuple[str, int]
"""An IPv4 address and a port."""

_GREETING = b"meshard1"
_NONCE, _PROOF = 32, 32
_PATIENCE = 5.0
"""Seconds that a newcomer has to prove that it knows the token."""
_MOST_NEWCOMERS = 256
_BACKLOG = 128


def new_token() -> bytes:
    """Return a new secret, to be known by those who may connect."""
    return secrets.token_bytes(32)


def _proof(token: bytes, side: bytes, nonce: bytes) -> bytes:
    return hmac.digest(token, side + nonce, "sha256")


@final
class _Newcomer:
    """A connection whose other end has not proved yet that it knows the token."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.until = time.monotonic() + _PATIENCE
        self._nonce = secrets.token_bytes(_NONCE)
        self._read = b""
        connection.send(_GREETING + self._nonce)  # fits into any empty buffer

    def go_on(self, token: bytes) -> bool | None:
        """Read what has arrived. Return whether it knows the token, None if that is still open."""
        try:
            told = self.socket.recv(_PROOF + _NONCE - len(self._read))
        except (BlockingIOError, InterruptedError):
            return None if time.monotonic() < self.until else False
        except OSError:
            return False
        self._read += told
        if not told:
            return False
        if len(self._read) < _PROOF + _NONCE:
            return None
        proof, nonce = self._read[:_PROOF], self._read[_PROOF:]
        if not hmac.compare_digest(proof, _proof(token, b"caller", self._nonce)):
            return False
        with contextlib.suppress(OSError):
            return self.socket.send(_proof(token, b"listener", nonce)) == _PROOF
        return False


@final
class Listener:
    """An open port, on all interfaces, for processes that know a token.

    Args:
        token: the secret.
        port: the port; 0 for one that is free.

    Attributes:
        addresses: where it can be reached; loopback last.
    """

    def __init__(self, token: bytes, port: int = 0) -> None:
        self._token = token
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._newcomers: list[_Newcomer] = []
        try:
            self._socket.bind(("", port))
            self._socket.listen(_BACKLOG)
            self._socket.setblocking(False)
            port = self._socket.getsockname()[1]
        except OSError:
            self._socket.close()
            raise
        self.addresses: tuple[Address, ...] = tuple([(a, port) for a in own_addresses()])

    def fileno(self) -> int:
        """Return the socket's number, for `select`."""
        return self._socket.fileno()

    @property
    def files(self) -> list[int]:
        """The numbers of all sockets on which something may arrive for `accept`."""
        return [self._socket.fileno(), *[n.socket.fileno() for n in self._newcomers]]

    def accept(self) -> Line | None:
        """Return the line to a process that has connected and knows the token, if there is one.

        It does not wait. Whoever does not prove within seconds that it knows the token is turned
        away.
        """
        with contextlib.suppress(OSError):
            while len(self._newcomers) < _MOST_NEWCOMERS:
                connection, _ = self._socket.accept()
                try:
                    self._newcomers.append(_Newcomer(connection))
                except OSError:
                    connection.close()
        for newcomer in list(self._newcomers):
            known = newcomer.go_on(self._token)
            if known is None:
                continue
            self._newcomers.remove(newcomer)
            if known:
                return Line(newcomer.socket)
            newcomer.socket.close()
        return None

    def close(self) -> None:
        """Close the port; lines that were accepted stay."""
        for newcomer in self._newcomers:
            newcomer.socket.close()
        self._newcomers.clear()
        self._socket.close()

    def __enter__(self) -> Listener:
        """Return the listener."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Close the port."""
        self.close()


def connect(addresses: Sequence[Address], token: bytes, timeout: float = 10.0) -> Line:
    """Return a line to the process that listens at some addresses.

    All addresses are tried at once; the first whose listener proves that it knows the token is
    kept. A port on which somebody else listens, or nobody, does no harm.

    Args:
        addresses: where the process says that it can be reached.
        token: the secret that both know.
        timeout: the most seconds to wait.

    Raises:
        TransportError: if none of them answers in time; it says what happened at each.
    """
    deadline = time.monotonic() + timeout
    failures: dict[Address, str] = {}
    waiting: dict[int, tuple[socket.socket, Address]] = {}
    poll = select.poll()
    try:
        for address in dict.fromkeys(map(_as_address, addresses)):
            begun = _begin(address, failures)
            if begun is not None:
                waiting[begun.fileno()] = begun, address
                poll.register(begun.fileno(), select.POLLIN)  # the listener greets first
        while waiting and time.monotonic() < deadline:
            for number, _ in poll.poll(max(1.0, (deadline - time.monotonic()) * 1000)):
                connection, address = waiting.pop(number)
                poll.unregister(number)
                told = _greet(connection, token, deadline)
                if told is None:
                    return Line(connection)
                failures[address] = told
                connection.close()
    finally:
        for connection, address in waiting.values():
            failures.setdefault(address, "no answer")
            connection.close()
    happened = "; ".join([f"{host}:{port}: {told}" for (host, port), told in failures.items()])
    raise TransportError(
        f"No connection within {timeout:g} seconds to the process that should listen at "
        f"{len(failures)} addresses. {happened or 'There are no addresses'}."
    )


def _as_address(given: Sequence[object]) -> Address:
    host, port = given
    assert isinstance(port, int)
    return str(host), port


def _begin(address: Address, failures: dict[Address, str]) -> socket.socket | None:
    """Begin to connect; None if that fails at once."""
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        code = connection.connect_ex(address)
    except (OSError, OverflowError) as error:
        code = getattr(error, "errno", None) or errno.EINVAL
    if code in (0, errno.EINPROGRESS):
        return connection
    connection.close()
    failures[address] = _told(code)
    return None


def _told(code: int) -> str:
    return os.strerror(code)


def _greet(connection: socket.socket, token: bytes, deadline: float) -> str | None:
    """Prove to a listener that the token is known, and have it prove the same.

    Returns None if that succeeded, or what went wrong.
    """
    code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        return _told(code)
    nonce = secrets.token_bytes(_NONCE)
    try:
        connection.settimeout(max(0.01, min(_PATIENCE, deadline - time.monotonic())))
        greeting = _exactly(connection, len(_GREETING) + _NONCE)
        if not greeting.startswith(_GREETING):
            return "what listens there is not a process of meshard"
        connection.sendall(_proof(token, b"caller", greeting[len(_GREETING) :]) + nonce)
        proof = _exactly(connection, _PROOF)
    except TimeoutError:
        return "no answer"
    except OSError as error:
        return error.strerror or str(error)
    if not proof:
        return "turned away: it has another token"
    if not hmac.compare_digest(proof, _proof(token, b"listener", nonce)):
        return "what listens there has another token"
    return None


def _exactly(connection: socket.socket, count: int) -> bytes:
    """Return that many bytes, or none if the connection ends before."""
    found = b""
    while len(found) < count:
        told = connection.recv(count - len(found))
        if not told:
            return b""
        found += told
    return found
