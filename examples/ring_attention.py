"""Ring attention: causal attention over a sequence that is split over devices.

    python examples/ring_attention.py

Each device keeps the queries of its part of the sequence, while the parts' keys and values travel
around the ring. The softmax is summed as the parts come by: for each query its greatest score so
far, and the sums of weights and of weighted values relative to that. No device ever holds more than
two parts, and none computes scores of a part that lies in its future.
"""

import functools

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.sharding import PartitionSpec as P

SPLIT = P("data", "sequence")  # of arrays of shape (batch, positions, heads, width)


def attend(query, key, value, seen=True):
    """Return greatest score, sum of weights, and sum of weighted values for one part of the keys.

    `seen` says which keys (second dim) a query (first dim) may look at.
    """
    scores = mnp.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5
    scores = mnp.where(seen, scores, -mnp.inf)
    top = mnp.max(scores, axis=-1, keepdims=True)
    weights = mnp.exp(scores - top)
    return top, weights.sum(axis=-1, keepdims=True), mnp.einsum("bhqk,bkhd->bhqd", weights, value)


def merge(a, b):
    """Return what `attend` would say of two parts together."""
    top = mnp.maximum(a[0], b[0])
    left, right = mnp.exp(a[0] - top), mnp.exp(b[0] - top)
    return top, left * a[1] + right * b[1], left * a[2] + right * b[2]


def local_attention(query, key, value):
    """The body on one device: its own part first, which every query sees some of."""
    here, size = lax.axis_index("sequence"), lax.axis_size("sequence")
    ring = [(i, (i + 1) % size) for i in range(size)]

    def next_part(step, carry):
        found, key, value = carry
        key, value = lax.ppermute((key, value), "sequence", ring)
        # The part that has come lies `step` parts back; for the first devices that is the future.
        found = lax.cond(
            step <= here, lambda f: merge(f, attend(query, key, value)), lambda f: f, found
        )
        return found, key, value

    found = attend(query, key, value, mnp.tri(query.shape[1], dtype=bool))
    (_, total, mixed), _, _ = lax.fori_loop(1, size, next_part, (found, key, value))
    return mnp.swapaxes(mixed / total, 1, 2)


def attention(query, key, value, mesh):
    """Return causal attention; `mesh` has the axes data and sequence."""
    run = functools.partial(meshard.shard_map, mesh=mesh, in_specs=(SPLIT,) * 3, out_specs=SPLIT)
    return run(local_attention)(query, key, value)


def main():
    """Attend over 256 positions on 2 x 4 devices; compare with all scores at once."""
    meshard.config.update("num_devices", 8 // meshard.process_count())
    query, key, value = np.random.default_rng(0).normal(size=(3, 2, 256, 4, 16))
    found = attention(query, key, value, meshard.make_mesh((2, 4), ("data", "sequence")))
    _, total, mixed = attend(query, key, value, np.tri(256, dtype=bool))
    print("result:", found.shape, "by", found.sharding.spec)
    print("on each device:", found.addressable_shards[0].data.shape)
    print("differs by:", mnp.abs(found - np.swapaxes(mixed / total, 1, 2)).max())


if __name__ == "__main__":
    main()
