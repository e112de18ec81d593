"""Programs made at random: in `jit` they give what they give outside, whatever the layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import lax, nn, random
from meshard.runtime.simulated import simulate
from meshard.sharding import NamedSharding, P
from tests.worlds import alone, mesh, put, whole

SPECS = ((), ("i",), ("j",), (None, "i"), ("i", "j"), (("i", "j"),), (None, ("j", "i")), ("j", "i"))
STEPS: tuple[Callable[[Any, Any, int], Any], ...] = (
    lambda a, b, n: a @ b / 64,
    lambda a, b, n: mnp.tanh(a / 8) * b,
    lambda a, b, n: mnp.sort(a, axis=n % 2),
    lambda a, b, n: mnp.cumsum(a, axis=n % 2) / 8,
    lambda a, b, n: lax.fori_loop(0, n % 3, lambda i, c: c + b * i, a),
    lambda a, b, n: lax.scan(lambda c, r: (c + r, c * r / 64), a[0], b)[1],
    lambda a, b, n: lax.cond(a.sum() > b.sum(), lambda u, w: u - w, lambda u, w: w.T, a, b),
    lambda a, b, n: a + random.normal(random.key(n), (8, 8)),
    lambda a, b, n: mnp.concatenate([a[4:], b[:4]], axis=0),
    lambda a, b, n: lax.with_sharding_constraint(a, NamedSharding(mesh(), P(*SPECS[n]))) * 1.5,
    lambda a, b, n: meshard.shard_map(
        lambda u: u + lax.psum(u, "i") / 8, mesh=mesh(), in_specs=P("i", "j"), out_specs=P("i", "j")
    )(a),
    lambda a, b, n: a.T + mnp.arange(8.0),
    lambda a, b, n: a.at[n:].set(b[n:]),
    lambda a, b, n: mnp.where(a > b, a, mnp.zeros_like(b)),
    lambda a, b, n: a - a.mean(axis=0, keepdims=True),
    lambda a, b, n: mnp.take(a, mnp.argsort(b[:, 0]), axis=0),
    lambda a, b, n: mnp.fft.fft2(a).real / 64,
    lambda a, b, n: mnp.roll(a, (1, 2), (0, 1)) + nn.softmax(b, axis=n % 2),
    lambda a, b, n: lax.while_loop(lambda c: mnp.abs(c).sum() > 50, lambda c: c / 2, a),
    lambda a, b, n: a.reshape(4, 16).reshape(8, 8)[::-1],
    lambda a, b, n: lax.dynamic_update_slice(a, b[:3, :3], (a.argmax() % 4, 1)),
    lambda a, b, n: mnp.linalg.solve(b @ b.T / 64 + mnp.eye(8) * 10, a),
)


def check(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = rng.integers(1, 8)
    steps, chosen = rng.integers(0, len(STEPS), count), rng.integers(0, 8, (count, 3)).tolist()
    first, second = SPECS[rng.integers(8)], SPECS[rng.integers(8)]
    values = rng.standard_normal((2, 8, 8))

    def f(x: Any, y: Any) -> Any:
        found = [x, y]
        for step, (one, other, n) in zip(steps, chosen, strict=True):
            found.append(STEPS[step](found[one % len(found)], found[other % len(found)], n))
        return found[2:], found[-1].sum(), mnp.unique(mnp.round(found[-1]), size=5)

    x, y = put(values[0], *first), put(values[1], *second)
    lies = None if rng.random() < 0.5 else NamedSharding(mesh(), P(*SPECS[rng.integers(4)][:0]))
    expected = meshard.tree.leaves(f(x, y))
    found = meshard.tree.leaves(meshard.jit(f, out_shardings=lies)(x, y))
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(whole(a), whole(b), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("first", [0, 15, 30, 45])
def test_in_one_process(first: int) -> None:
    for seed in range(first, first + 15):
        alone(lambda seed=seed: check(seed))


@pytest.mark.parametrize("first", [100, 220, 540, 640])
def test_in_two_processes(first: int) -> None:
    for seed in range(first, first + 8):
        simulate(2, 4, lambda seed=seed: check(seed), deadline=30)
