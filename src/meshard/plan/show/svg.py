"""Drawings as SVG: the frame of a picture, and the marks that all pictures are made of.

In: places, sizes, texts and colours, which are ``#rrggbb`` or the name of one in the style sheet.
Out: elements. A shape that is too small for a label has a tooltip.

A picture is a `Sheet` that grows downwards: lines of text, panels side by side, a legend, notes. A
`Panel` is a field with ticks and names along its edges. A field holds cells, whose borders are
those of `steps`: in a colour that names a category (`rect`, `lettered`), as strong as an amount
(`heat`), or in place of others (`gap`), with lines between them (`seams`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, islice, pairwise
from typing import final

from meshard.plan.captions import ink
from meshard.plan.show.page import FONT, LIGHT, SHEET, Markup, element, number_text, theme_rules

LEAST = 560  # pixels below which a drawing scrolls instead of shrinking: texts stay readable
MARGIN, BETWEEN, GAP = 14.0, 20.0, 18.0  # around a card, between panels, for cells left out
LINE = 17.0  # from one line of text to the next
LETTER = 0.62  # the width of a character, in units of its size
SIZE, LARGEST, SMALLEST = 11.0, 13.0, 8.0  # sizes of texts, and of labels inside cells
LEGEND = 420.0  # the least width of a line of a legend
WIDEST = 900.0  # of panels that stand side by side

Value = str | float | None
Place = tuple[float, float, float, float]
"""Left, top, width and height."""


def picture(
    width: float,
    height: float,
    told: str,
    parts: Iterable[str],
    *,
    sheet: bool = False,
) -> Markup:
    """Return one ``<svg>`` element: a card, on which the parts can be read on any page.

    Args:
        width: its width.
        height: its height.
        told: a description, for readers who do not see it.
        parts: its content.
        sheet: whether it contains the style sheet; otherwise the page around it has it.
    """
    wide, high = f"{width:.0f}", f"{height:.0f}"
    card = rect(0.5, 0.5, round(width) - 1, round(height) - 1, "card", rx=8)
    return element(
        "svg",
        *[element("style", Markup(SHEET))] * sheet,
        card,
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        class_="meshard-drawing",
        role="img",
        aria_label=told,
        width=wide,
        height=high,
        viewBox=f"0 0 {wide} {high}",
        style=f"--meshard-least:{min(round(width), LEAST)}px;max-width:100%;height:auto",
        font_size=11,
        font_family=FONT,
    )


def standalone(svg: Markup, title: str, theme: str | None = None) -> Markup:
    """Return a drawing that needs no page around it: with its style sheet, and a title.

    Args:
        svg: the drawing.
        title: the title.
        theme: ``"light"`` or ``"dark"``; None for that of the page, or of the reader's system.
    """
    start, _, rest = svg.partition(">")
    sheet = "" if rest.startswith("<style>") else element("style", Markup(SHEET))
    if theme is not None:
        sheet += element("style", Markup(theme_rules(theme)))
    own = element("title", title) if title else ""
    return Markup(f"{start}>{own}{sheet}{rest}")


@cache
def _filled(color: str) -> Mapping[str, str]:
    """Return the attributes of a colour, which also work without style sheets."""
    if color not in LIGHT and color != "outline":
        return {"fill": color}
    found = {"class_": f"meshard-{color}", "fill": LIGHT.get(color, "none")}
    if color in ("card", "outline"):
        found["stroke"] = LIGHT["frame"]
    return found


def label(x: float, y: float, text: str, color: str = "faint", **more: Value) -> Markup:
    """Return a text.

    >>> label(1, 2, "x", text_anchor="end")
    '<text class="meshard-faint" fill="#59636e" x="1" y="2" text-anchor="end">x</text>'
    """
    return element("text", text, **_filled(color), x=x, y=y, **more)


def centred(
    x: float, y: float, text: str, anchor: str = "start", color: str = "faint", **more: Value
) -> Markup:
    """Return a text with its middle on a line."""
    places = {"text_anchor": anchor, "dominant_baseline": "central"}
    return label(x, y, text, color, **places, **more)


def upright(x: float, y: float) -> str:
    """Return the transformation that makes a text at this place read upwards."""
    return f"rotate(-90 {number_text(x)} {number_text(y)})"


def rect(
    x: float, y: float, width: float, height: float, color: str, told: str = "", **more: Value
) -> Markup:
    """Return a rectangle with ``told`` as its tooltip."""
    own = [element("title", told)] if told else []
    return element("rect", *own, **_filled(color), x=x, y=y, width=width, height=height, **more)


def moved(x: float, y: float, parts: Iterable[str]) -> Markup:
    """Return parts as one group that begins at a place."""
    return element("g", *parts, transform=f"translate({number_text(x)} {number_text(y)})")


# Cells.


def steps(sizes: Iterable[float], length: float) -> tuple[float, ...]:
    """Return the borders between rows or columns of these sizes; a size of 0 means a gap.

    >>> steps((1, 3), 40), steps((1, 0, 1), 38)
    ((0.0, 10.0, 40.0), (0.0, 10.0, 28.0, 38.0))
    """
    sizes = tuple(sizes)
    scale = (length - GAP * (0 in sizes)) / sum(sizes)
    return tuple(accumulate((n * scale if n else GAP for n in sizes), initial=0.0))


@final
@dataclass(frozen=True)
class Grid:
    """The borders of columns and rows of cells."""

    xs: Sequence[float]
    ys: Sequence[float]

    def place(self, rows: tuple[int, int], columns: tuple[int, int]) -> Place:
        """Return where neighbouring cells are, given half-open ranges."""
        left, right = (self.xs[i] for i in columns)
        top, bottom = (self.ys[i] for i in rows)
        return left, top, right - left, bottom - top

    def lines(self, width: float = 1.0, **more: Value) -> Markup:
        """Return the lines between all cells."""
        across, down = self.xs[-1], self.ys[-1]
        lines = [f"M0 {y:.1f}H{across:.1f}" for y in self.ys[1:-1]]
        lines += [f"M{x:.1f} 0V{down:.1f}" for x in self.xs[1:-1]]
        return seams("".join(lines), width, **more)


def evenly(columns: int, rows: int, width: float, height: float) -> Grid:
    """Return the borders of cells that all have this width and height."""
    xs, ys = (
        tuple([n * size for n in range(count + 1)])
        for count, size in ((columns, width), (rows, height))
    )
    return Grid(xs, ys)


def fit(place: Place, letters: int) -> tuple[float, bool]:
    """Return the size at which so many letters fit into a cell, and whether they are upright.

    >>> fit((0, 0, 200, 40), 5), fit((0, 0, 10, 60), 5)
    ((13.0, False), (8.0, True))
    """
    (*_, width, height), room = place, LETTER * letters
    flat = min(LARGEST, 0.8 * height, 0.9 * width / room)
    turned = min(LARGEST, 0.8 * width, 0.9 * height / room)
    return (turned, True) if flat < SMALLEST <= turned else (flat, False)


def lettered(place: Place, text: str, color: str, letters: int = 0) -> Iterator[Markup]:
    """Yield the label of a cell, unless it has too little room.

    Args:
        place: the cell.
        text: the label.
        color: that of the cell.
        letters: how many letters decide its size; those of ``text`` by default.
    """
    size, turned = fit(place, letters or len(text))
    if size < SMALLEST:
        return
    x, y = middle(place)
    yield centred(
        *(x, y, text, "middle", ink(color) if color.startswith("#") else "ink"),
        font_size=f"{size:.1f}",
        transform=upright(x, y) if turned else None,
        pointer_events="none",
    )


def middle(place: Place) -> tuple[float, float]:
    """Return the middle of a cell."""
    return place[0] + place[2] / 2, place[1] + place[3] / 2


def gap(place: Place, *, down: bool, rx: float | None = None) -> Iterator[Markup]:
    """Yield the cell that stands for those left out, which go on downwards or to the right."""
    yield rect(*place, "gap", rx=rx)
    yield centred(*middle(place), "\u22ee" if down else "\u22ef", "middle", font_size=12)


def heat(cells: Iterable[tuple[Place, float, str]]) -> Markup:
    """Return cells as strong as what they stand for: place, share of the most, and tooltip."""
    return element(
        "g",
        *[
            element(
                "rect",
                *[element("title", told)] * bool(told),
                **dict(zip(("x", "y", "width", "height"), place, strict=True)),
                fill_opacity=0.1 + 0.9 * share,
            )
            for place, share, told in cells
        ],
        **_filled("hot"),
    )


def seams(path: str, width: float, **more: Value) -> Markup:
    """Return lines between cells, in the colour of the card."""
    look = {"class_": "meshard-seam", "fill": "none", "stroke": LIGHT["card"]}
    return element("path", d=path, stroke_width=width, pointer_events="none", **look, **more)


# Panels.

Ticks = Sequence[tuple[float, str]]
"""Places along an edge, with a text each."""


def between(borders: Sequence[float], texts: Sequence[str]) -> Ticks:
    """Return texts in the middle between borders."""
    return [((a + b) / 2, text) for (a, b), text in zip(pairwise(borders), texts, strict=True)]


def thinned(ticks: Ticks, room: float, end: float = 0.0) -> Ticks:
    """Return the first tick, the last, and of those between as many as have room.

    Args:
        ticks: the ticks, in order.
        room: what each takes, half of it on either side.
        end: what the last takes before it, if that is more.

    >>> thinned([(0, "0"), (4, "1"), (9, "2"), (14, "3"), (20, "4")], 5)
    [(0, '0'), (9, '2'), (14, '3'), (20, '4')]
    """
    found = [*ticks[:1]]
    for tick in ticks[1:-1]:
        if found[-1][0] + room <= tick[0] <= ticks[-1][0] - max(room, end):
            found.append(tick)
    return [*found, *ticks[1:][-1:]]


@final
@dataclass(frozen=True)
class Panel:
    """A field, and what stands along its edges.

    Attributes:
        parts: what is in the field; its upper left corner is the origin.
        width: the width of the field.
        height: its height.
        heading: a line above.
        names: the names of the direction downwards, if there are two, and of that to the right.
        rows: ticks at the left edge.
        columns: ticks at the upper edge.
        ink: the colour of the ticks at the left edge.
        right: the room that parts take to the right of the field.
        below: the room that they take below it.
    """

    parts: Sequence[Markup]
    width: float
    height: float
    heading: str = ""
    names: Sequence[str] = ()
    rows: Ticks = ()
    columns: Ticks = ()
    ink: str = "faint"
    right: float = 0.0
    below: float = 0.0

    @property
    def left(self) -> float:
        """The room to the left of the field."""
        words = max((len(text) for _, text in self.rows), default=0)
        return (LETTER * SIZE * words + 8) * bool(words) + (LINE + 2) * (len(self.names) > 1)

    @property
    def above(self) -> float:
        """The room above the field."""
        return LINE * (bool(self.heading) + bool(self.names) + bool(self.columns))

    @property
    def across(self) -> float:
        """The width of the whole."""
        words = LETTER * 12 * len(self.heading)
        return max(self.left + self.width + self.right, words)

    @property
    def down(self) -> float:
        """The height of the whole."""
        return self.above + self.height + self.below

    def drawn(self) -> Iterator[Markup]:
        """Yield all of it."""
        if self.heading:
            yield label(-self.left, LINE - self.above - 3, self.heading, "ink", font_size=12)
        if self.names:
            y = -LINE * bool(self.columns) - 8
            yield centred(self.width / 2, y, f"{self.names[-1]} \u2192", "middle")
        if len(self.names) > 1:
            x, y = 8 - self.left, self.height / 2
            name = f"\u2190 {self.names[-2]}"
            yield centred(x, y, name, "middle", transform=upright(x, y))
        room = LETTER * SIZE * max((len(text) for _, text in self.columns), default=0) + 4
        flush = bool(self.columns) and self.columns[-1][0] == self.width  # its text ends there
        for x, text in thinned(self.columns, room, 1.5 * room * flush):
            anchor = "start" if x == 0 else "end" if x == self.width else "middle"
            yield centred(x, -8, text, anchor)
        for y, text in thinned(self.rows, SIZE + 2):
            yield centred(-6, y, text, "end", self.ink)
        yield from self.parts


# Sheets.


@final
class Sheet:
    """A picture that grows downwards.

    Args:
        heading: lines above, the first in bold.
    """

    def __init__(self, *heading: str) -> None:
        self._parts: list[Markup] = []
        self._width, self._top = 0.0, MARGIN
        for number, text in enumerate(heading):
            self._line(text, "ink", font_size=LARGEST, font_weight=None if number else "700")
        self._top += 8 * bool(heading)

    def _line(
        self, text: str, color: str = "faint", *, font_size: float = SIZE, **more: Value
    ) -> None:
        self._top += LINE
        more = {"font_size": None if font_size == SIZE else font_size, **more}
        self._parts.append(label(MARGIN, self._top - 4, text, color, **more))
        self._width = max(self._width, LETTER * font_size * len(text))

    def notes(self, texts: Iterable[str]) -> None:
        """Add lines of text."""
        for text in texts:
            self._line(text)

    def legend(self, entries: Iterable[tuple[str | float, str]]) -> None:
        """Add what each colour means, or each share of the most, in as many lines as that takes."""
        room, x = max(self._width, LEGEND), 0.0
        for number, (color, text) in enumerate(entries):
            own = 15 + LETTER * SIZE * len(text)
            if not number or x + own > room:
                x, self._top = 0.0, self._top + LINE
            place = MARGIN + x, self._top - 13, 10, 10
            mark = rect(*place, color) if isinstance(color, str) else heat([(place, color, "")])
            self._parts.append(mark)
            self._parts.append(label(MARGIN + x + 15, self._top - 4, text))
            x += own + 12
            self._width = max(self._width, x - 12)

    def panels(self, panels: Sequence[Panel], run: int = 1) -> None:
        """Add panels, side by side as far as there is room.

        Args:
            panels: the panels.
            run: how many belong together: rows end where a run does, if that is not few.
        """
        step = max((p.across for p in panels), default=0.0) + BETWEEN
        left = max((p.left for p in panels), default=0.0)
        each = _per_row(len(panels), max(1, int((WIDEST + BETWEEN) // step)), run)
        rest = iter(panels)
        while row := [*islice(rest, each)]:
            for number, panel in enumerate(row):
                x = MARGIN + left + number * step
                self._parts.append(moved(x, self._top + panel.above, panel.drawn()))
            self._width = max(self._width, len(row) * step - BETWEEN)
            self._top += max(panel.down for panel in row) + BETWEEN
        self._top -= (BETWEEN - 4) * bool(panels)

    def picture(self, told: str, *, sheet: bool = False) -> Markup:
        """Return the picture; see the function `picture`."""
        size = round(self._width + 2 * MARGIN), round(self._top + MARGIN)
        return picture(*size, told, self._parts, sheet=sheet)


def _per_row(panels: int, most: int, run: int) -> int:
    """Return how many panels stand in a row, of ``most`` that have room, where ``run`` belong."""
    found = max(n for n in range(1, most + 1) if n == 1 or run % n == 0)
    found = most if found == 1 else found
    while 2 * found <= most and 2 * found < panels:  # so that the picture is not tall
        found *= 2
    return found
