"""Running the `meshard` command in tests: in this process, in a pipe, on a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
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


def on_terminal(*arguments: str, columns: int = 90) -> tuple[str, int]:
    """Return what a command prints on a terminal, and its exit code."""
    mine, theirs = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    environment |= {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "50"}
    line = [sys.executable, "-m", "meshard", *arguments]
    job = subprocess.Popen(line, env=environment, stdout=theirs, stderr=theirs)
    os.close(theirs)
    printed = b""
    try:
        while more := os.read(mine, 65536):
            printed += more
    except OSError:  # the other end is closed
        pass
    os.close(mine)
    return printed.decode().replace("\r\n", "\n"), job.wait(60)
