"""The site: the names of its reference, the programs of its gallery, its notebooks, its links."""

import ast
import importlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path.append(str(DOCS))

from machinery import names, notebooks, numpy_names, programs  # noqa: E402

from meshard._version import DOCS as DOCS_ADDRESS  # noqa: E402
from meshard._version import REPOSITORY  # noqa: E402
from tests.printed import PRINTS, TRAINING, assert_trained  # noqa: E402
from tests.test_api import public_modules, public_names  # noqa: E402

PAGES = sorted(DOCS.rglob("*.md"))
TEXTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md")]


# the reference


def test_every_public_name_is_in_the_reference_and_in_dir() -> None:
    listed = {entry.full for entry in names.entries()}
    assert {name for name, _ in public_names()} - listed == set()
    for name in listed:
        door, _, own = name.rpartition(".")
        assert own in dir(importlib.import_module(door)), name


def test_every_public_module_has_its_place_in_the_reference() -> None:
    described = set()
    for page in (DOCS / "api").glob("*.md"):
        described |= set(re.findall(r"(?:\{door\}|automodule::) ([\w.]+)", page.read_text()))
    public = {module.__name__ for module in public_modules()}
    assert public - described == set()
    assert set(names.doors()) - described == set()


def test_each_thing_has_one_page_and_its_other_names_lead_there() -> None:
    found = {entry.full: entry for entry in names.entries()}
    for entry in found.values():
        home = found[entry.home]
        assert home.home == home.full
        assert home.value is entry.value
    assert found["meshard.sharding.Mesh"].home == "meshard.Mesh"
    assert found["meshard.pjit"].home == "meshard.jit"
    assert found["meshard.numpy.acos"].home == "meshard.numpy.arccos"
    assert found["meshard.checkpoint.KeyMapError"].home == "meshard.errors.KeyMapError"
    for late in ("jit", "shard_map", "explain", "eval_shape", "testing.meshes"):
        assert found[f"meshard.{late}"].has_page


def test_pages_of_names_lead_to_numpy_and_say_which_arguments_differ() -> None:
    found = {entry.full: names.page_of(entry) for entry in names.entries() if entry.has_page}
    numpy = "https://numpy.org/doc/stable/reference/generated/numpy"
    assert f"`numpy.sort <{numpy}.sort.html>`__" in found["meshard.numpy.sort"]
    assert "Only here: ``descending``." in found["meshard.numpy.sort"]
    assert "Not taken here: ``subok``," in found["meshard.numpy.array"]
    assert f"{numpy}.arccos.html" in found["meshard.numpy.arccos"]
    assert "In NumPy" not in found["meshard.lax.psum"]
    assert ":py:obj:`at <meshard.Array.at>`" in found["meshard.Array"]
    assert names.linked("as ``numpy.add``") == f"as `numpy.add <{numpy}.add.html>`__"
    assert names.linked("``numpy.none_such`` ``x.add``") == "``numpy.none_such`` ``x.add``"


def test_summaries_are_single_sentences() -> None:
    for entry in names.entries():
        if entry.kind in ("function", "class", "exception"):
            text = names.first_sentence(entry.value)
            assert text, entry.full
            assert "\n" not in text


# the gallery


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """What each program of the gallery shows, from one run of all of them."""
    folder = tmp_path_factory.mktemp("gallery")
    command = [sys.executable, "-m", "machinery.programs", str(folder), "--short"]
    done = subprocess.run(command, cwd=DOCS, capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stderr
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


def test_every_example_is_in_the_gallery() -> None:
    examples = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert len(examples) >= 20
    assert set(programs.names()) == examples
    page = (DOCS / "gallery" / "index.md").read_text()
    assert re.findall(r"^\w+$", page[page.index("{toctree}") :], re.MULTILINE) == programs.names()
    assert set(programs.shows()) == examples, "each has a row in examples/README.md"


@pytest.mark.timeout(240)  # it runs all of them
def test_every_program_has_a_picture_an_output_and_a_ledger(shown: dict[str, dict]) -> None:
    assert set(shown) == set(programs.names())
    silent = set()
    for name, found in shown.items():
        ElementTree.fromstring(found["svg"])
        if "absent" in found:
            continue
        assert found["printed"].strip(), name
        assert sum(int(row[-1].replace(",", "")) for row in found["rows"]) == found["total"]
        silent |= {name} if not found["total"] else set()
        text = "\n".join(programs.page_of(name, found))
        assert text.count("What it moves") == text.count("What it prints") == 1
    assert silent <= {"mandelbrot", "weight_sync", "monte_carlo", "elastic_training", "checkpoint"}


def test_every_program_gives_what_numpy_gives(shown: dict[str, dict]) -> None:
    checked = set()
    for name, found in shown.items():
        printed = found.get("printed", "")
        for error in re.findall(r"differs?.* by:? ([-+.\de]+)$", printed, flags=re.MULTILINE):
            assert float(error) < 1e-9, name
            checked.add(name)
    assert len(checked) >= 14
    for name, text in PRINTS.items():
        assert text in shown[name]["printed"]
    for name, (steps, _) in TRAINING.items():
        assert programs.SHORT[name] == steps
        assert_trained(name, shown[name]["printed"])
    assert shown["mandelbrot"]["total"] == 0
    assert "the same bits: True" in shown["monte_carlo"]["printed"]
    moved = [row[6] for row in shown["summa"]["rows"]]
    assert moved
    by_arrangement = re.findall(r"([\d,]+) bytes to each device", shown["summa"]["printed"])
    assert len(by_arrangement) == 3
    amounts = [int(text.replace(",", "")) for text in by_arrangement]
    assert amounts == sorted(amounts, reverse=True)


@pytest.mark.parametrize("name", programs.names())
def test_programs_say_how_to_run_and_fit_a_page(name: str) -> None:
    source = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    text = ast.get_docstring(ast.parse(source)) or ""
    assert f"examples/{name}.py\n" in text
    assert len(source.splitlines()) <= (220 if name == "nano_transformer" else 120)
    title, about = programs.told(name)
    assert title
    assert "examples/" not in about


# the notebooks


def test_pages_become_notebooks() -> None:
    page = (
        "# Title\n\nSee [that](other.md#part).\n\n```python\nx = 1\nprint(x)\n```\n\n"
        "```text\n1\n```\n\n<!-- 2 processes of 4 devices -->\n```python\ny = 2\n```\n\n"
        "```{drawing}\nx.svg()\n```\n\n```shell-session\n$ meshard info\n```\n\nEnd.\n"
    )
    (prose, first, second, drawing, end) = [c for c in notebooks.cells(page) if c[1]]
    assert prose[0] == end[0] == "markdown"
    assert "/other.html#part)" in prose[1]
    assert first == ("code", "x = 1\nprint(x)", "1\n")
    assert second[1].endswith("    y = 2\n\n\nsimulate(2, 4, in_each_process)")
    assert "shown = x.svg()" in drawing[1]
    assert "$ meshard info" in end[1]


def test_cells_of_all_pages_are_programs() -> None:
    assert len(notebooks.pages()) >= 10
    for page in notebooks.pages():
        for kind, text, _ in notebooks.cells(page.read_text()):
            if kind == "code":
                ast.parse(text)


# links


def anchors(page: Path) -> set[str]:
    """The anchors of a page, as MyST makes them for headings, and those that it names."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = set(re.findall(r"^\(([\w-]+)\)=$", text, flags=re.MULTILINE))
    for heading in re.findall(r"^#{1,3} (.*)$", text, flags=re.MULTILINE):
        plain = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\s-]", "", plain).strip().replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", [*TEXTS, *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`\n]*`(?!\])", "", text)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        address = target.removeprefix(f"{REPOSITORY}/blob/main/")
        inside = ROOT / address if address != target else page.parent / target
        if address == target and ":" in target:
            continue  # another site
        path, _, anchor = str(inside).partition("#")
        file = page if path == str(page.parent) else Path(path)
        assert file.exists(), f"{page}: {target}"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{page}: {target}"


def test_readme_links_are_whole_on_a_package_index() -> None:
    """The build makes them absolute (see pyproject.toml): what is left would lead nowhere."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for rule in tool["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    found = re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"", text)
    assert len(found) > 10
    for target in ("".join(both) for both in found):
        assert target.startswith(("https://", "#")), target
        page = target.removeprefix(f"{DOCS_ADDRESS}/")
        if page != target:
            name = page.partition("#")[0].removesuffix(".html")
            assert any((DOCS / f"{name}{end}").exists() for end in (".md", ".py")), target


# NumPy's names


NEWEST = np.__version__.startswith("2.4.")
"""Whether this is the NumPy of which the page tells."""


def test_every_name_of_numpy_has_an_answer():
    bare = [a.name for a in numpy_names.answers() if not a.here and not a.why]
    assert not (bare and NEWEST), f"give each a reason in docs/machinery/numpy_names.py: {bare}"
    assert len(list(numpy_names.answers())) > 550


@pytest.mark.skipif(not NEWEST, reason="the page tells of another NumPy")
def test_the_page_of_numpys_names_is_what_they_say():
    made = numpy_names.page()
    told = numpy_names.PAGE.read_text(encoding="utf-8")
    assert told == made, "python docs/machinery/numpy_names.py --write"


def test_no_reason_is_left_over():
    missing = {a.name.rpartition(".")[2] for a in numpy_names.answers() if not a.here}
    assert not NEWEST or numpy_names.NOT_HERE.keys() <= missing
    assert set(numpy_names.NOT_HERE.values()) <= numpy_names.REASONS.keys()


OTHER_PLACES = {"numpy.ndarray.astype": "copy and device, as the Array API standard has them"}


def test_arguments_have_the_places_that_they_have_in_numpy():
    wrong = {}
    for space, (theirs, ours) in numpy_names.SPACES.items():
        for name in numpy_names.public(theirs):
            if hasattr(ours, name) and f"{space}.{name}" not in OTHER_PLACES:
                why = numpy_names.misplaced(getattr(theirs, name), getattr(ours, name))
                wrong |= {f"{space}.{name}": why} if why else {}
    assert wrong == {}


def test_a_misplaced_argument_is_noticed():
    assert numpy_names.misplaced(np.sum, lambda a, axis, keepdims: a) == (
        "keepdims where NumPy has dtype"
    )
    assert numpy_names.compared(np.sum, lambda a, axis=None, more=1: a) == (
        ("dtype", "keepdims", "initial", "where"),
        ("more",),
    )
