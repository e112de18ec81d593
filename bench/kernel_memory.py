"""Memory as the kernel counts it: what a process takes, shared and private, whoever maps it.

In: a process that has imported all that it needs. Out: the bytes that its anonymous and shared
pages take from now on, at any time and at most. Counted by a control group of its own, where one
can be made; else by the process's own resident pages, often: what is shared is not counted then.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from types import TracebackType

_GROUPS = Path("/sys/fs/cgroup")


class _Group:
    """A control group of this process."""

    def __init__(self) -> None:
        mine = {}
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            mine[names] = path.lstrip("/")
        first = "memory" in mine
        top = _GROUPS / "memory" if first else _GROUPS
        self._home = top / mine["memory" if first else ""]
        if not self._home.exists():
            self._home = top
        self._path = self._home / f"meshard-{os.getpid()}-{time.monotonic_ns()}"
        self._path.mkdir()
        self._now = "memory.usage_in_bytes" if first else "memory.current"
        self._most = "memory.max_usage_in_bytes" if first else "memory.peak"
        try:
            (self._path / "cgroup.procs").write_text(str(os.getpid()))
            self.reset()
        except OSError:
            self.close()
            raise

    def now(self) -> int:
        return int((self._path / self._now).read_text())

    def most(self) -> int:
        return int((self._path / self._most).read_text())

    def reset(self) -> None:
        (self._path / self._most).write_text("0")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            (self._home / "cgroup.procs").write_text(str(os.getpid()))
        with contextlib.suppress(OSError):
            self._path.rmdir()


class _Samples:
    """This process's resident anonymous pages, looked at often."""

    def __init__(self) -> None:
        self._before = _resident()
        self._top = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(1e-3):
            self.now()

    def now(self) -> int:
        found = _resident() - self._before
        self._top = max(self._top, found)
        return found

    def most(self) -> int:
        return self._top

    def reset(self) -> None:
        self._top = 0

    def close(self) -> None:
        self._over.set()
        self._thread.join()


def _resident() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise OSError("this system does not say what a process takes")


class Meter:
    """Counts the memory of this process within a ``with`` statement."""

    def __enter__(self) -> Meter:
        try:
            self._way: _Group | _Samples = _Group()
        except OSError:
            self._way = _Samples()
        self._last = None
        return self

    @property
    def counts_shared(self) -> bool:
        """Whether memory that is shared with other processes is counted, once."""
        return isinstance(self._way, _Group)

    def now(self) -> int:
        """Return the bytes that are taken now."""
        return self._way.now()

    def most(self) -> int:
        """Return the most bytes that were taken at once."""
        return self._way.most() if self._last is None else self._last

    def reset(self) -> None:
        """Count the most anew from now on."""
        self._way.reset()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._last = self._way.most()
        self._way.close()
