"""`meshard doctor`: what it finds on this machine, and on machines that lack something."""

from __future__ import annotations

import importlib
import json
import os
import platform
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

import meshard
from meshard.cli import main
from meshard.cli.doctor import Finding
from tests.commands import documented, on_terminal

doctor = importlib.import_module("meshard.cli.doctor")
ROOT = Path(__file__).parents[1]


def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == documented("doctor")
    assert code == (0 if found["ok"] else 1)
    about = {x["about"]: x for x in found["findings"]}
    assert {"Python", "NumPy", "BLAS", "cores", "memory", "huge pages", "cache"} <= about.keys()
    assert all(x.keys() == {"about", "status", "found", "fix"} for x in found["findings"])
    assert all(x["fix"] for x in found["findings"] if x["status"] != "ok")
    assert about["NumPy"]["found"] == metadata.version("numpy")


def test_a_report_can_be_pasted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "ann"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("MESHARD_CACHE_DIR", str(home / "kept"))
    monkeypatch.setenv("MESHARD_TEST_KEY", "what-lets-others-into-this-job")
    monkeypatch.setenv("SOME_TOKEN", "a-secret")
    monkeypatch.setattr(doctor.meshard, "__file__", str(home / "venv" / "meshard" / "__init__.py"))
    monkeypatch.setattr(doctor, "find_mpiexec", lambda: home / "bin" / "mpiexec")
    told = "\n".join(f"{x.about} {x.found}" for x in doctor.examine())
    assert str(home) not in told
    assert "what-lets-others" not in told
    assert "a-secret" not in told
    assert f"meshard {meshard.__version__} in ~/venv/meshard" in told
    assert "settings MESHARD_CACHE_DIR=~/kept" in told
    assert f"system {platform.system()}" in told
    for package in ("scipy", "ml-dtypes", "optree"):
        assert f"{package} {metadata.version(package)}" in told


def test_what_is_wrong_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [Finding("a", "ok", "good"), Finding("b", "warn", "odd", "do\nthis")]
    monkeypatch.setattr(doctor, "examine", lambda run: found)
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out == (
        "ok    a  good\nwarn  b  odd\n         -> do\n         -> this\n\n0 wrong, 1 warning\n"
    )
    found.append(Finding("c", "wrong", "bad", "mend it"))
    assert main(["doctor"]) == 1
    assert "1 wrong, 1 warning\n" in capsys.readouterr().out
    assert main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_it_is_coloured_on_a_terminal() -> None:
    printed, code = on_terminal("doctor", columns=60)
    assert code in (0, 1)
    assert "\x1b[32mok" in printed


@pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")
def test_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.job() == Finding("a job", "ok", "two processes start, and add up an array")
    monkeypatch.setattr(doctor, "_run", lambda line: (1, "first\nthe reason\n"))
    found = doctor.job()
    assert (found.status, found.found) == ("wrong", "the reason")
    assert "-m meshard run -n 2" in found.fix


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Return a function that writes a file of the kernel's."""
    monkeypatch.setattr(doctor, "_ROOT", tmp_path)

    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    return write


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "150000 100000\n"}, 1.5),
        (
            {
                "proc/self/cgroup": "4:memory:/m\n1:cpu,cpuacct:/c\n",
                "sys/fs/cgroup/cpu/c/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu/c/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            },
            0.5,
        ),
    ],
)
def test_the_time_of_a_container(
    files: dict[str, str],
    quota: float | None,
    machine: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for path, text in files.items():
        machine(path, text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda who: {0, 1, 2, 3}, raising=False)
    found = doctor.cores()
    assert found.status == ("ok" if quota is None else "warn")
    assert found.found.startswith("4 of ")
    assert ("the container may use the time of" in found.found) == (quota is not None)
    assert quota is None or found.found.endswith(f" of {quota:g}")
    assert ("taskset -c 0-0" in found.fix) == (quota is not None)


def test_the_memory_of_a_container(machine: Callable[[str, str], None]) -> None:
    assert doctor.memory().found == "this system does not say how much is free"
    machine("proc/meminfo", "MemTotal:  8388608 kB\nMemAvailable:  4194304 kB\n")
    assert doctor.memory() == Finding("memory", "ok", "4.0 GiB of 8.0 GiB are free")
    machine("proc/self/cgroup", "0::/\n")
    machine("sys/fs/cgroup/memory.max", f"{2 << 30}\n")
    machine("sys/fs/cgroup/memory.current", f"{3 << 29}\n")
    found = doctor.memory()
    assert found.status == "warn"
    assert found.found.endswith("the container may use 2.0 GiB, of which 1.5 GiB are in use")
    machine("sys/fs/cgroup/memory.max", "max\n")
    assert doctor.memory().status == "ok"


def test_huge_pages(machine: Callable[[str, str], None]) -> None:
    path = "sys/kernel/mm/transparent_hugepage/enabled"
    assert doctor.huge_pages().found == "this system has none to ask for"
    machine(path, "always [madvise] never\n")
    assert doctor.huge_pages() == Finding("huge pages", "ok", "madvise")
    machine(path, "always madvise [never]\n")
    found = doctor.huge_pages()
    assert found.status == "warn"
    assert f"echo madvise > /{path}" in found.fix


def test_shared_memory(
    machine: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert doctor.shared_folder().status == "warn"
    (tmp_path / "dev" / "shm").mkdir(parents=True)
    assert doctor.shared_folder().status in ("ok", "warn")
    monkeypatch.setattr(doctor, "_SMALL_SHM", 1 << 62)
    assert "--shm-size=1g" in doctor.shared_folder().fix

    def refuse(name: str) -> int:
        raise OSError("not here")

    monkeypatch.setattr(os, "memfd_create", refuse, raising=False)
    found = doctor.memory_files()
    assert (found.status, found.found) == ("warn", "no memory files (not here)")


OPEN_MPI = "Open MPI v5.0.11, package: someone's, ident: 5.0.11\n"


@pytest.mark.parametrize(
    ("library", "version", "about", "status", "told"),
    [
        ((0, OPEN_MPI), (0, "mpiexec (Open MPI) 5.0.11\n"), "mpiexec", "ok", "5.0.11"),
        ((0, OPEN_MPI), (0, "HYDRA build details:\n"), "mpiexec", "wrong", "HYDRA"),
        ((0, "MPICH Version: 4.3\n"), (0, "HYDRA build details:\n"), "mpiexec", "ok", "HYDRA"),
        ((0, OPEN_MPI), (127, "not found\n"), "mpiexec", "wrong", "not found"),
        ((1, "Traceback\nRuntimeError: no libmpi\n"), (0, ""), "MPI", "wrong", "no libmpi"),
    ],
)
def test_the_library_and_mpiexec_must_match(
    library: tuple[int, str],
    version: tuple[int, str],
    about: str,
    status: str,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "4.1")
    monkeypatch.setattr(doctor, "find_mpiexec", lambda: Path("/m/mpiexec"))
    monkeypatch.setattr(doctor, "_run", lambda line: version if "--version" in line else library)
    (found,) = (x for x in doctor.mpi() if x.about == about)
    assert found.status == status
    assert told in found.found
    assert bool(found.fix) == (status != "ok")


def test_mpi_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(doctor.metadata, "version", missing)
    (found,) = doctor.mpi()
    assert (found.status, found.found) == ("warn", "mpi4py is not installed")
    assert 'pip install "meshard[mpi]"' in found.fix
    assert doctor.optional("zarr") == Finding(
        "zarr", "ok", 'not installed; for checkpoints in Zarr: pip install "meshard[checkpoint]"'
    )


def test_a_package_may_be_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "2.18.7")
    assert doctor.optional("zarr").status == "warn"
    assert doctor.optional("zarr").fix.startswith("3.1.6 is needed for checkpoints in Zarr: pip ")
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "3.2.0rc1")
    assert doctor.optional("zarr").status == "ok"


def test_the_least_versions_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name, (_, extra, least) in doctor.OPTIONAL.items():
        if extra:
            assert f"{name}>={least}" in project["optional-dependencies"][extra]


def test_a_machine_without_optional_packages(tmp_path: Path) -> None:
    hidden = ", ".join(f"{name!r}: None" for name in ("llvmlite", "jax", "mpi4py", "zarr", "h5py"))
    code = f"import sys; sys.modules.update({{{hidden}}}); from meshard.cli import main; "
    done = subprocess.run(
        [sys.executable, "-c", f"{code}main(['doctor'])"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stderr == ""
    assert "cache" in done.stdout


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    build = importlib.import_module("meshard.ops.fused.compilers")
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(build, "cache_folder", lambda: tmp_path / "file")
    found = doctor.cache()
    assert found.status == "warn"
    assert "MESHARD_CACHE_DIR" in found.fix
    monkeypatch.setattr(build, "cache_folder", lambda: None)
    assert doctor.cache().found == "there is no folder for compiled programs"
    monkeypatch.setattr(build, "cache_folder", lambda: tmp_path / "new")
    assert doctor.cache() == Finding("cache", "ok", str(tmp_path / "new"))
    assert [*(tmp_path / "new").iterdir()] == []
