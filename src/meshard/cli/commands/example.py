"""`meshard example`: lists the examples, prints, copies or runs one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from difflib import get_close_matches
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from meshard.cli.arguments import Command, positive
from meshard.cli.errors import CommandError
from meshard.cli.output import as_json, print_json, print_table, print_text
from meshard.plan.show.terminal import encoding_of, has_colors, printable

_HELP = """\
List the examples that are installed; print one, run it, or copy it.

\b
For example:
  meshard example
  meshard example heat
  meshard example heat --run -n 4
  meshard example --copy examples
"""


def _names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from meshard.cli.examples import all_examples

    return [CompletionItem(name) for name in all_examples() if name.startswith(incomplete)]


@click.command("example", cls=Command, help=_HELP)
@click.argument("name", required=False, shell_complete=_names)
@click.option("--run", is_flag=True, help="Run it.")
@click.option(
    "-n",
    "--processes",
    type=positive,
    metavar="N",
    help="With --run: in how many processes, joined by MPI; 8 devices must divide among them.",
)
@click.option(
    "--copy",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Copy it, or all of them, into a folder.",
)
@as_json
def command(
    name: str | None, run: bool, processes: int | None, copy: Path | None, as_json: bool
) -> int | None:
    """List, print, copy or run examples."""
    from meshard.cli.examples import about, all_examples

    paths = all_examples()
    context = click.get_current_context()
    if run and (name is None or copy is not None or as_json):
        raise click.UsageError("--run takes the NAME of one example, and nothing else", context)
    if processes is not None and not run:
        raise click.UsageError("-n is for --run", context)
    chosen = paths if name is None else {name: _found(name, paths)}
    if run and name is not None:
        return _run(chosen[name], processes)
    if copy is not None:
        _copy(chosen, copy)
    elif as_json:
        listed = [{"name": n, "about": about(p), "path": str(p)} for n, p in chosen.items()]
        print_json({"examples": listed})
    elif name is None:
        from meshard.plan.show.report import Table

        rows = [(n, about(path)) for n, path in chosen.items()]
        print_table(Table(("example", "what it computes"), rows, "<~"))
    else:
        _print(chosen[name])
    return None


def _found(name: str, paths: dict[str, Path]) -> Path:
    """Return the path of an example."""
    if name not in paths:
        near = get_close_matches(name, paths, 1)
        meant = f"did you mean {near[0]!r}?" if near else f"they are {', '.join(paths)}"
        raise CommandError(f"there is no example named {name!r}; {meant}")
    return paths[name]


def _run(path: Path, processes: int | None) -> int:
    """Run an example, and return its exit code."""
    if processes is not None:
        from meshard.cli import run

        return run.run([str(path)], processes=processes)
    sys.stdout.flush()
    return subprocess.run([sys.executable, str(path)], check=False).returncode


def _copy(chosen: dict[str, Path], folder: Path) -> None:
    """Copy examples; a file that exists is left alone, and nothing is copied."""
    for path in chosen.values():
        if (folder / path.name).exists():
            raise CommandError(
                f"{folder / path.name} exists already; remove it, or name another folder"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in chosen.values():
            shutil.copyfile(path, folder / path.name)
    except OSError as error:
        raise CommandError(f"{folder} cannot be written: {error.strerror or error}") from error
    click.echo(f"wrote {', '.join(path.name for path in chosen.values())} to {folder}", err=True)


def _print(path: Path) -> None:
    """Print a source, in colour on a terminal."""
    text = path.read_text(encoding="utf-8").rstrip("\n")
    if not has_colors():
        print_text(text)
        return
    from rich.console import Console
    from rich.syntax import Syntax

    text = printable(text, encoding_of(sys.stdout))
    # These colours are readable on dark and on light terminals, which wrap long lines themselves.
    code = Syntax("", "python", theme="ansi_light", background_color="default").highlight(text)
    code.rstrip()
    Console(force_terminal=True).print(code, soft_wrap=True)
