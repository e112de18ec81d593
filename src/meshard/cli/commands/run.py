"""`meshard run`: its options; `meshard.cli.run` does the work."""

from __future__ import annotations

import click

from meshard.cli.arguments import Command, positive, seconds

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
"""


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
@click.argument("program", nargs=-1, type=click.Path(), metavar="PROGRAM ...")
def command(
    processes: int, devices_per_process: int | None, timeout: float | None, program: tuple[str, ...]
) -> int:
    """Run a program in several processes."""
    from meshard.cli import run

    return run.run(
        program, processes=processes, devices_per_process=devices_per_process, timeout=timeout
    )
