"""Weights from training to serving: from fully sharded to tensor-parallel, as one plan.

    python examples/train_to_serve.py

A trainer holds each weight split over all devices (FSDP); a server wants matrices split by columns
or rows over four devices, twice (tensor-parallel). `plan_reshard` finds what must move for all
weights together, before anything moves, and `reshard` does it: no device ever holds a whole matrix.
"""

import numpy as np

import meshard
from meshard.sharding import NamedSharding
from meshard.sharding import PartitionSpec as P

SHAPES = {"embedding": (512, 64), "up": (64, 256), "down": (256, 64), "norm": (64,)}
SERVED = {"embedding": P("model"), "up": P(None, "model"), "down": P("model"), "norm": P()}


def trained(mesh):
    """Return weights as a trainer holds them, all split over all devices."""
    random = np.random.default_rng(0)
    weights = {name: random.normal(size=shape) for name, shape in SHAPES.items()}
    return meshard.device_put(weights, NamedSharding(mesh, P(("data", "model"))))


def serving(mesh):
    """Return the shardings of a server."""
    return {name: NamedSharding(mesh, spec) for name, spec in SERVED.items()}


def main():
    """Move four weights on 2 x 4 devices, and print the plan."""
    meshard.config.update("num_devices", 8 // meshard.process_count())
    mesh = meshard.make_mesh((2, 4), ("data", "model"))
    weights = trained(mesh)
    plan = meshard.plan_reshard(weights, serving(mesh))
    print(plan)
    moved = meshard.reshard(weights, serving(mesh))
    for name, w in moved.items():
        before = weights[name].addressable_shards[0].data.shape
        print(f"{name:9} {before!s:9} -> {w.addressable_shards[0].data.shape}")
    error = max(float(abs(moved[name] - weights[name]).max()) for name in SHAPES)
    print("differs by:", error)


if __name__ == "__main__":
    main()
