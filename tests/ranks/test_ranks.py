"""The laws of the other suites, in real processes: every process runs the same tests, in step.

A job has eight devices, however many of them each of its processes has, and gives the bits that
one process gives (`tests/worlds.py`). `make test` runs some suites in some jobs; `make ranks` runs
all of them in all.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from meshard.cli.run import command, environment, find_mpiexec

ROOT = Path(__file__).parents[2]
LIMIT = 240
"""Seconds for a job; its processes print their stacks and end before."""

pytestmark = pytest.mark.skipif(
    find_spec("mpi4py") is None, reason='mpi4py is not installed (pip install "meshard[mpi]")'
)

SHARES = ((8,), (4, 4), (3, 5), (3, 3, 2), (1, 5, 2), (2, 2, 2, 2), (1, 1, 5, 1), (1,) * 8)
"""How many devices each process has, in the jobs of `make ranks`."""
BODIES = re.compile(r"\b(in_worlds|in_processes|in_all_worlds|everywhere|simulate)\b")

SUITES: dict[tuple[int, ...], tuple[str, ...]] = {
    (4, 4): (
        *("jit", "jit_jax", "jit_examples", "parallel_outputs", "scan", "control_flow", "linalg"),
        *(
            "array",
            "create",
            "index",
            "make",
            "named_axes",
            "ragged",
            "dynamic",
            "execute",
            "eval_shape",
        ),
        *("structs", "plan_reshard", "reference_reshard", "shard_map"),
    ),
    (3, 3, 2): (
        *("reduce", "move", "gda", "random", "split_concatenate", "fft", "einsum", "named_axes"),
        "ledger",
    ),
    (1, 5, 2): ("reshard", "process_local", "collectives", "place", "same_values"),
    (2, 2, 2, 2): (
        "collectives",
        "shard_map",
        "move",
        "reshard",
        "sort",
        "uneven_map",
        "callbacks",
        "tall",
        "sparse",
    ),
    (1,) * 8: ("reshard", "exchanges"),
}
"""What `make test` runs in each job: every suite in one, those that move most in two."""
JOBS = [pytest.param(devices, suites, id=str(devices)) for devices, suites in SUITES.items()]
if os.environ.get("MESHARD_TEST_ALL_RANKS"):
    ALL = [
        file.stem.removeprefix("test_")
        for file in sorted((ROOT / "tests").glob("test_*.py"))
        if BODIES.search(file.read_text(encoding="utf-8"))
    ]
    JOBS = [pytest.param(d, (suite,), id=f"{suite} {d}") for d in SHARES for suite in ALL]


@pytest.mark.timeout(LIMIT + 20)
@pytest.mark.parametrize(("devices", "suites"), JOBS)
def test_laws(devices: tuple[int, ...], suites: tuple[str, ...], tmp_path: Path) -> None:
    processes = len(devices)
    inherited = {n: v for n, v in os.environ.items() if not n.startswith(("PYTEST_", "COV_"))}
    settings = environment(inherited, devices_per_process=None, timeout=60)
    settings["MESHARD_TEST_RANKS"] = ",".join(map(str, devices))
    settings["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # to import them all takes as long as pytest
    mpiexec = find_mpiexec()
    version = subprocess.run(
        [mpiexec, "--version"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    plugins = [w for p in ("pytest_timeout", "_hypothesis_pytestplugin") for w in ("-p", p)]
    options = ["-x", "-q", "-p", "no:cacheprovider", *plugins, "--timeout", "120"]
    files = [str(ROOT / "tests" / f"test_{name}.py") for name in suites]
    program = ["-m", "tests.ranks.job", str(tmp_path), *options, *files]
    job = subprocess.Popen(
        command(mpiexec, version, program, processes=processes, settings=settings),
        cwd=ROOT,
        env=settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = job.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        said = f"the job was ended after {LIMIT} seconds\n" + job.communicate()[0]
    if job.returncode == pytest.ExitCode.NO_TESTS_COLLECTED and len(suites) == 1:
        pytest.skip(f"no test of {suites[0]} is meant for jobs")
    reports = {file.name: file.read_text() for file in sorted(tmp_path.glob("rank*"))}
    if job.returncode != 0:
        everything = "\n".join(f"---- {name}\n{text[-6000:]}" for name, text in reports.items())
        pytest.fail(f"{said}\n{everything}", pytrace=False)
    assert len(reports) == processes
    endings = {text.splitlines()[-1].rpartition(" in ")[0] for text in reports.values()}
    assert len(endings) == 1, endings  # all have run the same tests
    assert " passed" in endings.pop()
    sys.stdout.write("\n".join(text.splitlines()[-1] for text in reports.values()))
