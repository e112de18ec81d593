"""Names come from files: none moves the cursor or the direction of a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshard
from meshard import checkpoint
from meshard.cli.main import main
from meshard.errors import MeshardError, visible

BAD = "w\x1b[2J\x9b31m\r\n\u202e\u2066\u2028\x7fend"
SHOWN = visible(BAD)
HARMFUL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def check(text: str) -> None:
    """Refuse a text that has the name as it is; a line break is one only between whole lines."""
    assert not HARMFUL.search(text), text.encode("unicode_escape")
    assert not re.search(r"^\\u202e", text, re.MULTILINE), "a name breaks the line"


def saved(folder: Path) -> Path:
    """Save a tree with such names in a folder of such a name."""
    path = folder / BAD
    checkpoint.save(path, {BAD: np.arange(6.0), "text": BAD, "more": {BAD: np.ones(3)}})
    return path


def other(path: Path) -> dict[str, Any]:
    return {BAD + "x": np.ones(2)}


_Call = Callable[[Path], object]
CALLS: dict[str, list[_Call]] = {
    "clean": [lambda path: checkpoint.clean(path / "none")],
    "convert": [
        lambda path: checkpoint.convert(path / "none", path.parent / "x.safetensors"),
        lambda path: checkpoint.convert(path, path.parent / "x.npy"),
        lambda path: checkpoint.convert(path, path.parent / f"{BAD}.pt"),
    ],
    "latest": [lambda path: checkpoint.latest(path / "none")],
    "load": [
        lambda path: checkpoint.load(path / "none"),
        lambda path: checkpoint.load(path, like=other(path)),
        lambda path: checkpoint.load(path, like={BAD: np.ones(9)}),
        lambda path: checkpoint.load(path, step=7),
        lambda path: checkpoint.load(path, {BAD: "no sharding"}),
    ],
    "load_iter": [lambda path: list(checkpoint.load_iter(path / "none"))],
    "metadata": [
        checkpoint.metadata,
        lambda path: checkpoint.metadata(path / "none"),
        lambda path: (
            next(iter(path.rglob("*.safetensors"))).write_bytes(b"") or checkpoint.metadata(path)
        ),
    ],
    "plan_load": [checkpoint.plan_load, lambda path: checkpoint.plan_load(path / "none")],
    "plan_save": [lambda path: checkpoint.plan_save({BAD: np.ones(3)})],
    "save": [
        lambda path: checkpoint.save(path, other(path)),
        lambda path: checkpoint.save(path.parent / f"{BAD}.h5", other(path)),
        lambda path: checkpoint.save(path.parent / "x.zarr", {BAD: "text"}),
        lambda path: checkpoint.save(path.parent / "x.zarr", {"..": np.ones(2)}),
        lambda path: checkpoint.save(
            path.parent / f"{BAD}/x.npy", {**other(path), "b": np.ones(2)}
        ),
        lambda path: checkpoint.save(path, {BAD: object()}),
        lambda path: checkpoint.save(path, {BAD: {"a": np.ones(2)}, f"{BAD}.a": np.ones(2)}),
    ],
    "steps": [lambda path: checkpoint.steps(path / "none")],
    "verify": [
        lambda path: (
            [p.write_bytes(p.read_bytes()[:-1] + b"!") for p in path.glob("data*/*")]
            and "\n".join(map(str, checkpoint.verify(path)))
        ),
        lambda path: checkpoint.verify(path / "none"),
    ],
}
QUIET = {"record", "template"}
"""They make maps of names, and neither read nor print."""


def functions() -> Iterator[str]:
    for name in dir(checkpoint):
        if not name.startswith("_") and callable(getattr(checkpoint, name)) and name.islower():
            yield name


def test_every_function_of_checkpoints_is_tried() -> None:
    assert not set(functions()) - CALLS.keys() - QUIET


@pytest.mark.parametrize(
    ("name", "number"), [(name, k) for name, calls in CALLS.items() for k in range(len(calls))]
)
def test_what_a_call_prints_has_no_raw_name(name: str, number: int, tmp_path: Path) -> None:
    path = saved(tmp_path)
    try:
        found = CALLS[name][number](path)
    except MeshardError as error:
        check(str(error))
        return
    assert name in ("metadata", "plan_load", "plan_save", "verify"), "it is not refused"
    check(str(found))


@pytest.mark.parametrize("command", ["inspect", "verify", "inspect --rows", "reshard", BAD])
@pytest.mark.parametrize("inner", ["", "/none"])
def test_what_a_command_prints_has_no_raw_name(
    command: str, inner: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path)
    with suppress(SystemExit):
        main([*command.split(" "), *[BAD] * (" " in command), f"{path}{inner}"])
    found = capsys.readouterr()
    check(found.out + found.err)


def test_a_table_a_summary_and_an_error_share_one_place() -> None:
    from meshard.plan.show.report import Table
    from meshard.plan.show.summary import Fact, Summary

    check(Table((BAD,), [(BAD,)], "<", [BAD]).text(None))
    check(Summary(BAD, [Fact(BAD, BAD, BAD)]).text())
    for kind in (MeshardError, meshard.errors.StorageError):
        check(str(kind(BAD)).replace("\n", ""))
    assert visible(visible(BAD)) == SHOWN
