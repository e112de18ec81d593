"""Files are data, and small files are small: they take little memory and time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from meshard import checkpoint
from meshard.errors import CheckpointError
from meshard.weights.catalogue.detect import FORMATS
from tests.hostile_files import FLAT, MADE, TREE

ROOT = Path(__file__).parents[2]
PLACES = {"safetensors": "*.safetensors", "dcp": "*.distcp", "meshard": "data-*/*"}


def test_every_format_is_fuzzed() -> None:
    assert set(MADE) == {*FORMATS, "meshard"}


@pytest.mark.no_job
@pytest.mark.parametrize("format_", MADE)
def test_damaged_files_are_read_or_refused_in_a_gigabyte(format_: str) -> None:
    """By hand: ``python -m tests.hostile_files FORMAT SEED 1000000 SECONDS``."""
    command = [sys.executable, "-m", "tests.hostile_files", format_, "3", "60", "20"]
    paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    kinds = {"read", "CheckpointError", "CorruptFileError", "MissingFileError", "StorageError"}
    assert not said.keys() - kinds, said
    assert sum(said.values()) > 10


def manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest of a checkpoint, and give it its checksum."""
    place = folder / "manifest.json"
    form = json.loads(place.read_bytes())
    form.pop("checksum")
    change(form)
    body = json.dumps(form)[:-1] + ",\n"
    place.write_text(f'{body}"checksum": "{xxhash.xxh3_64_hexdigest(body.encode())}"\n}}\n')


def tensors(**changes: Any) -> Callable[[dict[str, Any]], object]:
    def change(form: dict[str, Any]) -> None:
        for one in form["tensors"]:
            one.pop("name", None)
            one.pop("list", None)
            one.update({"names": "w{}", "each": [[0, 3]], **changes})

    return change


def mesh(sizes: list[int], ids: object) -> Callable[[dict[str, Any]], object]:
    count = int(np.prod(sizes))
    runs = {"processes": [[0, count]], "platforms": [["cpu", count]], "kinds": [["cpu", count]]}
    one = {"axes": ["i"], "sizes": sizes, "types": ["Auto"], "devices": {"ids": ids, **runs}}
    return lambda form: form.update({"meshes": [one] * 9})


NO_ELEMENTS = {"shape": [0], "each": [[0, 1 << 40]]}
MANIFESTS = {
    "a format": tensors(names="{}{:900000000}"),
    "braces": tensors(names="{0.__class__}{}"),
    "a trillion names": tensors(each=[[0, 10**12]]),
    "names without elements": tensors(**NO_ELEMENTS),
    "names in an empty product": tensors(names="{}.{}", each=[[0, 10**12], [0, 0]]),
    "names backwards": tensors(each=[[9, 3]]),
    "many groups": lambda form: form.update(tensors=form["tensors"] * 40),
    "long names": tensors(names="w" * 4000 + "{}", each=[[0, 10**6]]),
    "a quarter of a billion devices": mesh([1 << 28], {"runs": [[0, 1 << 28]]}),
    "a million devices, nine times": mesh([1 << 20], {"runs": [[0, 1 << 20]]}),
    "an id of 40 digits": mesh([1], [10**40]),
    "small pieces": lambda form: form.update(piece_bytes=0),
    "a long shape": tensors(shape=[1 << 62] * 64),
    "a dtype of many": tensors(dtype="(1000000000,)f8"),
    "a long header": lambda form: form["files"][0].__setitem__(1, 10**30),
    "a folder above": lambda form: form.update(folder=".."),
    "pairs of three": lambda form: form.update(tree={"pairs": [[1, 2, 3]]}),
    "a deep tree": lambda form: form.update(tree=json.loads('{"list": [' * 400 + "]}" * 400)),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", MANIFESTS)
def test_a_small_manifest_stands_for_little(name: str, tmp_path: Path) -> None:
    checkpoint.save(tmp_path, TREE)
    manifest(tmp_path, MANIFESTS[name])
    for look in (checkpoint.metadata, checkpoint.load):
        with pytest.raises(CheckpointError) as caught:
            look(tmp_path)
        assert len(str(caught.value)) < 1000


def test_a_name_is_no_format(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, {f"w{k}": np.ones(2) for k in range(3)})
    manifest(tmp_path, tensors(names="{0}{:>90000000}{}"))
    assert "{0}{:>90000000}2" in checkpoint.metadata(tmp_path).tensors


@pytest.mark.parametrize("format_", ["meshard", "safetensors", "zarr", "dcp"])
def test_links_out_of_the_folder_are_refused_and_others_followed(
    format_: str, tmp_path: Path
) -> None:
    path = tmp_path / "m"
    MADE[format_](path)
    for file in [one for one in path.rglob("*") if one.is_file()]:
        inside = file.with_name(f".{file.name}.real")
        file.rename(inside)
        file.symlink_to(inside)
        if format_ != "zarr":  # the library warns of files that are no part of a store
            checkpoint.load(path)
        outside = tmp_path / "other"
        inside.replace(outside)
        file.unlink()
        file.symlink_to(outside)
        with pytest.raises(CheckpointError, match="outside of the folder"):
            checkpoint.load(path)
        file.unlink()
        outside.rename(file)
    checkpoint.load(path)


@pytest.mark.parametrize("name", ["/etc/passwd", "../other", "a.0/../../other", "a\0b", "\ud800"])
def test_a_store_names_files_of_its_own(name: str, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("secret")
    checkpoint.save(tmp_path / "m", FLAT, format="zarr")
    root = tmp_path / "m" / "zarr.json"
    form = json.loads(root.read_bytes())
    form["attributes"]["meshard.files"] = {name: "0" * 16}
    form["attributes"]["meshard.xxh3"] = "0" * 16
    body = json.dumps(form, indent=2)
    own = xxhash.xxh3_64_hexdigest(body.encode())
    root.write_text(body.replace("0" * 16, own, 1))
    with pytest.raises(CheckpointError, match="which is not in the folder"):
        checkpoint.metadata(tmp_path / "m")


@pytest.mark.parametrize("codec", ["GzipCodec", "ZstdCodec", "BloscCodec"])
def test_a_chunk_of_a_store_decodes_to_no_more_than_a_chunk(codec: str, tmp_path: Path) -> None:
    zarr, numcodecs = pytest.importorskip("zarr"), pytest.importorskip("numcodecs")
    given = {"compressors": [getattr(zarr.codecs, codec)()], "dtype": "f4"}
    for shards in (None, (20,)):
        place = tmp_path / f"z{shards}"
        zarr.create_array(place, shape=(40,), chunks=(10,), shards=shards, **given)[:] = 1
        (found,) = checkpoint.load(place).values()
        assert np.asarray(found).sum() == 40
    encode = {
        "GzipCodec": numcodecs.GZip,
        "ZstdCodec": numcodecs.Zstd,
        "BloscCodec": numcodecs.Blosc,
    }
    (tmp_path / "zNone" / "c" / "0").write_bytes(encode[codec]().encode(bytes(1 << 24)))
    with pytest.raises(CheckpointError, match="a chunk of 40 bytes decodes to more than 65,616"):
        checkpoint.load(tmp_path / "zNone")


def test_a_chunk_of_hdf5_decodes_to_no_more_than_is_harmless(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = file.create_dataset("w", (40,), "f4", chunks=(10,), compression="gzip")
        made[:] = 1
        packer = zlib.compressobj(1)
        raw = [packer.compress(bytes(1 << 20)) for _ in range(160)]
        made.id.write_direct_chunk((10,), b"".join([*raw, packer.flush()]))
    with pytest.raises(CheckpointError, match=r"the chunk at \(10,\) decodes to more than"):
        checkpoint.load(tmp_path / "x.h5")
