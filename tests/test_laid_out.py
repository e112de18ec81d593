"""Gradients that are computed at once are laid out with a view to their arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.debug import ledger
from meshard.sharding import NamedSharding, P
from tests.worlds import in_processes, in_worlds, mesh, put, whole


def loss(p: Any, x: Any) -> Any:
    return mnp.mean((mnp.tanh(x @ p["w"] + p["b"]) @ p["v"]) ** 2)


def params(spec: Any, sizes: tuple[int, int, int] = (8, 16, 8), uneven: Any = None) -> Any:
    rng = np.random.default_rng(0)
    a, b, c = sizes
    shapes = {"w": (a, b), "b": (b,), "v": (b, c)}
    return {k: put(rng.normal(size=s), spec, uneven=uneven) for k, s in shapes.items()}


def batch(rows: int = 16, dim: int = 8, uneven: Any = None) -> Any:
    return put(np.random.default_rng(1).normal(size=(rows, dim)), "i", uneven=uneven)


@in_worlds
def test_sums_of_which_each_device_needs_a_part_are_scattered():
    p, x = params("i"), batch()
    with ledger() as log:
        g = meshard.grad(loss)(p, x)
    back = [(r.kind, r.purpose) for r in log if r.purpose.startswith("gradient of p")]
    assert sorted(back) == [("reduce-scatter", f"gradient of p[{k!r}]") for k in "bvw"]
    assert {v.sharding.spec for v in g.values()} == {P("i")}


@in_worlds
def test_what_is_whole_is_combined_for_all():
    with ledger() as log:
        meshard.grad(loss)(params(None), batch())
    back = [r.kind for r in log if r.purpose.startswith("gradient of p")]
    assert back == ["all-reduce"] * 3


@pytest.mark.parametrize("rows", [16, 13, 3, 0])
@pytest.mark.parametrize("jitted", [False, True])
def test_uneven_ones_too_with_the_same_bits_in_any_number_of_processes(rows, jitted):
    def body():
        p = params("i", (7, 10, 5), "balanced")
        x = batch(rows, 7, "balanced" if rows % 4 else None)
        f = meshard.grad(lambda p, x: mnp.sum(mnp.tanh(x @ p["w"] + p["b"]) @ p["v"]))
        g = (meshard.jit(f) if jitted else f)(p, x)
        for k, v in g.items():
            assert v.sharding == p[k].sharding
        return {k: whole(v) for k, v in g.items()}

    found = in_processes(body, (2, 4))
    x = whole(batch(rows, 7, "balanced" if rows % 4 else None)) if rows else np.ones((0, 7))
    v = {k: whole(a) for k, a in params("i", (7, 10, 5), "balanced").items()}
    h = np.tanh(x @ v["w"] + v["b"])
    back = (1 - h**2) * v["v"].sum(axis=1)
    np.testing.assert_allclose(found["w"], x.T @ back, atol=1e-12)
    np.testing.assert_allclose(found["b"], back.sum(axis=0), atol=1e-12)
    np.testing.assert_allclose(found["v"], np.outer(h.sum(axis=0), np.ones(5)), atol=1e-12)


@in_worlds
def test_scattered_gradients_have_the_bits_of_combined_ones():
    x = batch()
    whole_ones = meshard.grad(loss)(params(None), x)
    parts = meshard.grad(loss)(params("i"), x)
    for k, g in parts.items():
        assert whole(g).tobytes() == whole(whole_ones[k]).tobytes()


@in_worlds
def test_on_another_mesh_than_that_of_the_argument():
    """What is wished on a mesh on which nothing runs is left out of account."""
    other = NamedSharding(mesh((8,), ("k",)), P("k"))
    p = {k: meshard.device_put(whole(v), other) for k, v in params(None).items()}
    g = meshard.grad(loss)(p, batch())
    assert all(v.sharding.spec == P("k") for v in g.values())


def steps_of(f: Any, *args: Any) -> list[tuple[str, int]]:
    found = meshard.explain(f, *args)
    return [(c.kind, c.bytes_per_device) for s in found.steps for c in s.communications]


def laid(*spec: Any) -> NamedSharding:
    return NamedSharding(mesh(), P(*spec))


@in_worlds
def test_out_shardings_of_a_gradient_are_obtained_with_fewest_bytes():
    """Gradients in parts of whole parameters, as ZeRO-2 has them: scattered, not combined."""
    p, x = params(None), batch()
    jitted = meshard.jit(meshard.grad(loss), out_shardings={k: laid("i") for k in p})
    g = jitted(p, x)
    assert {v.sharding.spec for v in g.values()} == {P("i")}
    told = jitted.lower(p, x).explain()
    back = [c.kind for s in told.steps if "p[" in s.purpose for c in s.communications]
    assert back == ["reduce-scatter"] * 3
    for k, v in meshard.grad(loss)(p, x).items():
        np.testing.assert_allclose(whole(g[k]), whole(v), rtol=1e-12, atol=1e-14)


@in_worlds
def test_whole_gradients_of_parameters_in_parts_move_what_an_all_reduce_does():
    p, x = params("i"), batch()
    jitted = meshard.jit(meshard.grad(loss), out_shardings={k: laid() for k in p})
    assert {v.sharding.spec for v in jitted(p, x).values()} == {P()}
    asked = jitted.lower(p, x).explain().bytes_per_device
    in_parts = meshard.explain(meshard.grad(loss), p, x).bytes_per_device
    sizes = sum(v.nbytes for v in p.values())
    assert asked <= in_parts + sizes * 3 // 4


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("uneven", [False, True])
def test_a_constraint_holds_for_the_cotangent_too(jitted, uneven):
    def body():
        rows = NamedSharding(mesh(), P(None, "j"), uneven="balanced" if uneven else None)
        x = put(np.random.default_rng(0).normal(size=(8, 5 if uneven else 6)), "i")
        seen = []

        @meshard.custom_vjp
        def watched(v):
            return v

        def back(kept, g):
            seen.append(g.sharding if not jitted else None)
            return (g,)

        watched.defvjp(lambda v: (v, None), back)

        def f(x):
            return mnp.sum(lax.with_sharding_constraint(watched(mnp.tanh(x)), rows) ** 2)

        slope = meshard.grad(f)
        found = slope(x) if not jitted else meshard.jit(slope)(x)
        assert found.sharding == x.sharding
        if jitted:
            steps = meshard.explain(slope, x).steps
            asked = [s for s in steps if "constraint" in s.name]
            assert [bool(s.purpose) for s in asked] == [False, True]
            assert {s.after for s in asked} == {("P(None, 'j')",)}
        else:
            assert seen == [rows]
        return whole(found)

    found = in_processes(body, (2, 4))
    v = np.tanh(np.random.default_rng(0).normal(size=(8, 5 if uneven else 6)))
    np.testing.assert_allclose(found, 2 * v * (1 - v**2), rtol=1e-12)


@in_worlds
def test_one_sum_for_each_whole_parameter_however_often_it_is_used():
    def often(w, x):
        for _ in range(3):
            x = mnp.tanh(x @ w) + x * w[0]
        return mnp.sum(x @ w)

    w, x = put(np.random.default_rng(0).normal(size=(8, 8)) / 4), batch()
    found = meshard.explain(meshard.grad(often), w, x)
    sums = [c for s in found.steps if s.purpose == "gradient of w" for c in s.communications]
    assert sum(c.bytes_per_device for c in sums) <= 2 * (2 * w.nbytes * 3 // 4)
    np.testing.assert_allclose(
        whole(meshard.jit(meshard.grad(often))(w, x)),
        whole(meshard.grad(often)(w, x)),
        rtol=1e-12,
        atol=1e-13,
    )


@pytest.mark.parametrize("axis", ["i", "j"])
@pytest.mark.parametrize("rows", [8, 5, 256])
def test_parts_over_one_of_the_axes_that_are_summed_over(axis, rows):
    """As where parameters are split within replicas: scattered, and each part summed over them."""

    def body():
        rng = np.random.default_rng(0)
        uneven = None if rows % 8 == 0 else "balanced"
        x = put(rng.normal(size=(16, rows)), ("i", "j"))
        w = put(rng.normal(size=(rows, 24)), axis, uneven=uneven)
        found = {}
        for name, f in (("jit", meshard.jit), ("at once", lambda f: f)):
            slope = f(meshard.grad(lambda w: mnp.sum(mnp.sin(x @ w))))
            slope(w)
            with ledger() as log:
                g = slope(w)
            assert g.sharding == w.sharding
            told = [(r.kind, r.axes) for r in log if r.purpose == "gradient of w"]
            other = "j" if axis == "i" else "i"
            assert told == [("reduce-scatter", (axis,)), ("all-reduce", (other,))]
            found[name] = whole(g)
        return found

    found = in_processes(body, (2, 4, 8))
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(16, rows)), rng.normal(size=(rows, 24))
    for g in found.values():
        np.testing.assert_allclose(g, x.T @ np.cos(x @ w), rtol=1e-10, atol=1e-12)
