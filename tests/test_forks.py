"""Forks: a child has the arrays as they were, and neither sees nor changes what its parent does."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import meshard
from meshard.runtime.memory.arena import Neighbour
from meshard.runtime.memory.pages import Pages
from tests.worlds import alone

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.no_job,
    # Python and JAX warn of forks while threads run; what is forked here uses none of theirs.
    pytest.mark.filterwarnings("ignore:.*fork:"),
]
PROGRAM = Path(__file__).with_name("fork_job.py")
F8 = np.dtype(np.float64)
LARGE = 1 << 16


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 3])
def test_children_see_what_was_and_change_nothing(processes) -> None:
    command = [sys.executable, str(PROGRAM)]
    if processes > 1:
        command = [sys.executable, "-m", "meshard", "run", "-n", str(processes), str(PROGRAM)]
    paths = os.pathsep.join([str(PROGRAM.parent.parent), *filter(None, sys.path)])
    devices = "1" if processes > 1 else "4"
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": paths, "MESHARD_NUM_DEVICES": devices},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    values = {line.partition(": ")[2] for line in done.stdout.splitlines() if "process" in line}
    assert len(values) == 1, done.stdout


def _total(x: np.ndarray) -> float:
    return float((meshard.numpy.asarray(x) * 2).sum())


def test_a_pool_of_forked_processes_computes() -> None:
    def body() -> list[float]:
        big = meshard.device_put(np.ones((512, 512), np.float32), meshard.devices()[0]) + 1
        float(big.sum())  # the workers have begun
        with multiprocessing.get_context("fork").Pool(2) as pool:
            return pool.map(_total, [np.ones((300, 300)) * k for k in range(4)])

    assert alone(body) == [180000.0 * k for k in range(4)]


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memory files")
def test_a_chunk_is_neither_lent_nor_given_back_while_a_child_looks_at_it() -> None:
    pages, there = Pages(), Pages()
    pages.open_arena(2)
    there.open_arena(2)
    x = pages.reachable((LARGE,), F8)
    x[:] = 7
    where = x.__array_interface__["data"][0]
    lent = there.reachable((LARGE,), F8)
    chunk = lent.base.base
    there.arena.lend(chunk, (1,))
    seen = Neighbour(there.arena.handle, 1, 2).borrowed(
        chunk.offset, there.arena.offset_of(lent), lent.shape, F8
    )
    go = os.pipe()
    child = os.fork()
    if not child:
        os.close(go[1])
        os.read(go[0], 1)
        assert pages.arena.lease(1 << 19) is None
        os._exit(0 if (x == 7).all() else 1)
    os.close(go[0])
    del x, seen, lent, chunk
    others = [pages.reachable((LARGE,), F8) for _ in range(3)]
    for other in others:
        other[:] = -1
    assert where not in [o.__array_interface__["data"][0] for o in others]
    assert pages.arena.lent_bytes > 0
    assert there.arena.lent_bytes > 0
    os.close(go[1])
    assert os.waitpid(child, 0)[1] == 0
    again = pages.reachable((LARGE,), F8)
    assert again.__array_interface__["data"][0] == where
    assert pages.arena.lent_bytes == 0
    pages.close()
    there.close()
