"""Trees in files, plans, what is watched, and what goes on without dead processes."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_type

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import Array, checkpoint, debug, elastic
from meshard.resharding import Plan, Simulation, reshard_iter, topology
from meshard.sharding import Mesh, NamedSharding
from meshard.sharding import PartitionSpec as P
from meshard.testing import simulate, virtual_devices

mesh = meshard.make_mesh((4, 2), ("x", "y"))
rows = NamedSharding(mesh, P("x"))
columns = NamedSharding(mesh, P(None, ("x", "y")))


@meshard.tree.register_dataclass
@dataclass
class State:
    weights: Array
    bias: Array
    step: int = 0


def new_state() -> State:
    return State(meshard.device_put(mnp.ones((8, 8)), rows), mnp.zeros(8))


@meshard.jit(donate_argnums=0)
def update(state: State, batch: Array) -> tuple[State, Array]:
    out = mnp.tanh(batch @ state.weights + state.bias)
    assert_type(out, Array)
    return State(state.weights - 0.1 * out.T @ batch, state.bias, state.step), out.sum()


def training() -> None:
    state, loss = update(new_state(), mnp.ones((8, 8)))
    assert_type(state, State)
    assert_type(state.weights, Array)
    assert_type(float(loss), float)
    doubled: State = meshard.tree.map(lambda x: 2 * x, state)
    assert_type(doubled.weights.sharding.is_fully_replicated, bool)
    for path, leaf in meshard.tree.leaves_with_path(state):
        assert_type(path, tuple[Any, ...])
        assert leaf is not None


def files(folder: Path) -> None:
    tree = {"w": mnp.ones((8, 8)), "b": mnp.zeros((8, 8))}
    assert_type(checkpoint.save(folder / "run", tree, step=3), checkpoint.SaveHandle)
    assert_type(checkpoint.latest(folder / "run"), int | None)
    assert_type(checkpoint.steps(folder / "run"), list[int])
    loaded: dict[str, Array] = checkpoint.load(folder / "run", columns, like=tree)
    assert_type(loaded["w"].sharding.device_set, set[meshard.Device])
    for name, leaf in checkpoint.load_iter(folder / "run", rows, like=tree):
        assert_type(name, str)
        assert_type(leaf, Array)
    plan = checkpoint.plan_load(folder / "run", columns, like=tree)
    assert_type(plan, checkpoint.LoadPlan)
    assert_type(str(plan), str)
    assert_type(checkpoint.metadata(folder / "run"), checkpoint.Metadata)
    assert_type(checkpoint.verify(folder / "run"), list[checkpoint.Damage])


def plans() -> None:
    x = meshard.device_put(mnp.ones((8, 8)), rows)
    plan = meshard.plan_reshard({"x": x}, columns, topology="8-gpu hosts")
    assert_type(plan, Plan)
    assert_type(plan.peak_bytes, int)
    assert_type(plan.simulate(topology("8-gpu hosts")), Simulation)
    assert_type(plan.run({"x": x}), dict[str, Array])
    moved = meshard.reshard({"x": x}, columns, max_bytes=1 << 20)
    assert_type(moved, dict[str, Array])
    for name, leaf in reshard_iter({"x": x}, columns):
        assert_type(name, str)
        assert_type(leaf, Array)
    far = Mesh(np.array(virtual_devices(16)).reshape(4, 4), ("a", "b"))
    assert_type(far.shape["a"], int)


def watched(folder: Path) -> None:
    x = meshard.device_put(mnp.ones((8, 8)), rows)
    with debug.ledger() as log:
        y = meshard.reshard(x, columns)
    assert_type(y, Array)
    assert_type(log, debug.Ledger)
    assert_type(log.bytes_per_device, int)
    with debug.profile() as seen:
        mnp.sum(x, axis=0)
    assert_type(seen, debug.Profile)
    assert_type(seen.save(folder / "profile.json"), Path)
    with debug.timer() as took:
        mnp.sum(x)
    assert_type(took.seconds, float)
    with debug.budget("1 MiB") as log:
        x.sum()
    found = meshard.explain(mnp.matmul, x, y)
    assert_type(found, debug.Explanation)
    assert_type(str(found), str)
    debug.print0("rows of each device:", [s.data.shape for s in x.addressable_shards])
    assert_type(debug.visualize_array_sharding(x), None)


def lowered() -> None:
    x = meshard.device_put(mnp.ones((8, 8)), rows)
    program = meshard.jit(lambda a: mnp.tanh(a @ a)).lower(x)
    assert_type(program.as_text(), str)
    compiled = program.compile()
    assert_type(compiled.memory_analysis().peak_memory_in_bytes, int)


def living() -> None:
    tree = {"w": meshard.device_put(mnp.ones((8, 8)), rows)}
    guard = elastic.protect(tree)
    assert_type(guard, elastic.Protected)
    with elastic.surviving() as block:
        assert_type(block.changed, bool)
    assert_type(elastic.mesh("data"), Mesh)
    restored: dict[str, Array] = elastic.restore(guard, columns)
    assert_type(restored["w"] * 2, Array)
    assert_type(str(elastic.plan_protect(tree)), str)


def simulated() -> None:
    def program() -> int:
        return meshard.process_index()

    assert_type(simulate(2, 2, program), list[int])


def callbacks() -> None:
    def part(index: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        return np.ones((8, 8))[index]

    make: Callable[..., Array] = meshard.make_array_from_callback
    assert_type(make((8, 8), rows, part), Array)
    assert_type(meshard.make_array_from_callback((8, 8), rows, part), Array)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        training()
        files(Path(folder))
        plans()
        watched(Path(folder))
        lowered()
        living()
        simulated()
        callbacks()
