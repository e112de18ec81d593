"""The memory that loads, saves and conversions take beside the arrays: is `max_bytes` kept?

``python -m tests.holding`` measures a tree of 1.1 GB with a tensor of 512 MB, alone and
in four processes, by the kernel's count of private and shared pages of all processes together.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

MIB = 1 << 20
SLACK = 8 * MIB
BUDGETS = (16, 64, 256)
_PAUSE = 0.2

# the processes that are measured


def _tree(scale: int) -> dict[str, tuple[int, ...]]:
    """Return shapes of float32: half a gigabyte in one tensor, and as much in others.

    Pieces are whole huge pages of 2 MiB: else the memory of arrays is a few percent more.
    """
    found = {"embed": (65536 // scale, 2048)}
    for k in range(12):
        found[f"layers.{k}.w"] = (6144 // scale, 2048)
    return found


def _tell(**words: Any) -> None:
    """Tell the parent, from one process, where all are."""
    from meshard.runtime.world import here

    here().transport.all_gather(None, range(here().process_count))
    if here().process_index == 0:
        print(json.dumps(words), flush=True)
    time.sleep(_PAUSE)


def job(folder: Path, scale: int, stage: str, budget: int) -> None:
    """Do one stage with a budget."""
    import meshard
    from meshard import checkpoint
    from meshard.sharding import NamedSharding, P

    print(json.dumps({"pid": os.getpid()}), flush=True)
    rows = meshard.make_mesh((meshard.device_count(),), ("i",))
    grid = meshard.make_mesh((2, meshard.device_count() // 2), ("a", "b"))
    before = NamedSharding(rows, P("i"), uneven="balanced")
    after = NamedSharding(grid, P("a", "b"), uneven="balanced")
    shapes, most = _tree(scale), budget * MIB
    size = sum([4 * a * b for a, b in shapes.values()])
    native, hugging = folder / "native", folder / "hf.safetensors"
    mine = {"x": np.zeros((64, 64), np.float32)}
    if stage in ("prepare", "save", "save safetensors"):
        mine = {n: np.broadcast_to(np.float32(1), s) for n, s in shapes.items()}
    arrays = {n: meshard.device_put(x, before) for n, x in mine.items()}
    checkpoint.save(folder / "small", {"x": arrays.popitem()[1]}, overwrite=True)
    checkpoint.load(folder / "small", after)
    if stage == "prepare":
        checkpoint.save(native, arrays)
        checkpoint.save(hugging, arrays)
        size = sum([x.nbytes for x in arrays.values()])
    target = folder / ("of.safetensors" if "safetensors" in stage else "of")

    def load(path: Path, dtype: Any = None) -> Any:
        return checkpoint.load(path, lambda *_: after, dtype=dtype, max_bytes=most)

    works: dict[str, tuple[float, Callable[[], Any]]] = {
        "prepare": (0, lambda: None),
        "save": (0, lambda: checkpoint.save(target, arrays, max_bytes=most, overwrite=True)),
        "load": (1, lambda: load(native)),
        "load and cast": (0.5, lambda: load(native, np.float16)),
        "load safetensors": (1, lambda: load(hugging)),
        "convert": (
            0,
            lambda: checkpoint.convert(
                native, folder / "to.safetensors", max_bytes=most, overwrite=True
            ),
        ),
    }
    works["save safetensors"] = works["save"]
    share, work = works[stage]
    left = size - sum([4 * a * b for a, b in [list(shapes.values())[-1]]])
    _tell(growth=int(share * left))
    found = work()
    _tell(after=stage)
    del found


# the one that measures


@dataclass(frozen=True)
class Found:
    """One stage.

    Attributes:
        name: what was done.
        extra: the bytes of all processes beyond what they held before, and the arrays made.
        allowed: the bytes that they may take.
    """

    name: str
    extra: int
    allowed: int


def _taken(pids: list[int]) -> int:
    """Return the private and shared pages of processes; those that several share count once."""
    found = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Pss_Anon", "Pss_Shmem")):
                found += int(line.split()[1]) * 1024
    return found


def stage(processes: int, folder: str, scale: int, name: str, budget: int) -> Found:
    """Run a job and return what it takes."""
    line = [sys.executable, __file__, "job", folder, str(scale), name, str(budget)]
    env = {**os.environ, "MESHARD_NUM_DEVICES": "8"}
    if processes > 1:
        each = str(8 // processes)
        line[1:1] = ["-m", "meshard", "run", "-n", str(processes), "--devices-per-process", each]
        del env["MESHARD_NUM_DEVICES"]
    pids: list[int] = []
    top, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(1e-3):
            top[0] = max(top[0], _taken(pids))

    thread = threading.Thread(target=look)
    base = growth = extra = 0
    with subprocess.Popen(line, env=env, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for text in child.stdout:
            told = json.loads(text)
            if "pid" in told:
                pids.append(told["pid"])
            elif "growth" in told:
                base, growth = _taken(pids), told["growth"]
                thread.start()
            else:
                over.set()
                thread.join()
                extra = top[0] - base - growth
    if child.returncode:
        raise RuntimeError(f"{name} failed")
    return Found(name, extra, processes * (budget * MIB + SLACK))


STAGES = ("save", "save safetensors", "load", "load and cast", "load safetensors", "convert")


def main() -> None:
    """Print what all stages take."""
    for processes in (1, 4):
        print(f"{processes} process{'es' if processes > 1 else ''}, extra memory of all together:")
        with tempfile.TemporaryDirectory(dir=os.environ.get("CHECKPOINT_DIR")) as folder:
            stage(processes, folder, 1, "prepare", 0)
            for budget in BUDGETS:
                for name in STAGES:
                    one = stage(processes, folder, 1, name, budget)
                    verdict = "kept" if one.extra <= one.allowed else "NOT KEPT"
                    figures = f"{one.extra / MIB:8.1f} MiB of {one.allowed / MIB:6.0f}"
                    print(f"  {budget:3} MiB: {one.name:20} {figures}  {verdict}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["job"]:
        job(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
    else:
        main()
