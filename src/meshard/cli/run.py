"""`meshard run`: a program in several processes, by the mpiexec that belongs to mpi4py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from meshard.cli.errors import CommandError
from meshard.cli.jobs.faults import Attempt, Faults, attempts
from meshard.cli.jobs.launcher import Launcher, is_open_mpi
from meshard.cli.jobs.supervise import Outcome, launcher_name, supervise
from meshard.runtime.processes.identity import KEEPER

_INSTALL = 'install them with\n    pip install "meshard[mpi]"'
_CPUS = Path("/sys/devices/system/cpu")
_KEEPALIVE = "PRTE_MCA_oob_tcp_keepalive_"
"""How the variables begin that say when Open MPI's mpiexec and its daemons on other hosts find that
the link between them is cut, and end the job; by default that takes 8 minutes."""


class RunError(CommandError, RuntimeError):
    """The program cannot be started in several processes; the message says what is missing."""


def run(
    program: Sequence[str],
    *,
    processes: int,
    devices_per_process: int | None = None,
    timeout: float | None = None,
    faults: Faults | None = None,
    joinable: str | None = None,
) -> int:
    """Run a Python program in several processes, and return the exit code of its mpiexec.

    Args:
        program: The arguments of ``python``: a script and its arguments, or ``-m``, a module and
            its arguments.
        processes: How many processes to start.
        devices_per_process: How many devices each has; None leaves ``MESHARD_NUM_DEVICES`` as it
            is, or 1 if it is not set.
        timeout: Seconds that a process waits for the others before it fails; None leaves
            ``MESHARD_TIMEOUT`` as it is.
        faults: What to do when processes or hosts fail; None ends the job.
        joinable: The name under which other processes may join the job; None for none.

    Raises:
        RunError: There is no program, its file is missing, mpi4py or mpiexec is missing, or the
            MPI cannot do what is asked.
    """
    check_program(program)
    if find_spec("mpi4py") is None:
        raise RunError(
            f"mpi4py, which joins the processes, is not installed for {sys.executable}; it and an "
            f"MPI library are needed: {_INSTALL}"
        )
    faults = faults or Faults()
    mpiexec = find_mpiexec()
    launcher = Launcher(mpiexec, _version(mpiexec))
    elastic = _is_elastic(launcher, processes, faults)
    settings = environment(os.environ, devices_per_process=devices_per_process, timeout=timeout)
    # Open MPI gives processes its own terminal, so the abilities of the user's are passed on.
    if not sys.stdout.isatty():
        settings.setdefault("TTY_COMPATIBLE", "0")
    else:
        settings.setdefault("COLUMNS", str(shutil.get_terminal_size().columns))
    if joinable is not None:
        settings["MESHARD_JOB"] = joinable
    settings["MESHARD_LAUNCHER"] = launcher_name()
    # An elastic job goes on without a host that is cut off, of which mpiexec must not learn.
    for name, value in ("time", "0" if elastic else "6"), ("intvl", "2"), ("probes", "3"):
        settings.setdefault(_KEEPALIVE + name, value)

    def start(attempt: Attempt) -> Outcome:
        env = settings | attempt.variables
        count = attempt.processes + attempt.spares
        line = command(
            launcher.path,
            launcher.version,
            program,
            processes=count,
            settings={**env, KEEPER: ""},
            options=launcher.options(elastic=elastic, hosts=attempt.hosts),
        )
        sys.stdout.flush()
        sys.stderr.flush()
        strict = is_open_mpi(launcher.version)
        return supervise(line, env, processes=count, elastic=elastic, strict=strict)

    return attempts(processes, faults if elastic else replace(faults, spares=0), start)


def check_program(program: Sequence[str]) -> None:
    """Refuse what is not a program.

    Raises:
        RunError: There is none, or its file is missing.
    """
    if not program:
        raise RunError(
            "there is no program to run; name a script, `meshard run -n 4 script.py`, or a module, "
            "`meshard run -n 4 -- -m package.module`"
        )
    if not program[0].startswith("-") and not Path(program[0]).exists():
        raise RunError(f"{program[0]}: there is no such file")


def _is_elastic(launcher: Launcher, processes: int, faults: Faults) -> bool:
    """Whether processes go on when others die.

    Raises:
        RunError: That is asked for, but the MPI ends a job when a process dies, and the job is not
            to be started again either; or the hosts do not take that many processes.
    """
    if faults.slots is not None and processes + faults.spares > faults.slots:
        raise RunError(
            f"the hosts take {faults.slots} processes, not {processes + faults.spares}; write how "
            "many each takes, as in --hosts a:4,b:4"
        )
    if not faults.elastic and not faults.spares:
        return False
    if launcher.is_fault_tolerant():
        return True
    if faults.restarts:
        sys.stderr.write(
            f"meshard run: {launcher.path} ends a job when a process dies; after a death the job "
            "is started again.\n"
        )
        return False
    raise RunError(
        f"{launcher.path} ends a job when a process dies. Processes go on without it where Open "
        "MPI was built with fault tolerance (`ompi_info` says 'FT MPI support: yes'); with "
        "--restarts the job is started again instead"
    )


def find_mpiexec() -> Path:
    """Return the mpiexec beside this Python, where wheels put theirs, or the first on the PATH.

    Raises:
        RunError: mpiexec was not found.
    """
    folders = (str(Path(sys.executable).parent), sysconfig.get_path("scripts"))
    for folder in folders:
        found = shutil.which("mpiexec", path=folder)
        if found is not None:
            return Path(found)
    found = shutil.which("mpiexec")
    if found is None:
        raise RunError(
            f"mpiexec, which starts the processes, was not found beside {sys.executable} or on the "
            f"PATH; mpi4py and an MPI library bring it: {_INSTALL}"
        )
    return Path(found)


def environment(
    inherited: Mapping[str, str], *, devices_per_process: int | None, timeout: float | None
) -> dict[str, str]:
    """Return the environment of the processes: the inherited one and the given options."""
    settings = dict(inherited)
    if devices_per_process is not None:
        settings["MESHARD_NUM_DEVICES"] = str(devices_per_process)
    if timeout is not None:
        settings["MESHARD_TIMEOUT"] = f"{timeout:g}"
    if os.geteuid() == 0:  # Open MPI refuses root unless both variables allow it
        settings.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
        settings.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    return settings


def command(
    mpiexec: Path,
    version: str,
    program: Sequence[str],
    *,
    processes: int,
    settings: Mapping[str, str],
    options: Sequence[str] = (),
) -> list[str]:
    """Return the command line of mpiexec for a Python program.

    Args:
        mpiexec: The launcher.
        version: The output of ``mpiexec --version``, which distinguishes Open MPI from MPICH.
        program: The arguments of ``python``.
        processes: How many processes to start.
        settings: The environment, whose ``MESHARD_`` variables reach other hosts too.
        options: Further options of mpiexec.
    """
    line = [str(mpiexec), *options, "-n", str(processes)]
    if is_open_mpi(version):
        # The workers are threads: bound to one core, they would share it.
        line += ["--bind-to", "none"]
        if processes > physical_cores():  # Open MPI's own count of what fits
            line.append("--oversubscribe")
        for name in sorted(n for n in settings if n.startswith("MESHARD_")):
            line += ["-x", name]  # MPICH's mpiexec passes the whole environment on
    return [*line, sys.executable, *program]


def physical_cores() -> int:
    """Return the number of cores that this process may use; threads of one core count once."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    allowed = os.sched_getaffinity(0)
    cores = set()
    for cpu in allowed:
        siblings = _CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        try:
            cores.add(siblings.read_text(encoding="ascii").strip())
        except OSError:
            return len(allowed)
    return len(cores)


def _version(mpiexec: Path) -> str:
    try:
        done = subprocess.run(
            [mpiexec, "--version"], capture_output=True, encoding="utf-8", timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunError(f"{mpiexec} --version does not answer ({error})") from error
    return done.stdout
