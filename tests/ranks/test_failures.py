"""Programs under mpiexec that fail, wait in vain, or look at what is not theirs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from meshard.cli.run import environment, find_mpiexec

pytestmark = pytest.mark.skipif(
    find_spec("mpi4py") is None, reason='mpi4py is not installed (pip install "meshard[mpi]")'
)

START = """
import sys
import numpy as np
import meshard
import meshard.numpy as mnp
from meshard.errors import ConfigError, NotAddressableError
from meshard.sharding import Mesh, NamedSharding, P

me, count = meshard.process_index(), meshard.process_count()
def tell(*words):
    sys.stdout.write(f"{me}: " + " ".join(map(str, words)) + "\\n")
    sys.stdout.flush()
mesh = meshard.make_mesh((meshard.device_count(),), ("i",))
def split(value):
    return meshard.device_put(value, NamedSharding(mesh, P("i")))
"""


def run(
    folder: Path, program: str, processes: int = 3, *options: str, start: str = START, **more: str
) -> tuple[int, str, str, float]:
    """Run a program; return its exit code, what it printed, what it complained, and the seconds."""
    (folder / "program.py").write_text(start + program)
    inherited = {n: v for n, v in os.environ.items() if n != "MESHARD_NUM_DEVICES"}
    line = [sys.executable, "-m", "meshard", "run", "-n", str(processes), *options, "program.py"]
    begun = time.monotonic()
    done = subprocess.run(
        line,
        cwd=folder,
        env=inherited | more,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr, time.monotonic() - begun


def test_a_process_that_raises_ends_the_job(tmp_path: Path) -> None:
    program = """
if me == 1:
    raise KeyError("lost in process 1")
meshard.block_until_ready(meshard.device_put(split(np.arange(6.)), NamedSharding(mesh, P())))
"""
    code, _, said, seconds = run(tmp_path, program)
    assert code != 0
    assert "KeyError: 'lost in process 1'" in said
    assert "meshard: process 1 has failed; the job is ended." in said
    assert seconds < 30


def test_who_waits_for_a_process_that_has_ended_fails_and_names_it(tmp_path: Path) -> None:
    program = """
x = split(np.arange(4.))
if me == 0:
    meshard.device_put(x, NamedSharding(mesh, P()))
"""
    code, _, said, seconds = run(tmp_path, program, 2, "--timeout", "2")
    assert code != 0
    assert "TransportError: Process 0 waits for process 1, in step 3 of processes 0 and 1" in said
    assert "Process 1 has ended its program" in said
    assert seconds < 30


def test_import_does_not_import_mpi4py(tmp_path: Path) -> None:
    program = """
import sys, meshard
assert "mpi4py" not in sys.modules
assert not meshard.distributed.is_initialized()
meshard.distributed.initialize(num_processes=2)
assert meshard.distributed.is_initialized()
assert "mpi4py" in sys.modules
meshard.distributed.shutdown()
"""
    code, _, said, _ = run(tmp_path, program, 2, start="")
    assert code == 0, said


def test_without_mpi4py_a_job_says_what_to_install(tmp_path: Path) -> None:
    program = """
import sys
sys.modules["mpi4py"] = None
import meshard
try:
    meshard.devices()
except meshard.errors.ConfigError as error:
    sys.stdout.write(f"{error}\\n")
"""
    code, told, said, _ = run(tmp_path, program, 2, start="")
    assert code == 0, said
    expected = (
        "This process is one of 2 that mpiexec started, but mpi4py, which joins them, is not "
        "installed"
    )
    assert told.count(expected) == 2
    assert 'pip install "meshard[mpi]"' in told


def test_another_mpis_mpiexec_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import meshard; meshard.devices()"],
        env={n: v for n, v in os.environ.items() if not n.startswith("OMPI_COMM")}
        | {"PMI_SIZE": "4"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "mpiexec says that it started 4 processes, but MPI joins 1" in done.stderr


def test_open_mpis_mpiexec_is_refused_before_another_mpi_starts() -> None:
    program = """
import sys, types
rc = lambda **options: options_seen.update(options)
options_seen = {}
def started(*ignored):
    raise AssertionError("MPI was started")
fake = types.ModuleType("mpi4py")
fake.rc = rc
fake.MPI = types.ModuleType("mpi4py.MPI")
fake.MPI.Get_library_version = lambda: "MPICH Version:      5.0.2\\nMPICH Release date: Fri"
fake.MPI.Is_initialized = fake.MPI.Init_thread = started
sys.modules["mpi4py"] = fake
import meshard
try:
    meshard.devices()
except meshard.errors.ConfigError as error:
    sys.stdout.write(f"{error}\\n{options_seen}\\n")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"OMPI_VERSION": "5.0.11", "OMPI_COMM_WORLD_SIZE": "2"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "The mpiexec of Open MPI 5.0.11 has started this process" in done.stdout
    assert "mpi4py is linked to MPICH Version: 5.0.2" in done.stdout
    assert "`meshard run` finds it" in done.stdout
    assert "{'initialize': False, 'finalize': False}" in done.stdout


def test_the_files_of_a_killed_launcher_hinder_no_later_one_of_its_number(tmp_path: Path) -> None:
    left = 'mkdir "$TMPDIR/ompi.$$" && : > "$TMPDIR/ompi.$$/pmix.vm.tool" && exec "$@"'
    program = (
        "import os, sys; from meshard.cli.jobs.supervise import supervise; "
        "sys.exit(supervise(sys.argv[1:], os.environ).code)"
    )
    line = ["sh", "-c", left, "sh", str(find_mpiexec()), "-n", "1", "true"]
    settings = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program, *line],
        env=environment(settings, devices_per_process=None, timeout=None),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.iterdir()
    assert [entry.name for entry in folder.iterdir()] == ["pmix.vm.tool"]


def test_the_job_is_described(tmp_path: Path) -> None:
    program = """
tell(count, [d.id for d in meshard.devices()], [d.process_index for d in meshard.devices()],
     [d.id for d in meshard.local_devices()])
for wrong in {"num_processes": 4}, {"process_id": me + 1}:
    try:
        meshard.distributed.initialize(**wrong)
    except ConfigError as error:
        tell(error)
meshard.distributed.initialize("somewhere:1234", 3, me, local_device_ids=[0])
meshard.distributed.shutdown()
"""
    code, told, said, _ = run(tmp_path, program, 3, "--devices-per-process", "2")
    assert code == 0, said
    for me in range(3):
        mine = [2 * me, 2 * me + 1]
        assert f"{me}: 3 [0, 1, 2, 3, 4, 5] [0, 0, 1, 1, 2, 2] {mine}" in told
        assert f"{me}: distributed.initialize: num_processes=4, but it is 3." in told
        assert f"{me}: distributed.initialize: process_id={me + 1}, but it is {me}." in told


def test_meshes_keep_neighbours_on_one_host(tmp_path: Path) -> None:
    program = """
import os
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
os.environ["MESHARD_HOST"] = "even" if rank % 2 == 0 else "odd"
import meshard
mesh = meshard.make_mesh((2, 4), ("i", "j"))
told = [d.process_index for d in mesh.flat_devices]
os.write(1, f"{meshard.process_index()}: {told}, {[d.id for d in meshard.devices()]}\\n".encode())
"""
    code, told, said, _ = run(tmp_path, program, 4, "--devices-per-process", "2", start="")
    assert code == 0, said
    for me in range(4):
        assert f"{me}: [0, 0, 2, 2, 1, 1, 3, 3], [0, 1, 2, 3, 4, 5, 6, 7]" in told


def test_arrays_that_span_processes_show_what_is_here_and_nothing_as_the_whole(
    tmp_path: Path,
) -> None:
    program = """
x = split(np.arange(6.))
if me == 1:  # alone: printing and refusals ask nobody
    tell(repr(x).replace("\\n", "|"))
    for look in np.asarray, list, float, np.from_dlpack:
        try:
            look(x)
        except (NotAddressableError, TypeError, BufferError) as error:
            tell(look.__name__, "refused:", type(error).__name__, error)
        else:
            tell(look.__name__, "ANSWERED")
    tell(x.is_fully_addressable, len(x.addressable_shards), len(x.global_shards))
"""
    code, told, said, _ = run(tmp_path, program, 3, "--timeout", "10")
    assert code == 0, said
    assert "1: Array(shape=(6,), dtype=float64" in told
    assert "[2:4] on device 1:|" in told
    assert "[0. 1.]" not in told
    assert "asarray refused: NotAddressableError This array float64[6] spans processes" in told
    assert "process 1 holds 1 of its 3 pieces" in told
    assert told.count(" refused: ") == 4, told
    assert "ANSWERED" not in told
    assert "1: False 1 3" in told
