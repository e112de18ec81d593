"""NumPy by the names of `meshard`: what the results of every public function must be.

``numpy``, ``lax``, ``nn`` and ``array`` (for methods and indexing) have the names of meshard's
modules. What is not defined here is NumPy's own function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import scipy.special

from meshard import random
from tests.programs.draw import LETTERS, dtype_named
from tests.worlds import alone

_SMALL = {dtype for dtype, letter in LETTERS.items() if letter in "hs"}


def _weak(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make Python's numbers take the operands' small float, as NumPy does for its own floats."""

    def call(*args: Any, **kwargs: Any) -> Any:
        small = {x.dtype for x in args if getattr(x, "dtype", None) in _SMALL}
        if len(small) == 1:
            kind = next(iter(small)).type
            args = tuple(kind(x) if type(x) is float else x for x in args)
        return function(*args, **kwargs)

    return call


def _closed(ufunc: np.ufunc) -> Callable[..., Any]:
    """Let the integers of fewer than 8 bits stay what they are, as those of 8 bits do."""

    def call(x: Any) -> Any:
        if LETTERS.get(getattr(x, "dtype", None)) != "n":
            return _weak(ufunc)(x)
        limits, found = ml_dtypes.iinfo(x.dtype), ufunc(x.astype(np.int64)) - 0
        span = limits.max - limits.min + 1
        return ((found - limits.min) % span + limits.min).astype(np.int8).astype(x.dtype)

    return call


class _Linalg:
    """NumPy's linear algebra."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np.linalg, name)

    @staticmethod
    def lstsq(a: Any, b: Any) -> Any:
        x, rest, rank, s = np.linalg.lstsq(a, b)
        return x, rest, np.int64(rank), s


class _NumPy:
    """NumPy's functions, and those that meshard has with other arguments or besides."""

    linalg: Any = _Linalg()
    fft: Any = np.fft

    negative, positive, square, absolute, abs, sign, conj, conjugate = (
        staticmethod(_closed(f))
        for f in (
            *(np.negative, np.positive, np.square, np.absolute, np.absolute),
            *(np.sign, np.conjugate, np.conjugate),
        )
    )

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        return _weak(found) if isinstance(found, np.ufunc) else found

    @staticmethod
    def sort(a: Any, axis: Any = -1, descending: bool = False, **_: Any) -> Any:
        found = np.sort(a, axis=axis, stable=True)
        return np.flip(found, axis=-1 if axis is None else axis) if descending else found

    @staticmethod
    def argsort(a: Any, axis: Any = -1, descending: bool = False, **_: Any) -> Any:
        if not descending:
            return np.argsort(a, axis=axis, stable=True)
        turned = np.flip(a, axis)
        return np.flip(a.shape[axis] - 1 - np.argsort(turned, axis=axis, stable=True), axis)

    @staticmethod
    def partition(a: Any, kth: Any, axis: Any = -1) -> Any:
        return np.sort(a, axis=axis)

    @staticmethod
    def argpartition(a: Any, kth: Any, axis: Any = -1) -> Any:
        return np.argsort(a, axis=axis, stable=True)

    degrees, radians = np.rad2deg, np.deg2rad  # which have loops for the small floats

    @staticmethod
    def clip(a: Any, low: Any, high: Any) -> Any:
        return _weak(np.minimum)(_weak(np.maximum)(a, low), high)

    @staticmethod
    def iscomplexobj(x: Any) -> Any:
        return bool(np.iscomplexobj(x))

    @staticmethod
    def nonzero(a: Any, size: Any = None, fill_value: Any = None) -> Any:
        found = np.nonzero(a)
        return found if size is None else tuple(_sized(x, size, fill_value or 0) for x in found)

    @staticmethod
    def flatnonzero(a: Any, size: Any = None, fill_value: Any = None) -> Any:
        found = np.flatnonzero(a)
        return found if size is None else _sized(found, size, fill_value or 0)

    @staticmethod
    def argwhere(a: Any, size: Any = None, fill_value: Any = None) -> Any:
        found = np.argwhere(a)
        return found if size is None else _sized(found, size, fill_value or 0)

    @staticmethod
    def _padded(found: Any, size: Any, fill_value: Any) -> Any:
        if size is None:
            return found
        if fill_value is None:
            fill_value = found[0] if found.size else 0
        return _sized(found, size, fill_value)

    def unique(self, ar: Any, size: Any = None, fill_value: Any = None, **more: Any) -> Any:
        found = np.unique(ar, **more)
        return found if size is None else self._padded(found, size, fill_value)

    def union1d(self, a: Any, b: Any, size: Any = None, fill_value: Any = None) -> Any:
        return self._padded(np.union1d(a, b), size, fill_value)

    @staticmethod
    def compress(condition: Any, a: Any, axis: Any = None) -> Any:
        return np.compress(condition, a, axis=axis)

    @staticmethod
    def bincount(x: Any, weights: Any = None, minlength: int = 0, length: Any = None) -> Any:
        found = np.bincount(x, weights, max(minlength, length or 0))
        found = found if weights is None else found.astype(np.float64)  # none are integers
        return found if length is None else found[:length]

    @staticmethod
    def unique_values(x: Any) -> Any:
        return np.unique(x, equal_nan=False)

    @staticmethod
    def quantile(a: Any, q: Any, **more: Any) -> Any:
        return np.asarray(np.quantile(a, q, **more)).astype(a.dtype)

    @staticmethod
    def percentile(a: Any, q: Any, **more: Any) -> Any:
        return np.asarray(np.percentile(a, q, **more)).astype(a.dtype)

    @staticmethod
    def fromfunction(function: Any, shape: Any, dtype: Any = float) -> Any:
        return np.fromfunction(function, shape, dtype=dtype)


def _sized(found: Any, size: int, fill: Any) -> Any:
    out = np.full((size, *found.shape[1:]), fill, found.dtype)
    out[: len(found)] = found[:size]
    return out


def _rounded(x: Any) -> Any:
    if x.dtype in _SMALL:
        return _rounded(x.astype(np.float32)).astype(x.dtype)
    return (np.trunc(x) + np.copysign(np.abs(x - np.trunc(x)) >= 0.5, x)).astype(x.dtype)


def _quotient(x: Any, y: Any) -> Any:
    if x.dtype.kind not in "biu" or y.dtype.kind not in "biu":
        return np.divide(x, y)
    down = np.floor_divide(x, y)
    rest = (np.multiply(down, y) != x) & (np.less(x, 0) != np.less(y, 0)) & (y != 0)
    return down + rest.astype(down.dtype)


def _wide(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Let a function of SciPy compute in 64 bits and round."""
    return lambda x: np.asarray(function(x.astype(np.float64))).astype(x.dtype)


def _logical_shift(x: Any, y: Any) -> Any:
    bits = f"u{x.dtype.itemsize}"
    return (x.astype(bits) >> y.astype(bits)).astype(x.dtype)


def _leading_zeros(x: Any) -> Any:
    width = 8 * x.dtype.itemsize
    count = [width - (int(v) % (1 << width)).bit_length() for v in x.reshape(-1)]
    return np.array(count, x.dtype).reshape(x.shape)


def _precise(x: Any, exponent_bits: int, mantissa_bits: int) -> Any:
    if x.dtype in _SMALL:
        return _precise(x.astype(np.float32), exponent_bits, mantissa_bits).astype(x.dtype)
    name = {(5, 10): "float16", (8, 7): "bfloat16", (4, 3): "float8_e4m3", (5, 2): "float8_e5m2"}
    kind = dtype_named(name[exponent_bits, mantissa_bits])
    found = x.astype(kind).astype(x.dtype)
    tiny = np.abs(x.astype(np.float64)) < 2.0 ** (2 - 2 ** (exponent_bits - 1))
    tiny &= np.abs(found.astype(np.float64)) < 2.0 ** (2 - 2 ** (exponent_bits - 1))
    return np.where(np.isnan(x), x, np.where(tiny, np.copysign(0, x).astype(x.dtype), found))


def _bitcast(x: Any, new_dtype: Any) -> Any:
    wanted = dtype_named(new_dtype)
    rows = np.ascontiguousarray(x).reshape(x.shape) if x.ndim else x.reshape(1)
    if x.dtype.itemsize == wanted.itemsize:
        return rows.view(wanted).reshape(x.shape)
    return (
        rows.reshape(-1)
        .view(wanted)
        .reshape(*x.shape, -1 if x.size else x.dtype.itemsize // wanted.itemsize)
    )


class _Lax:
    """What jax.lax defines, in NumPy."""

    neg, sub = staticmethod(_closed(np.negative)), staticmethod(_weak(np.subtract))
    mul, max = staticmethod(_weak(np.multiply)), staticmethod(_weak(np.maximum))
    min = staticmethod(_weak(np.minimum))
    eq, ne, lt, le = np.equal, np.not_equal, np.less, np.less_equal
    gt, ge, is_finite = np.greater, np.greater_equal, np.isfinite
    shift_left, shift_right_arithmetic = np.left_shift, np.right_shift
    shift_right_logical = staticmethod(_logical_shift)
    clz = staticmethod(_leading_zeros)
    round = staticmethod(_rounded)
    div = staticmethod(_quotient)
    reduce_precision = staticmethod(_precise)
    bitcast_convert_type = staticmethod(_bitcast)
    erf, erfc = map(staticmethod, map(_wide, (scipy.special.erf, scipy.special.erfc)))
    erf_inv, lgamma = map(staticmethod, map(_wide, (scipy.special.erfinv, scipy.special.gammaln)))
    digamma, logistic = map(staticmethod, map(_wide, (scipy.special.digamma, scipy.special.expit)))

    def __getattr__(self, name: str) -> Any:
        return getattr(NUMPY, name)

    @staticmethod
    def real(x: Any) -> Any:
        return np.real(x)

    @staticmethod
    def imag(x: Any) -> Any:
        return np.imag(x)

    @staticmethod
    def stop_gradient(x: Any) -> Any:
        return x

    optimization_barrier = stop_gradient

    @staticmethod
    def population_count(x: Any) -> Any:
        bits = 8 * x.dtype.itemsize
        count = [(int(v) % (1 << bits)).bit_count() for v in x.reshape(-1)]
        return np.array(count, x.dtype).reshape(x.shape)

    @staticmethod
    def rsqrt(x: Any) -> Any:
        return np.divide(np.ones((), np.sqrt(x).dtype), np.sqrt(x))

    @staticmethod
    def integer_pow(x: Any, y: int) -> Any:
        return _weak(np.power)(x, y)

    @staticmethod
    def convert_element_type(x: Any, dtype: Any) -> Any:
        return x.astype(dtype)

    @staticmethod
    def complex(x: Any, y: Any) -> Any:
        out = np.empty(x.shape, np.result_type(x, np.complex64))
        out.real, out.imag = x, y
        return out

    @staticmethod
    def select(which: Any, x: Any, y: Any) -> Any:
        return np.where(which, x, y)

    @staticmethod
    def select_n(which: Any, *cases: Any) -> Any:
        return np.choose(which, cases) if which.dtype.kind != "b" else np.where(which, *cases[::-1])

    @staticmethod
    def clamp(low: Any, x: Any, high: Any) -> Any:
        return np.minimum(np.maximum(x, low), high)

    @staticmethod
    def reshape(x: Any, sizes: Any) -> Any:
        return np.reshape(x, sizes)

    @staticmethod
    def transpose(x: Any, permutation: Any) -> Any:
        return np.transpose(x, permutation)

    @staticmethod
    def rev(x: Any, dimensions: Any) -> Any:
        return np.flip(x, dimensions)

    @staticmethod
    def squeeze(x: Any, dimensions: Any) -> Any:
        return np.squeeze(x, tuple(dimensions))

    @staticmethod
    def broadcast(x: Any, sizes: Any) -> Any:
        return np.broadcast_to(x, (*sizes, *x.shape))

    @staticmethod
    def broadcast_in_dim(x: Any, shape: Any, dims: Any) -> Any:
        full = [1] * len(shape)
        for i, d in enumerate(dims):
            full[d] = x.shape[i]
        return np.broadcast_to(x.reshape(full), shape)

    @staticmethod
    def collapse(x: Any, start: int, stop: int) -> Any:
        size = math.prod(x.shape[start:stop])
        return x.reshape(*x.shape[:start], size, *x.shape[stop:])

    @staticmethod
    def pad(x: Any, value: Any, config: Any) -> Any:
        for dim, (low, high, between) in enumerate(config):
            x = np.moveaxis(x, dim, 0)
            size = max(0, len(x) + (len(x) - 1) * between)
            out = np.full((max(0, low) + size + max(0, high), *x.shape[1:]), value, x.dtype)
            out[max(0, low) :][: size : between + 1] = x
            if len(out) + min(0, low) + min(0, high) < 0:
                raise ValueError("a negative size")
            out = out[max(0, -low) : len(out) - max(0, -high)]
            x = np.moveaxis(out, 0, dim)
        return x

    @staticmethod
    def split(x: Any, sizes: Any, axis: int) -> Any:
        return np.split(x, np.cumsum(sizes)[:-1], axis)

    @staticmethod
    def slice(x: Any, starts: Any, stops: Any, strides: Any) -> Any:
        return x[tuple(map(slice, starts, stops, strides))]

    @staticmethod
    def slice_in_dim(x: Any, start: int, stop: int, stride: int, axis: int) -> Any:
        return np.moveaxis(np.moveaxis(x, axis, 0)[start:stop:stride], 0, axis)

    @staticmethod
    def index_in_dim(x: Any, index: int, axis: int, keepdims: bool) -> Any:
        return np.take(x, [index] if keepdims else index, axis)

    @staticmethod
    def _corner(x: Any, sizes: Any, starts: Any) -> tuple[slice, ...]:
        found = []
        for n, size, start in zip(x.shape, sizes, map(int, starts), strict=True):
            first = min(max(start + n if start < 0 else start, 0), n - size)
            found.append(slice(first, first + size))
        return tuple(found)

    def dynamic_slice(self, x: Any, starts: Any, sizes: Any) -> Any:
        return x[self._corner(x, sizes, starts)]

    def dynamic_update_slice(self, x: Any, update: Any, starts: Any) -> Any:
        out = x.copy()
        out[self._corner(x, update.shape, starts)] = update
        return out

    def dynamic_slice_in_dim(self, x: Any, start: Any, size: int, axis: int) -> Any:
        starts = [start if i == axis else 0 for i in range(x.ndim)]
        return self.dynamic_slice(
            x, starts, [size if i == axis else n for i, n in enumerate(x.shape)]
        )

    def dynamic_index_in_dim(self, x: Any, index: Any, axis: int, keepdims: bool) -> Any:
        found = self.dynamic_slice_in_dim(x, index, 1, axis)
        return found if keepdims else np.squeeze(found, axis)

    def dynamic_update_slice_in_dim(self, x: Any, update: Any, start: Any, axis: int) -> Any:
        return self.dynamic_update_slice(
            x, update, [start if i == axis else 0 for i in range(x.ndim)]
        )

    dynamic_update_index_in_dim = dynamic_update_slice_in_dim

    @staticmethod
    def index_take(x: Any, places: Any, axes: Any) -> Any:
        return np.moveaxis(x, axes, range(len(axes)))[tuple(places)]

    @staticmethod
    def iota(dtype: Any, size: int) -> Any:
        return np.arange(size).astype(dtype)

    @staticmethod
    def broadcasted_iota(dtype: Any, shape: Any, dim: int) -> Any:
        return np.indices(shape)[dim].astype(dtype)

    @staticmethod
    def argmax(x: Any, axis: int, dtype: Any) -> Any:
        return np.argmax(x, axis).astype(dtype)

    @staticmethod
    def argmin(x: Any, axis: int, dtype: Any) -> Any:
        return np.argmin(x, axis).astype(dtype)

    @staticmethod
    def sort(x: Any, dimension: int = -1) -> Any:
        return np.sort(x, dimension, stable=True)

    @staticmethod
    def sort_key_val(x: Any, y: Any, dimension: int = -1) -> Any:
        order = np.argsort(x, dimension, stable=True)
        return np.take_along_axis(x, order, dimension), np.take_along_axis(y, order, dimension)

    @staticmethod
    def top_k(x: Any, k: int, axis: int) -> Any:
        turned = np.flip(x, axis)
        order = x.shape[axis] - 1 - np.flip(np.argsort(turned, axis, stable=True), axis)
        order = np.take(order, range(k), axis)
        return np.take_along_axis(x, order, axis), order

    batch_matmul, dot = staticmethod(np.matmul), staticmethod(np.dot)
    rem = staticmethod(_weak(np.fmod))

    @staticmethod
    def dot_general(x: Any, y: Any, numbers: Any) -> Any:
        return np.einsum("bmk,kbn->bmn", x, y)

    @staticmethod
    def cumlogsumexp(x: Any, axis: int, reverse: bool) -> Any:
        return _running(np.logaddexp, x, axis, reverse)

    @staticmethod
    def cond(pred: Any, yes: Any, no: Any, x: Any) -> Any:
        return yes(x) if pred else no(x)

    @staticmethod
    def switch(at: Any, branches: Any, x: Any) -> Any:
        return branches[min(max(int(at), 0), len(branches) - 1)](x)

    @staticmethod
    def fori_loop(low: int, high: int, body: Any, x: Any) -> Any:
        for i in range(low, high):
            x = np.asarray(body(i, x))
        return x

    @staticmethod
    def while_loop(test: Any, body: Any, state: Any) -> Any:
        while test(state):
            state = body(state)
        return state

    @staticmethod
    def scan(body: Any, carry: Any, xs: Any, reverse: bool) -> Any:
        ys = np.empty(xs.shape, xs.dtype)
        for i in range(len(xs))[:: -1 if reverse else 1]:
            carry, ys[i] = body(carry, xs[i])
        return carry, ys

    @staticmethod
    def map(body: Any, xs: Any) -> Any:
        return np.asarray(body(xs))

    @staticmethod
    def associative_scan(body: Any, x: Any, axis: int, reverse: bool) -> Any:
        return _running(np.add if body(3, 3) == 6 else np.multiply, x, axis, reverse)

    @staticmethod
    def reduce(x: Any, start: Any, body: Any, dims: Any) -> Any:
        return (np.add if body(3, 3) == 6 else np.multiply).reduce(x, dims, x.dtype)


def _running(ufunc: np.ufunc, x: Any, axis: int, reverse: bool) -> Any:
    turned = np.flip(x, axis) if reverse else x
    found = ufunc.accumulate(turned, axis, dtype=x.dtype)
    return np.flip(found, axis) if reverse else found


for _name, _ufunc in (
    ("cumsum", np.add),
    ("cumprod", np.multiply),
    ("cummax", np.maximum),
    ("cummin", np.minimum),
):
    setattr(
        _Lax,
        _name,
        staticmethod(lambda x, axis, reverse, ufunc=_ufunc: _running(ufunc, x, axis, reverse)),
    )
for _name, _ufunc in (
    ("sum", np.add),
    ("prod", np.multiply),
    ("max", np.maximum),
    ("min", np.minimum),
    ("and", np.bitwise_and),
    ("or", np.bitwise_or),
    ("xor", np.bitwise_xor),
):
    setattr(
        _Lax,
        f"reduce_{_name}",
        staticmethod(lambda x, axes, ufunc=_ufunc: ufunc.reduce(x, tuple(axes), dtype=x.dtype)),
    )


class _NN:
    """Functions of neural networks, as their papers define them, with 64 bits."""

    @staticmethod
    def identity(x: Any) -> Any:
        return x

    tanh = np.tanh

    @staticmethod
    def celu(x: Any, alpha: float = 1.0) -> Any:
        return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) / alpha))

    @staticmethod
    def elu(x: Any, alpha: float = 1.0) -> Any:
        return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))

    @staticmethod
    def gelu(x: Any, approximate: bool = True) -> Any:
        if approximate:
            return x * scipy.special.expit(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
        return x * scipy.special.ndtr(x)

    @staticmethod
    def hard_sigmoid(x: Any) -> Any:
        return np.clip(x + 3, 0, 6) / 6

    def hard_silu(self, x: Any) -> Any:
        return x * self.hard_sigmoid(x)

    hard_swish = hard_silu

    @staticmethod
    def hard_tanh(x: Any) -> Any:
        return np.clip(x, -1, 1)

    @staticmethod
    def leaky_relu(x: Any, negative_slope: float = 0.01) -> Any:
        return np.where(x >= 0, x, x * negative_slope)

    @staticmethod
    def softplus(x: Any) -> Any:
        return np.logaddexp(x, 0)

    def log_sigmoid(self, x: Any) -> Any:
        return -np.logaddexp(-x, 0)

    def mish(self, x: Any) -> Any:
        return x * np.tanh(np.logaddexp(x, 0))

    @staticmethod
    def relu(x: Any) -> Any:
        return np.maximum(x, 0)

    @staticmethod
    def relu6(x: Any) -> Any:
        return np.clip(x, 0, 6)

    def selu(self, x: Any) -> Any:
        return 1.0507009873554805 * self.elu(x, 1.6732632423543772)

    @staticmethod
    def sigmoid(x: Any) -> Any:
        return scipy.special.expit(x)

    @staticmethod
    def silu(x: Any) -> Any:
        return x * scipy.special.expit(x)

    swish = silu

    @staticmethod
    def soft_sign(x: Any) -> Any:
        return x / (1 + np.abs(x))

    @staticmethod
    def sparse_plus(x: Any) -> Any:
        return np.where(x <= -1, 0, np.where(x >= 1, x, (x + 1) ** 2 / 4))

    @staticmethod
    def sparse_sigmoid(x: Any) -> Any:
        return np.clip((x + 1) / 2, 0, 1)

    @staticmethod
    def squareplus(x: Any, b: float = 4) -> Any:
        return (x + np.sqrt(x**2 + b)) / 2

    @staticmethod
    def log1mexp(x: Any) -> Any:
        return np.where(x < math.log(2), np.log(-np.expm1(-x)), np.log1p(-np.exp(-x)))

    @staticmethod
    def softmax(x: Any, axis: int) -> Any:
        return scipy.special.softmax(x, axis)

    @staticmethod
    def log_softmax(x: Any, axis: int) -> Any:
        return scipy.special.log_softmax(x, axis)

    @staticmethod
    def standardize(x: Any, axis: int) -> Any:
        off = x - x.mean(axis, keepdims=True)
        return off / np.sqrt(x.var(axis, keepdims=True) + 1e-5)

    @staticmethod
    def logsumexp(x: Any, axis: Any, keepdims: bool) -> Any:
        top = x.max(axis, keepdims=True)
        found = np.log(np.exp(x - top).sum(axis, keepdims=True)) + top
        return found if keepdims else np.squeeze(found, axis)

    def logmeanexp(self, x: Any, axis: Any, keepdims: bool) -> Any:
        count = x.size if axis is None else math.prod(np.take(x.shape, axis, 0).reshape(-1))
        return self.logsumexp(x, axis, keepdims) - np.log(count)

    @staticmethod
    def glu(x: Any) -> Any:
        first, second = np.split(x, 2, -1)
        return first * scipy.special.expit(second)

    @staticmethod
    def one_hot(x: Any, count: int, dtype: Any, axis: int) -> Any:
        return np.moveaxis((x[..., None] == np.arange(count)).astype(dtype), -1, axis)

    @staticmethod
    def dot_product_attention(q: Any, k: Any, v: Any, is_causal: bool) -> Any:
        scores = np.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
        if is_causal:
            scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
        return np.einsum("bhqk,bkhd->bqhd", scipy.special.softmax(scores, -1), v)


class _Array:
    """Indexing, and updates at an index."""

    @staticmethod
    def getitem(x: Any, index: Any) -> Any:
        return x[index]

    select = getitem

    @staticmethod
    def set(x: Any, index: Any, values: Any) -> Any:
        out = x.copy()
        out[index] = values
        return out

    @staticmethod
    def eigh(x: Any) -> Any:
        return np.linalg.eigvalsh(x), x

    @staticmethod
    def eig(x: Any) -> Any:
        kind = np.result_type(x, np.complex64)
        return np.linalg.eigvalsh(x).astype(kind), x.astype(kind)

    @staticmethod
    def eigvals(x: Any) -> Any:
        return np.linalg.eigvalsh(x).astype(np.result_type(x, np.complex64))

    @staticmethod
    def svd(x: Any, full: bool) -> Any:
        u, s, v = np.linalg.svd(x, full)
        return s, np.zeros(u.shape), np.zeros(v.shape), x


def _at(ufunc: np.ufunc) -> Any:
    def update(x: Any, index: Any, values: Any) -> Any:
        out = x.copy()
        ufunc.at(out, index, np.asarray(values, x.dtype))
        return out

    return staticmethod(update)


for _name, _ufunc in (("add", np.add), ("multiply", np.multiply), ("min", np.minimum)):
    setattr(_Array, _name, _at(_ufunc))
_Array.max = _at(np.maximum)  # type: ignore[attr-defined]


class _Random:
    """Random numbers: what one device draws by itself. Their distributions are a law elsewhere."""

    def __init__(self) -> None:
        self._drawn: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        def draw(*args: Any, lay: Any = None, grid: Any = None, **kwargs: Any) -> Any:
            args = (int(args[0]), *args[1:])
            asked = repr((name, args, kwargs))
            if asked not in self._drawn:
                self._drawn[asked] = alone(lambda: on_one_device(name, args, kwargs), 1)
            return self._drawn[asked]

        return draw


def random_call(name: str, seed: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function of `meshard.random` with the key of a seed; return plain numbers."""
    key = random.key(seed)
    if name == "wrap_key_data":
        return random.key_data(random.wrap_key_data(random.key_data(key)))
    found = getattr(random, name)(key, *args, **kwargs)
    return random.key_data(found) if name in ("split", "fold_in", "clone") else found


def on_one_device(name: str, args: Any, kwargs: Any) -> Any:
    """Return what one device draws, as NumPy's arrays."""
    return np.asarray(random_call(name, *args, **kwargs))


NUMPY = _NumPy()
MODEL = SimpleNamespace(numpy=NUMPY, lax=_Lax(), nn=_NN(), array=_Array(), random=_Random())
MODEL.mapped = MODEL.random
