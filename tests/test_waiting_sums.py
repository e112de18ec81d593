"""Sums of partial sums are combined once: fewer bytes, and the same values everywhere."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.debug import ledger
from meshard.sharding import NamedSharding, P
from tests.worlds import alone, everywhere, in_processes, in_worlds, mesh, put, whole


def arrays(dtype: Any = "float64", rows: int = 8, spec: Any = ("i",)) -> list[Any]:
    rng = np.random.default_rng(0)
    values = [rng.normal(size=(rows, 6)).astype(dtype) for _ in range(4)]
    return [put(v, *spec, uneven="balanced" if rows % 4 else None) for v in values]


def two(x, y, u, v):
    return x.T @ y + u.T @ v


def three(x, y, u, v):
    return x.T @ y + u.T @ v + x.T @ v


def with_sums(x, y, u, v):
    return x.sum(axis=0) + (y * u).sum(axis=0)


def moved(f: Any, *args: Any) -> list[tuple[str, int]]:
    found = meshard.explain(f, *args)
    jitted = meshard.jit(f)
    jitted(*args)
    with ledger() as log:
        jitted(*args)
    assert log.received == {d: n for d, n in found.received.items() if n}
    return [(c.kind, c.bytes_per_device) for s in found.steps for c in s.communications]


@pytest.mark.parametrize("f", [two, three, with_sums], ids=lambda f: f.__name__)
@pytest.mark.parametrize("rows", [8, 7, 3, 0])
def test_they_are_combined_once(f, rows):
    def body():
        own = arrays(rows=rows)
        kinds = moved(f, *own)
        once = moved(lambda x, y, *_: x.T @ y if f is not with_sums else x.sum(0), *own)
        assert kinds == once
        found = whole(meshard.jit(f)(*own))
        np.testing.assert_allclose(found, whole(f(*own)), rtol=1e-12, atol=1e-12)
        return found

    in_processes(body, (2, 4))


def test_each_device_adds_what_it_has_first():
    def body():
        x, y = (put(np.array([[v], [1.0], [0.0], [0.0]]), "i") for v in (1e16, -1e16))
        return float(meshard.jit(lambda x, y: x.sum(axis=0) + y.sum(axis=0))(x, y)[0])

    assert everywhere(body) == 2.0  # 1e16 + 1 would have lost the ones


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, "float16", "float32", "int32", "complex64"])
def test_dtypes_are_those_of_the_operations(dtype):
    def body():
        own = arrays(dtype)
        found, expected = meshard.jit(two)(*own), two(*own)
        assert found.dtype == expected.dtype
        near = {"rtol": 2e-2, "atol": 2e-2} if found.dtype.itemsize == 2 else {"rtol": 1e-5}
        wide = np.complex128 if found.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(whole(found).astype(wide), whole(expected).astype(wide), **near)
        return whole(found)

    everywhere(body)


@in_worlds
def test_what_is_wanted_in_parts_is_scattered_once():
    rows = NamedSharding(mesh((8,), ("k",)), P("k"))
    own = [meshard.device_put(np.asarray(whole(x)), rows) for x in arrays(rows=16)]
    own = [meshard.device_put(np.ones((16, 8)), rows) for _ in own]
    jitted = meshard.jit(two, out_shardings=rows)
    found = jitted.lower(*own).explain()
    kinds = [c.kind for s in found.steps for c in s.communications]
    assert kinds == ["reduce-scatter"]
    assert jitted(*own).sharding.spec == P("k")
    assert (whole(jitted(*own)) == 32).all()


@in_worlds
def test_what_others_read_too_is_combined_by_itself():
    def f(x, y, u, v):
        first = x.T @ y
        return first + u.T @ v, first

    own = arrays()
    assert [k for k, _ in moved(f, *own)] == ["all-reduce"] * 2
    total, first = meshard.jit(f)(*own)
    np.testing.assert_allclose(whole(total), whole(two(*own)), rtol=1e-12)
    np.testing.assert_allclose(whole(first), whole(own[0].T @ own[1]), rtol=1e-12)


@in_worlds
def test_what_is_summed_over_other_axes_is_combined_by_itself():
    x, y, _, _ = arrays()
    u, v, _, _ = arrays(spec=("j",))
    assert [k for k, _ in moved(two, x, y, u, v)].count("all-reduce") == 2
    found = meshard.jit(two)(x, y, u, v)
    np.testing.assert_allclose(whole(found), whole(two(x, y, u, v)), rtol=1e-12)


@in_worlds
def test_in_loops_too():
    def f(x, y, u, v):
        return lax.fori_loop(0, 3, lambda i, c: mnp.tanh(c) + (x.T @ y + u.T @ v), x.T @ v)

    own = arrays()
    assert [k for k, _ in moved(f, *own)] == ["all-reduce"] * 2
    np.testing.assert_allclose(whole(meshard.jit(f)(*own)), whole(f(*own)), rtol=1e-12)


def test_what_three_products_read_has_one_sum_on_the_way_back():
    """As in attention: queries, keys and values are split over heads, and read the same rows."""

    def f(p, x):
        x = x @ p["first"]
        return mnp.tanh((x @ p["q"]) * (x @ p["k"]) + x @ p["v"]).sum()

    def body():
        rng = np.random.default_rng(0)
        p = {k: put(rng.normal(size=(6, 8)), None, "j") for k in "qkv"}
        p["first"] = put(rng.normal(size=(4, 6)))
        x = put(rng.normal(size=(8, 4)))
        found = meshard.explain(meshard.grad(f), p, x)
        big = [s for s in found.steps if s.bytes_per_device > 100]
        assert [(s.name, s.purpose.partition(" at ")[0]) for s in big] == [
            ("contract+contract+contract", "gradient of contract")
        ], found
        return {k: whole(g) for k, g in meshard.jit(meshard.grad(f))(p, x).items()}

    everywhere(body)


def test_steps_that_wait_are_listed_with_all_their_operations():
    def body():
        text = meshard.jit(three).lower(*arrays()).compile().as_text()
        assert text.count("= contract") == 3
        assert text.count("= add") == 2
        assert text.count("all-reduce") == 1

    alone(body)
