"""Distributions and independence, with fixed keys: what follows the law passes every time.

Each test asks for a p-value above 1e-4; about one in ten thousand would fail by chance with another
key, and none does with this one.
"""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import scipy.stats as stats

import meshard
import meshard.numpy as mnp
from meshard import random
from meshard.ops.random.keys import DOMAINS
from meshard.ops.random.tiles import TILE
from meshard.sharding import NamedSharding, P
from tests.worlds import alone, mesh

LEAST = 1e-4
KEY = random.key(2024)
SHAPE = (40_000,)

CONTINUOUS: dict[str, tuple[Callable[[], Any], Any]] = {
    "uniform": (lambda: random.uniform(KEY, SHAPE), stats.uniform()),
    "uniform float32": (lambda: random.uniform(KEY, SHAPE, "float32"), stats.uniform()),
    "uniform bounds": (lambda: random.uniform(KEY, SHAPE, None, -1, 3), stats.uniform(-1, 4)),
    "normal": (lambda: random.normal(KEY, SHAPE), stats.norm()),
    "normal float32": (lambda: random.normal(KEY, SHAPE, "float32"), stats.norm()),
    "exponential": (lambda: random.exponential(KEY, SHAPE), stats.expon()),
    "exponential float32": (lambda: random.exponential(KEY, SHAPE, "float32"), stats.expon()),
    "gamma": (lambda: random.gamma(KEY, 2.5, SHAPE), stats.gamma(2.5)),
    "gamma small": (lambda: random.gamma(KEY, 0.1, SHAPE), stats.gamma(0.1)),
    "gamma large": (lambda: random.gamma(KEY, 1e5, SHAPE), stats.gamma(1e5)),
    "loggamma": (lambda: random.loggamma(KEY, 0.5, SHAPE), stats.loggamma(0.5)),
    "beta": (lambda: random.beta(KEY, 2.0, 0.5, SHAPE), stats.beta(2, 0.5)),
    "chisquare": (lambda: random.chisquare(KEY, 3, SHAPE), stats.chi2(3)),
    "f": (lambda: random.f(KEY, 3, 5, SHAPE), stats.f(3, 5)),
    "t": (lambda: random.t(KEY, 3, SHAPE), stats.t(3)),
    "cauchy": (lambda: random.cauchy(KEY, SHAPE), stats.cauchy()),
    "laplace": (lambda: random.laplace(KEY, SHAPE), stats.laplace()),
    "logistic": (lambda: random.logistic(KEY, SHAPE), stats.logistic()),
    "maxwell": (lambda: random.maxwell(KEY, SHAPE), stats.maxwell()),
    "gumbel": (lambda: random.gumbel(KEY, SHAPE), stats.gumbel_r()),
    "pareto": (lambda: random.pareto(KEY, 3.0, SHAPE), stats.pareto(3)),
    "rayleigh": (lambda: random.rayleigh(KEY, 3.0, SHAPE), stats.rayleigh(scale=3)),
    "wald": (lambda: random.wald(KEY, 3.0, SHAPE), stats.invgauss(3)),
    "weibull_min": (
        lambda: random.weibull_min(KEY, 3.0, 2.0, SHAPE),
        stats.weibull_min(2, scale=3),
    ),
    "triangular": (lambda: random.triangular(KEY, 1.0, 2.0, 5.0, SHAPE), stats.triang(0.25, 1, 4)),
    "lognormal": (lambda: random.lognormal(KEY, 0.5, SHAPE), stats.lognorm(0.5)),
    "generalized_normal": (lambda: random.generalized_normal(KEY, 3.0, SHAPE), stats.gennorm(3)),
    "truncated_normal": (
        lambda: random.truncated_normal(KEY, -0.5, 2.0, SHAPE),
        stats.truncnorm(-0.5, 2),
    ),
    "truncated_normal tail": (
        lambda: random.truncated_normal(KEY, 8.0, 9.0, SHAPE),
        stats.truncnorm(8, 9),
    ),
    "ball": (
        lambda: mnp.sum(random.ball(KEY, 3, shape=SHAPE) ** 2, axis=-1) ** 1.5,
        stats.uniform(),
    ),
    "ball of p 1": (
        lambda: mnp.sum(mnp.abs(random.ball(KEY, 3, 1, SHAPE)), axis=-1) ** 3,
        stats.uniform(),
    ),
    "double_sided_maxwell": (
        lambda: mnp.abs(random.double_sided_maxwell(KEY, 0.0, 1.0, SHAPE)),
        stats.maxwell(),
    ),
    "orthogonal": (
        lambda: random.orthogonal(KEY, 3, (4000,))[:, 0, 0] ** 2,
        stats.beta(0.5, 1.0),
    ),
    "complex normal": (
        lambda: mnp.imag(random.normal(KEY, SHAPE, complex)),
        stats.norm(scale=0.5**0.5),
    ),
}

DISCRETE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "bits": (lambda: random.bits(KEY, SHAPE, "uint8"), lambda k: (k < 256) / 256),
    "bits high": (
        lambda: random.bits(KEY, SHAPE, "uint32") >> np.uint32(24),
        lambda k: (k < 256) / 256,
    ),
    "randint": (lambda: random.randint(KEY, SHAPE, 0, 13), lambda k: (k < 13) / 13),
    "randint bytes": (
        lambda: random.randint(KEY, SHAPE, 0, 200, "uint8"),
        lambda k: (k < 200) / 200,
    ),
    "randint wide": (
        # Bounds of 3/4 of the range: a plain remainder would give the low third twice as often.
        lambda: random.randint(KEY, SHAPE, 0, 3 << 62, "uint64") >> np.uint64(60),
        lambda k: (k < 12) / 12,
    ),
    "bernoulli": (lambda: random.bernoulli(KEY, 0.3, SHAPE), stats.bernoulli(0.3).pmf),
    "rademacher": (lambda: (random.rademacher(KEY, SHAPE) + 1) // 2, stats.bernoulli(0.5).pmf),
    "geometric": (lambda: random.geometric(KEY, 0.2, SHAPE), stats.geom(0.2).pmf),
    "poisson small": (lambda: random.poisson(KEY, 0.1, SHAPE), stats.poisson(0.1).pmf),
    "poisson": (lambda: random.poisson(KEY, 40.0, SHAPE), stats.poisson(40).pmf),
    "poisson arrays": (
        lambda: random.poisson(random.key(1), mnp.full(SHAPE, 9.0)),
        stats.poisson(9).pmf,
    ),
    "binomial": (lambda: random.binomial(KEY, 20, 0.3, SHAPE), stats.binom(20, 0.3).pmf),
    "categorical": (
        lambda: random.categorical(KEY, np.log([0.1, 0.2, 0.3, 0.4]), shape=SHAPE),
        lambda k: (k + 1) / 10 * (k < 4),
    ),
    "choice": (lambda: random.choice(KEY, 5, SHAPE), lambda k: (k < 5) / 5),
    "choice p": (
        lambda: random.choice(KEY, 4, SHAPE, p=np.array([0.1, 0.2, 0.3, 0.4])),
        lambda k: (k + 1) / 10 * (k < 4),
    ),
    "permutation": (
        # Where the first of 4 goes.
        lambda: mnp.argmin(
            random.permutation(KEY, np.tile(np.arange(4), (*SHAPE, 1)), 1, independent=True), axis=1
        ),
        lambda k: (k < 4) / 4,
    ),
    "multinomial": (
        lambda: random.multinomial(KEY, 12, np.array([0.2, 0.3, 0.5]), shape=(*SHAPE, 3))[:, 1],
        stats.binom(12, 0.3).pmf,
    ),
}


def test_every_distribution_has_a_law() -> None:
    """It is one of NumPy's or SciPy's, above, or has a test of its own below."""
    below = {"dirichlet", "multivariate_normal"}
    not_one = {"split", "fold_in"}
    tested = {name.split()[0] for name in (*CONTINUOUS, *DISCRETE)}
    assert set(DOMAINS) - tested - below - not_one == set(), "give it a law above"


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_distributions(name: str) -> None:
    draw, law = CONTINUOUS[name]
    assert stats.kstest(np.asarray(draw(), np.float64), law.cdf).pvalue > LEAST


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_distributions(name: str) -> None:
    draw, law = DISCRETE[name]
    x = np.asarray(draw()).astype(np.int64)
    assert x.min() >= 0
    values = np.arange(max(260, int(x.max()) + 1))
    expected = np.asarray(law(values), np.float64) * x.size
    seen = np.bincount(x, minlength=values.size).astype(np.float64)
    assert not seen[expected == 0].any()
    often = expected >= 5
    rest = max(x.size - expected[often].sum(), 0.0)
    if rest > 5:
        seen = np.append(seen[often], seen[~often].sum())
        expected = np.append(expected[often], rest)
    else:
        seen, expected = seen[often], expected[often] * seen[often].sum() / expected[often].sum()
    assert stats.chisquare(seen, expected).pvalue > LEAST


def test_every_order_of_a_permutation_comes_up() -> None:
    keys = random.split(KEY, 1200)
    orders = [tuple(random.permutation(keys[i], 3).tolist()) for i in range(1200)]
    seen = [orders.count(o) for o in sorted(set(orders))]
    assert len(seen) == 6
    assert stats.chisquare(seen).pvalue > LEAST


def test_samples_without_replacement_follow_their_probabilities() -> None:
    p = np.array([0.5, 0.3, 0.2])
    keys = random.split(KEY, 1200)
    firsts = [random.choice(keys[i], 3, (2,), False, p).tolist() for i in range(1200)]
    seen = [[f[0] for f in firsts].count(k) for k in range(3)]
    assert stats.chisquare(seen, p * 1200).pvalue > LEAST
    seconds = [f[1] for f in firsts if f[0] == 0]
    expected = np.array([0.6, 0.4]) * len(seconds)
    assert stats.chisquare([seconds.count(1), seconds.count(2)], expected).pvalue > LEAST


def test_dirichlet_and_multivariate_normal_have_their_moments() -> None:
    x = np.asarray(random.dirichlet(KEY, np.array([1.0, 2.0, 3.0]), (20_000,)))
    np.testing.assert_allclose(x.sum(axis=1), 1, atol=1e-12)
    assert stats.kstest(x[:, 1], stats.beta(2, 4).cdf).pvalue > LEAST
    mean, cov = np.array([1.0, -2.0]), np.array([[2.0, 1.0], [1.0, 3.0]])
    for method in ("cholesky", "eigh", "svd"):
        y = np.asarray(random.multivariate_normal(KEY, mean, cov, (20_000,), method=method))
        z = np.linalg.solve(np.linalg.cholesky(cov), (y - mean).T)
        assert abs(np.corrcoef(z)[0, 1]) < 0.03
        for row in z:
            assert stats.kstest(row, "norm").pvalue > LEAST


def independent(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether the correlation of two samples is what chance gives, in 5 standard deviations."""
    return bool(abs(np.corrcoef(x.ravel(), y.ravel())[0, 1]) < 5 / np.sqrt(x.size))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_consecutive_tiles_and_neighbours_are_uncorrelated(dtype: str) -> None:
    for draw in (random.normal, random.uniform, random.exponential):
        x = np.asarray(draw(KEY, (4 * TILE,), dtype)).astype(np.float64)
        tiles = x.reshape(4, TILE)
        assert all(independent(a, b) for a, b in combinations(tiles, 2))
        for step in (1, 2, 4, TILE // 2, TILE):
            assert independent(x[:-step], x[step:])


def test_the_two_halves_of_a_normal_tile_are_independent() -> None:
    # Both come of the same uniform numbers: squares and signs must not tell of each other either.
    x = np.asarray(random.normal(KEY, (TILE,), "float32")).astype(np.float64).reshape(2, -1)
    assert independent(x[0] ** 2, x[1] ** 2)
    assert independent(np.abs(x[0]), np.abs(x[1]))
    assert independent(x[0] * np.abs(x[1]), x[1])
    assert stats.kstest(np.arctan2(x[1], x[0]), stats.uniform(-np.pi, 2 * np.pi).cdf).pvalue > LEAST


def test_shards_are_uncorrelated() -> None:
    def body() -> list[np.ndarray]:
        place = NamedSharding(mesh(), P("i", "j"))
        x = random.normal(KEY, (256, 256), out_sharding=place)
        return [np.asarray(s.data) for s in x.addressable_shards]

    shards = alone(body)
    assert len(shards) == 8
    assert all(independent(a, b) for a, b in combinations(shards, 2))


def test_devices_that_fold_in_their_place_are_uncorrelated() -> None:
    def body() -> np.ndarray:
        def own(key: Any) -> Any:
            return random.normal(random.fold_in(key, meshard.lax.axis_index("i")), (1, 8192))

        run = meshard.shard_map(own, mesh=mesh(), in_specs=P(), out_specs=P("i"))
        return np.asarray(run(KEY))

    assert all(independent(a, b) for a, b in combinations(alone(body), 2))


def test_sibling_keys_and_neighbouring_seeds_are_uncorrelated() -> None:
    keys = random.split(KEY, 4)
    siblings = [keys[i] for i in range(4)]
    folded = [random.fold_in(KEY, i) for i in range(4)]
    seeds = [random.key(i) for i in range(4)]
    drawn = [np.asarray(random.normal(k, (20_000,))) for k in [*siblings, *folded, *seeds]]
    assert all(independent(a, b) for a, b in combinations(drawn, 2))
    # One number of each of many keys, as a loop over steps draws it.
    many = random.split(KEY, 2000)
    firsts = np.array([random.uniform(many[i]).item() for i in range(2000)])
    assert stats.kstest(firsts, "uniform").pvalue > LEAST
    assert independent(firsts[:-1], firsts[1:])
    bits = np.asarray(random.key_data(random.split(KEY, 20_000))).view(np.uint8)
    assert stats.chisquare(np.bincount(bits.ravel(), minlength=256)).pvalue > LEAST


def test_every_bit_of_a_word_is_fair() -> None:
    words = np.asarray(random.bits(KEY, (100_000,)))
    ones = [int((words >> np.uint64(i) & np.uint64(1)).sum()) for i in range(64)]
    assert all(stats.binomtest(n, 100_000).pvalue > LEAST / 64 for n in ones)
