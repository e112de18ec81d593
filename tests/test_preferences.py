"""Where values lie inside a jitted function: never more bytes than following the operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.debug import ledger
from meshard.sharding import NamedSharding, P
from tests.worlds import alone, in_worlds, mesh, put, whole

rng = np.random.default_rng(0)


def on(*axes: Any) -> NamedSharding:
    return NamedSharding(mesh(), P(*axes))


def moved(f: Any, *args: Any) -> tuple[int, list[str], Any]:
    """Return the bytes that a call moves, the kinds of its communications, and its result."""
    with ledger() as log:
        found = f(*args)
    return log.total_bytes, [r.kind for r in log], found


X, W1, B, W2 = (rng.standard_normal(s) for s in ((64, 32), (32, 128), (128,), (128, 16)))


def two_layers(x, w1, b, w2):
    return mnp.tanh(x @ w1 + b) @ w2


@in_worlds
def test_a_pending_reduction_is_scattered_to_where_the_next_product_needs_it():
    args = put(X, "i", "j"), put(W1, "j"), put(B), put(W2, "j")
    forward, kinds, expected = moved(two_layers, *args)
    assert kinds == ["all-reduce", "all-reduce"]
    f = meshard.jit(two_layers)
    less, kinds, found = moved(f, *args)
    assert kinds == ["reduce-scatter", "all-reduce"]
    np.testing.assert_allclose(whole(found), whole(expected), rtol=1e-12)
    g = meshard.jit(two_layers, out_shardings=on("i", "j"))
    least, kinds, found = moved(g, *args)
    assert kinds == ["reduce-scatter", "reduce-scatter"]
    assert found.sharding == on("i", "j")
    np.testing.assert_allclose(whole(found), whole(expected), rtol=1e-12)
    assert least < less < forward
    assert 2 * least == forward


@in_worlds
@pytest.mark.parametrize("width", [8, 256, 384])
@pytest.mark.parametrize("rule", ["tb,tc->bc", "tb,tc->cb", "tb,tcd->bcd"])
def test_products_of_any_size_are_scattered(rule: str, width: int) -> None:
    """Large partial results are written to memory of their own, which is as large as they are."""
    x, y = np.random.default_rng(width).standard_normal((2, 512, width))
    y = y.reshape(512, width // 8, 8) if rule.endswith("d") else y
    f = meshard.jit(lambda x, y: mnp.einsum(rule, x, y), out_shardings=on("i"))
    _, kinds, found = moved(f, put(x, "i"), put(y, "i"))
    assert kinds == ["reduce-scatter"]
    np.testing.assert_allclose(whole(found), np.einsum(rule, x, y), rtol=1e-9, atol=1e-9)


@in_worlds
def test_what_lies_everywhere_is_computed_where_the_result_is_wanted():
    x = put(X)

    @meshard.jit
    def f(x):
        return lax.with_sharding_constraint(mnp.exp(x) * 2 + 1, on("i", "j"))

    count, _, found = moved(f, x)
    assert count == 0
    assert found.sharding == on("i", "j")
    np.testing.assert_allclose(whole(found), np.exp(X) * 2 + 1, rtol=1e-14)
    program = f.lower(x).executable
    assert {s.outputs[0].sharding for s in program.steps} == {on("i", "j")}


@in_worlds
def test_a_constraint_reaches_back_through_transposes_and_slices():
    @meshard.jit
    def f(x, w):
        y = (x @ w).T[:, 8:24]
        return lax.with_sharding_constraint(y * 2, on("j", None))

    args = put(X, None, "j"), put(W1, "j")
    _, kinds, found = moved(f, *args)
    assert kinds == ["reduce-scatter"]
    np.testing.assert_allclose(whole(found), (X @ W1).T[:, 8:24] * 2, rtol=1e-12)


@in_worlds
def test_shard_maps_say_how_they_read():
    body = meshard.shard_map(
        lambda x: x * 2, mesh=mesh(), in_specs=P(None, "j"), out_specs=P(None, "j")
    )
    args = put(X, None, "j"), put(W1, "j")
    _, kinds, found = moved(meshard.jit(lambda x, w: body(x @ w)), *args)
    assert kinds == ["reduce-scatter"]
    np.testing.assert_allclose(whole(found), X @ W1 * 2, rtol=1e-12)


@in_worlds
def test_when_operands_disagree_the_way_that_moves_least_is_taken():
    """The heavier operand moves, if the result then lies where it is wanted."""
    heavy, light = put(X, "i"), put(X.astype(np.float32), "j")
    forward, _, expected = moved(lambda a, b: meshard.device_put(a + b, on("j")), heavy, light)
    f = meshard.jit(lambda a, b: a + b, out_shardings=on("j"))
    less, _, found = moved(f, heavy, light)
    assert less < forward
    assert whole(found).tolist() == whole(expected).tolist()


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_no_program_moves_more_than_following_its_operands(data):
    specs = [(), ("i",), ("j",), (None, "i"), (None, "j"), ("i", "j"), (("i", "j"),)]
    steps = data.draw(
        st.lists(st.sampled_from(["dot", "add", "tanh", "turn", "sum", "fix"]), max_size=5)
    )
    places = data.draw(st.lists(st.sampled_from(specs), min_size=len(steps) + 2, max_size=9))
    out = data.draw(st.sampled_from([None, *specs]))

    def f(x, *others):
        for step, other, place in zip(steps, others, places[1:], strict=False):
            if step == "dot":
                x = x @ other
            elif step == "add":
                x = x + other
            elif step == "tanh":
                x = mnp.tanh(x / 8)
            elif step == "turn":
                x = x.T
            elif step == "sum":
                x = x - x.sum(axis=0, keepdims=True) / 8
            else:
                x = meshard.device_put(x, on(*place))
        return x

    def body():
        args = [put(rng.standard_normal((16, 16)), *p) for p in places[: len(steps) + 1]]
        lies = None if out is None else on(*out)

        def eager(*args):
            y = f(*args)
            return y if lies is None else meshard.device_put(y, lies)

        forward, _, expected = moved(eager, *args)
        less, _, found = moved(meshard.jit(f, out_shardings=lies), *args)
        assert less <= forward
        np.testing.assert_allclose(whole(found), whole(expected), rtol=1e-10, atol=1e-12)

    alone(body)


@pytest.mark.parametrize("name", ["sum", "max"])
@in_worlds
def test_reductions_are_scattered_in_all_processes_alike(name):
    x = put(X, "i", "j")
    f = meshard.jit(lambda v: getattr(v, name)(axis=0), out_shardings=on(("j", "i")))
    _, kinds, found = moved(f, x)
    assert kinds == ["reduce-scatter"]
    np.testing.assert_allclose(whole(found), getattr(X, name)(axis=0), rtol=1e-13)


@in_worlds
def test_what_every_turn_of_a_loop_needs_alike_is_moved_once():
    args = put(X, "i"), put(W1[:, :32], "i")

    def f(x, w):
        def turn(i, c):
            return mnp.tanh(c @ mnp.exp(w))

        a = lax.fori_loop(0, 5, turn, x)
        b = lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, turn(0, s[1])), (0, x))[1]
        c, _ = lax.scan(lambda c, _: (turn(0, c), 0), x, None, length=4)
        return a, b, c

    forward, kinds, expected = moved(f, *args)
    less, fewer, found = moved(meshard.jit(f), *args)
    assert len(kinds) == 12
    assert len(fewer) == 3
    assert 4 * less == forward
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(whole(one), whole(other), rtol=1e-12)
    nothing = meshard.jit(lambda x, w: lax.fori_loop(0, 0, lambda i, c: c @ w, x))
    count, _, found = moved(nothing, *args)
    assert count == 0
    assert whole(found).tolist() == whole(args[0]).tolist()


@pytest.mark.parametrize(
    "f",
    [
        lambda c: mnp.fft.fft(c, 6).real,
        lambda c: mnp.fft.rfft(c, 10).real,
        lambda c: mnp.linalg.qr(c)[1],
        lambda c: lax.top_k(c, 3)[0],
    ],
)
def test_dims_that_only_results_have_are_not_cut_by_preferences(f):
    """A kernel that does not learn which part of such a dim a cell is computes all of it."""
    value = np.random.default_rng(0).normal(size=(4, 4))
    x = put(value)
    expected = np.asarray(f(x))
    for spec in (("i",), (None, "i"), ("j", "i")):
        wanted = NamedSharding(mesh(), P(*spec), uneven="balanced")
        found = meshard.jit(lambda c, w=wanted: lax.with_sharding_constraint(f(c), w))(x)
        np.testing.assert_array_equal(np.asarray(found), expected)
