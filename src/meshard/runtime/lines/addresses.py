"""Addresses of this machine, by which processes elsewhere can reach it.

In: nothing. Out: IPv4 addresses of the network interfaces that are up; loopback comes last.
"""

from __future__ import annotations

import array
import contextlib
import os
import secrets
import socket
import struct
import sys
from pathlib import Path

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
