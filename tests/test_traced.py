"""Every function on traced operands: as on arrays, or a refusal that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import meshard
import meshard.numpy as mnp
from meshard import nn, random
from meshard.errors import ConcretizationError, IndexingError, MeshardError
from meshard.numpy import fft, linalg
from tests.numpy_expressions import EXPRESSIONS
from tests.tracing import jitted, opened, traced
from tests.worlds import alone

Case = Callable[[Any], Any]
"""A call, given what an operand goes through: nothing, or what hides it."""

rng = np.random.default_rng(0)
F = rng.uniform(0.1, 0.9, (3, 4))
G = rng.uniform(0.1, 0.9, (3, 4))
V = rng.uniform(0.1, 0.9, 6)
I = rng.integers(1, 6, (3, 4))  # noqa: E741
J = rng.integers(1, 6, (3, 4))
N = np.array([3, 1, 2, 3, 0, 5])
B = I > 2
C = F + 1j * G
S = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]])
GAPS = np.where(B, F, np.nan)
EDGES = np.array([0.0, 0.3, 0.6, 1.0])
T = rng.uniform(0.1, 0.9, (2, 4, 6))

NOT_CALLED = {
    *("bfloat16", "bool", "bool_", "complex64", "complex128", "dtype", "e", "euler_gamma", "fft"),
    *("float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    *("float16", "float32", "float64", "inf", "int8", "int16", "int32", "int64", "linalg", "nan"),
    *("ndarray", "newaxis", "pi", "vectorize", "uint8", "uint16", "uint32", "uint64"),
    # these take shapes, dtypes and numbers, no arrays
    *("broadcast_shapes", "diag_indices", "empty", "fromfunction", "identity", "indices"),
    *("errstate", "index_exp", "s_"),
    *("isdtype", "issubdtype", "ones", "promote_types", "tril_indices", "triu_indices"),
    *(
        "writeable",
        "zeros",
        "EigResult",
        "EighResult",
        "LinAlgError",
        "QRResult",
        "SVDResult",
        "SlogdetResult",
    ),
}


def calls(module: Any, names: str, *arguments: Callable[[Any], tuple[Any, ...]]) -> Any:
    """Return cases for functions that are called alike."""
    return {
        name: [partial(_call, getattr(module, name), given) for given in arguments]
        for name in names.split()
    }


def _call(function: Any, given: Any, t: Any) -> Any:
    return function(*given(t))


ONE = """abs absolute acos angle arccos arcsin arcsinh arctan arctanh asin asinh atan atanh cbrt
    ceil
    cos cosh deg2rad degrees exp exp2 expm1 floor imag isfinite isinf isnan isneginf isposinf isreal
    iscomplex log log10 log1p log2 logical_not negative positive rad2deg radians real reciprocal
    rint round sign signbit sin sinh sqrt square tan tanh trunc nan_to_num modf frexp conj conjugate
    all any argmax argmin argsort count_nonzero cumprod cumsum max mean median min nancumprod
    nancumsum nanmax nanmean nanmin nanprod nanstd nansum nanvar prod ptp sort std sum var
    atleast_1d atleast_2d atleast_3d copy diag diagflat diagonal diff ediff1d fliplr flipud flip
    empty_like zeros_like ones_like matrix_transpose array asarray ravel squeeze trace transpose
    trapezoid unstack corrcoef cov iscomplexobj isrealobj ndim shape size rot90
    from_dlpack average"""
TWO = """add arctan2 atan2 copysign divide equal float_power floor_divide fmax fmin fmod greater
    greater_equal heaviside hypot less less_equal logaddexp logaddexp2 logical_and logical_or
    logical_xor maximum minimum mod multiply nextafter not_equal pow power remainder subtract
    true_divide isclose allclose array_equal array_equiv divmod append inner vdot vecdot outer kron
    isin"""
WHOLE = """bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor gcd lcm
    left_shift right_shift"""

NUMPY: dict[str, list[Case]] = {
    **calls(mnp, ONE, lambda t: (t(F),)),
    **calls(
        mnp, TWO, lambda t: (t(F), t(G)), lambda t: (F, t(G)), lambda t: (t(F), mnp.asarray(G))
    ),
    **calls(mnp, WHOLE, lambda t: (t(I), t(J))),
    **calls(mnp, "acosh arccosh", lambda t: (t(F + 1),)),
    **calls(mnp, "bitwise_invert bitwise_not invert", lambda t: (t(I),)),
    "permute_dims": [lambda t: mnp.permute_dims(t(T), (2, 0, 1))],
    "arange": [lambda t: mnp.arange(3) + t(F)[0, 0]],
    "argpartition": [lambda t: mnp.argpartition(t(F), 2)],
    "partition": [lambda t: mnp.partition(t(F), 2)],
    "argwhere": [lambda t: mnp.argwhere(t(B), size=7, fill_value=-1)],
    "array_split": [lambda t: mnp.array_split(t(V), 4)],
    "astype": [lambda t: mnp.astype(t(F), "float32")],
    "bincount": [
        lambda t: mnp.bincount(t(N), length=5),
        lambda t: mnp.bincount(t(N), t(V), length=8),
        lambda t: mnp.bincount(t(N), minlength=20, length=4),
        lambda t: mnp.bincount(N, t(V)),
    ],
    "broadcast_arrays": [lambda t: mnp.broadcast_arrays(t(F), V[:4])],
    "broadcast_to": [lambda t: mnp.broadcast_to(t(F), (2, 3, 4))],
    "can_cast": [lambda t: mnp.can_cast(t(F), "float32")],
    "choose": [
        lambda t: mnp.choose(t(I), [t(F), G, 0.5], mode="clip"),
        lambda t: mnp.choose(t(I), [F, t(G)], mode="wrap"),
        lambda t: mnp.choose(I % 2, [F, t(G)]),
    ],
    "clip": [lambda t: mnp.clip(t(F), 0.2, t(G))],
    "column_stack": [lambda t: mnp.column_stack([t(V), V])],
    "compress": [
        lambda t: mnp.compress(t(B[:, 0]), t(F), axis=0, size=2, fill_value=9),
        lambda t: mnp.compress(B[:, 0], t(F), axis=0),
    ],
    "concat": [lambda t: mnp.concat([t(F), G])],
    "concatenate": [lambda t: mnp.concatenate([F, t(G)], axis=1)],
    "cross": [lambda t: mnp.cross(t(S), S.T)],
    "cumulative_prod": [lambda t: mnp.cumulative_prod(t(F), axis=1, include_initial=True)],
    "cumulative_sum": [lambda t: mnp.cumulative_sum(t(F), axis=1, include_initial=True)],
    "digitize": [
        lambda t: mnp.digitize(t(F), EDGES),
        lambda t: mnp.digitize(F, t(EDGES)),
        lambda t: mnp.digitize(F, t(EDGES[::-1].copy()), right=True),
    ],
    "eye": [lambda t: mnp.eye(3, 4, t(N)[1]), lambda t: mnp.eye(3, k=t(N)[0] - 4, dtype="int8")],
    "tri": [lambda t: mnp.tri(3, 4, t(N)[1]), lambda t: mnp.tri(3, k=t(N)[0] - 4, dtype=bool)],
    "tril": [lambda t: mnp.tril(t(F)), lambda t: mnp.tril(t(T), t(N)[1] - 2)],
    "triu": [lambda t: mnp.triu(t(F)), lambda t: mnp.triu(F, t(N)[1] - 2)],
    "dot": [lambda t: mnp.dot(t(F), t(G.T))],
    "dsplit": [lambda t: mnp.dsplit(t(T), 2)],
    "hsplit": [lambda t: mnp.hsplit(t(T), 2)],
    "vsplit": [lambda t: mnp.vsplit(t(T), 2)],
    "dstack": [lambda t: mnp.dstack([t(F), G])],
    "hstack": [lambda t: mnp.hstack([t(F), G])],
    "vstack": [lambda t: mnp.vstack([t(F), G])],
    "stack": [lambda t: mnp.stack([F, t(G)])],
    "einsum": [
        lambda t: mnp.einsum("ij,kj->ik", t(F), G),
        lambda t: mnp.einsum("ii", t(S)),
        lambda t: mnp.einsum("ij,kj,kl->il", F, t(G), t(F)),
    ],
    "expand_dims": [lambda t: mnp.expand_dims(t(F), 1)],
    "extract": [lambda t: mnp.extract(t(B), t(F), size=5), lambda t: mnp.extract(B, t(F))],
    "finfo": [lambda t: mnp.finfo(t(F)).eps],
    "iinfo": [lambda t: mnp.iinfo(t(I)).max],
    "flatnonzero": [lambda t: mnp.flatnonzero(t(B), size=20, fill_value=-1)],
    "full": [lambda t: mnp.full((2, 4), t(V[:4])), lambda t: mnp.full(3, t(V)[0], "float32")],
    "full_like": [
        lambda t: mnp.full_like(t(F), 3),
        lambda t: mnp.full_like(F, t(V)[1]),
        lambda t: mnp.full_like(t(F), t(V)[1], shape=(2,)),
    ],
    "geomspace": [lambda t: mnp.geomspace(1, 8, 4) * t(F)],
    "histogram": [
        lambda t: mnp.histogram(t(F), 4),
        lambda t: mnp.histogram(t(F), EDGES),
        lambda t: mnp.histogram(t(F), 5, (0.2, 0.7), weights=t(G)),
        lambda t: mnp.histogram(F, t(EDGES), density=True),
    ],
    "histogram_bin_edges": [
        lambda t: mnp.histogram_bin_edges(t(F), 5),
        lambda t: mnp.histogram_bin_edges(t(np.full(4, 2.0)), 3),
    ],
    "interp": [
        lambda t: mnp.interp(t(F), t(EDGES), EDGES**2),
        lambda t: mnp.interp(F, EDGES, t(EDGES)),
    ],
    "intersect1d": [lambda t: mnp.intersect1d(t(N), J, size=4)],
    "setdiff1d": [lambda t: mnp.setdiff1d(t(N), J, size=4)],
    "setxor1d": [lambda t: mnp.setxor1d(N, t(J), size=4)],
    "union1d": [lambda t: mnp.union1d(t(N), J, size=9, fill_value=7)],
    "linspace": [
        lambda t: mnp.linspace(t(V)[0], 2, 5),
        lambda t: mnp.linspace(0, t(V), 4, axis=-1),
        lambda t: mnp.linspace(t(V)[0], t(V)[1], 3, endpoint=False, retstep=True),
        lambda t: mnp.linspace(t(V)[0], 9, 1),
        lambda t: mnp.linspace(t(N)[0], 9, 4, dtype=int),
    ],
    "logspace": [lambda t: mnp.logspace(t(V)[0], 2, 5)],
    "matmul": [lambda t: mnp.matmul(t(F), G.T), lambda t: mnp.matmul(T, t(T.swapaxes(1, 2)))],
    "meshgrid": [lambda t: mnp.meshgrid(t(V), N)],
    "moveaxis": [lambda t: mnp.moveaxis(t(T), 0, 2)],
    "nonzero": [
        lambda t: mnp.nonzero(t(B), size=5),
        lambda t: mnp.nonzero(t(B), size=20, fill_value=(-1, 9)),
    ],
    "pad": [
        lambda t: mnp.pad(t(F), 1),
        lambda t: mnp.pad(F, ((1, 2), (0, 1)), constant_values=t(V)[0]),
        lambda t: mnp.pad(t(F), 2, mode="edge"),
    ],
    "percentile": [
        lambda t: mnp.percentile(t(F), 30, axis=0),
        lambda t: mnp.percentile(F, t(V) * 100),
    ],
    "quantile": [
        lambda t: mnp.quantile(t(F), [0.1, 0.5]),
        *[
            lambda t, m=m: mnp.quantile(F, t(V), axis=1, method=m, keepdims=True)
            for m in ("linear", "lower", "higher", "midpoint", "nearest")
        ],
    ],
    "polyval": [lambda t: mnp.polyval(t(V), F), lambda t: mnp.polyval(V, t(F))],
    "repeat": [
        lambda t: mnp.repeat(t(F), 2, axis=1),
        lambda t: mnp.repeat(V, t(N), total_repeat_length=14),
        lambda t: mnp.repeat(t(F), t(N[:3]), axis=0, total_repeat_length=4),
    ],
    "reshape": [lambda t: mnp.reshape(t(F), (2, 6))],
    "result_type": [lambda t: str(mnp.result_type(t(F), "float32"))],
    "roll": [
        lambda t: mnp.roll(t(F), 1),
        lambda t: mnp.roll(t(F), t(N)[1], 1),
        lambda t: mnp.roll(F, (t(N)[1], -1), (0, 1)),
        lambda t: mnp.roll(V, t(N)[0]),
        lambda t: mnp.roll(F, t(N[:3]), 1),
        lambda t: mnp.roll(F, t(N[:2])),
        lambda t: mnp.roll(F, t(N[:1]), (0, 1)),
    ],
    "searchsorted": [
        lambda t: mnp.searchsorted(t(EDGES), F),
        lambda t: mnp.searchsorted(EDGES, t(F)),
        lambda t: mnp.searchsorted(V, 0.3, sorter=mnp.argsort(t(V))),
    ],
    "select": [lambda t: mnp.select([t(B), I > 1], [F, t(G)], 9.0)],
    "split": [lambda t: mnp.split(t(V), 3)],
    "swapaxes": [lambda t: mnp.swapaxes(t(T), 0, 2)],
    "take": [
        lambda t: mnp.take(t(F), 2, axis=1),
        lambda t: mnp.take(F, t(N[1:4]), axis=1, mode="clip"),
        lambda t: mnp.take(F, t(N), axis=0, mode="wrap"),
        lambda t: mnp.take(F, t(N - 2), mode="fill"),
    ],
    "take_along_axis": [
        lambda t: mnp.take_along_axis(t(F), np.argsort(F, 1), 1),
        lambda t: mnp.take_along_axis(F, mnp.argsort(t(F), 1), 1),
    ],
    "tensordot": [lambda t: mnp.tensordot(t(F), G, 2)],
    "tile": [lambda t: mnp.tile(t(F), (2, 1))],
    "unique": [
        lambda t: mnp.unique(t(N), True, True, True, size=4),
        lambda t: mnp.unique(t(N), True, True, True, size=7, fill_value=-1),
    ],
    "unique_all": [lambda t: mnp.unique_all(t(I), size=3)],
    "unique_counts": [lambda t: mnp.unique_counts(t(N), size=9)],
    "unique_inverse": [lambda t: mnp.unique_inverse(t(N), size=9)],
    "unique_values": [lambda t: mnp.unique_values(t(N), size=9)],
    "unravel_index": [lambda t: mnp.unravel_index(t(N), (3, 4))],
    "vander": [lambda t: mnp.vander(t(V), 3)],
    "where": [lambda t: mnp.where(t(B), F, t(G)), lambda t: mnp.where(t(B), size=3)],
}
LINALG: dict[str, list[Case]] = {
    **calls(
        linalg,
        """cholesky cond det eig eigh eigvals eigvalsh inv matrix_norm matrix_rank
        matrix_transpose norm pinv qr slogdet svd svdvals trace diagonal vector_norm""",
        lambda t: (t(S),),
    ),
    "cross": [lambda t: linalg.cross(t(S), S)],
    "lstsq": [lambda t: linalg.lstsq(t(F.T), V[:4])],
    "matmul": [lambda t: linalg.matmul(S, t(S))],
    "matrix_power": [
        lambda t: linalg.matrix_power(t(S), 3),
        lambda t: linalg.matrix_power(t(S), -2),
    ],
    "multi_dot": [lambda t: linalg.multi_dot([F, t(G.T), S])],
    "outer": [lambda t: linalg.outer(t(V), N)],
    "solve": [lambda t: linalg.solve(t(S), F), lambda t: linalg.solve(S, t(F[:, 0]))],
    "tensordot": [lambda t: linalg.tensordot(t(S), S, 1)],
    "vecdot": [lambda t: linalg.vecdot(t(C), C)],
}
ATTENTION = {"bias": np.ones((1, 2, 3, 3)), "mask": np.tri(3, dtype=bool)[None, None]}
NN: dict[str, list[Case]] = {
    **calls(nn, " ".join(n for n in nn.__all__ if n != "initializers"), lambda t: (t(F - 0.5),)),
    "one_hot": [lambda t: nn.one_hot(t(N), 4)],
    "softmax": [lambda t: nn.softmax(t(F)), lambda t: nn.softmax(F, where=t(B))],
    "log_softmax": [lambda t: nn.log_softmax(F, axis=0, where=t(B))],
    "logsumexp": [lambda t: nn.logsumexp(t(F), b=t(G), return_sign=True)],
    "logmeanexp": [lambda t: nn.logmeanexp(F, 1, where=t(B))],
    "log1mexp": [lambda t: nn.log1mexp(t(F))],
    "dot_product_attention": [
        lambda t: nn.dot_product_attention(
            t(T[:, :3, :].reshape(2, 3, 2, 3)),
            *[T[:, 1:, :].reshape(2, 3, 2, 3)] * 2,
            **{k: t(v) for k, v in ATTENTION.items()},
            query_seq_lengths=t(N[:2]),
            return_residual=True,
        )
    ],
}
FFT: dict[str, list[Case]] = {
    **calls(fft, "fft fft2 fftn ifft ifft2 ifftn fftshift ifftshift hfft irfft", lambda t: (t(C),)),
    **calls(fft, "irfft2 irfftn", lambda t: (t(C),)),
    **calls(fft, "ihfft rfft rfft2 rfftn", lambda t: (t(F),)),
    **calls(fft, "fftfreq rfftfreq", lambda t: (5, 0.5)),
}
METHODS: dict[str, Case] = {
    "arithmetic": lambda t: -(2 - t(F)) * G / 3 % t(G) // 0.1 + t(S).sum() ** 2,
    "reflected": lambda t: (1 - t(F), G * t(F), mnp.asarray(G) / t(F), 2 ** t(F), S @ t(S)),
    "compared": lambda t: (t(F) < G, mnp.asarray(F) >= t(G), t(I) == 2, ~t(B), abs(-t(F))),
    "divmod": lambda t: divmod(t(F), 0.3),
    "round": lambda t: (round(t(F), 1), t(F).round(2)),
    "shapes": lambda t: (t(F).T, t(T).mT, t(F).reshape(2, -1), t(F).ravel(), t(F).flatten()),
    "reductions": lambda t: (t(F).sum(0), t(F).mean(), t(F).max(1), t(F).std(), t(F).any()),
    "others": lambda t: (t(F).clip(0.2), t(F).take(t(N[1:4])), t(F).sort(), t(F).argsort()),
    "conversions": lambda t: (t(F).astype(int), t(C).real, t(C).imag, t(C).conj(), t(F).copy()),
    "unpacked": lambda t: [row * 2 for row in t(F)],
    "length": lambda t: len(t(F)),
    "nested": lambda t: mnp.array([[t(V)[0], 1.0], [t(V)[1], V[2]]]),
    "where=": lambda t: (
        mnp.sum(t(F), 0, where=t(B), initial=3),
        mnp.max(F, where=t(B), initial=0.0),
        mnp.mean(t(F), where=B[:, :1]),
        mnp.var(F, where=t(B), ddof=1),
        mnp.all(t(B), where=B),
    ),
    "typeof": lambda t: str(meshard.typeof(t(F))),
    "device_put": lambda t: meshard.device_put({"a": t(F)})["a"],
    "block_until_ready": lambda t: meshard.block_until_ready([t(F)]),
    "struct": lambda t: meshard.ShapeDtypeStruct.like(t(F)).shape,
}


def same(found: Any, expected: Any, rtol: float = 1e-13) -> None:
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            same(a, b, rtol)
        return
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if expected.dtype.kind in "fc":
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol / 100)
    else:
        np.testing.assert_array_equal(found, expected)


def check(case: Case, rtol: float = 1e-13) -> None:
    def body() -> None:
        expected = opened(case(mnp.asarray))
        same(traced(case), expected, rtol)
        same(jitted(case), expected, rtol)

    alone(body, 1)


SHORT = {"float64": "float32", "int64": "int16", "complex128": "complex64"}


def check_short(case: Case) -> None:
    """Check that jit changes no dtype, shape or value of what is made of shorter numbers."""

    def short(value: Any) -> Any:
        array = np.asarray(value)
        return array.astype(SHORT.get(array.dtype.name, array.dtype))

    def body() -> None:
        with np.errstate(all="ignore"):
            expected = opened(case(lambda v: mnp.asarray(short(v))))
            same(jitted(lambda t: case(lambda v: t(short(v)))), expected, 2e-5)

    alone(body, 1)


def test_every_function_is_swept():
    # What is not here runs traced, too, in test_numpy_names.
    elsewhere = EXPRESSIONS.keys() - NUMPY.keys() - {f"linalg.{name}" for name in LINALG}
    kinds = {name for name in mnp.__all__ if isinstance(getattr(mnp, name), type)}
    assert set(mnp.__all__) - NOT_CALLED - elsewhere - kinds == set(NUMPY)
    assert {f"linalg.{n}" for n in linalg.__all__ if n not in NOT_CALLED} - elsewhere == {
        f"linalg.{n}" for n in LINALG
    }
    assert set(fft.__all__) == set(FFT)
    assert set(nn.__all__) == set(NN)


@pytest.mark.parametrize("name", sorted(NUMPY))
def test_numpy(name):
    for case in NUMPY[name]:
        check(case)
        check_short(case)


@pytest.mark.parametrize("name", sorted(LINALG))
def test_linalg(name):
    for case in LINALG[name]:
        check(case)
        check_short(case)


@pytest.mark.parametrize("name", sorted(FFT))
def test_fft(name):
    for case in FFT[name]:
        check(case)
        check_short(case)


@pytest.mark.parametrize("name", sorted(NN))
def test_nn(name):
    for case in NN[name]:
        check(case)
        check_short(case)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_methods(name):
    check(METHODS[name])


# random numbers

KEY = np.array([3, 4], np.uint32)
TWO_OF_THREE = np.array([0.2, 0.3, 0.5])
SHAPES: tuple[Any, ...] = ((), (3,))
"""Without dims a parameter is not broadcast, so that it stays the number that it is."""


def drawn(name: str, *parameters: float, **more: Any) -> list[Case]:
    """Return cases that draw with a key and parameters, each of them traced."""
    function = getattr(random, name)
    return [lambda t, s=s: function(t(KEY), *map(t, parameters), shape=s, **more) for s in SHAPES]


RANDOM: dict[str, list[Case]] = {
    **{
        name: drawn(name)
        for name in (
            *("bits", "cauchy", "exponential", "gumbel", "laplace", "logistic", "maxwell"),
            *("normal", "rademacher"),
        )
    },
    **{
        name: drawn(name, 2.5)
        for name in (
            *("chisquare", "gamma", "generalized_normal", "loggamma", "lognormal", "pareto"),
            *("poisson", "rayleigh", "t", "wald"),
        )
    },
    **{
        name: drawn(name, 1.5, 2.5)
        for name in ("beta", "double_sided_maxwell", "f", "truncated_normal", "weibull_min")
    },
    **{name: drawn(name, 0.3) for name in ("bernoulli", "geometric")},
    "binomial": drawn("binomial", 7, 0.3),
    "triangular": drawn("triangular", 0.0, 0.5, 2.0),
    "uniform": [
        lambda t, s=s: random.uniform(t(KEY), s, minval=t(-1.0), maxval=t(2.0)) for s in SHAPES
    ],
    "randint": [lambda t, s=s: random.randint(t(KEY), s, t(-3), t(9)) for s in SHAPES],
    "ball": [lambda t: random.ball(t(KEY), 3, t(1.5), (2,))],
    "categorical": [lambda t: random.categorical(t(KEY), t(TWO_OF_THREE), shape=(4,))],
    "choice": [
        lambda t: random.choice(t(KEY), t(N), (2,)),
        lambda t: random.choice(t(KEY), 3, (2,), p=t(TWO_OF_THREE)),
    ],
    "dirichlet": [lambda t: random.dirichlet(t(KEY), t(TWO_OF_THREE), (2,))],
    "multinomial": [lambda t: random.multinomial(t(KEY), t(7), t(TWO_OF_THREE))],
    "multivariate_normal": [
        lambda t: random.multivariate_normal(t(KEY), t(S[0]), t(S), (2,)),
        lambda t: random.multivariate_normal(t(KEY), t(S[0]), t(S)),
    ],
    "orthogonal": [lambda t: random.orthogonal(t(KEY), 3)],
    "permutation": [lambda t: random.permutation(t(KEY), t(N))],
    "split": [lambda t: random.split(t(KEY), 3)],
    "fold_in": [lambda t: random.fold_in(t(KEY), t(5))],
    "clone": [lambda t: random.clone(t(KEY))],
    "key": [lambda t: random.key_data(random.key(t(5)))],
    "PRNGKey": [lambda t: random.PRNGKey(t(5))],
    "wrap_key_data": [lambda t: random.key_data(random.wrap_key_data(t(KEY)))],
    "key_data": [lambda t: random.key_data(t(KEY))],
}


def test_every_distribution_is_swept():
    assert set(random.__all__) - {"key_dtype", "key_impl"} == set(RANDOM)


@pytest.mark.parametrize("name", sorted(RANDOM))
def test_random(name):
    for case in RANDOM[name]:
        check(case)


# indices

INDEXED: list[Case] = [
    lambda t: t(F)[1],
    lambda t: t(F)[::2, ..., None],
    lambda t: t(F)[[0, 2]],
    lambda t: t(F)[B],
    lambda t: mnp.asarray(F)[t(N)[1]],
    lambda t: t(F)[t(N)[1], 2],
    lambda t: t(T)[:, t(N)[0]],
    lambda t: t(T)[..., t(N)[0], None],
    lambda t: t(T)[1:, ::2, t(N)[0]],
    lambda t: t(T)[t(N)[1], :, t(N)[0]],
    lambda t: t(T)[0, t(N[:4] % 4)],
    lambda t: mnp.asarray(T)[t(N[:4] % 2), :, t(N[:4])],
    lambda t: mnp.asarray(T)[:, t(N[:4] % 2)[:, None], t(N[:2])],
    lambda t: t(V)[t(-N - 1)],
    lambda t: t(V)[t(N.astype("int8"))],
    lambda t: t(V)[t(N.astype("uint8"))[3]],
    lambda t: t(F)[[t(N)[1], 0]],
    lambda t: mnp.asarray(V)[mnp.asarray(N)],
    lambda t: t(V)[mnp.asarray(N)],
    lambda t: t(V)[mnp.asarray(N > 2)],
    lambda t: t(V)[[[t(N)[0], 0], [1, t(N)[1]]],],
    lambda t: t(F)[[[t(N)[1], 0], (1, 2)], 1],
]


@pytest.mark.parametrize("index", [lambda i: (0, i), lambda i: (i, i), lambda i: (i[None], i)])
def test_nothing_is_at_a_place_of_an_empty_dim(index):
    def body() -> None:
        x, i = mnp.zeros((3, 0)), np.array(1)
        for run in (lambda f: f(mnp.asarray(i)), lambda f: meshard.jit(f)(i)):
            with pytest.raises(IndexingError, match="dim 1, which is empty"):
                run(lambda i: x[index(i)])

    alone(body, 1)


@pytest.mark.parametrize("number", range(len(INDEXED)))
def test_indices(number):
    check(INDEXED[number])


def test_positions_outside_are_moved_inside_as_in_jax(jax):
    x, places = np.arange(5.0), np.array([10, -2, -10, 2])

    def body() -> None:
        with jax.enable_x64(True):
            expected = np.asarray(jax.jit(lambda a, i: a[i])(x, places))
            scalars = [np.asarray(jax.jit(lambda a, i: a[i])(x, p)) for p in places]
            taken = np.asarray(jax.jit(jax.numpy.take)(x, places))
            along = np.asarray(jax.jit(jax.numpy.take_along_axis)(x, places))
            whole = np.asarray(jax.jit(jax.numpy.take)(np.arange(5), places))
        same(traced(lambda t: t(x)[t(places)]), expected)
        same(traced(lambda t: [t(x)[t(p)] for p in places]), scalars)
        same(traced(lambda t: mnp.take(x, t(places))), taken)
        same(traced(lambda t: mnp.take_along_axis(x, t(places), 0)), along)
        same(traced(lambda t: mnp.take(np.arange(5), t(places))), whole)

    alone(body, 1)


UPDATED: list[Case] = [
    lambda t: t(F).at[1].set(9),
    lambda t: t(F).at[1, ::2].add(t(V)[0]),
    lambda t: mnp.asarray(F).at[:, 1].multiply(t(V[:3])),
    lambda t: t(F).at[[0, 2]].min(0.5),
    lambda t: mnp.asarray(F).at[t(N)[1]].set(t(V[:4])),
    lambda t: t(F).at[t(N)[1], 2].add(1),
    lambda t: t(T).at[:, t(N)[0], ::2].set(7),
    lambda t: mnp.asarray(T).at[t(N[:4] % 2), :, t(N[:4])].add(1),
    lambda t: t(V).at[t(-N - 1)].max(0.5),
    lambda t: t(I).at[t(N[1:3])].divide(2),
    lambda t: t(V).at[t(N)].apply(lambda v: v * 2),
    lambda t: t(V).at[t(N)].get(),
    lambda t: t(F).at[t(B)].set(9),
    lambda t: mnp.asarray(F).at[t(B)].add(1.5),
    lambda t: mnp.asarray(F).at[t(B)].apply(lambda v: -v),
    lambda t: t(F).at[t(B[:, 0])].set(t(V[:4])),
    lambda t: t(F).at[:, t(B[0])].multiply(2),
    lambda t: t(T).at[..., t(T[0, 0] > 0.5)].set(np.ones((2, 1, 1))),
    lambda t: t(F).at[B].set(t(V)[0]),
]


@pytest.mark.parametrize("number", range(len(UPDATED)))
def test_updates(number):
    check(UPDATED[number])


@pytest.mark.parametrize("how", ["set", "add"])
def test_updates_outside_are_dropped_as_in_jax(how, jax):
    x, places = np.arange(5.0), np.array([10, -2, -10, 1, 1])

    def body() -> None:
        with jax.enable_x64(True):
            call = jax.jit(lambda a, i: getattr(a.at[i], how)(9.0))
            expected = np.asarray(call(x, places))
        same(traced(lambda t: getattr(t(x).at[t(places)], how)(9.0)), expected)
        same(traced(lambda t: getattr(t(x).at[t(np.array(8))], how)(9.0)), x)

    alone(body, 1)


# refusals

REFUSED: list[tuple[str, Case]] = [
    (
        r"nonzero: bool.* The result's shape depends on the values. Give size=",
        lambda t: mnp.nonzero(t(B)),
    ),
    (r"nonzero: .*Give size=", lambda t: mnp.where(t(B))),
    (r"nonzero: .*Give size=", lambda t: mnp.argwhere(t(B))),
    (r"flatnonzero: .*Give size=", lambda t: mnp.flatnonzero(t(B))),
    (r"extract: .*Give size=", lambda t: mnp.extract(t(B), F)),
    (r"compress: .*Give size=", lambda t: mnp.compress(t(B)[0], F, axis=1)),
    (r"unique: .*Give size=", lambda t: mnp.unique(t(N))),
    (r"unique: .*Give size=", lambda t: mnp.unique_all(t(N))),
    (r"unique: .*Give size=", lambda t: mnp.unique_counts(t(N))),
    (r"unique: .*Give size=", lambda t: mnp.unique_inverse(t(N))),
    (r"unique: .*Give size=", lambda t: mnp.unique_values(t(N))),
    (r"unique: .*Give size=", lambda t: mnp.union1d(t(N), N)),
    (r"intersect1d: .*Give size=", lambda t: mnp.intersect1d(N, t(N))),
    (r"setdiff1d: .*Give size=", lambda t: mnp.setdiff1d(N, t(N))),
    (r"setdiff1d: .*Give size=", lambda t: mnp.setxor1d(N, t(N))),
    (r"bincount: .*The result's size depends.*Give length=", lambda t: mnp.bincount(t(N))),
    (r"repeat: .*The result's shape.*total_repeat_length", lambda t: mnp.repeat(V, t(N))),
    (r"arange: .*The result's size.*start \+ step \* mnp.arange", lambda t: mnp.arange(t(N)[0])),
    (r"geomspace: .*mnp.exp\(mnp.linspace", lambda t: mnp.geomspace(t(V)[0], 2)),
    (r"choose: .*mode='raise'.*mode='clip'", lambda t: mnp.choose(t(I), [F, G])),
    (r"take: .*mode='raise'.*mode='clip'", lambda t: mnp.take(F, t(N), mode="raise")),
    (r"pad: .*The result's shape", lambda t: mnp.pad(F, t(N)[1])),
    (
        r"pad: .*A traced constant_values must be one",
        lambda t: mnp.pad(F, 1, constant_values=t(V[:2])),
    ),
    (r"x\[mask\]: .*meshard.numpy.where\(mask, x, other\)", lambda t: t(F)[t(B)]),
    (r"x\[mask\]: .*meshard.numpy.where\(mask, x, other\)", lambda t: mnp.asarray(F)[t(B)]),
    (r"x\[start:stop\]: .*dynamic_slice_in_dim", lambda t: mnp.asarray(V)[t(N)[1] :]),
    (r"x.at\[mask, ...\]: .*one of the array's shape", lambda t: t(F).at[t(B[:, 0]), 1].set(0)),
    (r"x.at\[mask\].set: .*meshard.numpy.where", lambda t: t(F).at[t(B)].set(t(V))),
    (
        r"device_put: .*inside a transformation",
        lambda t: meshard.device_put(t(F), meshard.devices()[0]),
    ),
    (r"device_get: float64\[3,4\] is traced", lambda t: meshard.device_get(t(F))),
    (r"A Python if, while", lambda t: 1 if t(F)[0, 0] > 0 else 2),
    (r"int\(\): float64\[\] is traced", lambda t: int(t(F)[0, 0])),
    (r"diag: .*decides the result.s size", lambda t: mnp.diag(V, t(N)[1])),
    (r"A NumPy function: float64\[3,4\] is traced", lambda t: np.asarray(t(F))),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refused(number):
    words, case = REFUSED[number]

    def body() -> None:
        with pytest.raises(ConcretizationError, match=words):
            traced(case)

    alone(body, 1)


def test_a_mask_that_does_not_fit_is_refused():
    def body() -> None:
        with pytest.raises(IndexingError, match=r"boolean index of shape \(4,\) does not fit"):
            traced(lambda t: t(F).at[t(B[0])].set(1))

    alone(body, 1)


def test_values_that_are_known_may_be_looked_at():
    def body() -> None:
        x = mnp.asarray(N)
        found = traced(lambda t: [mnp.unique(x + 0), t(V)[(x + 0) > 2], mnp.nonzero(x - 3)])
        same(found, opened([mnp.unique(x), V[N > 2], mnp.nonzero(x - 3)]))

    alone(body, 1)


def test_a_matrix_that_fails_gives_nan():
    def body() -> None:
        assert np.isnan(traced(lambda t: linalg.inv(t(np.zeros((2, 2)))))).all()
        with pytest.raises(MeshardError, match="singular"):
            linalg.inv(np.zeros((2, 2)))

    alone(body, 1)
