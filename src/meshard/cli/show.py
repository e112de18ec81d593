"""The output of the demo: headings, the table of bytes and the matrix of sentences."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.style import Style
from rich.table import Table as Grid
from rich.text import Text

from meshard.plan.show.report import Table
from meshard.plan.show.terminal import has_colors, line_width, printable, rule

WIDTH = 100
INDENT = 3
MOST = 16  # sentences in a matrix of this width
LEAST = 24  # columns for the sentences beside a matrix
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
    colored = has_colors()
    return Console(
        highlight=False,
        width=min(line_width(WIDTH), WIDTH),
        quiet=quiet,
        force_terminal=colored or None,
        color_system="auto" if colored else None,
    )


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
    out.print(Text.assemble((f"{number}", "bold cyan"), "  ", (text, "bold")))
    tell(out, detail, "dim")
    out.print()


def tell(out: Console, text: str, style: str = "") -> None:
    """Print a text, with all its lines indented."""
    indent = " " * INDENT
    for line in textwrap.wrap(
        printable(text, out.encoding),
        out.width,
        initial_indent=indent,
        subsequent_indent=indent,
        drop_whitespace=True,
        break_on_hyphens=False,
    ):
        out.print(Text(line, style), soft_wrap=True)


def bytes_table(out: Console, moves: Sequence[Move]) -> None:
    """Print a table with one row per group and their sum: bytes against the bound, and speed."""
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
    rows = [_cells(move) for move in (*moves, total)]
    spare = ("GB/s", "size", "lower bound", "time", "to")
    lines, notes = Table(heads, rows, "~>~>>>>>>", spare=spare).lines(out.width - INDENT)
    told = [Text("  ".join(cell for _, cell in line).rstrip()) for line in lines]
    line_across = Text(rule(max(map(len, told))), "dim")
    told[0].stylize("dim")
    told[-1].stylize("bold")
    for line in (told[0], line_across, *told[1:-1], line_across, told[-1]):
        out.print(Padding(line, (0, 0, 0, INDENT), expand=False))
    for note in notes:
        tell(out, note, "dim")
    out.print()


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


def likenesses(out: Console, sentences: Sequence[str], likeness: npt.NDArray[Any]) -> None:
    """Print how alike sentences are: a matrix if it fits, otherwise what is nearest to each.

    Args:
        out: Where to print.
        sentences: The sentences.
        likeness: Their cosine similarities, shape (sentences, sentences).
    """
    nearest = np.argmax(likeness - 2 * np.eye(len(sentences)), axis=1)
    room = out.width - 4 * len(sentences)
    if room < LEAST:
        percent = 100 * likeness[range(len(sentences)), nearest]
        rows = [
            (f"{i + 1}", printable(text, out.encoding), f"{nearest[i] + 1}", f"{percent[i]:.0f}")
            for i, text in enumerate(sentences)
        ]
        lines, _ = Table(("", "sentence", "nearest", "%"), rows, "><>>").lines(out.width - INDENT)
        for number, line in enumerate(lines):
            tell(out, "  ".join(cell for _, cell in line), "" if number else "dim")
        tell(out, "cosine similarity in percent", "dim")
        return
    out.print(_matrix(sentences, likeness, nearest, min(room, WIDTH - 4 * MOST)))
    tell(out, "cosine similarity in percent; * marks each row's nearest sentence", "dim")


def _matrix(
    sentences: Sequence[str], likeness: npt.NDArray[Any], nearest: npt.NDArray[Any], room: int
) -> Grid:
    """Return the matrix of similarities in percent, each row's largest marked with `*`."""
    table = Grid(box=None, padding=0, header_style="dim", pad_edge=False)
    table.add_column("", width=room, no_wrap=True, overflow="crop")
    for number in range(1, len(sentences) + 1):
        table.add_column(f"{number} ", width=4, justify="right")
    for row, sentence in enumerate(sentences):
        cells = [
            Text("  . ", "dim")
            if row == column
            else _cell(float(likeness[row, column]), column == nearest[row])
            for column in range(len(sentences))
        ]
        told = sentence if len(sentence) <= room - 4 else f"{sentence[: room - 7]}..."
        table.add_row(Text.assemble((f"{row + 1:2d} ", "dim"), told), *cells)
    return table


def following(out: Console, steps: Sequence[tuple[str, str]]) -> None:
    """Print what to do next: commands, and what they do."""
    wide = max(len(command) for command, _ in steps)
    beside = max(wide + 2 + len(told) for _, told in steps) + INDENT <= out.width
    out.print()
    out.print(Text("What next", "bold"))
    for command, told in steps:
        first = Text.assemble(" " * INDENT, (command, "cyan"))
        if beside:
            first.append(f"{' ' * (wide - len(command))}  {told}")
        out.print(first, soft_wrap=True)
        if not beside:
            tell(out, f"  {told}", "dim")


def _cell(value: float, is_nearest: bool) -> Text:
    tenth = min(max(int(value * 10), 0), len(HEAT) - 1)
    style = Style(
        color="rgb(0,0,0)" if tenth >= 5 else "rgb(220,220,220)",
        bgcolor=f"color({HEAT[tenth]})",
        bold=is_nearest,
    )
    return Text(f"{round(value * 100):3d}{'*' if is_nearest else ' '}", style)
