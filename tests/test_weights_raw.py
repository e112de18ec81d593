"""Boxes of pieces are read with the bytes that they have and no others, in as few calls."""

import os
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from meshard.algebra.box import Box
from meshard.errors import CheckpointError, CorruptFileError, MissingFileError, StorageError
from meshard.tuning import READ_BUFFER
from meshard.weights.catalogue import stored as raw
from meshard.weights.catalogue.stored import (
    Foreign,
    OpenFile,
    OpenFiles,
    Piece,
    RawReader,
    Stored,
    box_count,
    contiguous_boxes,
)

DTYPES = ("f8", "f4", "?", "c16", "i1", ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.int4)


def stored(
    folder: Path, value: np.ndarray, box: Box | None = None, offset: int = 5
) -> tuple[Stored, Piece]:
    """Write a value at an offset of a file, and return it as a piece of a tensor."""
    box = box or Box.whole(value.shape)
    (folder / "data").write_bytes(b"\xff" * offset + value.tobytes() + b"\xff" * 7)
    piece = Piece(box, "data", offset)
    return Stored("w", box.stops, value.dtype, (piece,)), piece


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: object) -> np.ndarray:
    return rng.integers(0, 2 if dtype == "?" else 8, shape).astype(np.dtype(dtype))


def strided(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array of a shape in memory of some other order, with gaps or without."""
    order = rng.permutation(len(shape))
    steps = rng.integers(1, 3, len(shape)) if rng.random() < 0.5 else [1] * len(shape)
    whole = np.zeros([shape[d] * steps[d] for d in order], dtype)
    return whole.transpose(np.argsort(order))[(*[slice(None, None, s) for s in steps], ...)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Note where each read begins and how many bytes it asks for."""
    real, made = os.preadv, []

    def preadv(number: int, buffers: list[memoryview], offset: int) -> int:
        made.append((offset, sum(map(len, buffers))))
        return real(number, buffers, offset)

    monkeypatch.setattr(raw.os, "preadv", preadv)
    return made


@pytest.mark.parametrize("seed", range(60))
def test_any_box_into_any_memory(tmp_path: Path, seed: int, calls: list[tuple[int, int]]) -> None:
    rng = np.random.default_rng(seed)
    dtype = DTYPES[seed % len(DTYPES)]
    shape = tuple(rng.integers(1, 7, rng.integers(0, 5)).tolist())
    value = numbers(rng, shape, dtype)
    origin = tuple(rng.integers(0, 9, len(shape)).tolist())
    outer = Box(origin, tuple([a + n for a, n in zip(origin, shape, strict=True)]))
    tensor, piece = stored(tmp_path, value, outer)
    starts = [int(rng.integers(a, b)) for a, b in zip(*outer, strict=True)]
    stops = [int(rng.integers(a + 1, b + 1)) for a, b in zip(starts, outer.stops, strict=True)]
    box = Box(tuple(starts), tuple(stops))
    out = strided(rng, box.shape, value.dtype)
    RawReader(str(tmp_path)).read(tensor, piece, box, out)
    expected = value[box.within(outer).slices]
    assert out.tobytes() == expected.tobytes()
    # Never a byte too many, none twice, and consecutive bytes in one call.
    assert sum(size for _, size in calls) == out.nbytes
    ends = [offset + size for offset, size in sorted(calls)]
    assert all(end < offset for end, (offset, _) in zip(ends, sorted(calls)[1:], strict=False))


def test_large_boxes_go_straight_to_their_place(
    tmp_path: Path, calls: list[tuple[int, int]]
) -> None:
    value = np.arange(3 * READ_BUFFER, dtype=np.uint8).reshape(3, 8, -1)
    tensor, piece = stored(tmp_path, value)
    reader = RawReader(str(tmp_path))
    out = np.empty_like(value)
    reader.read(tensor, piece, piece.box, out)
    assert calls == [(5, value.nbytes)]
    calls.clear()
    wide = np.zeros((3, 8, 2 * value.shape[2]), np.uint8)  # every second half of a row
    reader.read(tensor, piece, piece.box, wide[:, :, : value.shape[2]])
    assert (wide[:, :, : value.shape[2]] == value).all()
    assert not wide[:, :, value.shape[2] :].any()
    assert len(calls) == 3
    assert max(size for _, size in calls) <= READ_BUFFER
    calls.clear()
    turned = np.zeros(value.shape[::-1], np.uint8).T  # nothing of it is contiguous
    reader.read(tensor, piece, piece.box, turned)
    assert (turned == value).all()
    assert max(size for _, size in calls) <= READ_BUFFER
    assert len(calls) <= 6


@pytest.mark.parametrize("dtype", ["f8", "i2", "c8"])
def test_the_other_byte_order_and_fortran_order(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(3)
    value = rng.integers(0, 99, (4, 3, 5)).astype(dtype)
    (tmp_path / "data").write_bytes(b"123" + value.astype(">" + dtype).tobytes(order="F"))
    piece = Piece(Box.whole(value.shape), "data", -1)
    tensor = Stored("w", value.shape, value.dtype, (piece,))
    reader = RawReader(str(tmp_path), {"w": Foreign(True, 3)})
    for box in [piece.box, Box((1, 0, 2), (3, 2, 5)), Box((3, 2, 4), (4, 3, 5))]:
        out = strided(rng, box.shape, value.dtype)
        reader.read(tensor, piece, box, out)
        assert (out == value[box.slices]).all()


def test_bools_that_are_neither_are_refused(tmp_path: Path) -> None:
    tensor, piece = stored(tmp_path, np.array([0, 1, 2], np.uint8))
    tensor = Stored("w", (3,), np.dtype(bool), (piece,))
    with pytest.raises(CorruptFileError, match=r"tensor 'w' holds bools, but box \[0:3\]"):
        RawReader(str(tmp_path)).read(tensor, piece, piece.box, np.empty(3, bool))


def test_files_are_opened_once_and_a_bounded_number_stays_open(tmp_path: Path) -> None:
    paths = [str(tmp_path / str(i)) for i in range(10)]
    for path in paths:
        Path(path).write_bytes(b"x")
    before = len(os.listdir("/proc/self/fd"))
    files = OpenFiles(4)
    held = files[paths[0]]
    assert files[paths[0]] is held
    for path in paths:
        assert files[path].size == 1
    assert len(os.listdir("/proc/self/fd")) == before + 5
    assert held.bytes_at(0, 1, "") == b"x"  # it was forgotten, and is open until let go
    del held
    files.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_threads_share_a_reader(tmp_path: Path) -> None:
    value = np.random.default_rng(1).random((64, 64))
    tensor, piece = stored(tmp_path, value)
    reader, wrong = RawReader(str(tmp_path)), []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(100):
            a, b = sorted(rng.choice(65, 2, replace=False))
            box = Box((int(a), 3), (int(b), 60))
            out = np.zeros(box.shape[::-1]).T
            reader.read(tensor, piece, box, out)
            if seed == 0:
                reader.close()
            if not (out == value[box.slices]).all():
                wrong.append(box)

    threads = [threading.Thread(target=work, args=[seed]) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, error, text in [
        ("none", MissingFileError, "none: it cannot be read: there is no such file."),
        ("", CheckpointError, "it is a folder, not a regular file"),
        ("pipe", CheckpointError, "it is a pipe, socket or device, not a regular file"),
    ]:
        with pytest.raises(error, match=text):
            OpenFile(str(tmp_path / path))
    with pytest.raises(StorageError, match="File name too long"):
        OpenFile(str(tmp_path / ("x" * 300)))


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 5, 3), (7, 1, 9), (1, 1, 40)])
@pytest.mark.parametrize("most", [1, 4, 12, 40, 1000])
def test_contiguous_boxes_follow_each_other(shape: tuple[int, ...], most: int) -> None:
    order = np.arange(int(np.prod(shape))).reshape(shape)
    boxes = list(contiguous_boxes(shape, 4, most))
    assert len(boxes) == box_count(shape, 4, most)
    found = [order[box.slices].ravel() for box in boxes]
    assert np.concatenate([[], *found]).tolist() == list(range(order.size))
    assert all(4 * part.size <= max(most, 4) for part in found)
