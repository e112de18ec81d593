"""Elements of HTML and SVG, the style sheet of all drawings and pages, and the frame of a page.

In: tags, values and texts. Out: well-formed, self-contained XML without scripts. Colours are custom
properties: light or dark as the page around says (a notebook, a site), and where none says, as the
reader's system does. Text beside drawings has the colour of the page around it.
"""

from __future__ import annotations

import re
from functools import cache
from html import escape
from typing import final

FONT = "system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif"
COLORS = {
    "ink": ("#1f2328", "#f0f3f6"),
    "faint": ("#59636e", "#a5adb7"),
    "frame": ("#d0d7de", "#3d444d"),
    "card": ("#ffffff", "#15181d"),
    "gap": ("#eff2f5", "#2b3138"),
    "hot": ("#0b5a8f", "#6cc0f5"),
}
LIGHT, DARK = ({kind: both[i] for kind, both in COLORS.items()} for i in (0, 1))

# How pages say that they are light or dark: Furo and other themes of Sphinx, JupyterLab and its
# exports, VS Code, Colab. Next to ``:where`` all rules weigh the same: the last one decides.
_SAID_LIGHT = (
    "[data-theme=light],[data-jp-theme-light=true],.vscode-light,.vscode-high-contrast-light,"
    "html[theme]:not([theme=dark])"
)
_SAID_DARK = (
    "[data-theme=dark],[data-jp-theme-light=false],.vscode-dark,"
    ".vscode-high-contrast:not(.vscode-high-contrast-light),html[theme=dark]"
)
_OURS = ":is(.meshard,.meshard-drawing,.meshard-page)"


def _properties(of: dict[str, str]) -> str:
    """Return the declarations of all colours."""
    return ";".join(f"--meshard-{kind}:{color}" for kind, color in of.items())


# Every class begins with the library's name: in a notebook a style sheet applies to all elements.
SHEET = (
    f"{_OURS}{{{_properties(LIGHT)}}}"
    f"@media (prefers-color-scheme:dark){{{_OURS}{{{_properties(DARK)}}}}}"
    f":where({_SAID_LIGHT}) {_OURS}{{{_properties(LIGHT)}}}"
    f":where({_SAID_DARK}) {_OURS}{{{_properties(DARK)}}}"
    + "".join(f".meshard-{kind}{{fill:var(--meshard-{kind})}}" for kind in COLORS)
    + ".meshard-card,.meshard-outline{stroke:var(--meshard-frame)}"
    ".meshard-seam{stroke:var(--meshard-card)}"
)


def theme_rules(theme: str) -> str:
    """Return the rules, to follow `SHEET`, of a page or drawing that is ``light`` or ``dark``."""
    return f"{_OURS}{{{_properties(DARK if theme == 'dark' else LIGHT)}}}"


_PLACES = (
    f".meshard{{font:14px/1.45 {FONT};color:inherit}}"
    ".meshard h2{font-size:16px;line-height:1.35;font-weight:600;margin:0 0 4px;color:inherit}"
    ".meshard h3{font-size:14px;font-weight:600;margin:20px 0 6px;color:inherit}"
    ".meshard p{margin:2px 0;max-width:100ch;font-size:13px}"
    ".meshard p,.meshard th,.meshard summary{opacity:.78}"
    ".meshard .wide{overflow-x:auto;max-width:100%;margin:4px 0}"
    ".meshard .wide>svg{min-width:var(--meshard-least)}"
    # Notebooks have rules for all tables, which weigh more than one class.
    ".meshard.meshard table{border-collapse:collapse;font-size:13px;margin:0;border:0}"
    ".meshard table:has(td:nth-child(5)){width:max-content}.meshard td{max-width:56ch}"
    ".meshard.meshard :is(th,td){padding:3px 12px 3px 0;text-align:left;border:0;color:inherit;"
    "border-bottom:1px solid rgba(128,128,128,.35);vertical-align:top;background:none}"
    ".meshard.meshard tbody tr:nth-child(n){background:none}"
    ".meshard.meshard :is(th,td):last-child{padding-right:0}.meshard th{font-weight:500}"
    ".meshard.meshard .n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}"
    ".meshard ul{margin:4px 0;padding-left:22px;max-width:100ch}"
    ".meshard li{font-size:13px}"
    ".meshard pre,.meshard code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;"
    "font-size:12px;line-height:1.4;color:inherit;background:none;border:0}"
    ".meshard pre{margin:4px 0;padding:0;overflow-x:auto;white-space:pre}"
    ".meshard summary{cursor:pointer;font-size:13px}"
    ".meshard details{margin:6px 0}"
    ".meshard .tiles{display:flex;flex-wrap:wrap;gap:12px;align-items:flex-start}"
    ".meshard .chosen{font-weight:600}"
)
_UNTOLD = re.compile("[\x00-\x1f\ud800-\udfff]")  # characters that XML cannot contain
_SPECIAL = re.compile(f"[&<>\"']|{_UNTOLD.pattern}")


@final
class Markup(str):
    """Text that is XML as it is; all other text is escaped when it enters an element."""

    __slots__ = ()


def xml_text(text: str) -> Markup:
    """Return text as XML: markup escaped, control characters replaced."""
    if isinstance(text, Markup):
        return text
    return Markup(escape(_UNTOLD.sub("\ufffd", text)) if _SPECIAL.search(text) else text)


def element(tag: str, *inside: str, **attributes: str | float | None) -> Markup:
    """Return an element.

    Args:
        tag: its name.
        inside: its content: `Markup`, or text to be escaped.
        attributes: its attributes. ``_`` stands for ``-``, and is dropped at the end of a name;
            numbers are written with up to three decimals; None is left out.

    >>> element("text", "a < b", x=1.5, class_="n", text_anchor="end", fill=None)
    '<text x="1.5" class="n" text-anchor="end">a &lt; b</text>'
    """
    start = f"<{tag}"
    for name, value in attributes.items():
        if value is not None:
            told = xml_text(value) if isinstance(value, str) else number_text(value)
            start += f' {_spelt(name)}="{told}"'
    if not inside:
        return Markup(f"{start}/>")
    return Markup(f"{start}>{''.join(map(xml_text, inside))}</{tag}>")


@cache
def _spelt(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def number_text(value: float) -> str:
    """Return a number with up to three decimals.

    >>> number_text(2), number_text(1.25), number_text(-1 / 3)
    ('2', '1.25', '-0.333')
    """
    return str(value) if isinstance(value, int) else f"{value:.3f}".rstrip("0").rstrip(".")


def wide(*inside: str) -> Markup:
    """Return an element that scrolls by itself if it is wider than the page."""
    return element("div", *inside, class_="wide")


def preformatted(text: str, *, most: int = 200) -> Markup:
    """Return lines of text as they are, in a monospaced font; of very many the first."""
    lines = text.split("\n")
    rest = [f"… and {len(lines) - most:,} more lines"] * (len(lines) > most)
    return element("pre", Markup("\n".join(map(xml_text, [*lines[:most], *rest]))))


def folded(summary: str, *inside: str) -> Markup:
    """Return an element that shows its content when the reader asks for it."""
    return element("details", element("summary", summary), *inside)


def fragment(title: str, *parts: str) -> Markup:
    """Return one element for a notebook or a page: its style sheet, a headline and the parts."""
    sheet = element("style", Markup(SHEET + _PLACES))
    return element("div", sheet, element("h2", title), *parts, class_="meshard")


def whole_page(title: str, inside: Markup) -> str:
    """Return an HTML page around a `fragment`, which brings the style sheet."""
    ground = (
        ":root{color-scheme:light dark}"
        ".meshard-page{margin:24px;background:var(--meshard-card);color:var(--meshard-ink)}"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width,initial-scale=1"),
        element("title", title),
        element("style", Markup(ground)),
    )
    page = element("html", head, element("body", inside, class_="meshard-page"), lang="en")
    return f"<!DOCTYPE html>\n{page}\n"
