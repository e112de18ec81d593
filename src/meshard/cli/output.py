"""What commands print: tables in colour on a terminal, plain text in full width elsewhere, JSON.

In: tables, texts, values. Out: lines on standard output, or a file that a user named.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, TypeVar

import click

from meshard.cli.errors import CommandError
from meshard.plan.file.files import write_text
from meshard.plan.show.report import Table

F = TypeVar("F", bound=Callable[..., Any])
WIDTH = 100  # of drawings and tables of plans that nobody looks at in a terminal
as_json = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object instead of text."
)


def is_terminal(stream: TextIO | None = None) -> bool:
    """Return whether somebody looks at a stream, by default standard output, in a terminal.

    mpiexec may give its processes a terminal where the user has none; `meshard run` tells them.
    """
    stream = stream or sys.stdout
    return stream is not None and stream.isatty() and os.environ.get("TTY_COMPATIBLE") != "0"


def print_text(text: str, *, title: str = "") -> None:
    """Print a text as it is, below a title that is bold on a terminal."""
    if title and is_terminal():
        title = click.style(title, bold=True)
    _write("\n".join([title] * bool(title) + [text]))


def print_table(table: Table, styles: Mapping[str, str] | None = None) -> None:
    """Print a table.

    Args:
        table: the table.
        styles: for the content of cells their colours on a terminal, as rich names them.
    """
    if not is_terminal():
        _write(table.text(None))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table as Columns
    from rich.text import Text

    columns = Columns(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_header=bool(table.head),
        header_style="dim",
    )
    for number, side in enumerate(table.align):
        name = table.head[number] if table.head else ""
        if side == ">":
            columns.add_column(Text(name), justify="right", no_wrap=True)
        else:
            columns.add_column(Text(name), overflow="fold")
    for row in table.rows:
        columns.add_row(*[Text(cell, (styles or {}).get(cell, "")) for cell in row])
    console = Console(highlight=False)
    console.print(columns)
    for note in table.notes:
        console.print(Text(note, "dim"))


@contextmanager
def progress(total: int, what: str) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal, on process 0; what is yielded moves it on by some bytes."""
    import meshard

    if not is_terminal(sys.stderr) or meshard.process_index() != 0:
        yield lambda nbytes: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (what, BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda nbytes: bar.advance(task, nbytes)


def print_json(value: Mapping[str, object]) -> None:
    """Print an object as JSON: a line for each key, and for each object of a list."""
    _write("{\n" + ",\n".join(f"  {json.dumps(k)}: {_lines(v)}" for k, v in value.items()) + "\n}")


def _lines(value: object) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n    " + ",\n    ".join(json.dumps(x, allow_nan=False) for x in value) + "\n  ]"
    return json.dumps(value, allow_nan=False)


def save(path: Path, text: str) -> None:
    """Write a file that the user named, and say so on standard error.

    Raises:
        CommandError: if it cannot be written.
    """
    try:
        write_text(path, text, "save")
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}") from error
    click.echo(f"wrote {path}", err=True)


def warn(lines: Iterable[str]) -> None:
    """Print remarks on standard error."""
    for line in lines:
        click.echo(line, err=True)


def _write(text: str) -> None:
    """Print a text; what the terminal's encoding lacks becomes a question mark."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "replace").decode(encoding))
