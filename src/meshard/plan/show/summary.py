"""Summaries: a headline that says the result, figures with remarks, and tables.

In: what a value says about itself. Out: the same as text, and as the parts of a page. Whatever
prints a result at its head, and figures below it, is one of these.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

from meshard.errors import visible
from meshard.plan.show.page import Markup, element
from meshard.plan.show.pictured import Pictured
from meshard.plan.show.report import FIT, Table
from meshard.plan.show.terminal import line_width


@final
class Fact(NamedTuple):
    """One figure: its name, the figure, and a remark."""

    name: str
    figure: str
    remark: str = ""


@final
@dataclass(frozen=True)
class Summary:
    """What a value says about itself.

    Attributes:
        title: one line that says the result.
        facts: the figures.
        tables: the tables below them.
        more: the summaries of parts of it, which follow.

    >>> print(Summary("Load 2 arrays", [Fact("read", "64 bytes", "each byte once")]).text())
    Load 2 arrays
    <BLANKLINE>
    read  64 bytes  each byte once
    """

    title: str
    facts: Sequence[Fact] = ()
    tables: Sequence[Table] = ()
    more: Sequence[Summary] = ()

    def __post_init__(self) -> None:
        """Escape what must not reach a terminal: a title may have the name of a file."""
        object.__setattr__(self, "title", visible(self.title))

    def text(self, width: int = FIT) -> str:
        """Return all of it, as wide as a terminal if no width is given."""
        width = line_width() if width == FIT else width
        facts = Table((), [tuple(fact) for fact in self.facts], "<<~")
        parts: list[Table | Summary] = [facts] if self.facts else []
        parts += [*self.tables, *self.more]
        title = "\n".join(
            textwrap.wrap(self.title, width, subsequent_indent="  ", break_on_hyphens=False)
        )
        return "\n\n".join([title, *[x.text(width) for x in parts]])

    def parts(self) -> Iterator[Markup]:
        """Yield what stands below the headline of a page: the figures as tiles, and the tables."""
        if self.facts:
            yield tiles(self.facts)
        beside = [element("div", table.html(), style="max-width:100%") for table in self.tables]
        if beside:
            yield element("div", *beside, class_="tiles", style="gap:14px 40px")
        for part in self.more:
            yield element("h3", part.title)
            yield from part.parts()


_TILE = (
    "box-sizing:border-box;max-width:320px;padding:8px 12px;border-radius:8px;"
    "border:1px solid var(--meshard-frame)"
)
_LONG = 60  # letters of a remark, from which a tile is wider
_FIGURE = "font-size:20px;line-height:1.3;font-weight:600;font-variant-numeric:tabular-nums"


def tiles(facts: Sequence[Fact]) -> Markup:
    """Return figures as tiles side by side: the name, the figure in large letters, the remark."""
    found = [
        element(
            "div",
            element("p", fact.name),
            element("div", fact.figure, style=_FIGURE),
            *[element("p", fact.remark)] * bool(fact.remark),
            style=f"{_TILE};flex:1 1 {220 if len(fact.remark) > _LONG else 140}px",
        )
        for fact in facts
    ]
    return element("div", *found, class_="tiles", style="align-items:stretch;margin:10px 0 14px")


class Summarized(Pictured):
    """A value that prints, and is shown as a page, as its summary: define `_summary`."""

    __slots__ = ()

    def _summary(self) -> Summary:
        """Return what the value says about itself."""
        raise NotImplementedError

    def _title(self) -> str:
        return self._summary().title

    def _parts(self) -> Iterator[Markup]:
        return self._summary().parts()

    def __str__(self) -> str:
        return self._summary().text()
