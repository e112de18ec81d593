"""The reference: a page for each public name, and tables of them for each door.

In: the names (names.py). Out: a page for each function and class in ``docs/api/generated``, which
git ignores; the directive ``{door} meshard.lax``, which tells what a module has, in groups. The
build fails if a public name is not in the inventory (``objects.inv``) that other projects' links
are made of.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from machinery.names import ORDER, Entry, entries, linked, page_of, table, told

FOLDER = "api/generated"


class Door(SphinxDirective):
    """Tell what a module has: its docstring, and tables of its names by group."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        door = self.arguments[0]
        lines = [f".. automodule:: {door}", "   :no-members:", ""]
        groups: dict[str, list[Entry]] = {}
        for entry in entries():
            if entry.door == door:
                groups.setdefault(entry.group, []).append(entry)
        for title in sorted(groups, key=ORDER.__getitem__):
            found = groups[title]
            if len(groups) > 1:
                lines += [f".. rubric:: {title}", "   :heading-level: 3", ""]
            if title == "Dtypes":
                lines += [", ".join(told(entry)[0] for entry in found), ""]
            else:
                lines += table([told(entry) for entry in found])
        text = "\n".join(lines)
        return [*self.targets(door), *self.parse_text_to_nodes(f"```{{eval-rst}}\n{text}\n```")]

    def targets(self, door: str) -> Iterator[nodes.Node]:
        """Put what has no page of its own into the inventory, on this page."""
        for entry in entries():
            if entry.door == door and not entry.has_page and entry.kind != "module":
                aliased = entry.home != entry.full and door != "meshard"
                domain = self.env.get_domain("py")
                domain.note_object(entry.full, entry.kind, entry.full, aliased=aliased)
                yield nodes.target("", "", ids=[entry.full])


def write_pages(app: Sphinx) -> None:
    """Write the pages that have changed, and remove those of names that are gone."""
    folder = Path(app.srcdir, FOLDER)
    folder.mkdir(exist_ok=True)
    pages = {f"{e.full}.rst": page_of(e) for e in entries() if e.has_page and e.kind != "module"}
    for path in folder.glob("*.rst"):
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def link_docstring(
    app: Sphinx, what: str, name: str, found: object, options: object, lines: list[str]
) -> None:
    """Put links to NumPy and SciPy into a docstring; keep the package's own for its workers."""
    lines[:] = [] if name == "meshard" else [linked(line) for line in lines]
    if what == "property" and lines:
        lines[0] = lines[0].replace(":: ", ": ", 1)


def keep_colon(
    app: Sphinx, what: str, name: str, found: object, options: object, lines: list[str]
) -> None:
    """Hide the colon of a property's first sentence from napoleon, which reads a type before it."""
    if what == "property" and lines:
        lines[0] = lines[0].replace(": ", ":: ", 1)


def skip_foreign(
    app: Sphinx, what: str, name: str, found: object, skip: bool, options: object
) -> bool | None:
    """Leave out what is passed on from other libraries, such as NumPy's dtypes."""
    home = getattr(found, "__module__", None) or ""
    return True if home.split(".")[0] in {"numpy", "ml_dtypes", "typing"} else None


def unlink_builtins(app: Sphinx, doctree: nodes.document) -> None:
    """Leave Python's own names in signatures alone: `bool` is not ``meshard.numpy.bool``."""
    for link in list(doctree.findall(addnodes.pending_xref)):
        if link.get("refdomain") == "py" and hasattr(builtins, link["reftarget"]):
            link.replace_self(nodes.Text(link["reftarget"]))


def absent_names(env: BuildEnvironment) -> list[str]:
    """Return the public names that the inventory lacks."""
    domain = env.get_domain("py")
    known = {name for name, *_ in domain.get_objects()}
    return [entry.full for entry in entries() if entry.full not in known]


def check_inventory(app: Sphinx, env: BuildEnvironment) -> None:
    """Refuse a reference without a public name."""
    for name in absent_names(env):
        logging.getLogger(__name__).warning("%s is not in the reference", name)


def source_of(page: str) -> str | None:
    """Return the path of the source that a page of the reference is made of."""
    name = page.removeprefix(f"{FOLDER}/")
    found = next((e.value for e in entries() if e.full == name), None)
    home = getattr(found, "__module__", None) if name != page else None
    return home and "src/" + home.replace(".", "/") + ".py"


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the reference to a build."""
    app.add_directive("door", Door)
    app.connect("builder-inited", write_pages)
    app.connect("autodoc-skip-member", skip_foreign)
    app.connect("autodoc-process-docstring", keep_colon, priority=400)  # napoleon's is 500
    app.connect("autodoc-process-docstring", link_docstring, priority=600)
    app.connect("doctree-read", unlink_builtins)
    app.connect("env-check-consistency", check_inventory)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
