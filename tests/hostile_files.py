"""A program for `test_hostile_files`: it reads damaged files of one format within limits.

    python -m tests.hostile_files FORMAT SEED COUNT [SECONDS]

The process may have 1 GB, and 10 s for each file. What is said of the files is printed as JSON:
each must be read, or refused by a CheckpointError.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import xxhash

from meshard import checkpoint
from meshard.errors import CheckpointError
from tests.test_weights_fuzz import mutated

LIMIT, SECONDS = 1 << 30, 10
NUMBERS = (b"-1", b"0", b"1", b"5", b"8", b"268435456", b"4611686018427387904", b"9" * 40, b"1e9")
MOST = 1 << 26
"""Bytes of arrays that are read; a format with values for chunks that are missing may say more."""
A = np.arange(60.0, dtype="f4").reshape(6, 10)
TREE = {"layers": [{"w": A + k, "b": np.arange(3) + k} for k in range(3)], "step": 7}
FLAT = {"a.0": A, "a.1": A + 1, "b": np.arange(7)}


def make_meshard(path: Path) -> None:
    checkpoint.save(path, TREE)


def make_zarr(path: Path) -> None:
    checkpoint.save(path, FLAT, format="zarr")
    root = path / "zarr.json"
    form = json.loads(root.read_bytes())
    for key in ("meshard.xxh3", "meshard.files"):
        del form["attributes"][key]
    root.write_text(json.dumps(form))


def make_hdf5(path: Path) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file["a"] = A
        file.create_dataset("g/b", data=A, chunks=(2, 10), compression="gzip", shuffle=True)


MADE: dict[str, Callable[[Path], object]] = {
    "meshard": make_meshard,
    "safetensors": lambda path: checkpoint.save(path, FLAT, format="safetensors", shard_bytes=300),
    "zarr": make_zarr,
    "npy": lambda path: np.save(path.with_suffix(".npy"), A),
    "hdf5": make_hdf5,
    "dcp": lambda path: checkpoint.save(path, FLAT, format="dcp"),
}
"""What makes the files of each format."""


def signed(name: str, data: bytes) -> bytes:
    """Make the checksums and lengths right again that would refuse whatever was changed."""
    if name == "manifest.json":
        body, mark, _ = data.rpartition(b'"checksum": "')
        sum_ = xxhash.xxh3_64_hexdigest(body.decode("utf-8", "replace").encode()).encode()
        return body + mark + sum_ + b'"\n}\n' if mark else data
    if name.endswith(".safetensors"):
        end = data.rfind(b"}", 0, -20) + 1
        return max(end - 8, 0).to_bytes(8, "little") + data[8:]
    if name == ".metadata":
        return data.partition(b"\nmeshard xxh3 ")[0]
    return data


def late(number: int, frame: object) -> None:
    raise TimeoutError(f"it takes more than {SECONDS} s")


def tried(path: Path) -> str:
    """Read all that a path has; return how that ended."""
    signal.alarm(SECONDS)
    try:
        found = checkpoint.metadata(path)
        str(found)
        if found.nbytes <= MOST:
            checkpoint.load(path)
            checkpoint.verify(path)
    except CheckpointError as error:
        if len(str(error)) > 4000:
            raise AssertionError("the message is as long as a file") from error
        return type(error).__name__
    finally:
        signal.alarm(0)
    return "read"


def main(format_: str, seed: int, count: int, seconds: float = 1e9) -> None:
    """Print how many files were read and refused, and the first failure."""
    signal.signal(signal.SIGALRM, late)
    rng, said = np.random.default_rng(seed), Counter[str]()
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as home:
        MADE[format_](Path(home) / "whole")
        (whole,) = Path(home).iterdir()
        place = Path(home) / f"damaged{whole.suffix}"
        resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
        for number in range(count):
            if time.monotonic() > until:
                break
            shutil.rmtree(place, ignore_errors=True)
            (shutil.copytree if whole.is_dir() else shutil.copyfile)(whole, place)
            files = [one for one in sorted(place.rglob("*")) if one.is_file()] or [place]
            # What describes the others comes first, and is changed most often.
            files.sort(key=lambda one: not re.search(r"json$|^\.metadata$", one.name))
            file = files[min(int(rng.geometric(0.5)) - 1, len(files) - 1)]
            data = file.read_bytes()
            digits = [m.span() for m in re.finditer(rb"\d+", data)]
            if digits and rng.random() < 0.6:
                a, b = digits[rng.integers(len(digits))]
                data = data[:a] + bytes(rng.choice(NUMBERS)) + data[b:]
            else:
                data = mutated(rng, data)
            file.write_bytes(signed(file.name, data) if rng.random() < 0.8 else data)
            try:
                said[tried(place)] += 1
            except BaseException as error:
                kept = Path(tempfile.gettempdir()) / f"hostile-{format_}-{seed}-{number}"
                kept.write_bytes(file.read_bytes())
                told = "".join(traceback.format_exception(error)[-9:])
                said[f"{type(error).__name__} in {file.name}, kept as {kept}\n{told}"] += 1
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
