"""How Sphinx builds the site: pages, their drawings, the text that runs, the reference."""

import os
import re
import subprocess
import sys
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

HERE = Path(__file__).parent

project = "meshard"
copyright = "the meshard authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
# from_scratch.py is a page too: its comments are its prose.
source_suffix = {".md": "markdown", ".py": "markdown"}
exclude_patterns = ["conf.py", "pictures.py", "snippets.py", "_static"]
nitpicky = False
default_role = "code"  # docstrings say `name`

html_theme = "furo"
html_title = "meshard"
html_static_path = ["_static"]
html_css_files = ["meshard.css"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "imported-members": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

DRAWINGS = "drawings"


class Drawing(SphinxDirective):
    """Show the drawing that a block's code has made (see snippets.py)."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        page = Path(self.env.docname).name
        number = self.env.temp_data.get(DRAWINGS, 0)
        self.env.temp_data[DRAWINGS] = number + 1
        svg = (drawings_folder(self.env.app) / f"{page}-{number}.svg").read_text()
        return [nodes.raw("", f'<div class="drawing">{svg}</div>', format="html")]


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


def prose_and_code(text: str) -> str:
    """Return a program as Markdown: comments at the margin are prose, all else is code."""
    parts = []
    for part in re.split(r"^((?:#(?: .*)?\n)+)", text, flags=re.MULTILINE):
        if part.startswith("#"):
            parts.append(re.sub(r"^# ?", "", part, flags=re.MULTILINE))
        elif part.strip():
            parts.append(f"\n```python\n{part.strip()}\n```\n\n")
    return "".join(parts)


def read_program(app: Sphinx, name: str, source: list[str]) -> None:
    """Turn the source of a page that is a program into Markdown."""
    if Path(app.env.doc2path(name)).suffix == ".py":
        source[0] = prose_and_code(source[0])


def skip_foreign(app: Sphinx, what: str, name: str, found: object, skip: bool, options: object):
    """Leave out what is passed on from other libraries, such as NumPy's dtypes."""
    home = getattr(found, "__module__", None) or ""
    return True if home.split(".")[0] in {"numpy", "ml_dtypes", "typing"} else None


def tell_users_only(app: Sphinx, what: str, name: str, found: object, options: object, lines: list):
    """Leave out what is for those who work on meshard: the package's own docstring, its tower."""
    if name == "meshard":
        lines.clear()


def setup(app: Sphinx) -> None:
    """Add the drawings and the program to the build."""
    os.environ["MESHARD_NUM_DEVICES"] = "8"
    app.add_directive("drawing", Drawing)
    app.connect("builder-inited", draw)
    app.connect("source-read", read_program)
    app.connect("autodoc-skip-member", skip_foreign)
    app.connect("autodoc-process-docstring", tell_users_only)
