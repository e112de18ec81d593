"""Tables as values: rows of texts, printed as text or as HTML.

In: a head, rows of texts, their alignment, and notes. Out: text of a given width, in which long
    words
are cut but numbers never are, or an element that contains everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from meshard.plan.show.page import Markup, element, wide

WIDTH = 100
_NARROWEST = 9
_INDENT = "\u2003"


@final
@dataclass(frozen=True)
class Table:
    """Rows of texts.

    Attributes:
        head: the titles of the columns; empty for a table without titles.
        rows: the rows, each with a text for each column.
        align: for each column ``<`` for words, ``>`` for numbers.
        notes: the lines below the table.
        marked: how many of the first rows are highlighted.

    >>> print(Table(("line", "total"), [("x.py:1", "8"), ("x.py:12", "16")], "<>").text())
    line     total
    x.py:1       8
    x.py:12     16
    """

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    align: str
    notes: Sequence[str] = ()
    marked: int = 0

    @property
    def widths(self) -> list[int]:
        """The width of each column."""
        return [max(map(len, column)) for column in zip(*self._lines, strict=True)]

    @property
    def _lines(self) -> list[tuple[str, ...]]:
        return [self.head, *self.rows] if self.head else [*self.rows]

    @property
    def width(self) -> int:
        """The width of the whole, with nothing cut."""
        return sum(self.widths) + 2 * (len(self.align) - 1)

    def text(self, width: int | None = WIDTH) -> str:
        """Return the table in columns; long words are cut to fit a width if possible."""
        widths = self.widths
        words = [i for i, side in enumerate(self.align) if side == "<"]
        while words and width is not None and sum(widths) + 2 * (len(widths) - 1) > width:
            widest = max(words, key=lambda i: widths[i])
            if widths[widest] <= _NARROWEST:
                break
            widths[widest] -= 1
        lines = []
        for row in self._lines:
            cells = [
                _cut(cell, wide, tail=i == 0) if side == "<" else cell
                for i, (cell, wide, side) in enumerate(zip(row, widths, self.align, strict=True))
            ]
            told = [f"{c:{side}{n}}" for c, n, side in zip(cells, widths, self.align, strict=True)]
            lines.append("  ".join(told).rstrip())
        return "\n".join([*lines, *self.notes])

    def html(self) -> Markup:
        """Return the table as an element, with nothing cut."""
        head = [element("thead", self._row("th", self.head))] if self.head else []
        rows = [self._row("td", row, i < self.marked) for i, row in enumerate(self.rows)]
        notes = [element("p", note) for note in self.notes if note]
        table = wide(element("table", *head, element("tbody", *rows)))
        return Markup("".join([table, *notes]))

    def _row(self, tag: str, cells: Sequence[str], marked: bool = False) -> Markup:
        # HTML shows several spaces as one.
        inner = [
            element(tag, cell.replace("  ", _INDENT), class_="n" if side == ">" else None)
            for cell, side in zip(cells, self.align, strict=True)
        ]
        return element("tr", *inner, class_="chosen" if marked else None)


def _cut(text: str, width: int, *, tail: bool) -> str:
    """Return a text of at most ``width``; the name of a line is cut at its beginning."""
    if len(text) <= width:
        return text
    return f"…{text[len(text) - width + 1 :]}" if tail else f"{text[: width - 1]}…"
