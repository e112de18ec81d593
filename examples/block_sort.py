"""Sorting numbers that no device could hold alone: blocks meet their neighbours.

    python examples/block_sort.py

Each device sorts its block. Then neighbours exchange blocks, merge them, and keep the smaller or
the greater half; pairs alternate. After as many rounds as there are devices everything is in order
(odd-even transposition). `meshard.numpy.sort` does the same with fewer bytes; this one fits on a
page.
"""

import functools

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.sharding import PartitionSpec as P


def exchange(block, even):
    """Merge a sorted block with the neighbour's; keep one half."""
    here, size = lax.axis_index("i"), lax.axis_size("i")
    lower = [i for i in range(size - 1) if (i % 2 == 0) == even]
    pairs = [pair for i in lower for pair in ((i, i + 1), (i + 1, i))]
    other = lax.ppermute(block, "i", pairs)
    both = mnp.sort(mnp.concatenate([block, other]))
    is_lower = (here % 2 == 0) == even
    kept = mnp.where(is_lower, both[: len(block)], both[len(block) :])
    alone = mnp.where(is_lower, here == size - 1, here == 0)
    return mnp.where(alone, block, kept)


def block_sort(x, mesh):
    """Return the numbers sorted; `mesh` has the axis i, which divides them."""

    @functools.partial(meshard.shard_map, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    def run(block):
        block = mnp.sort(block)
        for step in range(lax.axis_size("i")):
            block = exchange(block, step % 2 == 0)
        return block

    return run(x)


def main():
    """Sort 4096 numbers on 8 devices, in two ways."""
    meshard.config.update("num_devices", 8 // meshard.process_count())
    mesh = meshard.make_mesh((8,), ("i",))
    numbers = np.random.default_rng(0).normal(size=4096)
    x = meshard.device_put(numbers, meshard.NamedSharding(mesh, P("i")))
    for name, function in {
        "by neighbours": lambda x: block_sort(x, mesh),
        "numpy": mnp.sort,
    }.items():
        with meshard.debug.ledger() as log:
            found = function(x)
        print(f"{name}: {log.total_bytes:,} bytes moved,", found.sharding.spec)
        print("differs from NumPy by:", mnp.abs(found - np.sort(numbers)).max())


if __name__ == "__main__":
    main()
