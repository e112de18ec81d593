"""NumPy's functions, and those that `meshard.numpy` has with other arguments or besides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from meshard.ops.dtypes.laws import BYTES, EXTENDED, cast, promoted
from tests.programs.draw import LETTERS

SMALL = {dtype for dtype, letter in LETTERS.items() if letter in "hs"}


def meeting(*operands: Any) -> tuple[list[Any], Any]:
    """Return operands in their common dtype, or the byte that stands for it, and that dtype.

    Without short dtypes NumPy converts them itself. What the common dtype is, is the law of
    ``test_promotion``.
    """
    kinds = [getattr(x, "dtype", type(x)) for x in operands]
    if not EXTENDED.intersection(kinds):
        return list(operands), None
    common = promoted(kinds)
    held = BYTES.get(common, common)
    return [cast(x, held) if hasattr(x, "dtype") else held.type(x) for x in operands], common


def short(found: Any, common: Any) -> Any:
    """Let integers of fewer than 8 bits wrap around, as those of 8 bits do."""
    if common not in BYTES or np.asarray(found).dtype != BYTES[common]:
        return found
    limits = ml_dtypes.iinfo(common)
    span = limits.max - limits.min + 1
    whole = (np.asarray(found, np.int64) - limits.min) % span + limits.min
    return whole.astype(np.int8).astype(common)


def weak(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let the operands of a function of arrays meet in one dtype, short ones too."""

    def call(*args: Any, **kwargs: Any) -> Any:
        operands, common = meeting(*args)
        return short(function(*operands, **kwargs), common)

    return call


def joining(function: Callable[..., Any]) -> Any:
    """Let the arrays that a function puts together meet in one dtype, short ones too."""

    def call(arrays: Any, *args: Any, **kwargs: Any) -> Any:
        operands, common = meeting(*arrays)
        return short(function(operands, *args, **kwargs), common)

    return staticmethod(call)


def bytewise(function: Callable[..., Any], keeps: bool = False) -> Any:
    """Let a function compute integers of fewer than 8 bits in bytes; some keep the dtype."""

    def call(a: Any, *args: Any, **kwargs: Any) -> Any:
        found = function(a.astype(BYTES.get(a.dtype, a.dtype)), *args, **kwargs)
        return short(found, a.dtype) if keeps else found

    return staticmethod(call)


class _Linalg:
    """NumPy's linear algebra."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np.linalg, name)

    @staticmethod
    def lstsq(a: Any, b: Any) -> Any:
        x, rest, rank, s = np.linalg.lstsq(a, b)
        return x, rest, np.int32(rank), s


class _NumPy:
    """NumPy's functions, and those that meshard has with other arguments or besides."""

    linalg: Any = _Linalg()
    fft: Any = np.fft

    concatenate, concat = joining(np.concatenate), joining(np.concatenate)
    stack, vstack, hstack = joining(np.stack), joining(np.vstack), joining(np.hstack)
    dstack, column_stack = joining(np.dstack), joining(np.column_stack)
    sum, prod, mean = bytewise(np.sum), bytewise(np.prod), bytewise(np.mean)
    max, min = bytewise(np.max, True), bytewise(np.min, True)
    var, std = bytewise(np.var), bytewise(np.std)
    cumsum, cumprod = bytewise(np.cumsum), bytewise(np.cumprod)

    @staticmethod
    def append(a: Any, values: Any, axis: Any = None) -> Any:
        operands, common = meeting(a, values)
        return short(np.append(*operands, axis), common)

    @staticmethod
    def where(condition: Any, x: Any, y: Any) -> Any:
        operands, common = meeting(x, y)
        return short(np.where(condition, *operands), common)

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        return weak(found) if isinstance(found, np.ufunc) else found

    @staticmethod
    def sort(a: Any, axis: Any = -1, descending: bool = False, **_: Any) -> Any:
        found = np.sort(a, axis=axis, stable=True)
        return np.flip(found, axis=-1 if axis is None else axis) if descending else found

    @staticmethod
    def argsort(a: Any, axis: Any = -1, descending: bool = False, **_: Any) -> Any:
        if a.dtype in SMALL:  # whose NaN NumPy does not take for the greatest
            a = a.astype(np.float32)
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
        return weak(np.minimum)(weak(np.maximum)(a, low), high)

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
    def nanmedian(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
        with np.errstate(all="ignore"):
            return (np.nanmedian if a.size else np.mean)(a, axis, keepdims=keepdims)

    @staticmethod
    def median(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return (np.median if a.size else np.mean)(a, axis, keepdims=keepdims)

    @staticmethod
    def quantile(a: Any, q: Any, axis: Any = None, keepdims: bool = False, **more: Any) -> Any:
        if not a.size:  # which NumPy refuses for some axes
            found = np.mean(a, axis, keepdims=keepdims)
            weak = type(q) is float or more["method"] in ("lower", "higher", "nearest")
            found = found if weak else found.astype(np.float64)
            return np.broadcast_to(found, (*np.shape(q), *found.shape))
        return np.quantile(a, q, axis=axis, keepdims=keepdims, **more)

    def percentile(self, a: Any, q: Any, **more: Any) -> Any:
        return self.quantile(a, q / 100 if type(q) is float else np.asarray(q) / 100, **more)

    @staticmethod
    def fromfunction(function: Any, shape: Any, dtype: Any = float) -> Any:
        return np.fromfunction(function, shape, dtype=dtype)


def _sized(found: Any, size: int, fill: Any) -> Any:
    out = np.full((size, *found.shape[1:]), fill, found.dtype)
    out[: len(found)] = found[:size]
    return out


NUMPY = _NumPy()
