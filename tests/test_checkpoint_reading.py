"""Loads into other layouts, counted by the kernel and at the transport, in four processes.

`python -m tests.test_checkpoint_reading` counts fifty pairs of larger trees and prints ratios.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests import dying, reading


def lines(folder: str, *numbers: int) -> list[dict[str, Any]]:
    """Return what a job has counted."""
    line = [sys.executable, "-m", "meshard", "run", "-n", "4", "--devices-per-process", "2"]
    line += [str(Path(reading.__file__)), folder, *map(str, numbers)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(told) for told in done.stdout.splitlines() if told.startswith("{")]


@pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")
def test_a_load_reads_what_is_needed_once_and_evenly() -> None:
    with tempfile.TemporaryDirectory(dir=dying.quick_folder()) as folder:
        found = lines(folder, 0, 12, 1 << 19)
    assert len(found) == 12
    for line in found:
        reading.check(line)


def main() -> None:
    """Count fifty pairs and print the worst ratios."""
    with tempfile.TemporaryDirectory(dir=dying.quick_folder()) as folder:
        found = lines(folder, 0, 50)
    worst = [0.0, 0.0]
    for line in found:
        reading.check(line)
        read = [one["read"] for one in line["processes"]]
        needed = line["processes"][0]["needed"]
        worst = [max(worst[0], sum(read) / needed), max(worst[1], 4 * max(read) / sum(read))]
    print(f"{len(found)} pairs: read at most {worst[0]:.4f} x what is needed, manifests included;")
    print(f"the largest reader at most {worst[1]:.3f} x the mean; no message in plans and loads")


if __name__ == "__main__":
    main()
