"""Real jobs of which processes are killed; `tests.killing` is the same at length."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from meshard.cli.run import find_mpiexec
from tests import killing

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    find_spec("mpi4py") is None, reason='mpi4py is not installed (pip install "meshard[mpi]")'
)


def skip_without_tolerance() -> None:
    info = find_mpiexec().parent / "ompi_info"
    if not info.exists() or b"FT MPI support: yes" not in subprocess.check_output([info]):
        pytest.skip("this MPI does not survive the death of a process")


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("seed", "spares", "memory"),  # more processes than are killed
    [(107, 6, True), (12, 4, True), (103, 8, False)],
    ids=["one", "two", "messages"],
)
def test_killed_jobs_come_to_the_same_bits_or_say_what_is_lost(
    seed: int, spares: int, memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without_tolerance()
    monkeypatch.setenv("MESHARD_TABLE", json.dumps({"memory": memory}))
    found = killing.outcome(seed, 1, spares)
    assert not found["wrong"], found
    assert found["kills"]
    assert all(ratio <= 1.05 for ratio in found["ratios"])


TOLD = """
import os, signal, sys
import meshard as ms
from meshard import elastic
x = ms.device_put(ms.numpy.arange(8.0), ms.NamedSharding(elastic.mesh("i"), ms.P("i")))
x.sum()
if ms.process_index() == 2:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    x.max()
except elastic.ProcessLostError as error:
    told = error.processes, error.operation, error.step, error.line.rpartition("/")[2]
    found = elastic.recover()
    assert told == (found.lost, found.operation, found.step, found.line.rpartition("/")[2])
    assert "(pid " in str(error)
    y = ms.device_put(ms.numpy.arange(9.0), ms.NamedSharding(elastic.mesh("i"), ms.P("i")))
    for k in range(10):
        assert float((y + k).sum()) == 36 + 9 * k
    print(told, found.processes, x.is_complete, x.missing, flush=True)
"""


@pytest.mark.timeout(100)
def test_all_living_are_told_the_same_and_the_job_ends_well(tmp_path: Path) -> None:
    skip_without_tolerance()
    (tmp_path / "program.py").write_text(TOLD)
    line = [sys.executable, "-m", "meshard", "run", "--elastic", "-n", "4"]
    done = subprocess.run(
        [*line, "--devices-per-process", "1", "program.py"],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert len(lines) == 3, done.stdout + done.stderr
    assert len(set(lines)) == 1, done.stdout
    assert "'program.py:10') (0, 1, 3) False (Box(starts=(4,), stops=(6,))" in lines[0]


@pytest.mark.timeout(100)
def test_a_death_before_the_job_has_begun_ends_it(tmp_path: Path) -> None:
    skip_without_tolerance()
    first = "import os\nif os.environ['OMPI_COMM_WORLD_RANK'] == '1':\n    os.kill(os.getpid(), 9)"
    (tmp_path / "program.py").write_text(f"{first}\nimport meshard\nmeshard.devices()\n")
    done = subprocess.run(
        [sys.executable, "-m", "meshard", "run", "--elastic", "-n", "3", "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode != 0
    assert "3 processes were started on this host, of which only 2 live" in done.stderr
    assert "one has ended before the job began" in done.stderr


@pytest.mark.timeout(150)
def test_the_example_shrinks_and_grows_over_messages_too() -> None:
    skip_without_tolerance()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "meshard", "run", "-n", "4", "--spares", "2"),
            *("--devices-per-process", "1", "examples/elastic_training.py"),
        ],
        cwd=ROOT,
        env=os.environ | {"MESHARD_TABLE": json.dumps({"memory": False}), "SEED": "4"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = [line.split("with ")[1][0] for line in done.stdout.splitlines()[:-1]]
    assert counts == ["3", "2", "4", "3"], done.stdout
    assert done.stdout.endswith("the bits are those of an undisturbed run\n")
