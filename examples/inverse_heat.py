"""Where heat came from: a source is found from temperatures that were measured later.

    python examples/inverse_heat.py

Fifty steps of the heat equation lead from the first temperatures to the last. The plate is cut into
tiles that exchange edges, as in heat.py, and `grad` goes back through it: what a neighbour did with
an edge comes back. Every tenth plate on the way is kept; `remat` computes the others again.
"""

from functools import partial

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.sharding import NamedSharding
from meshard.sharding import PartitionSpec as P


def beside(edge, axis, step):
    """Return what the device that many places before along a mesh axis holds as `edge`."""
    size = lax.axis_size(axis)
    return lax.ppermute(edge, axis, [(i, i + step) for i in range(size) if 0 <= i + step < size])


def step(tile):
    """Return a tile one time step later; around the plate it is cold."""
    rows = mnp.concatenate([beside(tile[-1:], "y", 1), tile, beside(tile[:1], "y", -1)], axis=0)
    left, right = beside(tile[:, -1:], "x", 1), beside(tile[:, :1], "x", -1)
    columns = mnp.concatenate([left, tile, right], axis=1)
    return tile + 0.2 * (rows[:-2] + rows[2:] + columns[:, :-2] + columns[:, 2:] - 4 * tile)


def later(plate, mesh):
    """Return the temperatures of a plate after fifty steps; `mesh` has the axes y and x."""
    ten = meshard.remat(lambda tile: lax.fori_loop(0, 10, lambda _, t: step(t), tile))
    body = partial(lax.fori_loop, 0, 5, lambda _, tile: ten(tile))
    return meshard.shard_map(body, mesh=mesh, in_specs=P("y", "x"), out_specs=P("y", "x"))(plate)


def recover(measured, mask, mesh, rounds):
    """Return a source of what was measured where `mask` is 1, and the misfit of each round."""

    def misfit(source):
        return (mask * (later(source, mesh) - measured) ** 2).sum() / 2

    def descend(state, _):
        source, before = state
        ahead = source + 0.9 * (source - before)  # momentum (Nesterov, 1983)
        value, slope = meshard.value_and_grad(misfit)(ahead)
        return (mnp.maximum(ahead - slope, 0), source), value  # no source is colder than the plate

    start = mnp.zeros_like(measured)
    (source, _), misfits = lax.scan(descend, (start, start), None, length=rounds)
    return source, misfits


def main(rounds=30):
    """Find two hot spots on 2 x 4 devices, from every fourth temperature with small errors."""
    meshard.config.update("num_devices", 8 // meshard.process_count())
    mesh = meshard.make_mesh((2, 4), ("y", "x"))
    random, (true, mask) = np.random.default_rng(0), np.zeros((2, 24, 24))
    true[4:8, 4:9], true[14:18, 15:20], mask[::2, ::2] = 100.0, 60.0, 1.0
    end = later(meshard.device_put(true, NamedSharding(mesh, P("y", "x"))), mesh)
    found = meshard.jit(recover, static_argnums=(2, 3))
    source, misfits = found(end + 0.1 * random.normal(size=end.shape), mask, mesh, rounds)
    print(
        f"misfit: {float(misfits[0]):.1f} in the first round, {float(misfits[-1]):.1f} in the last"
    )
    end, source = meshard.multihost_utils.process_allgather((end, source), tiled=True)
    print(f"{'the true source':26}{'fifty steps later':26}what was found")
    for rows in zip(*(p[::2] / p.max() * 4.99 for p in (true, end, source)), strict=True):
        print(*("".join(" .:*#"[int(value)] for value in row) for row in rows), sep="  ")


if __name__ == "__main__":
    main()
