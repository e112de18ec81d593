"""Folders of distributed checkpoints: meshard beside torch, in one process.

`python -m bench.dcp [MEBIBYTES]` saves and loads one state by both, alternating, on the memory file
system, and prints medians of five. Each loads the other's folder too, and all are compared bit for
bit. It needs torch.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from meshard import checkpoint

ROUNDS = 5


def timed(work: Callable[[], Any]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Print how long each takes."""
    import torch
    import torch.distributed.checkpoint as dcp

    warnings.simplefilter("ignore")
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 192
    rng = np.random.default_rng(0)
    tree = {
        f"w{k}": rng.standard_normal((2048, 2048), np.float32) for k in range(max(1, size // 16))
    }
    right = {name: torch.from_numpy(x) for name, x in tree.items()}
    found = {name: torch.zeros_like(x) for name, x in right.items()}
    root = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    theirs, ours = root / "theirs", root / "ours"
    calls: dict[str, Callable[[], Any]] = {
        "save, torch": lambda: dcp.save(right, checkpoint_id=theirs, no_dist=True),
        "save, meshard": lambda: checkpoint.save(ours, tree, format="dcp"),
        "load, torch": lambda: dcp.load(found, checkpoint_id=theirs, no_dist=True),
        "load, meshard": lambda: checkpoint.load(theirs),
        "load meshard's, torch": lambda: dcp.load(found, checkpoint_id=ours, no_dist=True),
        "load meshard's, meshard": lambda: checkpoint.load(ours),
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            seconds[name].append(timed(call))
        assert all(torch.equal(found[name], x) for name, x in right.items())
        again = checkpoint.load(theirs)
        assert all((np.asarray(again[name]) == x).all() for name, x in tree.items())
        shutil.rmtree(root)
    nbytes = sum(x.nbytes for x in tree.values())
    for name, some in seconds.items():
        middle = statistics.median(some)
        print(f"{name:24} {middle * 1e3:8.1f} ms  {nbytes / middle / 1e9:6.2f} GB/s")


if __name__ == "__main__":
    main()
