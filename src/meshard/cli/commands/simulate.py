"""`meshard simulate`: its options; `meshard.cli.scripts` does the work."""

from __future__ import annotations

from pathlib import Path

import click

from meshard.cli.arguments import Command, positive, seconds

_HELP = """\
Run a script in several simulated processes: threads of one Python, each with
a world of its own. No MPI is needed, and a program that works here works in
real processes (`meshard run`).

Each line that is printed begins with the number of its process. If one fails,
the others are ended, its error is printed, and the exit code is 1, or the one
that it ended with.

\b
For example:
  meshard simulate -n 4 examples/heat.py
  meshard simulate -n 4 --devices-per-process 2 script.py --size 100

What the processes share are Python's modules: a script should keep its state
in its own variables.
"""


@click.command(
    "simulate",
    cls=Command,
    help=_HELP,
    options_metavar="-n N [OPTIONS]",
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "-n", "--processes", type=positive, required=True, metavar="N", help="How many processes."
)
@click.option(
    "--devices-per-process",
    type=positive,
    default="1",
    metavar="D",
    help="How many devices each process has [1].",
)
@click.option(
    "--timeout",
    type=seconds,
    default="60",
    metavar="S",
    help="Seconds that a process waits for another before it fails [60].",
)
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, metavar="[ARGUMENTS]...")
def command(
    processes: int,
    devices_per_process: int,
    timeout: float,
    script: Path,
    arguments: tuple[str, ...],
) -> int:
    """Run a script in simulated processes."""
    from meshard.cli import scripts

    return scripts.run_script(
        script,
        arguments,
        processes=processes,
        devices_per_process=devices_per_process,
        timeout=timeout,
    )
