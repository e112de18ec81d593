"""`.npy` in and out; NumPy itself is the judge."""

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from meshard.algebra.box import Box
from meshard.errors import CheckpointError, CorruptFileError, MissingFileError
from meshard.weights.catalogue.npy import npy_file, open_npy
from meshard.weights.catalogue.safetensors_writer import WriteOptions
from meshard.weights.catalogue.verify import verify

DTYPES = ("f8", ">f4", "f2", "?", "c16", ">c8", "i1", ">u8", "g")


def whole(path: str) -> np.ndarray:
    catalogue = open_npy(path)
    (stored,) = catalogue.tensors.values()
    out = np.empty(stored.shape, stored.dtype)
    for piece in stored.pieces:
        catalogue.reader.read(stored, piece, piece.box, out[(*piece.box.slices, ...)])
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (4, 3, 2), (1, 6)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_what_numpy_saves_is_read(
    tmp_path: Path, dtype: str, shape: tuple[int, ...], order: str
) -> None:
    path = str(tmp_path / "x.npy")
    value = np.random.default_rng(5).integers(0, 2, shape).astype(dtype, order=order)
    np.save(path, value)
    assert whole(path).dtype == value.dtype.newbyteorder("=")
    assert (whole(path) == value).all()
    assert [one.file for one in verify(open_npy(path))] == [path]


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_all_versions_are_read(tmp_path: Path, version: tuple[int, int]) -> None:
    path = tmp_path / "x.npy"
    with path.open("wb") as file:
        np.lib.format.write_array(file, np.arange(6).reshape(2, 3), version)
    assert (whole(str(path)) == np.arange(6).reshape(2, 3)).all()


@pytest.mark.parametrize("dtype", ["f8", "f2", "?", "c16", "i1", "u8", "g"])
def test_what_is_written_numpy_loads(tmp_path: Path, dtype: str) -> None:
    path = str(tmp_path / "x.npy")
    value = np.random.default_rng(5).integers(0, 2, (7, 3)).astype(dtype)
    writer = npy_file(path, value, WriteOptions(piece_bytes=40))
    writer.begin()
    (stored,) = writer.tensors.values()
    assert stored.name == "x"
    for piece in stored.pieces:
        writer.write(stored, piece, piece.box, value[piece.box.slices])
    writer.sync({("x", 0): 1})
    assert os.listdir(tmp_path) == [".x.npy.partial"]
    writer.commit()
    found = np.load(path, allow_pickle=False)
    assert found.dtype == value.dtype
    assert (found == value).all()


def saved(path: Path, value: np.ndarray, allow_pickle: bool = False) -> bytes:
    np.save(path, value, allow_pickle=allow_pickle)
    return path.read_bytes()


def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    data = saved(path, np.arange(5))
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(CorruptFileError, match=r"x\.npy"):
            open_npy(str(path))
    path.write_bytes(data + b"x")
    with pytest.raises(CorruptFileError, match="ends at byte 168, but the file has 169 bytes"):
        open_npy(str(path))


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (b"'<i8'", b"'|O'", "nothing is unpickled"),
        (b"'<i8'", b"'<U8'", "not a numeric dtype"),
        (b"'<i8'", b"'<q9'", "its dtype '<q9' cannot be read"),
        (b"'<i8'", b"[('a','<i4'),('b','<i4')]", "not a numeric dtype"),
        (b"(5,)", b"(-5,)", "must say descr, fortran_order and shape"),
        (b"(5,)", b"(5.0,)", "must say descr, fortran_order and shape"),
        (b"(5,)", b"[5]", "must say descr, fortran_order and shape"),
        (b"False", b"0", "must say descr, fortran_order and shape"),
        (b"'shape'", b"'form'", "must say descr, fortran_order and shape"),
        (b"(5,)", b"print()", "its header cannot be read"),
        (b"(5,)", b"(" * 80, "its header cannot be read"),
        (b"NUMPY", b"NUMPI", "not a .npy file"),
        (b"NUMPY\x01", b"NUMPY\x04", "not a .npy file of version 1, 2 or 3"),
    ],
)
def test_bad_headers_are_refused(tmp_path: Path, old: bytes, new: bytes, text: str) -> None:
    path = tmp_path / "x.npy"
    data = bytearray(saved(path, np.arange(5)))
    start = data.index(b"\n") + 1
    head = bytes(data[:start]).replace(old, new)
    head = head[:8] + (len(head) - 10).to_bytes(2, "little") + head[10:]
    path.write_bytes(head + data[start:])
    with pytest.raises(CheckpointError) as caught:
        open_npy(str(path))
    assert text.lower() in str(caught.value).lower()
    assert str(path) in str(caught.value)


def test_pickles_are_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    saved(path, np.array([print], object), allow_pickle=True)
    with pytest.raises(CheckpointError, match="Nothing is unpickled"):
        open_npy(str(path))
    path.write_bytes(b"\x93NUMPY\x02\x00" + b"\xff" * 4)
    with pytest.raises(CorruptFileError, match="4,294,967,295 bytes long, and 10,000 are"):
        open_npy(str(path))
    with pytest.raises(MissingFileError, match=r"none\.npy"):
        open_npy(str(tmp_path / "none.npy"))


def test_dtypes_that_the_format_cannot_hold_are_refused(tmp_path: Path) -> None:
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4):
        with pytest.raises(CheckpointError, match=f"cannot hold {np.dtype(dtype)}"):
            npy_file(str(tmp_path / "x.npy"), np.zeros(3, dtype))


def test_a_box_of_a_transposed_file_is_read_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "x.npy")
    value = np.arange(24).reshape(4, 6)
    np.save(path, np.asfortranarray(value))
    catalogue = open_npy(path)
    (stored,) = catalogue.tensors.values()
    out = np.empty((2, 3), int)
    catalogue.reader.read(stored, stored.pieces[0], Box((1, 2), (3, 5)), out)
    assert (out == value[1:3, 2:5]).all()
