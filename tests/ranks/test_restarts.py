"""Jobs that outlive a death: those that go on without the dead, and those that start again."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from meshard import checkpoint
from meshard.cli.jobs.launcher import Launcher
from meshard.cli.run import RunError, _version, find_mpiexec
from tests.ranks.test_failures import run
from tests.ranks.test_meeting import ended, free_port, started


def fault_tolerant() -> bool:
    """Whether the MPI of this machine lets processes live when others die."""
    try:
        mpiexec = find_mpiexec()
        return Launcher(mpiexec, _version(mpiexec)).is_fault_tolerant()
    except RunError:
        return False


pytestmark = pytest.mark.skipif(
    find_spec("mpi4py") is None, reason='mpi4py is not installed (pip install "meshard[mpi]")'
)
elastic = pytest.mark.skipif(not fault_tolerant(), reason="this MPI has no fault tolerance")

TRAIN = """
import os, signal
from meshard import checkpoint
attempt = int(os.environ["MESHARD_RESTART"])
step = checkpoint.latest("run") if os.path.isdir("run") else None
begun = 0 if step is None else step
w = split(np.zeros(count)) if step is None else checkpoint.load(
    "run", {"w": split(np.zeros(count)).sharding}, step=step)["w"]
tell("attempt", attempt, "from", begun)
for i in range(begun, 6):
    w = w + i
    checkpoint.save("run", {"w": w}, step=i + 1)
    if attempt < 2 and me == attempt and i == 1 + 2 * attempt:
        os.kill(os.getpid(), signal.SIGKILL)
tell("done", float(w.sum()))
"""


def test_a_job_continues_at_its_last_checkpoint(tmp_path: Path) -> None:
    code, told, said, _ = run(tmp_path, TRAIN, 3, "--restarts", "3")
    assert code == 0, said
    for me in range(3):
        assert f"{me}: attempt 0 from 0" in told
        assert f"{me}: attempt 1 from 2" in told
        assert f"{me}: attempt 2 from 4" in told
        assert f"{me}: done 45.0" in told
    assert "Attempt 2 of 4 has ended with code 137; the job is started again." in said


def test_an_error_of_the_program_is_not_tried_for_ever(tmp_path: Path) -> None:
    program = """
if me == 1:
    raise KeyError("always")
split(np.arange(2.)).sum()
"""
    code, _, said, _ = run(tmp_path, program, 2, "--restarts", "9")
    assert code == 1
    assert said.count("KeyError: 'always'") == 2
    assert "Attempt 2 of 10 has ended with code 1, by an error of the program" in said


@pytest.mark.timeout(60)
def test_a_signal_ends_a_job_for_good(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import time, meshard\nmeshard.devices()\nopen('ready', 'w').close()\ntime.sleep(60)\n"
    )
    job = subprocess.Popen(
        [sys.executable, "-m", "meshard", "run", "-n", "2", "--restarts", "9", "program.py"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    job.send_signal(signal.SIGTERM)
    _, said = job.communicate(timeout=50)
    assert job.returncode != 0
    assert "started again" not in said


@elastic
def test_the_others_go_on_and_their_end_counts(tmp_path: Path) -> None:
    program = """
import os, signal
x = split(np.arange(3.))
if me == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    x.sum().block_until_ready()
except meshard.errors.TransportError as error:
    tell(error)
"""
    code, told, said, _ = run(tmp_path, program, 3, "--elastic")
    assert code == 0, said
    for me in 0, 2:
        assert f"{me}: Process 1 has died" in told


@elastic
def test_spares_are_started_too(tmp_path: Path) -> None:
    program = 'import os\ntell(count, os.environ["MESHARD_SPARES"], os.environ["MESHARD_RESTART"])'
    start = (
        "import os, sys\n"
        "tell = lambda *words: os.write(1, (' '.join(words) + chr(10)).encode())\n"
        "count = os.environ['OMPI_COMM_WORLD_SIZE']\n"
    )
    code, told, said, _ = run(tmp_path, program, 2, "--spares", "1", start=start)
    assert code == 0, said
    assert told.split("\n").count("3 1 0") == 3


CONTINUED = """
import os, signal, subprocess, sys
import numpy as np
import meshard
from meshard import checkpoint, elastic
from meshard.sharding import NamedSharding, P

if len(sys.argv) > 2:
    meshard.distributed.initialize(f"localhost:{sys.argv[1]}", int(sys.argv[2]), int(sys.argv[3]))
me = meshard.process_index()
open(f"pid{me}", "w").write(str(os.getpid()))
rows = lambda: NamedSharding(elastic.mesh("i"), P("i"))
tree = {"x": meshard.device_put(np.arange(12.), rows()), "step": 0}
guard = elastic.protect(tree, copies=3)
while guard.tree["step"] < 8:
    with elastic.surviving() as block:
        state = guard.tree
        if block.changed:
            state = elastic.restore(guard, rows())
        if state["step"] == 4 and me in (1, 2):
            os.kill(os.getpid(), signal.SIGSTOP)
        guard.refresh({"x": state["x"] + 1, "step": state["step"] + 1})
        checkpoint.save("it", {"by": guard.tree["step"] * meshard.process_count()}, overwrite=True)
if me == 0:  # a debugger, which lets them go on once the others have ended
    stopped = " ".join(open(f"pid{p}").read() for p in (1, 2))
    others = " ".join(open(f"pid{p}").read() for p in (0, 3))
    late = f"for p in {others}; do while grep -q . /proc/$p/maps; do sleep 0.05; done; done"
    late = f"{late}; kill -CONT {stopped}"
    none = subprocess.DEVNULL
    subprocess.Popen(["sh", "-c", late], stdout=none, stderr=none, start_new_session=True)
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", [pytest.param("mpi", marks=elastic), "lines"])
def test_processes_that_go_on_after_they_were_given_up_end_alone(how: str, tmp_path: Path) -> None:
    """They were stopped for longer than the job; its last checkpoint is that of the others."""
    if how == "mpi":
        code, _, said, _ = run(
            tmp_path, CONTINUED, 4, "--elastic", start="", MESHARD_STOPPED="fail"
        )
        assert code == 0, said
    else:
        with contextlib.chdir(tmp_path):
            port = free_port()
            numbers = [(4, me) for me in range(4)]
            settings = {"MESHARD_STOPPED": "fail", "MESHARD_NUM_DEVICES": "1"}
            told = ended(started(CONTINUED, port, numbers, **settings))
        assert [code for code, *_ in told] == [0, 1, 1, 0], told
        said = "".join([error for *_, error in told])
    for process in 1, 2:
        assert f"meshard: Process {process} was given up by the others" in said
    assert "failed" not in said
    assert checkpoint.load(tmp_path / "it")["by"] == 16
