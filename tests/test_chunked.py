"""Dask, Zarr and ``__partitioned__``: arrays in chunks, in and out, without a copy of the whole."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.errors import (
    ArgumentError,
    DtypeError,
    NotAddressableError,
    ShapeError,
    ShardingError,
    StorageError,
)
from meshard.interop.partitioned import fitting, from_partitioned
from meshard.sharding import BoxSharding, NamedSharding, P
from tests.worlds import in_worlds, mesh, put, whole

VALUE = np.random.default_rng(3).normal(size=(37, 23))
LAYOUTS = {
    "own": lambda: None,
    "tiles": lambda: NamedSharding(mesh(), P("i", "j"), uneven="balanced"),
    "rows": lambda: NamedSharding(mesh(), P(("j", "i")), uneven="ceil"),
    "whole": lambda: NamedSharding(mesh(), P()),
    "device": lambda: meshard.devices()[3],
}


def addresses(x: meshard.Array) -> set[int]:
    return {np.asarray(s.data).ctypes.data for s in x.addressable_shards}


# layouts that fit chunks


@pytest.mark.parametrize(
    ("chunks", "shares"),
    [
        ((1,) * 8, (1,) * 8),
        ((5,) * 7 + (2,), (5,) * 7 + (2,)),
        ((10, 10, 10, 7), (10, 10, 10, 7, 0, 0, 0, 0)),
        ((3,) * 16, (6,) * 8),
        ((50, 1, 1, 1, 1, 1, 1, 1, 1), None),
    ],
)
def test_a_layout_that_fits_cuts_no_chunk_and_leaves_no_device_idle(
    chunks: tuple[int, ...], shares: tuple[int, ...] | None
) -> None:
    points = tuple(np.cumsum((0, *chunks)).tolist())
    found = fitting([points])
    assert isinstance(found, NamedSharding)
    cuts = found.dim_cuts((sum(chunks),))[0]
    assert set(cuts) <= set(points)
    given = np.diff(cuts).tolist()
    assert sorted(given) == sorted(shares) if shares else np.count_nonzero(given) == 8


# dask


@pytest.fixture(scope="module")
def dask() -> Any:
    pytest.importorskip("dask.array", reason="dask is not installed")
    return importlib.import_module("meshard.interop.dask")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("chunks", [(5, 7), (37, 23), (10, 23)])
def test_a_dask_array_is_computed_where_it_will_be(
    dask: Any, chunks: tuple[int, int], layout: str
) -> None:
    x = dask.from_dask(dask.da.from_array(VALUE, chunks=chunks), LAYOUTS[layout]())
    np.testing.assert_array_equal(np.asarray(x), VALUE)
    if LAYOUTS[layout]() is not None and layout != "device":
        assert x.sharding == LAYOUTS[layout]()
    back = dask.to_dask(x)
    np.testing.assert_array_equal(back.compute(scheduler="sync"), VALUE)
    held = {back.dask[key].ctypes.data for key in back.dask}
    assert held <= addresses(x)  # nothing is copied


def test_each_chunk_is_computed_once(dask: Any) -> None:
    computed: list[Any] = []

    def load(block_info: Any = None) -> Any:
        computed.append(block_info[None]["chunk-location"])
        (rows, columns) = block_info[None]["array-location"]
        return VALUE[slice(*rows), slice(*columns)]

    x = dask.da.map_blocks(load, chunks=((20, 17), (12, 11)), dtype=float)
    computed.clear()
    found = dask.from_dask(x, LAYOUTS["tiles"]())
    np.testing.assert_array_equal(np.asarray(found), VALUE)
    assert sorted(computed) == [(0, 0), (0, 1), (1, 0), (1, 1)]


@in_worlds
def test_each_process_computes_its_part(dask: Any) -> None:
    x = dask.from_dask(dask.da.from_array(VALUE, chunks=(5, 7)), LAYOUTS["tiles"]())
    np.testing.assert_array_equal(whole(x), VALUE)


def test_small_and_empty_arrays_pass(dask: Any) -> None:
    assert float(dask.from_dask(dask.da.asarray(3.5))) == 3.5
    assert dask.from_dask(dask.da.zeros((0, 3))).shape == (0, 3)
    assert dask.to_dask(mnp.zeros((0, 3))).compute().shape == (0, 3)
    assert dask.to_dask(mnp.asarray(2.0)).compute() == 2


CLUSTER = """
import numpy as np, dask.array as da, meshard
from dask.distributed import Client, LocalCluster
from meshard.interop.dask import from_dask, to_dask

if __name__ == "__main__":
    meshard.config.update("num_devices", 4)
    rows = meshard.NamedSharding(meshard.make_mesh((4,), ("i",)), meshard.P("i"))
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        with Client(cluster):
            x = from_dask(da.arange(40, chunks=7).reshape(8, 5) * 2, rows)
            assert np.array_equal(np.asarray(x), np.arange(40).reshape(8, 5) * 2)
            assert np.array_equal((to_dask(x) + 1).sum(axis=0).compute(), np.asarray(x + 1).sum(0))
    print("right", x.sharding.spec)
"""


@pytest.mark.timeout(120)
def test_workers_of_a_cluster_compute(dask: Any, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="distributed is not installed")
    path = tmp_path / "cluster.py"
    path.write_text(CLUSTER)
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout == "right P('i',)\n", done.stderr


def test_odd_dask_arrays_are_refused(dask: Any) -> None:
    with pytest.raises(ArgumentError, match=r"x must be .*Array, got"):
        dask.from_dask(VALUE)
    unknown = dask.da.from_array(VALUE, chunks=5)
    with pytest.raises(ShapeError, match=r"not known.*compute_chunk_sizes"):
        dask.from_dask(unknown[unknown[:, 0] > 0])
    with pytest.raises(DtypeError, match="The Dask array is of dtype"):
        dask.from_dask(dask.da.from_array(np.asarray(["a", "b"])))
    with pytest.raises(ArgumentError, match=r"must be an array of meshard's, got ndarray"):
        dask.to_dask(VALUE)
    lying = dask.da.from_array(VALUE, chunks=5).map_blocks(lambda b: b[:1], meta=VALUE[:0])
    with pytest.raises(ShapeError, match=r"has shape \(1, \d\) when .* it should have \(\d, \d\)"):
        dask.from_dask(lying)
    with pytest.raises(DtypeError, match="random keys, which mean nothing to Dask"):
        dask.to_dask(meshard.random.key(0))
    boxes = {
        0: (slice(0, 2), slice(0, 3)),
        1: (slice(0, 2), slice(3, 4)),
        2: (slice(2, 4), slice(0, 4)),
    }
    irregular = BoxSharding((4, 4), {meshard.devices()[i]: box for i, box in boxes.items()})
    with pytest.raises(ShardingError, match="are not a grid"):
        dask.to_dask(meshard.device_put(np.ones((4, 4)), irregular))


# zarr


@pytest.fixture(scope="module")
def zarr() -> Any:
    pytest.importorskip("zarr", reason="zarr is not installed")
    return importlib.import_module("meshard.interop.zarr")


@pytest.mark.parametrize("layout", [n for n in LAYOUTS if n != "own"])
@pytest.mark.parametrize(
    "how", [{"chunks": (5, 7)}, {"chunks": (3, 4), "shards": (9, 8)}, {"chunks": (37, 23)}]
)
def test_zarr_arrays_are_written_and_read_shard_by_shard(
    zarr: Any, how: dict[str, Any], layout: str, tmp_path: Path
) -> None:
    place = LAYOUTS[layout]()
    z = zarr.zarr.create_array(str(tmp_path / "z"), shape=VALUE.shape, dtype="f8", **how)
    zarr.store(meshard.device_put(VALUE, place), z)
    np.testing.assert_array_equal(z[:], VALUE)
    np.testing.assert_array_equal(np.asarray(meshard.device_put(z, place)), VALUE)


def test_each_chunk_is_written_once_and_whole(zarr: Any, tmp_path: Path, monkeypatch: Any) -> None:
    z = zarr.zarr.create_array(str(tmp_path / "z"), shape=VALUE.shape, chunks=(5, 7), dtype="f8")
    written: list[Any] = []
    before = zarr.zarr.Array.__setitem__

    def note(self: Any, index: Any, value: Any) -> None:
        written.append(index)
        before(self, index, value)

    monkeypatch.setattr(zarr.zarr.Array, "__setitem__", note)
    zarr.store(meshard.device_put(VALUE, LAYOUTS["tiles"]()), z)
    for index in written:
        for part, chunk, size in zip(index, (5, 7), VALUE.shape, strict=True):
            assert part.start % chunk == 0
            assert part.stop % chunk == 0 or part.stop == size
    assert sum(np.prod([s.stop - s.start for s in index]) for index in written) == VALUE.size


def test_odd_targets_are_refused(zarr: Any, tmp_path: Path) -> None:
    z = zarr.zarr.create_array({}, shape=(3,), dtype="f8")
    with pytest.raises(ArgumentError, match=r"target must be a zarr.Array, got ndarray"):
        zarr.store(mnp.ones(3), np.ones(3))
    with pytest.raises(ArgumentError, match="x must be an array of meshard's"):
        zarr.store(np.ones(3), z)
    with pytest.raises(ShapeError, match=r"shape \(4,\), but the Zarr array has \(3,\)"):
        zarr.store(mnp.ones(4), z)
    zarr.zarr.create_array(str(tmp_path / "z"), shape=(3,), dtype="f8")
    closed = zarr.zarr.open_array(str(tmp_path / "z"), mode="r")
    with pytest.raises(StorageError, match="cannot be written"):
        zarr.store(mnp.ones(3), closed)
    zarr.store(mnp.asarray(2.0), scalar := zarr.zarr.create_array({}, shape=(), dtype="f8"))
    assert scalar[()] == 2


# __partitioned__


def parts(cut: int = 20) -> dict[str, Any]:
    boxes = [((0, 0), VALUE[:cut, :10]), ((0, 10), VALUE[:cut, 10:])]
    boxes += [((cut, 0), VALUE[cut:, :10]), ((cut, 10), VALUE[cut:, 10:])]
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]
    return {
        "shape": VALUE.shape,
        "partition_tiling": (2, 2),
        "partitions": {
            place: {"start": start, "shape": part.shape, "data": part, "location": ["10.0.0.1"]}
            for place, (start, part) in zip(places, boxes, strict=True)
        },
        "get": lambda handle: handle,
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_of_others_become_an_array(layout: str) -> None:
    for given in (parts(), type("Held", (), {"__partitioned__": parts()})()):
        x = from_partitioned(given, LAYOUTS[layout]())
        np.testing.assert_array_equal(np.asarray(x), VALUE)


@in_worlds
def test_an_array_tells_its_parts_and_comes_back_without_a_move() -> None:
    x = put(VALUE, "i", "j", uneven="balanced")
    told = x.__partitioned__
    assert told() is told
    assert (told["shape"], told["partition_tiling"]) == (VALUE.shape, (4, 2))
    me = meshard.process_index()
    for place, part in told["partitions"].items():
        assert (part["data"] is not None) == (place in told["locals"]) == (me in part["location"])
        if part["data"] is not None:
            box = tuple(slice(a, a + n) for a, n in zip(part["start"], part["shape"], strict=True))
            np.testing.assert_array_equal(told["get"](part["data"]), VALUE[box])
    np.testing.assert_array_equal(whole(from_partitioned(x)), VALUE)
    again = from_partitioned(x, NamedSharding(mesh(), P("j"), uneven="balanced"))
    np.testing.assert_array_equal(whole(again), VALUE)


def test_parts_can_be_pickled_and_are_views() -> None:
    x = put(VALUE, "i", "j", uneven="balanced")
    told = x.__partitioned__
    assert {p["data"].ctypes.data for p in told["partitions"].values()} == addresses(x)
    sent = pickle.loads(pickle.dumps(dict(told)))
    np.testing.assert_array_equal(np.asarray(from_partitioned(sent)), VALUE)


def test_parts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ArgumentError, match="does not tell its parts: it has no __partitioned__"):
        from_partitioned(VALUE)
    lacking = {k: v for k, v in parts().items() if k != "get"}
    with pytest.raises(ArgumentError, match="the fields 'get' are missing"):
        from_partitioned(lacking)
    gap = parts()
    del gap["partitions"][(1, 1)]
    with pytest.raises(ShardingError, match="leave a gap"):
        from_partitioned(gap)
    wrong = parts()
    wrong["partitions"][(0, 0)]["data"] = VALUE
    with pytest.raises(ShapeError, match=r"is said to have shape \(20, 10\), but has \(37, 23\)"):
        from_partitioned(wrong)
    away = parts()
    away["partitions"][(0, 1)]["data"] = None
    with pytest.raises(NotAddressableError, match=r"is at .*, and no handle leads to it"):
        from_partitioned(away)
