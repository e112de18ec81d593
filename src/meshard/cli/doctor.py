"""`meshard doctor`: what meshard runs on, what is in its way, and what to do about it.

In: this machine. Out: findings, each ok, a warning, or wrong, with the next move. A finding that
needs another library is made in a process of its own, so that one that crashes is a finding too.
People paste all of it into reports: folders of the user begin with ~, and of the environment only
settings are shown.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Literal, final

import numpy as np

import meshard
from meshard.cli.run import RunError, find_mpiexec, physical_cores
from meshard.plan.captions import size_text
from meshard.runtime.memory.workers import blas_libraries
from meshard.settings import SETTINGS

Status = Literal["ok", "warn", "wrong"]
_ROOT = Path("/")  # tests look elsewhere
_LITTLE = 1 << 30
_SMALL_SHM = 256 << 20
_PATIENCE = 60.0
# Optional packages: what each is for, the extra that brings it, and the least version.
OPTIONAL = {
    "llvmlite": ("LLVM compiles what jit fuses", "fast", "0.45"),
    "mpi4py": ("programs of several processes", "mpi", "4.0"),
    "zarr": ("checkpoints in Zarr", "checkpoint", "3.1.6"),
    "h5py": ("data sets of HDF5 files", "checkpoint", "3.11"),
    "safetensors": ("the demo", "demo", "0.5"),
    "tokenizers": ("the demo", "demo", "0.21"),
    "jax": ("JAX's arrays; XLA compiles what jit fuses", "jax", "0.10"),
    "torch": ("PyTorch's tensors, and DTensors between meshes", "torch", "2.6"),
}


@final
@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        about: what it is.
        status: whether it is as it should be.
        found: what was found.
        fix: what to do; empty if nothing.
    """

    about: str
    status: Status
    found: str
    fix: str = ""


def examine(*, run: bool = False) -> Iterator[Finding]:
    """Look at everything, one finding after another.

    Args:
        run: whether to start a job of two processes too.
    """
    home = f"{Path.home()}{os.sep}"
    for found in _examined(run=run):
        yield replace(found, found=found.found.replace(home, f"~{os.sep}"))


def _examined(*, run: bool) -> Iterator[Finding]:
    folder = Path(meshard.__file__).parent
    yield Finding("meshard", "ok", f"{meshard.__version__} in {folder}")
    yield python()
    yield Finding("system", "ok", platform.platform())
    yield from settings()
    yield Finding("NumPy", "ok", np.__version__)
    yield from packages()
    yield blas()
    yield cores()
    yield memory()
    yield huge_pages()
    yield memory_files()
    yield shared_folder()
    yield from mpi()
    if run:
        yield job()
    yield cache()
    yield from map(optional, OPTIONAL)


def python() -> Finding:
    """Look at the interpreter."""
    told = f"{platform.python_version()} ({platform.python_implementation()}), {sys.executable}"
    if platform.python_implementation() != "CPython":
        fix = "meshard is tested with CPython; memory may be freed later with another one"
        return Finding("Python", "warn", told, fix)
    return Finding("Python", "ok", told)


def settings() -> Iterator[Finding]:
    """Look at the variables of the environment that set something; wrong ones end the import."""
    names = [f"MESHARD_{name.upper()}" for name in SETTINGS]
    found = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    if found:
        yield Finding("settings", "ok", ", ".join(sorted(found)))


def packages() -> Iterator[Finding]:
    """Look at the packages that meshard needs besides NumPy; a checkout has no list of them."""
    try:
        asked = metadata.requires("meshard") or []
    except metadata.PackageNotFoundError:
        return
    names = [re.split(r"[^\w.-]", text)[0] for text in asked if "extra ==" not in text]
    told = [f"{name} {metadata.version(name)}" for name in names if name != "numpy"]
    yield Finding("packages", "ok", ", ".join(told))


def blas() -> Finding:
    """Look at the library that multiplies matrices."""
    found = [library.info() for library in blas_libraries()]
    if not found:
        fix = "its threads cannot be held down beside meshard's; NumPy's wheels bring OpenBLAS"
        return Finding("BLAS", "warn", "none that threadpoolctl knows", fix)
    told = [
        f"{x['internal_api']} {x.get('version') or '?'}, {x['num_threads']} threads" for x in found
    ]
    return Finding("BLAS", "ok", "; ".join(told))


def cores() -> Finding:
    """Look at the cores that this process may use, and at the time that it gets on them."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    count = allowed or 1
    told = f"{count} of {os.cpu_count()} may be used, {physical_cores()} without hyper-threads"
    quota = _cpu_quota()
    if quota is None:
        return Finding("cores", "ok", told)
    told += f"; the container may use the time of {quota:g}"
    if quota < count:
        last = max(1, int(quota)) - 1
        fix = f"threads stop when the time is used up; use as many cores: taskset -c 0-{last}"
        return Finding("cores", "warn", told, fix)
    return Finding("cores", "ok", told)


def memory() -> Finding:
    """Look at the memory that is left."""
    rows = dict(re.findall(r"^(\w+): +(\d+) kB$", _read("proc/meminfo") or "", re.MULTILINE))
    if "MemAvailable" not in rows:
        return Finding("memory", "ok", "this system does not say how much is free")
    free = int(rows["MemAvailable"]) << 10
    told = f"{size_text(free)} of {size_text(int(rows['MemTotal']) << 10)} are free"
    limit = _memory_limit()
    if limit is not None:
        used = _group_number("memory", "memory.current", "memory.usage_in_bytes") or 0
        free = min(free, limit - used)
        told += f"; the container may use {size_text(limit)}, of which {size_text(used)} are in use"
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    if soft != resource.RLIM_INFINITY:
        fix = "meshard reserves more addresses than it uses: ulimit -v unlimited"
        return Finding("memory", "warn", f"{told}; addresses end at {size_text(soft)}", fix)
    if free < _LITTLE:
        return Finding("memory", "warn", told, "end other programs, or raise the container's limit")
    return Finding("memory", "ok", told)


def huge_pages() -> Finding:
    """Look at whether memory may come in huge pages."""
    text = _read("sys/kernel/mm/transparent_hugepage/enabled")
    chosen = re.search(r"\[(\w+)\]", text or "")
    if chosen is None:
        return Finding("huge pages", "ok", "this system has none to ask for")
    if chosen[1] == "never":
        fix = (
            "new arrays take about five times as long to touch; as root:\n"
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
        )
        return Finding("huge pages", "warn", "never", fix)
    return Finding("huge pages", "ok", chosen[1])


def memory_files() -> Finding:
    """Look at whether processes of one host can share memory."""
    about = "shared memory"
    try:
        file = os.memfd_create("meshard-doctor")
    except (AttributeError, OSError) as error:
        fix = "processes of one host send messages through MPI instead, which is slower"
        return Finding(about, "warn", f"no memory files ({error})", fix)
    try:
        os.ftruncate(file, 4096)
        with open(f"/proc/{os.getpid()}/fd/{file}", "rb"):
            return Finding(about, "ok", "memory files, which neighbours open through /proc")
    except OSError as error:
        fix = "mount /proc; without it processes of one host send messages through MPI"
        return Finding(about, "warn", f"memory files cannot be opened through /proc ({error})", fix)
    finally:
        os.close(file)


def shared_folder() -> Finding:
    """Look at the folder in which MPI libraries share memory."""
    folder = _ROOT / "dev" / "shm"
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        fix = "MPI libraries keep queues there: mount a tmpfs at /dev/shm"
        return Finding("/dev/shm", "warn", f"{error.strerror}", fix)
    told = f"{size_text(usage.free)} of {size_text(usage.total)} are free"
    if usage.free < _SMALL_SHM:
        fix = "MPI libraries keep queues there and may fail; in a container: --shm-size=1g"
        return Finding("/dev/shm", "warn", told, fix)
    return Finding("/dev/shm", "ok", told)


def mpi() -> Iterator[Finding]:
    """Look at mpi4py's library, at the mpiexec that would be used, and at whether they match."""
    fix = 'programs of several processes need it: pip install "meshard[mpi]"'
    try:
        metadata.version("mpi4py")
    except metadata.PackageNotFoundError:
        yield Finding("MPI", "warn", "mpi4py is not installed", fix)
        return
    code = (
        "import mpi4py; mpi4py.rc(initialize=False, finalize=False)\n"
        "from mpi4py import MPI; print(MPI.Get_library_version())"
    )
    status, library = _run([sys.executable, "-c", code])
    name = _maker(library)
    if status != 0:
        fix = 'mpi4py finds no MPI library; install one: pip install "meshard[mpi]"'
        yield Finding("MPI", "wrong", _last_line(library) or "mpi4py cannot be loaded", fix)
        return
    yield Finding("MPI", "ok", _first_line(library).partition(",")[0])
    try:
        mpiexec = find_mpiexec()
    except RunError:
        yield Finding("mpiexec", "wrong", "not found beside Python or on the PATH", fix)
        return
    status, version = _run([str(mpiexec), "--version"])
    told = f"{mpiexec}: {_first_line(version)}"
    other = _maker(version)
    if status != 0:
        yield Finding("mpiexec", "wrong", told, f"it fails; {fix}")
    elif name and other and name != other:
        fix = f"mpi4py is linked to {name}, and this starts jobs of {other}: install their mpiexec"
        yield Finding("mpiexec", "wrong", told, fix)
    else:
        yield Finding("mpiexec", "ok", told)


def job() -> Finding:
    """Start a job of two processes, which add up an array."""
    code = (
        "import meshard, meshard.numpy as mnp\n"
        "meshard.distributed.initialize()\n"
        "mesh = meshard.make_mesh((2,), 'x')\n"
        "s = meshard.NamedSharding(mesh, meshard.P('x'))\n"
        "print('sum', int(meshard.device_put(mnp.arange(8), s).sum()), flush=True)\n"
    )
    line = [sys.executable, "-m", "meshard", "run", "-n", "2", "--devices-per-process", "1"]
    status, told = _run([*line, "--timeout", "30", "--", "-c", code])
    if status == 0 and told.count("sum 28") == 2:
        return Finding("a job", "ok", "two processes start, and add up an array")
    fix = "the lines above are those of mpiexec: " + " ".join(line[1:]) + " -- -c pass"
    return Finding("a job", "wrong", _last_line(told) or f"exit code {status}", fix)


def cache() -> Finding:
    """Look at whether compiled programs can be kept."""
    from meshard.ops.fused.compilers import cache_folder

    folder = cache_folder()
    if folder is None:
        fix = "set MESHARD_CACHE_DIR to a folder of this user"
        return Finding("cache", "warn", "there is no folder for compiled programs", fix)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            return Finding("cache", "ok", str(folder))
    except OSError as error:
        fix = "programs are compiled again in each process; set MESHARD_CACHE_DIR to a folder"
        return Finding("cache", "warn", f"{folder} cannot be written: {error.strerror}", fix)


def optional(name: str) -> Finding:
    """Look for a package that is not needed."""
    use, extra, least = OPTIONAL[name]
    install = f'pip install "meshard[{extra}]"' if extra else f"pip install {name}"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, "ok", f"not installed; for {use}: {install}")
    if _numbers(version) < _numbers(least):
        return Finding(name, "warn", version, f"{least} is needed for {use}: {install}")
    return Finding(name, "ok", version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def _maker(text: str) -> str:
    """Return whose MPI a text is about; empty if it does not say."""
    makers = {"Open MPI": "Open MPI|OpenRTE|PRRTE", "MPICH": "MPICH|HYDRA", "Intel MPI": "Intel"}
    return next((name for name, words in makers.items() if re.search(words, text)), "")


def _run(line: list[str]) -> tuple[int, str]:
    """Run a program, and return its exit code and what it printed."""
    try:
        done = subprocess.run(
            line,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=_PATIENCE,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return -1, str(error)
    return done.returncode, done.stdout


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:120]


def _last_line(text: str) -> str:
    return _first_line("\n".join(reversed(text.splitlines())))


def _read(path: str) -> str | None:
    """Return a file of the kernel's; None if it does not exist."""
    try:
        return (_ROOT / path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return None


def _cpu_quota() -> float | None:
    """Return the cores whose time this process's groups may use; None if all."""
    found = []
    for folder in _groups("cpu"):
        words = (_read(f"{folder}/cpu.max") or "").split()
        if not words:
            quota = _read(f"{folder}/cpu.cfs_quota_us") or "-1"
            words = [quota, _read(f"{folder}/cpu.cfs_period_us") or "100000"]
        if len(words) == 2 and words[0].strip().isdecimal():
            found.append(int(words[0]) / int(words[1]))
    return min(found, default=None)


def _memory_limit() -> int | None:
    """Return the bytes that this process's groups may use; None if all."""
    limit = _group_number("memory", "memory.max", "memory.limit_in_bytes")
    return None if limit is None or limit >= 1 << 60 else limit


def _group_number(kind: str, *names: str) -> int | None:
    """Return the least number in a file of this process's groups."""
    texts = [_read(f"{folder}/{name}") or "" for folder in _groups(kind) for name in names]
    return min([int(text) for text in texts if text.strip().isdecimal()], default=None)


def _groups(kind: str) -> Iterator[str]:
    """Yield the folders of this process's control groups, the innermost first."""
    for line in (_read("proc/self/cgroup") or "").splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds and kind not in kinds.split(","):
            continue
        base = f"sys/fs/cgroup/{kind}" if kinds else "sys/fs/cgroup"
        parts = [part for part in path.split("/") if part and part != ".."]
        for length in range(len(parts), -1, -1):
            yield "/".join([base, *parts[:length]])
