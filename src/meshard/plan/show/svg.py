"""Drawings as SVG: the frame of a picture, and the shapes in it.

In: places, sizes, texts and colours, which are ``#rrggbb`` or the name of one in the style sheet.
Out: elements. A shape that is too small for a label has a tooltip.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from meshard.plan.show.page import FONT, LIGHT, SHEET, Markup, element, number_text, theme_rules

LEAST = 560  # pixels below which a drawing scrolls instead of shrinking: texts stay readable

_HEADING = 24.0  # the height of a line above a drawing

Value = str | float | None


def picture(
    width: float,
    height: float,
    told: str,
    parts: Iterable[str],
    *,
    sheet: bool = False,
    heading: str = "",
) -> Markup:
    """Return one ``<svg>`` element: a card, on which the parts can be read on any page.

    Args:
        width: its width.
        height: its height.
        told: a description, for readers who do not see it.
        parts: its content.
        sheet: whether it contains the style sheet; otherwise the page around it has it.
        heading: a line above the parts, for a drawing that stands alone.
    """
    if heading:
        first = label(14, 24, heading, "ink", font_size=13, font_weight="700")
        parts = [first, element("g", *parts, transform=f"translate(0 {_HEADING:.0f})")]
        width, height = max(width, 28 + 8.1 * len(heading)), height + _HEADING
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
