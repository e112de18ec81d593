"""`meshard reshard`: formats, layouts, maps, casts, processes, dry runs and refusals."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import meshard
from meshard import checkpoint
from meshard.cli import main
from tests.commands import documented, on_terminal, piped, status

rng = np.random.default_rng(3)
TENSORS = {
    "embed.weight": rng.standard_normal((13, 8)).astype(np.float32),
    "layer.q.weight": rng.standard_normal((8, 8)).astype(np.float32),
    "layer.k.weight": rng.standard_normal((8, 8)).astype(np.float32),
    "layer.bias": np.arange(8, dtype=np.int64),
}
FUSE = """
rest = "keep"

[[rule]]
fuse = ["layer.q.weight", "layer.k.weight"]
to = "layer.qk.weight"
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_file(TENSORS, tmp_path / "in.safetensors")
    return Path("in.safetensors")


def held(path: str | Path) -> dict[str, np.ndarray]:
    return {name: np.asarray(x) for name, x in checkpoint.load(path).items()}


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert sorted(found) == sorted(expected)
    for name, x in expected.items():
        assert found[name].dtype == x.dtype
        np.testing.assert_array_equal(found[name], x)


def test_through_all_formats_and_back(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = source
    for target, to in [("ck", []), ("z", ["--to", "zarr"]), ("st", ["--to", "safetensors"])]:
        assert main(["reshard", str(path), target, *to]) == 0, capsys.readouterr().err
        told = capsys.readouterr().out
        assert told.startswith(
            f"{target} ({to[-1] if to else 'meshard'}): 4 tensors, 992 bytes, in"
        )
        assert_same(held(target), TENSORS)
        path = Path(target)
    assert main(["reshard", str(path), "out.safetensors"]) == 0
    assert_same(load_file("out.safetensors"), TENSORS)


def test_a_map_a_cast_and_a_choice(source: Path) -> None:
    Path("fuse.toml").write_text(FUSE)
    line = ["reshard", str(source), "out.safetensors", "--map", "fuse.toml", "--dtype", "float16"]
    assert main([*line, "--select", "*.weight"]) == 0
    fused = np.concatenate([TENSORS["layer.q.weight"], TENSORS["layer.k.weight"]])
    expected = {"embed.weight": TENSORS["embed.weight"], "layer.qk.weight": fused}
    assert_same(
        load_file("out.safetensors"), {n: x.astype(np.float16) for n, x in expected.items()}
    )


def test_values_that_a_format_does_not_hold(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = {"w": TENSORS["embed.weight"], "more": {"b": TENSORS["layer.bias"]}, "epoch": 3}
    checkpoint.save("ck", tree)
    assert main(["reshard", "ck", "again"]) == 0
    assert capsys.readouterr().err == ""
    assert checkpoint.load("again")["epoch"] == 3
    assert main(["reshard", "ck", "out.safetensors"]) == 0
    assert capsys.readouterr().err == "left out: epoch; safetensors holds arrays only\n"
    assert sorted(load_file("out.safetensors")) == ["more.b", "w"]


def test_a_layout(source: Path) -> None:
    rules = ("--to", "embed.*=P('model')", "--to", "*.q.*=P(None, 'model')", "--to", "P()")
    line = ("reshard", str(source), "ck", *rules, "--mesh", "model=4", "--uneven")
    done = piped(*line)
    assert (done.returncode, done.stderr) == (0, "")
    found = checkpoint.metadata("ck").tensors
    specs = {name: str(x.sharding.spec) for name, x in found.items()}
    assert specs == {
        "embed.weight": "P('model',)",
        "layer.q.weight": "P(None, 'model')",
        "layer.k.weight": "P()",
        "layer.bias": "P()",
    }
    assert_same(held("ck"), TENSORS)
    done = piped(*line[:2], "ranks", *line[3:], "--to", "safetensors-ranks")
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in Path("ranks").iterdir())
    assert names == [f"model-rank-0000{i}-of-00004.safetensors" for i in range(4)]
    shard = load_file(Path("ranks") / names[0])["layer.q.weight"]
    np.testing.assert_array_equal(shard, TENSORS["layer.q.weight"][:, :2])


@pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")
def test_processes(source: Path) -> None:
    job = ("run", "-n", "2", "--", "-m", "meshard", "reshard", str(source), "out.safetensors")
    done = piped(*job, "--max-bytes", "64kB")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("out.safetensors (safetensors): 4 tensors") == 1
    assert "converting" not in done.stdout + done.stderr
    assert_same(load_file("out.safetensors"), TENSORS)
    line = ("--to", "P('x')", "--to", "meshard", "--mesh", "x=3", "--uneven")
    done = piped(*job[:-1], "ck", *line)
    assert done.returncode == 0, done.stderr
    assert_same(held("ck"), TENSORS)
    assert str(checkpoint.metadata("ck").tensors["embed.weight"].sharding.spec) == "P('x',)"


def test_a_dry_run_writes_nothing(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("fuse.toml").write_text(FUSE)
    line = ["reshard", str(source), "out.safetensors", "--map", "fuse.toml", "--dry-run"]
    assert main(line) == 0
    told = capsys.readouterr().out
    assert "layer.qk.weight" in told
    assert "Convert 992 bytes of in.safetensors (safetensors) to " in " ".join(told.split())
    assert main([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == documented("reshard")
    assert (found["format"], found["tensors"], found["seconds"]) == ("safetensors", 3, None)
    assert (found["bytes_read"], found["bytes_written"]) == (992, 992)
    assert sorted(os.listdir()) == ["fuse.toml", "in.safetensors"]


def test_json(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reshard", str(source), "ck", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == documented("reshard")


def test_short_work_shows_no_bar(source: Path) -> None:
    printed, code = on_terminal("reshard", str(source.resolve()), str(Path("ck").resolve()))
    assert code == 0
    assert "converting" not in printed
    assert "\r" not in printed
    assert "\x1b[?25l" not in printed  # the cursor stays


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["none", "x"], 1, "none: it cannot be read: there is no such file."),
        (["in.safetensors", "in.safetensors"], 1, "in.safetensors is the source; name another"),
        (["in.safetensors", "old"], 1, "old exists already; name another target, or give --over"),
        (["in.safetensors", "x", "--to", "tar"], 2, "'tar' is neither a format (meshard, safeten"),
        (["in.safetensors", "x", "--to", "P(a)"], 2, "a is not quoted; write 'a'\n    P(a)\n"),
        (["in.safetensors", "x", "--to", "P()"], 2, "specs and --mesh belong together; one of th"),
        (
            ["in.safetensors", "x", "--to", "zarr", "--to", "npy"],
            2,
            "--to names two formats, zarr and npy; give one\n",
        ),
        (["in.safetensors", "x.npy"], 1, "x.npy: a .npy file holds one array, and the tree has 4"),
        (["in.safetensors", "x", "--map", "no.toml"], 1, "no.toml cannot be read: "),
        (["in.safetensors", "x", "--map", "bad.toml"], 1, "meshard reshard: bad.toml: "),
        (["in.safetensors", "x", "--map", "idle.toml"], 1, "nothing.here"),
        (["in.safetensors", "x", "--select", "*.wieght"], 1, "no name matches '*.wieght'; there "),
        (["cut.safetensors", "x"], 1, "cut.safetensors: "),
    ],
)
def test_refusals(
    arguments: list[str],
    code: int,
    message: str,
    source: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("cut.safetensors").write_bytes(source.read_bytes()[:-3])
    Path("old").mkdir()
    Path("old", "precious").write_text("kept")
    Path("bad.toml").write_text("rule = [")
    Path("idle.toml").write_text('[[rule]]\nrename = "nothing.here"\nto = "x"\n')
    before = sorted(os.listdir())
    assert status(["reshard", *arguments]) == code
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.startswith("meshard reshard: ")
    assert printed.out == ""
    assert sorted(os.listdir()) == before
    assert Path("old", "precious").read_text() == "kept"


def test_a_target_may_be_replaced(source: Path) -> None:
    assert main(["reshard", str(source), "ck"]) == 0
    assert main(["reshard", str(source), "ck"]) == 1
    assert main(["reshard", str(source), "ck", "--overwrite", "--select", "layer.*"]) == 0
    assert sorted(checkpoint.metadata("ck").tensors) == [
        *("layer.bias", "layer.k.weight", "layer.q.weight"),
    ]
    assert meshard.process_count() == 1
