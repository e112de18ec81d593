"""What commands and values print on real terminals, narrow ones too, and in poor encodings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import meshard
from meshard import NamedSharding, P, checkpoint
from tests.commands import on_terminal
from tests.worlds import alone

PROGRAM = """
import meshard.numpy as mnp

def layer(x, w1, w2):
    h = mnp.maximum(x @ w1, 0)
    return h @ w2
"""
VALUES = """
import sys
import numpy as np, meshard
from meshard import NamedSharding, P, debug
sys.path.insert(0, ".")
from layers import layer
mesh = meshard.make_mesh((2, 4), ("data", "model"))
def put(shape, *spec):
    return meshard.device_put(np.ones(shape), NamedSharding(mesh, P(*spec)))
x, w1, w2 = put((64, 256), "data"), put((256, 512), None, "model"), put((512, 256), "model")
print(meshard.explain(layer, x, w1, w2))
with debug.ledger() as log, debug.profile() as seen:
    y = meshard.reshard(layer(x, w1, w2), NamedSharding(mesh, P(None, "model")))
print(log)
print(seen)
print(meshard.checkpoint.metadata("run"))
print(meshard.checkpoint.KeyMap().rename("model.layers.{n}.weight", "layers.{n}.kernel"))
debug.visualize_array_sharding(y)
"""
BYTES = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found: Path = tmp_path_factory.mktemp("terminal")
    (found / "layers.py").write_text(PROGRAM)
    (found / "values.py").write_text(VALUES)

    def save() -> None:
        rows = NamedSharding(meshard.make_mesh((4,), ("i",)), P("i"))
        name = "model.layers.{}.self_attention.query_key_value.projection.weight"
        tree = {name.format(i): meshard.device_put(np.ones((8, 8)), rows) for i in range(3)}
        checkpoint.save(found / "run", tree, step=3)

    alone(save)
    return found


MESH = ("--mesh", "data=4,model=2")
COMMANDS = {
    "help": ("--help",),
    "doctor": ("doctor",),
    "example": ("example",),
    "inspect": ("inspect", "run"),
    "checkpoint": ("checkpoint", "list", "run"),
    "show": ("show", "1024x512", "P('data', 'model')", *MESH),
    "explain": (
        *("explain", "layers.py:layer", *MESH, "--arg", "512x1024::P('data')"),
        *("--arg", "1024x4096::P(None, 'model')", "--arg", "4096x1024::P('model')"),
    ),
    "plan": (
        *("plan", "run", "--to", "P(None, 'model')", "--to-mesh", "data=2,model=2"),
        *("--topology", "8-gpu hosts"),
    ),
    "wrong": ("shwo",),
}


@pytest.mark.parametrize("columns", [60, 100])
@pytest.mark.parametrize(
    "name", ["help", "doctor", "example", "inspect", "checkpoint", "show", "plan"]
)
def test_what_commands_print_fits(folder: Path, name: str, columns: int) -> None:
    printed, code = on_terminal(*COMMANDS[name], columns=columns, cwd=str(folder))
    assert code in (0, 1), printed
    lines = BYTES.sub("", printed).splitlines()
    assert max(map(len, lines)) <= columns, printed
    assert "\x1b[?25l" not in printed  # the cursor stays


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
@pytest.mark.parametrize("name", ["doctor", "inspect", "show", "explain"])
def test_without_colours_there_are_no_escapes_but_lines(
    folder: Path, name: str, variables: dict[str, str]
) -> None:
    printed, _ = on_terminal(*COMMANDS[name], columns=60, cwd=str(folder), **variables)
    assert "\x1b" not in printed
    assert max(map(len, printed.splitlines())) <= 60
    if name in ("inspect", "show"):
        assert "──" in printed


@pytest.mark.parametrize(
    "variables",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"PYTHONIOENCODING": "cp437"},
    ],
)
def test_nothing_fails_in_poor_encodings(folder: Path, variables: dict[str, str]) -> None:
    # The encoding of the first is the least that there is: it stands for all commands.
    names = COMMANDS if variables.get("PYTHONIOENCODING") == "ascii" else ("show", "wrong")
    for arguments in [("-m", "meshard", *COMMANDS[name]) for name in names] + [("values.py",)]:
        result = subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env=os.environ | {"MESHARD_NUM_DEVICES": "8", "COLUMNS": "60"} | variables,
            capture_output=True,
            timeout=60,
            check=False,
        )
        encoding = variables.get("PYTHONIOENCODING", "ascii")
        out, err = result.stdout.decode(encoding), result.stderr.decode(encoding)
        assert result.returncode == (2 if arguments[-1] == "shwo" else 0), err
        assert "Error" not in err
        assert "?" not in out.replace("how?", "")
        assert "\\u" not in out + err
        if "show" in arguments or "values.py" in arguments:
            assert ("┌" if encoding == "cp437" else "+--") in out


def test_printed_values_fit_a_narrow_terminal(folder: Path) -> None:
    for columns in (60, 80):
        printed, code = on_terminal(
            columns=columns,
            program=("values.py",),
            cwd=str(folder),
            MESHARD_NUM_DEVICES="8",
            NO_COLOR="1",
        )
        assert code == 0, printed
        assert max(map(len, printed.splitlines())) <= columns, printed
        assert "┌───" in printed
        assert "all-reduce" in printed.replace("\n", "")
        assert "not shown for lack of width" in printed
