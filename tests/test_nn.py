"""Functions of neural networks against JAX's, in both worlds."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.special

import meshard
import meshard.numpy as mnp
from meshard import lax, nn
from meshard.errors import ArgumentError, DtypeError, ShapeError
from meshard.settings import config
from meshard.sharding import NamedSharding, P
from tests.lays import fetched, same
from tests.worlds import alone, everywhere, in_worlds, mesh, put, whole

BF16 = np.dtype(ml_dtypes.bfloat16)
FUNCTIONS = [name for name in nn.__all__ if name != "initializers"]
POINTWISE: dict[str, list[dict[str, Any]]] = {
    "celu": [{}, {"alpha": 0.5}],
    "elu": [{}, {"alpha": 2.0}],
    "gelu": [{}, {"approximate": True}, {"approximate": False}],
    "hard_sigmoid": [{}],
    "hard_silu": [{}],
    "hard_swish": [{}],
    "hard_tanh": [{}],
    "identity": [{}],
    "leaky_relu": [{}, {"negative_slope": 0.3}],
    "log1mexp": [{}],
    "log_sigmoid": [{}],
    "mish": [{}],
    "relu": [{}],
    "relu6": [{}],
    "selu": [{}],
    "sigmoid": [{}],
    "silu": [{}],
    "soft_sign": [{}],
    "softplus": [{}],
    "sparse_plus": [{}],
    "sparse_sigmoid": [{}],
    "squareplus": [{}, {"b": 1.5}],
    "swish": [{}],
    "tanh": [{}],
}


@pytest.fixture(scope="module")
def theirs(jax: Any) -> Any:
    """JAX's functions, computing in 64 bits, and giving NumPy arrays."""

    def call(name: str, *args: Any, **kwargs: Any) -> Any:
        with jax.enable_x64(True):
            function = functools.partial(getattr(jax.nn, name), **kwargs)
            numbers = [i for i, x in enumerate(args) if not isinstance(x, np.ndarray)]
            found = jax.jit(function, static_argnums=numbers)(*args)
            return tuple(map(np.asarray, found)) if isinstance(found, tuple) else np.asarray(found)

    return call


def near(found: Any, expected: Any, rtol: float = 1e-12, atol: float = 1e-14) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


def sample(*shape: int, seed: int = 0) -> Any:
    x = np.random.default_rng(seed).normal(size=shape) * 4
    x.flat[0] = 0
    return x


def test_every_function_is_tested():
    others = {"glu", "log_softmax", "logsumexp", "one_hot", "softmax", "standardize"}
    others |= {"dot_product_attention", "logmeanexp"}
    assert set(FUNCTIONS) == {*POINTWISE, *others}


@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise_functions_take_no_powers(name: str) -> None:
    """NumPy's power of a negative number costs fifty multiplications."""
    x = mnp.arange(-2.0, 2.0)
    for kwargs in POINTWISE[name]:
        slope = meshard.grad(lambda x, kwargs=kwargs: getattr(nn, name)(x, **kwargs).sum())
        assert " power " not in meshard.jit(slope).lower(x).as_text()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_docstring_describes_the_arguments_and_shows_the_sharding(name):
    text = inspect.getdoc(getattr(nn, name))
    for parameter in inspect.signature(getattr(nn, name)).parameters:
        assert f"\n    {parameter}: " in text
    for section in ("Args:", "Returns:", "Raises:", ".sharding.spec\n"):
        assert section in text


@pytest.mark.parametrize("name", sorted(POINTWISE))
def test_pointwise(name, theirs):
    edges = np.array([0.0, -0.0, 1e-300, 700, -700, np.inf, -np.inf, np.nan])
    x = sample(6, 7)
    function = getattr(nn, name)

    def body() -> Any:
        found = []
        for options in POINTWISE[name]:
            a = put(x, "i", "j", uneven="balanced")
            y = function(a, **options)
            assert y.sharding == a.sharding
            found += [y, function(put(edges, "j"), **options)]
        return fetched(found)

    with np.errstate(all="ignore"):
        found = everywhere(body)
    for options, one, two in zip(POINTWISE[name], found[::2], found[1::2], strict=True):
        near(one, theirs(name, x, **options))
        expected = theirs(name, edges, **options)
        if name == "squareplus":  # where x is negative, JAX subtracts numbers that are almost alike
            b, below = options.get("b", 4), np.minimum(edges, 0)
            exact = b / 2 / (np.hypot(below, np.sqrt(b)) - below)
            expected = np.where(edges < 0, exact, expected)
        near(two, expected)


@pytest.mark.parametrize("dtype", ["f4", "f2", BF16])
@pytest.mark.parametrize("name", sorted(POINTWISE))
def test_pointwise_keeps_the_dtype(name, dtype):
    x = (np.arange(-8, 8) / 4).astype(dtype)

    def body() -> Any:
        return fetched(getattr(nn, name)(put(x, "i")))

    found = everywhere(body)
    assert found.dtype == dtype
    exact = alone(lambda: whole(getattr(nn, name)(put(x.astype("f8"), "i"))))
    tolerance = {"f4": 1e-5, "f2": 3e-3}.get(str(dtype), 2e-2)
    np.testing.assert_allclose(found.astype("f8"), exact, rtol=tolerance, atol=tolerance)


def test_integers_become_the_default_float():
    def body() -> Any:
        a = put(np.arange(-4, 4), "i")
        names = [n for n in POINTWISE if n not in ("relu", "hard_tanh", "identity")]
        found = [getattr(nn, n)(a).dtype.name for n in names]
        found += [nn.softmax(a).dtype.name, nn.one_hot(a, 3).dtype.name, nn.logsumexp(a).dtype.name]
        return [*found, nn.relu(a).dtype.name, nn.hard_tanh(a).dtype.name]

    names = everywhere(body)
    assert names[-2:] == ["int64", "int64"]
    assert set(names[:-2]) == {"float64"}
    before = config.read("default_float")
    config.update("default_float", "float32")
    try:
        assert set(everywhere(body)[:-2]) == {"float32"}
    finally:
        config.update("default_float", before)


# over dims


@pytest.mark.parametrize("axis", [-1, 0, 1, (0, 2), (0, 1, 2), None])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp", "standardize"])
def test_over_dims(name, axis, theirs):
    x = sample(4, 5, 6)

    def body() -> Any:
        found = []
        for spec in [(), ("i",), (None, "j", "i"), (("i", "j"), None), (None, ("j", "i"))]:
            a = put(x, *spec, uneven="balanced")
            found.append(getattr(nn, name)(a, axis))
        return fetched(found)

    expected = theirs(name, x, axis)
    for found in everywhere(body):
        near(found, expected, rtol=1e-11)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_elements_that_take_no_part(name, theirs):
    x = sample(6, 8)
    where = np.random.default_rng(1).random((6, 8)) < 0.4
    where[2], where[3] = False, True
    x[3, 3] = -np.inf

    def body() -> Any:
        function = getattr(nn, name)
        mask = put(where, None, "j")
        a = put(x, "i", uneven="ceil")
        found = [function(a, axis, where=mask) for axis in (-1, 0, (0, 1))]
        return fetched([*found, function(a, 1, where=where[:, :1])])

    found = everywhere(body)
    for one, axis in zip(found[:3], (-1, 0, (0, 1)), strict=True):
        near(one, theirs(name, x, axis, where=where))
    near(found[3], theirs(name, x, 1, where=where[:, :1]))
    if name == "softmax":
        assert not found[0][2].any()
        np.testing.assert_allclose(found[0].sum(1), where.any(1))


@in_worlds
def test_softmax_is_safe_and_adds_up():
    x = np.array([[1000.0, 1001, 999, 1000], [-1e4, -1e4, -1e4, -np.inf]])
    found = whole(nn.softmax(put(x, "j", "i")))
    np.testing.assert_allclose(found.sum(1), 1)
    np.testing.assert_allclose(found[1], [1 / 3, 1 / 3, 1 / 3, 0])
    np.testing.assert_allclose(found, scipy.special.softmax(x, 1))
    np.testing.assert_allclose(
        whole(nn.log_softmax(put(x, "j", "i"))), scipy.special.log_softmax(x, 1)
    )
    short = whole(nn.softmax(put(np.ones(4096, BF16), "i")))
    assert short.dtype == BF16
    assert float(short[0]) == 2**-12


def test_sums_of_exponentials(theirs):
    x, b = sample(6, 8), sample(6, 8, seed=3)
    b[0] = 0

    def body() -> Any:
        a, weights = put(x, "i", "j", uneven="ceil"), put(b, "j")
        found = [nn.logsumexp(a, 1, weights), nn.logsumexp(a, b=abs(weights), keepdims=True)]
        found += nn.logsumexp(a, 1, weights, return_sign=True)
        found += [nn.logsumexp(a, 0, keepdims=True), nn.logsumexp(a, -1), nn.logsumexp(a, ())]
        return fetched(
            [*found, nn.logsumexp(put(np.array([np.inf, 1]))), nn.logsumexp(put(x[:0]), 0)]
        )

    expected = [theirs("logsumexp", x, 1, b), theirs("logsumexp", x, b=abs(b), keepdims=True)]
    expected += theirs("logsumexp", x, 1, b, return_sign=True)
    expected += [theirs("logsumexp", x, 0, keepdims=True), theirs("logsumexp", x, -1)]
    expected += [theirs("logsumexp", x, ()), np.float64(np.inf), np.full(8, -np.inf)]
    for found, e in zip(everywhere(body), expected, strict=True):
        near(found, e)


@in_worlds
def test_the_logarithm_of_nothing():
    none = put(np.full(8, -np.inf), "i")
    assert float(nn.logsumexp(none)) == -np.inf
    assert float(nn.logsumexp(put(np.ones(8), "i"), where=np.zeros(8, bool))) == -np.inf


def test_standardize_with_known_moments(theirs):
    x = sample(6, 8)

    def body() -> Any:
        a = put(x, "i", "j", uneven="ceil")
        found = [nn.standardize(a), nn.standardize(a, 0, epsilon=0.1), nn.standardize(a, 1, 0.5)]
        return fetched([*found, nn.standardize(a, 1, mean=x[:, :1], variance=4.0)])

    expected = [theirs("standardize", x), theirs("standardize", x, 0, epsilon=0.1)]
    expected.append((x - 0.5) / np.sqrt(x.var(1, keepdims=True) + 1e-5))
    expected.append(theirs("standardize", x, 1, mean=x[:, :1], variance=4.0))
    for found, e in zip(everywhere(body), expected, strict=True):
        near(found, e, rtol=1e-11)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_glu(axis, theirs):
    x = sample(4, 6, 8)[:, :4]

    def body() -> Any:
        return fetched([nn.glu(put(x, *s), axis) for s in [(), ("i",), (None, "i", "j")]])

    for found in everywhere(body):
        near(found, theirs("glu", x, axis))


@pytest.mark.parametrize("axis", [-1, 0, 1, 2, -3])
def test_one_hot(axis, theirs):
    x = np.array([[0, 3, -1, 2], [1, 1, 5, 0]])

    def body() -> Any:
        a = put(x, "j", "i")
        found = [nn.one_hot(a, 4, axis=axis), nn.one_hot(a, 4, axis=axis, dtype="i4")]
        return fetched(
            [*found, nn.one_hot(x, 4, axis=axis, dtype=BF16), nn.one_hot(a, 0, axis=axis)]
        )

    expected = theirs("one_hot", x, 4, axis=axis)
    empty = theirs("one_hot", x, 0, axis=axis)
    same(everywhere(body), [expected, expected.astype("i4"), expected.astype(BF16), empty])


# where results lie


@in_worlds
def test_the_sharding_stays():
    a = put(np.ones((8, 8)), "i", "j")
    for function in (nn.softmax, nn.log_softmax, nn.standardize):
        assert function(a).sharding == a.sharding
        assert function(a, 0).sharding == a.sharding
    assert nn.logsumexp(a, 0).sharding == NamedSharding(mesh(), P("j"))
    assert nn.one_hot(put(np.arange(8), "i"), 10).sharding == NamedSharding(mesh(), P("i"))
    assert nn.one_hot(put(np.arange(8), "i"), 10, axis=0).sharding == NamedSharding(
        mesh(), P(None, "i")
    )
    assert nn.glu(a, 1).sharding.spec[0] == "i"


@in_worlds
def test_the_layer_of_the_tutorial():
    x, w, b = sample(8, 4), sample(4, 6, seed=1), sample(6, seed=2)
    y = nn.tanh(put(x, "i", None) @ put(w, None, "j") + put(b, "j"))
    assert y.sharding == NamedSharding(mesh(), P("i", "j"))
    np.testing.assert_allclose(whole(y), np.tanh(x @ w + b))


# refusals


@in_worlds
def test_a_bad_axis():
    a = put(np.ones((4, 6)), "i")
    with pytest.raises(
        ArgumentError, match="softmax: axis 2 is out of bounds for an array with 2 dims"
    ):
        nn.softmax(a, 2)
    with pytest.raises(ArgumentError, match="logsumexp: axis 5 is out of bounds"):
        nn.logsumexp(a, 5)
    with pytest.raises(
        ArgumentError, match="one_hot: axis 3 is out of bounds for an array with 3 dims"
    ):
        nn.one_hot(a, 4, axis=3)
    with pytest.raises(
        ArgumentError,
        match=r"standardize: axis must be an integer, a sequence of integers or None, got 1\.5",
    ):
        nn.standardize(a, 1.5)


@in_worlds
def test_other_refusals():
    a = put(np.ones((4, 6)), "i")
    with pytest.raises(ShapeError, match="incompatible shapes"):
        nn.softmax(a, where=np.ones(5, bool))
    with pytest.raises(ValueError, match="5"):
        nn.glu(put(np.ones(5)))
    with pytest.raises(DtypeError):
        nn.relu("ab")
    with pytest.raises(DtypeError):
        nn.gelu(None)
    with pytest.raises(DtypeError, match="'f12' is not a dtype"):
        nn.one_hot(a, 4, dtype="f12")
    assert isinstance(nn.relu([1.0, -1.0]), meshard.Array)
    assert mnp.sum(nn.relu([1.0, -1.0])) == 1


@pytest.mark.parametrize("options", [{}, {"axis": 0}, {"axis": 1, "keepdims": True}])
@pytest.mark.parametrize("masked", [False, True])
def test_logmeanexp(options, masked, theirs):
    x, mask = sample(8, 6), sample(8, 6, seed=1) > 0

    def body() -> Any:
        more = {"where": put(mask, "j")} if masked else {}
        return whole(nn.logmeanexp(put(x, "i", "j"), **options, **more))

    more = {"where": mask} if masked else {}
    near(everywhere(body), theirs("logmeanexp", x, **options, **more))


ATTENTION: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True, "scale": 0.3},
    "bias": {"bias": sample(2, 4, 5, 6, seed=3)},
    "mask": {"mask": sample(2, 1, 5, 6, seed=4) > -2},
    "lengths": {
        "query_seq_lengths": np.array([3, 5], "int32"),
        "key_value_seq_lengths": np.array([6, 2], "int32"),
    },
    "window": {"local_window_size": (1, 2)},
    "square window": {"local_window_size": 1},
}


@pytest.mark.parametrize("name", sorted(ATTENTION))
@pytest.mark.parametrize("heads", [4, 2, 1])
def test_dot_product_attention(name, heads, theirs):
    q, k, v = sample(2, 5, 4, 3), sample(2, 6, heads, 3, seed=1), sample(2, 6, heads, 3, seed=2)

    def body() -> Any:
        places = [put(q, "j", None, "i"), put(k, "j"), put(v, "j")]
        found = nn.dot_product_attention(*places, **ATTENTION[name], return_residual=True)
        assert found[0].sharding.spec[:3] == ("j", None, "i")
        return [whole(x) for x in found]

    expected = theirs("dot_product_attention", q, k, v, **ATTENTION[name], return_residual=True)
    for a, b in zip(everywhere(body), expected, strict=True):
        near(a, b, 2e-5, 1e-6)  # JAX takes the softmax in float32


def test_attention_without_a_batch(theirs):
    q, k = sample(5, 4, 3), sample(6, 4, 3, seed=1)
    near(
        whole(nn.dot_product_attention(q, k, k)),
        theirs("dot_product_attention", q, k, k),
        2e-5,
        1e-6,
    )


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: nn.dot_product_attention(x, x[..., :2], x), ShapeError, "key heads divide"),
        (lambda x: nn.dot_product_attention(x, x, x, mask=x), ArgumentError, "a mask holds bools"),
        (
            lambda x: nn.dot_product_attention(x, x, x, implementation="cudnn"),
            ArgumentError,
            "None or 'xla', not 'cudnn'",
        ),
        (
            lambda x: nn.dot_product_attention(x, x, x, query_seq_lengths=[1.0]),
            ShapeError,
            "one for each of the batch of 2",
        ),
        (lambda x: nn.dot_product_attention(x[None], x, x), ShapeError, "at most four dims"),
    ],
)
def test_refused_attention(call, error, words):
    with pytest.raises(error, match=words):
        call(mnp.ones((2, 5, 4, 3)))


# digits

ELEMENTWISE = [
    name
    for name in FUNCTIONS
    if name
    not in {
        *("glu", "one_hot", "softmax", "log_softmax", "logsumexp", "logmeanexp", "standardize"),
        *("dot_product_attention",),
    }
]
VARIANTS: dict[str, Any] = {
    **{name: getattr(nn, name) for name in ELEMENTWISE},
    "gelu exactly": lambda x: nn.gelu(x, approximate=False),
    "squareplus of an array": lambda x: nn.squareplus(x, mnp.full((), 3, x.dtype)),
    "elu with alpha": lambda x: nn.elu(x, 0.3),
    "celu with alpha": lambda x: nn.celu(x, 0.3),
    "softmax of two": lambda x: nn.softmax(mnp.stack([x, 0 * x]), 0)[0],
    "log_softmax of two": lambda x: nn.log_softmax(mnp.stack([x, 0 * x]), 0)[0],
    "logsumexp of two": lambda x: nn.logsumexp(mnp.stack([x, 0 * x]), 0),
    "glu": lambda x: nn.glu(mnp.stack([0 * x + 1, x]), 0)[0],
    **{name: getattr(lax, name) for name in ("erf", "erfc", "logistic", "expm1", "log1p", "tanh")},
}


@pytest.mark.parametrize("dtype", ["f4", "f2", ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", VARIANTS)
def test_elementwise_functions_keep_their_digits(name, dtype):
    """Against float64, from the least to the greatest number.

    An error is allowed in proportion to what rounding the argument changes, which is its condition,
    and of as many of the least numbers as the argument is great.
    """
    function = VARIANTS[name]
    size = np.concatenate([np.logspace(-36, 36, 120), np.linspace(0.0, 20.0, 161)])
    with np.errstate(over="ignore"):
        x = np.concatenate([-size[::-1], size]).astype(dtype)
    limits = ml_dtypes.finfo(dtype)
    eps, least = float(limits.eps), float(limits.smallest_subnormal)
    x = x[np.isfinite(x)]
    exact = x.astype("f8")

    step = 1e-5

    def body() -> Any:
        with np.errstate(all="ignore"):
            near = [function(mnp.asarray(exact * k)) for k in (1, 1 + step, 1 - step)]
            return [np.asarray(v) for v in (function(mnp.asarray(x)), *near)]

    found, expected, above, below = alone(body)
    assert found.dtype == x.dtype
    usual = np.isfinite(expected) & (np.abs(expected) < float(limits.max))
    change = np.abs(above[usual] - below[usual]) / (2 * step)
    error = np.abs(found.astype("f8")[usual] - expected[usual])
    allowed = 4 * eps * (np.abs(expected[usual]) + change)
    allowed += 4 * least * np.maximum(1, np.abs(exact[usual]))
    if "of two" in name:  # sums, which have the digits of their greatest part
        allowed += eps
    worst = np.argmax(error / allowed)
    assert (error <= allowed).all(), (
        f"{name}({exact[usual][worst]}) = {found[usual][worst]}, not {expected[usual][worst]}"
    )
    assert (np.isnan(found) == np.isnan(expected)).all()


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_the_maximum_that_is_only_taken_off_has_no_derivative(name):
    """It cancels out, so that nothing is computed, or moved, for its gradient."""
    f = getattr(meshard.nn, name)
    x = meshard.numpy.asarray([[0.0, 1.0, 1.0], [2.0, -1.0, 0.5]])
    steps = meshard.explain(meshard.grad(lambda x: (f(x) ** 2).sum()), x).steps
    assert not any({"equal", "stop_gradient"} & set(s.name.split("+")) for s in steps)
    found = meshard.grad(lambda x: (f(x) ** 2).sum())(x)
    step = 1e-6
    for at in np.ndindex(2, 3):
        more, less = (x.at[at].add(d) for d in (step, -step))
        slope = float((f(more) ** 2).sum() - (f(less) ** 2).sum()) / (2 * step)
        assert abs(slope - float(found[at])) < 1e-8
