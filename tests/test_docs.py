"""The documentation's code runs as it is written there, and prints what the pages say."""

import enum
import importlib.util
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import meshard
from meshard.errors import ConfigError
from meshard.settings import INTERNAL
from tests.test_api import collectives, public_names

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "src" / "meshard"
PAGES = sorted(DOCS.rglob("*.md"))
TEXTS = [ROOT / name for name in ("CONTRIBUTING.md", "DESIGN.md", "README.md")]
WITH_CODE = [page for page in PAGES if "```python" in page.read_text()]

SPEC = importlib.util.spec_from_file_location("snippets", DOCS / "snippets.py")
snippets = importlib.util.module_from_spec(SPEC)
sys.modules["snippets"] = snippets  # its dataclass looks there
SPEC.loader.exec_module(snippets)


def run(page: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DOCS / "snippets.py"), str(page)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def names_of(pages: list[Path]) -> list[str]:
    return [str(page.relative_to(DOCS)) for page in pages]


@pytest.mark.parametrize("page", WITH_CODE, ids=names_of(WITH_CODE))
def test_a_page_does_what_it_says(page: Path) -> None:
    done = run(page)
    assert done.returncode == 0, done.stderr


def test_what_a_page_says_wrongly_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for code, promised, fault in [
        ("print(1)", "2", "the page says"),
        ("1 / 0", None, "ZeroDivisionError"),
        ("1 / 0", "NameError: no", "division by zero"),
        ("print(1)", None, "prints, unseen"),
        ("", "anything", "the page says"),
        ("import meshard\nmeshard.pmap", "TypeError: no", "use shard_map"),
        # What another version of Python may write in another way.
        ("1 / 0", "ZeroDivisionError: division by zero", "this fails"),
        ("import collections\nprint(collections.OrderedDict(a=1))", "x", "collections.OrderedDict"),
        ("import pathlib\nprint([pathlib.Path()])", "x", "depends on the version of Python"),
        ("print({1: object()})", "x", "the text of builtins.object depends on the version"),
    ]:
        shown = "" if promised is None else f"\n```text\n{promised}\n```\n"
        page.write_text(f"# Page\n\n```python\n{code}\n```\n{shown}")
        assert fault in "".join(snippets.check(page)), code
    done = run(page)
    assert done.returncode == 1
    assert "the text of builtins.object" in done.stderr
    page.write_text("```python\nprint('a   b')\n```\n\n```text\na b\n```\n")
    assert run(page).returncode == 0


def test_commands_of_a_page_are_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    made = "```python\nopen('made.txt', 'w').close()\n```\n"
    shown = "$ meshard inspect \\\n  made.txt\nmeshard inspect: made.txt: ... it is empty.\n"
    for session, fault in [
        ("$ meshard nothing\n", "invalid choice: 'nothing'"),
        (shown.replace("empty", "full"), "it is empty."),
        ("$ rm made.txt\n", "'$ rm made.txt' is not a command of meshard's"),
    ]:
        page.write_text(f"{made}\n```shell-session\n{session}```\n")
        done = run(page)
        assert done.returncode == 1
        assert fault in done.stderr
    page.write_text(f"{made}\n```shell-session\n{shown}```\n")
    done = run(page)
    assert done.returncode == 0, done.stderr
    assert not Path("made.txt").exists()


def test_public_values_are_written_alike_in_every_version_of_python() -> None:
    """Abstract classes have no values; Enum has written `<A.B: 1>` in all supported versions."""
    ours = {
        name: found
        for name, found in public_names()
        if isinstance(found, type)
        and found.__module__.startswith("meshard.")
        and not issubclass(found, BaseException | enum.Enum)
        and not inspect.isabstract(found)
        and not hasattr(found, "dtype")  # float32 and its kin make arrays
        and not getattr(found, "_is_protocol", False)
    }
    assert len(ours) > 20
    wrong = {name for name, kind in ours.items() if snippets.may_change(snippets.writer_of(kind))}
    assert wrong == set()


def test_a_page_can_be_run_by_several_processes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nimport meshard\n```\n\n<!-- 2 processes of 3 devices -->\n```python\n"
        "if meshard.process_index() == 1:\n    print(meshard.device_count())\n```\n\n"
        "```text\n6\n```\n"
    )
    done = run(page)
    assert done.returncode == 0, done.stderr


def names_of_sources(text: str) -> Iterator[str]:
    """Find what looks like a path to a source, as pages write it: in code, with a slash."""
    for code in re.findall(r"`([^`\n]+)`", text):
        for word in re.findall(r"\w[\w./]*", code):
            room = word.partition("/")[0]
            if "/" in word and ((ROOT / room).is_dir() or (PACKAGE / room).is_dir()):
                yield word.removesuffix("/")


def is_a_source(name: str) -> bool:
    """Whether a path is one from the root or the package, or names something in a module."""
    module = name if "." not in name else name.rpartition(".")[0]
    found = [folder / n for folder in (ROOT, PACKAGE) for n in (name, f"{name}.py", f"{module}.py")]
    return any(path.exists() for path in found)


@pytest.mark.parametrize("page", [*TEXTS, *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_sources_that_a_page_names_exist(page: Path) -> None:
    named = set(names_of_sources(page.read_text()))
    made = {"build/docs/html", "build/pictures"}
    assert [name for name in sorted(named - made) if not is_a_source(name)] == []


def test_a_source_that_is_gone_is_noticed() -> None:
    text = "`plan/planner` `ops/random/keys.DOMAINS` `bench/house.py` and/or `ops/decide`, `a/b`"
    assert [n for n in names_of_sources(text) if not is_a_source(n)] == ["ops/decide"]


def test_tests_that_a_page_names_exist() -> None:
    sources = {path.name: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    for page in [*TEXTS, *PAGES]:
        file = ""
        for name, test in re.findall(r"`(?:(test_\w+\.py)::)?(test_\w+)`", page.read_text()):
            file = name or file
            found = sources.get(file, "") if name else "".join(sources.values())
            assert f"def {test}(" in found or f"{test}.py" in sources, f"{page}: {file} {test}"


def test_every_setting_of_the_environment_is_told() -> None:
    told = set(re.findall(r"MESHARD_[A-Z_]+[A-Z]", (DOCS / "processes.md").read_text()))
    sources = (ROOT / "src").rglob("*.py")
    read = {name for p in sources for name in re.findall(r"MESHARD_[A-Z_]+[A-Z]", p.read_text())}
    with pytest.raises(ConfigError, match="the settings are") as caught:
        meshard.config.read("none")
    settings = str(caught.value).partition("the settings are ")[2].rstrip(".").split(", ")
    read |= {f"MESHARD_{name.upper()}" for name in settings}
    read -= {*INTERNAL, "MESHARD_TEST"}
    assert read - told == set(), "add them to the table of docs/processes.md"


def test_every_collective_is_told() -> None:
    told = set(re.findall(r"`(\w+)", (DOCS / "programs.md").read_text()))
    assert collectives() - told == set(), "add them to the table of docs/programs.md"
