"""`meshard inspect`: what a file or folder holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from meshard.cli.arguments import Command, positive
from meshard.cli.output import as_json, print_json, print_table, print_text
from meshard.errors import visible
from meshard.runtime.types import dtype_name

if TYPE_CHECKING:
    from meshard.algebra.abstract import Sharding
    from meshard.weights.catalogue.stored import Catalogue
    from meshard.weights.checkpoint.opening import Metadata

_HELP = """\
List the tensors of a checkpoint, of safetensors files or of another file: their
names, shapes, dtypes, bytes and files, and how they were laid out when they
were saved. No tensor is read.

PATTERNs such as "*.weight" select names. Of a folder of steps the newest is
listed, or --step.

\b
For example:
  meshard inspect model.safetensors
  meshard inspect run --step 1200 "*.q_proj.*"
"""


class _Row(NamedTuple):
    """One tensor, as it is told."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    files: tuple[str, ...]
    pieces: int
    layout: str | None
    also: tuple[str, ...]


@click.command("inspect", cls=Command, help=_HELP)
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@click.option("--step", type=int, metavar="STEP", help="The step of a run [the newest].")
@click.option("--limit", type=positive, metavar="N", help="The most rows [all].")
@as_json
def command(
    path: Path, patterns: tuple[str, ...], step: int | None, limit: int | None, as_json: bool
) -> None:
    """List tensors."""
    from meshard.cli.written.tensors import selected
    from meshard.weights.checkpoint.opening import metadata_of, opened

    catalogue = opened(path, step, "--step")
    catalogue.reader.close()
    names = selected([*catalogue.tensors, *catalogue.tied], patterns)
    kept = dict.fromkeys(catalogue.tied.get(name, name) for name in names)
    found = metadata_of(catalogue)
    rows = _rows(catalogue, found, [*kept])
    if as_json:
        print_json(_facts(catalogue, found, rows, limit))
        return
    _print(found, rows, len(rows) if limit is None else limit)
    if found.values and not patterns:
        told = ", ".join(f"{visible(name)} = {value!r}" for name, value in found.values.items())
        print_text(f"\n{told}")


def _rows(catalogue: Catalogue, found: Metadata, names: Sequence[str]) -> list[_Row]:
    also: dict[str, list[str]] = {}
    for other, name in found.tied.items():
        also.setdefault(name, []).append(other)
    rows = []
    for name in names:
        struct, pieces = found.tensors[name], catalogue.tensors[name].pieces
        layout = None if struct.sharding is None else _layout(struct.sharding)
        files = tuple(dict.fromkeys(piece.file for piece in pieces))
        dtype, others = dtype_name(struct.dtype), tuple(also.get(name, ()))
        row = _Row(name, struct.shape, dtype, struct.nbytes, files, len(pieces), layout, others)
        rows.append(row)
    return rows


def _layout(sharding: Sharding) -> str:
    """Return how a tensor was laid out."""
    from meshard.plan.captions import device_label, platform_of, sharding_summary

    if sharding.num_devices > 1:
        return sharding_summary(sharding)
    ids = [device.id for device in sharding.device_set]
    return f"whole on {device_label(ids, platform_of(sharding))}"


def _facts(
    catalogue: Catalogue, found: Metadata, rows: Sequence[_Row], limit: int | None
) -> dict[str, object]:
    """Return what `--json` prints."""
    return {
        "path": found.path,
        "format": found.format,
        "count": len(rows),
        "nbytes": sum(row.nbytes for row in rows),
        "unchecked": list(catalogue.unchecked),
        "values": dict(found.values),
        "tensors": [row._asdict() for row in rows[:limit]],
    }


def _print(found: Metadata, rows: Sequence[_Row], limit: int) -> None:
    from meshard.plan.captions import amount_text, size_text
    from meshard.plan.show.report import Table

    total = sum(row.nbytes for row in rows)
    dtypes = Counter(row.dtype for row in rows)
    told = ", ".join(f"{count:,} {name}" for name, count in dtypes.most_common())
    files = len({file for row in rows for file in row.files})
    plural = "s" * (len(rows) != 1)
    print_text(
        f"{told or 'none'}; {files:,} file{'s' * (files != 1)}\n",
        title=f"{found.path} ({found.format}): {len(rows):,} tensor{plural}, {size_text(total)}",
    )
    laid = any(row.layout for row in rows)
    one = files == 1
    head = ("tensor", "type", "bytes", "pieces", *["file"] * (not one), *["layout"] * laid)
    cells = [
        (
            " = ".join([row.name, *row.also]),
            f"{row.dtype}[{','.join(map(str, row.shape))}]",
            amount_text(row.nbytes),
            f"{row.pieces:,}",
            *[_files(row.files)] * (not one),
            *[row.layout or ""] * laid,
        )
        for row in rows[:limit]
    ]
    rest = rows[limit:]
    note = f"and {len(rest):,} more, {amount_text(sum(r.nbytes for r in rest))} bytes"
    align = "~<>>" + "<" * (not one) + "~" * laid
    spare = ("pieces", "file", "layout")
    print_table(Table(head, cells, align, [note] * bool(rest), spare=spare))


def _files(files: Sequence[str]) -> str:
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{files[0]}{more}" if files else ""
