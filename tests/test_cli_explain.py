"""`meshard explain FILE:FUNCTION`: the table, JSON, arguments, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import piped, status

MODEL = """
import beside_explained
import meshard.numpy as mnp

SIZE = 3

class Layer:
    @staticmethod
    def forward(x, w, scale=1.0):
        y = mnp.tanh(x @ w) * scale
        return y / y.sum(axis=1, keepdims=True)

def broken(x):
    return x.missing
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "beside_explained.py").write_text("")
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "unfinished.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "notes.txt").write_text("def f(): ...\n")
    return str(tmp_path / "model.py")


def test_a_function_is_explained(model: str) -> None:
    arguments = ("--arg", "64x32:float32:P('data')", "--arg", "32x16:float32:P(None, 'model')")
    mesh = ("--mesh", "data=4,model=2", "--topology", "two racks")
    page = Path(model).with_name("layer.html")
    done = piped(
        "explain", f"{model}:Layer.forward", *arguments, "--arg", "value: 2.0", *mesh,
        "--html", str(page),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, f"wrote {page}\n")
    lines = done.stdout.splitlines()
    assert lines[0] == "forward: 4 steps on 8 devices"
    (sum_,) = (line for line in lines if " sum " in line)
    assert sum_.startswith("model.py:11")
    assert "all-reduce model" in sum_
    assert page.read_text().startswith("<!DOCTYPE html>")
    done = piped("explain", f"{model}:Layer.forward", *arguments, *mesh, "--json")
    found = json.loads(done.stdout)
    assert found["topology"] == "two racks"
    assert found["total_bytes"] == sum(step["total_bytes"] for step in found["steps"]) > 0


@pytest.mark.parametrize(
    ("function", "arguments", "code", "message"),
    [
        ("model.py:Layr", [], 1, "model.py has no function 'Layr'; did you mean 'Layer'?\n"),
        ("model.py:Layer.back", [], 1, "has no function 'Layer.back'; it has forward\n"),
        ("model.py:SIZE", [], 1, "'SIZE' of {folder}/model.py is of type int; name a function\n"),
        ("model.py", [], 2, "names no function; write the file and the function, as in {folder}/"),
        ("none.py:f", [], 1, "meshard explain: {folder}/none.py: there is no such file\n"),
        ("notes.txt:f", [], 1, "notes.txt is not a Python file; its name should end with .py\n"),
        (
            "unfinished.py:f",
            [],
            1,
            "unfinished.py cannot be imported\nTraceback (most recent call last):\n"
            '  File "{folder}/unfinished.py", line 1, in <module>\n',
        ),
        ("model.py:broken", ["--arg", "3"], 1, "model.py:broken fails\nTraceback (most recent "),
        (
            "model.py:broken",
            [],
            1,
            "model.py:broken fails\nTypeError: broken() missing 1 required positional argument",
        ),
        ("model.py:broken", ["--arg", "3:float32:P('a')"], 2, "P('a') needs a mesh; give --mesh"),
        ("model.py:broken", ["--arg", "3:flot32"], 2, "--arg: there is no such dtype; did you "),
        ("model.py:broken", ["--arg", "value:f()"], 2, "a value is a number, a text in quotes,"),
    ],
)
def test_refusals(
    function: str,
    arguments: list[str],
    code: int,
    message: str,
    model: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = Path(model).parent
    assert status(["explain", f"{folder}/{function}", *arguments]) == code
    printed = capsys.readouterr()
    assert message.replace("{folder}", str(folder)) in printed.err
    assert printed.err.startswith("meshard explain: ")
    assert printed.out == ""
