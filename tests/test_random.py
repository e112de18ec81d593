"""`meshard.random`: keys, arguments, shapes and dtypes as JAX has them, and every refusal."""

import doctest
import importlib
import inspect
import pickle
import typing
from collections.abc import Callable
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import random
from meshard.errors import ArgumentError, DtypeError, LinAlgError, ShapeError
from meshard.ops.random.table import Formula
from meshard.sharding import NamedSharding, P
from tests.worlds import in_worlds, mesh, whole

KEY = random.key(0)


# keys


def test_a_typed_key_prints_as_in_jax(jax: ModuleType) -> None:
    ours, theirs = random.key(7), jax.random.key(7)
    assert repr(ours) == repr(theirs).replace("fry", "philox")
    assert ours.aval.str_short() == "key<philox>[]"
    assert ours.shape == theirs.shape
    assert ours.nbytes == theirs.nbytes
    zeros = np.zeros((2, 3, 2), np.uint32)
    many, theirs = random.wrap_key_data(zeros), jax.random.wrap_key_data(zeros)
    assert str(many) == str(theirs).replace("fry", "philox")


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**32 + 5, -1, 2**63 + 9, np.uint8(3), True])
def test_a_plain_key_is_the_seed_with_its_high_word_first(seed: Any) -> None:
    words = np.asarray(random.PRNGKey(seed))
    assert words.dtype == np.uint32
    bits = int(seed) % 2**64
    assert words.tolist() == [bits >> 32, bits & 0xFFFFFFFF]
    assert np.asarray(random.key_data(random.key(seed))).tolist() == words.tolist()


def test_small_seeds_are_jaxs(jax: ModuleType) -> None:
    for seed in (0, 1, 12345):
        assert np.asarray(random.PRNGKey(seed)).tolist() == jax.random.PRNGKey(seed).tolist()


def test_words_go_into_typed_keys_and_out() -> None:
    words = np.arange(12, dtype=np.uint32).reshape(3, 2, 2)
    keys = random.wrap_key_data(words)
    assert keys.shape == (3, 2)
    np.testing.assert_array_equal(np.asarray(random.key_data(keys)), words)
    np.testing.assert_array_equal(np.asarray(random.key_data(words)), words)
    assert random.key_dtype() == keys.dtype
    assert random.key_impl(keys) == random.key_impl(words) == "philox4x64"
    assert random.key_data(random.clone(KEY)).tolist() == random.key_data(KEY).tolist()
    assert random.key(3, impl="philox").dtype == random.key(3, dtype=KEY.dtype).dtype


@in_worlds
def test_keys_move_like_any_array() -> None:
    keys = random.split(random.key(0), 8)
    words = whole(random.key_data(keys))
    spread = meshard.device_put(keys, NamedSharding(mesh(), P(("i", "j"))))
    assert {s.data.shape for s in spread.addressable_shards} == {(1,)}
    moved = meshard.device_put(spread, NamedSharding(mesh(), P("j")))
    np.testing.assert_array_equal(whole(random.key_data(moved)), words)
    np.testing.assert_array_equal(
        whole(random.key_data(spread.reshape(2, 4))), words.reshape(2, 4, 2)
    )
    a, b = keys[1], keys[2]
    np.testing.assert_array_equal(whole(random.key_data(mnp.stack([a, b]))), words[1:3])
    both = mnp.concatenate([keys, keys])
    np.testing.assert_array_equal(whole(random.key_data(both)), np.concatenate([words] * 2))
    np.testing.assert_array_equal(whole(random.key_data(mnp.where(False, a, b))), words[2])
    np.testing.assert_array_equal(
        whole(random.key_data(keys.at[0].set(b))), np.concatenate([words[2:3], words[1:]])
    )
    np.testing.assert_array_equal(whole(random.key_data(mnp.take(spread, 3))), words[3])
    assert [k.shape for k in keys] == [()] * 8


@in_worlds
def test_keys_that_span_processes_print_what_is_here() -> None:
    spread = meshard.device_put(random.split(random.key(0), 8), NamedSharding(mesh(), P("i")))
    text = repr(spread)
    assert "dtype=key<philox>" in text
    assert "prng" not in text
    high = random.key_data(spread.addressable_shards[0].data).tolist()[0][0]
    assert str(high) in text


def test_a_typed_key_can_be_pickled() -> None:
    again = pickle.loads(pickle.dumps(KEY))
    assert random.key_data(again).tolist() == random.key_data(KEY).tolist()


def test_split_makes_distinct_keys_that_do_not_depend_on_how_many() -> None:
    words = np.asarray(random.key_data(random.split(KEY, 100_000)))
    values = words[:, 0].astype(np.uint64) << np.uint64(32) | words[:, 1]
    assert np.unique(values).size == values.size
    np.testing.assert_array_equal(np.asarray(random.key_data(random.split(KEY, 3))), words[:3])
    grid = random.key_data(random.split(KEY, (5, 4)))
    np.testing.assert_array_equal(np.asarray(grid).reshape(20, 2), words[:20])
    raw = random.split(random.PRNGKey(0), (5, 4))
    assert (raw.shape, raw.dtype) == ((5, 4, 2), np.uint32)
    np.testing.assert_array_equal(np.asarray(raw), np.asarray(grid))
    assert random.split(KEY, 0).shape == (0,)


def test_fold_in_makes_distinct_keys() -> None:
    def folded(data: Any) -> int:
        high, low = random.key_data(random.fold_in(KEY, data)).tolist()
        return high << 32 | low

    data = [*range(200), 2**32, 2**40 + 1, 2**64 - 1, 2**63]
    values = [folded(d) for d in data]
    assert len(set(values)) == len(values)
    assert folded(-1) == folded(2**64 - 1)
    assert folded(mnp.asarray(5)) == folded(np.int8(5)) == folded(5)
    children = random.key_data(random.split(KEY, 200))
    together = {(a << 32 | b) for a, b in children.tolist()}
    assert not together & set(values)
    raw = random.fold_in(random.PRNGKey(0), 5)
    assert (raw.shape, raw.dtype) == ((2,), np.uint32)
    assert (raw.tolist()[0] << 32 | raw.tolist()[1]) == folded(5)


# as in JAX


def test_every_function_has_jaxs_arguments(jax: ModuleType) -> None:
    for name in random.__all__:
        ours = inspect.signature(getattr(random, name)).parameters
        theirs = inspect.signature(getattr(jax.random, name)).parameters
        renamed = {"impl_spec": "impl"}
        expected = [(renamed.get(n, n), p.kind) for n, p in theirs.items()]
        assert [(n, p.kind) for n, p in ours.items()] == expected, name
        for argument, parameter in theirs.items():
            own = ours[renamed.get(argument, argument)].default
            assert own == parameter.default or own is parameter.default, (name, argument)


def test_every_function_of_jax_is_here(jax: ModuleType) -> None:
    theirs = {n for n in dir(jax.random) if not n.startswith("_")}
    functions = {n for n in theirs if inspect.isfunction(getattr(jax.random, n))}
    assert functions - {"random_gamma_p"} <= set(random.__all__)


def test_a_formula_needs_a_number_for_its_streams() -> None:
    formula = Formula(lambda u: u)
    with pytest.raises(AssertionError, match=r"own: give it a number, at the end of .*DOMAINS"):
        formula.register("own", 0)


def test_the_door_lists_what_it_imports() -> None:
    brought: dict[str, Any] = {}
    exec("from meshard.random import *", brought)
    listed = [n for n in brought if n != "__builtins__"]
    assert listed == random.__all__ == sorted(listed)
    assert all(getattr(random, n) is brought[n] for n in listed)


@pytest.mark.parametrize("name", random.__all__)
def test_every_function_says_what_it_takes_and_shows_it(name: str) -> None:
    function = getattr(random, name)
    text, signature = inspect.getdoc(function), inspect.signature(function)
    assert text.partition("\n")[0].endswith(".")
    assert not [n for n in signature.parameters if f"\n    {n}: " not in text]
    assert signature.return_annotation in ("Array", "str", "Dtype")
    assert typing.get_type_hints(function)["return"] in (meshard.Array, str, np.dtype[Any])
    globs = vars(importlib.import_module(function.__module__))
    (example,) = doctest.DocTestFinder(recurse=False).find(function, name, globs=globs)
    assert doctest.DocTestRunner().run(example) == (0, len(example.examples))
    assert example.examples


def test_a_misused_function_is_refused_by_its_name() -> None:
    for call, message in (
        (lambda: random.pareto(KEY), r"pareto\(\) missing .* 'b'"),
        (lambda: random.pareto(KEY, 1.0, c=2), r"pareto\(\) got an unexpected .* 'c'"),
        (lambda: random.pareto(KEY, 1.0, b=2), r"pareto\(\) got multiple values .* 'b'"),
        (lambda: random.cauchy(KEY, (), None, None), r"cauchy\(\) takes from 1 to 3 positional"),
    ):
        with pytest.raises(TypeError, match=message):
            call()


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "bits": lambda r, k: r.bits(k, (3,), "uint8"),
    "uniform": lambda r, k: r.uniform(k, (2, 3), "float32", np.zeros(3, "f"), 2.0),
    "normal": lambda r, k: r.normal(k, (2, 3), "complex64"),
    "bfloat16": lambda r, k: r.normal(k, (4,), ml_dtypes.bfloat16),
    "float16": lambda r, k: r.uniform(k, (4,), "float16"),
    "randint": lambda r, k: r.randint(k, (2, 3), np.zeros(3, int), 7, "int32"),
    "bernoulli": lambda r, k: r.bernoulli(k, np.full((3, 1), 0.5, "f"), (3, 4)),
    "bernoulli p": lambda r, k: r.bernoulli(k, np.full((3, 1), 0.5, "f")),
    "permutation": lambda r, k: r.permutation(k, np.zeros((3, 4), "f"), -1),
    "permutation n": lambda r, k: r.permutation(k, 5).astype("int32"),
    "permutation -n": lambda r, k: r.permutation(k, -5).astype("int32"),
    "choice": lambda r, k: r.choice(k, np.zeros((3, 4), "f"), (2, 5), axis=1),
    "choice p": lambda r, k: r.choice(k, np.zeros((3, 4), "f"), (2,), p=np.ones(3, "f")),
    "choice once": lambda r, k: r.choice(k, np.zeros((3, 4), "f"), (), False, axis=1),
    "categorical": lambda r, k: r.categorical(k, np.zeros((2, 3, 4)), 1).astype("int32"),
    "categorical n": lambda r, k: r.categorical(k, np.zeros((2, 5)), 0, (4, 5)).astype("int32"),
    "categorical once": lambda r, k: r.categorical(
        k, np.zeros((2, 5)), shape=(3, 2), replace=False
    ).astype("int32"),
    "truncated_normal": lambda r, k: r.truncated_normal(k, np.zeros(3), 2.0, (2, 3), "float16"),
    "exponential": lambda r, k: r.exponential(k, (3,), "float32"),
    "gamma": lambda r, k: r.gamma(k, np.ones((3, 1), "f"), (3, 2), "float32"),
    "loggamma": lambda r, k: r.loggamma(k, np.ones((3, 1), "f"), dtype="float32"),
    "beta": lambda r, k: r.beta(k, np.ones((3, 1), "f"), np.ones(2, "f"), dtype="float32"),
    "dirichlet": lambda r, k: r.dirichlet(k, np.ones((4, 3), "f"), (2, 4), "float32"),
    "ball": lambda r, k: r.ball(k, 3, 1, (2,), "float32"),
    "cauchy": lambda r, k: r.cauchy(k, (3,), "float32"),
    "chisquare": lambda r, k: r.chisquare(k, np.ones(3, "f"), dtype="float32"),
    "f": lambda r, k: r.f(k, np.ones((1, 3), "f"), np.ones((2, 3), "f"), dtype="float32"),
    "t": lambda r, k: r.t(k, np.ones(3, "f"), dtype="float32"),
    "generalized_normal": lambda r, k: r.generalized_normal(k, 2.0, (3,), "float32"),
    "geometric": lambda r, k: r.geometric(k, np.full(3, 0.5, "f"), dtype="int32"),
    "gumbel": lambda r, k: r.gumbel(k, (3,), "float32", "high"),
    "laplace": lambda r, k: r.laplace(k, (3,), "float32"),
    "logistic": lambda r, k: r.logistic(k, (3,), "float32"),
    "lognormal": lambda r, k: r.lognormal(k, np.ones(3, "f"), dtype="float32"),
    "lognormal c": lambda r, k: r.lognormal(k, np.float32(1), (3,), dtype="complex64"),
    "maxwell": lambda r, k: r.maxwell(k, (3,), "float32"),
    "double_sided": lambda r, k: r.double_sided_maxwell(k, 0.0, np.ones(2), (3,), "float32"),
    "multinomial": lambda r, k: r.multinomial(
        k, np.ones((3, 1)), np.ones(4) / 4, shape=(3, 2, 4), dtype="float32"
    ),
    "multivariate_normal": lambda r, k: r.multivariate_normal(
        k, np.zeros((4, 2), "f"), np.eye(2, dtype="f"), (3, 4), "float32", "eigh"
    ),
    "orthogonal": lambda r, k: r.orthogonal(k, 3, (2,), "float32", m=4),
    "orthogonal c": lambda r, k: r.orthogonal(k, 4, (2,), "complex64", m=3),
    "pareto": lambda r, k: r.pareto(k, np.ones(3, "f"), dtype="float32"),
    "poisson": lambda r, k: r.poisson(k, np.ones(3, "f"), (2, 3), "int32"),
    "binomial": lambda r, k: r.binomial(k, np.full(3, 9.0), 0.5, (2, 3), "float32"),
    "rademacher": lambda r, k: r.rademacher(k, (3,), "float32"),
    "rayleigh": lambda r, k: r.rayleigh(k, np.ones(3, "f"), dtype="float32"),
    "triangular": lambda r, k: r.triangular(k, 0.0, np.ones(3, "f"), 2.0, dtype="float32"),
    "wald": lambda r, k: r.wald(k, np.ones(3, "f"), dtype="float32"),
    "weibull_min": lambda r, k: r.weibull_min(k, 1.0, np.ones(3, "f"), (2, 3), "float32"),
    "split": lambda r, k: r.key_data(r.split(k, (2, 3))),
}


@pytest.mark.parametrize("name", CALLS)
def test_shapes_and_dtypes_are_jaxs(jax: ModuleType, name: str) -> None:
    ours = CALLS[name](random, KEY)
    theirs = jax.eval_shape(lambda k: CALLS[name](jax.random, k), jax.random.key(0))
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype


def test_default_dtypes_are_meshards() -> None:
    for draw in (random.normal, random.uniform, random.exponential, random.laplace):
        assert draw(KEY).dtype == np.float64
    assert random.bits(KEY).dtype == np.uint64
    for x in (random.randint(KEY, (), 0, 2), random.rademacher(KEY), random.poisson(KEY, 1.0)):
        assert x.dtype == np.int64
    assert random.bernoulli(KEY).dtype == np.bool_
    meshard.config.update("default_float", "float32")
    try:
        assert random.normal(KEY).dtype == np.float32
        assert random.gamma(KEY, 2.0).dtype == np.float32
        assert random.binomial(KEY, 3, 0.5).dtype == np.float32
        assert random.multivariate_normal(KEY, np.zeros(2), np.eye(2)).dtype == np.float32
    finally:
        meshard.config.update("default_float", "float64")


def test_edges_are_jaxs() -> None:
    nan = float("nan")
    assert random.poisson(KEY, mnp.asarray([-1.0, 0.0, nan])).tolist() == [-1, 0, -1]
    assert [random.poisson(KEY, v).item() for v in (-1.0, 0.0, nan)] == [-1, 0, -1]
    assert random.geometric(KEY, mnp.asarray([0.0, 1.0])).tolist() == [2**63 - 1, 1]
    found = random.gamma(KEY, mnp.asarray([-1.0, 0.0, nan, float("inf")])).tolist()
    assert str(found) == "[nan, 0.0, nan, inf]"
    found = random.binomial(KEY, mnp.asarray([-1.0, 0.0, 5.0, 5.0, 5.0]), 1.0).tolist()
    assert str(found) == "[nan, 0.0, 5.0, 5.0, 5.0]"
    assert np.isnan(random.binomial(KEY, 5, 1.5).item())
    assert random.uniform(KEY, (3,), minval=2.0, maxval=1.0).tolist() == [2.0] * 3
    assert random.randint(KEY, (3,), 5, 2).tolist() == [5] * 3
    assert np.isnan(random.truncated_normal(KEY, 2.0, 1.0).item())
    assert random.truncated_normal(KEY, 40.0, 41.0).item() == pytest.approx(40, abs=0.5)
    assert np.isfinite(random.loggamma(KEY, 1e-6, (100,)).max().item())
    assert random.multinomial(KEY, 5, mnp.asarray([0.0, 1.0, 0.0])).tolist() == [0, 5, 0]
    assert random.ball(KEY, 0, shape=(4,)).shape == (4, 0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_half_open_intervals_stay_half_open(dtype: str) -> None:
    for low, high in ((0.0, 1.0), (-1.0, 3.0), (1000.0, 1001.0)):
        x = np.asarray(random.uniform(KEY, (20_000,), dtype, low, high)).astype(np.float64)
        assert low <= x.min()
        assert x.max() < high
    x = np.asarray(random.truncated_normal(KEY, -1.003, 1.003, (20_000,), dtype))
    assert np.abs(x.astype(np.float64)).max() <= 1.003


def test_permutations_keep_what_they_permute() -> None:
    x = np.arange(24).reshape(4, 6)
    rows = np.asarray(random.permutation(KEY, x))
    assert sorted(map(tuple, rows)) == sorted(map(tuple, x))
    columns = np.asarray(random.permutation(KEY, x, axis=1))
    assert sorted(map(tuple, columns.T)) == sorted(map(tuple, x.T))
    free = np.asarray(random.permutation(KEY, x, axis=1, independent=True))
    np.testing.assert_array_equal(np.sort(free, axis=1), x)
    assert sorted(random.choice(KEY, 9, (3, 3), replace=False).ravel().tolist()) == list(range(9))
    assert random.permutation(KEY, mnp.asarray(3)).shape == (3,)
    once = np.asarray(random.categorical(KEY, np.zeros((2, 5)), shape=(5, 2), replace=False))
    np.testing.assert_array_equal(np.sort(once, axis=0), np.repeat(np.arange(5), 2).reshape(5, 2))


@pytest.mark.parametrize(("n", "m", "dtype"), [(3, 3, float), (4, 2, float), (2, 4, complex)])
def test_orthogonal_matrices_are_so(n: int, m: int, dtype: Any) -> None:
    q = np.asarray(random.orthogonal(KEY, n, (5,), dtype, m))
    tall = q if n >= m else q.swapaxes(-1, -2)
    product = tall.conj().swapaxes(-1, -2) @ tall
    np.testing.assert_allclose(
        product, np.broadcast_to(np.eye(min(n, m)), product.shape), atol=1e-12
    )


# refusals

KEYS = random.split(KEY)
REFUSALS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: KEY + 1, DtypeError, r"add: .*key<philox>.*key_data"),
    (lambda: -KEY, DtypeError, r"negative: .*key<philox>"),
    (lambda: KEYS.sum(), DtypeError, r"sum: .*key<philox>"),
    (lambda: KEYS < KEYS, DtypeError, r"less: .*key<philox>"),
    (lambda: KEYS @ KEYS, DtypeError, r"key<philox>"),
    (lambda: mnp.cumsum(KEYS), DtypeError, r"key<philox>"),
    (lambda: KEY.astype(int), DtypeError, r"from key<philox> to int64 .*key_data"),
    (lambda: mnp.zeros(2).astype(KEY.dtype), DtypeError, r"to key<philox> .*wrap_key_data"),
    (
        lambda: random.normal(3),
        DtypeError,
        r"normal: expected a random key, got 3\. Make one with random\.key\(seed\)",
    ),
    (lambda: random.normal(mnp.zeros(2)), DtypeError, r"dtype uint32, got float64"),
    (lambda: random.normal(random.PRNGKey(0)[:1]), ShapeError, r"ends with 2, got shape \(1,\)"),
    (lambda: random.normal(KEYS), ShapeError, r"single key, .* shape \(2,\)"),
    (lambda: random.split(random.split(random.PRNGKey(0))), ShapeError, r"shape \(2, 2\)"),
    (
        lambda: random.split(KEY, -1),
        ShapeError,
        "split: -1 is not a shape: sizes must be non-negative integers of at most 63 bits",
    ),
    (
        lambda: random.split(KEY, 2.0),
        ShapeError,
        r"split: 2\.0 is not a shape: sizes must be non-negative integers of at most 63 bits",
    ),
    (lambda: random.fold_in(KEY, 1.5), DtypeError, r"data must be an integer; .* float64"),
    (lambda: random.fold_in(KEY, mnp.arange(2)), ShapeError, r"scalar, .* shape \(2,\)"),
    (lambda: random.fold_in(KEY, 1 << 64), ArgumentError, r"more than 64 bits"),
    (lambda: random.key(1.5), DtypeError, r"key: a seed must be an integer; .* float64"),
    (lambda: random.key("a"), DtypeError, r"key"),
    (lambda: random.key(np.arange(2)), ShapeError, r"scalar seed, .* shape \(2,\)"),
    (lambda: random.PRNGKey(1 << 64), ArgumentError, r"seed 18446744073709551616 has more than"),
    (lambda: random.key(0, impl="foo"), ArgumentError, r"unrecognized PRNG implementation 'foo'"),
    (
        lambda: random.key(0, dtype=np.uint32),
        ArgumentError,
        r"key: dtype must be dtype\(\[\('prng', '<u4', \(2,\)\)\]\), that of keys, got",
    ),
    (lambda: random.key(0, impl="philox", dtype=KEY.dtype), ArgumentError, r"say the same"),
    (lambda: random.wrap_key_data(np.zeros(3, np.uint32)), ShapeError, r"got shape \(3,\)"),
    (lambda: random.wrap_key_data(np.zeros(2)), DtypeError, r"uint32, got float64"),
    (lambda: random.normal(KEY, (2,), int), ArgumentError, r"normal must be a float or complex"),
    (lambda: random.uniform(KEY, (2,), "int32"), ArgumentError, r"uniform must be a float .*int32"),
    (lambda: random.laplace(KEY, (2,), complex), ArgumentError, r"laplace must be a float dtype"),
    (lambda: random.beta(KEY, 1.0, 1.0, (2,), int), ArgumentError, r"beta must be a float dtype"),
    (lambda: random.bits(KEY, (2,), int), ArgumentError, r"bits must be an unsigned int .*int64"),
    (lambda: random.randint(KEY, (2,), 0, 5, float), ArgumentError, r"randint must be an int"),
    (lambda: random.geometric(KEY, 0.5, (2,), float), ArgumentError, r"geometric must be an int"),
    (lambda: random.binomial(KEY, 5, 0.5, (2,), int), ArgumentError, r"binomial must be a float"),
    (lambda: random.rademacher(KEY, (2,), "uint8"), ArgumentError, r"holds -1, got uint8"),
    (
        lambda: random.normal(KEY, (-1,)),
        ShapeError,
        r"normal: \(-1,\) is not a shape: sizes must be non-negative integers of at most 63 bits",
    ),
    (
        lambda: random.normal(KEY, "ab"),
        ShapeError,
        "normal: 'ab' is not a shape: sizes must be non-negative integers of at most 63 bits",
    ),
    (
        lambda: random.uniform(KEY, (2,), minval=mnp.zeros(3)),
        ShapeError,
        r"uniform: incompatible shapes for broadcasting: minval has \(3,\) and shape=\(2,\)",
    ),
    (lambda: random.uniform(KEY, (2,), minval="a"), DtypeError, r"uniform: minval must be a real"),
    (lambda: random.gamma(KEY, 1j), DtypeError, r"gamma: a must be a real number"),
    (lambda: random.gamma(KEY, KEY), DtypeError, r"gamma: a .* key<philox>"),
    (lambda: random.gamma(KEY, mnp.ones(3), (2,)), ShapeError, r"a has \(3,\)"),
    (lambda: random.randint(KEY, (2,), 0, mnp.ones(3, int)), ShapeError, r"maxval has \(3,\)"),
    (lambda: random.randint(KEY, (2,), 0.5, 3), DtypeError, r"minval must be integers; .*float64"),
    (lambda: random.bernoulli(KEY, 1), DtypeError, r"p must have a floating dtype, got int"),
    (lambda: random.bernoulli(KEY, 0.5, mode="x"), ArgumentError, r"mode='x', expected 'high'"),
    (lambda: random.gumbel(KEY, mode="x"), ArgumentError, r"gumbel: got mode='x'"),
    (
        lambda: random.choice(KEY, 5, (7,), replace=False),
        ArgumentError,
        r"larger sample \(size 7\) than population \(size 5\) when replace=False",
    ),
    (lambda: random.choice(KEY, 5, p=mnp.ones(4)), ShapeError, r"shape \(4,\), and a has 5"),
    (lambda: random.choice(KEY, 0, (2,)), ArgumentError, r"a must be greater than 0 unless"),
    (lambda: random.choice(KEY, mnp.ones((2, 3)), axis=3), ArgumentError, r"axis 3 is out of"),
    (
        lambda: random.choice(KEY, 2.5),
        DtypeError,
        r"a must be an integer or have at least one dim, got 2\.5",
    ),
    (
        lambda: random.permutation(KEY, 2.5),
        DtypeError,
        r"permutation: x must be an integer or have at least one dim, got 2\.5",
    ),
    (lambda: random.permutation(KEY, mnp.asarray(2.5)), DtypeError, r"float64 without dims"),
    (lambda: random.permutation(KEY, mnp.ones((2, 3)), 2), ArgumentError, r"axis 2 is out of"),
    (
        lambda: random.categorical(KEY, mnp.zeros((2, 3)), shape=(4,)),
        ShapeError,
        r"shape=\(4,\) is asked for, and the logits without their dim 1 have shape \(2,\)",
    ),
    (lambda: random.categorical(KEY, mnp.zeros((2, 3)), 2), ArgumentError, r"axis 2 is out of"),
    (lambda: random.categorical(KEY, 1.0), ShapeError, r"requires logits.ndim >= 1"),
    (lambda: random.categorical(KEY, KEYS), DtypeError, r"logits must be real .*key<philox>"),
    (
        lambda: random.categorical(KEY, mnp.zeros((2, 3)), shape=(4, 2), replace=False),
        ArgumentError,
        r"without replacement \(4\) cannot exceed number of categories \(3\)",
    ),
    (lambda: random.dirichlet(KEY, 1.0), ShapeError, r"requires alpha.ndim >= 1"),
    (lambda: random.multinomial(KEY, 3, 1.0), ShapeError, r"requires p.ndim >= 1"),
    (lambda: random.multinomial(KEY, np.ones(2), np.ones((3, 2))), ShapeError, r"n has \(2,\)"),
    (
        lambda: random.ball(KEY, -1),
        ArgumentError,
        "ball: d must be a non-negative integer, got -1",
    ),
    (lambda: random.ball(KEY, 2, 0.0), ArgumentError, r"p=0.0 is not above 0"),
    (
        lambda: random.orthogonal(KEY, -1),
        ArgumentError,
        "orthogonal: n must be a non-negative integer, got -1",
    ),
    (
        lambda: random.orthogonal(KEY, 2, m=2.5),
        ArgumentError,
        r"orthogonal: m must be a non-negative integer, got 2\.5",
    ),
    (
        lambda: random.multivariate_normal(KEY, np.zeros(3), np.eye(2)),
        ShapeError,
        r"requires cov.shape == \(..., n, n\) for n=3, but got cov.shape == \(2, 2\)",
    ),
    (lambda: random.multivariate_normal(KEY, 0.0, np.eye(2)), ShapeError, r"mean.ndim >= 1"),
    (lambda: random.multivariate_normal(KEY, np.ones(2), np.ones(2)), ShapeError, r"cov.ndim >= 2"),
    (
        lambda: random.multivariate_normal(KEY, np.zeros(2), np.eye(2), method="x"),
        ArgumentError,
        r"'cholesky', 'eigh' or 'svd', got 'x'",
    ),
    (lambda: random.multivariate_normal(KEY, np.zeros(2), -np.eye(2)), LinAlgError, r"positive"),
    (lambda: random.weibull_min(KEY, np.ones(3), 1.0, (2,)), ShapeError, r"scale has \(3,\)"),
]


@pytest.mark.parametrize("number", range(len(REFUSALS)))
def test_refusals_say_what_is_wrong(number: int) -> None:
    call, kind, message = REFUSALS[number]
    with pytest.raises(kind, match=message):
        call()
