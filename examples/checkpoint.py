"""A checkpoint that is saved in one layout and loaded in another, piece by piece.

    python examples/checkpoint.py

The weights are saved by 8 devices as they are laid out, each box once. Another job loads them split
otherwise: each device reads the parts that it needs, and no process ever holds a whole matrix. The
plan says beforehand how many bytes each reads.
"""

import shutil
import tempfile
from pathlib import Path

import numpy as np

import meshard
from meshard import checkpoint
from meshard.sharding import NamedSharding
from meshard.sharding import PartitionSpec as P

SHAPES = {"up": (512, 1024), "down": (1024, 512), "norm": (512,)}
LOADED = {"up": P(None, ("x", "y")), "down": P(("x", "y")), "norm": P()}


def saved(mesh):
    """Return weights as they are saved; `mesh` has the axes x and y."""
    random = np.random.default_rng(0)
    weights = {name: random.normal(size=shape) for name, shape in SHAPES.items()}
    return meshard.device_put(weights, NamedSharding(mesh, P("x")))


def loaded(mesh):
    """Return the shardings that a job wants to have them in."""
    return {name: NamedSharding(mesh, spec) for name, spec in LOADED.items()}


def main():
    """Save on 4 x 2 devices by rows; load by columns over all of them."""
    meshard.config.update("num_devices", 8 // meshard.process_count())
    mesh = meshard.make_mesh((4, 2), ("x", "y"))
    weights = saved(mesh)
    number = meshard.multihost_utils.broadcast_one_to_all(np.random.default_rng().integers(1 << 30))
    path = Path(tempfile.gettempdir(), f"weights-{number}")  # the same for all processes
    checkpoint.save(path, weights)
    print(checkpoint.plan_load(path, loaded(mesh)))
    again = checkpoint.load(path, loaded(mesh))
    meshard.multihost_utils.sync_global_devices("loaded")
    shutil.rmtree(path, ignore_errors=True)
    for name, w in again.items():
        print(f"{name:5} {w.shape!s:12} a device holds {w.addressable_shards[0].data.shape}")
    print("differs by:", max(float(abs(again[n] - weights[n]).max()) for n in SHAPES))


if __name__ == "__main__":
    main()
