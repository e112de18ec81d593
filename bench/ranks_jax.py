"""One process of a job of JAX on CPU: the rows between processes that JAX can do, over gloo.

`python -m bench.ranks_jax ADDRESS RANK`, four times. Each process is asked on its own input and
answers with its own seconds; the parent takes the slowest.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.asked import MARK
from bench.harness import sentence
from bench.ranks_jobs import LEAF, LEAVES, PROCESSES, SIDE, SMALL

Call = Callable[[], Any]
OFTEN = {"allreduce": 20, "tiny": 200}
"""How often one repetition does the work of a row of small arrays."""


def tasks(jax: Any, me: int) -> dict[str, Callable[[], tuple[Call, Callable[[Any], None]]]]:
    """For each row a maker of the call and of the check of its result."""
    from jax import lax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    devices = np.array(jax.devices())
    line, square = Mesh(devices, ("i",)), Mesh(devices.reshape(2, 2), ("i", "j"))

    def placed(whole: np.ndarray, sharding: Any) -> Any:
        return jax.make_array_from_callback(whole.shape, sharding, lambda i: whole[i])

    def check(whole: np.ndarray) -> Callable[[Any], None]:
        def same(y: Any) -> None:
            for shard in y.addressable_shards:
                np.testing.assert_allclose(np.asarray(shard.data), whole[shard.index], rtol=1e-5)

        return same

    def moved(mesh: Any, before: Any, after: Any) -> Any:
        def make() -> tuple[Call, Callable[[Any], None]]:
            whole = np.arange(SIDE * SIDE, dtype=np.float32).reshape(SIDE, SIDE)
            x = placed(whole, NamedSharding(mesh, before))
            move = jax.jit(lambda v: v, out_shardings=NamedSharding(mesh, after))
            return lambda: jax.block_until_ready(move(x)), check(whole)

        return make

    def tree() -> tuple[Call, Callable[[Any], None]]:
        base = np.arange(LEAF * LEAF, dtype=np.float32).reshape(LEAF, LEAF)
        leaves = [placed(base + i, NamedSharding(line, P("i"))) for i in range(LEAVES)]
        move = jax.jit(lambda v: v, out_shardings=NamedSharding(line, P(None, "i")))
        return lambda: jax.block_until_ready(move(leaves)), lambda y: check(base + 3)(y[3])

    def summed() -> tuple[Call, Callable[[Any], None]]:
        base = np.arange(SIDE * SIDE, dtype=np.float32).reshape(SIDE, SIDE) / np.float32(SIDE)
        parts = np.concatenate([base * np.float32(p + 1) for p in range(PROCESSES)])
        x = placed(parts, NamedSharding(line, P("i")))
        total = jax.jit(
            jax.shard_map(lambda v: lax.psum(v, "i"), mesh=line, in_specs=P("i"), out_specs=P())
        )
        expected = parts.reshape(PROCESSES, SIDE, SIDE).sum(axis=0)
        return lambda: jax.block_until_ready(total(x)), check(expected)

    def small() -> tuple[Call, Callable[[Any], None]]:
        parts = np.arange(PROCESSES * SMALL, dtype=np.float32)
        x = placed(parts, NamedSharding(line, P("i")))
        total = jax.jit(
            jax.shard_map(lambda v: lax.psum(v, "i"), mesh=line, in_specs=P("i"), out_specs=P())
        )
        expected = parts.reshape(PROCESSES, SMALL).sum(axis=0)
        return lambda: jax.block_until_ready(total(x)), check(expected)

    def tiny() -> tuple[Call, Callable[[Any], None]]:
        start = np.arange(8 * PROCESSES, dtype=np.float32)
        x = placed(start, NamedSharding(line, P("i")))
        twice = jax.jit(lambda v: v * 2)
        return lambda: jax.block_until_ready(twice(x)), check(start * 2)

    return {
        "allreduce": small,
        "tiny": tiny,
        "columns": moved(line, P("i"), P(None, "i")),
        "replicated": moved(line, P("i"), P()),
        "half": moved(square, P("i", "j"), P("i")),
        "tiles": moved(square, P(("i", "j")), P("i", "j")),
        "tree": tree,
        "summed": summed,
    }


def main(address: str, me: int) -> None:
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, PROCESSES, me)
    makers = tasks(jax, me)
    call: Call | None = None
    row = ""
    for line in sys.stdin:
        request = json.loads(line)
        found: dict[str, Any] = {}
        try:
            if request["what"] == "warm":
                row = request["row"]
                call, check = makers[row]()
                check(call())
                call()
            elif request["what"] == "sample":
                assert call is not None
                time.sleep(max(0.0, request["at"] - time.time()))  # all begin together
                often = OFTEN.get(row, 1)
                start = time.perf_counter()
                for _ in range(often):
                    result = call()
                found["seconds"] = (time.perf_counter() - start) / often
                del result
            else:
                call = None
        except Exception as error:
            found["error"] = sentence(error)
        sys.stdout.write(f"{MARK}{json.dumps(found)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
