"""`meshard reshard`: its options; `meshard.cli.conversion` does the work."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, final

import click
import numpy as np

from meshard.cli.arguments import Command, gathered
from meshard.cli.main import did_you_mean
from meshard.cli.output import as_json
from meshard.cli.written.notation import WrittenMesh, dtype_named, mesh_of, size_of
from meshard.cli.written.tensors import Rule, rule_of

_HELP = """\
Write the tensors of SRC to DST in another layout or format, under other names
or as another dtype. SRC is a checkpoint, safetensors files, Zarr, .npy, HDF5 or
a folder of torch's DCP.

--to takes a format, and specs for all tensors or for patterns of names; the
first pattern that matches counts. Without a format DST's suffix decides, and
meshard's own is written if it has none. --map is a file of rules that rename,
fuse, split, transpose and cast.

\b
For example:
  meshard reshard run model.safetensors
  meshard reshard model.safetensors ranks --to safetensors-ranks \\
      --to "*.weight=P('model')" --to "P()" --mesh model=4
  meshard reshard model.safetensors fused --map fuse.toml --dtype bfloat16
  meshard run -n 4 -- -m meshard reshard run run-as-zarr --to zarr

Tensors pass through slab by slab: they may be larger than the memory.
"""
FORMATS = ("meshard", "safetensors", "safetensors-ranks", "npy", "zarr", "dcp")


def _target(text: str) -> Rule | str:
    """Return a format's name, or a rule."""
    if text in FORMATS:
        return text
    if "(" not in text:
        near = did_you_mean([repr(n) for n in get_close_matches(text, FORMATS, 1)])
        raise click.BadParameter(
            f"{text!r} is neither a format ({', '.join(FORMATS)}) nor a spec such as P('data')"
            f"{near}"
        )
    return rule_of(text)


@final
@dataclass(frozen=True)
class _Options:
    source: Path
    target: Path
    to: tuple[Rule | str, ...]
    mesh: WrittenMesh | None
    uneven: bool
    select: tuple[str, ...]
    map_: Path | None
    dtype: np.dtype[Any] | None
    max_bytes: int | None
    step: int | None
    shard_bytes: int | None
    overwrite: bool
    dry_run: bool
    as_json: bool


@click.command("reshard", cls=Command, help=_HELP)
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.argument("target", metavar="DST", type=click.Path(path_type=Path))
@click.option(
    "--to",
    type=_target,
    multiple=True,
    metavar="FORMAT|[PATTERN=]SPEC",
    help="The format, and how tensors are laid out [rows over all devices].",
)
@click.option("--mesh", type=mesh_of, metavar="AXIS=SIZE,...", help="The mesh of the specs.")
@click.option("--uneven", is_flag=True, help="Let blocks differ by one where a dim is not divided.")
@click.option("--select", multiple=True, metavar="PATTERN", help="Write these names only.")
@click.option(
    "--map", "map_", type=click.Path(path_type=Path), metavar="FILE", help="A key map in TOML."
)
@click.option("--dtype", type=dtype_named, metavar="DTYPE", help="Cast floats to this dtype.")
@click.option(
    "--max-bytes",
    type=size_of,
    metavar="SIZE",
    help="The most that a process holds, 64MB.",
)
@click.option("--step", type=int, metavar="STEP", help="The step of a run [the newest].")
@click.option(
    "--shard-bytes",
    type=size_of,
    metavar="SIZE",
    help="The most in one of several safetensors files.",
)
@click.option("--overwrite", is_flag=True, help="Replace DST if it exists.")
@click.option("--dry-run", is_flag=True, help="Write nothing; say what it would take.")
@as_json
@gathered(_Options)
def command(given: _Options) -> None:
    """Convert files."""
    from meshard.cli.conversion import Wish, options, reshard

    formats = [x for x in given.to if isinstance(x, str)]
    rules = [x for x in given.to if isinstance(x, Rule)]
    if len(formats) > 1:
        raise _wrong(f"--to names two formats, {formats[0]} and {formats[1]}; give one")
    if bool(rules) != (given.mesh is not None):
        raise _wrong("specs and --mesh belong together; one of them is missing")
    wish = Wish(
        given.source,
        given.target,
        step=given.step,
        format=formats[0] if formats else None,
        rules=rules,
        mesh=given.mesh,
        uneven=given.uneven,
        select=given.select,
        map=given.map_,
        overwrite=given.overwrite,
        more=options(given.dtype, given.max_bytes, given.shard_bytes),
    )
    reshard(wish, dry_run=given.dry_run, as_json=given.as_json)


def _wrong(message: str) -> click.UsageError:
    return click.UsageError(message, click.get_current_context())
