"""Looking words up in a table that is split by rows over the devices.

    python examples/embedding.py

Each device looks all words up in its own rows, and takes zeros for words that lie elsewhere; a
`psum` adds the results up. What moves is the result, not the table: with a table of gigabytes and a
batch of kilobytes there is no other way. Plain indexing of a split array does the same by itself.
"""

import functools

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.sharding import NamedSharding
from meshard.sharding import PartitionSpec as P


def look_up(table, words):
    """Return the rows of some words; a device has a part of the table and of the words."""
    first = lax.axis_index("rows") * len(table)
    is_here = (words >= first) & (words < first + len(table))
    found = mnp.take(table, mnp.where(is_here, words - first, 0), axis=0)
    return lax.psum(mnp.where(is_here[..., None], found, 0), "rows")


def embed(table, words, mesh):
    """Return the rows of all words; `mesh` has the axes data and rows."""
    specs = P("rows"), P("data")
    run = functools.partial(meshard.shard_map, mesh=mesh, in_specs=specs, out_specs=P("data"))
    return run(look_up)(table, words)


def main():
    """Look 8 sentences of 16 words up on 2 x 4 devices."""
    meshard.config.update("num_devices", 8 // meshard.process_count())
    mesh = meshard.make_mesh((2, 4), ("data", "rows"))
    random = np.random.default_rng(0)
    table, words = random.normal(size=(4096, 32)), random.integers(0, 4096, (8, 16))
    split = meshard.device_put(table, NamedSharding(mesh, P("rows")))
    batch = meshard.device_put(words, NamedSharding(mesh, P("data")))
    found = embed(split, batch, mesh)
    print("table:", table.shape, "of which a device holds", split.addressable_shards[0].data.shape)
    print("found:", found.shape, "by", found.sharding.spec)
    print("differs from NumPy by:", mnp.abs(found - table[words]).max())


if __name__ == "__main__":
    main()
