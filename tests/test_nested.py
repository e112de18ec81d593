"""Jitted functions inside others: traced once per signature, as in JAX, and always right."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.errors import ArgumentError, ConcretizationError
from meshard.sharding import NamedSharding, P
from tests.worlds import alone, everywhere, in_worlds, mesh, put, whole

# A case makes a function of the split array x; what it calls `counted` is counted when it runs.


def _several(m: Any, counted: Any) -> Any:
    layer = m.jit(counted(lambda a: m.np.tanh(a * 2)))
    return lambda x: layer(layer(layer(x))) + layer(x * 3)


def _kinds(m: Any, counted: Any) -> Any:
    layer = m.jit(counted(lambda a, b=1.0: {"sum": (a + b).sum(), "all": a * b}))

    def f(x: Any) -> Any:
        first = layer(x)["all"], layer(x, 2.0)["all"], layer(x, b=3.0)["sum"]
        return *first, layer(x, 2)["sum"], layer(x, x)["all"], layer(x[:4])["sum"]

    return f


def _statics(m: Any, counted: Any) -> Any:
    power = functools.partial(m.jit, static_argnums=1)(counted(lambda a, n: a**n))
    return lambda x: (power(x, 2) + power(x, 3) + power(x * 2, 2), power(x, 2))


def _deep(m: Any, counted: Any) -> Any:
    inner = m.jit(counted(lambda a: a + 1))
    middle = m.jit(counted(lambda a: inner(inner(a)) * 2))
    return lambda x: middle(middle(x)) + inner(x)


def _loops(m: Any, counted: Any) -> Any:
    layer = m.jit(counted(lambda a: m.np.sin(a)))
    twice = lambda c: layer(layer(c))  # noqa: E731

    def f(x: Any) -> Any:
        y = m.lax.fori_loop(0, 3, lambda i, c: twice(c), x)
        z = m.lax.cond(x[0] > 0, twice, layer, y)
        return m.lax.scan(lambda c, t: (twice(c), c[0] * t), z, m.np.arange(3.0))

    return f


def _mapped_inside(m: Any, counted: Any) -> Any:
    body = m.shard_map(lambda b: m.lax.psum(b, "i") + b, mesh=m.mesh, in_specs=m.P("i"),
                       out_specs=m.P("i"))  # fmt: skip
    layer = m.jit(counted(lambda a: body(a) * 2))
    return lambda x: layer(layer(x)) - layer(x)


def _inside_a_body(m: Any, counted: Any) -> Any:
    layer = m.jit(counted(lambda b, k: b * k + m.lax.psum(b, "i")))

    def body(b: Any) -> Any:
        return layer(layer(layer(b, 2.0), 2.0), 2.0) + m.lax.axis_index("i")

    return lambda x: m.shard_map(body, mesh=m.mesh, in_specs=m.P("i"), out_specs=m.P("i"))(x)


def _closed_over(m: Any, counted: Any) -> Any:
    def f(x: Any) -> Any:
        y, weights = x * 2, {"w": x + 1}
        layer = m.jit(counted(lambda a: a * y + weights["w"]))
        return layer(layer(x)) + layer(y)

    return f


def _constraints(m: Any, counted: Any) -> Any:
    place = m.place
    layer = m.jit(counted(lambda a: a * 2), in_shardings=(place,), out_shardings=place)
    return lambda x: layer(layer(x)) + 1


def _passed_on(m: Any, counted: Any) -> Any:
    layer = m.jit(counted(lambda a, n: (a, n, 2.0, a + n)))

    def f(x: Any) -> Any:
        a, n, two, b = layer(x, 3)
        return a * two, b * n, layer(b, 3)

    return f


CASES: dict[str, Callable[[Any, Any], Any]] = {
    name[1:]: case
    for name, case in list(globals().items())
    if name.startswith("_") and getattr(case, "__module__", None) == __name__
}


def _run(case: Callable[[Any, Any], Any], m: Any, x: Any) -> tuple[int, list[Any]]:
    traced: list[int] = []

    def counted(f: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(f)
        def g(*args: Any, **kwargs: Any) -> Any:
            traced.append(1)
            return f(*args, **kwargs)

        return g

    f = m.jit(case(m, counted))
    found = m.tree.leaves(f(x))
    again = m.tree.leaves(m.jit(lambda x: f(x))(x))  # another function that calls it
    for a, b in zip(found, again, strict=True):
        np.testing.assert_array_equal(whole(a), whole(b))
    return len(traced), found


@pytest.mark.parametrize("name", CASES)
def test_traced_as_often_as_in_jax(name: str, jax: ModuleType) -> None:
    there = jax.sharding.Mesh(np.asarray(jax.devices()).reshape(4, 2), ("i", "j"))
    spec = jax.sharding.PartitionSpec
    place = jax.sharding.NamedSharding(there, spec("i"))
    with jax.enable_x64(True):
        value = jax.device_put(np.arange(8.0) / 8, place)
        given = SimpleNamespace(jit=jax.jit, np=jax.numpy, lax=jax.lax, tree=jax.tree, P=spec,
                                shard_map=jax.shard_map, mesh=there, place=place)  # fmt: skip
        times, expected = _run(CASES[name], given, value)

    def body() -> Any:
        own = SimpleNamespace(jit=meshard.jit, np=mnp, lax=lax, tree=meshard.tree, P=P,
                              shard_map=meshard.shard_map, mesh=mesh(),
                              place=NamedSharding(mesh(), P("i")))  # fmt: skip
        number, found = _run(CASES[name], own, put(np.arange(8.0) / 8, "i"))
        return number, [whole(x) for x in found]

    number, found = everywhere(body)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, np.asarray(b), rtol=1e-12)
    assert number <= times, (number, times)


@in_worlds
def test_what_a_function_closes_over_is_looked_at_anew() -> None:
    times = [0]

    @meshard.jit
    def f(x: Any) -> Any:
        y, held = x * 2, [x]

        @meshard.jit
        def g(a: Any) -> Any:
            times[0] += 1
            return a + y + held[0]

        first = g(x), g(x)
        y = x * 10
        second = g(x), g(x)
        held[0] = x * 100
        return *first, *second, g(x), g(x)

    x = put(np.arange(8.0), "i")
    found = [int(whole(v)[1]) for v in f(x)]
    assert found == [4, 4, 12, 12, 111, 111]
    assert times == [3]


@in_worlds
def test_values_of_an_object_that_a_function_holds_are_of_the_trace_at_hand() -> None:
    class Layer:
        def run(self, a: Any) -> Any:
            return a * self.weight

    layer = Layer()
    run = meshard.jit(layer.run)

    @meshard.jit
    def f(x: Any, w: Any) -> Any:
        layer.weight = w
        first = run(x)
        layer.weight = w + 1
        return first + run(x)

    x = put(np.arange(8.0), "i")
    np.testing.assert_array_equal(whole(f(x, 2.0)), np.arange(8) * 5)
    np.testing.assert_array_equal(whole(f(x, x)), np.arange(8) * (2 * np.arange(8) + 1))


held_by_the_module: dict[str, Any] = {}


def test_arrays_in_the_place_of_values_at_hand_are_told_apart() -> None:
    def body() -> None:
        class Layer:
            weight: Any = None

        layer, holder = Layer(), {"w": mnp.ones(8)}

        def run(a: Any) -> Any:
            return a * layer.weight + holder["w"] + held_by_the_module["w"]

        f = meshard.jit(run)
        layer.weight = held_by_the_module["w"] = mnp.ones(8)
        x = put(np.arange(8.0), "i")
        np.testing.assert_array_equal(whole(f(x)), np.arange(8) + 2)

        def within(x: Any, w: Any) -> Any:
            layer.weight = w
            first = f(x)
            holder["w"] = w * 10
            second = f(x)
            held_by_the_module["w"] = w * 100
            return first, second, f(x)

        found = meshard.jit(within)(x, put(np.full(8, 2.0), "i"))
        expected = np.arange(8) * 2
        for y, more in zip(found, (2, 21, 220), strict=True):
            np.testing.assert_array_equal(whole(y), expected + more)

    alone(body)  # the processes of a simulated job would share the module's variable


@in_worlds
def test_results_that_are_known_stay_known() -> None:
    @meshard.jit
    def sizes(a: Any) -> Any:
        return a * 2, a.shape[0], constant, np.arange(3)

    constant = mnp.arange(4)

    @meshard.jit
    def f(x: Any) -> Any:
        y, n, known, counted = sizes(x)
        assert n == 8
        assert int(known[3]) == 3  # not traced: it exists
        return y + n + int(counted.sum())

    x = put(np.arange(8.0), "i")
    np.testing.assert_array_equal(whole(f(x)), np.arange(8) * 2 + 11)
    np.testing.assert_array_equal(sizes(mnp.ones(2))[0], [2, 2])


def test_refusals_name_the_function_and_its_argument() -> None:
    def body() -> None:
        kept: list[Any] = []

        @meshard.jit
        def look(value: Any) -> Any:
            return float(value)

        @meshard.jit
        def keep(value: Any) -> Any:
            kept.append(value)
            return value

        with pytest.raises(ConcretizationError, match="the argument value"):
            meshard.jit(lambda x: look(x))(mnp.ones(()))
        meshard.jit(lambda x: keep(x))(mnp.ones(()))
        with pytest.raises(ConcretizationError, match="has ended"):
            mnp.add(kept[0], 1)
        with pytest.raises(ArgumentError, match="argument value is 'a' of type str"):
            meshard.jit(lambda x: (x, keep("a"), meshard.jit(lambda v, value: v)(x, value="a")))(
                mnp.ones(())
            )
        with pytest.raises(ArgumentError, match="not an array or a number"):
            meshard.jit(lambda x: meshard.jit(lambda v: "a")(x))(mnp.ones(()))

    alone(body)


def test_a_trace_of_a_program_at_hand_is_forgotten_with_it() -> None:
    def body() -> None:
        @meshard.jit
        def f(x: Any) -> Any:
            y = x + 1
            return meshard.jit(lambda a: a * y)(x)

        def closing(x: Any) -> Any:
            return inner(x * 2)

        inner = meshard.jit(lambda a: a + 1)
        np.testing.assert_array_equal(f(mnp.arange(3)), [0, 2, 6])
        meshard.jit(closing)(mnp.arange(3))
        programs = meshard.algebra.world.current().programs
        assert len(programs[inner].nested) == 1
        inner.clear_cache()
        assert inner not in programs

    alone(body)
