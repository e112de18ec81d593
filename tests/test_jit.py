"""`jit`: the values of the function, traced once per signature, lying as JAX's would."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.errors import (
    ArgumentError,
    ConcretizationError,
    DeletedArrayError,
    IncompatibleDevicesError,
    IndivisibleError,
    ShardingError,
    TreeError,
)
from meshard.ops.engine.decide import decide
from meshard.sharding import NamedSharding, P
from meshard.transforms.lowering import lower
from meshard.transforms.program.simplify import exact_key
from tests.worlds import alone, everywhere, in_worlds, mesh, put, whole

GRID = np.arange(64.0).reshape(8, 8)


def on(*axes: Any) -> NamedSharding:
    return NamedSharding(mesh(), P(*axes))


# values


@in_worlds
def test_values_and_shardings_are_those_of_the_function():
    def f(x, y, n):
        z = mnp.tanh(x * 2 + n) @ y
        return {"z": z, "rows": z.sum(axis=1), "total": z.sum(), "same": x}

    for spec in ("i",), ("i", "j"), (None, "j"), ():
        x, y = put(GRID, *spec), put(GRID / 64, "j")
        found, expected = meshard.jit(f)(x, y, 3), f(x, y, 3)
        for key, value in expected.items():
            np.testing.assert_allclose(whole(found[key]), whole(value), rtol=1e-14)
            assert found[key].dtype == value.dtype
            assert found[key].sharding.is_equivalent_to(value.sharding, value.ndim)


def test_traced_once_per_signature():
    def body():
        calls = []

        @meshard.jit
        def f(x, n):
            calls.append(x.shape)
            return x * n

        x = put(GRID, "i")
        for n in 1, 2, 3:
            assert whole(f(x, n)).tolist() == (GRID * n).tolist()
        assert len(calls) == 1
        f(put(GRID, "j"), 1)  # another layout: the same trace
        assert len(calls) == 1
        f(x, 1.5)
        f(put(GRID[:4], "i"), 1)
        f(put(GRID.astype(np.float32), "i"), 1)
        assert len(calls) == 4
        f.clear_cache()
        f(x, 1)
        assert len(calls) == 5

    alone(body)


@in_worlds
def test_python_numbers_stay_weak():
    @meshard.jit
    def f(x, n):
        return x * n, n + 1

    x = put(GRID.astype(np.float32), "i")
    scaled, more = f(x, 2.5)
    assert scaled.dtype == np.float32
    assert float(whole(more)) == 3.5
    assert f(x, np.float64(2.5))[0].dtype == (x * np.float64(2.5)).dtype


@in_worlds
def test_control_flow_is_part_of_the_program():
    def f(x, n):
        first = lax.fori_loop(0, 3, lambda i, c: c + x * i, x)
        second = lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 2), (0, x))
        third = lax.cond(x.sum() > n, lambda y: y + 1, lambda y: y * 2, x)
        fourth = lax.scan(lambda c, row: (c + row, c.sum()), x[0], x)
        fifth = lax.switch(n, [mnp.sin, mnp.cos, mnp.tanh], x)
        return first, second, third, fourth, fifth

    for spec in ("i",), (None, "j"), ():
        x = put(GRID, *spec)
        for n in 0, 2, 5:
            found = meshard.tree.leaves(meshard.jit(f)(x, n))
            expected = meshard.tree.leaves(f(x, n))
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_allclose(whole(a), whole(b), rtol=1e-13)
                assert a.dtype == b.dtype


@in_worlds
def test_shard_map_inside_and_outside():
    def body(x):
        y = lax.fori_loop(0, 2, lambda i, c: c * 2 + lax.axis_index("i"), x)
        return y + lax.psum(x, "i")

    mapped = meshard.shard_map(body, mesh=mesh(), in_specs=P("i", "j"), out_specs=P("i", "j"))
    x = put(GRID, "i")
    expected = whole(mapped(x) * 2)
    assert whole(meshard.jit(lambda v: mapped(v) * 2)(x)).tolist() == expected.tolist()
    inner = meshard.jit(body)
    outer = meshard.shard_map(
        lambda v: inner(v) * 2, mesh=mesh(), in_specs=P("i", "j"), out_specs=P("i", "j")
    )
    assert whole(outer(x)).tolist() == expected.tolist()


@in_worlds
def test_nested_and_closed_over():
    weights = put(GRID, None, "j")
    layer = meshard.jit(lambda x: mnp.tanh(x @ weights / 1000))
    x = put(GRID, "i")
    found = meshard.jit(lambda v: layer(layer(v)) + weights[0])(x)
    expected = mnp.tanh(mnp.tanh(x @ weights / 1000) @ weights / 1000) + weights[0]
    np.testing.assert_allclose(whole(found), whole(expected), rtol=1e-14)


def test_the_bits_do_not_depend_on_the_processes():
    def body():
        x = put(np.random.default_rng(0).standard_normal((64, 48)), "i", "j")
        f = meshard.jit(lambda v: mnp.exp(v - v.max(axis=1, keepdims=True)) / (v * v).sum())
        return whole(f(x))

    everywhere(body)


def test_large_blocks_run_in_pieces_and_give_the_same_bits():
    def body():
        x = put(np.random.default_rng(0).standard_normal((4096, 256)), "i")

        def softmax(v):
            e = mnp.exp(v - v.max(axis=1, keepdims=True))
            return e / e.sum(axis=1, keepdims=True), mnp.tanh(v * 2 + 1) * v

        for found, expected in zip(meshard.jit(softmax)(x), softmax(x), strict=True):
            assert whole(found).tobytes() == whole(expected).tobytes()

    alone(body)


# shardings


@in_worlds
def test_in_and_out_shardings():
    f = meshard.jit(lambda x, y: (x + 1, [y * 2, x.sum()]), in_shardings=(on("i"), None))
    first, (second, _) = f(GRID, put(GRID, "j"))
    assert first.sharding.is_equivalent_to(on("i"), 2)
    assert second.sharding.is_equivalent_to(on("j"), 2)
    g = meshard.jit(lambda x: {"a": x + 1, "b": x}, out_shardings={"a": on("j"), "b": None})
    found = g(put(GRID, "i"))
    assert found["a"].sharding == on("j")
    assert found["b"].sharding.is_equivalent_to(on("i"), 2)
    assert whole(found["a"]).tolist() == (GRID + 1).tolist()
    with mesh():
        h = meshard.jit(lambda x: x, in_shardings=P("i"), out_shardings=P(None, "j"))
        assert h(GRID).sharding == on(None, "j")


@in_worlds
def test_constraints_inside():
    @meshard.jit
    def f(x):
        y = lax.with_sharding_constraint(x * 2, on(None, "j"))
        return y, meshard.device_put(y, on("i"))

    first, second = f(put(GRID, "i"))
    assert first.sharding == on(None, "j")
    assert second.sharding == on("i")
    assert whole(second).tolist() == (GRID * 2).tolist()


# arguments


@in_worlds
def test_static_arguments():
    @functools.partial(meshard.jit, static_argnames="n")
    def f(x, n=2, *, shift=0):
        return [x * k + shift for k in range(n)]

    x = put(GRID, "i")
    assert len(f(x)) == 2
    assert len(f(x, 3)) == len(f(x, n=3, shift=1)) == 3
    g = meshard.jit(lambda n, x: x if n == "same" else -x, static_argnums=0)
    assert whole(g("same", x)).tolist() == GRID.tolist()
    assert whole(g("other", x)).tolist() == (-GRID).tolist()
    with pytest.raises(ArgumentError, match=r"argument 0 is \[1\] .* not hashable"):
        g([1], x)


@in_worlds
def test_donated_arguments_are_given_up():
    f = meshard.jit(lambda x, y: x * 2 + y, donate_argnums=0)
    x, y = put(GRID, "i"), put(GRID, "i")
    assert whole(f(x, y)).tolist() == (GRID * 3).tolist()
    assert x.is_deleted()
    assert not y.is_deleted()
    with pytest.raises(DeletedArrayError, match="donated to jit"):
        whole(x)
    with pytest.raises(ArgumentError, match="donated and passed twice"):
        f(y, y)
    assert not y.is_deleted()


def test_donated_memory_is_written_over_only_where_nobody_sees_it():
    def body():
        big = np.random.default_rng(0).standard_normal((2048, 256))
        f = meshard.jit(lambda x: x * 2 + 1, donate_argnames="x")

        def stays() -> bool:
            x = put(big, "i") + 0
            before = x._live()[0].ctypes.data
            return f(x)._live()[0].ctypes.data == before

        # A worker may hold on to its last task for a moment.
        assert any(stays() for _ in range(20))
        y = put(big, "i") + 0
        view = y.addressable_shards[0].data
        assert whole(f(y)).tobytes() == (big * 2 + 1).tobytes()
        assert whole(view).tobytes() == big[: len(whole(view))].tobytes()

    alone(body)


@in_worlds
def test_methods_and_trees():
    class Model:
        def __init__(self, w):
            self.w = w

        @functools.partial(meshard.jit, static_argnums=0)
        def __call__(self, batch):
            return batch["x"] @ self.w, batch.get("none")

    x = put(GRID, "i")
    found, nothing = Model(put(GRID, None, "j"))({"x": x, "none": None})
    assert nothing is None
    assert whole(found).tolist() == (GRID @ GRID).tolist()


# stages


def test_stages():
    def body():
        f = meshard.jit(lambda x, n: mnp.tanh(x * n).sum(axis=0), out_shardings=on("j"))
        x = put(GRID, "i")
        shaped = meshard.ShapeDtypeStruct((8, 8), np.float64, sharding=on("i"))
        for lowered in f.lower(x, 2), f.trace(x, 2).lower(), f.lower(shaped, 2):
            assert "tanh" in lowered.as_text()
            compiled = lowered.compile()
            assert compiled.output_shardings == on("j")
            assert compiled.input_shardings[0][0] == on("i")
            assert compiled.memory_analysis().argument_size_in_bytes == 8 * 8 * 8 // 4
            assert compiled.cost_analysis()["flops"] >= 3 * 64
            assert lowered.out_info.shape == (8,)
            expected = np.tanh(GRID * 2).sum(axis=0)
            np.testing.assert_allclose(whole(compiled(x, 2)), expected, rtol=1e-14)
        assert f.eval_shape(x, 2).shape == (8,)
        with pytest.raises(ArgumentError, match=r"argument x compiled with float64\[8,8\] and"):
            compiled(x[:4], 2)
        with pytest.raises(ShardingError, match="disagree"):
            compiled(put(GRID, "j"), 2)
        with pytest.raises(TreeError, match="compiled for the arguments"):
            compiled(x)

    alone(body)


def test_values_inside_are_arrays_for_who_asks():
    def body():
        seen = []

        def look(x):
            seen.append((isinstance(x, meshard.Array), isinstance(3.0, meshard.Array)))
            return x

        x = put(GRID, "i")
        look(x)
        meshard.jit(look)(x)
        meshard.eval_shape(look, x)
        meshard.shard_map(look, mesh=mesh(), in_specs=P("i"), out_specs=P("i"))(x)
        assert seen == [(True, False)] * 4

    alone(body)


# refusals


@in_worlds
def test_looking_at_a_value_is_refused_with_the_way_out():
    x = put(GRID, "i")

    def branch(v):
        return v if v.sum() > 0 else -v

    with pytest.raises(ConcretizationError) as caught:
        meshard.jit(branch)(x)
    text = str(caught.value)
    assert "bool[]" in text
    assert "'branch'" in text
    assert "lax.cond" in text
    assert "test_jit.py" in text
    for look in (float, int, np.asarray, range, lambda v: v.item()):
        with pytest.raises(ConcretizationError, match="traced"):
            meshard.jit(lambda v, look=look: look(v[0, 0]))(x)
    with pytest.raises(ConcretizationError):
        meshard.jit(lambda v: v[v > 0])(x)
    with pytest.raises(TypeError, match="immutable"):
        meshard.jit(lambda v: v.__setitem__(0, 1))(x)


@in_worlds
def test_a_leaked_value_says_where_it_comes_from():
    kept = []

    @meshard.jit
    def f(x):
        kept.append(x * 2)
        return x

    x = put(GRID, "i")
    f(x)
    for use in (lambda v: v + 1, np.asarray, meshard.jit(lambda v: v + 1)):
        with pytest.raises(ConcretizationError, match=r"multiply at .*test_jit.py"):
            use(kept[0])


@in_worlds
def test_bad_arguments_are_named():
    x = put(GRID, "i")
    with pytest.raises(ArgumentError, match="f must be a function, got 3"):
        meshard.jit(3)
    with pytest.raises(ArgumentError, match=r"static_argnums=\(4,\), but the function accepts on"):
        meshard.jit(lambda x: x, static_argnums=4)
    with pytest.raises(ArgumentError, match="no argument 'm'"):
        meshard.jit(lambda x: x, static_argnames="m")
    with pytest.raises(ArgumentError, match="both static and donated"):
        meshard.jit(lambda x: x, static_argnums=0, donate_argnums=0)
    with pytest.raises(ArgumentError, match=r"argument x\['a'\] is 'text' of type str"):
        meshard.jit(lambda x: 1)({"a": "text"})
    with pytest.raises(ArgumentError, match=r"the result\[0\] is 'text' of type str"):
        meshard.jit(lambda x: ["text"])(x)
    with pytest.raises(ArgumentError, match="keyword argument 'a'"):
        meshard.jit(lambda a: a, in_shardings=on("i"))(a=x)
    with pytest.raises(TreeError, match="length 1, but there are 2 arguments"):
        meshard.jit(lambda a, b: a, in_shardings=(on("i"),))(x, x)
    with pytest.raises(TreeError, match="out_shardings must be a prefix"):
        meshard.jit(lambda a: (a, a), out_shardings=(on("i"),) * 3)(x)
    with pytest.raises(ShardingError, match="mesh"):
        meshard.jit(lambda a: a, in_shardings=P("i"))(GRID)


@in_worlds
def test_shardings_that_do_not_fit_are_refused():
    with pytest.raises(IndivisibleError) as caught:
        meshard.jit(lambda batch: batch, in_shardings=on("i"))(GRID[:6])
    text = str(caught.value)
    assert "batch" in text
    assert "global size of its dimension 0 should be divisible by 4" in text
    assert "but it is equal to 6" in text
    assert "global arrays, not the local part" in text
    with pytest.raises(IndivisibleError, match=r"result\[1\].*divisible by 4"):
        meshard.jit(lambda x: (x, x[:6]), out_shardings=on("i"))(put(GRID))
    with pytest.raises(ShardingError, match=r"argument x, float64.*does not match its in_shard"):
        meshard.jit(lambda x: x, in_shardings=on("j"))(put(GRID, "i"))


def test_arguments_on_different_devices_are_refused():
    def body():
        x = put(GRID, "i")
        y = meshard.device_put(GRID, meshard.devices()[1])
        with pytest.raises(IncompatibleDevicesError, match="incompatible devices"):
            meshard.jit(lambda a, b: a + b)(x, y)

    alone(body)


@in_worlds
def test_errors_while_running_name_the_operation():
    @meshard.jit
    def f(x):
        return mnp.log(x - 100)

    with np.errstate(invalid="raise"), pytest.raises(FloatingPointError) as caught:
        f(put(GRID, "i"))
    assert "log" in caught.value.__notes__[0]
    assert "test_jit.py" in caught.value.__notes__[0]


@in_worlds
def test_the_carry_of_a_scan_over_a_vector_is_made_of_arrays():
    """NumPy gives a scalar for one element, which is no block."""
    x = put(np.arange(8.0))
    last, every = meshard.jit(lambda x: lax.scan(lambda _, row: (row, row), x[0], x))(x)
    assert float(last) == 7
    assert isinstance(last.addressable_shards[0].data._blocks[0], np.ndarray)
    np.testing.assert_array_equal(whole(every), np.arange(8.0))


def test_operations_that_are_alike_are_decided_once(monkeypatch: pytest.MonkeyPatch):
    def body():
        def decided(turns: int) -> int:
            def f(x, y):
                for _ in range(turns):
                    x = mnp.tanh(x * y) @ y
                    y = y - x.mean()
                return x

            x, calls = put(GRID, "i"), []
            with monkeypatch.context() as patch:
                patch.setattr(
                    lower, "decide", lambda *a, **k: (calls.append(a), decide(*a, **k))[1]
                )
                meshard.jit(f).lower(x, x)
            return len(calls)

        assert decided(3) == decided(12) > 0

    alone(body)


def test_parameters_of_equal_numbers_are_told_apart():
    groups = (1, 1.0, True), (0.0, -0.0), (0j, complex(-0.0, 0.0))
    for numbers in (*groups, tuple(map(np.float32, (0.0, -0.0)))):
        keys = {exact_key((("value", n),)) for n in numbers}
        assert len(keys) == len(numbers)


@in_worlds
def test_a_compiled_program_inside_transformations_runs_on_arrays_alone():
    x = put(GRID, "i")
    loop = meshard.jit(lambda x: mnp.sort(x.reshape(-1))[::-1]).lower(x).compile()
    total = meshard.shard_map(
        lambda t: lax.psum(t, "i"), mesh=mesh(), in_specs=P("i"), out_specs=P()
    )
    summed = meshard.jit(total).lower(x).compile()

    def on_cells(f):
        return meshard.shard_map(f, mesh=mesh(), in_specs=P("i"), out_specs=P("i"))

    shapes = []
    on_cells(lambda t: (shapes.extend([loop(x).shape, summed(x).shape]), t)[1])(x)
    assert shapes == [(64,), (2, 8)]
    for inside in meshard.jit(lambda y: loop(y)), on_cells(lambda t: summed(t)):
        with pytest.raises(ConcretizationError, match="a compiled program runs on arrays, and"):
            inside(x)
