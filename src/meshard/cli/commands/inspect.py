"""`meshard inspect`: what a file or folder holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from meshard.cli.arguments import Command, positive
from meshard.cli.output import as_json, print_json, print_table, print_text

if TYPE_CHECKING:
    from meshard.weights.catalogue.stored import Catalogue, Stored

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
    from meshard.cli.written.files import open_files
    from meshard.cli.written.tensors import selected

    catalogue = open_files(path, step)
    catalogue.reader.close()
    names = selected([*catalogue.tensors, *catalogue.tied], patterns)
    kept = dict.fromkeys(catalogue.tied.get(name, name) for name in names)
    rows = _rows(catalogue, [catalogue.tensors[name] for name in kept])
    if as_json:
        print_json(_facts(catalogue, rows, limit))
    else:
        _print(catalogue, rows, len(rows) if limit is None else limit)


def _rows(catalogue: Catalogue, tensors: Sequence[Stored]) -> list[_Row]:
    layouts = _layouts(catalogue)
    also: dict[str, list[str]] = {}
    for other, name in catalogue.tied.items():
        also.setdefault(name, []).append(other)
    return [
        _Row(
            x.name,
            x.shape,
            x.dtype.name,
            x.nbytes,
            tuple(dict.fromkeys(piece.file for piece in x.pieces)),
            len(x.pieces),
            layouts.get(x.name),
            tuple(also.get(x.name, ())),
        )
        for x in tensors
    ]


def _layouts(catalogue: Catalogue) -> Mapping[str, str]:
    """Return how tensors were laid out when they were saved, as far as it is known."""
    from meshard.plan.captions import sharding_summary

    manifest = catalogue.values.get("manifest")
    entries = getattr(manifest, "entries", ())
    return {entry.name: sharding_summary(entry.sharding) for entry in entries}


def _facts(catalogue: Catalogue, rows: Sequence[_Row], limit: int | None) -> dict[str, object]:
    """Return what `--json` prints."""
    return {
        "path": catalogue.path,
        "format": catalogue.format,
        "count": len(rows),
        "nbytes": sum(row.nbytes for row in rows),
        "unchecked": list(catalogue.unchecked),
        "tensors": [row._asdict() for row in rows[:limit]],
    }


def _print(catalogue: Catalogue, rows: Sequence[_Row], limit: int) -> None:
    from meshard.plan.captions import amount_text, size_text
    from meshard.plan.show.report import Table

    total = sum(row.nbytes for row in rows)
    dtypes = Counter(row.dtype for row in rows)
    told = ", ".join(f"{count:,} {name}" for name, count in dtypes.most_common())
    files = len({file for row in rows for file in row.files})
    plural = "s" * (len(rows) != 1)
    print_text(
        f"{told or 'none'}; {files:,} file{'s' * (files != 1)}\n",
        title=f"{catalogue.path} ({catalogue.format}): {len(rows):,} tensor{plural}, "
        f"{size_text(total)}",
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
    align = "<<>>" + "<" * (len(head) - 4)
    print_table(Table(head, cells, align, [note] * bool(rest)))


def _files(files: Sequence[str]) -> str:
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{files[0]}{more}" if files else ""
