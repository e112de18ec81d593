"""A layer of a transformer's MLP, tensor-parallel: the weights say how, the code does not.

    python examples/tensor_parallel.py

The first matrix is split by columns, the second by rows, and the batch over the other mesh axis.
What lies between them is then split as well, and never sent: the one communication of a layer adds
up the partial results (Megatron's scheme). Change the specs, and the same function does something
else, which `explain` shows before it runs.
"""

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import nn
from meshard.sharding import NamedSharding
from meshard.sharding import PartitionSpec as P

SPECS = {"up": P(None, "model"), "down": P("model", None)}


def layer(weights, batch):
    """Return a batch after one layer."""
    return batch + nn.gelu(batch @ weights["up"]) @ weights["down"]


def values(rows=32, width=64, hidden=256):
    """Return weights and a batch."""
    random = np.random.default_rng(0)
    up, down = random.normal(size=(2, width, hidden)) / 8
    return {"up": up, "down": down.T}, random.normal(size=(rows, width))


def placed(weights, batch, mesh, specs=SPECS):
    """Return weights and batch on the devices; `mesh` has the axes data and model."""
    shardings = {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
    return (
        meshard.device_put(weights, shardings),
        meshard.device_put(batch, NamedSharding(mesh, P("data"))),
    )


def main():
    """Send a batch through on 2 x 4 devices, with two layouts of the weights."""
    meshard.config.update("num_devices", 8 // meshard.process_count())
    mesh = meshard.make_mesh((2, 4), ("data", "model"))
    weights, batch = values()
    expected = layer(weights, meshard.device_put(batch, NamedSharding(mesh, P())))
    for name, specs in {"columns, rows": SPECS, "rows, rows": {**SPECS, "up": P("model")}}.items():
        own, data = placed(weights, batch, mesh, specs)
        told = meshard.explain(layer, own, data)
        found = meshard.jit(layer)(own, data)
        print(f"weights by {name}: {told.total_bytes:,} bytes, result {found.sharding.spec}")
        print("  differs from one device by:", mnp.abs(found - expected).max())


if __name__ == "__main__":
    main()
