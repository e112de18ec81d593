"""Real processes that are started by hand to join a job which runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import growing
from tests.growing import SIZES, Crowd

WORK = ["-m", "tests.growing", "work"]
IMPATIENT = """
import os, runpy, sys
from meshard.mpi import joining

joining._say = lambda text: os.kill(os.getpid(), 9)
sys.argv = ["", "work"]
runpy.run_module("tests.growing", run_name="__main__")
"""
"""A process that dies as soon as it waits to join."""


@pytest.fixture
def crowd(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Crowd]:
    steps = str(request.param)
    with Crowd(tmp_path / "found", WORK, GROWING_STEPS=steps, GROWING_SIZE="40000") as found:
        yield found
    left = [path.name for path in (tmp_path / "found").iterdir()]
    assert left in ([], [".lock"]), left


def told_same(crowd: Crowd) -> list[bool]:
    return [one["same"] for one in crowd.said if "same" in one]


@pytest.mark.timeout(150)
@pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")
@pytest.mark.parametrize("crowd", [2 * len(SIZES)], indirect=True)
def test_a_job_shrinks_and_grows(crowd: Crowd) -> None:
    growing.begin(crowd, mpi=True)
    for _ in growing.cycles(crowd, 2):
        pass
    assert set(crowd.end()) == {0, -9}
    assert told_same(crowd) == [True] * SIZES[-1]
    for one in crowd.said:
        moved, least = one.get("moved", (0, None))
        assert least is None or moved <= 1.02 * least, one
    assert max(crowd.living) == 11  # four, and two twice in each cycle; no number is used again


@pytest.mark.timeout(100)
@pytest.mark.parametrize("crowd", [2], indirect=True)
def test_a_job_goes_on_with_newcomers_only(crowd: Crowd) -> None:
    """One process begins without MPI; nobody waits for a newcomer that dies before it is taken in.

    The job has 3 processes in its first step, and 5 in its second.
    """
    crowd.start(MESHARD_JOB="growing")
    crowd.wait(lambda one: "began" in one)
    assert crowd.start("-c", IMPATIENT, MESHARD_JOIN="growing").wait(60) == -9
    for _ in range(3):
        crowd.start(MESHARD_JOIN="growing")
    crowd.wait(lambda one: one["count"] == 4 and "pause" in one, 4)
    crowd.kill(0)
    crowd.wait(lambda one: one.get("step") == 1 and "pause" not in one, 3)
    for _ in range(2):
        crowd.start(MESHARD_JOIN="growing")
    codes = crowd.end()
    assert codes == [-9, -9, 0, 0, 0, 0, 0]
    assert told_same(crowd) == [True] * 5
    assert sorted({one["index"] for one in crowd.said}) == [0, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"MESHARD_JOIN": "none"}, "There is no job 'none' that can be joined; there is none in"),
        (
            {"MESHARD_JOIN": "a", "OMPI_COMM_WORLD_SIZE": "2"},
            "This process was started by mpiexec, and MESHARD_JOIN says that it joins the job 'a'",
        ),
    ],
)
def test_refuses(variables: dict[str, str], said: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import meshard; meshard.devices()"],
        env=os.environ | {"MESHARD_RENDEZVOUS": str(tmp_path / "found")} | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert said in done.stderr, done.stderr


@pytest.mark.parametrize("end", ["pass", "os.kill(os.getpid(), 9)"])
def test_one_that_is_not_taken_in_ends_with_the_job(end: str, tmp_path: Path) -> None:
    start = "import os, time, meshard\nmeshard.devices()\n"
    waits = "with meshard.elastic.surviving():\n    raise AssertionError('it was taken in')\n"
    gone = f"while not os.path.exists('waits'):\n    time.sleep(0.01)\n{end}\n"
    env = os.environ | {"MESHARD_RENDEZVOUS": str(tmp_path / "found")}
    job = subprocess.Popen(
        [sys.executable, "-c", start + "open('began', 'x')\n" + gone],
        env=env | {"MESHARD_JOB": "a"},
        cwd=tmp_path,
    )
    late = "while not os.path.exists('began'):\n    time.sleep(0.01)\nmeshard.devices()\n"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, time, meshard\n" + late + "open('waits', 'x')\n" + waits,
        ],
        env=env | {"MESHARD_JOIN": "a"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert job.wait(30) == (0 if end == "pass" else -9)
    assert done.returncode == 0, done.stderr
    told = (
        "process 1 waits to join 'a'.\nmeshard: the job 'a' has ended before it took process 1 in"
    )
    assert told in done.stderr
