"""`meshard verify`: checks files against their checksums."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from meshard.cli.arguments import Command
from meshard.cli.errors import DAMAGED, DONE, FAILED
from meshard.cli.output import as_json, print_json, print_text, warn
from meshard.errors import CorruptFileError, MissingFileError, visible
from meshard.plan.show.progress import adding, telling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshard.runtime.world import RuntimeWorld
    from meshard.weights.catalogue.stored import Catalogue

_HELP = """\
Read a checkpoint, or files that meshard has written, and compare all of it with
its checksums. Damage is named: which file, tensor and box.

The exit code is 0 if all is as it was written, 3 if something is damaged or
missing, and 1 if files have no checksums, so that a change would not be
noticed. Several processes share the work:

\b
  meshard verify run --step 1200
  meshard run -n 4 -- -m meshard verify run
"""


@click.command("verify", cls=Command, help=_HELP)
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--step", type=int, metavar="STEP", help="The step of a run [the newest].")
@as_json
def command(path: Path, step: int | None, as_json: bool) -> int:
    """Check files."""
    from meshard.runtime.agree import meet
    from meshard.runtime.world import here
    from meshard.weights.checkpoint.opening import is_checkpoint, opened

    world = here()
    if world.process_count > 1:
        meet(world, world.processes, f"`meshard verify` of {path}")
    try:
        catalogue = opened(path, step, "--step", checked=True)
    except (CorruptFileError, MissingFileError) as error:
        there = path.exists() and (step is None or is_checkpoint(path, step, "--step"))
        if isinstance(error, MissingFileError) and not there:
            raise
        checked, damage, unchecked = 0, [str(error)], list[str]()
    else:
        try:
            checked, damage = _checked(catalogue, world)
        finally:
            catalogue.reader.close()
        unchecked = _unchecked(catalogue)
    code = DAMAGED if damage else FAILED if unchecked else DONE
    if world.process_index == 0:
        if as_json:
            facts = {"path": str(path), "ok": code == DONE, "bytes": checked}
            print_json(facts | {"damage": damage, "unchecked": unchecked})
        else:
            _tell(path, checked, damage, unchecked)
    return code


def _unchecked(catalogue: Catalogue) -> list[str]:
    """Return the files in which a change would not be noticed."""
    pieces = [piece for tensor in catalogue.tensors.values() for piece in tensor.pieces]
    found = list(catalogue.unchecked)
    if not found and catalogue.damage is None:
        found = [*dict.fromkeys(p.file for p in pieces if p.checksum is None)]
    return [str(Path(catalogue.folder, file)) for file in found]


def _checked(catalogue: Catalogue, world: RuntimeWorld) -> tuple[int, list[str]]:
    """Return how many bytes were compared, and what is damaged, on all processes the same."""
    from meshard.weights.catalogue.verify import checked_bytes, verify

    index, count = world.process_index, world.process_count
    total = checked_bytes(catalogue)
    with telling(None, "verifying", world=world) as tell:
        told = adding(tell, total // count)
        found = [str(x) for x in verify(catalogue, index, count, told) if x.tensor is not None]
    if count > 1:
        parts = world.transport.all_gather(found, range(count))
        found = sorted({text for part in parts if isinstance(part, list) for text in part})
    return total, found


def _tell(path: Path, checked: int, damage: Sequence[str], unchecked: Sequence[str]) -> None:
    from meshard.plan.captions import bytes_text

    for line in damage:
        print_text(line)
    if damage:
        warn([f"meshard verify: {path}: {len(damage):,} found damaged or missing"])
    elif unchecked:
        count = len(unchecked)
        names = unchecked[0] if count == 1 else f"{count:,} files, {unchecked[0]} among them,"
        have = "has" if count == 1 else "have"
        warn([f"meshard verify: {names} {have} no checksums; a change would not be noticed"])
    else:
        print_text(f"{visible(str(path))}: {bytes_text(checked)}, all as they were written")
