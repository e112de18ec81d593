"""An mpiexec, and the options by which it starts jobs that outlive a death, or run on given hosts.

In: its path, and what it says of its version. Out: options.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from meshard.plan.file.files import write_text

_AGENTS = ("PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent", "HYDRA_LAUNCHER_EXEC")
"""The variables in which a user says which program runs commands on other hosts."""
_OWN_PARAMETERS = Path("~/.prte/mca-params.conf")
"""Where a user of Open MPI says it for all jobs."""
_OUTLIVING = """#!/bin/sh
{agent} "$@"
code=$?
[ -e {begun} ] && exit 0
exit $code
"""
"""An agent around another. To Open MPI's mpiexec an agent that fails is a host that is lost,
which ends the job; the agent of a host that is cut off fails in the end, but the job goes on."""


def launch_agent(settings: Mapping[str, str]) -> list[str] | None:
    """Return the command that runs commands on other hosts; None if there is none.

    Args:
        settings: The environment of the launcher.
    """
    told = next((settings[name] for name in _AGENTS if name in settings), None)
    if told is None:
        with contextlib.suppress(OSError, RuntimeError):  # no such file, or no home
            text = _OWN_PARAMETERS.expanduser().read_text(errors="replace")
            found = re.findall(r"^\s*plm_ssh_agent\s*=\s*(.*?)\s*$", text, re.MULTILINE)
            told = found[-1] if found else None
    for line in map(shlex.split, (told or "ssh : rsh").split(":")):  # the first that there is
        if line and shutil.which(line[0]) is not None:
            # As Open MPI calls it, which does not look into ours.
            return [*line, "-x"] if os.path.basename(line[0]) == "ssh" else line
    return None


@final
class Outliving:
    """A launch agent whose end does not end a job that has begun.

    Args:
        folder: Where its files are; the launcher's own.
        settings: The environment of the launcher.
        elastic: Whether the job may go on without a host; else it is not needed.

    Attributes:
        elastic: The same.
        settings: The variables that have the launcher use it.
    """

    def __init__(self, folder: str, settings: Mapping[str, str], *, elastic: bool) -> None:
        agent = launch_agent(settings) if elastic else None
        self.elastic = elastic
        self._begun = Path(folder, "begun")
        self._has_begun = False
        self.settings: dict[str, str] = {}
        if agent is None:  # then the launcher has another way, or only this host
            return
        script = Path(folder, "agent")
        text = _OUTLIVING.format(agent=shlex.join(agent), begun=shlex.quote(str(self._begun)))
        write_text(script, text, "meshard run")
        script.chmod(0o700)
        # Each host is reached from this one, where the agent is, not from another one.
        self.settings = {_AGENTS[0]: str(script), "PRTE_MCA_plm_ssh_no_tree_spawn": "1"}

    def begin(self) -> None:
        """Let the job go on from now on when an agent ends."""
        if self.elastic and not self._has_begun:
            self._has_begun = True
            self._begun.touch()


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
