"""`meshard bench`: runs the benchmarks, if this is the repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from meshard.cli.arguments import Command
from meshard.cli.errors import CommandError

_HELP = """\
Run the benchmarks of the repository: meshard beside its peers and the
machine's limits. The arguments are those of `python -m bench`; put -- before
--help to see them.

\b
For example:
  meshard bench --quick
  meshard bench -- --help

The benchmarks are part of the repository and of the source distribution, not
of the wheel.
"""


@click.command(
    "bench",
    cls=Command,
    help=_HELP,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]...")
def command(arguments: tuple[str, ...]) -> int:
    """Run the benchmarks."""
    import meshard

    root = Path(meshard.__file__).parents[2]
    if not (root / "bench" / "__main__.py").is_file():
        raise CommandError(
            f"the benchmarks are not installed ({root / 'bench'} does not exist): they are part of "
            "the repository and of the source distribution,\n"
            "    pip download --no-deps --no-binary meshard meshard\n"
            "Run `make bench` there."
        )
    line = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(line, cwd=root, check=False).returncode
