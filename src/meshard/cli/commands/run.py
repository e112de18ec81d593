"""`meshard run`: its options; `meshard.cli.run` does the work."""

from __future__ import annotations

from dataclasses import dataclass

import click

from meshard.cli.arguments import (
    Command,
    gathered,
    hosts_and_slots,
    job_name,
    natural,
    positive,
    seconds,
)
from meshard.cli.errors import CommandError

_HELP = """\
Run a Python program in several processes: the same program in each, which
share one mesh.

The mpiexec beside this Python is used, or the first on the PATH. PROGRAM is a
script and its arguments, or -- -m, a module and its arguments. The exit code
is the program's.

\b
For example:
  meshard run -n 4 --devices-per-process 2 script.py --size 100
  meshard run -n 4 -- -m package.module --size 100
  meshard run -n 4 --spares 1 train.py      # goes on when a process dies
  meshard run -n 4 --restarts 3 train.py    # starts again when one has died
  meshard run -n 4 --joinable a train.py    # others may join it:
  meshard run -n 2 --join a train.py        # from another shell
"""


@dataclass(frozen=True)
class _Options:
    processes: int
    devices_per_process: int | None
    timeout: float | None
    elastic: bool
    spares: int
    restarts: int
    hosts: tuple[tuple[str, int], ...]
    joinable: str | None
    join: str | None
    program: tuple[str, ...]


@click.command(
    "run",
    cls=Command,
    help=_HELP,
    options_metavar="-n N [OPTIONS] [--]",
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "-n", "--processes", type=positive, required=True, metavar="N", help="How many processes."
)
@click.option(
    "--devices-per-process",
    type=positive,
    metavar="D",
    help="How many devices each process has (default: MESHARD_NUM_DEVICES, or 1).",
)
@click.option(
    "--timeout",
    type=seconds,
    metavar="S",
    help="Seconds that a process waits for the others before it fails "
    "(default: MESHARD_TIMEOUT, or 300).",
)
@click.option(
    "--elastic",
    is_flag=True,
    help="The others go on when a process dies, as the program says (meshard.elastic).",
)
@click.option(
    "--spares",
    type=natural,
    default=0,
    metavar="K",
    help="How many more processes to start, which take the place of those that die (elastic).",
)
@click.option(
    "--restarts",
    type=natural,
    default=0,
    metavar="R",
    help="How often to start the job again after it has failed.",
)
@click.option(
    "--hosts",
    type=hosts_and_slots,
    default="",
    metavar="NAME:K,...",
    help="The hosts, and how many processes each takes (default: those that mpiexec knows).",
)
@click.option(
    "--joinable",
    type=job_name,
    metavar="JOB",
    help="The name under which other processes may join the job while it runs.",
)
@click.option(
    "--join",
    type=job_name,
    metavar="JOB",
    help="Start the processes without MPI, to join the job of this name that runs.",
)
@click.argument("program", nargs=-1, type=click.Path(), metavar="PROGRAM ...")
@gathered(_Options)
def command(given: _Options) -> int:
    """Run a program in several processes."""
    from meshard.cli import run
    from meshard.cli.jobs.faults import Faults
    from meshard.cli.join import join

    faults = Faults(given.elastic, given.spares, given.restarts, given.hosts)
    if given.join is not None:
        if given.joinable is not None or faults != Faults():
            raise CommandError(
                "--join starts processes for a job that runs: whether it is elastic, its hosts and "
                "its name were said when it was started; leave --elastic, --spares, --restarts, "
                "--hosts and --joinable out"
            )
        return join(
            given.join,
            given.program,
            processes=given.processes,
            devices_per_process=given.devices_per_process,
            timeout=given.timeout,
        )
    return run.run(
        given.program,
        processes=given.processes,
        devices_per_process=given.devices_per_process,
        timeout=given.timeout,
        faults=faults,
        joinable=given.joinable,
    )
