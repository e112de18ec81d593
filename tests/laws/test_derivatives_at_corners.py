"""Derivatives at corners are those of JAX: at zeros, bounds, ties, infinities, singular matrices.

What differs is listed, with the reason; `docs/differs_from_jax.md` tells what users notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.lax
import meshard.nn
import meshard.numpy as mnp

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
INF = np.inf
POINTS = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 6.0, INF, -INF])
PAIRS = [p.ravel() for p in np.meshgrid(POINTS, POINTS)]
COMPLEX = np.array([0j, 1 + 0j, 1j, -1 - 0j, 1 + 1j, -1j, 2 - 0j, 3 + 4j])

ONE = {
    "np": """
        abs sqrt cbrt exp exp2 expm1 log log2 log10 log1p sin cos tan arcsin arccos arctan sinh cosh
        tanh arcsinh arctanh sign square reciprocal floor rint nan_to_num positive negative angle
    """,
    "nn": """
        relu relu6 sigmoid silu elu selu celu leaky_relu log_sigmoid soft_sign softplus gelu
        hard_tanh hard_sigmoid hard_silu mish squareplus sparse_plus sparse_sigmoid
    """,
    "lax": "erf erfc erf_inv logistic abs sign tan",
}
TWO = {
    "np": """
        add subtract multiply divide power arctan2 hypot maximum minimum fmax fmin logaddexp
        logaddexp2 heaviside fmod float_power
    """,
    "lax": "pow max min rem atan2",
}
OF_COMPLEX = "abs angle sqrt log exp square reciprocal tanh arcsin arctan log1p"
EXPONENTS = (0, 1, 2, 3, -1, -2, 0.5, 1.0, 2.5, -0.5)
VECTORS = {
    "zeros": np.zeros(4),
    "ties": np.array([1.0, 2.0, 2.0, 1.0]),
    "alike": np.full(4, 3.0),
    "one zero": np.array([2.0, 0.0, 3.0, 1.0]),
    "two zeros": np.array([2.0, 0.0, 0.0, 1.0]),
    "negative": np.array([-1.0, -2.0, -2.0, 0.0]),
    "infinite": np.full(4, -INF),
}
REDUCING = """
    sum prod max min mean var std median cumsum cumprod sort ptp nanmax nanmean nanstd diff
"""
OF_VECTORS: dict[str, Callable[[Any, Any], Any]] = {
    **{name: lambda m, x, name=name: getattr(m.np, name)(x) for name in REDUCING.split()},
    "norm": lambda m, x: m.np.linalg.norm(x),
    **{f"norm {p}": lambda m, x, p=p: m.np.linalg.norm(x, p) for p in (1, 2, 3, INF, -INF, 0)},
    "logsumexp": lambda m, x: m.nn.logsumexp(x),
    "softmax": lambda m, x: m.nn.softmax(x),
    "log_softmax": lambda m, x: m.nn.log_softmax(x),
    "quantile": lambda m, x: m.np.quantile(x, np.array([0.25, 0.5])),
    "top_k": lambda m, x: m.lax.top_k(x, 2)[0],
    "stacked": lambda m, x: m.np.max(m.np.stack([x, x]), 0),
    "interp": lambda m, x: m.np.interp(x, np.arange(3.0), np.array([1.0, 3.0, 0.0])),
}
MATRICES = {
    "singular": np.array([[1.0, 2.0], [2.0, 4.0]]),
    "of zeros": np.zeros((2, 2)),
    "one": np.eye(2),
    "with equal values": np.diag([1.0, 1.0, 2.0]),
    "of rank one": np.outer([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]),
    "of rank two": np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 0.0, 1.0]]),
}
OF_MATRICES: dict[str, Callable[[Any, Any], Any]] = {
    "det": lambda m, a: m.np.linalg.det(a),
    "norm": lambda m, a: m.np.linalg.norm(a),
    "pinv": lambda m, a: m.np.linalg.pinv(a),
    "svdvals": lambda m, a: m.np.linalg.svd(a, compute_uv=False),
    "nuclear": lambda m, a: m.np.linalg.norm(a, "nuc"),
    "power": lambda m, a: m.np.linalg.matrix_power(a, 2),
}


def cases() -> Iterator[tuple[str, Callable[..., Any], Any]]:
    for door, names in ONE.items():
        for name in names.split():
            yield f"{door}.{name}", _of(door, name), [POINTS]
    for door, names in TWO.items():
        for name in names.split():
            yield f"{door}.{name}", _of(door, name), PAIRS
    for k in EXPONENTS:
        yield f"x**{k}", lambda m, x, k=k: x**k, [POINTS]
        yield f"complex x**{k}", lambda m, x, k=k: x**k, [COMPLEX]
    for k in (0.0, 1.0, 2.0, -1.0, 0.5):
        yield f"{k}**x", lambda m, x, k=k: k**x, [POINTS]
    yield "x**i", lambda m, x: x ** np.arange(-2, 11), [POINTS]
    yield "clip", lambda m, x: m.np.clip(x, -1.0, 1.0), [POINTS]
    yield "clamp", lambda m, x: m.lax.clamp(-1.0, x, 1.0), [POINTS]
    yield "reduce_precision", lambda m, x: m.lax.reduce_precision(x, 5, 3), [POINTS]
    yield "guarded", lambda m, x: m.np.where(x > 0, m.np.sqrt(m.np.where(x > 0, x, 1)), 0), [POINTS]
    yield "trap", lambda m, x: m.np.where(x > 0, m.np.sqrt(x), 0.0), [POINTS]
    for name in OF_COMPLEX.split():
        yield f"complex {name}", _of("np", name), [COMPLEX]
    for of, values in ((OF_VECTORS, VECTORS), (OF_MATRICES, MATRICES)):
        for name, f in of.items():
            for which, x in values.items():
                yield f"{name}, {which}", f, [x]


def _of(door: str, name: str) -> Callable[..., Any]:
    return lambda m, *xs: getattr(getattr(m, door), name)(*xs)


DIFFERENT = {
    "np.power 0": "x**0.0 has the slope 0 everywhere; in JAX it is NaN at zero",
    "np.float_power 0": "the same",
    "lax.pow 0": "the same",
    "np.logaddexp 0": "beside an infinite operand the other counts nothing; in JAX it does",
    "np.logaddexp 1": "the same",
    "np.logaddexp2 0": "the same",
    "np.logaddexp2 1": "the same",
    "np.hypot 0": "beside an infinite side the other counts nothing; in JAX it is NaN",
    "np.hypot 1": "the same",
    "prod, infinite 0": "the product of the others is the whole one, divided",
    "cumprod, infinite 0": "the same",
    "norm inf, zeros 0": "elements that tie share the slope; JAX halves it once more",
}


def slopes(m: Any, f: Callable[..., Any], args: Any) -> list[Any]:
    y, back = m.vjp(lambda *xs: f(m, *xs), *[m.asarray(x) for x in args])
    weights = np.arange(1.0, np.size(y) + 1).reshape(np.shape(y))
    return list(back(m.asarray(weights.astype(y.dtype))))


@pytest.fixture(scope="module")
def found(jax: ModuleType) -> dict[str, str]:
    """Return what differs, by function and argument."""
    ours = SimpleNamespace(
        np=mnp, lax=meshard.lax, nn=meshard.nn, asarray=mnp.asarray, vjp=meshard.vjp
    )
    theirs = SimpleNamespace(
        np=jax.numpy, lax=jax.lax, nn=jax.nn, asarray=jax.numpy.asarray, vjp=jax.vjp
    )
    different: dict[str, str] = {}
    with jax.enable_x64(True), np.errstate(all="ignore"):
        every = [*cases()]
        # JAX compiles all of them at once: one by one takes three times as long.
        told = jax.jit(lambda xs: [slopes(theirs, c[1], x) for c, x in zip(every, xs, strict=True)])
        expected = told([args for _, _, args in every])
        for (name, f, args), wanted in zip(every, expected, strict=True):
            for i, pair in enumerate(zip(slopes(ours, f, args), wanted, strict=True)):
                a, b = map(np.asarray, pair)
                same = np.isclose(a, b, 1e-6, 1e-9, equal_nan=True) | (a == b)
                if not same.all():
                    at = tuple(np.argwhere(~same)[0])
                    where = [x[at] for x in args if np.shape(x) == np.shape(a)]
                    different[f"{name} {i}"] = f"at {where}: {a[at]} instead of {b[at]}"
    return different


def test_derivatives_at_corners_are_those_of_jax(found: dict[str, str]) -> None:
    assert {k: v for k, v in found.items() if k not in DIFFERENT} == {}


def test_what_is_listed_differs(found: dict[str, str]) -> None:
    assert set(DIFFERENT) - set(found) == set()


def test_second_derivatives_of_determinants_and_pseudo_inverses() -> None:
    """Those of regular matrices, by differences; a determinant's are exact, as it is linear."""
    rng = np.random.default_rng(0)
    a, t = rng.normal(size=(2, 3, 3)), rng.normal(size=(2, 3, 3))

    for f in (mnp.linalg.det, mnp.linalg.pinv):

        def slope(x: Any, f: Any = f) -> Any:
            return meshard.grad(lambda y: (f(y) ** 2).sum())(x)

        found = meshard.jvp(slope, (mnp.asarray(a),), (mnp.asarray(t),))[1]
        h = 1e-5
        near = (slope(mnp.asarray(a + h * t)) - slope(mnp.asarray(a - h * t))) / (2 * h)
        np.testing.assert_allclose(found, near, rtol=1e-5, atol=1e-5)
