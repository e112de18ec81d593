"""Zarr stores, HDF5 files, and finding out what a path is."""

import json
import os
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from meshard.algebra.box import Box
from meshard.errors import (
    ArgumentError,
    CheckpointError,
    CorruptFileError,
    FileInUseError,
    MissingFileError,
    StorageError,
)
from meshard.weights.catalogue import zarr_store as zarr_module
from meshard.weights.catalogue.detect import FORMATS, Format, open_catalogue
from meshard.weights.catalogue.hdf5 import open_hdf5
from meshard.weights.catalogue.safetensors_writer import WriteOptions
from meshard.weights.catalogue.stored import Catalogue, Writer, grid_boxes, grid_steps
from meshard.weights.catalogue.verify import verify
from meshard.weights.catalogue.zarr_store import open_zarr, zarr_store

h5py = pytest.importorskip("h5py")
zarr = pytest.importorskip("zarr")

rng = np.random.default_rng(11)
SOME = {
    "a.w": rng.random((37, 5)).astype(np.float32),
    "group/b": rng.integers(0, 9, (4, 3, 2)).astype(ml_dtypes.bfloat16),
    "group/c": np.float64(3.5).reshape(()),
    "d": np.zeros((0, 3), np.int16),
    "e": rng.integers(0, 2, 9).astype(bool),
    "f": rng.integers(0, 9, (3, 200)).astype(ml_dtypes.float8_e4m3fn),
    "g": (rng.random(6) + 1j).astype(np.complex64),
}


def write(writer: Writer, tensors: dict[str, np.ndarray]) -> None:
    writer.begin()
    for name, stored in writer.tensors.items():
        for piece in stored.pieces:
            writer.write(stored, piece, piece.box, tensors[name][(*piece.box.slices, ...)])
    writer.sync({})
    writer.commit()


def read(catalogue: Catalogue) -> dict[str, np.ndarray]:
    found = {}
    for name, stored in catalogue.tensors.items():
        whole = found[name] = np.empty(stored.shape, stored.dtype)
        for piece in stored.pieces:
            catalogue.reader.read(stored, piece, piece.box, whole[(*piece.box.slices, ...)])
    return found


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    def bits(tensors: dict[str, np.ndarray]) -> dict[str, object]:
        return {n: (x.dtype.name, x.shape, x.tobytes()) for n, x in tensors.items()}

    return bits(found) == bits(expected)


@pytest.mark.parametrize("piece_bytes", [30, 100, 1 << 20])
def test_a_store_goes_out_and_in(tmp_path: Path, piece_bytes: int) -> None:
    path = str(tmp_path / "s")
    options = WriteOptions({"who": "me"}, {"tied": "a.w"}, piece_bytes)
    write(zarr_store(path, SOME, options), SOME)
    assert os.listdir(tmp_path) == ["s"]
    catalogue = open_catalogue(path)
    assert catalogue.format == "zarr"
    assert catalogue.values == {"who": "me"}
    assert catalogue.tied == {"tied": "a.w"}
    assert same(read(catalogue), SOME)
    assert list(verify(catalogue)) == []
    for stored in catalogue.tensors.values():
        assert all((tmp_path / "s" / piece.file).is_file() for piece in stored.pieces)
    opened = zarr.open_group(path, mode="r")
    assert (opened["a.w"][:] == SOME["a.w"]).all()
    assert opened["group/b"].dtype == np.uint16


def test_arrays_have_the_same_order_in_every_process(tmp_path: Path) -> None:
    """The library lists them in the order in which reading their metadata happens to end."""
    names = [f"n{i}" for i in rng.permutation(40)]
    write(
        zarr_store(str(tmp_path / "s"), dict.fromkeys(names, SOME["e"])),
        dict.fromkeys(names, SOME["e"]),
    )
    assert list(open_zarr(str(tmp_path / "s")).tensors) == sorted(names)


def test_a_store_of_one_array(tmp_path: Path) -> None:
    for value in (SOME["a.w"], SOME["f"], SOME["group/c"]):
        path = str(tmp_path / value.dtype.name)
        write(zarr_store(path, {"": value}), {"": value})
        assert same(read(open_zarr(path)), {"": value})


def test_what_the_library_writes_is_read(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "s")
    made = group.create_array("x/y", shape=(50, 8), chunks=(7, 3), dtype="f4")
    value = rng.random((50, 8)).astype(np.float32)
    made[:] = value
    group.create_array("zeros", shape=(4,), chunks=(2,), dtype=">i4")
    catalogue = open_zarr(str(tmp_path / "s"))
    assert len(catalogue.tensors["x/y"].pieces) == 8 * 3
    zeros = np.zeros(4, np.int32)
    assert same(read(catalogue), {"x/y": value, "zeros": zeros})
    stored = catalogue.tensors["x/y"]
    out = np.empty((9, 4), np.float32)[:, ::2]
    catalogue.reader.read(stored, stored.pieces[0], Box((3, 2), (12, 4)), out)
    assert (out == value[3:12, 2:4]).all()
    assert catalogue.unchecked == ("zarr.json",)


def test_only_the_chunks_that_are_needed_are_read(tmp_path: Path) -> None:
    value = rng.random((64, 1 << 12))
    write(zarr_store(str(tmp_path / "s"), {"w": value}, WriteOptions({})), {"w": value})
    catalogue = open_zarr(str(tmp_path / "s"))
    stored = catalogue.tensors["w"]
    assert len(stored.pieces) == 1
    out = np.empty((2, 1 << 12))
    catalogue.reader.read(stored, stored.pieces[0], Box((0, 0), (2, 1 << 12)), out)
    before = read_so_far()
    catalogue.reader.read(stored, stored.pieces[0], Box((33, 0), (35, 1 << 12)), out)
    assert (out == value[33:35]).all()
    assert read_so_far() - before < value.nbytes * 0.6  # one of two chunks


def read_so_far() -> int:
    text = Path("/proc/self/io").read_text()
    return int(text.split("rchar:")[1].split()[0])


def test_flipped_bits_of_a_store_are_found(tmp_path: Path) -> None:
    small = {"w": np.arange(6, dtype=np.int16).reshape(3, 2), "v": np.ones(2, ml_dtypes.bfloat16)}
    write(zarr_store(str(tmp_path / "s"), small, WriteOptions({}, {}, 4)), small)
    files = [p for p in (tmp_path / "s").rglob("*") if p.is_file()]
    assert len(files) == 3 + 4
    for file in files:
        whole = file.read_bytes()
        bits = rng.choice(len(whole) * 8, 40, replace=False).tolist()
        for byte, bit in [divmod(place, 8) for place in bits]:
            file.write_bytes(whole[:byte] + bytes([whole[byte] ^ 1 << bit]) + whole[byte + 1 :])
            found = damage(tmp_path / "s")
            assert len(found) >= 1, (file, byte, bit)
            assert file.name == "zarr.json" or str(file) in found[0]
            assert file.name == "zarr.json" or "tensor '" in found[0]
        file.write_bytes(whole)
    (tmp_path / "s" / "w" / "c" / "1" / "0").unlink()
    assert "there is no such file" in damage(tmp_path / "s")[0]


def damage(path: Path) -> list[str]:
    try:
        return list(map(str, verify(open_zarr(str(path)))))
    except CheckpointError as error:
        return [str(error)]


@pytest.mark.parametrize("name", ["a/../b", "/a", "a//b", "", "__x", "zarr.json", "a.w/x"])
def test_names_that_zarr_cannot_hold_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=f"cannot hold a tensor named '{name}'|named 'a.w'"):
        zarr_store(str(tmp_path / "s"), {"a.w": SOME["a.w"], name: SOME["a.w"]})
    with pytest.raises(CheckpointError, match="dtype float128, which Zarr cannot hold"):
        zarr_store(str(tmp_path / "s"), {"w": np.zeros(2, np.longdouble)})


def test_a_store_that_exists_is_kept_unless_told(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    write(zarr_store(path, {"e": SOME["e"]}), SOME)
    with pytest.raises(FileInUseError, match=r"s: it exists\. .* overwrite=True"):
        write(zarr_store(path, {"g": SOME["g"]}), SOME)
    assert list(open_zarr(path).tensors) == ["e"]
    write(zarr_store(path, {"g": SOME["g"]}, WriteOptions({}, overwrite=True)), SOME)
    assert same(read(open_zarr(path)), {"g": SOME["g"]})
    assert os.listdir(tmp_path) == ["s"]


def test_a_store_that_cannot_be_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    writer = zarr_store(str(tmp_path / "s"), SOME)
    with monkeypatch.context() as patched:
        patched.setattr(writer, "_sign", full)
        with pytest.raises(StorageError, match="The disk is full"):
            writer.begin()
    assert os.listdir(tmp_path) == []
    writer.begin()
    with monkeypatch.context() as patched:
        patched.setattr(zarr_module.os, "fsync", full)
        stored = writer.tensors["e"]
        writer.write(stored, stored.pieces[0], stored.pieces[0].box, SOME["e"])
        with pytest.raises(StorageError, match="cannot be brought to the disk"):
            writer.sync({})
    writer.abandon()
    assert os.listdir(tmp_path) == []


def test_a_store_that_is_wrong_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "s"
    made = zarr.create_array(place, shape=(4,), chunks=(2,), dtype="u2")
    made[:] = 1
    text = (place / "zarr.json").read_text()
    form = json.loads(text)
    for change, said in [
        ({"shape": [-4]}, "cannot be read"),
        ({"shape": "x"}, "cannot be read"),
        ({"zarr_format": 2}, "cannot be read as Zarr"),
        ({"node_type": "tree"}, "cannot be read as Zarr"),
        ({"data_type": "string"}, "cannot be read|not numeric"),
        ({"codecs": [{"name": "pickle"}]}, "cannot be read"),
        ({"attributes": {"meshard.dtype": "float8_e5m2"}}, "meshard.dtype says"),
        ({"attributes": {"meshard.xxh3": "0" * 16}}, "checksum"),
        ({"attributes": 3}, "not Zarr's metadata"),
        ({"attributes": {"meshard.tied": {"a": "b"}}}, "must name arrays"),
    ]:
        (place / "zarr.json").write_text(json.dumps({**form, **change}))
        with pytest.raises(CheckpointError, match=said) as caught:
            open_zarr(str(place))
        assert str(place) in str(caught.value)
    chunk = {"name": "regular", "configuration": {"chunk_shape": [1 << 60]}}
    (place / "zarr.json").write_text(json.dumps({**form, "chunk_grid": chunk}))
    with pytest.raises(CheckpointError, match=r"has chunks of shape|cannot be read"):
        open_zarr(str(place))
    for text in ("", "[", "[" * 100_000, "null", "3"):
        (place / "zarr.json").write_text(text)
        with pytest.raises(CorruptFileError, match=r"zarr\.json: it is not Zarr's metadata"):
            open_zarr(str(place))


def hdf5(path: Path) -> dict[str, np.ndarray]:
    tensors = {
        "plain": rng.random((20, 6)),
        "g/swapped": rng.integers(0, 99, (5, 4)).astype(">i4"),
        "g/chunks": rng.random((31, 9)).astype(np.float32),
        "scalar": np.float16(2.5).reshape(()),
        "bools": rng.integers(0, 2, 7).astype(bool),
        "complex": (rng.random(3) + 1j).astype(np.complex64),
        "none": np.zeros((0, 4), np.uint8),
    }
    with h5py.File(path, "w") as file:
        for name, value in tensors.items():
            packed = {"chunks": (8, 4), "compression": "gzip"} if name == "g/chunks" else {}
            file.create_dataset(name, data=value, **packed)
        file.create_dataset("late", shape=(3,), dtype="f4", fillvalue=7)
    tensors["g/swapped"] = tensors["g/swapped"].astype("i4")
    return tensors | {"late": np.full(3, 7, np.float32)}


def test_an_hdf5_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    tensors = hdf5(path)
    catalogue = open_catalogue(str(path))
    assert catalogue.format == "hdf5"
    assert same(read(catalogue), tensors)
    kinds = {n: s.pieces[0].offset >= 0 for n, s in catalogue.tensors.items() if s.pieces}
    assert kinds["plain"]
    assert kinds["g/swapped"]
    assert not kinds["g/chunks"]
    assert not kinds["late"]
    assert len(catalogue.tensors["g/chunks"].pieces) == 4 * 3
    assert list(open_hdf5(str(path), "g").tensors) == ["chunks", "swapped"]
    assert list(open_hdf5(str(path), "g/chunks").tensors) == ["g/chunks"]
    catalogue.reader.close()


def test_an_hdf5_file_that_is_wrong_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    hdf5(path)
    whole = path.read_bytes()
    with pytest.raises(MissingFileError, match="no group or data set 'nothing'"):
        open_hdf5(str(path), "nothing")
    with pytest.raises(MissingFileError, match=r"y\.h5"):
        open_hdf5(str(tmp_path / "y.h5"))
    for size in (0, 7, 100, 600, 2000, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptFileError, match=r"x\.h5: it cannot be read as HDF5"):
            open_hdf5(str(path))
    path.unlink()
    with h5py.File(path, "w") as file:
        file["text"] = "abc"
    with pytest.raises(CheckpointError, match="data set 'text' has dtype object"):
        open_hdf5(str(path))
    path.unlink()
    with h5py.File(path, "w") as file:
        file.create_dataset("x", shape=(4,), dtype="u1", external=[("/etc/hostname", 0, 4)])
    with pytest.raises(CheckpointError, match="its elements are in other files"):
        open_hdf5(str(path))


@pytest.mark.parametrize("library", ["zarr", "h5py"])
def test_a_library_that_is_absent_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        CheckpointError, match=r"library \w+ .* pip install 'meshard\[checkpoint\]'"
    ):
        open_catalogue(str(tmp_path / "s"), "zarr" if library == "zarr" else "hdf5")


@pytest.mark.parametrize(
    ("shape", "chunk"), [((), ()), ((5,), (2,)), ((300, 700, 3), (1, 1, 1)), ((4, 3), (9, 2))]
)
def test_grids_cover_an_array_with_a_bounded_number_of_boxes(
    shape: tuple[int, ...], chunk: tuple[int, ...]
) -> None:
    boxes = list(grid_boxes(shape, grid_steps(shape, chunk)))
    assert sum(box.volume for box in boxes) == int(np.prod(shape))
    assert len(set(boxes)) == len(boxes) <= 1 << 16


def test_formats_are_found_out(tmp_path: Path) -> None:
    np.save(tmp_path / "x.bin", np.ones(2))
    (tmp_path / "x.bin.npy").rename(tmp_path / "x.bin")
    save_file({"a": np.ones(2)}, tmp_path / "weights")
    hdf5(tmp_path / "h")
    formats = {n: open_catalogue(str(tmp_path / n)).format for n in ("x.bin", "weights", "h")}
    assert formats == {"x.bin": "npy", "weights": "safetensors", "h": "hdf5"}
    folder = tmp_path / "folder"
    folder.mkdir()
    for error, text in [
        (MissingFileError, "the folder is empty"),
        (CheckpointError, r"no file of a known format \(safetensors, .*It has a\.txt"),
        (CheckpointError, "it may be safetensors or zarr. Say which, by format="),
    ]:
        with pytest.raises(error, match=text):
            open_catalogue(str(folder))
        if "a.txt" not in os.listdir(folder):
            (folder / "a.txt").touch()
        else:
            (folder / "zarr.json").touch()
            (folder / "a.safetensors").touch()
    (tmp_path / "z").write_bytes(b"PK\x03\x04 1234567890")
    (tmp_path / "t").write_bytes(b"hello, hello, hello")
    (tmp_path / "e").touch()
    for name, text in [
        ("z", "Pickles can run code and are not read"),
        ("t", "it begins with b'hello, h'"),
        ("e", "it is empty"),
    ]:
        with pytest.raises(CheckpointError, match=text):
            open_catalogue(str(tmp_path / name))
    with pytest.raises(MissingFileError, match="nothing: "):
        open_catalogue(str(tmp_path / "nothing"))
    with pytest.raises(ArgumentError, match="there is no format 'x'; there are safetensors"):
        open_catalogue(str(tmp_path / "z"), "x")


def test_floors_above_may_add_a_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "manifest.json").touch()
    asked: list[str] = []

    def opened(path: str) -> Catalogue:
        asked.append(path)
        raise MissingFileError("it was asked")

    monkeypatch.setitem(FORMATS, "own", Format(opened, lambda names: "manifest.json" in names))
    with pytest.raises(MissingFileError, match="it was asked"):
        open_catalogue(str(tmp_path))
    assert asked == [str(tmp_path)]
