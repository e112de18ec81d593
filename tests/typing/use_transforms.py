"""Transformations: jit, shard_map with collectives, control flow, placement."""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple, assert_type

import numpy as np

import meshard
import meshard.numpy as mnp
from meshard import Array, ShapeDtypeStruct, lax
from meshard.experimental.pjit import pjit
from meshard.resharding import Plan
from meshard.sharding import NamedSharding
from meshard.sharding import PartitionSpec as P

mesh = meshard.make_mesh((4, 2), ("x", "y"))
a = meshard.device_put(mnp.ones((8, 8)), NamedSharding(mesh, P("x", "y")))


class Layer(NamedTuple):
    weights: Array
    bias: Array


@meshard.jit
def apply(layer: Layer, batch: Array) -> Array:
    assert_type(batch, Array)
    return mnp.tanh(batch @ layer.weights + layer.bias)


@meshard.jit(static_argnames="power")
def to_the(batch: Array, power: int = 2) -> Array:
    return batch**power


@meshard.jit(donate_argnums=0, out_shardings=NamedSharding(mesh, P()))
def step(state: dict[str, Array], rate: float) -> tuple[dict[str, Array], Array]:
    new = {name: value * rate for name, value in state.items()}
    return new, new["w"].sum()


@dataclass
class Model:
    scale: float

    @meshard.jit(static_argnums=0)
    def forward(self, x: Array, *, shift: float = 0.0) -> Array:
        return x * self.scale + shift

    # mypy does not look into a partial of an overloaded function, and must not refuse it either.
    @functools.partial(meshard.jit, static_argnums=0)
    def backward(self, x: Array, *, shift: float = 0.0) -> Array:
        return (x - shift) / self.scale

    def __hash__(self) -> int:
        return hash(self.scale)


def jitted() -> None:
    layer = Layer(mnp.ones((8, 3)), mnp.zeros(3))
    assert_type(apply(layer, a), Array)
    assert_type(apply(layer, batch=a), Array)
    assert_type(to_the(a, power=3), Array)
    assert_type(step({"w": mnp.ones(3)}, 0.5), tuple[dict[str, Array], Array])
    assert_type(Model(2.0).forward(a, shift=1.0), Array)
    back: Array = Model(2.0).backward(a, shift=1.0)
    assert_type(back, Array)
    assert_type(meshard.jit(lambda x: mnp.exp(x))(a), Array)
    assert_type(apply.lower(layer, a).as_text(), str)
    assert_type(pjit(mnp.tanh)(a), Array)
    apply.clear_cache()


@meshard.shard_map(mesh=mesh, in_specs=P("x"), out_specs=P("x"))
def smooth(tile: Array) -> Array:
    before = lax.ppermute(tile[-1:], "x", [(i, i + 1) for i in range(3)])
    assert_type(before, Array)
    after = lax.ppermute(tile[:1], "x", [(i + 1, i) for i in range(3)])
    padded = mnp.concatenate([before, tile, after])
    return (padded[:-2] + tile + padded[2:]) / 3


def columns(tile: Array) -> tuple[Array, dict[str, Array]]:
    total = lax.psum(tile, ("x", "y"))
    assert_type(total, Array)
    assert_type(lax.pmean({"tile": tile}, "x"), dict[str, Array])
    assert_type(lax.all_gather(tile, "x", tiled=True), Array)
    assert_type(lax.psum_scatter(lax.all_gather(tile, "x"), "x"), Array)
    assert_type(lax.all_to_all(lax.all_gather(tile, "x"), "x", 0, 0), Array)
    assert_type(lax.axis_index("x"), Array)
    assert_type(lax.psum(1, "x"), int)
    return total, {"most": lax.pmax(tile, ("x", "y"))}


def mapped() -> None:
    assert_type(smooth(a), Array)
    both = meshard.shard_map(columns, mesh=mesh, in_specs=P("x", "y"), out_specs=P())
    assert_type(both(a), tuple[Array, dict[str, Array]])
    with meshard.debug.ledger() as log:
        smooth(a)
    assert_type(str(log), str)


def flow() -> None:
    def turn(carry: Array, x: Array) -> tuple[Array, Array]:
        return carry + x, carry

    def doubled(x: Array) -> Array:
        return 2 * x

    assert_type(lax.scan(turn, mnp.zeros(8), a), tuple[Array, Array])
    assert_type(lax.fori_loop(0, 3, lambda i, x: mnp.add(x, i), mnp.zeros(2)), Array)
    assert_type(lax.while_loop(lambda x: x.sum() < 9, doubled, mnp.ones(2)), Array)
    assert_type(lax.cond(a.sum() > 0, doubled, mnp.negative, a), Array)
    assert_type(lax.switch(1, [doubled, doubled], a), Array)
    assert_type(lax.map(doubled, a), Array)
    assert_type(lax.with_sharding_constraint(a, NamedSharding(mesh, P())), Array)


def lax_functions() -> None:
    assert_type(lax.add(a, a), Array)
    assert_type(lax.rsqrt(a), Array)
    assert_type(lax.dynamic_slice(a, (0, 0), (2, 2)), Array)
    assert_type(lax.top_k(a, 2), tuple[Array, Array])
    assert_type(lax.reduce_sum(a, (0,)), Array)
    assert_type(lax.cumsum(a), Array)
    assert_type(lax.sort(a), Array)
    assert_type(lax.sort((a, a), num_keys=2), tuple[Array, ...])
    assert_type(lax.associative_scan(mnp.add, a), Array)
    assert_type(lax.stop_gradient(a), Array)


def abstract() -> None:
    assert_type(meshard.eval_shape(mnp.tanh, a), ShapeDtypeStruct)
    like = ShapeDtypeStruct((64, 32), np.float32, sharding=NamedSharding(mesh, P("x")))
    assert_type(meshard.eval_shape(to_the, like), ShapeDtypeStruct)
    found = meshard.explain(apply, Layer(mnp.ones((8, 3)), mnp.zeros(3)), a)
    assert_type(found.total_bytes, int)


def placing() -> None:
    tree = {"w": mnp.ones((8, 2)), "b": mnp.ones(8)}
    rows = NamedSharding(mesh, P("x"))
    assert_type(meshard.device_put(np.ones(8), rows), Array)
    assert_type(meshard.device_put(3.0), Array)
    assert_type(meshard.device_put(tree, rows), dict[str, Array])
    assert_type(meshard.device_put({"w": np.ones(8)}, rows), dict[str, Array])
    assert_type(meshard.device_put([np.ones(8), np.ones(8)], rows), list[Array])
    assert_type(meshard.device_put((np.ones(8), 3.0)), tuple[Array, Array])
    assert_type(meshard.device_put((1, 2, 3)), tuple[Array, ...])
    assert_type(meshard.device_put({"inner": tree}, rows), dict[str, dict[str, Array]])
    assert_type(meshard.device_put(Layer(mnp.ones(8), mnp.ones(8)), rows), Layer)
    assert_type(meshard.reshard(a, rows), Array)
    assert_type(meshard.reshard(tree, {"w": rows, "b": None}), dict[str, Array])
    assert_type(meshard.device_get(a), np.ndarray[Any, np.dtype[Any]])
    assert_type(meshard.block_until_ready(tree), dict[str, Array])
    assert_type(meshard.tree.leaves(tree), list[Any])
    assert_type(meshard.make_array_from_callback((8,), rows, lambda i: np.ones(8)[i]), Array)
    assert_type(meshard.make_array_from_process_local_data(rows, np.ones(8)), Array)
    plan = meshard.plan_reshard(a, NamedSharding(mesh, P(None, ("x", "y"))))
    assert_type(plan, Plan)
    assert_type(plan.run(a), Array)
    assert_type(str(plan), str)
    assert_type(a.sharding.mesh, meshard.Mesh)
    assert_type([d.id for d in mesh.devices.flat], list[Any])


def main() -> None:
    jitted()
    mapped()
    flow()
    lax_functions()
    abstract()
    placing()
