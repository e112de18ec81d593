"""Where the results of a jitted function lie that depend on nothing committed: as in JAX."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.sharding import Mesh, NamedSharding, P
from tests.worlds import everywhere, in_worlds, mesh, put, whole

Case = Callable[[Any], Any]


def _all_kinds(m: Any) -> Any:
    constant = m.np.ones(2)

    def f(x: Any, u: Any) -> Any:
        made = m.np.zeros(4), m.np.zeros((100, 200)), np.ones(2), constant
        return x, u, x + 1, u + 1, made, 3.0, True, m.lax.fori_loop(0, 2, lambda i, c: c + i, u)

    return f


CASES: dict[str, Case] = {
    "a committed argument": lambda m: m.jit(_all_kinds(m))(m.split, m.free),
    "no committed argument": lambda m: m.jit(_all_kinds(m))(m.free, m.free),
    "an argument on one device": lambda m: m.jit(_all_kinds(m))(m.third, m.free),
    "an argument on a mesh of one device": lambda m: m.jit(_all_kinds(m))(m.lone, m.free),
    "in_shardings": lambda m: m.jit(_all_kinds(m), in_shardings=(None, m.place))(m.free, m.row),
    "out_shardings": lambda m: m.jit(lambda u, v: (u, v), out_shardings=(None, m.place))(
        m.free, m.row
    ),
    "a constraint": lambda m: m.jit(
        lambda u, v: (u, m.lax.with_sharding_constraint(v + 1, m.place), m.np.zeros(3))
    )(m.free, m.row),
    "a constraint on a constant": lambda m: m.jit(
        lambda u: (u, m.lax.with_sharding_constraint(m.np.arange(8.0), m.place))
    )(m.row),
    "a body for each device": lambda m: m.jit(
        lambda u, v: (
            u,
            m.shard_map(lambda b: b * 2, mesh=m.mesh, in_specs=m.P("i"), out_specs=m.P("i"))(v),
        )
    )(m.free, m.row),
    "an argument that is not read": lambda m: m.jit(lambda x: (m.np.zeros(3), 1))(m.split),
    "one that is kept": lambda m: m.jit(lambda x: (m.np.zeros(3), 1), keep_unused=True)(m.split),
}


def _given(m: Any, place: Any, put: Any, devices: Any) -> SimpleNamespace:
    one = type(place.mesh)(np.asarray(devices[3:4]), ("i",))
    return SimpleNamespace(
        jit=m.jit,
        shard_map=m.shard_map,
        np=m.numpy,
        lax=m.lax,
        P=type(place.spec),
        mesh=place.mesh,
        place=place,
        free=m.numpy.arange(3.0),
        row=m.numpy.arange(8.0),
        split=put(np.arange(8.0), place),
        third=put(np.arange(3.0), devices[3]),
        lone=put(np.arange(8.0), type(place)(one, place.spec)),
    )


@pytest.mark.parametrize("name", CASES)
def test_results_lie_as_in_jax(name: str, jax: ModuleType) -> None:
    def told(x: Any, committed: bool) -> Any:
        spec = getattr(x.sharding, "spec", None)
        axes = None if spec is None else [a for a in spec if a is not None]
        return x.shape, committed, sorted(d.id for d in x.sharding.device_set), axes

    there = jax.sharding.Mesh(np.asarray(jax.devices()).reshape(4, 2), ("i", "j"))
    place = jax.sharding.NamedSharding(there, jax.sharding.PartitionSpec("i"))
    theirs = CASES[name](_given(jax, place, jax.device_put, jax.devices()))
    expected = [told(x, x._committed) for x in jax.tree.leaves(theirs)]

    def body() -> Any:
        place = NamedSharding(mesh(), P("i"))
        given = _given(meshard, place, meshard.device_put, meshard.devices())
        leaves = meshard.tree.leaves(CASES[name](given))
        assert all(type(x) is meshard.Array for x in leaves)
        home = {meshard.local_devices()[0].id}
        return [
            told(x, x.committed) if x.committed else (x.shape, {d.id for d in x.devices()} == home)
            for x in leaves
        ]

    found = everywhere(body)
    assert found == [t if t[1] else (t[0], True) for t in expected]


@in_worlds
def test_captured_arrays_say_where_results_lie_if_nothing_else_does() -> None:
    x, u = put(np.arange(8.0), "i"), mnp.arange(3.0)
    results = meshard.jit(lambda u: (u, u + 1, x * 2, mnp.zeros(3), 1))(u)
    for found, expected in zip(results, (u, u + 1, np.arange(8) * 2, np.zeros(3), 1), strict=True):
        assert found.committed
        assert len(found.sharding.device_set) == 8
        np.testing.assert_array_equal(whole(found), expected)
    some = meshard.local_devices()[:2]
    y = meshard.device_put(np.arange(4.0), NamedSharding(Mesh(some, "k"), P("k")))
    a, b, c = meshard.jit(lambda u: (u, x * 2, y * 2))(u)  # they say different things
    assert not a.committed
    assert (b.sharding.num_devices, c.sharding.num_devices) == (8, 2)


@in_worlds
def test_a_result_that_is_passed_through_is_an_array_of_its_own() -> None:
    x, u = put(np.arange(8.0), "i"), mnp.arange(3.0)
    f = meshard.jit(lambda x, u: (u, u, x))
    first, second, third = f(x, u)
    first.delete()
    third.delete()
    np.testing.assert_array_equal(second, u)
    np.testing.assert_array_equal(whole(lax.add(x, 0.0)), np.arange(8))
    compiled = f.lower(x, u).compile()
    assert [s.num_devices for s in compiled.output_shardings] == [8, 8, 8]
