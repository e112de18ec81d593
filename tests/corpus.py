"""Functions that users differentiate, written once for meshard and for JAX.

Each takes the modules as ``m``: ``m.np``, ``m.lax``, ``m.nn``, and arrays. It returns one real
number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class Entry:
    """One function.

    Attributes:
        name: its name.
        function: from modules and arrays to a number.
        args: the arrays that it is called with, as NumPy arrays and numbers.
        tolerance: how far results may be apart.
        second: whether second derivatives are compared, too.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    tolerance: float
    second: bool


ENTRIES: list[Entry] = []
_rng = np.random.default_rng(0)


def _entry(*args: Any, tolerance: float = 1e-9, second: bool = True) -> Callable[..., Any]:
    def decorate(f: Callable[..., Any]) -> Callable[..., Any]:
        ENTRIES.append(Entry(f.__name__.strip("_"), f, args, tolerance, second))
        return f

    return decorate


def _n(*shape: int) -> Any:
    return _rng.normal(size=shape)


def _u(*shape: int) -> Any:
    return _rng.uniform(0.3, 1.7, shape)


def _c(*shape: int) -> Any:
    return _n(*shape) + 1j * _n(*shape)


W1, W2, X, Y = _n(4, 8) / 2, _n(8, 3) / 2, _n(5, 4), _rng.integers(0, 3, 5)
V, M, S = _n(6), _n(4, 5), _n(4, 4) @ np.eye(4)
S = S @ S.T + 3 * np.eye(4)


@_entry(W1, W2)
def mlp(m, w1, w2):
    return m.np.mean(m.np.square(m.np.tanh(X @ w1) @ w2))


@_entry(W1, W2)
def cross_entropy(m, w1, w2):
    logits = m.nn.relu(m.np.asarray(X) @ w1) @ w2
    return -m.np.mean(m.np.take_along_axis(m.nn.log_softmax(logits), Y[:, None], axis=1))


@_entry(W1, W2)
def one_hot_cross_entropy(m, w1, w2):
    logits = m.nn.gelu(m.np.asarray(X) @ w1) @ w2
    return -m.np.sum(m.nn.one_hot(Y, 3) * m.nn.log_softmax(logits, axis=-1))


@_entry(X, _n(4), _n(4))
def layer_norm(m, x, scale, shift):
    mean, var = m.np.mean(x, -1, keepdims=True), m.np.var(x, -1, keepdims=True)
    return m.np.sum(m.np.sin((x - mean) / m.np.sqrt(var + 1e-5) * scale + shift))


@_entry(_n(2, 3, 4, 5), _n(2, 3, 4, 5), _n(2, 3, 4, 5))
def attention(m, q, k, v):
    s = m.np.einsum("bhqd,bhkd->bhqk", q, k) / 5**0.5
    s = m.np.where(np.tril(np.ones((4, 4), bool)), s, -1e30)
    return m.np.sum(m.np.einsum("bhqk,bhkd->bhqd", m.nn.softmax(s), v) ** 2)


@_entry(M)
def stencil(m, x):
    inner = x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] - 4 * x[1:-1, 1:-1]
    return m.np.sum(inner**3)


@_entry(M)
def periodic_stencil(m, x):
    return m.np.sum((m.np.roll(x, 1, 0) + m.np.roll(x, -2, 1) - 2 * x) ** 2 * x)


@_entry(_n(4, 4) / 2, _n(3, 4) / 2, _n(7, 3))
def rnn(m, w, u, xs):
    def step(h, x):
        h = m.np.tanh(h @ w + x @ u)
        return h, h.sum()

    last, sums = m.lax.scan(step, m.np.zeros(4), xs)
    return m.np.sum(last**2) + m.np.sum(sums)


@_entry(_n(4, 4) / 2, _n(6, 4))
def reversed_scan(m, w, xs):
    _, ys = m.lax.scan(lambda h, x: (h * x + 1, m.np.sin(h) @ w), m.np.ones(4), xs, reverse=True)
    return m.np.sum(ys)


@_entry(V)
def fori(m, x):
    return m.np.sum(m.lax.fori_loop(0, 4, lambda i, y: m.np.sin(y) * x + i, x))


@_entry(V)
def cond(m, x):
    return m.lax.cond(x[0] > 0, lambda y: m.np.sum(y**2), lambda y: m.np.sum(m.np.cos(y)), x)


@_entry(V)
def switch(m, x):
    branches = [lambda y: y.sum(), lambda y: m.np.prod(y), lambda y: m.np.max(y) ** 2]
    return m.lax.switch(1, branches, x) + m.lax.switch(2, branches, x)


@_entry(V)
def map_(m, x):
    return m.np.sum(m.lax.map(lambda y: y**3, x))


@_entry(V)
def associative_scan(m, x):
    return m.np.sum(m.lax.associative_scan(lambda a, b: a * b + a, x))


@_entry(M)
def gather_with_repeats(m, x):
    return m.np.sum(x[np.array([0, 2, 2, 0])] ** 2 * x[:, np.array([1, 1, 3])].sum())


@_entry(V)
def negative_indices(m, x):
    return x[-1] * x[np.array([-2, -2])].sum() ** 2 * x[::-2].sum()


@_entry(M)
def mixed_indices(m, x):
    return m.np.sum(x[None, 1:, np.array([0, 3, 3])] ** 3) + x[1, 2] * x[..., -1].sum()


@_entry(V)
def segment_sum(m, x):
    return m.np.sum(m.np.zeros(3).at[np.array([0, 1, 1, 2, 0, 0])].add(x) ** 3)


@_entry(V, _n(3))
def at_set(m, x, y):
    return m.np.sum((x**2).at[np.array([0, 2, 4])].set(y**3) * x)


@_entry(V, _n(3))
def at_set_repeated(m, x, y):
    return m.np.sum((x**2).at[np.array([0, 2, 2])].set(y**3) * x)


@_entry(M, _n(2, 5))
def at_slices(m, x, y):
    return m.np.sum(x.at[1:3].set(y**2).at[:, ::2].add(1.5).at[0, 1].multiply(2.0) ** 2)


@_entry(M, np.array([0.3, 0.5, 0.5]), second=False)
def at_extremes(m, x, y):
    at = np.array([0, 2, 0])
    return m.np.sum(x.at[at].max(y[:, None]) ** 2) + m.np.sum(x.at[at, 1].min(-y) ** 3)


@_entry(M, second=False)
def at_outside(m, x):
    y = x.at[np.array([1, 9]), 0].set(2.0 * x[0, 0], mode="drop")
    return m.np.sum(y**2) + m.np.sum(x.at[np.array([1, 9])].get(mode="fill", fill_value=0.5) ** 2)


@_entry(V)
def masks(m, x):
    y = x.at[np.array([True, False] * 3)].set(0.5) * x
    return m.np.sum(y**2) + m.np.sum(x[np.array([False, True, True] * 2)] ** 3)


@_entry(V)
def pieces(m, x):
    y = m.np.select([x > 1, x > 0], [x**2, x * 3], -x)
    return m.np.sum(y * m.np.choose(np.array([0, 1, 0, 1, 1, 0]), [x, y], mode="wrap"))


@_entry(_n(3, 5), second=False)
def wide_qr(m, a):
    q, r = m.np.linalg.qr(a)
    return m.np.sum(m.np.abs(r) ** 2 * 0.5 + m.np.cos(r)) + m.np.sum(q**4)


@_entry(V)
def nested(m, x):
    inner = m.grad(lambda y: m.np.sum(m.np.sin(y) * y))
    return m.np.sum(m.jit(inner)(x) * m.jvp(lambda y: y**3, (x,), (m.np.ones_like(x),))[1])


@_entry(V)
def mapped_gradients(m, x):
    return m.np.sum(m.vmap(m.grad(lambda y: m.np.sin(y) * y))(x) ** 2)


@_entry(V)
def through_checkpoint(m, x):
    f = m.checkpoint(lambda y: m.np.sin(m.np.exp(m.np.sin(y))))
    return m.np.sum(f(f(x)))


@_entry(V)
def custom_rules(m, x):
    f = m.custom_jvp(lambda y: m.np.log1p(m.np.exp(y)))
    f.defjvp(lambda p, t: (f(p[0]), t[0] * (1 - 1 / (1 + m.np.exp(p[0])))))
    g = m.custom_vjp(lambda y, z: y * z)
    g.defvjp(lambda y, z: (y * z, (y, z)), lambda r, c: (c * r[1], 2 * c * r[0]))
    return m.np.sum(f(x)) + m.np.sum(m.grad(lambda y: m.np.sum(g(y, m.np.sin(x) * y)))(x))


@_entry(V)
def policies(m, x):
    def layer(y):
        return m.np.sin(m.np.exp(m.np.sin(m.np.outer(y, y) @ y)))

    names = ["dots_saveable", "everything_saveable", "dots_with_no_batch_dims_saveable"]
    for name in names:
        x = m.checkpoint(layer, policy=getattr(m.checkpoint_policies, name))(x)
    return m.np.sum(x)


@_entry(V)
def gradients_beside_results(m, x):
    @m.custom_gradient
    def f(y, scale):
        z = m.np.sin(y)
        return z * scale, lambda g: (2 * g * m.np.cos(y) * scale, (g * z).sum())

    return m.np.sum(m.grad(lambda y: m.np.sum(f(y, y[0]) ** 2))(x))


@_entry(V)
def converted_closures(m, x):
    def squared(f, y):
        g, captured = m.closure_convert(f, y)
        rule = m.custom_vjp(lambda y, *own: g(y, *own) ** 2)
        rule.defvjp(
            lambda y, *own: (g(y, *own) ** 2, (y, own)),
            lambda kept, c: (3 * c * kept[0], *[c.sum() * o for o in kept[1]]),
        )
        return rule(y, *captured)

    def loss(y):
        scale = m.np.cos(y[1])
        return m.np.sum(squared(lambda z: z * scale, y))

    return m.np.sum(m.grad(loss)(x))


@_entry(V, 2.0)
def rules_with_constants(m, x, scale):
    f = m.custom_jvp(lambda name, y, n=2: getattr(m.np, name)(y) * n, nondiff_argnums=(0,))
    f.defjvp(lambda name, p, t: (f(name, *p), 5 * t[0] * getattr(m.np, name)(p[0])))
    g = m.custom_vjp(lambda y, name: getattr(m.np, name)(y), nondiff_argnames=["name"])
    g.defvjp(lambda y, name: (getattr(m.np, name)(y), y), lambda name, kept, c: (c * kept * 3,))
    slope = m.grad(lambda y: m.np.sum(g(y, name="exp") * y))(x)
    return m.np.sum(f("sin", x, n=3.0)) + m.np.sum(f("cos", x) * scale) + m.np.sum(slope)


@_entry(V)
def rules_argument_by_argument(m, x):
    f = m.custom_jvp(lambda y, z: m.np.sin(y) * z)
    f.defjvps(lambda t, out, y, z: t * out, None)
    return m.np.sum(f(x, x * 2))


@_entry(V)
def rules_with_trees(m, x):
    f = m.custom_jvp(lambda d: {"a": d["p"][0] * d["q"], "b": [d["q"] ** 2]})
    f.defjvp(
        lambda p, t: (
            f(*p),
            {"a": 3 * t[0]["p"][0] * p[0]["q"], "b": [t[0]["q"] + t[0]["p"][1]]},
        )
    )
    y = f({"p": (x, m.np.cos(x)), "q": m.np.exp(x)})
    return m.np.sum(y["a"] * y["b"][0])


@_entry(V)
def rules_that_look(m, x):
    @m.custom_jvp
    def f(y):
        return m.np.where(y > 0, m.np.log1p(m.np.exp(-y)) + y, m.np.log1p(m.np.exp(y)))

    f.defjvp(lambda p, t: (f(*p), t[0] / (1 + m.np.exp(-p[0]))))
    last, _ = m.lax.scan(lambda c, y: (f(c + y), None), x[0], x)
    return last + m.lax.cond(x[1] > 0, f, lambda y: f(y) * 2, x[2]) + m.checkpoint(f)(x).sum()


def _eliminated(m):
    def solve(matvec, b):
        columns = m.np.stack([matvec(e) for e in m.np.eye(4)])
        return m.np.linalg.solve(columns.T, b)

    return solve


@_entry(S, _n(4))
def solved_systems(m, a, b):
    solve = _eliminated(m)
    own = m.lax.custom_linear_solve(lambda x: a @ x, b, solve, solve)
    same = m.lax.custom_linear_solve(lambda x: (a + a.T) @ x, own, solve, symmetric=True)
    return m.np.sum(own**2 * same)


@_entry(S, _n(4))
def conjugate_gradients(m, a, b):
    def solve(matvec, b):
        def turn(state):
            x, r, p, rr, i = state
            q = matvec(p)
            step = rr / (p @ q)
            x, r = x + step * p, r - step * q
            return x, r, r + r @ r / rr * p, r @ r, i + 1

        first = (b * 0, b, b, b @ b, 0)
        return m.lax.while_loop(lambda s: (s[3] > 1e-28) & (s[4] < 40), turn, first)[0]

    matrix = a @ a.T + m.np.eye(4)
    return m.np.sum(m.lax.custom_linear_solve(lambda x: matrix @ x, b, solve, symmetric=True) ** 3)


@_entry(1.7, 0.4)
def roots(m, y, z):
    def newton(f, x):
        def turn(s):
            return s[0] - f(s[0]) / m.grad(f)(s[0]), s[1] + 1

        return m.lax.while_loop(lambda s: s[1] < 12, turn, (x, 0))[0]

    def f(x):
        return x**3 - y * x - z

    return m.lax.custom_root(f, m.np.asarray(2.0), newton, lambda g, v: v / g(m.np.ones(()))) ** 2


@_entry(V)
def jacobians(m, x):
    f = lambda y: m.np.outer(y, m.np.sin(y))[:2].ravel()  # noqa: E731
    return (
        m.np.sum(m.jacfwd(f)(x) ** 2)
        + m.np.sum(m.jacrev(f)(x) ** 3)
        + m.np.sum(m.hessian(lambda y: m.np.sum(y @ y * y))(x))
    )


@_entry(V)
def linearized(m, x):
    y, push = m.linearize(lambda z: m.np.cumsum(z**2), x)
    return m.np.sum(push(m.np.ones(6)) * y)


@_entry(W1, V)
def scan_in_scan(m, w, xs):
    def outer(h, x):
        return m.lax.scan(lambda c, r: (c * m.np.sin(r) + x, None), h, w)[0], h.sum()

    last, sums = m.lax.scan(outer, m.np.ones(8), xs)
    return m.np.sum(last**2) + m.np.sum(sums)


@_entry(_n(4, 3), _n(3))
def logistic_regression(m, a, w):
    z = a @ w
    return m.np.mean(m.np.logaddexp(0.0, -z) + 0.1 * m.np.sum(w**2)) + m.nn.sigmoid(z).prod()


@_entry(_u(3, 4), _u(4, 5), _u(5, 2))
def einsum(m, a, b, c):
    return m.np.sum(m.np.einsum("ij,jk,kl->il", a, b, c) ** 2)


@_entry(_u(4, 4))
def einsum_diagonals(m, a):
    return m.np.einsum("ii->", a) ** 2 * m.np.sum(m.np.einsum("ii->i", a) ** 2)


@_entry(_u(3, 4), _u(4))
def products(m, a, b):
    outer, inner = m.np.outer(b, b), m.np.dot(a, b)
    return (
        m.np.vdot(inner, inner) + m.np.sum(m.np.tensordot(a, outer, 1) ** 2) + m.np.kron(b, b).sum()
    )


@_entry(_n(6))
def fft_power(m, x):
    return m.np.sum(m.np.abs(m.np.fft.fft(x, 8)) ** 2)


@_entry(_n(4, 6))
def rfft_filter(m, x):
    return m.np.sum(m.np.fft.irfft(m.np.fft.rfft(x) * np.arange(4), 6) ** 3)


@_entry(_c(4, 3))
def fft2_complex(m, x):
    return m.np.sum(m.np.real(m.np.fft.ifft2(m.np.fft.fft2(x) ** 2) * (1 - 2j)))


@_entry(S, _n(4))
def solve(m, a, b):
    return m.np.sum(m.np.linalg.solve(a, b) ** 2)


@_entry(S)
def inverse(m, a):
    return m.np.sum(m.np.linalg.inv(a) ** 2) + m.np.linalg.det(a)


@_entry(S, _n(4))
def gaussian_process(m, k, y):
    low = m.np.linalg.cholesky(k)
    z = m.np.linalg.solve(low, y)
    return m.np.sum(z**2) / 2 + m.np.sum(m.np.log(m.np.diagonal(low)))


@_entry(S)
def slogdet(m, a):
    return m.np.linalg.slogdet(a)[1] ** 2


@_entry(S)
def eigh(m, a):
    w, v = m.np.linalg.eigh((a + a.T) / 2)
    return m.np.sum(m.np.exp(-w)) + m.np.sum(v[:, 0] ** 4)


@_entry(_n(5, 3))
def svd(m, a):
    u, s, vh = m.np.linalg.svd(a, full_matrices=False)
    return m.np.sum(s**3) + m.np.sum(u[:, 0] ** 4) + m.np.sum(vh**4)


@_entry(_c(4, 3))
def svd_complex(m, a):
    u, s, vh = m.np.linalg.svd(a, full_matrices=False)
    return m.np.sum(m.np.log(s)) + m.np.sum(m.np.abs((u * s[0]) @ vh) ** 4)


@_entry(_n(5, 3))
def qr(m, a):
    q, r = m.np.linalg.qr(a)
    return m.np.sum(m.np.abs(r)) + m.np.sum(q**4)


@_entry(_n(5, 3), _n(5))
def least_squares(m, a, b):
    return m.np.sum(m.np.linalg.pinv(a) @ b) + m.np.trace(a.T @ a)


@_entry(_n(3, 3) / 2)
def powers_of_matrices(m, a):
    return m.np.sum(m.np.linalg.matrix_power(a, 3)) + m.np.linalg.norm(a) ** 3


@_entry(_n(4, 3))
def norms(m, a):
    rows = m.np.linalg.norm(a, axis=1)
    return m.np.sum(rows) + m.np.linalg.norm(a, 1) + m.np.linalg.norm(a, "nuc")


@_entry(_n(7))
def logsumexp(m, x):
    return m.nn.logsumexp(x) + m.nn.softplus(x).sum() + m.np.logaddexp(x, x[::-1]).sum()


@_entry(_n(7))
def activations(m, x):
    names = [
        "relu",
        "sigmoid",
        "silu",
        "elu",
        "selu",
        "celu",
        "leaky_relu",
        "log_sigmoid",
        "soft_sign",
        "gelu",
    ]
    return sum(getattr(m.nn, n)(x).sum() for n in names)


@_entry(_u(7), second=False)
def special(m, x):
    return (m.lax.erf(x) + m.lax.erfc(x) + m.lax.lgamma(x) + m.lax.digamma(x)).sum()


@_entry(_u(7) - 2.4, second=False)
def digamma_below_zero(m, x):
    return m.lax.digamma(x).sum()


@_entry(_u(5), np.sort(_u(4)), _n(4), second=False)
def interp(m, x, xp, fp):
    return m.np.sum(m.np.interp(x, xp, fp) ** 2)


@_entry(_n(7))
def sorting(m, x):
    return m.np.sum(m.np.sort(x) * np.arange(7)) * m.np.median(x) + m.np.sort(x)[2] ** 2


@_entry(_n(3, 7))
def quantiles(m, x):
    return m.np.sum(m.np.quantile(x, np.array([0.1, 0.5, 0.77]), axis=1) ** 2)


@_entry(_n(3, 7))
def top_k(m, x):
    return m.np.sum(m.lax.top_k(x, 2)[0] ** 2) + m.np.partition(x, 2)[:, 2].sum()


@_entry(_u(3, 4))
def cumulative(m, x):
    return m.np.sum(m.np.cumsum(x, 0) * m.np.cumprod(x, 1)) + m.lax.cummax(x, axis=1).sum()


@_entry(np.array([1.5, 0.0, 2.0, 0.5]))
def cumprod_with_zero(m, x):
    return m.np.sum(m.np.cumprod(x) * np.arange(1, 5)) + m.np.prod(x)


@_entry(_u(3, 4))
def cumlogsumexp(m, x):
    return m.np.sum(m.lax.cumlogsumexp(x, axis=1) ** 2)


@_entry(_n(3, 4))
def pads(m, x):
    y = m.np.pad(x, ((1, 2), (0, 1))) + 1
    return m.np.sum(m.np.concatenate([y, y[:1] ** 2]) ** 2) + m.np.stack([x, x]).prod()


@_entry(_n(3, 4))
def wrapped_pads(m, x):
    return m.np.sum(m.np.pad(x, 2, mode="wrap") ** 2) + m.np.sum(
        m.np.pad(x, 2, mode="reflect") ** 3
    )


@_entry(_n(3, 4))
def moves(m, x):
    y = m.np.tile(m.np.flip(x, 1), (2, 1)).reshape(3, 8).T
    return m.np.sum(m.np.repeat(y, 2, 0) ** 2 * 0.5) + m.np.tril(x, 1).sum() * m.np.triu(x).sum()


@_entry(_n(4, 4))
def diagonals(m, x):
    return m.np.sum(m.np.diag(m.np.diag(x, 1)) @ x[:3, :3]) + m.np.trace(x) ** 2


@_entry(_u(5), _u(5))
def powers(m, x, y):
    return m.np.sum(x**y + x**2 + x**0.5 + 2.0**x + x**-1 + m.np.float_power(x, 3))


@_entry(_n(5), _u(5))
def divisions(m, x, y):
    return m.np.sum(x / y + m.np.arctan2(x, y) + m.np.hypot(x, y) + x % y + m.np.fmod(x, y))


@_entry(_n(5), _n(5))
def extremes(m, x, y):
    return m.np.sum(m.np.maximum(x, y) * m.np.minimum(x, 0.1)) + m.np.clip(x, -0.5, 0.5).sum()


@_entry(np.array([1.0, 2.0, 2.0]), np.array([1.0, 3.0, 2.0]))
def ties(m, x, y):
    return m.np.maximum(x, y).sum() + m.np.max(x) * 3 + m.np.min(y) + m.np.sort(x)[1]


@_entry(np.array([0.5, 1.0, -0.5, 2.0]))
def kinks(m, x):
    return m.np.clip(x, -0.5, 1.0).sum() + m.nn.relu(x - 1).sum() + m.np.abs(x - 0.5).sum()


@_entry(_n(3, 4))
def statistics(m, x):
    return m.np.var(x) + m.np.std(x, 0).sum() + m.np.average(x, 1, weights=np.arange(4)).sum()


@_entry(_n(3, 7))
def covariance(m, x):
    return m.np.sum(m.np.cov(x) ** 2) + m.np.corrcoef(x)[0, 1]


@_entry(_n(3, 5), np.array(0.3))
def polynomial(m, p, x):
    return m.np.polyval(p[0], x) + m.np.trapezoid(p[1]) + p[2] @ p[1]


@_entry(_n(4, 3), _n(4, 3))
def vectors(m, a, b):
    return m.np.sum(m.np.cross(a, b) ** 2) + m.np.sum(m.np.diff(a, axis=0) * b[1:])


@_entry(_c(5))
def complex_parts(m, z):
    return m.np.sum(m.np.abs(z) + m.np.real(z) * m.np.imag(z) + m.np.angle(z) * 0.3)


@_entry(_c(5))
def complex_loss(m, z):
    return m.np.sum(m.np.real(m.np.conj(z) * m.np.exp(z) + z**3 / (1 + z)))


@_entry(_n(5), _n(5))
def complex_inside(m, x, y):
    z = m.lax.complex(x, y)
    return m.np.real(m.np.sum(m.np.sqrt(z) * m.np.log(z) + m.np.sin(z) * m.np.tanh(z)))


@_entry(np.float32(_n(4, 3)), np.float32(_n(3)), tolerance=2e-5)
def single(m, a, b):
    return m.np.sum(m.np.tanh(a @ b) * 2) + m.np.mean(a) ** 2


@_entry(np.float32(_n(4, 3)), _n(3), tolerance=2e-5)
def single_and_double(m, a, b):
    return m.np.sum(m.np.sin(a * b) * 3) + (a.astype("float64") @ b).sum()


@_entry(_n(4, 3).astype(ml_dtypes.bfloat16), np.float32(_n(3)), tolerance=5e-2, second=False)
def brain_floats(m, a, b):
    return m.np.sum(a.astype("float32") * b) + m.np.sum(a * a).astype("float32")


@_entry(2.0, 3.0)
def weak_numbers(m, x, y):
    return x * y**2 + m.np.sin(x) + 1


@_entry(np.float32(1.5), 3.0, tolerance=2e-5)
def weak_and_single(m, x, y):
    return x * y + m.np.exp(x) * y**2


@_entry(np.array([0.0, 4.0, -1.0]))
def where_guarded(m, x):
    safe = m.np.where(x > 0, x, 1.0)
    return m.np.sum(m.np.where(x > 0, m.np.sqrt(safe), 0.0))


@_entry(np.array([0.0, 4.0, -1.0]), second=False)
def where_trap(m, x):
    return m.np.sum(m.np.where(x > 0, m.np.sqrt(x), 0.0))


@_entry(np.zeros(3), second=False)
def norm_at_zero(m, x):
    return m.np.linalg.norm(x)


@_entry(np.array([0.0, 0.0, 2.0]), np.array([2.0, 1.0, 0.0]), second=False)
def power_at_zero(m, x, y):
    return m.np.sum(x**y) + m.np.sum(x**2) + m.np.sum(x**0) + m.np.sum(x**3.0)


@_entry(np.array([0.0, 0.0, 2.0]))
def prod_of_zeros(m, x):
    return m.np.prod(x) + m.np.prod(x[1:]) * 2


@_entry(np.array([0.0, 1.0, -2.0]), second=False)
def at_zero(m, x):
    return m.np.sum(m.np.abs(x) + m.np.sign(x) + m.np.maximum(x, 0) + m.np.cbrt(x + 1))


@_entry(V)
def stopped(m, x):
    return m.np.sum(x * m.lax.stop_gradient(x**2))


@_entry(V)
def with_integers(m, x):
    return m.np.sum(x * m.np.argsort(x) + m.np.floor(x) + (x > 0)) + x[m.np.argmax(x)] ** 2


@_entry(V, M)
def dynamic(m, x, y):
    a = m.lax.dynamic_slice(x, (2,), (3,))
    b = m.lax.dynamic_update_slice(x, a**2, (1,))
    return b.sum() ** 2 + m.lax.dynamic_index_in_dim(y, 1).sum() ** 2


@_entry(V)
def unique(m, x):
    return m.np.sum(m.np.cumsum(x) * np.arange(6.0)) ** 2


@_entry(_n(2, 3, 4), _n(2, 4, 5))
def dot_general(m, a, b):
    return m.np.sum(m.lax.dot_general(a, b, (((2,), (1,)), ((0,), (0,)))) ** 2)


@_entry(_n(6), _n(3))
def searching(m, x, y):
    at = m.np.searchsorted(m.np.sort(x), y)
    return m.np.sum(m.np.take(x, at, mode="clip") * y)


@_entry(_n(4, 5))
def nan_aware(m, x):
    y = m.np.where(x > 1, np.nan, x)
    return m.np.nansum(y**2) + m.np.nanmax(y) + m.np.nanmean(y)
