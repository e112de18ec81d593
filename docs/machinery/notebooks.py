"""The guide as notebooks: each page with code, run in a kernel, to be downloaded.

In: the pages' Markdown. Out: ``made/notebooks/NAME.ipynb`` with the outputs of the run, and a link
at the top of each page. A cell that fails and does not show its error on the page stops the build.

``python -m machinery.notebooks PAGE FILE`` makes one.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import snippets

from meshard._version import DOCS

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parents[1]
MADE = HERE.parent / "build" / "docs" / "made" / "notebooks"
SOURCE = HERE.parent / "src" / "meshard"


def pages() -> list[Path]:
    """Return the pages of the guide that have code."""
    found = (p for p in sorted(HERE.glob("*.md")) if p.stem != "index")
    return [p for p in found if "```python" in p.read_text()]


def cells(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the cells of a page: the kind, the text, and what the page says that it prints."""
    end, prose = 0, ""
    blocks = {block.span[0]: block for block in snippets.blocks_of(text)}
    for fence in snippets.FENCE.finditer(text):
        block = blocks.get(fence.start(2))
        promise = any(b.promised and b.promised.span() == fence.span() for b in blocks.values())
        prose += text[end : fence.start()]
        end = fence.end()
        own = block is not None and "__import__" in block.code  # a drawing that only pages have
        if promise or own:
            continue
        if block is None or block.kind == "shell-session" or block.is_job:
            prose += fence[0]  # commands, and programs that MPI starts, are quoted
            if block is not None and block.promised:
                prose += f"\n\n{block.promised[0]}"
            continue
        yield "markdown", plain(prose), ""
        prose = ""
        yield "code", code(block), block.promised[2] if block.promised else ""
    yield "markdown", plain(prose + text[end:]), ""


def plain(prose: str) -> str:
    """Return Markdown that a notebook shows: links lead to the site, directives are left out."""
    prose = re.sub(
        r"<!-- .*? -->\n?|^\([\w-]+\)=\n|^:::.*\n|\A---\n.*?\n---\n", "", prose, flags=re.M
    )
    return re.sub(r"\]\(([\w/.-]+)\.(?:md|py)(#[\w-]*)?\)", rf"]({DOCS}/\1.html\2)", prose).strip()


def code(block: snippets.Block) -> str:
    """Return a block as the code of a cell."""
    if block.kind == "drawing":
        shown = "HTML(shown) if isinstance(shown, str) else shown"
        return f"from IPython.display import HTML\n\nshown = {block.code.strip()}\n{shown}"
    if block.processes is None:
        return block.code.strip()
    processes, devices = block.processes
    body = textwrap.indent(block.code.strip(), "    ")
    head = "from meshard.testing import simulate\n\n\ndef in_each_process():\n"
    return f"{head}{body}\n\n\nsimulate({processes}, {devices}, in_each_process)"


def notebook_of(page: Path):
    """Return a page as a notebook that has not been run, and what each cell promises."""
    from nbformat import v4

    found = [cell for cell in cells(page.read_text()) if cell[1]]
    made = v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    for number, (kind, text, _) in enumerate(found):
        new = v4.new_code_cell if kind == "code" else v4.new_markdown_cell
        made.cells.append(new(text, id=f"cell-{number}"))
    return made, [promise for *_, promise in found]


def run(page: Path, target: Path) -> None:
    """Run a page as a notebook, and save it."""
    import nbformat
    from nbclient import NotebookClient

    made, promises = notebook_of(page)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(made, timeout=120, allow_errors=True, kernel_name="python3")
        client.extra_arguments = ["--log-level=ERROR"]
        client.execute(cwd=folder)
    for cell, promise in zip(made.cells, promises, strict=True):
        for output in cell.get("outputs", ()):
            if output.output_type == "error" and output.ename not in promise:
                text = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(output.traceback))
                raise SystemExit(f"{page.name} as a notebook: this fails\n{cell.source}\n{text}")
    made.metadata["stamp"] = stamp(page)
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(made, target)


def stamp(page: Path) -> str:
    """Return what changes when a page or the library does."""
    newest = max(path.stat().st_mtime_ns for path in SOURCE.rglob("*.py"))
    return hashlib.sha256(f"{newest}{page.read_text()}".encode()).hexdigest()


def make_notebooks(app: Sphinx) -> None:
    """Make the notebooks of the pages that have changed, two at a time."""

    def make(page: Path) -> bool:
        target = MADE / f"{page.stem}.ipynb"
        if target.exists() and stamp(page) in target.read_text():
            return True
        command = [sys.executable, "-m", "machinery.notebooks", str(page), str(target)]
        own = {k: v for k, v in os.environ.items() if not k.startswith("MESHARD_")}
        return subprocess.run(command, cwd=HERE, env=own).returncode == 0

    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(make, pages()))
    if not all(done):
        raise SystemExit("A page's code does not run as a notebook.")


def link(app: Sphinx, name: str, source: list[str]) -> None:
    """Put a link to its notebook below the title of a page."""
    if (MADE / f"{name}.ipynb").exists() and (HERE / f"{name}.md").exists():
        place = f"_static/notebooks/{name}.ipynb"
        text = f'<a class="notebook" href="{place}" download>Download as a notebook</a>\n\n'
        source[0] = re.sub(r"^(# .*\n+)", lambda m: m[1] + text, source[0], count=1, flags=re.M)


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the notebooks to a build."""
    app.connect("builder-inited", make_notebooks)
    app.connect("source-read", link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]))
