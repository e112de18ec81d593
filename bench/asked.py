"""A process that is asked by lines of JSON and answers by lines of JSON, within a time.

In: a command. Out: its answers. What does not answer in time is ended; that it aborted, or hung, is
an error for who asks, and never ends a run.
"""

import atexit
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

MARK = "@@"
"""What an answer begins with, since libraries print too."""
PATIENCE = 120.0
"""Seconds that an answer may take."""


class JobError(RuntimeError):
    """A process says that something is wrong, has ended, or does not answer."""


class Asked:
    """One process, or one command that starts several of which one is asked."""

    def __init__(
        self,
        command: Sequence[str],
        name: str,
        settings: Mapping[str, str] | None = None,
        patience: float = PATIENCE,
    ) -> None:
        """Start the command; `name` is what errors call it."""
        self._name, self._patience = name, patience
        # Open as long as the process.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            list(command),
            env=None if settings is None else dict(settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # so that all that it has started ends with it
        )
        self._unread = b""
        atexit.register(self.end)

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def ask(self, **words: Any) -> dict[str, Any]:
        """Ask for something; wait for the answer."""
        self.send(**words)
        return self.answer()

    def send(self, **words: Any) -> None:
        """Ask for something."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(words).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._ended() from error

    def answer(self) -> dict[str, Any]:
        """The next answer.

        Raises:
            JobError: the answer is an error, or there is none.
        """
        end = time.monotonic() + self._patience
        while True:
            _, mark, text = self._line(end).rpartition(MARK)
            if mark:
                found: dict[str, Any] = json.loads(text)
                if "error" in found:
                    raise JobError(found["error"])
                return found

    def _line(self, end: float) -> str:
        """The next line that it prints, at the latest at a time."""
        assert self._process.stdout is not None
        place = self._process.stdout.fileno()
        with selectors.DefaultSelector() as ready:
            ready.register(place, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not ready.select(max(0.0, end - time.monotonic())):
                    self.end()
                    raise JobError(f"{self._name} did not answer in {self._patience:g} s")
                more = os.read(place, 1 << 16)
                if not more:
                    raise self._ended()
                self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace")

    def _ended(self) -> JobError:
        """How it ended, and the last thing that it said."""
        code = self._process.wait()
        how = signal.Signals(-code).name if code < 0 else f"code {code}"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return JobError(
            f"{self._name} ended with {how}" + (f": {lines[-1][:200]}" if lines else "")
        )

    def end(self) -> None:
        """Let it end; end it, and all that it started, if it does not."""
        process = self._process
        if process.stdin is not None and process.poll() is None:
            try:
                process.stdin.close()
                process.wait(2)
            except (OSError, subprocess.TimeoutExpired):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
