"""The gallery: each program of ``examples`` with its picture, what it prints and what it moves.

In: what running the programs has shown (programs.py). Out: a page for each,
``docs/gallery/NAME.rst``, which git ignores, and the directive ``{gallery}``: a card for each.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from machinery.programs import DOCS, names, page_of, shows

FOLDER = "gallery"


def write_pages(app: Sphinx) -> None:
    """Run the programs, and write the pages that have changed."""
    kept = results(app)
    subprocess.run([sys.executable, "-m", "machinery.programs", str(kept)], cwd=DOCS, check=True)
    for name in names():
        text = "\n".join(page_of(name, json.loads((kept / f"{name}.json").read_text())))
        path = DOCS / FOLDER / f"{name}.rst"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def results(app: Sphinx) -> Path:
    """Return where the programs' results of this build are kept."""
    return Path(app.outdir).parent / "gallery"


class Gallery(SphinxDirective):
    """Show a card for each program: its picture, and what it shows."""

    def run(self) -> list[nodes.Node]:
        from machinery.gallery_pictures import GROUPS

        about, lines = shows(), []
        for title, group in GROUPS.items():
            lines += [f"## {title}", "", '<div class="cards">']
            for name in (picture.__name__ for picture in group):
                path = results(self.env.app) / f"{name}.json"
                self.env.note_dependency(path)
                found = json.loads(path.read_text())
                computes, shown = (re.sub(r"`(.*?)`", r"<code>\1</code>", t) for t in about[name])
                lines.append(
                    f'<a class="card" href="{name}.html"><span class="thumbnail">'
                    f"{found.get('svg', '')}</span><b>{computes[0].upper()}{computes[1:]}</b>"
                    f"<span>{shown}</span></a>"
                )
            lines += ["</div>", ""]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the gallery to a build."""
    app.add_directive("gallery", Gallery)
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
