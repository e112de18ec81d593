"""`meshard checkpoint`: lists the steps of a run, and removes what killed saves have left."""

from __future__ import annotations

from pathlib import Path

import click

from meshard.cli.arguments import Command
from meshard.cli.errors import DAMAGED, DONE
from meshard.cli.main import Group
from meshard.cli.output import as_json, print_json, print_table, print_text
from meshard.errors import visible

_HELP = "List the checkpoints of a run, and remove what killed saves have left."
_LIST = """\
List the complete steps in a folder of checkpoints, and what saves that were
killed have left there. The exit code is 3 if a step cannot be read.

\b
For example:
  meshard checkpoint list run
"""
_CLEAN = """\
Remove what saves that were killed have left behind. Nothing that a complete
checkpoint needs is removed, nor what a save writes that still goes on.

\b
For example:
  meshard checkpoint clean run --dry-run
"""


@click.group("checkpoint", cls=Group, help=_HELP, no_args_is_help=False)
def command() -> None:
    """Hold the commands about checkpoints."""


@command.command("list", cls=Command, help=_LIST, short_help="list the steps of a run")
@click.argument("path", type=click.Path(path_type=Path))
@as_json
def list_(path: Path, as_json: bool) -> int:
    """List the steps of a run."""
    from meshard.checkpoint import clean, steps
    from meshard.plan.captions import amount_text
    from meshard.plan.show.report import Table

    found = [_step(path, step) for step in steps(path)]
    damaged = [x for x in found if x["error"] is not None]
    left = [] if damaged else [str(x) for x in clean(path, dry_run=True)]
    if as_json:
        print_json({"path": str(path), "steps": found, "left": left})
        return DAMAGED if damaged else DONE
    rows = [
        (
            f"{x['step']}",
            f"{x['tensors']:,}" if x["error"] is None else "?",
            amount_text(int(str(x["nbytes"]))) if x["error"] is None else "?",
            f"{x['error'] or ''}",
        )
        for x in found
    ]
    notes = [f"left by a killed save: {name}" for name in left]
    notes += ["`meshard checkpoint clean` removes what is left"] * bool(left)
    if rows:
        print_table(Table(("step", "tensors", "bytes", ""), rows, ">>>~", notes))
    else:
        print_text("\n".join(map(visible, [f"{path} has no complete step", *notes])))
    return DAMAGED if damaged else DONE


def _step(path: Path, step: int) -> dict[str, object]:
    """Return what is known about a step."""
    from meshard.checkpoint import metadata
    from meshard.errors import CheckpointError

    try:
        found = metadata(path, step=step)
    except CheckpointError as error:
        return {"step": step, "tensors": None, "nbytes": None, "error": str(error)}
    return {"step": step, "tensors": len(found.tensors), "nbytes": found.nbytes, "error": None}


@command.command("clean", cls=Command, help=_CLEAN, short_help="remove what killed saves have left")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--force", is_flag=True, help="Remove what jobs on other hosts have left; they cannot be asked."
)
@click.option("--dry-run", is_flag=True, help="Remove nothing; print what would be.")
@as_json
def clean_(path: Path, force: bool, dry_run: bool, as_json: bool) -> None:
    """Remove what was left behind."""
    from meshard.checkpoint import clean

    left = [str(x) for x in clean(path, force=force, dry_run=dry_run)]
    if as_json:
        print_json({"path": str(path), "removed": not dry_run, "left": left})
        return
    word = "would remove" if dry_run else "removed"
    print_text("\n".join(visible(f"{word} {name}") for name in left) or "nothing was left behind")
