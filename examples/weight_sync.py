"""Weight sync: a trillion parameters from a trainer's layout to an inference layout, planned.

    python examples/weight_sync.py

A mixture of experts with the shapes of a model of about 1.0e12 parameters is trained on 256 devices
(experts split over `expert`, everything sharded over `data`) and served from 128 others (tensor
parallel within hosts of 8). No device need exist: the plan is made of shapes and shardings, says
what moves and how long it takes, and is written as JSON that another program could execute.
"""

import sys
from pathlib import Path

import numpy as np

import meshard
from meshard.resharding import topology
from meshard.sharding import Mesh, NamedSharding
from meshard.sharding import PartitionSpec as P
from meshard.testing import virtual_devices

LAYERS, MODEL, EXPERTS, HIDDEN, VOCABULARY = 60, 7168, 384, 2048, 163840


def shapes(layers=LAYERS):
    """Return the shapes of the weights, by name."""
    found = {"embedding": (VOCABULARY, MODEL), "unembedding": (VOCABULARY, MODEL)}
    for k in range(layers):
        layer = {
            "attention/in": (MODEL, 8192),
            "attention/out": (8192, MODEL),
            "router": (MODEL, EXPERTS),
            "experts/up": (EXPERTS, MODEL, 2 * HIDDEN),
            "experts/down": (EXPERTS, HIDDEN, MODEL),
            "norm": (MODEL,),
        }
        found |= {f"layers/{k}/{name}": shape for name, shape in layer.items()}
    return found


def trainer(mesh, name):
    """Return how the trainer holds a weight: experts by expert, the rest fully sharded."""
    if "experts" in name:
        return NamedSharding(mesh, P("expert", "data"))
    return NamedSharding(mesh, P(("data", "expert")))


def server(mesh, name):
    """Return how the server holds a weight: experts over hosts, matrices within them."""
    if "experts/up" in name:
        return NamedSharding(mesh, P("host", None, "tensor"))
    if "experts/down" in name:
        return NamedSharding(mesh, P("host", "tensor"))
    if name.endswith(("norm", "router")):
        return NamedSharding(mesh, P())
    return NamedSharding(mesh, P("tensor") if "in" not in name else P(None, "tensor"))


def plan(layers=LAYERS):
    """Return the joint plan of all weights."""
    devices = virtual_devices(384)
    training = Mesh(np.array(devices[:256]).reshape(16, 16), ("data", "expert"))
    serving = Mesh(np.array(devices[256:]).reshape(16, 8), ("host", "tensor"))
    weights = {
        name: meshard.ShapeDtypeStruct(shape, "bfloat16", sharding=trainer(training, name))
        for name, shape in shapes(layers).items()
    }
    return meshard.plan_reshard(weights, {name: server(serving, name) for name in weights})


def main():
    """Print the plan, and the time it takes on hosts of 8 devices."""
    found = plan()
    print(found)
    print(found.simulate(topology("8-gpu hosts")))
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(found.to_json())


if __name__ == "__main__":
    main()
