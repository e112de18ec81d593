"""Random numbers depend on the key, the function, the shape and the dtype, and on nothing else."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import random
from meshard.errors import NotAddressableError, ShardingError
from meshard.ops.random.tiles import Request
from meshard.sharding import NamedSharding, P, SingleDeviceSharding
from tests.worlds import everywhere, in_worlds, mesh, put, whole

SPECS = [P(), P("i"), P(None, "j"), P("i", "j"), P("j", "i"), P(("i", "j")), P(None, ("j", "i"))]
PINNED: dict[str, Any] = {
    "bits": [7875269822477881160, 15546435826145130755],
    "bytes": [72, 207, 37],
    "split": [[3522724221, 1298302990], [812803766, 1556642174]],
    "fold_in": [3072352454, 2740532804],
    "randint": [35, 74, 89, 32],
    "normal": [0.1898500442945238, -0.823019556581512],
    "float32": [0.11450808495283127, -0.9627259969711304],
}
BASIC: dict[str, Callable[..., Any]] = {
    "bits": random.bits,
    "uniform": random.uniform,
    "normal": random.normal,
    "exponential": random.exponential,
    "randint": lambda key, shape, **more: random.randint(key, shape, -5, 1000, **more),
    "gamma": lambda key, shape, **more: random.gamma(key, 0.7, shape, **more),
    "bernoulli": lambda key, shape, **more: random.bernoulli(key, 0.3, shape, **more),
    "gumbel": random.gumbel,
    "wald": lambda key, shape, **more: random.wald(key, 2.0, shape, **more),
    "poisson": lambda key, shape, **more: random.poisson(key, 4.0, shape, **more),
    "truncated_normal": lambda key, shape, **more: random.truncated_normal(
        key, -1.0, 2.0, shape, **more
    ),
    "beta": lambda key, shape, **more: random.beta(key, 2.0, 3.0, shape, **more),
    "t": lambda key, shape, **more: random.t(key, 3.0, shape, **more),
}


@pytest.mark.parametrize("name", BASIC)
def test_every_sharding_holds_the_same_numbers(name: str) -> None:
    function = BASIC[name]

    def body() -> list[np.ndarray]:
        expected = whole(function(random.key(1), (24, 16)))
        for spec in SPECS:
            x = function(random.key(1), (24, 16), out_sharding=NamedSharding(mesh(), spec))
            assert x.sharding.is_equivalent_to(NamedSharding(mesh(), spec), 2)
            assert x.committed
            np.testing.assert_array_equal(whole(x), expected)
        return [expected]

    everywhere(body)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_many_tiles_hold_the_same_numbers_on_any_layout(dtype: str) -> None:
    shape = (300, 700)  # four tiles, which no layout below is cut like

    def body() -> np.ndarray:
        expected = whole(random.normal(random.key(2), shape, dtype))
        for spec in (P("i"), P(None, "j"), P("j", "i"), P(("i", "j"))):
            place = NamedSharding(mesh(), spec, uneven="balanced")
            x = random.normal(random.key(2), shape, dtype, out_sharding=place)
            np.testing.assert_array_equal(whole(x), expected)
        cuts = ((0, 1, 7, 299, 300), None)
        odd = NamedSharding(mesh(), P("i"), uneven=cuts)
        x = random.normal(random.key(2), shape, dtype, out_sharding=odd)
        np.testing.assert_array_equal(whole(x), expected)
        return expected.view(np.uint8)

    everywhere(body)


def test_large_arrays_are_drawn_on_the_workers_alike() -> None:
    def body() -> list[np.ndarray]:
        results = []
        for name in ("normal", "uniform", "exponential", "bits"):
            more = {} if name == "bits" else {"dtype": "float32"}
            small = getattr(random, name)(random.key(3), (1024, 768), **more)
            spread = NamedSharding(mesh(), P("i", "j"))
            large = getattr(random, name)(random.key(3), (1024, 768), out_sharding=spread, **more)
            np.testing.assert_array_equal(whole(large), whole(small))
            results.append(whole(small)[::97, ::89].copy())
        return results

    everywhere(body)


@in_worlds
def test_a_process_makes_only_its_own_pieces() -> None:
    x = random.normal(random.key(0), (8, 4), out_sharding=NamedSharding(mesh(), P("i", "j")))
    held = [b is not None for b in x._live()]
    assert sum(held) == len(x.addressable_shards)
    assert {s.data.shape for s in x.addressable_shards} == {(2, 2)}


@in_worlds
def test_parameters_may_be_arrays_on_any_layout() -> None:
    a = np.linspace(0.2, 5, 64).reshape(16, 4)
    key = random.key(4)
    for draw in (
        lambda p: random.gamma(key, p),
        lambda p: random.beta(key, p, 2.0),
        lambda p: random.poisson(key, p),
        lambda p: random.binomial(key, 20, p / 5),
        lambda p: random.uniform(key, (16, 4), minval=-p, maxval=p),
        lambda p: random.truncated_normal(key, -p, p),
        lambda p: random.chisquare(key, p),
        lambda p: random.randint(key, (16, 4), 0, (p * 10).astype(int)),
        lambda p: random.bernoulli(key, p / 5),
        lambda p: random.categorical(key, p),
        lambda p: random.categorical(key, p, shape=(3, 16)),
        lambda p: random.wald(key, p),
        lambda p: random.dirichlet(key, p),
        lambda p: random.permutation(key, p, independent=True),
        lambda p: random.generalized_normal(key, p, (16, 4)),
    ):
        expected = whole(draw(mnp.asarray(a)))
        for spec in (("i",), ("i", "j"), (None, "j")):
            np.testing.assert_array_equal(whole(draw(put(a, *spec))), expected)


@in_worlds
def test_every_function_with_out_sharding_lies_as_asked() -> None:
    key, cov = random.key(4), np.array([[2.0, 1.0], [1.0, 3.0]])
    draws: list[tuple[Callable[..., Any], P]] = [
        (lambda **more: random.permutation(key, 40, **more), P(("i", "j"))),
        (lambda **more: random.permutation(key, np.arange(40.0), **more), P("i")),
        (lambda **more: random.permutation(key, np.ones((8, 4)), 1, True, **more), P("i", "j")),
        (lambda **more: random.categorical(key, np.zeros((8, 3)), **more), P("i")),
        (lambda **more: random.categorical(key, np.zeros(3), shape=(8, 4), **more), P("i", "j")),
        (lambda **more: random.dirichlet(key, np.ones(4), (8,), **more), P("i", "j")),
        (lambda **more: random.ball(key, 4, shape=(8,), **more), P("i", "j")),
        (lambda **more: random.ball(key, 4, np.inf, (8,), **more), P("i")),
        (
            lambda **more: random.multivariate_normal(key, np.ones(2), cov, (8,), **more),
            P("i", "j"),
        ),
        (lambda **more: random.orthogonal(key, 4, (8,), **more), P("i", "j")),
        (lambda **more: random.generalized_normal(key, 2.5, (8,), **more), P("i")),
        (lambda **more: random.f(key, 2.0, np.ones(8), **more), P("i")),
        (lambda **more: random.uniform(key, (8,), minval=-np.ones(8), **more), P("i")),
        (lambda **more: random.randint(key, (8,), np.zeros(8, int), 9, **more), P("i")),
        (lambda **more: random.lognormal(key, np.ones(8), dtype="complex64", **more), P("i")),
        (lambda **more: random.truncated_normal(key, -1, 1, (8,), "float16", **more), P("i")),
    ]
    for draw, spec in draws:
        expected = whole(draw())
        x = draw(out_sharding=NamedSharding(mesh(), spec))
        assert x.sharding.is_equivalent_to(NamedSharding(mesh(), spec), x.ndim)
        np.testing.assert_array_equal(whole(x), expected)


@in_worlds
def test_split_arrays_are_permuted_and_chosen_from() -> None:
    key, x, p = random.key(4), np.arange(96.0).reshape(24, 4), np.arange(1.0, 25.0)
    for spec in (("i",), (("i", "j"),), (None, "j")):
        for draw in (
            lambda v: random.permutation(key, v),
            lambda v: random.permutation(key, v, 1),
            lambda v: random.choice(key, v, (6,)),
            lambda v: random.choice(key, v, (6,), False),
            lambda v: random.choice(key, v, (2, 3), axis=1),
        ):
            np.testing.assert_array_equal(whole(draw(put(x, *spec))), whole(draw(x)))
    for replace in (True, False):
        found = random.choice(key, 24, (5,), replace, put(p, "i"))
        np.testing.assert_array_equal(whole(found), whole(random.choice(key, 24, (5,), replace, p)))


@pytest.mark.parametrize(
    "draw",
    [
        lambda key, of: random.uniform(key, (50,), minval=of(-2.0), maxval=of(3.0)),
        lambda key, of: random.gamma(key, of(0.4), (50,)),
        lambda key, of: random.poisson(key, of(7.5), (50,)),
        lambda key, of: random.poisson(key, of(5000.0), (50,)),
        lambda key, of: random.binomial(key, of(30.0), of(0.25), (50,)),
        lambda key, of: random.geometric(key, of(0.25), (50,)),
        lambda key, of: random.triangular(key, of(0.0), of(1.0), of(5.0), (50,)),
        lambda key, of: random.weibull_min(key, of(2.0), of(3.0), (50,)),
        lambda key, of: random.truncated_normal(key, of(6.0), of(7.0), (50,)),
        lambda key, of: random.bernoulli(key, of(0.4), (50,)),
        lambda key, of: random.pareto(key, of(3.0), (50,)),
        lambda key, of: random.lognormal(key, of(0.5), (50,)),
    ],
)
def test_numbers_and_arrays_as_parameters_give_the_same(draw: Callable[..., Any]) -> None:
    key = random.key(5)
    plain = np.asarray(draw(key, float))
    np.testing.assert_array_equal(np.asarray(draw(key, mnp.asarray)), plain)
    np.testing.assert_array_equal(np.asarray(draw(key, lambda v: mnp.full(50, v))), plain)


def test_randint_with_array_bounds() -> None:
    key = random.key(5)
    for low, high in ((-3, 10), (0, 1 << 40), (-(1 << 62), 1 << 62), (7, 7), (7, 2)):
        plain = random.randint(key, (50,), low, high)
        arrays = random.randint(key, (50,), mnp.full(50, low), high)
        np.testing.assert_array_equal(np.asarray(arrays), np.asarray(plain))
    bytes_ = random.randint(key, (500,), mnp.full(500, -1000), 1000, "int8")
    assert (int(bytes_.min()), int(bytes_.max())) == (-128, 127)
    unsigned = random.randint(key, (500,), mnp.full(500, -4), mnp.full(500, 3), "uint64")
    assert (int(unsigned.min()), int(unsigned.max())) == (0, 2)


@in_worlds
def test_numbers_lie_where_the_key_is() -> None:
    alone = random.normal(random.key(0), (8,))
    assert isinstance(alone.sharding, SingleDeviceSharding)
    assert not alone.committed
    spread = meshard.device_put(random.key(0), NamedSharding(mesh(), P()))
    x = random.normal(spread, (8,))
    assert x.is_fully_replicated
    assert x.committed
    assert x.sharding.num_devices == 8
    np.testing.assert_array_equal(whole(x), whole(alone))
    raw = meshard.device_put(random.PRNGKey(0), NamedSharding(mesh(), P()))
    np.testing.assert_array_equal(whole(random.normal(raw, (8,))), whole(alone))
    mine = meshard.device_put(random.key(0), meshard.local_devices()[-1])
    assert random.normal(mine, (8,)).devices() == {meshard.local_devices()[-1]}


def test_a_spec_needs_a_mesh_and_takes_the_one_that_is_set() -> None:
    with pytest.raises(ShardingError, match="needs a mesh"):
        random.normal(random.key(0), (8,), out_sharding=P("i"))
    with mesh():
        x = random.normal(random.key(0), (8,), out_sharding=P("i"))
    assert x.sharding == NamedSharding(mesh(), P("i"))


def test_a_shape_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ShardingError, match=r"normal|divide|divisible"):
        random.normal(random.key(0), (9,), out_sharding=NamedSharding(mesh(), P("i")))


@pytest.mark.halves
@in_worlds
def test_a_key_that_others_hold_is_refused() -> None:
    keys = meshard.device_put(random.split(random.key(0), 8), NamedSharding(mesh(), P(("i", "j"))))
    first = meshard.device_put(keys, NamedSharding(mesh(), P()))[0]
    whole(random.normal(first, (3,)))
    words = meshard.device_put(random.PRNGKey(3), NamedSharding(mesh((2, 4)), P("i")))
    place = NamedSharding(mesh(), P("i"))
    if meshard.process_count() == 1:
        np.testing.assert_array_equal(
            whole(random.normal(words, (4,), out_sharding=place)),
            whole(random.normal(random.key(3), (4,))),
        )
    else:
        with pytest.raises(NotAddressableError, match="every process needs the key"):
            random.normal(words, (4,), out_sharding=place)


def test_no_two_functions_share_numbers() -> None:
    key = random.key(6)
    u = np.asarray(random.uniform(key, (2000,)))
    for other in (
        random.normal(key, (2000,)),
        random.exponential(key, (2000,)),
        random.laplace(key, (2000,)),
        random.uniform(random.fold_in(key, 0), (2000,)),
        random.uniform(random.split(key)[0], (2000,)),
    ):
        assert abs(np.corrcoef(u, np.asarray(other))[0, 1]) < 0.1


def test_empty_and_scalar_shapes() -> None:
    key = random.key(0)
    for name, function in BASIC.items():
        assert function(key, (0, 3)).shape == (0, 3), name
        assert function(key, ()).shape == (), name
        assert function(key, ()).item() == function(key, (1, 1)).item(), name
        assert function(key, (5,)).shape == (5,), name
    assert random.normal(key, 3).shape == (3,)


def test_a_draw_is_repeatable_and_keys_differ() -> None:
    first = np.asarray(random.normal(random.key(0), (100,)))
    np.testing.assert_array_equal(first, np.asarray(random.normal(random.PRNGKey(0), (100,))))
    assert not np.any(first == np.asarray(random.normal(random.key(1), (100,))))


def test_the_numbers_of_a_key_do_not_change() -> None:
    """Pinned: programs count on them from version to version."""
    key = random.key(42)
    assert np.asarray(random.bits(key, (2,))).tolist() == PINNED["bits"]
    assert np.asarray(random.bits(key, (3,), "uint8")).tolist() == PINNED["bytes"]
    assert np.asarray(random.key_data(random.split(key))).tolist() == PINNED["split"]
    assert np.asarray(random.key_data(random.fold_in(key, 7))).tolist() == PINNED["fold_in"]
    assert np.asarray(random.randint(key, (4,), 0, 100)).tolist() == PINNED["randint"]
    np.testing.assert_allclose(np.asarray(random.normal(key, (2,))), PINNED["normal"], rtol=1e-12)
    np.testing.assert_allclose(
        np.asarray(random.normal(key, (2,), "float32")), PINNED["float32"], rtol=1e-5
    )


@in_worlds
def test_each_device_draws_its_own_numbers_in_shard_map() -> None:
    places = np.arange(4)

    def body(key: Any) -> Any:
        own = random.fold_in(key, meshard.lax.axis_index("i"))
        return random.normal(own, (2, 3)), random.gamma(own, 1.5, (2,)), random.split(own, 1)

    run = meshard.shard_map(body, mesh=mesh(), in_specs=P(), out_specs=P("i"))
    for key in (random.key(8), random.PRNGKey(8)):
        numbers, gammas, keys = run(key)
        assert numbers.shape == (8, 3)
        owns = [random.fold_in(key, int(i)) for i in places]
        np.testing.assert_array_equal(
            whole(numbers), np.concatenate([whole(random.normal(k, (2, 3))) for k in owns])
        )
        np.testing.assert_array_equal(
            whole(gammas), np.concatenate([whole(random.gamma(k, 1.5, (2,))) for k in owns])
        )
        words = whole(random.key_data(keys))
        np.testing.assert_array_equal(
            words, np.concatenate([whole(random.key_data(random.split(k, 1))) for k in owns])
        )


def test_each_device_takes_one_of_many_keys_in_shard_map() -> None:
    keys = random.split(random.key(9), 8)
    run = meshard.shard_map(
        lambda k: random.uniform(k[0], (1,)),
        mesh=mesh(),
        in_specs=P(("i", "j")),
        out_specs=P(("i", "j")),
    )
    expected = [whole(random.uniform(keys[i], (1,)))[0] for i in range(8)]
    np.testing.assert_array_equal(whole(run(keys)), expected)


def test_out_sharding_is_refused_inside_shard_map() -> None:
    place = NamedSharding(mesh(), P("i"))
    for draw in (
        lambda key: random.normal(key, (4,), out_sharding=place),
        lambda key: random.gamma(key, 2.0, (4,), out_sharding=place),
        lambda key: random.permutation(key, 4, out_sharding=place),
        lambda key: random.categorical(key, np.zeros(4), out_sharding=place),
        lambda key: random.orthogonal(key, 4, out_sharding=place),
    ):
        run = meshard.shard_map(draw, mesh=mesh(), in_specs=P(), out_specs=P())
        with pytest.raises(ShardingError, match="no meaning inside a transformed function"):
            run(random.key(0))


def test_drawn_reads_no_key_that_no_piece_needs() -> None:
    x = Request("bits", random.key(0), (0,), np.dtype(np.uint64)).drawn("bits")
    assert x.shape == (0,)
