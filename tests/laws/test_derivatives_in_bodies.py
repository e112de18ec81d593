"""Derivatives of collectives, and of what runs in the bodies of `shard_map`.

Each body is differentiated as part of the function of global arrays that `shard_map` makes of it,
eager and jitted: what is pushed pairs with what is pulled, and tangents are finite differences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax
from meshard.sharding import P
from meshard.testing import simulate
from meshard.transforms.batching.vmap import vmap
from meshard.transforms.derivatives.functions import grad, jvp, vjp
from meshard.transforms.derivatives.rules import COLLECTIVES
from tests.tangents import both_ways, check_adjoint, check_differences
from tests.worlds import alone, mesh, whole

Body = Callable[..., Any]
GROUPS = [[0, 2], [1, 3]]


def ragged(x: Any, y: Any) -> Any:
    """Send a row to each device along i, and keep the last row of what there was."""
    places, ones = mnp.arange(4), mnp.ones(4, int)
    at = mnp.full(4, lax.axis_index("i"))
    return lax.ragged_all_to_all(x * x, y * y, places, ones, at, ones, axis_name="i")


FIRST, SECOND, BOTH = P("i"), P(None, "i"), P("i", "j")

BODIES: dict[str, tuple[Body, tuple[tuple[int, ...], ...], Any, Any]] = {
    "psum": (lambda x: lax.psum(x * x, "i") * x, ((8, 3),), FIRST, FIRST),
    "psum to one": (lambda x: lax.psum(x * x, ("i", "j")), ((8, 4),), BOTH, P()),
    "psum of invariant": (lambda x: lax.psum(x * x, "j") * x, ((8, 3),), FIRST, FIRST),
    "psum of some": (lambda x: lax.psum(x * x, ("i", "j")) * x, ((8, 3),), FIRST, FIRST),
    "psum in groups": (
        lambda x: lax.psum(x * x, "i", axis_index_groups=GROUPS) * x, ((8, 3),), FIRST, FIRST
    ),
    "pmean": (lambda x: lax.pmean(x * x, "i") * x, ((8, 3),), FIRST, FIRST),
    "pmax": (lambda x: lax.pmax(x * x, "i") * x, ((8, 3),), FIRST, FIRST),
    "pmax in groups": (
        lambda x: lax.pmax(x * x, "i", axis_index_groups=GROUPS) * x, ((8, 3),), FIRST, FIRST
    ),
    "pmin": (lambda x: lax.pmin(x * x, "i"), ((8, 3),), FIRST, P()),
    "pcast": (
        lambda x: lax.pcast(x * x, ("i", "j"), to="varying") * lax.axis_index("i"),
        ((2, 3),), P(), BOTH,
    ),
    "axis_index": (lambda x: x * x * lax.axis_index(("j", "i")), ((8, 2),), BOTH, BOTH),
    "all_gather": (lambda x: lax.all_gather(x * x, "i")[1] * x, ((8, 3),), FIRST, FIRST),
    "all_gather, tiled": (
        lambda x: lax.all_gather(x * x, "i", axis=1, tiled=True)[:, 2:5] * x,
        ((8, 3),), FIRST, FIRST,
    ),
    "all_gather_invariant": (
        lambda x: lax.all_gather_invariant(x * x, "i")[::-1] * 2, ((8, 3),), FIRST, P()
    ),
    "all_gather_invariant, tiled": (
        lambda x: lax.all_gather_invariant(x * x, "i", axis=1, tiled=True), ((2, 8),), SECOND, P()
    ),
    "psum_scatter": (lambda x: lax.psum_scatter(x * x, "i"), ((16, 3),), FIRST, FIRST),
    "psum_scatter, tiled": (
        lambda x: lax.psum_scatter(x * x, "j", scatter_dimension=1, tiled=True),
        ((8, 8),), BOTH, BOTH,
    ),
    "ppermute": (
        lambda x: lax.ppermute(x * x, "i", [(0, 1), (1, 2), (3, 0)]) * x, ((8, 3),), FIRST, FIRST
    ),
    "pshuffle": (lambda x: lax.pshuffle(x * x, "i", [1, 0, 3, 2]) * x, ((8, 3),), FIRST, FIRST),
    "pbroadcast": (lambda x: lax.pbroadcast(x * x, "i", 2) * x, ((8, 3),), FIRST, FIRST),
    "all_to_all": (lambda x: lax.all_to_all(x * x, "i", 0, 1), ((16, 3),), FIRST, FIRST),
    "all_to_all, tiled": (
        lambda x: lax.all_to_all(x * x, "i", 1, 0, tiled=True), ((8, 8),), FIRST, FIRST
    ),
    "ragged_all_to_all": (ragged, ((16, 2), (20, 2)), (FIRST, FIRST), FIRST),
    "shared weights": (lambda x, w: mnp.tanh(x @ w), ((8, 4), (4, 2)), (FIRST, P()), FIRST),
    "two layers": (
        lambda x, w, v: lax.psum(mnp.tanh(x @ w) @ v, "j"),
        ((8, 4), (4, 6), (6, 3)), (FIRST, P(None, "j"), P("j")), FIRST,
    ),
    "scan": (
        lambda x: lax.scan(lambda c, y: (lax.psum(c * y, "j") * y, c), x[0], x)[1],
        ((5, 4),), P(None, "j"), P(None, "j"),
    ),
    "fori_loop": (
        lambda x: lax.fori_loop(0, 3, lambda i, y: lax.ppermute(mnp.sin(y), "i", RING) * x, x),
        ((8, 3),), FIRST, FIRST,
    ),
    "cond": (
        lambda x: lax.cond(lax.axis_index("i") > 1, lambda y: y * y, mnp.sin, x),
        ((8, 4),), FIRST, FIRST,
    ),
    "halo exchange": (
        lambda x: mnp.concatenate([lax.ppermute(x[-1:], "i", RING), x])[:-1] * x**2,
        ((8, 3),), FIRST, FIRST,
    ),
    "vmap": (
        lambda x: vmap(lambda r: lax.psum(r * r, "i") * r)(x), ((8, 3),), FIRST, FIRST
    ),
    "a body in a body's loop": (
        lambda x: lax.map(lambda r: lax.all_gather(r, "i", tiled=True)[:3] * r, x),
        ((8, 3),), FIRST, FIRST
    ),
}  # fmt: skip
RING = [(k, (k + 1) % 4) for k in range(4)]


def mapped(name: str) -> tuple[Body, list[Any]]:
    """Return a body as a function of global arrays, and values for these."""
    body, shapes, ins, outs = BODIES[name]
    specs = ins if type(ins) is tuple else (ins,)
    f = meshard.shard_map(body, mesh=mesh(), in_specs=specs, out_specs=outs)
    rng = np.random.default_rng(len(name))
    return lambda *xs: [f(*xs)], [rng.normal(size=s) for s in shapes]


def test_every_collective_is_tried() -> None:
    tried = " ".join(BODIES)
    assert [name for name in COLLECTIVES if name not in tried] == []


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("jitted", [False, True])
def test_bodies(name: str, jitted: bool) -> None:
    f, values = mapped(name)
    f = meshard.jit(f) if jitted else f
    found = both_ways(f, values, np.random.default_rng(1))
    check_adjoint(found)
    check_differences(f, values, found)


def _derivatives() -> dict[str, Any]:
    found = {}
    for name in BODIES:
        f, values = mapped(name)
        both = both_ways(f, values, np.random.default_rng(1))
        found[name] = [*both.pushed, *both.pulled]
    return found


def test_four_processes_give_the_same_bits() -> None:
    expected = alone(_derivatives)
    for process in simulate(4, 2, _derivatives, deadline=120):
        for name, values in expected.items():
            for a, b in zip(process[name], values, strict=True):
                assert a.tobytes() == b.tobytes(), name


def test_a_gradient_inside_a_body() -> None:
    """Of a sum over devices with respect to shared weights: that of the whole, on each device."""
    rng = np.random.default_rng(0)
    x, w, t = rng.normal(size=(8, 4)), rng.normal(size=(4, 2)), rng.normal(size=(4, 2))

    def loss(x: Any, w: Any) -> Any:
        return lax.psum(mnp.sum(mnp.tanh(x @ w)), "i")

    def body(x: Any, w: Any, t: Any) -> Any:
        _, slope = jvp(lambda w: loss(x, w), (w,), (t,))
        again, back = vjp(lambda w: loss(x, w), w)
        return grad(lambda w: loss(x, w))(w), slope, back(mnp.ones_like(again))[0]

    ins, outs = (P("i"), P(), P()), (P(), P(), P())
    whole_loss = lambda w: mnp.sum(mnp.tanh(mnp.asarray(x) @ w))  # noqa: E731
    expected = whole(grad(whole_loss)(w))
    f = meshard.shard_map(body, mesh=mesh(), in_specs=ins, out_specs=outs)
    for call in (f, meshard.jit(f)):
        slopes, along, pulled = map(whole, call(x, w, t))
        np.testing.assert_allclose(slopes, expected, rtol=1e-12)
        np.testing.assert_allclose(pulled, expected, rtol=1e-12)
        np.testing.assert_allclose(along, np.sum(expected * t), rtol=1e-12)


def test_second_derivatives_of_bodies() -> None:
    """The gradient of a gradient through `shard_map`, against finite differences."""
    f, values = mapped("two layers")

    def slopes(*xs: Any) -> list[Any]:
        return list(grad(lambda *ys: mnp.sum(f(*ys)[0] ** 2), (0, 1, 2))(*xs))

    found = both_ways(slopes, values, np.random.default_rng(2))
    check_adjoint(found)
    check_differences(slopes, values, found)
