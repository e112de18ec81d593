"""Drawings on pages: the block ``{drawing}``, whose value the page's code has made.

In: the pages, which snippets.py runs; what it saves. Out: SVG or HTML in the page.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

HERE = Path(__file__).resolve().parents[1]
DRAWINGS = "drawings"


class Drawing(SphinxDirective):
    """Show the drawing that a block's code has made (see snippets.py)."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        page = Path(self.env.docname).name
        number = self.env.temp_data.get(DRAWINGS, 0)
        self.env.temp_data[DRAWINGS] = number + 1
        path = drawings_folder(self.env.app) / f"{page}-{number}.html"
        self.env.note_dependency(path)
        made = f'<div class="drawing">{path.read_text()}</div>'
        return [nodes.raw("", made, format="html")]


def drawings_folder(app: Sphinx) -> Path:
    """Return where the drawings of this build are kept."""
    folder = Path(app.outdir).parent / DRAWINGS
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def draw(app: Sphinx) -> None:
    """Run the pages that have drawings, and keep these."""
    runs = []
    for page in sorted(HERE.rglob("*.md")):
        if "```{drawing}" in page.read_text():
            command = [sys.executable, str(HERE / "snippets.py"), str(page)]
            command += ["--drawings", str(drawings_folder(app))]
            runs.append(subprocess.Popen(command))
    failed = [run.args for run in runs if run.wait()]
    if failed:
        raise SystemExit("A page's code does not do what the page says.")


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the drawings to a build."""
    app.add_directive("drawing", Drawing)
    app.connect("builder-inited", draw)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
