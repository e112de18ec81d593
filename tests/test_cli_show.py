"""`meshard show`, and what all commands that print facts have in common."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from meshard.cli import main
from tests.commands import documented, on_terminal, piped, status

MESH = ("--mesh", "data=2,model=2")
SHOW = ("show", "8x6", "P('data', 'model')", *MESH)


def test_a_layout_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SHOW) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "[8,6]  P('data', 'model') over Mesh('data': 2, 'model': 2)  4 blocks of [4,3]"
    )
    assert max(map(len, lines)) <= 100
    assert re.findall(r"VIRTUAL (\d)", "\n".join(lines)) == ["0", "1", "2", "3"]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "7", "P('data')", *MESH, "--uneven", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == documented("show")
    assert found == {
        "shape": [7],
        "spec": "P('data',)",
        "mesh": {"data": 2, "model": 2},
        "uneven": "balanced",
        "replicas": 2,
        "blocks": [
            {"start": [0], "stop": [4], "devices": [0, 1]},
            {"start": [4], "stop": [7], "devices": [2, 3]},
        ],
    }


def test_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg, html = tmp_path / "layout.svg", tmp_path / "layout.html"
    assert main([*SHOW, "--svg", str(svg), "--html", str(html)]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"wrote {svg}\nwrote {html}\n"
    assert svg.read_text().startswith("<svg")
    assert html.read_text().startswith("<!DOCTYPE html>")
    assert "<svg" in html.read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["7", "P('data')", *MESH],
            1,
            "meshard show: dim 0 of 7 has size 7, which data=2 does not divide; --uneven allows "
            "blocks that differ by one\n",
        ),
        (
            ["8x6", "P(('data', 'model'), None)", "--mesh", "data=2,model=3"],
            1,
            "dim 0 of 8x6 has size 8, which data=2 and model=3 do not divide; --uneven allows ",
        ),
        (
            ["8", "P('data', 'model')", *MESH],
            1,
            "P('data', 'model') is for 2 or more dims, but the shape 8 has 1",
        ),
        (
            ["8", "P('dta')", *MESH],
            2,
            "meshard show: the mesh has no axis 'dta'; its axes: 'data', 'model'; did you mean "
            "'data'?\n    P('dta')\n      ^\nUsage: ",
        ),
        (
            ["8x", "P()", *MESH],
            2,
            "meshard show: argument SHAPE: a shape is written as sizes, such as 1024x512, or "
            "scalar\n    8x\n      ^\n",
        ),
        (["8", "P()"], 2, "the following arguments are required: --mesh"),
        (
            ["8", "P()", *MESH, "--svg", "/no/such/folder/x.svg"],
            1,
            "meshard show: /no/such/folder/x.svg cannot be written: No such file or directory\n",
        ),
    ],
)
def test_refusals(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(["show", *arguments]) == code
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""


def test_on_a_terminal_there_are_colours_and_in_a_pipe_none() -> None:
    printed, code = on_terminal(*SHOW)
    assert code == 0
    assert "\x1b[" in printed
    bare = re.sub(r"\x1b\[[0-9;]*m", "", printed)
    assert max(map(len, bare.splitlines())) <= 90
    done = piped(*SHOW)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr


def test_an_encoding_without_lines_has_plain_ones() -> None:
    done = piped(*SHOW, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "+---" in done.stdout
