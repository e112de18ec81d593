"""How Sphinx builds the site: pages, their drawings, the text that runs, the reference."""

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from machinery.site import MADE  # noqa: E402  (it is found by the line above)

from meshard import _version  # noqa: E402

DOCS, REPOSITORY = _version.DOCS, _version.REPOSITORY
MADE.mkdir(parents=True, exist_ok=True)

project = "meshard"
copyright = "the meshard authors"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "machinery.site",
    "machinery.drawings",
    "machinery.reference",
    "machinery.gallery",
    "machinery.notebooks",
]
# from_scratch.py is a page too: its comments are its prose.
source_suffix = {".md": "markdown", ".py": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["conf.py", "pictures.py", "snippets.py", "_static", "machinery", "_templates"]
nitpicky = False
default_role = "code"  # docstrings say `name`

html_theme = "furo"
html_title = "meshard"
html_baseurl = f"{DOCS}/"
html_static_path = ["_static", str(MADE)]
html_css_files = ["meshard.css"]
html_theme_options = {
    "source_repository": REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
}
templates_path = ["_templates"]
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

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


def setup(app: Sphinx) -> None:
    """Add the program that is a page."""
    app.connect("source-read", read_program)
