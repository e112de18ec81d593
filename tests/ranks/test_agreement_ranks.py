"""Faults are injected into real processes: each is named on every living one, and none hangs."""

from __future__ import annotations

import os
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from meshard.cli.run import command, environment, find_mpiexec
from tests.ranks.test_failures import START, run

pytestmark = pytest.mark.skipif(
    find_spec("mpi4py") is None, reason='mpi4py is not installed (pip install "meshard[mpi]")'
)

WITHIN = 20
"""Seconds for a whole job, its start and end included, on a machine with other things to do."""
FIRST = START + "import os, signal, time\nx = mnp.arange(12., device=NamedSharding(mesh, P('i')))\n"
LINES = len(FIRST.splitlines())


def told(folder: Path, program: str, *options: str, **more: str) -> tuple[str, float]:
    """Run a program that must fail in three processes; return what it complained."""
    code, _, said, seconds = run(folder, program, 3, *options, start=FIRST, **more)
    assert code != 0
    assert seconds < WITHIN
    return said


def at(folder: Path, line: int) -> str:
    """Return how messages call a line of a program, counted from after what all begin with."""
    return f"program.py:{LINES + line}"


@pytest.mark.parametrize(
    ("program", "odd", "most"),
    [
        (
            "y = mnp.sin(x) if me == 1 else x\nmnp.abs(x).sum()\n",
            "`sin` of float64[12] P('i',) at program.py:+1",
            "`absolute` of float64[12] P('i',) at program.py:+2",
        ),
        (
            "if me != 1:\n    x.sum()\nx.max()\n",
            "`max` (axis=(0,), keepdims=False) of float64[12] P('i',) at program.py:+3",
            "`sum` (axis=(0,), keepdims=False) of float64[12] P('i',) at program.py:+2",
        ),
        (
            "y = mnp.zeros(9 if me == 1 else 12, device=x.sharding)\ny.sum()\n",
            "`zeros` of float64[9] P('i',) at program.py:+1",
            "`zeros` of float64[12] P('i',) at program.py:+1",
        ),
    ],
    ids=["another operation", "a call left out", "another shape"],
)
def test_who_diverges_is_named_by_all(tmp_path: Path, program: str, odd: str, most: str) -> None:
    said = told(tmp_path, program, "--timeout", "60")
    for line in range(1, 4):
        odd, most = (t.replace(f"program.py:+{line}", at(tmp_path, line)) for t in (odd, most))
    sentence = (
        f"AgreementError: Process 1 has diverged in step 2 of processes 0, 1, 2: ran {odd}, where "
        f"the others ran {most}."
    )
    assert said.replace(f"{tmp_path}/", "").count(sentence) == 1, said
    assert said.count("Traceback") == 1, said
    assert said.count(" has failed; the job is ended.") == 1, said
    assert said.count(" has found this too.\n") == 2, said


def test_who_leaves_early_is_named(tmp_path: Path) -> None:
    program = "y = x + 1\nif me == 1:\n    sys.exit(1)\ny.sum()\n"
    said = told(tmp_path, program, "--timeout", "60").replace(f"{tmp_path}/", "")
    for process in (0, 2):
        assert (
            f"TransportError: Process {process} waits for process 1, in step 3 of processes 0, 1, 2"
            f", `sum` (axis=(0,), keepdims=False) of float64[12] P('i',) at {at(tmp_path, 4)}. "
            "Process 1 has ended its program; it was last heard of in step 2 of processes 0, 1, 2, "
            f"`add` of float64[12] P('i',), int at {at(tmp_path, 1)}."
        ) in said, said


def test_who_dies_is_named_where_the_others_wait(tmp_path: Path) -> None:
    program = "if me == 1:\n    time.sleep(1)\n    os.kill(os.getpid(), signal.SIGKILL)\nx.sum()\n"
    said = told(tmp_path, program, "--timeout", "60").replace(f"{tmp_path}/", "")
    where = f"`sum` (axis=(0,), keepdims=False) of float64[12] P('i',) at {at(tmp_path, 4)}."
    assert said.count(where) >= 2, said
    assert said.count("Process 1 has died (pid ") >= 2, said


FAULT_TOLERANT = """
import os, signal, time
rank = os.environ["OMPI_COMM_WORLD_RANK"]
os.environ["MESHARD_HOST"] = "host" + rank  # nothing is shared
import meshard.mpi.watch
meshard.mpi.watch.MpiSideChannel.know = lambda self, told: None  # and nothing seen of the others
"""


def test_who_dies_is_named_by_an_mpi_that_tells_of_it(tmp_path: Path) -> None:
    mpiexec = find_mpiexec()
    info = mpiexec.parent / "ompi_info"
    if not info.exists() or b"FT MPI support: yes" not in subprocess.check_output([info]):
        pytest.skip("this MPI does not survive the death of a process")
    program = "x.sum()\nif me == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\nx.max()\n"
    (tmp_path / "program.py").write_text(FAULT_TOLERANT + FIRST + program)
    settings = environment(os.environ, devices_per_process=1, timeout=30)
    line = command(mpiexec, "Open MPI", ["program.py"], processes=3, settings=settings)
    line[1:1] = ["--with-ft", "ulfm"]
    job = subprocess.Popen(
        line,
        cwd=tmp_path,
        env=settings,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said = job.communicate(timeout=60)[1]
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    assert job.returncode == 1
    named = 0
    for process in (0, 2):
        named += f"Process {process} waited for process 1, in step 3" in said
    assert named >= 1, said  # who fails first may end the job before the other knows
    assert "Process 1 has died; it came as far as step 2 of processes 0" in said


def test_who_is_stopped_is_named_before_the_deadline_and_at_it(tmp_path: Path) -> None:
    program = "if me == 1:\n    os.kill(os.getpid(), signal.SIGSTOP)\nx.sum()\n"
    said = told(tmp_path, program, "--timeout", "3").replace(f"{tmp_path}/", "")
    where = (
        "in step 2 of processes 0, 1, 2, `sum` (axis=(0,), keepdims=False) of float64[12] P('i',) "
        f"at {at(tmp_path, 3)}. Process 1 is stopped (pid "
    )
    for process in (0, 2):
        assert f"meshard: Process {process} has waited 0." in said, said
        assert f"TransportError: Process {process} " in said, said
    assert said.count(where) >= 4, said
    assert "has waited 3 s for process 1" in said


def test_who_hangs_is_named_with_where_it_was_met(tmp_path: Path) -> None:
    program = (
        "meshard.device_put(x, NamedSharding(mesh, P()))\n"
        "if me == 1:\n    time.sleep(60)\nx.sum()\n"
    )
    said = told(tmp_path, program, "--timeout", "3").replace(f"{tmp_path}/", "")
    assert "has waited 3 s for process 1, in step 3 of processes 0, 1, 2, `sum` " in said
    assert (
        "Process 1 has not answered; it came as far as step 2 of processes 0, 1, 2, `device_put` "
    ) in said, said
    for process in (0, 2):
        assert f"TransportError: Process {process} " in said, said


def test_processes_that_check_differently_are_told(tmp_path: Path) -> None:
    start = (
        "import os\n"
        'if (os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK")) == "2":\n'
        '    os.environ["MESHARD_CHECK"] = "off"\n'
    )
    program = START + "split(np.arange(12.)).sum()\n"
    code, _, said, _ = run(tmp_path, program, 3, "--timeout", "2", start=start)
    assert code != 0
    assert (
        "The setting check (MESHARD_CHECK) is 'hash' on processes 0 and 1, 'off' on process 2: it "
        "must be the same on all processes"
    ) in said, said


def test_local_work_is_no_divergence(tmp_path: Path) -> None:
    program = """
for check in ("hash", "full"):
    meshard.config.update("check", check)
    own = mnp.arange(5.)
    for _ in range(10 * me):
        own = own + 1
    if me == 0:
        tell("a word:", repr(x).count("float64"), own.sum())
    time.sleep(0.7 * me)  # the others look around meanwhile
    tell(float(x.sum()), check)
"""
    code, out, said, _ = run(tmp_path, program, 3, start=FIRST)
    assert code == 0, said
    assert said == ""
    assert out.count(": 66.0 hash") == out.count(": 66.0 full") == 3
