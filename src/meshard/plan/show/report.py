"""Tables as values: rows of texts, printed as text or as HTML.

In: a head, rows of texts, their alignment, and notes. Out: text of a given width, for which words
are shortened or wrapped and spare columns left out, but numbers never cut; or an element that
contains everything.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import final

from meshard.errors import visible
from meshard.plan.show.page import Markup, element, wide
from meshard.plan.show.terminal import WIDTH as WIDTH
from meshard.plan.show.terminal import line_width

FIT = -1
"""Stands for the width of what standard output shows: see `line_width`."""

_BETWEEN = "  "
_READABLE = 14  # columns of words get narrower only if no other column can be left out
_NARROWEST = 7
_DOTS = "..."
_INDENT = "\u2003"
_WORDS = re.compile(r" +(?![^()\[\]]*[)\]])")


@final
@dataclass(frozen=True)
class Table:
    """Rows of texts.

    Attributes:
        head: the titles of the columns; empty for a table without titles.
        rows: the rows, each with a text for each column.
        align: for each column ``<`` for words, which may be shortened in the middle; ``~`` for
            sentences, which may be wrapped; ``>`` for numbers, which are never cut.
        notes: the lines below the table.
        marked: how many of the first rows are highlighted.
        spare: titles of the columns that may be left out for lack of width, in this order; a line
            below the table then names them.

    >>> table = Table(("line", "total"), [("x.py:1", "8"), ("projects/x.py:12", "16")], "<>")
    >>> print(table.text(20))
    line           total
    x.py:1             8
    pro...x.py:12     16
    """

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    align: str
    notes: Sequence[str] = ()
    marked: int = 0
    spare: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Escape what must not reach a terminal: cells and notes hold names from files."""
        rows = [tuple(map(visible, row)) for row in self.rows]
        object.__setattr__(self, "head", tuple(map(visible, self.head)))
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "notes", list(map(visible, self.notes)))

    @property
    def widths(self) -> list[int]:
        """The width of each column."""
        return [max(map(len, column)) for column in zip(*self._rows, strict=True)]

    @property
    def _rows(self) -> list[tuple[str, ...]]:
        return [self.head, *self.rows] if self.head else [*self.rows]

    @property
    def width(self) -> int:
        """The width of the whole, with nothing cut."""
        return _whole(self.widths)

    def least_width(self, words: int = _READABLE) -> int:
        """Return the width below which columns are left out, or words have less than this width."""
        return _whole(self._least(words).values())

    def _least(self, words: int) -> dict[int, int]:
        """Return how narrow each column may become, if those of words may become this narrow."""
        found = {}
        for i, (n, side) in enumerate(zip(self.widths, self.align, strict=True)):
            found[i] = n if side == ">" else min(n, words)
            if side == "~" and words == _READABLE:  # lines break between words
                longest = max(len(w) for row in self._rows for w in _WORDS.split(row[i]))
                found[i] = min(max(longest, _NARROWEST), 2 * _READABLE)
        return found

    def text(self, width: int | None = FIT) -> str:
        """Return the table in columns.

        Args:
            width: the columns that it may take, None for as many as it needs. Without this argument
                it is as wide as the terminal; elsewhere 100 columns.
        """
        rows, notes = self.lines(width)
        return "\n".join([*(_BETWEEN.join(s for _, s in row).rstrip() for row in rows), *notes])

    def lines(self, width: int | None = FIT) -> tuple[list[list[tuple[str, str]]], list[str]]:
        """Return the lines of the table and those below it.

        Args:
            width: as of `text`.

        Returns:
            For each line, the first of which is the head if there is one, for each column the text
            of the cell, and what is shown of it, padded; and the notes.
        """
        width = line_width() if width == FIT else width
        widths = self._fitted(width)
        lines = []
        for row in self._rows:
            columns = [_padded(row[i], n, self.align[i]) for i, n in widths.items()]
            blanks = [" " * n for n in widths.values()]
            for number in range(max(map(len, columns), default=0)):
                shown = [
                    column[number] if number < len(column) else blank
                    for column, blank in zip(columns, blanks, strict=True)
                ]
                lines.append(list(zip([row[i] for i in widths], shown, strict=True)))
        left_out = [name for i, name in enumerate(self.head) if i not in widths]
        notes = [*self.notes]
        if left_out:
            notes.append(f"not shown for lack of width: {', '.join(left_out)}")
        return lines, [line for note in notes for line in _folded(note, width)]

    def _fitted(self, width: int | None) -> dict[int, int]:
        """Return the columns that are shown, and their widths."""
        widths = dict(enumerate(self.widths))
        if width is None:
            return widths
        spare = [self.head.index(name) for name in self.spare if name in self.head]
        ways = [(_READABLE, count) for count in range(len(spare) + 1)]
        fitting = widths
        for words, count in [*ways, (_NARROWEST, len(spare))]:
            fitting = {i: n for i, n in widths.items() if i not in spare[:count]}
            least = self._least(words)
            while _whole(fitting.values()) > width:
                wider = [i for i, n in fitting.items() if n > least[i]]
                if not wider:
                    break
                fitting[max(wider, key=fitting.__getitem__)] -= 1
            else:
                break
        return fitting

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


def _whole(widths: Collection[int]) -> int:
    return sum(widths) + len(_BETWEEN) * (len(widths) - 1)


def _padded(text: str, width: int, side: str) -> list[str]:
    """Return the lines of a cell."""
    if side == ">":
        return [text.rjust(width)]
    if side == "~" and len(text) > width:
        return [line.ljust(width) for line in _wrapped(text, width)]
    return [_shortened(text, width).ljust(width)]


def _shortened(text: str, width: int) -> str:
    """Return a text of at most ``width`` without its middle; its end says most.

    >>> _shortened("model.layers.12.mlp", 14)
    'mod...s.12.mlp'
    """
    if len(text) <= width:
        return text
    room = width - len(_DOTS)
    return f"{text[: room // 3]}{_DOTS}{text[room // 3 - room :]}"


def _wrapped(text: str, width: int) -> list[str]:
    """Return a sentence as lines, which break within brackets only if they must.

    >>> _wrapped("P(i, -), P(-, j) -> P(i, j)", 12)
    ['P(i, -),', 'P(-, j) ->', 'P(i, j)']
    """
    lines = [""]
    for word in _WORDS.split(text):
        for part in textwrap.wrap(word, width) if " " in word else _broken(word, width):
            fits = not lines[-1] or len(lines[-1]) + 1 + len(part) <= width
            lines[-1:] = [f"{lines[-1]} {part}".lstrip()] if fits else [lines[-1], part]
    return lines


def _broken(word: str, width: int) -> Iterator[str]:
    """Yield a long word in parts, which end at a point or a dash if there is one.

    >>> list(_broken("model.layers.12.mlp", 14))
    ['model.layers.', '12.mlp']
    """
    while len(word) > width:
        end = max(word.rfind(mark, width // 2, width) for mark in "./_-:,") + 1 or width
        yield word[:end]
        word = word[end:]
    yield word


def _folded(note: str, width: int | None) -> list[str]:
    """Return a line below the table as lines of a width; those that follow are indented."""
    if width is None or len(note) <= width:
        return [note]
    indent = note[: len(note) - len(note.lstrip())] + "  "
    return textwrap.wrap(
        note, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
