"""`meshard inspect`, `verify`, and `plan` of files: what they tell, and what they refuse."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import xxhash

import meshard
from meshard.cli import main
from meshard.sharding import NamedSharding
from meshard.sharding import PartitionSpec as P
from meshard.weights.catalogue.safetensors_writer import (
    WriteOptions,
    one_file,
    several_files,
)
from meshard.weights.catalogue.stored import Writer
from meshard.weights.checkpoint import opening
from meshard.weights.checkpoint.save import save
from tests.commands import documented, on_terminal, piped, status

TENSORS = {
    "embed.weight": np.arange(96, dtype=np.float32).reshape(12, 8),
    "layer.0.weight": np.arange(64, dtype=np.float16).reshape(8, 8),
    "layer.0.bias": np.ones(8, np.float32),
}


def write(writer: Writer) -> None:
    """Write `TENSORS` to the files of a writer."""
    writer.begin()
    sums = {}
    for name, stored in writer.tensors.items():
        for number, piece in enumerate(stored.pieces):
            block = np.ascontiguousarray(TENSORS[name][piece.box.slices])
            writer.write(stored, piece, piece.box, block)
            sums[name, number] = xxhash.xxh3_64_intdigest(block.tobytes())
    writer.sync(sums)
    writer.commit()


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """Return a safetensors file with checksums, and tied names."""
    path = tmp_path / "model.safetensors"
    write(one_file(str(path), TENSORS, WriteOptions(tied={"head.weight": "embed.weight"})))
    return path


@pytest.fixture
def several(tmp_path: Path) -> Path:
    """Return a folder of safetensors files with an index."""
    folder = tmp_path / "several"
    folder.mkdir()
    write(several_files(str(folder), TENSORS, shard_bytes=400))
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a folder of checkpoints, of steps 1 and 2."""
    mesh = meshard.make_mesh((1, 1), ("x", "y"))
    tree = {name: meshard.device_put(x, NamedSharding(mesh, P("x"))) for name, x in TENSORS.items()}
    for step in (1, 2):
        save(tmp_path / "run", tree, step=step)
    return tmp_path / "run"


class TestInspect:
    def test_one_file(self, one: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["inspect", str(one)]) == 0
        head, about, blank, title, *rows = capsys.readouterr().out.splitlines()
        assert head == f"{one} (safetensors): 3 tensors, 544 bytes"
        assert (about, blank) == ("2 float32, 1 float16; 1 file", "")
        assert title.split() == ["tensor", "type", "bytes", "pieces"]
        told = {re.split(r"  +", row)[0]: re.split(r"  +", row)[1:] for row in rows}
        assert told == {
            "embed.weight = head.weight": ["float32[12,8]", "384", "1"],
            "layer.0.weight": ["float16[8,8]", "128", "1"],
            "layer.0.bias": ["float32[8]", "32", "1"],
        }

    def test_several_files(self, several: Path, capsys: pytest.CaptureFixture[str]) -> None:
        index = next(several.glob("*.index.json"))
        told = []
        for path in (several, index):
            assert main(["inspect", str(path)]) == 0
            told.append(capsys.readouterr().out.splitlines()[1:])
        assert told[0] == told[1]
        assert (
            "layer.0.bias    float32[8]        32       1  model-00002-of-00002.safetensors"
            in (told[0])
        )

    def test_patterns_and_a_limit(self, one: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["inspect", str(one), "layer.*", "head.*", "--limit", "1"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].endswith(": 3 tensors, 544 bytes")
        assert lines[-1] == "and 2 more, 512 bytes"

    def test_json(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["inspect", str(run), "--step", "1", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found.keys() == documented("inspect")
        assert (found["format"], found["count"], found["nbytes"]) == ("meshard", 3, 544)
        assert found["path"] == str(run / "step-00000001")
        by_name = {x.pop("name"): x for x in found["tensors"]}
        assert by_name.keys() == TENSORS.keys()
        for name, x in TENSORS.items():
            told = by_name[name]
            assert (told["shape"], told["dtype"]) == ([*x.shape], x.dtype.name)
            assert told["layout"] == "whole on CPU 0"
            assert told.keys() == {
                *("shape", "dtype", "nbytes", "files", "pieces", "layout", "also")
            }

    def test_a_npy_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        np.save(tmp_path / "x.npy", TENSORS["embed.weight"])
        assert main(["inspect", str(tmp_path / "x.npy")]) == 0
        assert "x       float32[12,8]    384       1" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["none"], "none: it cannot be read: there is no such file."),
            (["model.safetensors", "*.bia"], "no name matches '*.bia'; there is layer.0.bias, for"),
            (
                ["model.safetensors", "--step", "3"],
                "model.safetensors cannot be read: Not a",
            ),
            (["run", "--step", "3"], "run has no complete step 3; complete are [1, 2]."),
            (
                ["notes.txt"],
                "notes.txt: it has no known format (safetensors, zarr, npy, hdf5, dcp)",
            ),
            (["cut.safetensors"], "cut.safetensors: "),
            (["."], "cut.safetensors: its header should be"),
        ],
    )
    def test_refusals(
        self,
        arguments: list[str],
        message: str,
        one: Path,
        run: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.chdir(one.parent)
        Path("notes.txt").write_text("x")
        Path("cut.safetensors").write_bytes(one.read_bytes()[:30])
        assert status(["inspect", *arguments]) == 1
        printed = capsys.readouterr()
        assert printed.err.startswith("meshard inspect: ")
        assert message in printed.err
        assert printed.out == ""

    def test_on_a_terminal_names_are_folded_and_never_cut(self, tmp_path: Path) -> None:
        name = "a.very.long.name." * 5
        tree = {name: TENSORS["embed.weight"]}
        save(tmp_path / "ck", tree)
        printed, code = on_terminal("inspect", str(tmp_path / "ck"), columns=60)
        assert code == 0
        assert printed.startswith("\x1b[1m")
        lines = re.sub(r"\x1b\[[0-9;]*m", "", printed).splitlines()[2:]
        assert max(map(len, lines)) <= 60
        folded = "".join(line.split()[0] for line in lines if line.strip())
        assert name.rstrip(".") in folded


class TestVerify:
    def test_what_is_as_it_was_written(
        self, one: Path, several: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for path in (one, several):
            assert main(["verify", str(path)]) == 0
            printed = capsys.readouterr()
            assert printed.out == f"{path}: 544 bytes, all as they were written\n"
            assert printed.err == ""

    def test_a_flipped_bit_is_named(self, one: Path, capsys: pytest.CaptureFixture[str]) -> None:
        data = bytearray(one.read_bytes())
        data[-1] ^= 4
        one.write_bytes(data)
        assert main(["verify", str(one)]) == 3
        printed = capsys.readouterr()
        assert printed.err == f"meshard verify: {one}: 1 found damaged or missing\n"
        assert printed.out.startswith(f"{one}: tensor 'layer.0.")
        assert "its checksum is " in printed.out
        assert main(["verify", str(one), "--json"]) == 3
        found = json.loads(capsys.readouterr().out)
        assert found.keys() == documented("verify")
        assert not found["ok"]
        assert len(found["damage"]) == 1

    def test_a_file_that_is_missing_or_cut(
        self, several: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        part = sorted(several.glob("*.safetensors"))[1]
        data = part.read_bytes()
        part.write_bytes(data[:-1])
        assert main(["verify", str(several)]) == 3
        assert part.name in capsys.readouterr().out
        part.unlink()
        assert main(["verify", str(several), "--json"]) == 3
        (told,) = json.loads(capsys.readouterr().out)["damage"]
        assert part.name in told

    def test_what_cannot_be_checked_is_not_called_right(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        np.save(tmp_path / "x.npy", TENSORS["embed.weight"])
        assert main(["verify", str(tmp_path / "x.npy")]) == 1
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err == (
            f"meshard verify: {tmp_path / 'x.npy'} has no checksums; a change would not be "
            "noticed\n"
        )

    def test_pieces_without_checksums_are_told_too(
        self, one: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        whole = opening.opened(one, None, "test", checked=True)
        name, tensor = next(iter(whole.tensors.items()))
        bare = replace(tensor, pieces=tuple(replace(p, checksum=None) for p in tensor.pieces))
        partly = replace(whole, tensors={**whole.tensors, name: bare})
        monkeypatch.setattr(opening, "opened", lambda *given, **more: partly)
        assert main(["verify", str(one)]) == 1
        assert f"{one} has no checksums" in capsys.readouterr().err

    def test_nothing_there(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["verify", str(tmp_path / "none")]) == 1
        assert "none: it cannot be read: there is no such file." in capsys.readouterr().err

    @pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")
    def test_processes_share_the_work(self, one: Path) -> None:
        data = bytearray(one.read_bytes())
        data[-1] ^= 4
        one.write_bytes(data)
        done = piped("run", "-n", "2", "--", "-m", "meshard", "verify", str(one))
        assert done.returncode == 3, done.stderr
        assert done.stdout.count("its checksum is ") == 1


class TestCheckpoint:
    def test_steps(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["checkpoint", "list", str(run)]) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert lines == [["step", "tensors", "bytes"], ["1", "3", "544"], ["2", "3", "544"]]
        assert main(["checkpoint", "list", str(run), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found.keys() == documented("checkpoint list")
        assert found == {
            "path": str(run),
            "steps": [{"step": n, "tensors": 3, "nbytes": 544, "error": None} for n in (1, 2)],
            "left": [],
        }

    def test_what_killed_saves_have_left(
        self, run: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        left = run / "step-00000003"
        (left / "data-elsewhere.1.1-0").mkdir(parents=True)
        told = f"would remove {left}\n"
        assert main(["checkpoint", "clean", str(run), "--force", "--dry-run"]) == 0
        assert capsys.readouterr().out == told
        assert left.exists()
        assert main(["checkpoint", "clean", str(run), "--force", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found == {"path": str(run), "removed": True, "left": [str(left)]}
        assert found.keys() == documented("checkpoint clean")
        assert not left.exists()
        assert main(["checkpoint", "clean", str(run)]) == 0
        assert capsys.readouterr().out == "nothing was left behind\n"

    def test_a_step_that_is_damaged(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        manifest = run / "step-00000002" / "manifest.json"
        manifest.write_text(manifest.read_text()[:-9])
        assert main(["checkpoint", "list", str(run)]) == 3
        assert re.search(r"^ +2 +\? +\? +\S*manifest.json: ", capsys.readouterr().out, re.MULTILINE)
        assert main(["verify", str(run), "--step", "2"]) == 3
        capsys.readouterr()
        assert main(["verify", str(run), "--step", "1"]) == 0
        assert main(["verify", str(run), "--step", "7"]) == 1
        assert "has no complete step 7; complete are [1, 2]." in capsys.readouterr().err

    def test_refusals(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for name in ("list", "clean"):
            assert main(["checkpoint", name, str(tmp_path / "none")]) == 1
            assert capsys.readouterr().err.startswith(f"meshard checkpoint {name}: {tmp_path}")
        assert main(["checkpoint", "list", str(tmp_path)]) == 0
        assert capsys.readouterr().out == f"{tmp_path} has no complete step\n"
        assert status(["checkpoint", "cleen", str(tmp_path)]) == 2
        message = "meshard checkpoint: invalid choice: 'cleen'; did you mean 'clean'?\n"
        assert capsys.readouterr().err.startswith(message)
        assert status(["checkpoint"]) == 2
        assert capsys.readouterr().err.startswith("meshard checkpoint: Missing command.\n")


class TestPlan:
    def test_a_checkpoint_knows_its_layout(
        self, run: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        ends = ("--to", "P()", "--to-mesh", "a=3", "--to-devices", "1:4")
        assert main(["plan", str(run), *ends, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["arrays"] == 3
        assert found["bytes_moved"] == 3 * 544
        assert {group["from"] for group in found["groups"]} == {"P('x',)"}

    def test_other_files_need_one(self, one: Path, capsys: pytest.CaptureFixture[str]) -> None:
        to = ("--to", "P()", "--to-mesh", "a=4")
        assert status(["plan", str(one), *to]) == 2
        message = "does not say how its tensors are laid out; give --from and --from-mesh, as in"
        assert message in capsys.readouterr().err
        assert status(["plan", str(one), *to, "--from", "P()"]) == 2
        assert "--from and --from-mesh belong together; one of" in capsys.readouterr().err
        assert main(["plan", str(one), *to, "--from", "P('a')", "--from-mesh", "a=4"]) == 0
        assert "Plan: 3 arrays, 544 bytes" in capsys.readouterr().out

    def test_a_load(self, one: Path, capsys: pytest.CaptureFixture[str]) -> None:
        line = ["plan", str(one), "--load", "--to", "P('a')", "--to-mesh", "a=4"]
        assert main([*line, "--uneven", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found.keys() == documented("plan --load")
        assert (found["bytes_read"], found["processes"]) == (544, 4)
        assert main([*line, "--uneven", "--select", "embed.*", "--max-bytes", "1MB"]) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert told.startswith(f"Load 1 array, 384 bytes, from {one} (safetensors) by 4 processes")
        assert status([*line, "--from", "P()", "--from-mesh", "a=4"]) == 2
        assert "--load plans to read a FILE, and takes no --from, --" in capsys.readouterr().err

    def test_an_index_with_its_files(
        self, several: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        index = next(several.glob("*.index.json"))
        ends = ("--from", "P('a')", "--from-mesh", "a=4", "--to", "P()", "--json")
        assert main(["plan", str(index), *ends]) == 0
        assert json.loads(capsys.readouterr().out)["nbytes"] == 544
        for part in several.glob("*.safetensors"):
            part.unlink()
        assert main(["plan", str(index), *ends]) == 1
        assert "names 3 tensors but not their shapes" in capsys.readouterr().err
