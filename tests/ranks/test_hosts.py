"""Jobs over hosts that are really apart: values, slow links, deaths, and links that are cut."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.ranks.hosts import Hosts, why_not
from tests.ranks.test_restarts import elastic, fault_tolerant

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.skipif(
        find_spec("mpi4py") is None, reason='mpi4py is not installed (pip install "meshard[mpi]")'
    ),
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
    pytest.mark.timeout(120),
]
FT = fault_tolerant()
slow_links = pytest.mark.skipif(why_not(slow=True) is not None, reason=why_not(slow=True) or "")

START = """
import os, sys, time
import numpy as np
import meshard
import meshard.numpy as mnp
from meshard import elastic
from meshard.errors import ProcessLostError, TransportError
from meshard.sharding import NamedSharding, P

me, count = meshard.process_index(), meshard.process_count()
file = open(f"told{me}", "a", buffering=1)
def tell(*words):
    file.write(" ".join(map(str, words)) + "\\n")
mesh = meshard.make_mesh((meshard.device_count(),), ("i",))
def split(value):
    return meshard.device_put(value, NamedSharding(mesh, P("i")))
"""
ENDLESS = """
if os.environ["MESHARD_RESTART"] != "0":
    tell("again on", count)
    sys.exit()
tell(os.getpid())
x = split(np.arange(60.))
try:
    while True:
        x.sum().block_until_ready()
except TransportError as error:
    tell(type(error).__name__, error)
    if "recover" in sys.argv:
        elastic.recover()
        x = mnp.ones(60, device=NamedSharding(elastic.mesh(("i",)), P("i")))
        tell(float(x.sum()), "on", meshard.process_count())
    else:
        raise
"""
LASTING = """
guard = elastic.protect({"x": split(np.arange(60.)), "step": 0}, apart="host")
tell(os.getpid())
left = None
while left != 0:
    with elastic.surviving() as block:
        state = guard.tree
        if block.changed:
            state = elastic.restore(guard, NamedSharding(elastic.mesh("i"), P("i")))
            left = 5
        guard.refresh({"x": state["x"] + 1, "step": state["step"] + 1})
        left = None if left is None else left - 1
whole = meshard.multihost_utils.process_allgather(guard.tree["x"], tiled=True)
right = np.array_equal(whole, np.arange(60.) + guard.tree["step"])
tell("right" if right else whole, "on", meshard.process_count())
"""


class Job:
    """A program over hosts, started on the first of them; each process tells a file of its own."""

    def __init__(
        self, hosts: Hosts, folder: Path, program: str, *options: str, **more: str
    ) -> None:
        self.hosts, self.folder = hosts, folder
        self.count = 2 * len(hosts.names)
        (folder / "program.py").write_text(START + program)
        given = [o for o in options if o.startswith("-")]
        arguments = [o for o in options if not o.startswith("-")]
        line = [sys.executable, "-m", "meshard", "run", "-n", str(self.count), *given]
        self.process = subprocess.Popen(
            hosts.line(0, [*line, "program.py", *arguments]),
            cwd=folder,
            env=hosts.settings(**more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def told(self, process: int) -> list[str]:
        path = self.folder / f"told{process}"
        return path.read_text().splitlines() if path.exists() else []

    def pids(self) -> list[int]:
        """Wait until all processes have told their numbers, and return them."""
        while not all(self.told(p) for p in range(self.count)):
            assert self.process.poll() is None, self.process.communicate()[1]
            time.sleep(0.02)
        time.sleep(0.2)
        return [int(self.told(p)[0]) for p in range(self.count)]

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and what was complained."""
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


@pytest.fixture(scope="module")
def two() -> Iterator[Hosts]:
    with Hosts(2) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def three() -> Iterator[Hosts]:
    with Hosts(3) as hosts:
        yield hosts


def gone_soon(hosts: Hosts, seconds: float = 20.0) -> list[str]:
    """Return the processes that are left on hosts, after some time to end."""
    until = time.monotonic() + seconds
    while (left := hosts.left(range(len(hosts.names)))) and time.monotonic() < until:
        time.sleep(0.05)
    return left


class TestHosts:
    def test_nothing_is_left_of_them_after_a_failure(self) -> None:
        def fail() -> None:
            with Hosts(2) as hosts:
                started.extend(hosts.names)
                sleeper = subprocess.Popen(hosts.line(1, ["sleep", "600"]))
                sleepers.append(sleeper)
                while not any("sleep 600" in line for line in hosts.left([1])):
                    time.sleep(0.01)
                raise KeyError("as a test would")

        started: list[str] = []
        sleepers: list[subprocess.Popen[bytes]] = []
        with pytest.raises(KeyError):
            fail()
        assert sleepers[0].wait(10) == -signal.SIGKILL
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
        assert not any(name in listed.stdout for name in started)


@pytest.mark.parametrize("name", ["life", "regression"])
def test_an_example_prints_what_it_prints_in_one_process(
    name: str, two: Hosts, tmp_path: Path
) -> None:
    path = str(ROOT / "examples" / f"{name}.py")
    alone = subprocess.run(
        [sys.executable, path], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    line = [sys.executable, "-m", "meshard", "run", "-n", "4", path]
    done = subprocess.run(
        two.line(0, line),
        cwd=tmp_path,
        env=two.settings(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = Counter(alone.stdout.splitlines())
    assert Counter(done.stdout.splitlines()) == {line: 4 * n for line, n in printed.items()}


RESHARDS = """
chance = np.random.default_rng(3)
both = meshard.make_mesh((2, meshard.device_count() // 2), ("a", "b"))
specs = [P("i"), P(None, "i"), P()]
specs = [NamedSharding(mesh, s) for s in specs]
specs += [NamedSharding(both, s) for s in (P("a", "b"), P("b", "a"), P(("b", "a")), P(None, "b"))]
for rows, columns in (12, 24), (240, 360), (1200, 1200):
    value = chance.normal(size=(rows, columns))
    x = meshard.device_put(value, specs[0])
    for n in chance.permutation(len(specs)):
        x = meshard.device_put(x, specs[n])
        for shard in x.addressable_shards:
            assert np.array_equal(np.asarray(shard.data), value[shard.index]), (rows, specs[n])
    total, expected = float(x.sum()), value.sum()
    assert abs(total - expected) < 1e-9 * rows * columns, (total, expected)
tell("right", sorted({d.process_index for d in mesh.flat_devices}))
"""


def test_values_between_three_hosts(three: Hosts, tmp_path: Path) -> None:
    job = Job(three, tmp_path, RESHARDS)
    code, said = job.end()
    assert code == 0, said
    assert [job.told(p) for p in range(6)] == [["right [0, 1, 2, 3, 4, 5]"]] * 6


@slow_links
def test_values_over_a_link_that_is_slow_and_loses_packets(tmp_path: Path) -> None:
    with Hosts(2, delay=0.005, loss=0.01) as hosts:
        job = Job(hosts, tmp_path, RESHARDS)
        code, said = job.end()
        assert code == 0, said
        assert [job.told(p) for p in range(4)] == [["right [0, 1, 2, 3]"]] * 4


@elastic
def test_a_death_on_another_host_is_named_by_all_that_live(three: Hosts, tmp_path: Path) -> None:
    job = Job(three, tmp_path, ENDLESS, "--elastic", "recover")
    os.kill(job.pids()[5], signal.SIGKILL)
    code, said = job.end()
    assert code == 0, said
    for process in range(5):  # where a machine is busy, some hear of fewer that miss it, too
        assert job.told(process)[1].startswith("ProcessLostError Process 5 has died")
    assert {job.told(p)[2] for p in range(5)} == {"60.0 on 5"}
    assert gone_soon(three) == []


def test_a_process_that_is_stopped_on_another_host_is_named(two: Hosts, tmp_path: Path) -> None:
    job = Job(two, tmp_path, ENDLESS, "--timeout=30", MESHARD_STOPPED="fail")
    stopped = job.pids()[3]
    os.kill(stopped, signal.SIGSTOP)
    try:
        code, said = job.end()
    finally:
        if Path(f"/proc/{stopped}").exists():
            os.kill(stopped, signal.SIGKILL)
    assert code != 0
    for process in 0, 1, 2:
        assert "Process 3 is stopped (pid" in " ".join(job.told(process)), said
    assert gone_soon(two) == []


def test_a_job_starts_again_or_goes_on_without_a_host_that_is_cut_off(tmp_path: Path) -> None:
    folders = tmp_path / "again", tmp_path / "elastic"
    for folder in folders:
        folder.mkdir()
    with Hosts(2) as two, Hosts(3) as three:  # both wait for the kernel: at the same time
        where = "--hosts=" + ",".join(f"{name}:2" for name in two.names)
        again = Job(two, folders[0], ENDLESS, "--restarts=1", where)
        lasting = Job(three, folders[1], LASTING, "--elastic") if FT else None
        again.pids()
        two.cut(1, silent=False)
        if lasting is not None:
            lasting.pids()
            three.cut(2)
            check_the_others_go_on(lasting)
        code, said = again.end()
        assert code == 0, said
        assert f"started again without {two.names[1]}, which did not answer" in said
        for process in 0, 1:
            _, error, last = again.told(process)
            assert f"its host {two.names[1]} does not answer" in error
            assert last == "again on 2"
        assert gone_soon(two) == [], said


def check_the_others_go_on(job: Job) -> None:
    """Check the end of an elastic job of which the last host was cut off."""
    code, said = job.end()
    assert code == 0, said
    assert [job.told(p)[1:] for p in range(4)] == [["right on 4"]] * 4
    for process in 4, 5:  # they do not go on by themselves
        assert len(job.told(process)) == 1
    assert gone_soon(job.hosts) == []
    cut_off = job.hosts.names[2]
    assert [file.name for file in Path("/dev/shm").iterdir() if cut_off in file.name] == []


@elastic
def test_a_death_before_the_start_ends_the_job_on_all_hosts(two: Hosts, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, time\n"
        "if os.environ.get('OMPI_COMM_WORLD_RANK') == '3':\n    os.kill(os.getpid(), 9)\n"
    )
    dies = Job(two, tmp_path, ENDLESS, "--elastic", PYTHONPATH=f"{tmp_path}:{ROOT / 'src'}")
    code, said = dies.end()
    assert code != 0
    assert "1 live, and MPI waits for all of them: one has ended before the job began" in said
    assert "meshard run: a process has ended before the job began" in said
    assert gone_soon(two) == []
