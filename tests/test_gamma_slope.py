"""How gamma numbers, and those made of them, follow the shapes of their distributions."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy import special

import meshard
import meshard.numpy as mnp
from meshard import random
from meshard.errors import DerivativeError
from meshard.testing import simulate

KEY = random.key(3)
SHAPES = [1e-3, 0.05, 0.7, 1.0, 3.3, 50.0, 4999.0, 5001.0, 1e5]


@pytest.mark.parametrize("a", SHAPES)
def test_a_number_keeps_its_place_in_the_distribution(a: float) -> None:
    shapes, h = mnp.full(60, a), 1e-5 * a
    x, back = meshard.vjp(lambda a: random.gamma(KEY, a), shapes)
    (slope,) = map(np.asarray, back(mnp.ones(60)))
    y = np.asarray(x)
    some = (y > 1e-290) & (special.gammainc(a, y) < 0.999)
    place = special.gammainc(a, y[some])
    moved = special.gammaincinv(a + h, place) - special.gammaincinv(a - h, place)
    np.testing.assert_allclose(slope[some], moved / (2 * h), rtol=2e-5, atol=1e-290)
    assert (slope[y == 0] == 0).all()
    logs = np.asarray(meshard.grad(lambda a: random.loggamma(KEY, a).sum())(shapes))
    assert np.isfinite(logs).all()
    np.testing.assert_allclose(logs[some] * y[some], slope[some], rtol=1e-9)


@pytest.mark.parametrize("a", SHAPES)
def test_slopes_are_those_of_jax(a: float, jax: ModuleType) -> None:
    with jax.enable_x64(True):
        x = np.asarray(random.gamma(KEY, mnp.full(60, a)))
        expected = jax.lax.random_gamma_grad(jax.numpy.full(60, a), jax.numpy.asarray(x))
    found = meshard.grad(lambda a: random.gamma(KEY, a).sum())(mnp.full(60, a))
    some = x > 1e-290
    np.testing.assert_allclose(np.asarray(found)[some], np.asarray(expected)[some], rtol=1e-10)


EXPECTED: dict[str, tuple[Callable[[Any], Any], Callable[[float], float]]] = {
    "gamma": (lambda a: random.gamma(KEY, a, (40_000,)) ** 2, lambda a: 2 * a + 1),
    "loggamma": (
        lambda a: random.loggamma(KEY, a, (40_000,)),
        lambda a: float(special.polygamma(1, a)),
    ),
    "beta": (lambda a: random.beta(KEY, a, 3.0, (40_000,)), lambda a: 3 / (a + 3) ** 2),
    "chisquare": (lambda a: random.chisquare(KEY, a, (40_000,)), lambda a: 1.0),
    "dirichlet": (
        lambda a: random.dirichlet(KEY, mnp.stack([a, 1.0, 2.0]), (40_000,))[:, 0],
        lambda a: 3 / (a + 3) ** 2,
    ),
    "t": (lambda a: random.t(KEY, a + 4, (200_000,)) ** 2, lambda a: -2 / (a + 2) ** 2),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_gradients_of_expectations(name: str) -> None:
    """The mean of a function of random numbers changes with the shape as its formula says."""
    draw, slope = EXPECTED[name]
    found = float(meshard.grad(lambda a: mnp.mean(draw(a)))(mnp.asarray(2.5)))
    np.testing.assert_allclose(found, slope(2.5), rtol=0.05)


def test_layouts_processes_and_jit_change_nothing() -> None:
    def slopes() -> Any:
        meshard.config.update("num_devices", 8)
        mesh = meshard.make_mesh((4,), ("x",))
        a = mnp.arange(1.0, 41.0) / 4
        split = meshard.device_put(a, meshard.NamedSharding(mesh, meshard.P("x")))

        def loss(a: Any) -> Any:
            return (random.beta(KEY, a, 2.0) ** 2).sum()

        found = meshard.grad(loss)(split)
        assert found.sharding.spec == meshard.P("x")
        for other in (meshard.jit(meshard.grad(loss))(split), meshard.grad(loss)(a)):
            assert np.asarray(other).tobytes() == np.asarray(found).tobytes()
        return np.asarray(found)

    first = slopes()
    assert first.any()
    for own in simulate(2, 4, lambda: random.gamma(KEY, mnp.arange(1.0, 9.0)).sum(), deadline=60):
        assert np.isfinite(float(own))


def test_dtypes_and_edges() -> None:
    a = mnp.asarray([0.5, 2.0], "float32")
    found = meshard.grad(lambda a: random.gamma(KEY, a, dtype="float32").sum())(a)
    assert found.dtype == np.float32
    odd = mnp.asarray([-1.0, np.nan])
    assert np.isnan(np.asarray(meshard.grad(lambda a: random.gamma(KEY, a).sum())(odd))).all()
    with pytest.raises(DerivativeError, match="second derivatives of gamma numbers"):
        meshard.grad(meshard.grad(lambda a: random.gamma(KEY, a)))(2.5)
