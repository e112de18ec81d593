"""A program for `test_donate`: donated reshards of 128 MB, and what the kernel counts of them."""

import gc
import json
from collections.abc import Callable
from typing import Any

import numpy as np

import meshard
from bench.kernel_memory import Meter
from meshard.resharding import plan_reshard, reshard
from meshard.runtime.world import here
from meshard.sharding import Mesh, NamedSharding, P

DEVICES = meshard.devices()
LINE = Mesh(DEVICES, "x")
ROWS, COLUMNS = NamedSharding(LINE, P("x")), NamedSharding(LINE, P(None, "x"))


def loaded(shape: tuple[int, ...], sharding: NamedSharding = ROWS) -> meshard.Array:
    """Return an array as weights are loaded: each device's part from a callback."""

    def part(index: tuple[slice, ...]) -> np.ndarray:
        sizes = [len(range(*i.indices(n))) for i, n in zip(index, shape, strict=True)]
        return np.full(sizes, 3, np.float32)

    return meshard.make_array_from_callback(shape, sharding, part)


def computed(shape: tuple[int, ...], sharding: NamedSharding = ROWS) -> meshard.Array:
    """Return an array in memory of the pool."""
    return loaded(shape, sharding) + 0


def tied() -> dict[str, Any]:
    """Return a tree in which an array occurs twice."""
    table = computed((8192, 2048))
    return {"embed": table, "lm_head": table, "body": computed((8192, 2048))}


def local_bytes(tree: Any) -> int:
    """Return the bytes of the distinct blocks of a tree's arrays in this process."""
    arrays = {id(x): x for x in meshard.tree.leaves(tree)}.values()
    return sum(s.data.nbytes for x in arrays for s in x.addressable_shards)


CASES: dict[str, tuple[Callable[[], Any], NamedSharding]] = {
    "a large array": (lambda: computed((8192, 4096)), COLUMNS),
    "a large array back": (lambda: computed((8192, 4096), COLUMNS), ROWS),
    "a large array loaded": (lambda: loaded((8192, 4096)), COLUMNS),
    "small arrays": (lambda: [computed((1024, 512)) for _ in range(64)], COLUMNS),
    "small arrays loaded": (lambda: [loaded((1024, 512)) for _ in range(64)], COLUMNS),
    "tied arrays": (tied, COLUMNS),
}


def main() -> None:
    """Print for each case what this process takes, as JSON."""
    warm = loaded((64, 64))
    reshard([warm], COLUMNS, donate=True)
    me = meshard.process_index()
    mine = {d.id for d in DEVICES if d.process_index == me}
    for case, (make, target) in CASES.items():
        with Meter() as meter:
            if meshard.process_count() > 1 and not meter.counts_shared:
                print("no control group can be made")
                return
            tree = make()
            gc.collect()
            here().memory.trim()
            plan = plan_reshard(tree, target, donate=True)
            planned = sum(n for d, n in plan.peak_tally.as_dict().items() if d in mine)
            # Besides the tree there may be what NumPy's allocator keeps.
            tree_bytes = local_bytes(tree)
            more = meter.now() - tree_bytes
            meter.reset()
            moved = reshard(tree, target, donate=True)
            told = {
                "case": case,
                "tree": tree_bytes,
                "peak": meter.most() - more,
                "after": meter.now() - more,
                "plan": planned,
            }
            print(json.dumps(told), flush=True)
            del tree, moved, plan
            gc.collect()
            here().memory.trim()


if __name__ == "__main__":
    main()
