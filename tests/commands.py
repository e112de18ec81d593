"""Running the `meshard` command in tests: in this process, in a pipe, on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path

from meshard.cli import main


def documented(command: str) -> set[str]:
    """Return the keys of a command's JSON that docs/command.md lists."""
    page = (Path(__file__).parents[1] / "docs" / "command.md").read_text()
    row = re.search(rf"^\| `{command}` \| (`.*) \|$", page[page.index("## JSON") :], re.MULTILINE)
    assert row is not None, f"docs/command.md does not list the keys of {command}"
    return set(re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", row[1])))


def status(arguments: Sequence[str]) -> int:
    """Run a command here, and return its exit code."""
    try:
        return main(arguments)
    except SystemExit as exit:
        return int(exit.code or 0)


def piped(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command whose output is a pipe."""
    environment = {k: v for k, v in os.environ.items() if k != "FORCE_COLOR"}
    return subprocess.run(
        [sys.executable, "-m", "meshard", *arguments],
        env=environment | more,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def on_terminal(
    *arguments: str,
    columns: int = 90,
    program: Sequence[str] = ("-m", "meshard"),
    cwd: str | None = None,
    **more: str,
) -> tuple[str, int]:
    """Return what a command, or another program, prints on a terminal, and its exit code."""
    mine, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    ours = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES")
    environment = {k: v for k, v in os.environ.items() if k not in ours}
    environment |= {"TERM": "xterm-256color"} | more
    line = [sys.executable, *program, *arguments]
    job = subprocess.Popen(
        line, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd
    )
    os.close(theirs)
    printed = b""
    try:
        while more := os.read(mine, 65536):
            printed += more
    except OSError:  # the other end is closed
        pass
    os.close(mine)
    return printed.decode().replace("\r\n", "\n"), job.wait(60)
