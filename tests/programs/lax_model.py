"""What `jax.lax` defines, in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special

from tests.programs.draw import dtype_named
from tests.programs.numpy_model import NUMPY, SMALL, weak


def _rounded(x: Any) -> Any:
    if x.dtype in SMALL:
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
    if x.dtype in SMALL:
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


class Lax:
    """What jax.lax defines, in NumPy."""

    neg, sub = staticmethod(weak(np.negative)), staticmethod(weak(np.subtract))
    mul, max = staticmethod(weak(np.multiply)), staticmethod(weak(np.maximum))
    min = staticmethod(weak(np.minimum))
    eq, ne = staticmethod(weak(np.equal)), staticmethod(weak(np.not_equal))
    lt, le = staticmethod(weak(np.less)), staticmethod(weak(np.less_equal))
    gt, ge = staticmethod(weak(np.greater)), staticmethod(weak(np.greater_equal))
    is_finite = staticmethod(weak(np.isfinite))
    shift_left, shift_right_arithmetic = np.left_shift, np.right_shift
    shift_right_logical = staticmethod(_logical_shift)
    clz = staticmethod(_leading_zeros)
    round = staticmethod(_rounded)
    div = staticmethod(weak(_quotient))
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
        return weak(np.power)(x, y)

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
    rem = staticmethod(weak(np.fmod))

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
        Lax,
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
        Lax,
        f"reduce_{_name}",
        staticmethod(lambda x, axes, ufunc=_ufunc: ufunc.reduce(x, tuple(axes), dtype=x.dtype)),
    )
