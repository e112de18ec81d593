"""Meeting at an address: processes that no launcher of MPI has started find each other.

In: the address of the first process, how many there are, and which one this is. Out: a function
that gathers what each of them says. It only serves to exchange where everybody listens; from then
on the processes have lines of their own.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any, final

from meshard.errors import ConfigError

_AGAIN = 0.05
"""Seconds between two attempts to reach the first process."""
_GRACE = 10.0
"""Seconds that process 0 has, beyond this one's own patience, to say what is wrong."""
_MOST = 1 << 24
"""Bytes of a message, at most."""
Gather = Callable[[Any], list[Any]]


def address_of(given: str) -> tuple[str, int]:
    """Return the host and the port of an address.

    Raises:
        ConfigError: if it is not ``host:port``.
    """
    host, _, port = given.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(
            f"distributed.initialize: coordinator_address={given!r} is not a host and a port, such "
            "as 'localhost:1234'."
        )
    return host.strip("[]"), int(port)


@final
class Coordinator:
    """The meeting of some processes, as one of them sees it.

    Args:
        address: where the first process listens.
        count: how many processes there are.
        index: which one this is.
        patience: seconds to wait for the others.

    Raises:
        ConfigError: if they do not all come in time, or do not agree about how many they are.
    """

    def __init__(self, address: str, count: int, index: int, patience: float) -> None:
        self._address, self._count, self._index = address, count, index
        self._until = time.monotonic() + patience
        self._patience = patience
        self._lines: dict[int, socket.socket] = {}
        host, port = address_of(address)
        if index == 0:
            self._receive_all(host, port)
        else:
            self._lines[0] = self._connected(host, port)
            self._until += _GRACE
            self._say(self._lines[0], {"process": index, "count": count})

    def gather(self, value: Any) -> list[Any]:
        """Return what all processes say, in order; each says something that JSON can hold."""
        if self._index > 0:
            self._say(self._lines[0], value)
            answer = self._hear(self._lines[0], "process 0")
            if isinstance(answer, dict):
                raise ConfigError(str(answer["refused"]))
            assert isinstance(answer, list)
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
            listener = socket.create_server((host, port), backlog=self._count)
        except OSError:
            try:  # an address that others reach this host by, but that it does not have itself
                listener = socket.create_server(("", port), backlog=self._count)
            except OSError as error:
                raise ConfigError(
                    f"distributed.initialize: process 0 cannot listen at {self._address}: "
                    f"{error}. Choose another port, the same for all processes."
                ) from error
        with listener:
            while len(self._lines) < self._count - 1:
                self._receive(listener)

    def _receive(self, listener: socket.socket) -> None:
        try:
            listener.settimeout(max(0.01, self._until - time.monotonic()))
            line, _ = listener.accept()
        except TimeoutError:
            missing = [p for p in range(1, self._count) if p not in self._lines]
            raise self._refusal(
                f"processes {missing} of {self._count} have not come to {self._address} within "
                f"{self._patience:g} s. Start all of them, with this address."
            ) from None
        try:
            told = self._hear(line, "a process")
            peer, count = told["process"], told["count"]
        except (ConfigError, KeyError, TypeError):  # somebody else
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
        told = f"distributed.initialize: {text}"
        for line in self._lines.values():
            try:
                self._say(line, {"refused": told})
                line.close()
            except (OSError, ConfigError):
                continue
        return ConfigError(told)

    def _connected(self, host: str, port: int) -> socket.socket:
        while True:
            try:
                return socket.create_connection((host, port), timeout=self._left())
            except OSError as error:
                if time.monotonic() > self._until:
                    raise ConfigError(
                        f"distributed.initialize: process {self._index} has not reached process 0 "
                        f"at {self._address} within {self._patience:g} s: {error}. Start process "
                        "0 with the same address, on the host that it names."
                    ) from error
                time.sleep(_AGAIN)

    def _left(self) -> float:
        return max(0.01, self._until - time.monotonic())

    def _say(self, line: socket.socket, value: Any) -> None:
        data = json.dumps(value).encode()
        line.settimeout(self._left())
        try:
            line.sendall(len(data).to_bytes(4, "big") + data)
        except OSError as error:
            raise self._lost("another process", error) from error

    def _hear(self, line: socket.socket, who: str) -> Any:
        size = int.from_bytes(self._bytes(line, 4, who), "big")
        if size > _MOST:
            raise ConfigError(f"distributed.initialize: {who} is not a process of meshard.")
        return json.loads(self._bytes(line, size, who))

    def _bytes(self, line: socket.socket, count: int, who: str) -> bytes:
        found = b""
        while len(found) < count:
            line.settimeout(self._left())
            try:
                more = line.recv(count - len(found))
            except OSError as error:
                raise self._lost(who, error) from error
            if not more:
                raise self._lost(who, "it has closed the connection")
            found += more
        return found

    def _lost(self, who: str, why: object) -> ConfigError:
        return ConfigError(
            f"distributed.initialize: {who} was lost while the processes met at {self._address}: "
            f"{why}."
        )
