"""Meeting at an address: processes that no launcher of MPI has started find each other.

In: the address of the first process, how many there are, which one this is, and what only they
know. Out: a function that gathers what each of them says. It only serves to exchange
where everybody listens; from then on the processes have lines of their own.

Who does not know the secret is not heard, and it is never sent: both ends of a line prove that they
know it, as all lines do. Processes of one host that are given no secret use one that is in a folder
of their user. That is asked of the file system rather than of a socket, since TCP does not say who
the other end is, and since so there is one way to let somebody in.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import socket
import time
from pathlib import Path
from typing import Any, final

from meshard.algebra.arguments import shown
from meshard.errors import ConfigError, StorageError, TransportError
from meshard.runtime.lines.connecting import (
    ANYWHERE,
    Listener,
    StrangerError,
    connect,
)
from meshard.runtime.lines.letters import decode, encode
from meshard.runtime.lines.line import Line, wait
from meshard.runtime.lines.rendezvous import Rendezvous, read_secret

SECRET = "MESHARD_SECRET"
"""The variable with the secret. It is not a setting, since those are printed."""
_SHORTEST = 16
_AGAIN = 0.05
"""Seconds between two attempts to reach the first process."""
_TICK = 1.0
_GRACE = 10.0
"""Seconds that process 0 has, beyond this one's own patience, to say what is wrong."""
_WHAT = "distributed.initialize"


def address_of(given: str) -> tuple[str, int]:
    """Return the host and the port of an address.

    Raises:
        ConfigError: if it is not ``host:port``.
    """
    host, _, port = given.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(
            f"{_WHAT}: coordinator_address={given!r} is not a host and a port, such "
            "as 'localhost:1234'."
        )
    return host.strip("[]"), int(port)


def secret_file() -> Path | None:
    """Return the file in which a user may keep the secret; None if there is none."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        folder = Path(base) if base.startswith("/") else Path.home() / ".config"
        path = folder / "meshard" / "secret"
        return path if path.exists() else None
    except (OSError, RuntimeError):  # no home
        return None


def key_that_is_set(given: str | None = None) -> bytes | None:
    """Return the key of the secret that is given or set; None if there is none.

    Raises:
        ConfigError: if it is too short, or in a file that others can read.
    """
    told, where = given, "secret"
    if told is None:
        told, where = os.environ.get(SECRET), SECRET
    if told is None and (path := secret_file()) is not None:
        try:
            told, where = read_secret(path), str(path)
        except StorageError as error:
            raise ConfigError(f"{_WHAT}: {error}") from error
    if told is None:
        return None
    if len(told) < _SHORTEST:
        raise ConfigError(
            f"{_WHAT}: the secret ({where}) has {len(told)} characters; it needs at least "
            f"{_SHORTEST}, so that it cannot be guessed. `openssl rand -hex 32` makes one; give it "
            "to all processes."
        )
    return _key(told)


def _key(secret: str) -> bytes:
    return hmac.digest(secret.encode("utf-8", "surrogateescape"), b"meshard meets", "sha256")


def _key_of_user(address: str) -> bytes:
    try:
        return _key(Rendezvous().own_secret())
    except StorageError as error:
        raise ConfigError(
            f"{_WHAT}: no secret is set for meeting at {address}, and none can be kept for the "
            f"processes of this user: {error} Set {SECRET} for all processes."
        ) from error


def _resolved(host: str) -> str:
    """Return the IPv4 address of a host.

    Raises:
        ConfigError: if it has none.
    """
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{_WHAT}: the host {shown(host)} of coordinator_address has no IPv4 address: {error}."
        ) from error
    return str(found[0][4][0])


@final
class Coordinator:
    """The meeting of some processes, as one of them sees it.

    Args:
        address: where the first process listens.
        count: how many processes there are.
        index: which one this is.
        patience: seconds to wait for the others.
        secret: what only they know; None for what is set.

    Attributes:
        key: what they prove to know.

    Raises:
        ConfigError: if they do not all come in time, or do not agree about how many they are; or if
            there is no secret where one is needed.
    """

    def __init__(
        self, address: str, count: int, index: int, patience: float, secret: str | None = None
    ) -> None:
        self._address, self._count, self._index = address, count, index
        self._until = time.monotonic() + patience
        self._patience = patience
        self._lines: dict[int, Line] = {}
        name, port = address_of(address)
        host = _resolved(name)
        found = key_that_is_set(secret)
        if found is None and not ipaddress.ip_address(host).is_loopback:
            raise ConfigError(
                f"{_WHAT}: {address} can be reached from other hosts, and no secret is set by "
                "which the processes of this job would know each other. Set the same one for all "
                f"processes: the argument secret=, {SECRET} in the environment, or the file "
                "~/.config/meshard/secret with mode 0600; `openssl rand -hex 32` makes one. "
                "Processes of one host need none at an address such as 'localhost:1234'."
            )
        self.key = _key_of_user(address) if found is None else found
        if index == 0:
            # Some hosts give their own name an address of loopback, which others cannot reach.
            is_name = found is not None and name not in (host, "localhost")
            everywhere = is_name and ipaddress.ip_address(host).is_loopback
            self._receive_all(ANYWHERE if everywhere else host, port)
        else:
            self._lines[0] = self._connected(host, port)
            self._until += _GRACE
            self._say(self._lines[0], {"process": index, "count": count})

    def gather(self, value: Any) -> list[Any]:
        """Return what all processes say, in order; each says something that letters can hold."""
        if self._index > 0:
            self._say(self._lines[0], value)
            answer = self._hear(self._lines[0], "process 0")
            if isinstance(answer, dict):
                raise ConfigError(str(answer.get("refused")))
            if not isinstance(answer, list) or len(answer) != self._count:
                raise self._lost("process 0", "its answer is not that of a process of meshard")
            return answer
        found = [value]
        for peer in range(1, self._count):
            found.append(self._hear(self._lines[peer], f"process {peer}"))
        for line in self._lines.values():
            self._say(line, found)
        return found

    def close(self) -> None:
        """Let go of the others."""
        for line in self._lines.values():
            line.close()

    def _receive_all(self, host: str, port: int) -> None:
        """Wait for all others to connect."""
        try:
            listener = Listener(self.key, port, host)
        except OSError as error:
            raise ConfigError(
                f"{_WHAT}: process 0 cannot listen at {self._address}: "
                f"{error.strerror or error}. Choose another port, or an address that this host "
                "has itself, the same for all processes."
            ) from error
        unnamed: list[Line] = []
        try:
            while len(self._lines) < self._count - 1:
                left = self._until - time.monotonic()
                if left <= 0:
                    raise self._refusal(self._missing(listener.turned_away))
                wait(unnamed, min(_TICK, left), listener.files)
                while (line := listener.accept()) is not None:
                    unnamed.append(line)
                for line in list(unnamed):
                    header = line.poll()
                    if header is not None or line.closed:
                        unnamed.remove(line)
                    if header is not None:
                        self._enter(line, header)
        finally:
            listener.close()
            for line in unnamed:
                line.close()

    def _missing(self, turned_away: int) -> str:
        missing = [p for p in range(1, self._count) if p not in self._lines]
        others = (
            f" Connections turned away because they had another secret: {turned_away}."
            if turned_away
            else ""
        )
        return (
            f"processes {missing} of {self._count} have not come to {self._address} within "
            f"{self._patience:g} s.{others} Start all of them, with this address and one secret."
        )

    def _enter(self, line: Line, header: bytes) -> None:
        """Take one in that knows the secret and says which process it is."""
        try:
            told = decode(header)
            peer, count = told["process"], told["count"]
        except (TransportError, KeyError, TypeError):
            peer = count = None
        if type(peer) is not int or type(count) is not int:
            line.close()
            return
        if count != self._count:
            self._lines.setdefault(peer, line)
            raise self._refusal(
                f"process {peer} says num_processes={count}, but process 0 says {self._count}. "
                "Give the same number to all."
            )
        if peer in self._lines or not 0 < peer < count:
            self._lines[-1] = line
            raise self._refusal(
                f"two processes say process_id={peer}. Give each a number of its own, from 0 to "
                f"{count - 1}."
            )
        self._lines[peer] = line

    def _refusal(self, text: str) -> ConfigError:
        """Tell all that have come what is wrong, and return the error."""
        told = f"{_WHAT}: {text}"
        self._until += _TICK
        for line in self._lines.values():
            try:
                self._say(line, {"refused": told})
            except ConfigError:
                continue
        self.close()
        return ConfigError(told)

    def _connected(self, host: str, port: int) -> Line:
        while True:
            try:
                return connect([(host, port)], self.key, max(0.01, self._until - time.monotonic()))
            except StrangerError as error:
                raise ConfigError(
                    f"{_WHAT}: process {self._index} has another secret than the process that "
                    f"listens at {self._address}. Give all processes of a job the same (secret=, "
                    f"{SECRET} or a file; without any, they must be of one user on one host, with "
                    "the same MESHARD_RENDEZVOUS and XDG_RUNTIME_DIR). If it is the same, "
                    "addresses are translated on the way, and a proof is bound to them."
                ) from error
            except TransportError as error:
                if time.monotonic() > self._until:
                    raise ConfigError(
                        f"{_WHAT}: process {self._index} has not reached process 0 "
                        f"at {self._address} within {self._patience:g} s: {error} Start process "
                        "0 with the same address, on the host that it names."
                    ) from error
                time.sleep(_AGAIN)

    def _say(self, line: Line, value: Any) -> None:
        try:
            line.send(encode(value))
            while not line.push():
                line.check()
                self._wait(line, "another process")
            line.check()
        except TransportError as error:
            raise self._lost("another process", str(error)) from error

    def _hear(self, line: Line, who: str) -> Any:
        while (header := line.poll()) is None:
            if line.closed:
                raise self._lost(who, str(line.reason))
            self._wait(line, who)
        try:
            return decode(header)
        except TransportError as error:
            raise self._lost(who, str(error)) from error

    def _wait(self, line: Line, who: str) -> None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise self._lost(who, f"it has said nothing for {self._patience:g} s")
        wait([line], left)

    def _lost(self, who: str, why: str) -> ConfigError:
        return ConfigError(
            f"{_WHAT}: {who} was lost while the processes met at {self._address}: "
            f"{why.rstrip('.')}."
        )
