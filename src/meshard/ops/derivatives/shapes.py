"""Cotangents made to fit: summed over what was broadcast on the way.

In: a cotangent and the value that it belongs to. Out: one of that value's shape and dtype; and, in
the body of a `shard_map`, summed over the axes over which the value is the same. A value is widened
without a word where it meets one that varies over more axes; the sum is the transpose of that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshard.ops.dtypes.laws import is_float
from meshard.runtime.array.traced import Traced
from meshard.runtime.doors import bind, current
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayType


def shape_of(x: Any) -> tuple[int, ...]:
    """Return the shape of an array or number."""
    return () if isinstance(x, (bool, int, float, complex)) else tuple(x.shape)


def dtype_of(x: Any) -> np.dtype[Any]:
    """Return the dtype of an array, or that which a number takes."""
    return as_array(x).dtype if isinstance(x, (bool, int, float, complex)) else x.dtype


def is_differentiable(x: Any) -> bool:
    """Whether a value is a float or complex number, or an array of them."""
    if isinstance(x, (bool, int)):
        return False
    dtype = x.dtype if not isinstance(x, (float, complex)) else None
    return dtype is None or is_float(dtype) or dtype.kind == "c"


def in_body(x: Any) -> bool:
    """Whether a value is one of a `shard_map` body."""
    return isinstance(x, Traced) and not isinstance(x.aval, ArrayType)


def varying(x: Any) -> frozenset[str]:
    """Return the axes over which a value varies; none outside of `shard_map` bodies."""
    found: frozenset[str] = x.aval.vma if in_body(x) else frozenset()
    return found


def shrunk(g: Any, like: Any) -> Any:
    """Return a cotangent in the shape and dtype of the value that it belongs to."""
    shape, wanted = shape_of(like), dtype_of(like)
    if isinstance(g, (bool, int, float, complex)):
        g = as_array(g)
    if g.shape != shape:
        g = _summed(g, shape)
    return converted(g, wanted)


def narrowed(g: Any, axes: frozenset[str]) -> Any:
    """Return the sum of a cotangent over mesh axes over which its value is the same."""
    return current().narrowed(g, tuple(sorted(axes)))


def converted(g: Any, dtype: np.dtype[Any]) -> Any:
    """Return a value in another dtype; of complex numbers for reals the real part."""
    if g.dtype.kind == "c" and dtype.kind != "c":
        g = bind("real", g)
    return g if g.dtype == dtype else bind("astype", g, dtype=dtype)


def _summed(g: Any, shape: tuple[int, ...]) -> Any:
    """Return a value summed over the dims that broadcasting a shape has made, or made longer."""
    extra = g.ndim - len(shape)
    if extra < 0:  # the cotangent of fewer dims stands for all
        return expanded(g, shape)
    rest = tuple([d for d in range(extra, g.ndim) if g.shape[d] != 1 and shape[d - extra] == 1])
    if rest:
        g = bind("sum", g, axis=rest, keepdims=True, dtype=None)
    if extra:
        g = bind("sum", g, axis=tuple(range(extra)), keepdims=False, dtype=None)
    return g if g.shape == shape else expanded(g, shape)


def expanded(x: Any, shape: tuple[int, ...]) -> Any:
    """Return a value broadcast to a shape."""
    return x if shape_of(x) == shape else bind("broadcast_to", as_array(x), shape=shape)


def tangent_like(t: Any, like: Any) -> Any:
    """Return a tangent in the shape and dtype of the result that it belongs to."""
    return converted(expanded(as_array(t), shape_of(like)), dtype_of(like))
