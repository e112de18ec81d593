"""Converting files: what a load and a save would give, without arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import meshard
from meshard import checkpoint
from meshard.errors import TreeError
from meshard.sharding import NamedSharding, P
from tests.checkpoints import folders, run
from tests.lays import fetched, same
from tests.worlds import mesh, put


@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("name", ["a", "a.safetensors", "a.zarr"])
def test_a_conversion_is_a_load_and_a_save(name: str, processes: int) -> None:
    values = {"b": np.arange(35.0).reshape(7, 5), "w": np.arange(96, dtype="f4").reshape(8, 12)}
    turned = checkpoint.KeyMap().transpose("w").rename("b", "c")

    def body(folder: Path) -> None:
        tree = {"b": put(values["b"], uneven="ceil"), "w": put(values["w"], "i", "j")}
        checkpoint.save(folder / "source", tree)
        for number, kwargs in enumerate([{}, {"dtype": "f2"}, {"map": turned}]):
            path = folder / str(number) / name
            plan = checkpoint.convert(
                folder / "source", path, max_bytes=1000, dry_run=True, **kwargs
            )
            assert meshard.process_count() > 1 or not path.exists()
            done = checkpoint.convert(folder / "source", path, max_bytes=1000, **kwargs)
            assert done == plan
            columns = NamedSharding(mesh(), P(None, "j"), uneven="ceil")
            found = checkpoint.load(path, columns)
            expected = checkpoint.load(folder / "source", columns, **kwargs)
            assert found.keys() == expected.keys()
            for key, x in expected.items():
                same(fetched(found[key]), fetched(x))
            assert done.bytes_written == sum(x.nbytes for x in expected.values())
            assert not [d for d in checkpoint.verify(path) if d.tensor is not None]

    with folders() as folder:
        (folder / "0").mkdir()
        (folder / "1").mkdir()
        (folder / "2").mkdir()
        run(processes, lambda: body(folder))


def test_shardings_need_no_entry_for_numbers(tmp_path):
    checkpoint.save(tmp_path / "c", {"a": {"w": np.ones(4), "k": 2}, "step": 3})
    home = meshard.devices()[0]
    found = checkpoint.load(tmp_path / "c", {"a": {"w": home}})
    assert (found["step"], found["a"]["k"]) == (3, 2)
    assert found["a"]["w"].committed
    with pytest.raises(TreeError, match="must be a prefix"):
        checkpoint.load(tmp_path / "c", {"step": None})
