"""Arrays in files that are put on devices: each process reads what its devices hold."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshard
from meshard.algebra.box import Box
from meshard.errors import DtypeError, StorageError, UnequalError
from meshard.runtime.moving import same_values
from meshard.runtime.moving.readers import file_source
from meshard.runtime.simulated import simulate
from meshard.sharding import NamedSharding, P

from .worlds import mesh

h5py = pytest.importorskip("h5py")
zarr = pytest.importorskip("zarr")

VALUE = np.arange(1 << 18, dtype=np.float32).reshape(2048, 128)
KINDS = ("memmap", "swapped", "hdf5", "hdf5 chunks", "zarr", "zarr shards")


def opened(path: Path, kind: str) -> Any:
    """Return an array in a file, which is written if it does not exist."""
    if kind in ("memmap", "swapped"):
        dtype = ">f4" if kind == "swapped" else "<f4"
        if not path.exists():
            VALUE.astype(dtype).tofile(path)
        return np.memmap(path, dtype, "r", shape=VALUE.shape)
    if kind.startswith("hdf5"):
        if not path.exists():
            with h5py.File(path, "w") as file:
                chunks = (16, 128) if kind == "hdf5 chunks" else None
                file.create_dataset("w", data=VALUE, chunks=chunks)
        return h5py.File(path, "r")["w"]
    if not path.exists():
        shards = {"shards": (64, 128)} if kind == "zarr shards" else {}
        made = zarr.create_array(
            path, shape=VALUE.shape, chunks=(16, 128), dtype="f4", compressors=None, **shards
        )
        made[:] = VALUE
    return zarr.open_array(path, mode="r")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spec", [("i",), (None, "j"), ("j", "i"), ()])
def test_the_elements_are_those_of_the_file(tmp_path: Path, kind: str, spec: tuple) -> None:
    opened(tmp_path / "x", kind)
    sharding = NamedSharding(mesh(), P(*spec))
    x = meshard.device_put(opened(tmp_path / "x", kind), sharding)
    assert x.dtype == np.float32
    assert (np.asarray(x) == VALUE).all()


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("memmap", "swapped")])
def test_each_byte_is_read_once_by_all_processes_together(tmp_path: Path, kind: str) -> None:
    """Before, each of four processes read all of it, and once more to compare it."""
    opened(tmp_path / "x", kind)

    def program() -> None:
        x = opened(tmp_path / "x", kind)
        meshard.device_put(x, NamedSharding(mesh(), P(("i", "j"))))

    start = read_so_far()
    simulate(4, 2, program, deadline=30)
    whole = (tmp_path / "x").stat().st_size if kind.startswith("hdf5") else VALUE.nbytes
    assert read_so_far() - start < 1.2 * whole  # it includes opening the file


def read_so_far() -> int:
    text = Path("/proc/self/io").read_text()
    return int(text.split("rchar:")[1].split()[0])


class Recorder:
    """What looks like a data set of h5py, and notes what is read of it."""

    def __init__(self, value: np.ndarray, filename: str, chunks: Any = None) -> None:
        self.value, self.shape, self.dtype, self.chunks = value, value.shape, value.dtype, chunks
        self.file = self
        self.filename, self.name = filename, "/w"
        self.read: list[tuple[slice, ...]] = []

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
        self.read.append(index)
        return self.value[index]

    def __array__(self, *args: object, **kwargs: object) -> np.ndarray:
        raise AssertionError("all of it was read")


def test_a_process_reads_only_what_its_devices_hold() -> None:
    def program() -> tuple[int, bool]:
        source = Recorder(VALUE, "/data/x.h5")
        x = meshard.device_put(source, NamedSharding(mesh(), P(("i", "j"))))
        right = all((np.asarray(s.data) == VALUE[s.index]).all() for s in x.addressable_shards)
        return sum([VALUE[index].nbytes for index in source.read]), right

    assert simulate(4, 2, program, deadline=30) == [(VALUE.nbytes // 4, True)] * 4


def test_rows_end_where_chunks_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshard.runtime.moving.readers.COPY_CHUNK", 40 * 512)
    source = Recorder(VALUE, "x", chunks=(16, 128))
    found = file_source(source)
    assert found is not None
    out = np.empty((150, 128), np.float32)
    found.read(Box((5, 0), (155, 128)), out)
    assert (out == VALUE[5:155]).all()
    ends = [index[0].stop for index in source.read]
    assert ends == [32, 64, 96, 128, 155]


def test_a_damaged_chunk_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("w", data=VALUE, chunks=(64, 128), compression="gzip")
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 500] = bytes(500)
    path.write_bytes(data)
    source = h5py.File(path, "r")["w"]
    with pytest.raises(StorageError, match=r"x\.h5:/w: box \[512:1024, 0:128\] of an"):
        meshard.device_put(source, NamedSharding(mesh(), P("i")))


def test_files_are_compared_by_their_path(tmp_path: Path) -> None:
    for name in ("a", "b"):
        opened(tmp_path / name, "hdf5")

    def program() -> str:
        x = opened(tmp_path / ("b" if meshard.process_index() == 2 else "a"), "hdf5")
        with pytest.raises(UnequalError) as caught:
            meshard.device_put(x, NamedSharding(mesh(), P("i")))
        return str(caught.value)

    said = simulate(4, 2, program, deadline=30)
    assert said == said[:1] * 4
    assert f"float32[2048,128] of {tmp_path}/a:/w on process 0" in said[0]
    assert f"float32[2048,128] of {tmp_path}/b:/w on process 2" in said[0]


def test_maps_are_known_by_their_place_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = opened(tmp_path / "x", "memmap")
    offset = np.memmap(tmp_path / "x", "<f4", "r", 512 * 3, (2, 128))

    def place(x: Any) -> str:
        found = file_source(x)
        assert found is not None
        return found.place

    assert place(whole) == f"{tmp_path / 'x'} from byte 0"
    assert place(whole[3:5]) == place(offset) == f"{tmp_path / 'x'} from byte 1536"
    assert place(whole[:, 1:]) != place(whole)
    assert "in steps of (4, 512)" in place(whole.T)
    for other in (whole.copy(), np.array(whole), np.memmap(tmp_path / "x", "<f4", "c")):
        assert file_source(other) is None

    def read(value: np.ndarray) -> bytes:
        raise AssertionError("all of it was read")

    monkeypatch.setattr(same_values, "digest", read)

    def program() -> bool:
        x = meshard.device_put(opened(tmp_path / "x", "memmap"), NamedSharding(mesh(), P("i")))
        return all((np.asarray(s.data) == VALUE[s.index]).all() for s in x.addressable_shards)

    assert all(simulate(4, 2, program, deadline=30))


def test_only_arrays_in_files_are_sources() -> None:
    for value in (3, [1, 2], "x", {"a": 1}, np.float32(1), VALUE, meshard.numpy.ones(3), None):
        assert file_source(value) is None
    assert file_source(zarr.zeros((3,), store=zarr.storage.MemoryStore())) is None


def test_data_sets_without_numbers_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["names"] = ["a", "b"]
        with pytest.raises(DtypeError, match="dtype object is not a numeric dtype"):
            meshard.device_put(file["names"], meshard.devices()[0])
