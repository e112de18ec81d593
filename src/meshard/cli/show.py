"""The output of the demo: headings, progress, the table of bytes and the matrix of sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn
from rich.style import Style
from rich.table import Table
from rich.text import Text

WIDTH = 100
MOST = 16  # sentences in a matrix of this width
# One background per tenth of similarity, grey to yellow, from the 256 colours of all terminals.
HEAT = (234, 235, 237, 58, 94, 136, 178, 214, 220, 226)


@dataclass(frozen=True)
class Move:
    """The costs of the reshard of one group of tensors.

    Attributes:
        group: The group's name.
        count: The number of tensors.
        target: Their new spec, as text.
        nbytes: Their size.
        moved: Bytes that went from one device to another, by the plan.
        bound: Bytes that any reshard between these layouts must move.
        seconds: Time of the move, without its planning.
    """

    group: str
    count: int
    target: str
    nbytes: int
    moved: int
    bound: int
    seconds: float


def console(*, quiet: bool = False) -> Console:
    """Return a console at most 100 columns wide, and 100 wide without a terminal.

    Args:
        quiet: Whether it prints nothing.
    """
    plain = Console(highlight=False)
    width = min(plain.width, WIDTH) if plain.is_terminal else WIDTH
    return Console(highlight=False, width=width, quiet=quiet)


def size(nbytes: float) -> str:
    """Return a number of bytes in readable units.

    >>> size(90_261_504)
    '90.3 MB'
    """
    for unit in ("B", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} GB"


def title(out: Console, model: str, detail: str) -> None:
    """Print the name of the demo in a frame."""
    text = Text.assemble(("meshard demo  ", "bold"), (model, "bold cyan"), "\n", (detail, "dim"))
    out.print(Panel(text, box=box.ROUNDED, border_style="cyan", padding=(0, 2)))


def heading(out: Console, number: int, text: str, detail: str) -> None:
    """Print the heading of a step."""
    out.print()
    out.print(f"[bold cyan]{number}[/]  [bold]{escape(text)}[/]")
    out.print(f"   [dim]{escape(detail)}[/]")
    out.print()


def progress(out: Console) -> Progress:
    """Return a progress bar that counts bytes and stays on the screen."""
    return Progress(
        TextColumn("   {task.description}"),
        BarColumn(bar_width=40),
        DownloadColumn(),
        TimeElapsedColumn(),
        console=out,
    )


def bytes_table(moves: Sequence[Move]) -> Table:
    """Return a table with one row per group and their sum: bytes against the bound, and speed."""
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        header_style="dim",
        show_footer=True,
        footer_style="bold",
    )
    total = Move(
        "all",
        sum(move.count for move in moves),
        "",
        sum(move.nbytes for move in moves),
        sum(move.moved for move in moves),
        sum(move.bound for move in moves),
        sum(move.seconds for move in moves),
    )
    heads = ("tensors", "", "to", "size", "moved", "lower bound", "ratio", "time", "GB/s")
    for head, foot in zip(heads, _cells(total), strict=True):
        table.add_column(
            head, foot, justify="left" if head in ("tensors", "to") else "right", no_wrap=True
        )
    for move in moves:
        table.add_row(*_cells(move))
    return table


def _cells(move: Move) -> tuple[str, ...]:
    return (
        move.group,
        str(move.count),
        move.target,
        size(move.nbytes),
        size(move.moved),
        size(move.bound),
        f"{move.moved / move.bound:.2f}" if move.bound else "-",
        f"{move.seconds * 1e3:.1f} ms" if move.seconds < 1 else f"{move.seconds:.2f} s",
        f"{move.moved / move.seconds / 1e9:.1f}" if move.moved and move.seconds else "-",
    )


def matrix(sentences: Sequence[str], likeness: npt.NDArray[Any]) -> Table:
    """Return the matrix of cosine similarities in percent, each row's largest marked with `*`.

    Args:
        sentences: The sentences, at most `MOST`.
        likeness: Their similarities, shape (sentences, sentences).
    """
    table = Table(box=None, padding=0, header_style="dim", pad_edge=False)
    table.add_column("", width=WIDTH - 4 * MOST, no_wrap=True, overflow="ellipsis")
    for number in range(1, len(sentences) + 1):
        table.add_column(f"{number} ", width=4, justify="right")
    nearest = np.argmax(likeness - 2 * np.eye(len(sentences)), axis=1)
    for row, sentence in enumerate(sentences):
        cells = [
            Text("  . ", "dim")
            if row == column
            else _cell(float(likeness[row, column]), column == nearest[row])
            for column in range(len(sentences))
        ]
        table.add_row(Text.assemble((f"{row + 1:2d} ", "dim"), sentence), *cells)
    return table


def neighbours(sentences: Sequence[str], likeness: npt.NDArray[Any]) -> Table:
    """Return a table of each sentence and the one nearest to it, for many sentences.

    Args:
        sentences: The sentences.
        likeness: Their similarities, shape (sentences, sentences).
    """
    table = Table(box=box.SIMPLE_HEAD, header_style="dim")
    table.add_column("sentence", no_wrap=True, overflow="ellipsis", max_width=42)
    table.add_column("nearest", no_wrap=True, overflow="ellipsis", max_width=42)
    table.add_column("%", justify="right")
    nearest = np.argmax(likeness - 2 * np.eye(len(sentences)), axis=1)
    for row, column in enumerate(nearest):
        percent = f"{likeness[row, column] * 100:.0f}"
        table.add_row(Text(sentences[row]), Text(sentences[column]), percent)
    return table


def _cell(value: float, is_nearest: bool) -> Text:
    tenth = min(max(int(value * 10), 0), len(HEAT) - 1)
    style = Style(
        color="rgb(0,0,0)" if tenth >= 5 else "rgb(220,220,220)",
        bgcolor=f"color({HEAT[tenth]})",
        bold=is_nearest,
    )
    return Text(f"{round(value * 100):3d}{'*' if is_nearest else ' '}", style)
