"""Python functions that programs call: what they are called with, how often, and where."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.lax as lax
import meshard.numpy as mnp
from meshard import debug
from meshard.errors import ArgumentError, DerivativeError, ShapeError, TreeError
from meshard.experimental import io_callback
from meshard.runtime.world import here
from meshard.sharding import NamedSharding, P
from tests.worlds import in_worlds, mesh, put, whole

ROW = np.arange(8.0)


def over(body: Any) -> Any:
    return meshard.shard_map(body, mesh=mesh((8,), ("i",)), in_specs=P("i"), out_specs=P("i"))


def split(value: Any = ROW) -> meshard.Array:
    return put(value, "i", on=mesh((8,), ("i",)))


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    "around", [lambda f: f, meshard.jit, lambda f: meshard.jit(meshard.jit(f))]
)
def test_values_are_printed_each_time_that_code_runs(around: Any, capsys: Any) -> None:
    def f(x: Any) -> Any:
        debug.print("sum {:.1f}, {x}, {tree[0]} and {word}", x.sum(), x=x, tree=[x[0]], word="so")
        return x + 1

    for _ in range(2):
        np.testing.assert_array_equal(around(f)(split()), ROW + 1)
    assert lines(capsys) == ["sum 28.0, [0. 1. 2. 3. 4. 5. 6. 7.], 0.0 and so"] * 2


def test_a_program_keeps_what_it_says_though_nothing_depends_on_it(capsys: Any) -> None:
    @meshard.jit
    def f(x: Any) -> Any:
        debug.print("first {}", 2 * x)

        def turn(i: Any, c: Any) -> Any:
            debug.print("turn {}", i)
            return c + 1

        lax.fori_loop(0, 2, turn, 0.0)
        lax.scan(lambda c, y: (c, debug.print("row {}", y)), None, x)
        lax.while_loop(lambda c: c < 1, lambda c: (debug.print("while {}", c), c + 1)[1], 0)
        lax.cond(x[0] > 0, lambda: debug.print("yes"), lambda: debug.print("no"))
        debug.print("last")
        return x

    f(mnp.asarray([5.0, 6.0]))
    said = "first [10. 12.]|turn 0|turn 1|row 5.0|row 6.0|while 0|yes|last"
    assert lines(capsys) == said.split("|")


@pytest.mark.parametrize("jitted", [False, True])
def test_each_device_of_a_body_prints(jitted: bool, capsys: Any) -> None:
    def body(t: Any) -> Any:
        debug.print("{} has {}", lax.axis_index("i"), t)
        return 2 * t

    f = over(body)
    np.testing.assert_array_equal((meshard.jit(f) if jitted else f)(split()), 2 * ROW)
    assert lines(capsys) == [f"{i} has [{i}.]" for i in range(8)]


@pytest.mark.parametrize("jitted", [False, True])
def test_only_devices_that_run_a_branch_print(jitted: bool, capsys: Any) -> None:
    def body(t: Any) -> Any:
        return lax.cond(lax.axis_index("i") > 5, lambda: (debug.print("{}", t), t)[1], lambda: t)

    f = over(body)
    (meshard.jit(f) if jitted else f)(split())
    assert lines(capsys) == ["[6.]", "[7.]"]


@pytest.mark.parametrize("jitted", [False, True])
def test_derivatives_and_examples_print_values(jitted: bool, capsys: Any) -> None:
    around = meshard.jit if jitted else lambda f: f

    def f(x: Any) -> Any:
        debug.print("at {}", x)
        return x * x

    assert around(meshard.grad(f))(3.0).item() == 6
    assert lines(capsys) == ["at 3.0"]
    assert around(meshard.vmap(meshard.grad(f)))(mnp.asarray([1.0, 2.0])).tolist() == [2, 4]
    assert lines(capsys) == ["at 1.0", "at 2.0"]
    around(meshard.vmap(meshard.vmap(f)))(mnp.ones((2, 2)))
    assert lines(capsys) == ["at 1.0"] * 4


@in_worlds
def test_the_first_process_is_called_with_whole_arrays_and_all_with_shards() -> None:
    seen: list[Any] = []
    shards: list[Any] = []

    @meshard.jit
    def f(x: Any) -> Any:
        debug.callback(lambda v, k: seen.append((v.tolist(), k)), x, k="key")
        debug.callback(lambda v: shards.append(v.tolist()), x, partitioned=True)
        return x

    f(split())
    assert seen == ([(ROW.tolist(), "key")] if here().process_index == 0 else [])
    own = [d.id for d in here().devices if d.process_index == here().process_index]
    assert sorted(shards) == [[ROW[i]] for i in sorted(own)]


def test_a_log_is_written(caplog: Any) -> None:
    with caplog.at_level(logging.INFO, "meshard"):
        meshard.jit(lambda x: debug.log("x is {}", x))(3)
    assert caplog.messages == ["x is 3"]


def test_a_breakpoint_stops_when_the_program_runs(monkeypatch: Any) -> None:
    stops: list[int] = []
    monkeypatch.setattr("sys.breakpointhook", lambda: stops.append(1))
    f = meshard.jit(lambda x: (debug.breakpoint(), x)[1])
    assert (f(1), f(2), len(stops))[2] == 2


def test_shardings_are_told_when_they_are_known() -> None:
    seen: list[Any] = []
    x = put(np.ones((8, 8)), "i", "j")

    @meshard.jit
    def f(x: Any) -> Any:
        debug.inspect_array_sharding({"sum": x.sum(0), "x": x}, callback=seen.append)
        return x

    f(x)
    assert {s.spec for s in seen} == {P("j"), P("i", "j")}  # while the program is fitted
    count = len(seen)
    f(x)
    assert len(seen) == count
    debug.inspect_array_sharding(x, callback=seen.append)
    assert seen[-1] == x.sharding


# functions that return something


@in_worlds
def test_results_are_arrays_everywhere() -> None:
    def f(x: Any) -> Any:
        like = {"y": meshard.ShapeDtypeStruct(x.shape, "float32"), "n": x[0]}
        return meshard.pure_callback(lambda v: {"y": v * 2, "n": v.sum()}, like, x)

    for g in (f, meshard.jit(f)):
        found = g(split())
        assert found["y"].dtype == np.float32
        np.testing.assert_array_equal(whole(found["y"]), 2 * ROW)
        assert float(found["n"]) == 28
    rows = NamedSharding(mesh((8,), ("i",)), P("i"))
    laid = meshard.jit(lambda x: meshard.pure_callback(np.exp, x, x, sharding=rows))(split())
    assert laid.sharding == rows
    np.testing.assert_allclose(whole(laid), np.exp(ROW))


@pytest.mark.parametrize("jitted", [False, True])
def test_a_body_calls_it_for_each_device(jitted: bool) -> None:
    shapes = []

    def body(t: Any) -> Any:
        def f(v: Any) -> Any:
            shapes.append(v.shape)
            return v + 1

        return meshard.pure_callback(f, t, t)

    f = over(body)
    np.testing.assert_array_equal((meshard.jit(f) if jitted else f)(split()), ROW + 1)
    assert shapes == [(1,)] * 8


@pytest.mark.parametrize("method", ["sequential", "broadcast_all", "expand_dims"])
@pytest.mark.parametrize("jitted", [False, True])
def test_examples_are_called_as_asked(jax: Any, method: str, jitted: bool) -> None:
    shapes: dict[str, list[Any]] = {"mine": [], "theirs": []}

    def mapped(m: Any, whose: str) -> Any:
        def host(a: Any, b: Any) -> Any:
            shapes[whose].append((a.shape, b.shape))
            return np.asarray(a + b, np.float32)

        def f(x: Any, y: Any) -> Any:
            like = m.ShapeDtypeStruct((), np.float32)
            return m.pure_callback(host, like, x, y, vmap_method=method)

        g = m.vmap(f, (0, None))
        return m.jit(g) if jitted else g

    x, y = np.arange(3, dtype=np.float32), np.float32(1)
    np.testing.assert_array_equal(mapped(meshard, "mine")(x, y), mapped(jax, "theirs")(x, y))
    assert shapes["mine"] == shapes["theirs"]


def test_effects_happen_once_for_each_run() -> None:
    source = iter(range(10))
    like = meshard.ShapeDtypeStruct((), "int64")

    @meshard.jit
    def f(x: Any) -> Any:
        io_callback(lambda: next(source), like)  # nobody needs its result, and yet it is called
        return x + io_callback(lambda: next(source), like)

    assert [f(0).item(), f(0).item()] == [1, 3]


@in_worlds
def test_all_processes_get_what_the_first_is_told() -> None:
    here_is = here().process_index
    like = meshard.ShapeDtypeStruct((2,), "float64")
    found = meshard.jit(lambda: io_callback(lambda: np.full(2, here_is + 7.0), like))()
    assert np.asarray(found).tolist() == [7, 7]


def test_odd_calls_are_refused() -> None:
    x = mnp.ones(3)
    with pytest.raises(ArgumentError, match=r"does not fit the 1 positional and 0 named values"):
        debug.print("{} {}", x)
    with pytest.raises(ArgumentError, match=r"does not ask for the values 0.*not use an f-string"):
        debug.print(f"{x}", x)
    with pytest.raises(ArgumentError, match="callback must be a function"):
        debug.callback(3)
    with pytest.raises(ArgumentError, match=r"since vmap_method is not given. Give vmap_method="):
        meshard.vmap(lambda x: meshard.pure_callback(np.sin, x, x))(x)
    with pytest.raises(ArgumentError, match="vmap_method must be 'sequential'"):
        meshard.pure_callback(np.sin, x, x, vmap_method="fast")
    with pytest.raises(ArgumentError, match="holds 3, which has no shape and dtype"):
        meshard.pure_callback(np.sin, 3, x)
    with pytest.raises(DerivativeError, match=r"pure_callback at .* has no derivative"):
        meshard.grad(lambda x: meshard.pure_callback(np.sin, x, x))(1.0)
    f = meshard.jit(lambda x: meshard.pure_callback(lambda v: v[:2], x, x))
    with pytest.raises(ShapeError, match=r"returned an array of shape \(2,\) and dtype float64"):
        f(x)
    with pytest.raises(TreeError, match="returned a tree of the structure"):
        meshard.pure_callback(lambda v: (v, v), x, x)


def test_an_error_of_the_function_comes_through_and_the_program_runs_again() -> None:
    wrong = [True]

    def check(v: Any) -> None:
        if wrong[0]:
            raise KeyError("mine")

    f = meshard.jit(lambda x: (debug.callback(check, x), x + 1)[1])
    with pytest.raises(KeyError, match="mine"):
        f(1)
    wrong.clear()
    wrong.append(False)
    assert [f(1).item() for _ in range(10)] == [2] * 10
