"""Facts about the machine and the versions, and what other processes took of it meanwhile."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info

from bench.peers.installed import told

PREFIXES = ("OPENBLAS_", "OMP_", "MKL_", "GOTO_", "BLIS_", "XLA_", "JAX_", "MESHARD_")


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def facts() -> dict[str, str]:
    """Names and values, in the order to be shown."""
    return {
        "machine": f"{_processor()}, {usable_cores()} usable cores, {_memory()} of memory",
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "huge pages": _line("/sys/kernel/mm/transparent_hugepage/enabled"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "BLAS": "; ".join(
            f"{b.get('internal_api')} {b.get('version')}, {b.get('num_threads')} threads,"
            f" kernels for {b.get('architecture')}"
            for b in threadpool_info()
            if b.get("user_api") == "blas"
        ),
        "environment": _bending_variables(),
        "peers": told(),
        "compiler": f"llvmlite {_version('llvmlite')}",
        "meshard": " ".join(filter(None, (_version("meshard"), _commit()))),
    }


class Neighbours:
    """Watches how much of the machine other processes take, from its making on."""

    def __init__(self) -> None:
        """Start to watch."""
        self._start = _clocks()

    def share(self) -> float:
        """The part of all cores' time that went to others; 0 where the system does not tell."""
        busy, ours, total = (b - a for a, b in zip(self._start, _clocks(), strict=True))
        return max(0.0, busy - ours) / total if total else 0.0


def _clocks() -> tuple[float, float, float]:
    """Seconds: all cores busy, this process and all below it busy, all cores busy or idle."""
    fields = _line("/proc/stat").partition("\n")[0].split()[1:9]
    if len(fields) < 8:
        return 0.0, 0.0, 0.0
    ticks = [int(field) / os.sysconf("SC_CLK_TCK") for field in fields]
    return sum(ticks) - ticks[3] - ticks[4], _own_seconds(), sum(ticks)


def _own_seconds() -> float:
    """Seconds of this process and of all that it started, directly or not, while they run."""
    spent, parents = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        fields = _line(str(path)).rpartition(")")[2].split()
        if len(fields) > 14:
            process = int(path.parent.name)
            parents[process] = int(fields[1])
            spent[process] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    mine, more = set[int](), {os.getpid()}
    while more:
        mine |= more
        more = {process for process, parent in parents.items() if parent in mine} - mine
    return sum(spent.get(process, 0.0) for process in mine)


def _bending_variables() -> str:
    """Variables that change what the libraries below do, as they are set."""
    found = sorted(name for name in os.environ if name.startswith(PREFIXES))
    return " ".join(f"{name}={os.environ[name]}" for name in found)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return told.stdout.strip()


def _line(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return "unknown"


def _processor() -> str:
    for line in _line("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory() -> str:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):
        return "unknown"
    return f"{size / 2**30:.0f} GiB"
