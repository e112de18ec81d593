"""The frame of the site: its icon and social image, what a page tells about itself, its edit link.

In: the pages that Sphinx has read. Out: ``made/favicon.svg`` and ``made/social.png``, which are
part of the static files, and what ``_templates/page.html`` puts into the head of each page. Nothing
is loaded from other servers.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

from machinery import reference
from meshard import errors
from meshard._version import DOCS, REPOSITORY
from meshard.debug import sharding_svg
from meshard.plan.captions import PALETTE
from meshard.plan.show.page import Markup, element
from meshard.plan.show.svg import rect
from meshard.sharding import Mesh, NamedSharding, P
from meshard.testing import virtual_devices

MADE = Path(__file__).resolve().parents[2] / "build" / "docs" / "made"
ABOUT = "Sharded NumPy arrays: see, cost and debug a distributed program on your laptop."


def mark(x: float, y: float, side: float) -> Markup:
    """Return the mark: a matrix over eight devices, three by three tiles with one of them wide."""
    gap, cell = side * 0.06, side / 3
    places = ((0, 0, 1, 1), (1, 0, 2, 1), (0, 1, 1, 2), (1, 1, 1, 1), (2, 1, 1, 1), (1, 2, 2, 1))
    return element(
        "g",
        *(
            rect(
                x + i * cell + gap / 2,
                y + j * cell + gap / 2,
                wide * cell - gap,
                high * cell - gap,
                PALETTE[number],
                rx=side * 0.045,
            )
            for number, (i, j, wide, high) in enumerate(places)
        ),
    )


def svg(width: int, height: int, *parts: str) -> str:
    """Return a picture that is the same in light and dark."""
    size = f"0 0 {width} {height}"
    return element("svg", *parts, xmlns="http://www.w3.org/2000/svg", viewBox=size)


def social(drawing: str) -> str:
    """Return the page that becomes the picture which other sites show beside a link to this one."""
    icon = svg(120, 120, mark(0, 0, 120))
    return (
        "<!doctype html><html data-theme='light'><style>body{margin:0;width:1200px;height:630px;"
        "overflow:hidden;font-family:system-ui,sans-serif;background:#fff;color:#1f2328}"
        "main{padding:70px 80px}h1{font-size:84px;margin:0;display:flex;gap:32px;line-height:1.15}"
        "h1 svg{width:96px}p{font-size:36px;line-height:1.35;color:#59636e;margin:28px 0 40px}"
        ".d svg{height:300px;width:auto;max-width:none!important}</style>"
        f"<main><h1>{icon} meshard</h1><p>{ABOUT}</p><div class='d'>{drawing}</div></main></html>"
    )


def photograph(page: str, target: Path, size: tuple[int, int], *more: str) -> bool:
    """Write how a browser shows a page; return whether there is a browser."""
    browser = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None
    )
    if browser is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={folder}", f"--screenshot={target}"]
        command += [f"--window-size={size[0]},{size[1]}", *more, page]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    return True


def make_pictures(app: Sphinx) -> None:
    """Make the icon, and the social image if there is a browser to draw it."""
    MADE.mkdir(parents=True, exist_ok=True)
    (MADE / "favicon.svg").write_text(svg(32, 32, mark(0, 0, 32)))
    mesh = Mesh(np.array(virtual_devices(8)).reshape(2, 4), ("y", "x"))
    drawing = sharding_svg((8, 32), NamedSharding(mesh, P("y", "x")))
    page = MADE / "social.html"
    text = social(drawing)
    if not (MADE / "social.png").exists() or not page.exists() or page.read_text() != text:
        page.write_text(text)
        photograph(page.as_uri(), MADE / "social.png", (1200, 630))


def first_words(doctree: nodes.document | None) -> str:
    """Return what a page begins with, for those who list it."""
    for paragraph in doctree.findall(nodes.paragraph) if doctree else ():
        text = " ".join(paragraph.astext().split())
        if len(text) > 40:
            return text if len(text) < 200 else f"{text[:200].rpartition(' ')[0]} ..."
    return ABOUT


def tell(
    app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None
) -> None:
    """Put into a page's context what it says about itself."""
    base = app.config.html_baseurl
    context["description"] = first_words(doctree)
    if (MADE / "social.png").exists():
        context["social_image"] = f"{base}_static/social.png"
    if page == "404":  # it is shown at any address
        context["base_path"] = urlsplit(base).path
    source = source_of(page)
    if source:
        context["theme_source_edit_link"] = f"{REPOSITORY}/edit/main/{source}"
        context["theme_source_view_link"] = f"{REPOSITORY}/blob/main/{source}"


def source_of(page: str) -> str | None:
    """Return the file that a made page comes from."""
    if page.startswith("gallery/") and page != "gallery/index":
        return f"examples/{page.partition('/')[2]}.py"
    return reference.source_of(page)


def check_sections(app: Sphinx, fault: Exception | None) -> None:
    """Warn of errors whose messages lead to a section that the page of errors does not have."""
    page = Path(app.outdir) / "errors.html"
    if fault is None and page.exists():
        found = set(re.findall(r'id="([\w-]+)"', page.read_text(encoding="utf-8")))
        for slug in sorted({*slugs()} - found):
            logging.getLogger(__name__).warning("errors.html has no section %s", slug)


def slugs() -> Iterator[str]:
    """Yield the sections that messages of errors lead to."""
    for kind in vars(errors).values():
        address, _, slug = str(getattr(kind, "_section", "")).partition("#")
        if address == f"{DOCS}/errors.html":
            yield slug


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the frame to a build."""
    app.connect("builder-inited", make_pictures)
    app.connect("html-page-context", tell)
    app.connect("build-finished", check_sections)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
