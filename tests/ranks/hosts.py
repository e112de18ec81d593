"""Several hosts on one machine: network namespaces joined by links that can be slow, lossy or cut.

In: a number of hosts. Out: hosts with names and addresses of their own on which commands run, and a
launch agent that takes the place of ssh. Whatever happens, the namespaces and all processes in them
are gone in the end. That takes root and Linux's `ip`; `why_not` says what is missing.

`python hosts.py DELAY LOSS NAMESPACE ...` is the cable that joins hosts by slow links: it passes on
each packet after some time, or loses it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import os
import random
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

_PREFIX = "hosts-"
_AGENT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1; shift
[ -e "FOLDER/cut-$host" ] && exit 255
ip netns exec "$host" unshare -u sh -c "hostname $host; $*"
code=$?
# An ssh whose link is cut does not learn how its command has ended, and fails in the end.
[ -e "FOLDER/cut-$host" ] && exit 255
exit $code
"""
_TUN = Path("/dev/net/tun")
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI, _CLONE_NEWNET = 0x400454CA, 0x0002, 0x1000, 0x40000000
_MOST_BYTES = 1 << 16
_GROUPS = itertools.count()


@cache
def why_not(*, slow: bool = False) -> str | None:
    """Return why this machine cannot play several hosts; None if it can.

    Args:
        slow: Whether their links are to be slow or lossy.
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        return "several hosts on one machine take Linux and root"
    for tool in ("ip", "unshare", "hostname"):
        if shutil.which(tool) is None:
            return f"several hosts on one machine take the program `{tool}`"
    if slow and not _TUN.exists():
        return f"slow links between hosts take {_TUN}"
    name = f"{_PREFIX}{os.getpid()}-try"
    tried = ["netns add {}", "-n {} link add try0 type veth peer name try1"]
    tried.append("-n {} tuntap add mode tap try2" if slow else "-n {} link add try2 type bridge")
    try:
        for line in tried:
            done = subprocess.run(
                ["ip", *line.format(name).split()], capture_output=True, text=True, check=False
            )
            if done.returncode:
                return f"this machine refuses `ip {line.format(name)}`: {done.stderr.strip()}"
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return None


class Hosts:
    """Hosts on one machine, each in a network namespace of its own; a context manager.

    Args:
        count: How many hosts.
        delay: Seconds that each packet takes.
        loss: The share of packets that are lost.

    Attributes:
        names: Their names, by which the launch agent finds them too.
    """

    def __init__(self, count: int, *, delay: float = 0.0, loss: float = 0.0) -> None:
        group = f"{_PREFIX}{os.getpid()}-{next(_GROUPS)}"
        self.names = [f"{group}-h{i}" for i in range(count)]
        self._switch = f"{group}-switch"
        self._slow = [str(delay), str(loss)] if delay or loss else []
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._cable: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Hosts:
        for line in _ip("netns list").splitlines():  # of test runs that were killed
            name = line.split()[0]
            owner = name.removeprefix(_PREFIX).partition("-")[0]
            if name.startswith(_PREFIX) and not Path("/proc", owner).exists():
                _remove(name)
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *ignored: object) -> None:
        for name in (*self.names, self._switch):
            _remove(name)
        if self._cable is not None:
            self._cable.kill()
            self._cable.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)
        for name in self.names:  # Open MPI leaves its memory behind if it is killed
            for file in Path("/dev/shm").glob(f"sm_segment.{name}.*"):
                file.unlink(missing_ok=True)

    def _build(self) -> None:
        agent = self._folder / "agent"
        agent.write_text(_AGENT.replace("FOLDER", str(self._folder)))
        agent.chmod(0o755)
        for name in (*self.names, self._switch):
            _ip(f"netns add {name}")
            _ip(f"-n {name} link set lo up")
        if self._slow:
            self._cable = subprocess.Popen(
                [sys.executable, __file__, *self._slow, *self.names], stdout=subprocess.PIPE
            )
            assert self._cable.stdout is not None
            assert self._cable.stdout.readline() == b"ready\n"
        else:
            _ip(f"-n {self._switch} link add bridge type bridge")
            _ip(f"-n {self._switch} link set bridge up")
        for i, name in enumerate(self.names):
            if not self._slow:
                _ip(f"-n {name} link add net type veth peer name v{i} netns {self._switch}")
                _ip(f"-n {self._switch} link set v{i} master bridge up")
            _ip(f"-n {name} address add 10.77.0.{i + 1}/24 dev net")
            _ip(f"-n {name} link set net up")

    def cut(self, host: int, *, silent: bool = True) -> None:
        """Cut the link of a host.

        Args:
            host: Its number.
            silent: Whether the cut is behind the switch: the host's own interface stays up, and
                packets vanish. Else the interface itself goes down.
        """
        (self._folder / f"cut-{self.names[host]}").touch()
        if silent:
            _ip(f"-n {self._switch} link set v{host} nomaster")
        else:
            _ip(f"-n {self.names[host]} link set net down")

    def line(self, host: int, command: Sequence[str]) -> list[str]:
        """Return the command line that runs a command on a host."""
        inside = f"hostname {self.names[host]}; exec {shlex.join(command)}"
        return ["ip", "netns", "exec", self.names[host], "unshare", "-u", "sh", "-c", inside]

    def settings(self, slots: int = 2, **more: str) -> dict[str, str]:
        """Return the environment of a job over all hosts.

        Args:
            slots: The processes of each host.
            more: Further variables.
        """
        hosts = self._folder / "hosts"
        hosts.write_text("".join(f"{name} slots={slots}\n" for name in self.names))
        inherited = {n: v for n, v in os.environ.items() if n != "MESHARD_NUM_DEVICES"}
        return {
            **inherited,
            "PRTE_MCA_plm_ssh_agent": str(self._folder / "agent"),
            "PRTE_MCA_prte_default_hostfile": str(hosts),
            "PRTE_MCA_rmaps_default_mapping_policy": "slot:OVERSUBSCRIBE",
            **more,
        }

    def left(self, hosts: Sequence[int]) -> list[str]:
        """Return the command lines of the processes that run on some hosts."""
        found = []
        for name in [self.names[i] for i in hosts]:
            for pid in _processes(name):
                with contextlib.suppress(OSError):
                    line = Path("/proc", str(pid), "cmdline").read_bytes()
                    found.append(f"{name}: {line.replace(bytes(1), b' ').decode()}")
        return found


def _ip(line: str) -> str:
    done = subprocess.run(["ip", *line.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {line}: {done.stderr}"
    return done.stdout


def _processes(name: str) -> set[int]:
    line = ["ip", "netns", "pids", name]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return set(map(int, done.stdout.split()))


def _remove(name: str) -> None:
    """Remove a namespace, with all its processes."""
    while left := _processes(name):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            for program in "ompi", "prted":  # folders that Open MPI's programs make
                folder = Path(tempfile.gettempdir(), f"{program}.{pid}")
                shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.01)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _open_ends(names: Sequence[str]) -> list[int]:
    """Make an interface in each namespace; return the files that read and write its packets."""
    setns = ctypes.CDLL(None, use_errno=True).setns
    ends = []
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    for name in names:
        namespace = os.open(f"/run/netns/{name}", os.O_RDONLY)
        assert setns(namespace, _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        end = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH", b"net", _IFF_TAP | _IFF_NO_PI))
        ends.append(end)
        os.close(namespace)
    assert setns(own, _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    return ends


def _carry(delay: float, loss: float, names: Sequence[str]) -> None:
    """Pass packets on from each host to all others, late, and not all of them."""
    ends = _open_ends(names)
    os.write(1, b"ready\n")
    chance, number = random.Random(0), 0
    late: list[tuple[float, int, int, bytes]] = []
    while True:
        soonest = max(0.0, late[0][0] - time.monotonic()) if late else None
        for end in select.select(ends, (), (), soonest)[0]:
            packet, due = os.read(end, _MOST_BYTES), time.monotonic() + delay
            for other in ends:
                if other != end and chance.random() >= loss:
                    number += 1
                    heapq.heappush(late, (due, number, other, packet))
        while late and late[0][0] <= time.monotonic():
            _, _, end, packet = heapq.heappop(late)
            with contextlib.suppress(OSError):  # it is full, or down: the packet is lost
                os.write(end, packet)


if __name__ == "__main__":
    _carry(float(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
