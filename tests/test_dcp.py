"""Folders of torch's distributed checkpoints, without torch.

`tests/data/dcp` was written by `torch.distributed.checkpoint.save` of torch 2.13::

    {
        "w": torch.arange(6.0).reshape(3, 2).t(),
        "layers": [{"b": bfloat16[3]}, {"b": bfloat16[3]}],
        "opt": {"step": torch.tensor(7), "groups": [{"lr": 0.1, "params": [0, 1]}]},
        "empty": torch.zeros(0, 3),
    }
"""

from __future__ import annotations

import io
import os
import pickle
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshard
from meshard import checkpoint
from meshard.algebra.box import Box
from meshard.errors import CheckpointError, CorruptFileError, FileInUseError, MissingFileError
from meshard.sharding import NamedSharding, P
from meshard.testing import virtual_devices
from meshard.weights.catalogue.stored import OpenFile
from meshard.weights.dcp import archive
from meshard.weights.dcp.index import Chunk, Index, Indexed, index_bytes, read_index
from meshard.weights.dcp.pickled import Pickle
from tests.checkpoints import DEVICES, folders, run, watched
from tests.commands import status
from tests.lays import Lay, calm, fetched, lays, numbered, same, shapes
from tests.worlds import mesh, put

DATA = Path(__file__).with_name("data") / "dcp"
DTYPES = [
    *("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "bool", "c8", "c16"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn),
]
PROCESSES = st.sampled_from(list(DEVICES))
F4 = np.dtype("f4")


@st.composite
def leaves(draw: st.DrawFn) -> tuple[np.ndarray, Lay, Lay]:
    shape = draw(shapes(most=7))
    value = numbered(shape, draw(st.sampled_from(DTYPES)))
    return value, draw(lays(shape)), draw(lays(shape))


@pytest.fixture
def folder() -> Iterator[Path]:
    with folders() as path:
        yield path


@pytest.fixture
def recorded(folder: Path) -> Path:
    return Path(shutil.copytree(DATA, folder / "recorded"))


@settings(calm, max_examples=40)
@given(st.lists(leaves(), min_size=1, max_size=4), PROCESSES, PROCESSES)
def test_a_tree_passes_through_a_folder_from_any_layout_to_any_other(
    trees: list[tuple[np.ndarray, Lay, Lay]], savers: int, loaders: int
) -> None:
    def save() -> None:
        tree = {"w": [lay.put(v) for v, lay, _ in trees]}
        checkpoint.save(path / "a", tree, format="dcp")

    def load() -> None:
        asked = {"w": [lay.sharding(v.shape) or meshard.devices()[0] for v, _, lay in trees]}
        found = checkpoint.load(path / "a", asked)["w"]
        for (value, *_), x in zip(trees, found, strict=True):
            assert x.dtype == value.dtype
            same(fetched(x), value)

    with folders() as path, watched() as seen:
        run(savers, save)
        run(loaders, load)
        assert sum(seen.read.values()) == sum(v.nbytes for v, *_ in trees)
        assert checkpoint.verify(path / "a") == []
        for file in (path / "a").glob("*.distcp"):
            assert 0 <= int(file.name.split("_")[2]) < savers


def test_a_recorded_folder_of_torch_is_read(recorded: Path) -> None:
    found = checkpoint.load(recorded)
    assert found["w"].dtype == np.float32
    same(np.asarray(found["w"]), np.array([[0, 2, 4], [1, 3, 5]], "f4"))  # stored transposed
    assert [np.asarray(x["b"]).astype(int).tolist() for x in found["layers"]] == [
        [0, 1, 2],
        [3, 4, 5],
    ]
    assert int(found["opt"]["step"]) == 7
    assert found["empty"].shape == (0, 3)
    told = checkpoint.metadata(recorded)
    assert told.format == "dcp"
    assert told.pickled == ("opt.groups.0.lr", "opt.groups.0.params")
    assert "not read, since pickled: opt.groups.0.lr" in str(told)
    assert checkpoint.plan_load(recorded).bytes_read == 44
    assert checkpoint.load(recorded / ".metadata").keys() == found.keys()
    (one,) = checkpoint.verify(recorded)
    assert one.file.endswith(".metadata")
    assert "no checksums" in one.reason
    with pytest.raises(CheckpointError, match="is a pickle, which could run code"):
        checkpoint.load(recorded, like={"opt": {"groups": [{"lr": 0.1}]}})


def test_a_stored_transposed_chunk_is_cut_where_it_is_asked(recorded: Path) -> None:
    for spec in (P("i"), P(None, "j"), P("j", "i")):
        place = NamedSharding(mesh(), spec, uneven="balanced")
        found = checkpoint.load(
            recorded, like={"w": meshard.ShapeDtypeStruct((2, 3), F4)}, shardings={"w": place}
        )
        same(np.asarray(found["w"]), np.arange(6, dtype="f4").reshape(3, 2).T)


def test_archives_of_the_other_byte_order_and_of_parameters(recorded: Path) -> None:
    """`torch._utils._rebuild_parameter` is around the tensor of an nn.Parameter."""
    index = read_index((recorded / ".metadata").read_bytes(), "it")
    data = bytearray((recorded / "__0_0.distcp").read_bytes())
    chunk = index.tensors["opt.step"].pieces[0]
    window = archive.Window(OpenFile(str(recorded / "__0_0.distcp")), chunk.offset, chunk.length)
    start = window.elements().offset
    assert data[start : start + 8] == (7).to_bytes(8, "little")
    data[start : start + 8] = (7).to_bytes(8, "big")
    at = data.index(b"little", chunk.offset)
    data[at : at + 6] = b"big   "
    (recorded / "__0_0.distcp").write_bytes(bytes(data))
    assert int(checkpoint.load(recorded)["opt"]["step"]) == 7

    def parameter(pickled: bytes) -> bytes:
        out = Pickle()
        out.name("torch._utils", "_rebuild_parameter")
        return out.done()[:-1] + b"(" + pickled[2:-1] + b"\x88}tR."

    found = archive.unpickled(parameter(archive._pickle((2, 3), F4)), archive._KNOWN, "it")
    key, elements = archive._form(found, str)
    assert (key, elements.shape, elements.dtype) == ("0", (2, 3), "float32")


def test_an_index_of_older_versions_of_torch_is_read(recorded: Path) -> None:
    """Until 2.2, properties of tensors were a class of another module; there was no version."""
    new, old = (
        b"ctorch.distributed.checkpoint.metadata\nTensorProperties\n",
        b"ctorch.distributed._shard.sharded_tensor.metadata\nTensorProperties\n",
    )
    data = made(bytes=[(new, old), (b"version", b"vorsion")])
    assert read_index(data, "it").tensors["w"].shape == (4, 3)


def test_each_archive_is_a_zip_and_ties_are_one(folder: Path) -> None:
    w = np.arange(12.0).reshape(3, 4)
    tree = {"a": w, "b": {"c": [w, np.ones(3, ml_dtypes.bfloat16)]}}
    checkpoint.save(folder / "a", tree, format="dcp")
    assert {p.name for p in (folder / "a").iterdir()} == {".metadata", "__0_0.distcp"}
    index = read_index((folder / "a/.metadata").read_bytes(), "it")
    assert index.paths["b.c.1"] == ("b", "c", 1)
    assert index.tensors["a"].pieces == index.tensors["b.c.0"].pieces
    data = (folder / "a/__0_0.distcp").read_bytes()
    for chunk in [c for t in index.tensors.values() for c in t.pieces]:
        with zipfile.ZipFile(io.BytesIO(data[chunk.offset : chunk.offset + chunk.length])) as one:
            assert one.testzip() is None
            assert one.namelist()[-1] == "archive/data/0"
    found = checkpoint.load(folder / "a")
    assert found["a"] is found["b"]["c"][0]
    assert checkpoint.metadata(folder / "a").tied == {"b.c.0": "a"}


def test_processes_have_a_file_each_and_a_new_folder_replaces_an_old_one(folder: Path) -> None:
    def save(value: int) -> None:
        x = meshard.numpy.full((8, 4), value)
        tree = {"w": meshard.device_put(x, NamedSharding(mesh(), P("i")))}
        checkpoint.save(folder / "a", tree, format="dcp", overwrite=value > 1)

    run(4, lambda: save(1))
    first = sorted(p.name for p in (folder / "a").iterdir())
    assert first == [".metadata", *[f"__{k}_0.distcp" for k in range(4)]]
    with pytest.raises(FileInUseError, match=r"holds '__0_0.distcp'. Give a new folder"):
        run(1, lambda: save(1))
    run(2, lambda: save(2))
    second = sorted(p.name for p in (folder / "a").iterdir())
    assert second == [".metadata", "__0_1.distcp", "__1_1.distcp"]
    assert (np.asarray(checkpoint.load(folder / "a")["w"]) == 2).all()


def test_folders_are_converted_to_all_formats_and_back(folder: Path, recorded: Path) -> None:
    arrays = checkpoint.metadata(recorded).tensors
    for target, kind in (("a.safetensors", None), ("b", "meshard"), ("c", "dcp")):
        done = checkpoint.convert(recorded, folder / target, format=kind)
        assert done.bytes_written == 44
        checkpoint.convert(folder / target, folder / f"{target}.again", format="dcp")
        again = dict(checkpoint.load_iter(folder / f"{target}.again"))
        for name, x in checkpoint.load_iter(recorded):
            same(np.asarray(again[name]), np.asarray(x))
    assert again.keys() == arrays.keys()
    rows = NamedSharding(meshard.make_mesh((8,), ("x",), devices=virtual_devices(8)), P("x"))
    x = {"w": np.arange(16.0).reshape(8, 2)}
    checkpoint.save(folder / "x", x)
    checkpoint.convert(folder / "x", folder / "eight", rows, format="dcp")
    index = read_index((folder / "eight/.metadata").read_bytes(), "it")
    assert len(index.tensors["w"].pieces) == 8
    same(np.asarray(checkpoint.load(folder / "eight")["w"]), x["w"])


def test_the_command_inspects_verifies_and_converts(
    folder: Path, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*line: str | Path) -> str:
        assert status([*map(str, line)]) == 0
        return capsys.readouterr().out

    assert "bfloat16" in call("inspect", recorded)
    told = call("reshard", recorded, folder / "out", "--to", "dcp")
    assert "5 tensors, 44 bytes" in told
    call("verify", folder / "out")
    assert "(dcp)" in call("inspect", folder / "out")
    call("reshard", folder / "out", folder / "out.safetensors")
    assert checkpoint.load(folder / "out.safetensors")["w"].shape == (2, 3)


# what is refused


class Evil:
    """What would run a command where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def replaced(path: Path, change: Callable[[bytes], bytes]) -> Path:
    path.write_bytes(change(path.read_bytes()))
    return path


def refusal(path: Path, kind: type[Exception] = CheckpointError) -> str:
    with pytest.raises(kind) as caught:
        checkpoint.load(path)
    return str(caught.value)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_nothing_that_a_pickle_names_is_run(recorded: Path, protocol: int) -> None:
    witness = recorded / "witness"
    (recorded / ".metadata").write_bytes(pickle.dumps(Evil(witness), protocol))
    told = refusal(recorded)
    assert "its pickle names posix.system, which is not one of the classes that" in told
    assert "Nothing in it was run." in told
    assert not witness.exists()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (b"cbuiltins\neval\n", "builtins.eval"),
        (b"ctorch.distributed.checkpoint.metadata\n__builtins__\n", "metadata.__builtins__"),
        (b"\x8c\x05torch\x8c\x0cSize.__new__\x93", "torch.Size.__new__"),
        (b"\x82\xf0", r"not one of data: it has instruction b'\x82' at byte 2"),  # by a number
        (b"Vtext\n", "it has instruction b'V' at byte 2. Nothing in it was run"),
        (b"Nr\xff\xff\xff\xff0", "it has instruction b'0'"),
        (b"}N)s", "keys are of what is not a dict, or are neither texts nor records"),
        (b"})" + b"\x85" * 200_000 + b"Ns", "or are neither texts nor records"),  # too deep to hash
        (b")" + b"\x85" * 200_000, "it holds a tuple, not DCP's metadata"),
        (b"ctorch\nSize\nN}b", "a state is given to what is not a record"),
        (b"ctorch\nSize\nN\x85R", "something is called that is not a name, or with other"),
        (b"K\x07", "it holds a int, not DCP's metadata"),
    ],
)
def test_other_names_are_refused_by_name(recorded: Path, name: bytes, told: str) -> None:
    (recorded / ".metadata").write_bytes(b"\x80\x04" + name + b".")
    assert told in refusal(recorded)


def test_a_name_within_an_archive_is_refused_too(recorded: Path) -> None:
    evil = pickle.dumps(Evil(recorded / "witness"), 2)
    index = read_index((recorded / ".metadata").read_bytes(), "it")
    chunk = index.tensors["w"].pieces[0]

    def change(data: bytes) -> bytes:
        out = bytearray(data)
        at = data.index(b"\x80\x02ctorch", chunk.offset)
        out[at : at + len(evil)] = evil
        end = data.index(b"PK\x01\x02", at)
        out[end + 16 : end + 20] = bytes(4)  # no checksum, as torch may write none
        return bytes(out)

    replaced(recorded / "__0_0.distcp", change)
    assert "its pickle names posix.system" in refusal(recorded)
    assert not (recorded / "witness").exists()


def test_a_pickle_cannot_change_what_later_ones_become(recorded: Path) -> None:
    """Python's own unpickler sets attributes of a class that is given a state."""
    cls = b"ctorch.distributed.checkpoint.metadata\nMetadata\n"
    state = b"(N}X\x03\x00\x00\x00getNst"
    data = b"\x80\x02" + cls + state + b"b."
    (recorded / "other").mkdir()
    (recorded / "other/.metadata").write_bytes(data)
    refusal(recorded / "other")
    assert checkpoint.load(recorded)["w"].shape == (2, 3)


def made(**changes: Any) -> bytes:
    """Return an index of one tensor of two chunks, apart from what is changed."""
    boxes = changes.get("boxes", [Box((0, 0), (2, 3)), Box((2, 0), (4, 3))])
    file = changes.get("file", "__0_0.distcp")
    chunks = tuple([Chunk(box, file, 64 * k, 64) for k, box in enumerate(boxes)])
    tensor = Indexed((4, 3), changes.get("dtype", F4), chunks)
    data = index_bytes(Index({"w": tensor}))
    data = data[: data.rindex(b"\nmeshard xxh3")]
    for old, new in changes.get("bytes", []):
        assert old in data
        data = data.replace(old, new)
    return data


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"bytes": [(b"1.0.0", b"2.0.0")]}, "it is of DCP's version '2.0.0', and versions 1 can"),
        ({"bytes": [(b"float32", b"qint32\n"[:6] + b"\n")]}, "pickle is damaged|qint32"),
        ({"file": "../a.distcp"}, "the file '../a.distcp' is not within the folder"),
        ({"file": "/a.distcp"}, "the file '/a.distcp' is not within the folder"),
        ({"boxes": [Box((0, 0), (2, 3))]}, "has 12 elements, but its 1 chunks have 6"),
        (
            {"boxes": [Box((0, 0), (2, 3)), Box((1, 0), (3, 3))]},
            r"chunks \[0:2, 0:3\] and \[1:3, 0:3\] of tensor 'w' overlap",
        ),
        ({"boxes": [Box((0, 0), (2, 3)), Box((3, 0), (5, 3))]}, r"has a chunk \[3:5, 0:3\]"),
        ({"bytes": [(b"fqn", b"fqm")]}, "a place has the name None"),
        ({"bytes": [(b"chunks", b"chonks")]}, "the chunks of tensor 'w' are not a list"),
        ({"bytes": [(b"storage_data", b"storage_dota")]}, "the places are given as a NoneType"),
    ],
)
def test_an_index_that_is_wrong_says_why(folder: Path, changes: dict[str, Any], told: str) -> None:
    (folder / ".metadata").write_bytes(made(**changes))
    (folder / "__0_0.distcp").write_bytes(bytes(128))
    with pytest.raises(CheckpointError, match=told):
        checkpoint.metadata(folder)


def test_missing_and_shorter_files_are_named(folder: Path, recorded: Path) -> None:
    data = recorded / "__0_0.distcp"
    whole = data.read_bytes()
    data.write_bytes(whole[:5000])
    assert "has 5,000 bytes, but the metadata says that tensor" in refusal(
        recorded, CorruptFileError
    )
    data.unlink()
    assert "__0_0.distcp cannot be found" in refusal(recorded, MissingFileError)
    data.write_bytes(whole)
    (recorded / ".metadata").rename(folder / "kept")
    assert "it has files .distcp and no .metadata: the save did not end" in refusal(
        recorded, MissingFileError
    )
    (folder / "kept").rename(recorded / ".metadata")
    (recorded / ".metadata").write_bytes((recorded / ".metadata").read_bytes()[:-9])
    assert "its pickle is damaged" in refusal(recorded, CorruptFileError)


def test_damaged_bytes_are_refused_or_change_nothing(recorded: Path) -> None:
    """Any error has the library's own class, and no bit of an element is other than it was."""
    rng = np.random.default_rng(0)
    right = {n: np.asarray(x) for n, x in checkpoint.load_iter(recorded)}
    refused = 0
    for name in [".metadata", "__0_0.distcp"] * 150:
        path = recorded / name
        whole = path.read_bytes()
        changed = bytearray(whole)
        changed[rng.integers(len(whole))] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        try:
            found = {n: np.asarray(x) for n, x in checkpoint.load_iter(recorded)}
            for key in found.keys() & right.keys() if name != ".metadata" else ():
                if key != "w":  # in another order than C's, whose checksum only verify knows
                    same(found[key], right[key])
        except CheckpointError:
            refused += 1
        finally:
            path.write_bytes(whole)
    assert refused > 60


def test_what_torch_cannot_hold_is_refused_before_a_file_is_made(folder: Path) -> None:
    for tree, told in [
        ({"w": np.ones(3, ml_dtypes.int4)}, "tensor 'w' has dtype int4, which torch does not have"),
        ({"w": np.ones(3), "epoch": 3}, "dcp holds arrays only, but 'epoch' of the tree is 3"),
    ]:
        with pytest.raises(CheckpointError, match=told):
            checkpoint.save(folder / "a", tree, format="dcp")
        assert not (folder / "a").exists()


def test_the_indexes_of_ranks_are_one(folder: Path) -> None:
    """Ranks that save without collectives write an index each, which torch cannot reshard."""
    tree = {"w": put(np.arange(24.0, dtype="f4").reshape(8, 3), "i")}
    checkpoint.save(folder / "a", tree, format="dcp")
    index = read_index((folder / "a/.metadata").read_bytes(), "it")
    one = index.tensors["w"]
    assert len(one.pieces) > 1
    (folder / "a/.metadata").unlink()
    for rank, chunk in enumerate(one.pieces):
        data = index_bytes(Index({"w": Indexed(one.shape, one.dtype, (chunk,))}))
        (folder / f"a/__{rank}.metadata").write_bytes(data)
    same(np.asarray(checkpoint.load(folder / "a")["w"]), np.asarray(tree["w"]))
    (folder / "a/__1.metadata").unlink()
    assert "has 24 elements, but its" in refusal(folder / "a", CorruptFileError)


def test_archives_of_more_than_four_gibibytes(folder: Path) -> None:
    size = (1 << 32) + 7
    made = archive.frame((size,), np.dtype("u1"))
    path = folder / "long"
    with path.open("wb") as file:  # with a hole
        file.write(made.head)
        file.seek(made.size, os.SEEK_CUR)
        file.write(made.tail)
    assert path.stat().st_size == made.length
    found = archive.Window(OpenFile(str(path)), 0, made.length).elements()
    assert (found.offset, found.shape) == (len(made.head), (size,))
    with zipfile.ZipFile(path) as one:
        assert one.getinfo("archive/data/0").file_size == size


@given(st.binary(max_size=99), st.binary(max_size=99))
def test_checksums_of_runs_are_that_of_all(first: bytes, second: bytes) -> None:
    crcs = zlib.crc32(first), zlib.crc32(second)
    assert archive.combined(*crcs, len(second)) == zlib.crc32(first + second)


def test_a_written_pickle_says_what_was_added() -> None:
    value = (None, True, False, 0, 255, 256, -1, 1 << 40, "a", "a", ("é", []), {"k": [1, ("a",)]})
    out = Pickle()
    out.add(value)
    assert pickle.loads(out.done()) == value
