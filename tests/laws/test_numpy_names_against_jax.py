"""Functions that are made of others are derived, mapped and run in bodies as JAX's are.

Gradients are those of JAX, of arrays that are split unevenly, eager and jitted; `vmap` and
`shard_map` give what JAX's `vmap` gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard.sharding import NamedSharding, P
from tests.worlds import alone, mesh

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

RNG = np.random.default_rng(0)
V, K = RNG.normal(size=13), RNG.normal(size=4)
EDGES = np.cumsum(RNG.uniform(0.1, 1, 6))
TWO = np.array([2, 5])

OF_TWO: dict[str, Callable[[Any, Any, Any], Any]] = {
    "convolve": lambda xp, v, k: (xp.convolve(v, k, "same") ** 2).sum(),
    "correlate": lambda xp, v, k: (xp.correlate(v, k, "full") ** 3).sum(),
    "gradient": lambda xp, v, k: (xp.gradient(v, 0.5) ** 2).sum(),
    "interp": lambda xp, v, k: xp.interp(v, EDGES, np.sin(EDGES) * k[0], period=9.0).sum(),
    "insert": lambda xp, v, k: (xp.insert(v, TWO, k[:2]) ** 2).sum(),
    "delete": lambda xp, v, k: (xp.delete(v, TWO) ** 3).sum(),
    "polyfit": lambda xp, v, k: (xp.polyfit(v, v**3, 2) ** 2).sum(),
    "quantile": lambda xp, v, k: xp.quantile(v, 0.3) * k[1],
    "nanmedian": lambda xp, v, k: xp.nanmedian(v) * k[0],
    "unwrap": lambda xp, v, k: (xp.unwrap(v * 3) ** 2).sum(),
    "sinc": lambda xp, v, k: xp.sinc(v).sum(),
    "reduce": lambda xp, v, k: xp.multiply.reduce(v),
    "block": lambda xp, v, k: (xp.block([v, k]) ** 2).sum(),
    "pad": lambda xp, v, k: (xp.pad(v, 3, "reflect", reflect_type="odd") ** 2).sum(),
    "lexsort": lambda xp, v, k: (v[xp.lexsort((v,))] * np.arange(13)).sum(),
    "polymul": lambda xp, v, k: xp.polyval(xp.polymul(k, k, trim_leading_zeros=False), v).sum(),
    "cov": lambda xp, v, k: xp.cov(v, v**2)[0, 1],
}
"""From two arrays to a number."""

OF_ONE: dict[str, Callable[[Any, Any], Any]] = {
    "convolve": lambda xp, v: xp.convolve(v, K),
    "gradient": lambda xp, v: xp.gradient(v),
    "nanquantile": lambda xp, v: xp.nanquantile(v, 0.3),
    "delete": lambda xp, v: xp.delete(v, 2),
    "insert": lambda xp, v: xp.insert(v, 2, 5.0),
    "unwrap": lambda xp, v: xp.unwrap(v),
    "apply_along_axis": lambda xp, v: xp.apply_along_axis(lambda q: q * 2, 0, v.reshape(3, 3)),
}


def split(value: np.ndarray, *spec: Any) -> Any:
    return meshard.device_put(value, NamedSharding(mesh(), P(*spec), uneven="balanced"))


@pytest.mark.no_job
@pytest.mark.parametrize("name", OF_TWO)
def test_gradients_are_jaxs(name: str) -> None:
    f = OF_TWO[name]
    with jax.enable_x64(True):
        arrays = jnp.asarray(V), jnp.asarray(K)
        wanted = jax.grad(lambda v, k: f(jnp, v, k), argnums=(0, 1))(*arrays)

    def body() -> None:
        own = meshard.grad(lambda v, k: f(mnp, v, k), argnums=(0, 1))
        for run in (own, meshard.jit(own)):
            found = run(split(V, ("i", "j")), split(K, "j"))
            for a, b in zip(found, wanted, strict=True):
                np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6, atol=1e-8)

    alone(body)


@pytest.mark.no_job
@pytest.mark.parametrize("name", OF_ONE)
def test_examples_are_mapped_and_run_in_bodies(name: str) -> None:
    f, rows = OF_ONE[name], RNG.normal(size=(4, 9))
    with jax.enable_x64(True):
        wanted = np.asarray(jax.vmap(lambda v: f(jnp, v))(jnp.asarray(rows)))

    def body() -> None:
        found = meshard.vmap(lambda v: f(mnp, v))(split(rows, None, "i"))
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-9)
        within = meshard.shard_map(
            lambda v: f(mnp, v[0])[None], mesh=mesh(), in_specs=P("i"), out_specs=P("i")
        )
        np.testing.assert_allclose(np.asarray(within(rows)), wanted, rtol=1e-9)

    alone(body)
