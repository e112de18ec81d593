"""NumPy's functions, and those that `meshard.numpy` has with other arguments or besides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tests.programs.draw import LETTERS

SMALL = {dtype for dtype, letter in LETTERS.items() if letter in "hs"}


def weak(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make Python's numbers take the operands' small float, as NumPy does for its own floats."""

    def call(*args: Any, **kwargs: Any) -> Any:
        small = {x.dtype for x in args if getattr(x, "dtype", None) in SMALL}
        if len(small) == 1:
            kind = next(iter(small)).type
            args = tuple(kind(x) if type(x) is float else x for x in args)
        return function(*args, **kwargs)

    return call


def closed(ufunc: np.ufunc) -> Callable[..., Any]:
    """Let the integers of fewer than 8 bits stay what they are, as those of 8 bits do."""

    def call(x: Any) -> Any:
        if LETTERS.get(getattr(x, "dtype", None)) != "n":
            return weak(ufunc)(x)
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
        staticmethod(closed(f))
        for f in (
            *(np.negative, np.positive, np.square, np.absolute, np.absolute),
            *(np.sign, np.conjugate, np.conjugate),
        )
    )

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        return weak(found) if isinstance(found, np.ufunc) else found

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


NUMPY = _NumPy()
