"""Mapped functions, written once for meshard and for JAX: what `vmap` is asked in many ways.

Each takes the modules as ``m`` and returns a tree of arrays. What is refused is listed too, with
words of the message.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

_rng = np.random.default_rng(0)


def _n(*shape: int) -> Any:
    return _rng.normal(size=shape)


V, M, T = _n(4), _n(4, 3), _n(4, 3, 5)
S = np.stack([a @ a.T + 3 * np.eye(3) for a in _n(4, 3, 3)])
C = _n(4, 3) + 1j * _n(4, 3)
K, B = _rng.integers(0, 3, (4, 2)), _rng.integers(0, 2, (4, 3)).astype(bool)
F = _n(4, 3).astype(np.float32)
U = _rng.integers(0, 200, (4, 3)).astype(np.uint8)


class Pair(NamedTuple):
    """A tree with names."""

    a: Any
    b: Any


Case = Callable[[Any], Any]
CASES: dict[str, Case] = {}


def _case(f: Case) -> Case:
    CASES[f.__name__.strip("_")] = f
    return f


def _mapped(name: str, f: Callable[..., Any], *args: Any, **axes: Any) -> None:
    """Add a function of modules and arrays, mapped over arrays."""
    CASES[name] = lambda m: m.vmap(partial(f, m), **axes)(
        *[
            m.tree.map(lambda x: m.np.asarray(x) if isinstance(x, np.ndarray) else x, x)
            for x in args
        ]
    )


# which dims are mapped, of what
_mapped("constant", lambda m, x: 3, V)
_mapped("constant array", lambda m, x: m.np.arange(3), V)
_mapped("constant out last", lambda m, x: (x, m.np.arange(3)), V, out_axes=(0, -1))
_mapped("constant out None", lambda m, x: (x, m.np.arange(3)), V, out_axes=(0, None))
_mapped("argument out None", lambda m, x, y: (x, y), V, 7, in_axes=(0, None), out_axes=(0, None))
_mapped("identity", lambda m, x: x, T, in_axes=1, out_axes=2)
for _a in (-3, -2, -1, 0, 1, 2):
    _mapped(f"sum over the rest of {_a}", lambda m, x: m.np.sum(x), T, in_axes=_a)
    _mapped(f"identity out {_a}", lambda m, x: x, T, in_axes=0, out_axes=_a)
    _mapped(f"from {_a}", lambda m, x: x + 1, T, in_axes=_a, out_axes=-1)
_mapped("a shared argument", lambda m, x, y: x @ y, T, _n(5, 2), in_axes=(0, None))
_mapped("list of axes", lambda m, x, y: x * y, V, 2.0, in_axes=[0, None])
_mapped("dict", lambda m, d: d["a"] * d["b"], {"a": V, "b": M.T}, in_axes=({"a": 0, "b": 1},))
_mapped(
    "dict with None",
    lambda m, d: d["a"] * d["b"],
    {"a": V, "b": 2.0},
    in_axes=({"a": 0, "b": None},),
)
_mapped("one axis for a tree", lambda m, d, y: d["a"] + y, {"a": V, "b": (M, T)}, V, in_axes=(0, 0))
_mapped("None for a tree", lambda m, d, y: d["a"] + y, {"a": M, "b": (M, T)}, V, in_axes=(None, 0))
_mapped(
    "nested prefix",
    lambda m, d: d[0]["a"] + d[1][0],
    [{"a": V, "b": V}, (M.T, M.T)],
    in_axes=([0, 1],),
)
_mapped(
    "named tuple",
    lambda m, p: Pair(p.b, p.a),
    Pair(V, M),
    in_axes=(Pair(0, 0),),
    out_axes=Pair(1, 0),
)
_mapped(
    "axes for results",
    lambda m, x: {"a": x, "b": (x * 2, m.np.sum(x))},
    T,
    out_axes={"a": 1, "b": 0},
)
_mapped("tree axes for results", lambda m, x: [x, (x, x)], T, out_axes=[0, (1, -1)])
_mapped("nothing in a tuple", lambda m, x, _: (x + 1, ()), V, ())
_mapped("None in a tree", lambda m, d: d["a"] + 1, {"a": V, "b": None})
_mapped("no results", lambda m, x: (), V)
_mapped("a number for all", lambda m, x, y: x + y, V, 2, in_axes=(0, None))
_mapped("a size", lambda m, x: x * 2, V, in_axes=None, axis_size=3)
_mapped("a size and None out", lambda m, x: x * 2, V, in_axes=None, out_axes=None, axis_size=3)
_mapped("a size that agrees", lambda m, x: x * 2, V, axis_size=4)
_mapped("no examples", lambda m, x: m.np.sum(x) + x, np.zeros((0, 3)))
_mapped("one example", lambda m, x: m.np.sum(x) + x, np.ones((1, 3)))
_mapped("no elements", lambda m, x: (x, m.np.sum(x)), np.zeros((4, 0)))


# what all examples share is passed on as it is
_mapped("a static size", lambda m, x, n: x.reshape(n, -1), T, 3, in_axes=(0, None))
_mapped("a text", lambda m, x, how: getattr(m.np, how)(x), T, "sum", in_axes=(0, None))
_mapped("a weak number", lambda m, x, y: (x * y, x + 1), F, 2.0, in_axes=(0, None))
_mapped("a value to look at", lambda m, x, y: x if y > 0 else -x, V, 1.5, in_axes=(0, None))
_mapped("an array to look at", lambda m, x, y: x * int(y[1]), V, M[0], in_axes=(0, None))
_mapped("a function", lambda m, x, f: f(m)(x), V, lambda m: m.np.sin, in_axes=(0, None))


@_case
def _by_name(m):
    return m.vmap(lambda a, b: (2 * a, 3 * b))(a=m.asarray(V), b=m.asarray(M))


@_case
def _by_name_and_place(m):
    return m.vmap(lambda a, *, b: a + b, in_axes=1)(m.asarray(M.T), b=m.asarray(M))


@_case
def _numpy_arguments(m):
    return m.vmap(lambda a, b: m.np.dot(a, b))(M, M)


@_case
def _decorated(m):
    @partial(m.vmap, in_axes=(0, None))
    def scaled(x, y):
        return x * y

    return scaled(m.asarray(M), 3.0)


@_case
def _closed_over(m):
    w = m.asarray(M)
    return m.vmap(lambda x: w @ x)(m.asarray(F))


@_case
def _matrix_product_of_vectors(m):
    vector = m.vmap(m.np.vdot, in_axes=(0, None))
    return m.vmap(vector, in_axes=(None, 1), out_axes=1)(m.asarray(M), m.asarray(_N32))


_N32 = _n(3, 2)


@_case
def _pairs(m):
    pair = m.vmap(m.vmap(lambda a, b: m.np.sum((a - b) ** 2), (None, 0)), (0, None))
    return pair(m.asarray(M), m.asarray(M[:2]))


@_case
def _three_deep(m):
    return m.vmap(m.vmap(m.vmap(m.np.sin, 1, 1)), 2, 1)(m.asarray(_T4))


_T4 = _n(2, 3, 4, 2)

# elements, dtypes and numbers
for _name, _x in {"float": M, "float32": F, "complex": C, "int": K, "uint8": U, "bool": B}.items():
    _mapped(f"{_name} sums", lambda m, x: (m.np.sum(x), m.np.sum(x, axis=0), m.np.mean(x)), _x)
    _mapped(f"{_name} and numbers", lambda m, x: (x * 2, x + 1, 2 - x * 1), _x)
    _mapped(f"{_name} and floats", lambda m, x: x * 0.5 + 1.0, _x)
    _mapped(
        f"{_name} and itself",
        lambda m, x: (m.np.where(x > x[0], x, 0), m.np.stack([x, x]), x[::-1]),
        _x,
    )
_mapped("mixed dtypes", lambda m, x, y, b: m.np.where(b, x, y), F, U, B)
_mapped("astype", lambda m, x: x.astype(np.int32), M * 3)
_mapped("of no dims", lambda m, x, y: m.np.maximum(x, y) + 1.5 * x, V, F[:, 0])
_mapped("complex parts", lambda m, z: (z.real, z.imag, m.np.abs(z), m.np.conj(z), m.np.angle(z)), C)
_mapped("comparisons", lambda m, x: (x > 0, m.np.any(x > 1), m.np.all(x < 3), m.np.isnan(x)), M)

# shapes
_mapped("reshape", lambda m, x: (x.reshape(5, 3), x.ravel(), x.T, m.np.swapaxes(x, 0, 1)), T)
_mapped(
    "expand", lambda m, x: (x[None], x[:, None], m.np.squeeze(x[None]), m.np.expand_dims(x, -1)), T
)
_mapped("broadcast", lambda m, x: (m.np.broadcast_to(x, (2, 3)), m.np.ones((2, 1)) * x), M)
_mapped("concatenate", lambda m, x, y: m.np.concatenate([x, y, m.np.zeros(2)]), M, T[:, 0])
_mapped(
    "concatenate axes",
    lambda m, *a: m.np.concatenate(a, 1),
    M[:, :, None],
    T,
    _n(3, 2),
    in_axes=(0, 0, None),
)
_mapped("split", lambda m, x: m.np.split(x, [1, 3], axis=1), T)
_mapped("tile", lambda m, x: (m.np.tile(x, 2), m.np.repeat(x, 3), m.np.repeat(x, 2, axis=0)), M)
_mapped("pad", lambda m, x: (m.np.pad(x, 1), m.np.pad(x, (1, 2), mode="edge")), M)
_mapped("lax.pad", lambda m, x, v: m.lax.pad(x, v, [(1, 2, 1), (0, 1, 0)]), T, V)
_mapped("lax.pad cuts", lambda m, x: m.lax.pad(x, 0.0, [(-1, 0, 0), (0, -2, 1)]), T)
_mapped("flip and roll", lambda m, x: (m.np.flip(x), m.np.roll(x, 2), m.np.roll(x, 1, axis=0)), T)
_mapped("triangles", lambda m, x: (m.np.tril(x), m.np.triu(x, 1), m.np.trace(x), m.np.diag(x)), S)
_mapped("diag of a vector", lambda m, x: (m.np.diag(x), m.np.diag(x, 1)), M)
_mapped("meshgrid", lambda m, x, y: m.np.meshgrid(x, y), M, M)
_mapped("arange like", lambda m, x: x + m.np.arange(3) + m.np.ones_like(x) + m.np.zeros_like(x), M)
_mapped("full_like", lambda m, x: m.np.full_like(x, 7.0), M)
_mapped("linspace", lambda m, x: m.np.linspace(x, 2 * x, 5), V)

# indices
_mapped("basic index", lambda m, x: (x[1], x[:, 2], x[..., -1], x[1:, ::2], x[None, 0]), T)
_mapped("a shared position", lambda m, x, i: x[i], T, 1, in_axes=(0, None))
_mapped("positions for each", lambda m, x, i: x[i], M, K)
_mapped("positions for a shared", lambda m, x, i: x[i], M, K, in_axes=(None, 0))
_mapped("positions in the middle", lambda m, x, i: x[:, i], T, K)
_mapped("two positions", lambda m, x, i, j: x[i, j], T, K, K)
_mapped("one position for each", lambda m, x, i: (x[i], x[:, i]), T, K[:, 0])
_mapped("constant positions", lambda m, x: x[:, m.np.array([0, 2])], T)
_mapped("mask", lambda m, x, b: m.np.where(b, x, -1.0), M, B)
_mapped("take", lambda m, x, i: (m.np.take(x, i), m.np.take(x, i, axis=1)), T, K)
_mapped("take_along_axis", lambda m, x: m.np.take_along_axis(x, m.np.argsort(x, axis=1), 1), T)
_mapped("at set", lambda m, x, i: x.at[i].set(9.0), M, K)
_mapped(
    "at add for a shared",
    lambda m, x, i, y: x.at[i].add(y),
    np.zeros(5),
    K,
    V,
    in_axes=(None, 0, 0),
)
_mapped("at add slices", lambda m, x, y: x.at[1:, ::2].add(y), T, _n(4, 2, 3))
_mapped("at of each", lambda m, x, i, y: x.at[:, i].multiply(y), T, K, _n(4, 3, 2))
_mapped("at max", lambda m, x, i: x.at[i].max(0.5), M, K)
_mapped("dynamic_slice", lambda m, x, i: m.lax.dynamic_slice(x, (i, 0), (2, 5)), T, K[:, 0])
_mapped(
    "dynamic_slice shared",
    lambda m, x, i: m.lax.dynamic_slice(x, (i,), (2,)),
    V,
    K[:, 0],
    in_axes=(None, 0),
)
_mapped("dynamic_slice two", lambda m, x, i: m.lax.dynamic_slice(x, (i[0], i[1]), (2, 3)), T, K)
_mapped("dynamic_slice of nothing", lambda m, x: m.lax.dynamic_slice(x, [], []), V)
_mapped(
    "dynamic_update_slice",
    lambda m, x, y, i: m.lax.dynamic_update_slice(x, y, (i, 1)),
    T,
    T[:, :2, :2],
    K[:, 0],
)
_mapped(
    "dynamic_update_index",
    lambda m, x, y, i: m.lax.dynamic_update_index_in_dim(x, y, i, axis=0),
    V,
    V,
    K[:, 0],
    in_axes=(None, 0, 0),
)
_mapped("dynamic_index_in_dim", lambda m, x, i: m.lax.dynamic_index_in_dim(x, i, 1), T, K[:, 1])
_mapped("searchsorted", lambda m, x, y: m.np.searchsorted(m.np.sort(x), y), M, T[:, 0])
_mapped(
    "searchsorted shared",
    lambda m, x, y: m.np.searchsorted(x, y, side="right"),
    np.arange(3.0),
    M,
    in_axes=(None, 0),
)
_mapped("digitize", lambda m, x, e: m.np.digitize(x, m.np.sort(e)), T[:, 0], M)
_mapped("interp", lambda m, x, p, q: m.np.interp(x, m.np.sort(p), q), T[:, 0], M, M)
_mapped("nonzero with a size", lambda m, b: m.np.nonzero(b, size=2, fill_value=-1), B)
_mapped("unique with a size", lambda m, x: m.np.unique(x, size=3, fill_value=0), U % 3)
_mapped("bincount", lambda m, i: m.np.bincount(i, length=4), K)
_mapped("isin", lambda m, x, y: m.np.isin(x, y), U % 3, K)
_mapped("histogram", lambda m, x: m.np.histogram(x, bins=3), T[:, 0])

# reductions, orders
for _name in [
    "sum",
    "prod",
    "max",
    "min",
    "mean",
    "std",
    "var",
    "median",
    "any",
    "all",
    "argmax",
    "argmin",
    "ptp",
]:
    _mapped(f"{_name} of all", lambda m, x, name=_name: getattr(m.np, name)(x), T)
    _mapped(
        f"{_name} over a dim",
        lambda m, x, name=_name: getattr(m.np, name)(x, axis=-1),
        T,
        in_axes=1,
    )
_mapped("sum over dims", lambda m, x: (m.np.sum(x, (0, 1)), m.np.sum(x, 0, keepdims=True)), T)
_mapped(
    "quantile",
    lambda m, x: (m.np.quantile(x, 0.3), m.np.percentile(x, m.np.array([20.0, 70.0]))),
    M,
)
_mapped("quantiles of each", lambda m, x, q: m.np.quantile(x, q), T, abs(V) % 1)
_mapped("cumulative", lambda m, x: (m.np.cumsum(x), m.np.cumprod(x, axis=1), m.lax.cummax(x, 0)), T)
_mapped("diff", lambda m, x: (m.np.diff(x), m.np.ediff1d(x), m.np.flip(m.np.diff(x, n=2))), M)
_mapped("sort", lambda m, x: (m.np.sort(x), m.np.argsort(x), m.np.sort(x, axis=None)), T)
_mapped("sort over axes", lambda m, x: m.lax.sort(x, dimension=0), T, in_axes=1, out_axes=1)
_mapped("sort_key_val", lambda m, k, v: m.lax.sort_key_val(k, v), M, F)
_mapped("sort_key_val shared", lambda m, k, v: m.lax.sort_key_val(k, v), M, F[0], in_axes=(0, None))
_mapped("sort of several", lambda m, a, b, c: m.lax.sort((a, b, c), num_keys=2), U % 2, M, F)
_mapped("top_k", lambda m, x: m.lax.top_k(x, 2), M)
_mapped("partition", lambda m, x: m.np.sort(m.np.partition(x, 1)[:2]), M)
_mapped("associative_scan", lambda m, x: m.lax.associative_scan(m.np.multiply, x), M)

# products
_mapped("dot", lambda m, x, y: m.np.dot(x, y), M, M)
_mapped("dot with a shared", lambda m, x, y: m.np.dot(x, y), M, _n(4), in_axes=(1, None))
_mapped("matmul", lambda m, x, y: x @ y, T, _n(4, 5, 2))
_mapped("matmul of stacks", lambda m, x, y: x @ y, _n(4, 2, 3, 5), _n(5, 2), in_axes=(0, None))
_mapped("einsum", lambda m, x, y: m.np.einsum("ij,kj->ik", x, y), T, T)
_mapped("einsum of traces", lambda m, x: (m.np.einsum("ii", x), m.np.einsum("ii->i", x)), S)
_mapped("tensordot", lambda m, x, y: m.np.tensordot(x, y, 1), T, _n(4, 5, 2))
_mapped(
    "outer and kron", lambda m, x, y: (m.np.outer(x, y), m.np.kron(x, y), m.np.cross(x, y)), M, M
)
_mapped("inner", lambda m, x: (m.np.inner(x, x), m.np.vdot(x, x)), M)
for _axes in ((0, 0), (2, 1), (3, None), (None, 2)):
    _mapped(
        f"dot_general over {_axes}",
        lambda m, x, y: m.lax.dot_general(x, y, (((2,), (1,)), ((0,), (0,)))),
        *[
            x if a is None else np.moveaxis(np.stack([x] * 4), 0, a)
            for x, a in zip((_n(3, 4, 5), _n(3, 5, 6)), _axes, strict=True)
        ],
        in_axes=_axes,
    )
_mapped("polyval", lambda m, c, x: m.np.polyval(c, x), M, V)

# linear algebra and transforms
_mapped("cholesky", lambda m, x: m.np.linalg.cholesky(x), S)
_mapped(
    "cholesky over another dim",
    lambda m, x: m.np.linalg.cholesky(x),
    np.moveaxis(S, 0, 1),
    in_axes=1,
)
_mapped("solve", lambda m, a, b: m.np.linalg.solve(a, b), S, M)
_mapped(
    "solve with a shared matrix",
    lambda m, a, b: m.np.linalg.solve(a, b),
    S[0],
    M,
    in_axes=(None, 0),
)
_mapped(
    "solve with a shared side", lambda m, a, b: m.np.linalg.solve(a, b), S, M[0], in_axes=(0, None)
)
_mapped(
    "inv and det",
    lambda m, x: (m.np.linalg.inv(x), m.np.linalg.det(x), m.np.linalg.slogdet(x)[1]),
    S,
)
_mapped("eigvalsh", lambda m, x: m.np.linalg.eigvalsh(x), S)
_mapped("svd", lambda m, x: m.np.linalg.svd(x, compute_uv=False), T)
_mapped("qr", lambda m, x: m.np.abs(m.np.linalg.qr(x)[1]), S)
_mapped(
    "norms",
    lambda m, x: (m.np.linalg.norm(x), m.np.linalg.norm(x, axis=0), m.np.linalg.norm(x, 1)),
    T,
)
_mapped("pinv and rank", lambda m, x: (m.np.linalg.pinv(x), m.np.linalg.matrix_rank(x)), T)
_mapped("matrix_power", lambda m, x: m.np.linalg.matrix_power(x, 3), S)
_mapped(
    "fft",
    lambda m, x: (m.np.fft.fft(x), m.np.fft.rfft(x), m.np.fft.fft2(x), m.np.fft.ifft(x, axis=0)),
    T,
)
_mapped("irfft", lambda m, x: (m.np.fft.irfft(x), m.np.fft.fftshift(x)), C)
_mapped(
    "nn",
    lambda m, x: (
        m.nn.softmax(x),
        m.nn.relu(x),
        m.nn.logsumexp(x),
        m.nn.one_hot(m.np.argmax(x), 3),
    ),
    M,
)

# loops and branches
_mapped("scan", lambda m, c, x: m.lax.scan(lambda c, r: (c + m.np.sum(r), c * r), c, x), V, T)
_mapped(
    "scan of a shared",
    lambda m, c, x: m.lax.scan(lambda c, r: (c * r, c + r), c, x),
    V,
    V,
    in_axes=(0, None),
)
_mapped(
    "scan with a shared carry",
    lambda m, c, x: m.lax.scan(lambda c, r: (c + r, c), c, x),
    1.0,
    M,
    in_axes=(None, 0),
)
_mapped("scan backwards", lambda m, x: m.lax.scan(lambda c, r: (c + r, c), 0.0, x, reverse=True), M)
_mapped("scan of a count", lambda m, x: m.lax.scan(lambda c, _: (c * x, c), x, None, length=3), V)
_mapped(
    "scan over rows",
    lambda m, x: m.lax.scan(lambda c, r: (c, r[0]), 0, x)[1],
    T,
    in_axes=2,
    out_axes=1,
)
_mapped("fori_loop", lambda m, x: m.lax.fori_loop(0, 3, lambda i, c: c * x + i, x), V)
_mapped(
    "fori_loop to a bound",
    lambda m, x, n: m.lax.fori_loop(0, n, lambda i, c: c + i * x, x),
    V,
    K[:, 0],
)
_mapped(
    "fori_loop from a bound",
    lambda m, x, n: m.lax.fori_loop(n, 3, lambda i, c: c + i, x),
    V,
    K[:, 0],
)
_mapped(
    "while_loop", lambda m, x: m.lax.while_loop(lambda c: c < 5, lambda c: c * 2 + 0.1, x), abs(V)
)
_mapped(
    "while_loop of several",
    lambda m, x, n: m.lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 1.5), (0, x)),
    V,
    K[:, 0] + 1,
)
_mapped(
    "while_loop with a shared end",
    lambda m, x: m.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + x), (0, x)),
    V,
)
_mapped(
    "while_loop on arrays",
    lambda m, x: m.lax.while_loop(lambda c: m.np.sum(c) < 20, lambda c: c + abs(x), abs(x)),
    M,
)
_mapped(
    "while_loop that never begins",
    lambda m, x: m.lax.while_loop(lambda c: c > 100, lambda c: c / 0, x),
    V,
)
_mapped("cond", lambda m, x: m.lax.cond(x > 0, m.np.sin, lambda v: v * 2, x), V)
_mapped(
    "cond of a shared predicate",
    lambda m, p, x: m.lax.cond(p, m.np.sin, lambda v: v * 2, x),
    True,
    V,
    in_axes=(None, 0),
)
_mapped(
    "cond on shared values",
    lambda m, p, x: m.lax.cond(p, lambda v: v + 1, lambda v: v * 2, x),
    V > 0,
    M[0],
    in_axes=(0, None),
)
_mapped(
    "cond of trees",
    lambda m, x: m.lax.cond(x[0] > 0, lambda d: {"a": d}, lambda d: {"a": -d}, x),
    M,
)
_mapped(
    "switch", lambda m, i, x: m.lax.switch(i, [m.np.sin, m.np.cos, lambda v: v * 0], x), K[:, 0], V
)
_mapped(
    "switch clamps", lambda m, i, x: m.lax.switch(i * 5 - 3, [m.np.sin, m.np.cos], x), K[:, 0], V
)
_mapped("lax.map", lambda m, x: m.lax.map(lambda r: r * m.np.sum(r), x), T)
_mapped("select", lambda m, p, a, b: m.lax.select(p, a, b), B, M, M)
_mapped("select by one", lambda m, p, a, b: m.lax.select(p, a, b), B[:, 0], M, M)
_mapped(
    "select with shared sides",
    lambda m, p, a, b: m.lax.select(p, a, b),
    B[:, 0],
    M[0],
    M[1],
    in_axes=(0, None, None),
)
_mapped(
    "select of a shared predicate",
    lambda m, p, a, b: m.lax.select(p, a, b),
    True,
    V,
    3.0,
    in_axes=(None, 0, None),
)
_mapped("clamp", lambda m, x, a: m.lax.clamp(a, x, 1.0), M, V)


# other transformations
@_case
def _jitted(m):
    return m.jit(m.vmap(lambda x: m.np.sin(x) * m.np.sum(x)))(m.asarray(M))


@_case
def _of_jitted(m):
    return m.vmap(m.jit(lambda x, y: m.np.sin(x) * m.np.sum(y)), in_axes=(0, None))(m.asarray(M), V)


@_case
def _gradients_of_examples(m):
    def loss(w, x, y):
        return m.np.sum((m.np.tanh(x @ w["a"]) @ w["b"] - y) ** 2)

    w = {"a": m.asarray(_n(3, 2) * 0 + 0.3), "b": m.asarray(np.ones(2))}
    return m.vmap(m.grad(loss), in_axes=(None, 0, 0))(w, m.asarray(M), m.asarray(V))


@_case
def _values_and_gradients(m):
    return m.vmap(m.value_and_grad(lambda x: m.np.sum(x**3)))(m.asarray(M))


@_case
def _gradient_of_mapped(m):
    return m.grad(lambda x: m.np.sum(m.vmap(lambda r: m.np.sin(r) * m.np.max(r))(x)))(m.asarray(M))


@_case
def _jacobians(m):
    f = lambda x: m.np.tanh(m.asarray(M) @ x)  # noqa: E731
    rows, columns = m.vmap(m.jacrev(f)), m.vmap(m.jacfwd(f))
    return rows(m.asarray(F)), columns(m.asarray(F))


@_case
def _hessians(m):
    return m.vmap(m.hessian(lambda x: m.np.prod(m.np.sin(x))))(m.asarray(M))


@_case
def _pulled_back(m):
    _, back = m.vjp(lambda x: m.np.sin(x @ m.asarray(M)), m.asarray(V))
    return m.vmap(back)(m.asarray(np.eye(3))), m.vmap(back, out_axes=-1)(m.asarray(np.eye(3)))


@_case
def _pushed(m):
    x = m.asarray(V)
    return m.vmap(lambda t: m.jvp(lambda v: v * m.np.sum(v), (x,), (t,)), out_axes=(None, 0))(
        m.asarray(np.eye(4))
    )


@_case
def _gradient_through_while_and_cond(m):
    def f(x):
        y = m.lax.fori_loop(0, 3, lambda i, c: m.np.sin(c) + i, x)
        return m.lax.cond(y > 0.5, lambda v: v**2, m.np.cos, y)

    return m.vmap(m.grad(f))(m.asarray(V))


@_case
def _custom_rules(m):
    @m.custom_jvp
    def f(x):
        return m.np.sin(x)

    f.defjvp(lambda primals, tangents: (f(primals[0]), 3.0 * tangents[0]))

    @m.custom_vjp
    def g(x, y):
        return x * y

    g.defvjp(lambda x, y: (x * y, (x, y)), lambda kept, t: (t * kept[1] * 2, t * kept[0] * 3))
    slopes = m.vmap(m.grad(g, (0, 1)), in_axes=(0, None))(m.asarray(V), 2.0)
    return m.vmap(m.grad(f))(m.asarray(V)), slopes, m.vmap(g)(m.asarray(V), m.asarray(V))


@_case
def _checkpointed(m):
    return m.vmap(m.grad(m.checkpoint(lambda x: m.np.sum(m.np.sin(x) ** 2))))(m.asarray(M))


@_case
def _linearized(m):
    _, f = m.linearize(lambda x: x * m.np.sum(x), m.asarray(V))
    return m.vmap(f)(m.asarray(np.eye(4)))


@_case
def _newton(m):
    def root(a):
        return m.lax.while_loop(
            lambda s: abs(s[0] ** 2 - a) > 1e-9,
            lambda s: (0.5 * (s[0] + a / s[0]), s[1] + 1),
            (a, 0),
        )

    return m.vmap(root)(m.asarray(np.array([0.5, 2.0, 9.0, 100.0])))


@_case
def _names(m):
    def normal(x):
        x = x - m.lax.pmean(x, "batch")
        return x / m.np.sqrt(m.lax.pmean(x**2, "batch") + 1e-5)

    return m.vmap(normal, axis_name="batch")(m.asarray(M))


@_case
def _two_names(m):
    f = lambda x: x - m.lax.psum(x, ("j", "i")) + m.lax.axis_index("i") * m.lax.pmax(x, "j")  # noqa: E731
    return m.vmap(m.vmap(f, axis_name="i"), axis_name="j")(m.asarray(T))


# what is refused: the mapped call, the kind of JAX's error, and words of ours
REFUSED: dict[str, tuple[Case, str]] = {
    "sizes": (lambda m: m.vmap(m.np.add)(m.asarray(V), m.asarray(V[:3])), "sizes"),
    "sizes by name": (
        lambda m: m.vmap(lambda a, b: a)(a=m.asarray(V), b=m.asarray(V[:2])),
        "sizes",
    ),
    "a size that differs": (lambda m: m.vmap(m.np.sin, axis_size=5)(m.asarray(V)), "axis_size"),
    "a number": (lambda m: m.vmap(m.np.sin)(1.0), "rank"),
    "an axis too far": (lambda m: m.vmap(m.np.sum, in_axes=-4)(m.asarray(T)), "rank"),
    "axes of another count": (lambda m: m.vmap(m.np.sin, in_axes=(0, 0))(m.asarray(V)), "in_axes"),
    "axes of another tree": (
        lambda m: m.vmap(lambda d: d, in_axes=({"b": 0},))({"a": m.asarray(V)}),
        "in_axes",
    ),
    "a float axis": (lambda m: m.vmap(m.np.sin, in_axes=0.5)(m.asarray(V)), "in_axes"),
    "a text axis": (lambda m: m.vmap(m.np.sin, in_axes="0")(m.asarray(V)), "in_axes"),
    "a dict of axes": (lambda m: m.vmap(m.np.sin, in_axes={"x": 0})(m.asarray(V)), "in_axes"),
    "nothing mapped": (lambda m: m.vmap(m.np.sin, in_axes=None)(m.asarray(V)), "at least one"),
    "nothing at all": (lambda m: m.vmap(lambda: 1)(), "at least one"),
    "a result that differs": (lambda m: m.vmap(m.np.sin, out_axes=None)(m.asarray(V)), "out_axes"),
    "a result's axis too far": (lambda m: m.vmap(m.np.sin, out_axes=3)(m.asarray(V)), "out"),
    "a constant's axis too far": (lambda m: m.vmap(lambda x: 7, out_axes=-2)(m.asarray(V)), "out"),
    "results of another tree": (
        lambda m: m.vmap(lambda x: (x, x), out_axes=(0, 0, 0))(m.asarray(V)),
        "out_axes",
    ),
    "a text out axis": (lambda m: m.vmap(m.np.sin, out_axes="0")(m.asarray(V)), "out_axes"),
    "not a function": (lambda m: m.vmap(3)(m.asarray(V)), "function|callable"),
    "a value": (
        lambda m: m.vmap(lambda x: x if x > 0 else -x)(m.asarray(V)),
        "if|bool|concrete|traced",
    ),
    "a list of numbers": (lambda m: m.vmap(lambda x: x)([1, 2]), "rank"),
    "a text result": (lambda m: m.vmap(lambda x: "a")(m.asarray(V)), "result 0 is not an array"),
    "a text argument": (lambda m: m.vmap(lambda x: x)("abc"), "argument x is not an array"),
    "a name unbound": (
        lambda m: m.vmap(lambda x: m.lax.psum(x, "j"), axis_name="i")(m.asarray(V)),
        "j",
    ),
    "a size below zero": (lambda m: m.vmap(lambda: 1, axis_size=-1)(), "axis_size|at least"),
}
