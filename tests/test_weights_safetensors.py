"""Safetensors in and out: the reference library and the convention of indexes are the judges."""

import json
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import xxhash
from safetensors import safe_open
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
from meshard.runtime.moving.structs import ShapeDtypeStruct
from meshard.runtime.types import KEY
from meshard.weights.catalogue import raw_writer
from meshard.weights.catalogue import stored as raw
from meshard.weights.catalogue.safetensors_file import open_ranks, open_safetensors
from meshard.weights.catalogue.safetensors_header import DTYPES, OpenFile, read_header
from meshard.weights.catalogue.safetensors_writer import (
    WriteOptions,
    one_file,
    rank_files,
    several_files,
)
from meshard.weights.catalogue.stored import Catalogue, Writer
from meshard.weights.catalogue.verify import verify

rng = np.random.default_rng(7)


def values(**shapes: tuple[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    found = {}
    for name, (dtype, shape) in shapes.items():
        kind = DTYPES.get(dtype)
        size = int(np.prod(shape)) * kind.itemsize
        bits = rng.integers(0, 2 if dtype == "BOOL" else 256, size, np.uint8)
        found[name.replace("__", ".")] = bits.view(kind).reshape(shape)
    return found


def bits(x: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    return x.dtype.name, x.shape, x.tobytes()


def write(writer: Writer, tensors: dict[str, np.ndarray], *, rows: int = 2) -> None:
    """Write all pieces, some leading rows at a time, and commit."""
    writer.begin()
    sums = {}
    for name, stored in writer.tensors.items():
        for number, piece in enumerate(stored.pieces):
            block = tensors[name][(*piece.box.slices, ...)]
            sums[name, number] = xxhash.xxh3_64_intdigest(np.ascontiguousarray(block).tobytes())
            size = piece.box.shape[0] if piece.box.shape else 0
            for at in range(0, size, rows) if size else [None]:
                box = piece.box
                if at is not None:
                    first, last = box.starts[0] + at, min(box.starts[0] + at + rows, box.stops[0])
                    box = Box((first, *box.starts[1:]), (last, *box.stops[1:]))
                writer.write(stored, piece, box, tensors[name][(*box.slices, ...)])
    writer.sync(sums)
    writer.commit()


def read(catalogue: Catalogue) -> dict[str, np.ndarray]:
    found = {}
    for name, stored in catalogue.tensors.items():
        whole = found[name] = np.empty(stored.shape, stored.dtype)
        for piece in stored.pieces:
            catalogue.reader.read(stored, piece, piece.box, whole[(*piece.box.slices, ...)])
    return found


ALL = values(**{name: (name, (3, 4)) for name in DTYPES})
SOME = values(a__w=("F32", (7, 3)), b__w=("BF16", (5, 2, 4)), c=("I8", ()), d=("U8", (0, 3)))


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    return {n: bits(x) for n, x in found.items()} == {n: bits(x) for n, x in expected.items()}


def test_every_dtype_of_the_format_goes_out_and_in(tmp_path: Path) -> None:
    path = str(tmp_path / "all.safetensors")
    write(one_file(path, ALL), ALL)
    assert same(read(open_safetensors(path)), ALL)
    with safe_open(path, framework="numpy") as file:
        assert sorted(file.keys()) == sorted(ALL)
        assert file.metadata()["format"] == "pt"
        for name in ALL:
            assert file.get_slice(name).get_dtype() == name
            if DTYPES[name].isbuiltin == 1:
                assert bits(file.get_tensor(name)) == bits(ALL[name])


def test_what_the_library_writes_is_read(tmp_path: Path) -> None:
    path = str(tmp_path / "m.safetensors")
    tensors = {k: v for k, v in ALL.items() if DTYPES[k].isbuiltin == 1 or k == "BF16"}
    save_file(tensors, path, metadata={"who": 'a "b" \\ é'})
    catalogue = open_safetensors(path)
    assert same(read(catalogue), tensors)
    assert catalogue.values == {"who": 'a "b" \\ é'}
    assert catalogue.unchecked == ("m.safetensors",)


@pytest.mark.parametrize("piece_bytes", [1, 8, 40, 1 << 20])
def test_pieces_cover_each_tensor_once_and_keep_their_checksums(
    tmp_path: Path, piece_bytes: int
) -> None:
    path = str(tmp_path / "m.safetensors")
    write(one_file(path, SOME, WriteOptions(piece_bytes=piece_bytes)), SOME)
    catalogue = open_safetensors(path)
    assert same(read(catalogue), SOME)
    assert same(load_file_numpy(path), {n: x for n, x in SOME.items() if n != "b.w"})
    assert list(verify(catalogue)) == []
    for stored in catalogue.tensors.values():
        count = np.zeros(stored.shape, int)
        for piece in stored.pieces:
            count[piece.box.slices] += 1
            assert piece.checksum is not None
        assert (count == 1).all()


def load_file_numpy(path: str) -> dict[str, np.ndarray]:
    with safe_open(path, framework="numpy") as file:
        return {n: file.get_tensor(n) for n in file.keys() if n != "b.w"}  # noqa: SIM118


def test_processes_share_the_verification(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write(one_file(str(path), SOME, WriteOptions(piece_bytes=8)), SOME)
    start = read_header(OpenFile(str(path))).start
    data = path.read_bytes()
    path.write_bytes(data[:start] + bytes([b ^ 1 for b in data[start:]]))
    catalogue = open_safetensors(str(path))
    whole = list(verify(catalogue))
    assert len(whole) == sum(len(t.pieces) for t in catalogue.tensors.values())
    shares = [list(verify(catalogue, process, 3)) for process in range(3)]
    assert sorted([str(d) for share in shares for d in share]) == sorted(map(str, whole))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def damage(path: Path) -> list[str]:
    """Return what is found wrong, when the file is opened or when it is verified."""
    try:
        return list(map(str, verify(open_safetensors(str(path)))))
    except CheckpointError as error:
        return [str(error)]


def test_every_flipped_bit_is_found_and_named(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    tensors = values(w=("F32", (3, 2)), v=("I16", (5,)))
    write(one_file(str(path), tensors, WriteOptions(piece_bytes=8)), tensors)
    whole = path.read_bytes()
    start = read_header(OpenFile(str(path))).start
    for place in range(len(whole) * 8):
        byte, bit = divmod(place, 8)
        path.write_bytes(whole[:byte] + bytes([whole[byte] ^ 1 << bit]) + whole[byte + 1 :])
        found = damage(path)
        assert len(found) == 1
        assert found[0].startswith(str(path))
        # A digit of a piece's checksum is in the header, and names the piece.
        assert byte < start or "tensor '" in found[0]


def test_every_flipped_bit_of_an_index_is_found(tmp_path: Path) -> None:
    write(several_files(str(tmp_path), SOME, shard_bytes=50), SOME)
    index = tmp_path / "model.safetensors.index.json"
    whole = index.read_bytes()
    for place in range(len(whole) * 8):
        byte, bit = divmod(place, 8)
        index.write_bytes(whole[:byte] + bytes([whole[byte] ^ 1 << bit]) + whole[byte + 1 :])
        (found,) = damage(tmp_path)
        assert str(tmp_path) in found


def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write(one_file(str(path), SOME), SOME)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptFileError, match=r"m\.safetensors"):
            open_safetensors(str(path))


def test_an_index_follows_the_convention(tmp_path: Path) -> None:
    write(several_files(str(tmp_path), SOME, shard_bytes=50), SOME)
    assert sorted(os.listdir(tmp_path)) == [
        "model-00001-of-00003.safetensors",
        "model-00002-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
        "model.safetensors.index.json",
    ]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(x.nbytes for x in SOME.values())
    for name, file in index["weight_map"].items():
        with safe_open(tmp_path / file, framework="numpy") as opened:
            assert name in opened.keys()  # noqa: SIM118
            assert opened.metadata() is not None
            assert opened.metadata()["format"] == "pt"
    assert sorted(index["weight_map"]) == sorted(SOME)
    assert same(read(open_safetensors(str(tmp_path))), SOME)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert same(read(open_safetensors(str(tmp_path))), SOME)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(MissingFileError, match="one of 3 files, but 2 of them are here"):
        open_safetensors(str(tmp_path))


def test_rank_files_hold_shards_under_the_tensors_own_names(tmp_path: Path) -> None:
    tensors = values(q=("F32", (7, 4)), o=("BF16", (3, 5)), norm=("F16", (6,)))
    parts = {
        "q": [Box((0, 0), (4, 4)), Box((4, 0), (7, 4))],
        "o": [Box((0, 0), (3, 2)), Box((0, 2), (3, 5))],
        "norm": [Box.whole((6,))] * 2,
    }
    write(rank_files(str(tmp_path), tensors, parts, WriteOptions(piece_bytes=12)), tensors)
    names = [f"model-rank-0000{r}-of-00002.safetensors" for r in range(2)]
    assert sorted(os.listdir(tmp_path)) == names
    paths = [str(tmp_path / name) for name in names]
    for r, path in enumerate(paths):
        expected = {n: x[parts[n][r].slices] for n, x in tensors.items()}
        catalogue = open_safetensors(path)
        assert same(read(catalogue), expected)
        assert list(verify(catalogue)) == []
    joined = open_ranks(paths, {"q": 0, "o": -1, "norm": None})
    assert same(read(joined), tensors)
    assert list(verify(joined)) == []
    told = open_safetensors(str(tmp_path))  # the files say themselves which parts they have
    assert same(read(told), tensors)
    assert list(verify(told)) == []
    os.rename(paths[1], tmp_path / "model-rank-00000-of-00001.safetensors")
    os.rename(paths[0], tmp_path / "elsewhere")
    os.link(tmp_path / "model-rank-00000-of-00001.safetensors", tmp_path / "b.safetensors")
    with pytest.raises(CorruptFileError, match=r"hold \d+ of \d+ elements of tensor '[qo]'; files"):
        open_safetensors(str(tmp_path))


def test_files_of_torchs_huggingface_writer_are_put_together(tmp_path: Path) -> None:
    whole = {"w": np.arange(15.0).reshape(5, 3), "b": np.arange(4.0), "scale": np.float32(2)}
    parts = [
        {"w": ([0, 0], whole["w"][:3]), "b": ([0], whole["b"][:2])},
        {"w": ([3, 0], whole["w"][3:]), "b": ([2], whole["b"][2:]), "scale": ([], whole["scale"])},
    ]
    paths = [tmp_path / f"shard-0000{k}-model-00001-of-00001.safetensors" for k in (1, 2)]

    def written(path: Path, told: str) -> None:
        part = parts[paths.index(path)]
        tensors = {name: np.array(x) for name, (_, x) in part.items()}
        save_file(tensors, path, {"format": "pt", "DCP_SHARDING_INFO": told, "DCP_VERSION": "1.0"})

    for path, part in zip(paths, parts, strict=True):
        written(path, json.dumps({n: {"saved_offsets": at} for n, (at, _) in part.items()}))
    found = read(open_safetensors(str(tmp_path)))
    assert same(found, {name: np.asarray(x) for name, x in whole.items()})
    with pytest.raises(CorruptFileError, match="files of some ranks are missing"):
        open_safetensors(str(paths[1]))
    for told in (
        '{"w": {"saved_offsets": [3]}}',
        '{"w": 3}',
        "[",
        '{"w": {"saved_offsets": [-1]}}',
    ):
        written(paths[1], told)
        with pytest.raises(CorruptFileError, match="'DCP_SHARDING_INFO' is malformed"):
            open_safetensors(str(tmp_path))
    for told in ("{}", '{"w": {"saved_offsets": [2, 0]}}', '{"w": {"saved_offsets": [4, 0]}}'):
        written(paths[1], told)
        with pytest.raises(CorruptFileError, match="tensor 'w'"):
            open_safetensors(str(tmp_path))


def test_tensors_of_one_name_in_several_files_are_refused(tmp_path):
    for name in ("a", "b"):
        save_file({"q": np.zeros(2)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(CorruptFileError, match=r"tensor 'q' is in \S+ and in"):
        open_safetensors(str(tmp_path))


@pytest.mark.parametrize(
    ("dims", "error", "text"),
    [
        ({"q": 0}, ArgumentError, "tensor 'n' is in 2 files, and no pattern of dims says"),
        ({"q": 0, "n": 0, "*": None}, ArgumentError, "patterns ['n', '*'] differ"),
        ({"q": 0, "n": None, "x": 1}, ArgumentError, "pattern 'x' of dims matches no tensor"),
        ({"q": 1, "n": None}, CorruptFileError, "tensor 'q' do not fit together along dim 1"),
        ({"q": 2, "n": None}, ArgumentError, "cannot be cut along dim 2"),
    ],
)
def test_ranks_that_do_not_fit_are_refused(
    tmp_path: Path, dims: dict[str, int | None], error: type[Exception], text: str
) -> None:
    paths = [str(tmp_path / f"r{r}.safetensors") for r in range(2)]
    for r, path in enumerate(paths):
        save_file({"q": np.zeros((2 + r, 4)), "n": np.zeros(3)}, path)
    with pytest.raises(error) as caught:
        open_ranks(paths, dims)
    assert text in str(caught.value)


def test_tied_names_are_stored_once(tmp_path: Path) -> None:
    path = str(tmp_path / "m.safetensors")
    write(one_file(path, SOME, WriteOptions(tied={"head": "a.w"})), SOME)
    catalogue = open_safetensors(path)
    assert catalogue.tied == {"head": "a.w"}
    assert catalogue.values == {"format": "pt"}
    assert sorted(load_file_keys(path)) == sorted(SOME)


def load_file_keys(path: str) -> list[str]:
    with safe_open(path, framework="numpy") as file:
        return list(file.keys())


def header(text: str | bytes, data: int = 0, length: int | None = None) -> bytes:
    raw_text = text.encode() if isinstance(text, str) else text
    size = len(raw_text) if length is None else length
    return size.to_bytes(8, "little") + raw_text + bytes(data)


A = '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
BAD = {
    "empty": (b"", "it has 0 bytes, and the header's length alone takes 8"),
    "vast": (header("{}", 0, 1 << 60), "1,152,921,504,606,846,976 bytes long, but 2 bytes follow"),
    "text": (header("hello"), "it does not begin with {"),
    "list": (header("[]"), "it does not begin with {"),
    "cut": (header(A, 8), "expected a comma or the end"),
    "after": (header(A + "}x", 8), "more after its end"),
    "nested": (header('{"a":' + "[" * 100_000), "the entry of tensor 'a' cannot be read"),
    "deep": (header('{"a":{"shape":' + "[" * 4000 + "}"), "tensor 'a'"),
    "twice": (header(A + "," + A[1:] + "}", 8), "it names 'a' twice"),
    "key twice": (header(A[:-1] + ',"dtype":"F32"}}', 8), "a name is there twice in an object"),
    "short": (header(A.replace("8]", "7]") + "}", 7), "takes 8 bytes, but"),
    "negative": (header(A.replace("[2]", "[-2]") + "}", 8), "not sizes"),
    "float": (header(A.replace("[2]", "[2.0]") + "}", 8), "not sizes"),
    "nan": (header(A.replace("[2]", "[NaN]") + "}", 8), "NaN is not a number"),
    "true": (header(A.replace("[2]", "[true]") + "}", 8), "not sizes"),
    "huge": (header(A.replace("[2]", "[1e999]") + "}", 8), "not sizes"),
    "types": (header(A.replace('"F32"', "3") + "}", 8), "fields of wrong types"),
    "dtype": (header(A.replace("F32", "F99") + "}", 8), "'F99', which is not a dtype"),
    "packed": (header(A.replace("F32", "F4") + "}", 8), "shorter than a byte"),
    "gap": (header(A.replace("[0,8]", "[4,12]") + "}", 12), "leaves a gap after the header"),
    "overlap": (
        header(A + ',"b":{"dtype":"U8","shape":[2],"data_offsets":[7,9]}}', 9),
        "tensor 'b' overlaps tensor 'a': it begins at byte 7 of the data, expected 8",
    ),
    "beyond": (header(A + "}", 7), "takes bytes 0 to 8 of the data, but the data ends at 7"),
    "more": (header(A + "}", 9), "1 bytes follow the last tensor"),
    "metadata": (header('{"__metadata__":{"a":1}}'), "expected __metadata__, an object of texts"),
    "surrogate": (header('{"__metadata__":{"a":"\\ud800"}}'), "cannot be decoded"),
    "utf8": (header(b'{"\xff":{}}'), "cannot be decoded"),
    "dims": (
        header('{"a":{"dtype":"U8","shape":[' + "1," * 64 + '1],"data_offsets":[0,1]}}', 1),
        "65 dims, of at most 64",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_headers_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "bad.safetensors"
    data, text = BAD[name]
    path.write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        open_safetensors(str(path))
    assert text in str(caught.value)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 600


def test_unusual_headers_are_read_as_json_is(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    text = (
        '{ "__metadata__" : { } ,\n"b" :\t{"shape": [ 1 , 2 ], "data_offsets":[4,8],"dtype":"F16"'
        '}, "\\u0061\\n" : { "dtype" : "I32" , "shape" : [ ] , "data_offsets" : [ 0 , 4 ] } }  '
    )
    path.write_bytes(header(text, 8))
    catalogue = open_safetensors(str(path))
    assert {n: (s.shape, s.dtype.name) for n, s in catalogue.tensors.items()} == {
        "a\n": ((), "int32"),
        "b": ((1, 2), "float16"),
    }
    path.write_bytes(header("{}"))
    assert open_safetensors(str(path)).tensors == {}


def test_many_tensors_take_memory_in_proportion(tmp_path: Path) -> None:
    """The header alone is a tenth of what its entries take; nothing else grows with it."""
    import tracemalloc

    path = tmp_path / "m.safetensors"
    entry = '"layers.%d.w":{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]}'
    count = 20_000
    path.write_bytes(
        header("{" + ",".join([entry % (i, i, i + 1) for i in range(count)]) + "}", count)
    )
    tracemalloc.start()
    try:
        assert len(open_safetensors(str(path)).tensors) == count
        assert tracemalloc.get_traced_memory()[1] < count * 2000
    finally:
        tracemalloc.stop()
    # What JSON would make a hundred megabytes of objects is refused at its first byte.
    path.write_bytes(header('{"a":[' + "[]," * 1_000_000 + "[]]}"))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptFileError):
            open_safetensors(str(path))
        assert tracemalloc.get_traced_memory()[1] < 12_000_000
    finally:
        tracemalloc.stop()


def folder_with_index(tmp_path: Path, **changes: object) -> Path:
    save_file({"a": np.zeros(2, np.float32)}, tmp_path / "one.safetensors")
    save_file({"b": np.zeros(3, np.float32)}, tmp_path / "two.safetensors")
    index = {
        "metadata": {"total_size": 20},
        "weight_map": {"a": "one.safetensors", "b": "two.safetensors"},
    } | changes
    place = tmp_path / "model.safetensors.index.json"
    place.write_text(json.dumps(index))
    return place


LIES = {
    "size": ({"metadata": {"total_size": 19}}, "the tensors have 19 bytes"),
    "size text": ({"metadata": {"total_size": "20"}}, "must be a number of bytes"),
    "no map": ({"weight_map": None}, "expected weight_map, an object of texts"),
    "no texts": ({"weight_map": {"a": 3}}, "expected weight_map, an object of texts"),
    "empty map": ({"weight_map": {}}, 'must have "weight_map"'),
    "deep": ({"more": [[[]]] * 20000}, "more cannot be read"),
    "metadata": ({"metadata": [1]}, 'must have "weight_map"'),
    "other file": (
        {"weight_map": {"a": "two.safetensors", "b": "one.safetensors"}},
        "tensor 'a' is in 'two.safetensors', but it is in one.safetensors",
    ),
    "no tensor": (
        {"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"}},
        "tensor 'c' is in 'two.safetensors', but none of its files has it",
    ),
    "absolute": ({"weight_map": {"a": "/etc/passwd"}}, "which is not in the folder"),
    "climbing": ({"weight_map": {"a": "../x.safetensors"}}, "which is not in the folder"),
    "link": ({"weight_map": {"a": "link.safetensors"}}, "outside of the folder"),
    "missing": ({"weight_map": {"a": "three.safetensors"}}, "three.safetensors: "),
    "pipe": ({"weight_map": {"a": "pipe"}}, "it is a pipe"),
    "folder": ({"weight_map": {"a": "folder"}}, "it is a folder"),
}


@pytest.mark.parametrize("name", LIES)
def test_an_index_that_lies_is_refused(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    changes, text = LIES[name]
    outside = tmp_path_factory.mktemp("outside") / "x.safetensors"
    save_file({"a": np.zeros(2, np.float32)}, outside)
    (tmp_path / "link.safetensors").symlink_to(outside)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    folder_with_index(tmp_path, **changes)
    with pytest.raises(CheckpointError) as caught:
        open_safetensors(str(tmp_path))
    assert text in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_folder_of_two_models_is_refused(tmp_path: Path) -> None:
    """Transformers would take the file, and others the index: one of them is of an earlier save."""
    index = folder_with_index(tmp_path)
    save_file({"a": np.ones(2, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="two models, of which one may be old"):
        open_safetensors(str(tmp_path))
    assert sorted(open_safetensors(str(index)).tensors) == ["a", "b"]
    assert list(open_safetensors(str(tmp_path / "model.safetensors")).tensors) == ["a"]
    for kind in ("model", "vae"):
        index.rename(tmp_path / f"{kind}.fp16.safetensors.index.json")
        index.write_text((tmp_path / f"{kind}.fp16.safetensors.index.json").read_text())
    index.unlink()
    with pytest.raises(CheckpointError, match=r"it has 2 indexes: model\.fp16\.safetensors"):
        open_safetensors(str(tmp_path))


def test_links_of_the_hubs_cache_are_followed(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "snapshots" / "rev", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    folder_with_index(snapshot)
    for name in ("one.safetensors", "two.safetensors"):
        (snapshot / name).rename(blobs / name)
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    assert sorted(open_safetensors(str(snapshot)).tensors) == ["a", "b"]


def test_dtypes_that_the_format_cannot_hold_are_refused(tmp_path: Path) -> None:
    for dtype in (np.longdouble, np.complex128, ml_dtypes.int4, ml_dtypes.float8_e4m3):
        x = {"w": np.zeros(2, dtype)}
        with pytest.raises(CheckpointError, match=f"tensor 'w' has dtype {x['w'].dtype}, which"):
            one_file(str(tmp_path / "m.safetensors"), x)
    keys = ShapeDtypeStruct((2,), KEY)
    with pytest.raises(CheckpointError, match="'w' has dtype key<philox>, which the format cannot"):
        one_file(str(tmp_path / "m.safetensors"), {"w": keys})
    with pytest.raises(CheckpointError, match="__metadata__"):
        one_file(str(tmp_path / "m.safetensors"), {"__metadata__": np.zeros(2)})
    with pytest.raises(CheckpointError, match="cannot be written in UTF-8"):
        one_file(str(tmp_path / "m.safetensors"), {"a\ud800": np.zeros(2)})
    assert os.listdir(tmp_path) == []


def test_nothing_has_its_name_before_the_commit(tmp_path: Path) -> None:
    writer = several_files(str(tmp_path / "new" / "folder"), SOME, shard_bytes=50)
    writer.begin()
    names = os.listdir(tmp_path / "new" / "folder")
    assert len(names) == 4
    assert all(n.startswith(".") and n.endswith(".partial") for n in names)
    writer.abandon()
    assert os.listdir(tmp_path) == []


def test_a_target_that_exists_is_kept_unless_told(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_text("mine")
    with pytest.raises(FileInUseError, match=r"m.safetensors: it exists. .* overwrite=True"):
        write(one_file(str(path), SOME), SOME)
    assert path.read_text() == "mine"
    assert os.listdir(tmp_path) == ["m.safetensors"]
    write(one_file(str(path), SOME, WriteOptions(overwrite=True)), SOME)
    assert same(read(open_safetensors(str(path))), SOME)
    late = one_file(str(tmp_path / "late.safetensors"), SOME)
    late.begin()
    (tmp_path / "late.safetensors").write_text("mine")
    with pytest.raises(FileInUseError):
        late.commit()
    late.abandon()
    assert sorted(os.listdir(tmp_path)) == ["late.safetensors", "m.safetensors"]


@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite", "fsync", "replace", "mkdir", "open"])
def test_a_full_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    real, calls = getattr(os, call), []

    def full(*args: object, **kwargs: object) -> object:
        calls.append(args)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return real(*args, **kwargs)

    writer = several_files(str(tmp_path / "a" / "b"), SOME, shard_bytes=50)
    monkeypatch.setattr(raw_writer.os, call, full)
    with pytest.raises(StorageError, match="The disk is full"):
        write(writer, SOME)
    writer.abandon()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("shape", [(1 << 40,), (1 << 62, 8)])
def test_what_no_disk_can_hold_leaves_nothing(tmp_path: Path, shape: tuple[int, ...]) -> None:
    vast = {"w": ShapeDtypeStruct(shape, np.float64)}
    writer = one_file(
        str(tmp_path / "a" / "m.safetensors"), vast, WriteOptions(piece_bytes=1 << 60)
    )
    with pytest.raises(StorageError, match=r"m\.safetensors: it cannot be made: "):
        writer.begin()
    assert os.listdir(tmp_path) == []


def test_what_is_not_allowed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a": np.zeros(2)}, path)

    def denied(*args: object, **kwargs: object) -> int:
        raise PermissionError(13, "Permission denied")

    writer = one_file(str(tmp_path / "new.safetensors"), SOME)
    monkeypatch.setattr(os, "open", denied)
    monkeypatch.setattr(os, "listdir", denied)
    with pytest.raises(StorageError, match=r"m\.safetensors: .*denied\. Ask for permission"):
        open_safetensors(str(path))
    with pytest.raises(StorageError, match="it cannot be listed: Permission denied"):
        open_safetensors(str(tmp_path))
    with pytest.raises(StorageError, match=r"new\.safetensors: it cannot be made: Permission"):
        writer.begin()


def test_a_read_that_fails_names_file_and_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.safetensors"
    write(one_file(str(path), SOME), SOME)
    catalogue = open_safetensors(str(path))
    with monkeypatch.context() as patched:

        def broken(*args: object) -> int:
            raise OSError(5, "Input/output error")

        patched.setattr(raw.os, "preadv", broken)
        with pytest.raises(StorageError, match=r"m.safetensors: tensor .*Input/output error"):
            read(catalogue)
    os.truncate(path, path.stat().st_size - 3)
    with pytest.raises(CorruptFileError, match=r"tensor 'b.w' is cut off: .* ends at byte"):
        read(catalogue)
    path.unlink()
    catalogue.reader.close()
    with pytest.raises(MissingFileError, match=r"tensor 'a.w': .*m.safetensors"):
        read(catalogue)
