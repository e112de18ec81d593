"""A program for `test_forks`: it forks before, while and after arrays are moved and computed with.

Each child says what it sees, and the parent goes on meanwhile. What is printed is compared.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import meshard
from meshard.errors import TransportError
from meshard.runtime.world import here
from meshard.sharding import Mesh, NamedSharding, P

N = 3 << 16
LINE = Mesh(meshard.devices(), "x")
ROWS, COLUMNS = NamedSharding(LINE, P("x")), NamedSharding(LINE, P(None, "x"))
ALONE = meshard.process_count() == 1


def in_child(wanted: Callable[[], Any], meanwhile: Callable[[], None]) -> Any:
    """Return what a child finds after its parent has done something else."""
    go, told = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.close(go[1])
        os.read(go[0], 1)
        try:
            answer = repr(wanted())
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(told[1], answer.encode())
        os._exit(0)
    os.close(told[1])
    meanwhile()
    os.close(go[1])
    answer = os.read(told[0], 4096).decode()
    assert os.waitpid(child, 0)[1] == 0
    os.close(told[0])
    os.close(go[0])
    return answer


def local(x: Any) -> float:
    """Return the sum of this process's part, as NumPy counts it."""
    return float(sum(np.asarray(s.data).sum(dtype=np.float64) for s in x.addressable_shards))


def main() -> None:
    """Print what parents and children see."""
    x = meshard.device_put(np.ones((N, 12), np.float32), ROWS) + 0
    state = {"x": meshard.reshard(x, COLUMNS)}  # between processes it has been received

    def step() -> None:
        for _ in range(4):
            state["x"] = meshard.reshard(meshard.reshard(state["x"] + 1, ROWS), COLUMNS)

    share = N * 12 // meshard.process_count()
    for number in range(3):
        before = local(state["x"])
        assert before == share * (1 + 4 * number), before
        seen = in_child(lambda: local(state["x"]), step)
        assert float(seen) == before, (seen, before)

        # A child that computes changes nothing here.
        def compute() -> float:
            part = state["x"].addressable_shards[0].data
            twice = meshard.jit(lambda y: y * 2 + 1 - y, donate_argnums=0)(part)
            again = meshard.numpy.ones((N,)) * 3
            return float(twice.sum()) + float(again.sum())

        before = local(state["x"])
        in_child(compute, lambda: None)
        assert local(state["x"]) == before

    def sum_of_all() -> float:
        return float(state["x"].sum())

    refused = in_child(sum_of_all, lambda: None)
    if ALONE:
        assert float(refused) == float(state["x"].sum())
    else:
        assert refused.startswith(TransportError.__name__), refused
        assert "was forked from a process of a job of several" in refused, refused
        assert in_child(lambda: state["x"] + 1, lambda: None).startswith("TransportError")

    # Chunks that children held are used again when these have ended.
    arena = here().memory.arena
    if arena is not None:
        step()
        step()
        assert arena.lent_bytes <= 4 * share * 4
    for _ in range(10):
        state["x"] = meshard.reshard(state["x"] + 1, ROWS)
        state["x"] = meshard.reshard(state["x"], COLUMNS)
    print(f"process {meshard.process_index()}: {float(state['x'].sum())}", flush=True)

    child = os.fork()
    if not child:
        sys.exit(0)  # not by os._exit: what runs at the end of a program runs here too
    assert os.waitpid(child, 0)[1] == 0
    child = os.fork()
    if not child:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        raise ValueError("what a child raises concerns nobody else")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


if __name__ == "__main__":
    main()
