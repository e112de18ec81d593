"""An mpiexec, and the options by which it starts jobs that outlive a death, or run on given hosts.

In: its path, and what it says of its version. Out: options.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final


def is_open_mpi(version: str) -> bool:
    """Whether an mpiexec belongs to Open MPI, by what it says of its version."""
    return "Open MPI" in version or "OpenRTE" in version


@final
@dataclass(frozen=True)
class Launcher:
    """An mpiexec.

    Attributes:
        path: Where it is.
        version: The output of ``mpiexec --version``.
    """

    path: Path
    version: str

    def is_fault_tolerant(self) -> bool:
        """Whether it can let processes live when others die: as the program beside it says."""
        if not is_open_mpi(self.version):
            return False
        beside = self.path.with_name("ompi_info")
        try:
            done = subprocess.run(
                [beside], capture_output=True, encoding="utf-8", timeout=60, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return "FT MPI support: yes" in done.stdout

    def options(self, *, elastic: bool, hosts: Sequence[tuple[str, int]]) -> list[str]:
        """Return its options for a job.

        Args:
            elastic: Whether processes live when others die.
            hosts: The hosts, and how many processes each takes; empty for those that it knows.
        """
        found = ["--with-ft", "ulfm"] if elastic else []
        if hosts:
            name = "--host" if is_open_mpi(self.version) else "-hosts"
            found += [name, ",".join([f"{host}:{count}" for host, count in hosts])]
        return found
