"""Damaged and hostile files: whatever the bytes are, an error names the file, or it is read."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from meshard.errors import CheckpointError
from meshard.weights.catalogue.detect import open_catalogue
from meshard.weights.catalogue.safetensors_writer import several_files
from meshard.weights.catalogue.stored import Catalogue
from meshard.weights.catalogue.verify import verify

MOST = 1 << 20
TOKENS = (
    *(b"{", b"}", b"[", b"]", b'"', b":", b",", b"\\", b"\\u", b"\x00", b"\xff", b"\n", b" " * 9),
    *(b"-1", b"0", b"1e999", b"9" * 30, b"1.5", b"NaN", b"null", b"true", b"9223372036854775807"),
    *(b'"F32"', b'"I64"', b'"F4"', b'"shape"', b'"data_offsets"', b'"__metadata__"', b"[" * 5000),
    *(b"../", b"/etc/passwd", b"weight_map", b"\xf0\x9f\x98\x80", b"\\ud800", b"__import__('os')"),
    *(b"'<f8'", b"'|O'", b"True", b"()", b"(1,)", b"NUMPY"),
)


def mutated(rng: np.random.Generator, data: bytes) -> bytes:
    """Return bytes with a few changes of all kinds."""
    found = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        at = int(rng.integers(0, len(found) + 1))
        end = min(at + int(rng.geometric(0.1)), len(found))
        match int(rng.integers(0, 7)):
            case 0 if at < len(found):
                found[at] ^= 1 << int(rng.integers(0, 8))
            case 1:
                del found[at:end]
            case 2:
                found[at:at] = TOKENS[rng.integers(0, len(TOKENS))]
            case 3:
                found[at:end] = TOKENS[rng.integers(0, len(TOKENS))]
            case 4:
                found[at:at] = found[at:end] * int(rng.integers(1, 4))
            case 5:
                del found[at:]
            case _:
                found[at:end] = rng.bytes(end - at)
    return bytes(found)


def read_all(catalogue: Catalogue) -> None:
    for stored in catalogue.tensors.values():
        assert stored.nbytes < MOST, stored.name
        assert sum(p.box.volume for p in stored.pieces) == int(np.prod(stored.shape))
        for piece in stored.pieces:
            out = np.empty(piece.box.shape, stored.dtype)
            catalogue.reader.read(stored, piece, piece.box, out)
    list(verify(catalogue))
    catalogue.reader.close()


def tried(path: Path, format: str | None = None) -> str:
    """Return what is said of a path; empty if it is read."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    said = ""
    try:
        read_all(open_catalogue(str(path), format))
    except CheckpointError as error:
        said = str(error)
    assert tracemalloc.get_traced_memory()[1] - before < 8 * MOST
    return said


def fuzzed(
    file: Path, count: int, path: Path, format: str | None, fixed: Callable[[bytes], bytes]
) -> list[str]:
    data, said = file.read_bytes(), []
    rng = np.random.default_rng(len(data))
    tracemalloc.start()
    try:
        for _ in range(count):
            file.write_bytes(fixed(mutated(rng, data)))
            said.append(tried(path, format))
    finally:
        tracemalloc.stop()
        file.write_bytes(data)
    assert all(not one or str(path) in one for one in said)
    assert all(len(one) < 2000 for one in said)
    return said


def same(data: bytes) -> bytes:
    return data


def with_length(data: bytes) -> bytes:
    """Make the length of a header right again, so that its text is parsed."""
    end = data.rfind(b"}", 0, -20) + 1
    return max(end - 8, 0).to_bytes(8, "little") + data[8:]


@pytest.mark.parametrize("fixed", [same, with_length])
def test_safetensors_files(tmp_path: Path, fixed: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a": np.ones((2, 3), np.float32), "b": np.ones(5, np.int8)}, path, {"x": "y"})
    said = fuzzed(path, 600, path, None, fixed)
    assert sum(map(bool, said)) > 300


def test_what_is_accepted_the_library_accepts(tmp_path: Path) -> None:
    """The other way round it need not be: the library reads packed dtypes, for one."""
    path = tmp_path / "m.safetensors"
    save_file({"a": np.ones((2, 3), np.float32), "b": np.ones(5, np.int8)}, path)
    data, rng, accepted = path.read_bytes(), np.random.default_rng(1), 0
    start = 8 + int.from_bytes(data[:8], "little")
    for _ in range(1500):
        head = bytearray(data[8:start])
        for _ in range(rng.integers(1, 3)):
            head[rng.integers(0, len(head))] = rng.choice(list(b'0123456789abFU8I ,:"[]{}'))
        path.write_bytes(data[:8] + head + data[start:])
        if not tried_quickly(path):
            accepted += 1
            try:
                with safe_open(path, framework="numpy") as file:
                    assert sorted(file.keys()) == sorted(open_catalogue(str(path)).tensors)
            except SafetensorError as error:
                raise AssertionError(f"{head!r}: {error}") from error
    assert accepted > 20


def tried_quickly(path: Path) -> str:
    try:
        open_catalogue(str(path))
    except CheckpointError as error:
        return str(error)
    return ""


def test_indexes(tmp_path: Path) -> None:
    tensors = {"a": np.ones((2, 3), np.float32), "b": np.ones(5, np.int8)}
    writer = several_files(str(tmp_path), tensors, shard_bytes=10)
    writer.begin()
    writer.sync({})
    writer.commit()
    index = tmp_path / "model.safetensors.index.json"
    form = json.loads(index.read_bytes())
    del form["metadata"]["meshard.xxh3"]
    index.write_text(json.dumps(form))
    said = fuzzed(index, 500, tmp_path, "safetensors", same)
    assert sum(map(bool, said)) > 300


def test_npy_files(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.ones((3, 4)))
    said = fuzzed(path, 600, path, "npy", same)
    assert sum(map(bool, said)) > 300


def test_zarr_metadata(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    made = zarr.create_array(tmp_path / "s", shape=(6, 4), chunks=(4, 4), dtype="f4")
    made[:] = 1
    place = tmp_path / "s" / "zarr.json"
    data, rng, said = place.read_bytes(), np.random.default_rng(4), []
    for _ in range(150):
        place.write_bytes(mutated(rng, data))
        try:
            catalogue = open_catalogue(str(tmp_path / "s"))
            if sum(t.nbytes for t in catalogue.tensors.values()) < MOST:
                read_all(catalogue)
            said.append("")
        except CheckpointError as error:
            said.append(str(error))
    assert all(not one or str(tmp_path) in one for one in said)
    assert sum(map(bool, said)) > 60
