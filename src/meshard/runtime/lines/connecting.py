"""Connecting: lines between processes that know the same secret.

In: addresses and a token. Out: lines. Both ends prove that they know the token before either reads
a message; the token itself is not sent. A proof is a keyed hash of a random number of each end, and
of the addresses of both as its sender sees them: it is worth nothing a second time, nor on another
connection, so that nobody between the two can pass it on.

Addresses of this machine, by which processes elsewhere can reach it.

In: nothing. Out: IPv4 addresses of the network interfaces that are up; loopback comes last.
"""

from __future__ import annotations

import array
import contextlib
import errno
import hmac
import os
import secrets
import select
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import final

from meshard.errors import TransportError
from meshard.runtime.lines.line import Line

if sys.platform == "linux":
    import fcntl

_LOOPBACK = "127.0.0.1"
# Of <linux/sockios.h> and <linux/if.h>.
_SIOCGIFCONF, _SIOCGIFFLAGS, _IFF_UP = 0x8912, 0x8913, 0x1
_NAME, _ENTRY = 16, 40
_MOST_ENTRIES = 4096


def own_addresses() -> tuple[str, ...]:
    """Return this machine's IPv4 addresses; those of loopback, which others cannot reach, last."""
    found = _of_interfaces() or _of_host_name()
    ordered = dict.fromkeys([*found, _LOOPBACK])
    return tuple(sorted(ordered, key=lambda address: address.startswith("127.")))


def own_network() -> str:
    """Return what only those have in common that reach each other by loopback."""
    if sys.platform != "linux":
        return socket.gethostname()
    found = []
    with contextlib.suppress(OSError):
        found.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        found.append(os.readlink("/proc/self/ns/net"))
    return " ".join(found) if len(found) == 2 else secrets.token_hex(16)


def _of_interfaces() -> list[str]:
    """Return the addresses of the interfaces that are up, as the kernel lists them."""
    if sys.platform != "linux":
        return []
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked,
    ):
        return [a for name, a in _interfaces(asked) if _is_up(asked, name)]
    return []


def _interfaces(asked: socket.socket) -> list[tuple[bytes, str]]:
    """Return the name and the address of each interface."""
    answer = array.array("B", bytes(_ENTRY * _MOST_ENTRIES))
    request = struct.pack("iL", len(answer), answer.buffer_info()[0])
    used = struct.unpack("iL", fcntl.ioctl(asked.fileno(), _SIOCGIFCONF, request))[0]
    told = answer.tobytes()
    return [
        (told[at : at + _NAME], socket.inet_ntoa(told[at + _NAME + 4 : at + _NAME + 8]))
        for at in range(0, used, _ENTRY)
    ]


def _is_up(asked: socket.socket, name: bytes) -> bool:
    request = name + bytes(_ENTRY - _NAME)
    with contextlib.suppress(OSError):
        told = fcntl.ioctl(asked.fileno(), _SIOCGIFFLAGS, request)
        return bool(struct.unpack_from("h", told, _NAME)[0] & _IFF_UP)
    return False


def _of_host_name() -> list[str]:
    """Return what the name service says of this host; nothing if there is none."""
    with contextlib.suppress(OSError):
        told = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
        return [str(entry[4][0]) for entry in told]
    return []


Address = tuple[str, int]
"""An IPv4 address and a port."""

_GREETING = b"meshard2"
_NONCE, _PROOF = 32, 32
_PATIENCE = 5.0
"""Seconds that a newcomer has to prove that it knows the token."""
_MOST_NEWCOMERS = 128
"""Connections that are heard at a time, of those that have not proved anything."""
_MOST_AT_ONCE = 64
"""Connections that are taken from the system before any is heard."""
_BACKLOG = 1024
_AGAIN = 0.05
"""Seconds after which one that was turned away comes again."""
_NO = bytes(_PROOF)
"""What a listener answers instead of its proof to one that has another token."""
_FULL = 0.02
"""Seconds for which a process that can open no more files takes no connections."""
ANYWHERE = ""
LOOPBACK = "127.0.0.1"


def new_token() -> bytes:
    """Return a new secret, to be known by those who may connect."""
    return secrets.token_bytes(32)


class StrangerError(TransportError):
    """A listener that has another token."""


def _proof(token: bytes, side: bytes, nonces: bytes, ends: tuple[Address, Address]) -> bytes:
    """Return what proves that one end knows the token.

    Args:
        token: the secret.
        side: which end.
        nonces: the random numbers of listener and caller.
        ends: the addresses of listener and caller.
    """
    where = " ".join([f"{host}:{port}" for host, port in ends]).encode("ascii")
    return hmac.digest(token, side + nonces + where, "sha256")


def _ends(own: socket.socket, *, listens: bool) -> tuple[Address, Address]:
    """Return the addresses of listener and caller, as one of them sees them."""
    here, there = own.getsockname()[:2], own.getpeername()[:2]
    return (here, there) if listens else (there, here)


@final
class _Newcomer:
    """A connection whose other end has not proved yet that it knows the token."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.until = time.monotonic() + _PATIENCE
        self.is_wrong = False
        self._nonce = secrets.token_bytes(_NONCE)
        self._read = b""
        self._ends = _ends(connection, listens=True)
        self.host = self._ends[1][0]
        connection.send(_GREETING + self._nonce)  # fits into any empty buffer

    def go_on(self, token: bytes) -> bool | None:
        """Read what has arrived. Return whether it knows the token, None if that is still open."""
        try:
            told = self.socket.recv(_PROOF + _NONCE - len(self._read))
            self._read += told
            if not told:
                return False
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            return False
        if len(self._read) < _PROOF + _NONCE:  # also one that sends a byte now and then
            return None if time.monotonic() < self.until else False
        nonces = self._nonce + self._read[_PROOF:]
        expected = _proof(token, b"caller", nonces, self._ends)
        known = hmac.compare_digest(self._read[:_PROOF], expected)
        self.is_wrong = not known
        answer = _proof(token, b"listener", nonces, self._ends) if known else _NO
        with contextlib.suppress(OSError):
            return self.socket.send(answer) == _PROOF and known
        return False


@final
class Listener:
    """An open port for processes that know a token.

    Strangers cannot keep those out that know it: each has seconds to prove itself, all are heard at
    the same time, and where there are too many, the oldest one of the host that has most goes.

    Args:
        token: the secret.
        port: the port; 0 for one that is free.
        host: the address to listen at; by default those of all interfaces.

    Attributes:
        addresses: where it can be reached; loopback last.
        turned_away: how many have given a proof that was wrong.
    """

    def __init__(self, token: bytes, port: int = 0, host: str = ANYWHERE) -> None:
        self._token = token
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._newcomers: list[_Newcomer] = []
        self.turned_away = 0
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, port != 0)
            self._socket.bind((host, port))
            self._socket.listen(_BACKLOG)
            self._socket.setblocking(False)
            port = self._socket.getsockname()[1]
        except OSError:
            self._socket.close()
            raise
        hosts = own_addresses() if host == ANYWHERE else (host,)
        self.addresses: tuple[Address, ...] = tuple([(a, port) for a in hosts])

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
        self._take_newcomers()
        for newcomer in list(self._newcomers):
            known = newcomer.go_on(self._token)
            if known is None:
                continue
            self._newcomers.remove(newcomer)
            if known:
                return Line(newcomer.socket)
            self.turned_away += newcomer.is_wrong
            newcomer.socket.close()
        return None

    def _take_newcomers(self) -> None:
        """Accept those that have connected."""
        for _ in range(_MOST_AT_ONCE):
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    # The port stays ready, so that whoever waits for it would not wait at all.
                    self._drop_one()
                    time.sleep(_FULL)
                return
            try:
                self._newcomers.append(_Newcomer(connection))
            except OSError:
                connection.close()
            if len(self._newcomers) > _MOST_NEWCOMERS:
                self._drop_one()

    def _drop_one(self) -> None:
        """Turn the oldest newcomer away, of those from the host that has most."""
        if self._newcomers:
            ((host, _),) = Counter([n.host for n in self._newcomers]).most_common(1)
            oldest = next(n for n in self._newcomers if n.host == host)
            self._newcomers.remove(oldest)
            oldest.socket.close()

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
        StrangerError: if one that answers has another token, and none has this one.
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
                if told == _TURNED_AWAY:  # by one that has too many callers at the moment
                    time.sleep(_AGAIN)
                    again = _begin(address, failures)
                    if again is not None:
                        waiting[again.fileno()] = again, address
                        poll.register(again.fileno(), select.POLLIN)
    finally:
        for connection, address in waiting.values():
            failures.setdefault(address, "no answer")
            connection.close()
    happened = "; ".join([f"{host}:{port}: {told}" for (host, port), told in failures.items()])
    kind = StrangerError if _OTHER in failures.values() else TransportError
    raise kind(
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
    nonce, until = secrets.token_bytes(_NONCE), min(deadline, time.monotonic() + _PATIENCE)
    try:
        ends = _ends(connection, listens=False)
        greeting = _exactly(connection, len(_GREETING) + _NONCE, until)
        if not greeting.startswith(_GREETING):
            return "what listens there is not a process of this version of meshard"
        nonces = greeting[len(_GREETING) :] + nonce
        connection.sendall(_proof(token, b"caller", nonces, ends) + nonce)
        proof = _exactly(connection, _PROOF, until)
    except TimeoutError:
        return "no answer"
    except OSError as error:
        return error.strerror or str(error)
    if not proof:
        return _TURNED_AWAY
    if not hmac.compare_digest(proof, _proof(token, b"listener", nonces, ends)):
        return _OTHER
    return None


_TURNED_AWAY = "turned away before it has answered"
_OTHER = "what listens there has another token, or the addresses are translated on the way"


def _exactly(connection: socket.socket, count: int, until: float) -> bytes:
    """Return that many bytes, or none if the connection ends before.

    Raises:
        TimeoutError: if they have not all come in time.
    """
    found = b""
    while len(found) < count:
        connection.settimeout(max(0.01, until - time.monotonic()))
        if found and time.monotonic() > until:
            raise TimeoutError
        told = connection.recv(count - len(found))
        if not told:
            return b""
        found += told
    return found
