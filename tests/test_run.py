"""`meshard run`: which mpiexec, which flags, what is said when something is missing."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from meshard.cli import main
from meshard.cli.run import RunError, command, environment, find_mpiexec, physical_cores

run = importlib.import_module("meshard.cli.run")
OPEN_MPI = "mpiexec (Open MPI) 5.0.11\n"
HYDRA = "HYDRA build details:\n    Version: 4.3.2\n"
needs_mpi = pytest.mark.skipif(
    find_spec("mpi4py") is None, reason='mpi4py is not installed (pip install "meshard[mpi]")'
)


def line(version: str, processes: int = 2, **settings: str) -> list[str]:
    program = ["script.py", "--size", "3"]
    return command(Path("/m/mpiexec"), version, program, processes=processes, settings=settings)


class TestCommandLine:
    def test_of_open_mpi(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(run, "physical_cores", lambda: 4)
        end = [sys.executable, "script.py", "--size", "3"]
        start = ["/m/mpiexec", "-n", "4", "--bind-to", "none"]
        assert line(OPEN_MPI, 4) == [*start, *end]
        start[2] = "5"
        assert line(OPEN_MPI, 5) == [*start, "--oversubscribe", *end]
        told = ["-x", "MESHARD_NUM_DEVICES", "-x", "MESHARD_TIMEOUT"]
        given = {"MESHARD_TIMEOUT": "9", "MESHARD_NUM_DEVICES": "2", "HOME": "/"}
        assert line(OPEN_MPI, 5, **given) == [*start, "--oversubscribe", *told, *end]

    def test_of_mpich(self) -> None:
        expected = ["/m/mpiexec", "-n", "64", sys.executable, "script.py", "--size", "3"]
        assert line(HYDRA, 64, MESHARD_TIMEOUT="9") == expected

    def test_threads_of_a_core_are_one_core(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(run, "_CPUS", tmp_path)
        monkeypatch.setattr("os.sched_getaffinity", lambda who: {0, 1, 4}, raising=False)
        assert physical_cores() == 3  # nothing is known of threads
        for cpu, siblings in ((0, "0,4"), (1, "1,5"), (4, "0,4")):
            folder = tmp_path / f"cpu{cpu}" / "topology"
            folder.mkdir(parents=True)
            (folder / "thread_siblings_list").write_text(f"{siblings}\n")
        assert physical_cores() == 2


class TestEnvironment:
    def test_what_is_asked_for_is_set(self) -> None:
        found = environment({"A": "b"}, devices_per_process=3, timeout=7.5)
        assert found["A"] == "b"
        assert found["MESHARD_NUM_DEVICES"] == "3"
        assert found["MESHARD_TIMEOUT"] == "7.5"

    def test_what_is_not_asked_for_is_left(self) -> None:
        given = {"MESHARD_NUM_DEVICES": "5"}
        found = environment(given, devices_per_process=None, timeout=None)
        assert found["MESHARD_NUM_DEVICES"] == "5"
        assert "MESHARD_TIMEOUT" not in found

    @pytest.mark.parametrize("user", [0, 1000])
    def test_open_mpi_runs_as_root(self, user: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.geteuid", lambda: user)
        found = environment({}, devices_per_process=None, timeout=None)
        names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
        assert [found.get(n) for n in names] == (["1", "1"] if user == 0 else [None, None])


def executable(folder: Path, text: str = "#!/bin/sh\n") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "mpiexec"
    path.write_text(text)
    path.chmod(0o755)
    return path


class TestMpiexec:
    def test_the_one_beside_python_comes_first(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        beside, other = executable(tmp_path / "bin"), executable(tmp_path / "other")
        monkeypatch.setattr(sys, "executable", str(beside.parent / "python"))
        monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / "nowhere"))
        monkeypatch.setenv("PATH", str(other.parent))
        assert find_mpiexec() == beside
        beside.unlink()
        assert find_mpiexec() == other
        other.unlink()
        with pytest.raises(
            RunError,
            match=r'(?s)mpiexec, which .* not found beside .*pip install "meshard\[mpi\]"',
        ):
            find_mpiexec()

    def test_one_that_does_not_start_is_named(self, tmp_path: Path) -> None:
        path = executable(tmp_path / "bin", "#!/no/such/interpreter\n")
        with pytest.raises(RunError, match=r"mpiexec --version does not answer \(.*No such file"):
            run._version(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "2"], "there is no program to run; name a script, `meshard run -n 4 script.py`"),
        (["-n", "2", "--"], "there is no program to run"),
        (["-n", "2", "no_such.py"], "meshard run: no_such.py: there is no such file"),
    ],
)
def test_a_program_is_needed(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_mpi4py_is_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    assert main(["run", "-n", "2", "--", "-c", "pass"]) == 1
    message = capsys.readouterr().err
    assert "mpi4py, which joins the processes, is not installed" in message
    assert 'pip install "meshard[mpi]"' in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["script.py"], "the following arguments are required: -n/--processes"),
        (["-n", "0", "script.py"], "0 is not a positive number"),
        (["-n", "2", "--devices-per-process", "0", "script.py"], "0 is not a positive number"),
        (["-n", "2", "--timeout", "nan", "script.py"], "nan is not a positive number of seconds"),
        (["-n", "2", "--timeout", "soon", "script.py"], "invalid number value: 'soon'"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["run", *arguments])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


SCRIPT = """
import os, sys, meshard
meshard.distributed.initialize()
print(f"{meshard.process_index()} of {meshard.process_count()}: {len(meshard.local_devices())} of "
      f"{meshard.device_count()} {sys.argv[1:]} {os.environ['MESHARD_TIMEOUT']}\\n", end="")
meshard.distributed.shutdown()
sys.exit(3 if "fail" in sys.argv else 0)
"""


@needs_mpi
@pytest.mark.parametrize(("how", "code"), [("script", 0), ("module", 3)])
def test_a_program_runs(how: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text(SCRIPT)
    program = ["told.py"] if how == "script" else ["--", "-m", "told"]
    options = ["-n", "3", "--devices-per-process", "2", "--timeout", "40"]
    given = ["-x", "--", "y", *(["fail"] if code else [])]
    done = subprocess.run(
        [sys.executable, "-m", "meshard", "run", *options, *program, *given],
        cwd=tmp_path,
        env={n: v for n, v in os.environ.items() if n != "MESHARD_NUM_DEVICES"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    expected = [f"{i} of 3: 2 of 6 {given} 40" for i in range(3)]
    assert sorted(x for x in done.stdout.splitlines() if x) == expected


class TestSupervising:
    """A launcher that does not end, or leaves processes behind, is ended with all of them."""

    LAUNCHER = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
told = sys.argv[1]
if os.fork() == 0:
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    time.sleep(60)
    os._exit(0)
open(told, "w").write("ready")
time.sleep(60 if len(sys.argv) == 2 else 0)
sys.exit(int(sys.argv[2]))
"""
    PROGRAM = """
import os, sys
from meshard.cli.jobs.supervise import launcher_name, supervise
print(launcher_name(), flush=True)
sys.exit(supervise([sys.executable, *sys.argv[1:]], os.environ, grace=0.5).code)
"""

    def start(self, folder: Path, *more: str) -> tuple[subprocess.Popen[str], Path]:
        (folder / "launcher.py").write_text(self.LAUNCHER)
        told = folder / "told"
        line = [sys.executable, "-c", self.PROGRAM, str(folder / "launcher.py"), str(told), *more]
        job = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return job, told

    @staticmethod
    def left(folder: Path) -> list[str]:
        """Return the processes whose command line names a folder."""
        lines = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    line = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if os.fsencode(folder) in line:
                    lines.append(line.decode())
        return lines

    @pytest.mark.timeout(60)
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
    def test_one_that_does_not_end_is_killed(self, number: int, tmp_path: Path) -> None:
        job, told = self.start(tmp_path)
        assert job.stdout is not None
        assert job.stdout.readline().count(f":{job.pid}@") == 1
        while not told.exists():
            time.sleep(0.01)
        job.send_signal(number)
        _, said = job.communicate(timeout=30)
        assert job.returncode == 128 + signal.SIGKILL
        assert "has not ended its job in 0.5 s" in said
        assert self.left(tmp_path) == []

    @pytest.mark.timeout(60)
    def test_what_a_failed_job_leaves_behind_is_ended(self, tmp_path: Path) -> None:
        job, _ = self.start(tmp_path, "3")
        _, said = job.communicate(timeout=30)
        assert (job.returncode, said) == (3, "")
        assert self.left(tmp_path) == []

    KEPT = """
import os, signal, sys, time
from meshard.runtime.processes.identity import KeeperLine
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for word in sys.argv[2:]:
    if os.fork() == 0:
        line = KeeperLine()
        if word != "nothing":
            line.say(word)
        os._exit(0)
for word in sys.argv[2:]:
    os.wait()
open(sys.argv[1], "w").write("ready")
time.sleep(60)
"""
    KEEPING = """
import os, sys
from meshard.cli.jobs import supervise
supervise._LINGER = 0.2
elastic, *line = sys.argv[1:]
done = supervise.supervise([sys.executable, *line], os.environ, processes=2, elastic=bool(elastic))
sys.exit(done.code)
"""

    @pytest.mark.timeout(60)
    @pytest.mark.parametrize(
        ("elastic", "words", "code"),
        [
            ("", ["ended", "ended"], 0),
            ("", ["ended", "nothing"], 1),
            ("yes", ["ended", "nothing"], 0),
            ("yes", ["nothing", "nothing"], 1),
            ("yes", ["ended", "failed"], 1),
        ],
    )
    def test_one_that_waits_for_nobody_is_killed(
        self, elastic: str, words: list[str], code: int, tmp_path: Path
    ) -> None:
        (tmp_path / "launcher.py").write_text(self.KEPT)
        line = [str(tmp_path / "launcher.py"), str(tmp_path / "told"), *words]
        done = subprocess.run(
            [sys.executable, "-c", self.KEEPING, elastic, *line],
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert done.returncode == code
        assert "has not ended its job although all its processes have" in done.stderr
        assert self.left(tmp_path) == []
