"""Single flipped bits in the files of checkpoints; run as a program, it flips a thousand.

A flip must be found by `verify`, with the file named; and a load that reads pieces whole must
refuse it: it never returns other bits.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from meshard import checkpoint
from meshard.errors import CheckpointError
from tests import dying
from tests.worlds import alone


def native(folder: Path) -> Path:
    """Save a checkpoint of meshard's own."""
    checkpoint.save(folder / "native", dying.tree(1))
    return folder / "native"


def one_file(folder: Path) -> Path:
    """Save a safetensors file."""
    checkpoint.save(folder / "one.safetensors", dying.arrays(1))
    return folder / "one.safetensors"


def several(folder: Path) -> Path:
    """Save safetensors files with an index."""
    checkpoint.save(folder / "several", dying.arrays(1), format="safetensors", shard_bytes=700)
    return folder / "several"


def zarr(folder: Path) -> Path:
    """Save a Zarr store."""
    checkpoint.save(folder / "it.zarr", dying.arrays(1))
    return folder / "it.zarr"


def dcp(folder: Path) -> Path:
    """Save a folder of torch's distributed checkpoints."""
    checkpoint.save(folder / "dcp", dying.arrays(1), format="dcp")
    return folder / "dcp"


MAKERS: list[Callable[[Path], Path]] = [native, one_file, several, zarr, dcp]


def flips(make: Callable[[Path], Path], number: int, folder: Path) -> Counter[str]:
    """Flip bits one by one; return how often a file of each kind was flipped.

    Raises:
        AssertionError: if a flip is not found, or a load returns other bits.
    """
    target = make(folder)
    right = dying.bits(checkpoint.load(target))
    files = sorted(p for p in target.rglob("*") if p.is_file()) or [target]
    rng, done = np.random.default_rng(number), Counter[str]()
    assert checkpoint.verify(target) == []
    for _ in range(number):
        file = files[rng.integers(len(files))]
        whole = file.read_bytes()
        at, bit = int(rng.integers(len(whole))), int(rng.integers(8))
        changed = bytearray(whole)
        changed[at] ^= 1 << bit
        file.write_bytes(changed)
        where = f"{file.relative_to(folder)}, byte {at}, bit {bit}"
        try:
            check(target, file, right, where)
        finally:
            file.write_bytes(whole)
        done[file.suffix or file.name] += 1
    assert checkpoint.verify(target) == []
    return done


def check(target: Path, file: Path, right: object, where: str) -> None:
    """Raise unless a flip is found and named, and a load refuses it."""
    try:
        damages = checkpoint.verify(target)
        said = " ".join(map(str, damages))
    except CheckpointError as error:
        said = str(error)
    assert said, f"{where}: it is not found"
    named = target.name if file.name == "zarr.json" else file.name  # Zarr's library reads it
    assert named in said, f"{where}: {said} does not name the file"
    refusal = None
    try:
        found = checkpoint.load(target)
        assert dying.bits(found) == right, f"{where}: other bits are loaded"
    except CheckpointError as error:
        refusal = str(error)
    assert refusal is None or named in refusal, f"{where}: {refusal}"


@pytest.mark.parametrize("make", MAKERS)
def test_every_flipped_bit_is_found_and_never_loaded(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    if make is zarr:
        pytest.importorskip("zarr")
    assert alone(lambda: sum(flips(make, 50, tmp_path).values()), 4) == 50


def main() -> None:
    """Flip a thousand bits, and print where."""
    for make in MAKERS:
        with tempfile.TemporaryDirectory(dir=dying.quick_folder()) as folder:
            done = alone(lambda make=make, folder=folder: flips(make, 250, Path(folder)), 4)
        print(f"{make.__name__}: {done.total()} flips, all found and named: {dict(done)}")


if __name__ == "__main__":
    main()
