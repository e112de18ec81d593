"""Converting files to files: what the conversion refuses, and what it leaves."""

import numpy as np
import pytest

import meshard
from meshard import checkpoint
from meshard.errors import ArgumentError
from meshard.sharding import Mesh, NamedSharding, P
from meshard.testing import virtual_devices


def test_a_layout_of_more_processes_than_there_are_is_refused(tmp_path):
    meshard.save(tmp_path / "x.npy", np.arange(8.0))
    devices = np.array(virtual_devices(4, 1), object)
    four = NamedSharding(Mesh(devices, ("t",)), P("t"))
    with pytest.raises(ArgumentError, match=r"devices of process 3 too, but there are 1 processes"):
        checkpoint.convert(tmp_path / "x.npy", tmp_path / "y", four)
    assert not (tmp_path / "y").exists()
    checkpoint.convert(tmp_path / "x.npy", tmp_path / "y", four, format="safetensors-ranks")
    assert np.array_equal(meshard.load(tmp_path / "y"), np.arange(8.0))


def test_files_of_ranks_become_one_file_again(tmp_path):
    rng = np.random.default_rng(0)
    tree = {"w": rng.normal(size=(10, 6)), "v": rng.normal(size=7).astype("f4"), "n": np.arange(3)}
    checkpoint.save(tmp_path / "a.safetensors", tree)
    devices = np.array(virtual_devices(4), object).reshape(2, 2)
    mesh = Mesh(devices, ("x", "y"))

    def cut(name: str, struct: meshard.ShapeDtypeStruct) -> NamedSharding:
        spec = P("x", "y") if len(struct.shape) == 2 else P("y") if name == "v" else P()
        return NamedSharding(mesh, spec, uneven="balanced")

    checkpoint.convert(tmp_path / "a.safetensors", tmp_path / "r", cut, format="safetensors-ranks")
    assert len(list((tmp_path / "r").iterdir())) == 4
    checkpoint.convert(tmp_path / "r", tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    assert checkpoint.verify(tmp_path / "r") == []
    (tmp_path / "r" / "model-rank-00003-of-00004.safetensors").unlink()
    with pytest.raises(checkpoint.MissingFileError, match="3 of them are here"):
        checkpoint.load(tmp_path / "r")
