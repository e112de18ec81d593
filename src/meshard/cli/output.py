"""What commands print: tables that fit a terminal, plain text in full width elsewhere, JSON.

In: tables, texts, values. Out: lines on standard output, or a file that a user named.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from meshard.cli.errors import CommandError
from meshard.errors import visible
from meshard.plan.file.files import write_text
from meshard.plan.show.report import Table
from meshard.plan.show.terminal import (
    columns,
    encoding_of,
    has_colors,
    is_terminal,
    printable,
    rule,
)

F = TypeVar("F", bound=Callable[..., Any])
_BETWEEN = "  "
as_json = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object instead of text."
)


def print_text(text: str, *, title: str = "") -> None:
    """Print lines of text without colours, below a title that is bold on a terminal."""
    title, text = visible(title), visible(text, lines=True)
    if title and has_colors():
        title = click.style(title, bold=True)
    _write("\n".join([title] * bool(title) + [text]))


def print_table(table: Table, styles: Mapping[str, str] | None = None) -> None:
    """Print a table as wide as the terminal, or in full width elsewhere.

    Args:
        table: the table.
        styles: for the content of cells their colours on a terminal.
    """
    rows, notes = table.lines(columns())
    lines = [_BETWEEN.join(shown for _, shown in row).rstrip() for row in rows]
    line = rule(max(map(len, lines), default=0))
    if has_colors():
        known = styles or {}
        lines = [_BETWEEN.join(_colored(s, known.get(cell)) for cell, s in row) for row in rows]
        lines[: bool(table.head)] = [click.style(x, bold=True) for x in lines[: bool(table.head)]]
        notes = [click.style(note, dim=True) for note in notes]
    if table.head and is_terminal():
        lines.insert(1, line)
    _write("\n".join([*lines, *notes]))


def _colored(text: str, color: str | None) -> str:
    """Return a padded text whose words are in a colour."""
    words = text.strip()
    return text.replace(words, click.style(words, fg=color)) if words and color else text


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
    click.echo(visible(f"wrote {path}"), err=True)


def warn(lines: Iterable[str]) -> None:
    """Print remarks on standard error."""
    for line in lines:
        click.echo(visible(line), err=True)


def _write(text: str) -> None:
    """Print a text; characters that the encoding lacks are replaced by what looks like them."""
    click.echo(printable(text, encoding_of(sys.stdout)), color=has_colors())
