"""`meshard example` and `meshard bench`."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from pathlib import Path

import pytest

import meshard
from meshard.cli import main
from meshard.cli.examples import all_examples
from tests.commands import documented, on_terminal, piped, status

ROOT = Path(__file__).parents[1]
NAMES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))


def test_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["example"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["example", "what", "it", "computes"]
    assert [row.split()[0] for row in rows] == NAMES
    assert main(["example", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed.keys() == documented("example")
    found = printed["examples"]
    assert [x["name"] for x in found] == NAMES
    assert all(x.keys() == {"name", "about", "path"} for x in found)
    assert all(x["about"] and Path(x["path"]).is_file() for x in found)


def test_one_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["example", "heat"]) == 0
    assert capsys.readouterr().out == (ROOT / "examples" / "heat.py").read_text()
    printed, code = on_terminal("example", "heat", columns=60)
    assert code == 0
    assert "\x1b[" in printed
    source = (ROOT / "examples" / "heat.py").read_text()
    assert re.sub(r"\x1b\[[\d;]*m", "", printed) == source


def test_one_runs() -> None:
    done = piped("example", "life", "--run")
    assert (done.returncode, done.stderr) == (0, "")
    assert "as in plain NumPy: True" in done.stdout


def test_one_runs_in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    run = importlib.import_module("meshard.cli.run")
    monkeypatch.setattr(run, "run", lambda *given, **more: asked.append((given, more)) or 7)
    assert main(["example", "life", "--run", "-n", "2"]) == 7
    assert asked == [(([str(ROOT / "examples" / "life.py")],), {"processes": 2})]


def test_copies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "mine" / "too"
    assert main(["example", "life", "--copy", str(target)]) == 0
    assert capsys.readouterr().err == f"wrote life.py to {target}\n"
    assert [path.name for path in target.iterdir()] == ["life.py"]
    (target / "life.py").write_text("changed")
    assert main(["example", "--copy", str(target)]) == 1
    message = f"meshard example: {target / 'life.py'} exists already; remove it, or name another"
    assert message in capsys.readouterr().err
    assert (target / "life.py").read_text() == "changed"
    assert len([*target.iterdir()]) == 1
    (target / "life.py").unlink()
    assert main(["example", "--copy", str(target)]) == 0
    assert sorted(path.stem for path in target.iterdir()) == NAMES


def test_those_of_the_wheel_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meshard, "__file__", str(tmp_path / "src" / "meshard" / "__init__.py"))
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    assert {path.parent for path in all_examples().values()} == {tmp_path / "examples"}
    wheel = tmp_path / "src" / "meshard" / "examples"
    shutil.copytree(ROOT / "examples", wheel)
    assert {path.parent for path in all_examples().values()} == {wheel}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["heet"], 1, "meshard example: there is no example named 'heet'; did you mean 'heat'?\n"),
        (["zzz"], 1, "there is no example named 'zzz'; they are block_sort, "),
        (["--run"], 2, "--run takes the NAME of one example, and nothing else\n"),
        (["heat", "-n", "2"], 2, "-n is for --run\n"),
        (["heat", "--copy", "/dev/null/x"], 1, "/dev/null/x cannot be written: Not a directory\n"),
    ],
)
def test_refusals(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(["example", *arguments]) == code
    assert message in capsys.readouterr().err


def test_missing_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "lib" / "meshard" / "__init__.py"
    monkeypatch.setattr(meshard, "__file__", str(package))
    assert main(["example"]) == 1
    assert f"looked for {package.parent / 'examples'} and " in capsys.readouterr().err
    assert main(["bench", "--quick"]) == 1
    message = capsys.readouterr().err
    assert message.startswith(f"meshard bench: the benchmarks are not installed ({tmp_path}/bench ")
    assert "pip download --no-deps --no-binary meshard meshard" in message


def test_bench_passes_arguments_and_exit_codes_on() -> None:
    done = piped("bench", "--compare", "one")
    assert done.returncode == 2
    assert "usage: python -m bench" in done.stderr
