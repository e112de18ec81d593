"""Numbers straight from the words: bits, uniform, normal and exponential numbers, and ranges.

In: a tile's random words. Out: its numbers. All other distributions are made of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from meshard.errors import DtypeError
from meshard.ops.checked import DtypeLike, checked
from meshard.ops.engine.later import is_traced
from meshard.ops.random.table import (
    FLOAT_OR_COMPLEX,
    INTEGER,
    UNSIGNED,
    Distribution,
    elementwise_row,
    finished,
    result_shape,
)
from meshard.ops.random.tiles import Draw, Request, asked_dtype, refuse_place, register_sampler
from meshard.ops.row import Dtype, Op, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike, Block, DeviceLike, ShapeLike, dtype_name

_WORD = 1 << 64
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


# bits and uniform numbers


def _fill_bits(draw: Draw, out: Block) -> None:
    words = draw.words(-(-out.nbytes // 8))
    out[...] = words.view(out.dtype)[: out.size]


def _fill_uniform(draw: Draw, out: Block, low: float = 0.0, high: float = 1.0) -> None:
    """Fill with numbers from ``low`` to before ``high``, as finely as the dtype has digits."""
    dtype, size = out.dtype, out.size
    if dtype.itemsize > 4:
        words = draw.words(size)
        words >>= np.uint64(11)
        np.multiply(words, 2.0**-53, out=out, casting="unsafe")
    elif dtype == np.float32:
        halves = draw.words(-(-size // 2)).view(np.uint32)[:size]
        halves >>= np.uint32(8)
        np.multiply(halves, np.float32(2.0**-24), out=out, dtype=np.float32, casting="unsafe")
    else:
        finfo: Any = ml_dtypes.finfo
        digits = int(finfo(dtype).nmant) + 1
        parts = draw.words(-(-size // 4)).view(np.uint16)[:size] >> np.uint16(16 - digits)
        out[...] = parts * np.float32(2.0**-digits)
    if (low, high) != (0.0, 1.0):
        out[...] = _scaled(out, low, high)


def _scaled(numbers: Any, low: Any, high: Any) -> Any:
    """Return numbers of [0, 1) stretched to [low, high); ``low`` where there is nothing between."""
    low, high = np.asarray(low).astype(numbers.dtype), np.asarray(high).astype(numbers.dtype)
    stretched = numbers * (high - low) + low
    below = np.nextafter(high, low)
    return np.where(high > low, np.maximum(np.minimum(stretched, below), low), low)


def _stretched(request: Request, low: Any, high: Any) -> Any:
    numbers = request.beside(low, high).drawn("uniform")
    return bind("random_scaled", numbers, low, high, dtype=request.dtype)


register_sampler("bits", _fill_bits)
register_sampler("uniform", _fill_uniform)
elementwise_row("scaled", _scaled, 3)


@Distribution(dtypes=UNSIGNED)
def bits(
    key: ArrayLike,
    shape: ShapeLike = (),
    dtype: DtypeLike = None,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw random bits as unsigned integers."""


@Distribution(
    parameters={
        "minval": "the lower bound, a number or array",
        "maxval": "the upper bound; where it is not above the lower, that is what comes out",
    },
    sample=_stretched,
)
def uniform(
    key: ArrayLike,
    shape: ShapeLike = (),
    dtype: DtypeLike = None,
    minval: ArrayLike = 0.0,
    maxval: ArrayLike = 1.0,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw numbers from ``minval`` to before ``maxval``, all equally likely."""


# normal and exponential numbers


def _positive(words: Block) -> Block:
    """Return float32 numbers above 0 and at most 1, of each half of a word.

    They are fine near 0, where logarithms are steep: down to 2^-33.
    """
    halves = words.view(np.uint32)
    numbers = halves.view(np.float32)
    np.add(halves, np.float32(0.5), out=numbers, dtype=np.float32, casting="unsafe")
    numbers *= np.float32(2.0**-32)
    return numbers


def _fill_normal(draw: Draw, out: Block) -> None:
    """Fill with normal numbers.

    Float64 ones come from NumPy's ziggurat. For shorter ones Box and Muller's method, two numbers
    from each two uniform ones, is twice as fast: NumPy has sines of four or more float32 at once.
    """
    if out.dtype.kind == "c":
        parts: Any = out.view(np.float32 if out.dtype == np.complex64 else np.float64)
        _fill_normal(draw, parts)
        parts *= parts.dtype.type(math.sqrt(0.5))
        return
    if out.dtype.itemsize > 4:
        numbers = out if out.dtype == np.float64 else np.empty(out.size)
        draw.generator().standard_normal(out=numbers)
        if numbers is not out:
            out[...] = numbers
        return
    size = out.size
    half = -(-size // 2)
    numbers = _positive(draw.words(half))
    radius, angle = numbers[:half], numbers[half:]
    angle *= np.float32(2 * math.pi)
    np.log(radius, out=radius)
    radius *= np.float32(-2)
    np.sqrt(radius, out=radius)
    if out.dtype == np.float32:
        first, second = out[:half], out[half:]
        np.sin(angle[: size - half], out=second)
        second *= radius[: size - half]
        np.cos(angle, out=first)
        first *= radius
    else:
        out[:half] = radius * np.cos(angle)
        out[half:] = (radius * np.sin(angle))[: size - half]


def _fill_exponential(draw: Draw, out: Block) -> None:
    if out.dtype.itemsize > 4:
        numbers = draw.uniforms(out.size)
    else:
        numbers = _positive(draw.words(-(-out.size // 2)))[: out.size]
    np.log(numbers, out=numbers)
    np.negative(numbers, out=out, casting="unsafe")


register_sampler("normal", _fill_normal)
register_sampler("exponential", _fill_exponential)


@Distribution(dtypes=FLOAT_OR_COMPLEX)
def normal(
    key: ArrayLike,
    shape: ShapeLike = (),
    dtype: DtypeLike = None,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw from the normal distribution of mean 0 and variance 1.

    With a complex dtype, the real and the imaginary part have a variance of 1/2 each.
    """


@Distribution()
def exponential(
    key: ArrayLike,
    shape: ShapeLike = (),
    dtype: DtypeLike = None,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw from the exponential distribution of mean 1."""


# ranges


def _high_product(a: Any, b: Any) -> Any:
    """Return the upper 64 bits of the products of 64-bit numbers."""
    a1, a0, b1, b0 = a >> _HALF, a & _LOW, b >> _HALF, b & _LOW
    middle = (a0 * b0 >> _HALF) + (a1 * b0 & _LOW)
    high = a1 * b0 >> _HALF
    if np.any(b1):
        cross = a0 * b1
        middle += cross & _LOW
        high += a1 * b1 + (cross >> _HALF)
    return high + (middle >> _HALF)


def _below(words: Block, more: Callable[[], Block], span: Any) -> Block:
    """Return integers from 0 to before ``span``; 0 stands for 2^64.

    They are ``floor(word * span / 2^64)``. The chances of two of them differ by one part in
    ``2^64 / span`` at most; where that is not below 2^-32, a second word makes it 2^-64.
    """
    found = _high_product(words, span)
    wide = span > _LOW
    if np.any(wide):
        low = words * span
        carry = low + _high_product(more(), span) < low
        found = found + (carry & wide)
    return np.where(span == 0, words, found)


def _fill_range(draw: Draw, out: Block, low: int, span: int) -> None:
    words = draw.words(out.size)
    found = _below(words, lambda: draw.words(out.size, 1), np.uint64(span % _WORD))
    out[...] = (found + np.uint64(low % _WORD)).astype(out.dtype)


def _range_of(words: Block, more: Block, low: Any, high: Any) -> Block:
    first, last = np.asarray(low), np.asarray(high)
    span = np.where(last > first, last.astype(np.uint64) - first.astype(np.uint64), np.uint64(1))
    return _below(words, lambda: more, span) + first.astype(np.uint64)


def _within(value: Any, *, dtype: Dtype, low: int, high: int) -> Block:
    """Return bounds as int64 or uint64, no further out than ``low`` and ``high``."""
    info = np.iinfo(np.asarray(value).dtype)
    limited = np.clip(value, max(low, int(info.min)), min(high, int(info.max)))
    return np.asarray(limited, dtype)


register_sampler("range", _fill_range)
elementwise_row("range_of", _range_of, 4)
register(Op("random_within", "... -> ...", _within, dtypes=asked_dtype))


def _bound(name: str, given: Any) -> Any:
    """Return a bound of randint: a Python int or an array of integers."""
    if isinstance(given, (int, np.integer)):
        return int(given)
    x = as_array(given)
    if x.dtype.kind not in "iub":
        raise DtypeError(f"randint: {name} must be integers; its dtype is {dtype_name(x.dtype)}.")
    return x if x.dtype.kind != "b" else x.astype(np.int64)


@checked
def randint(
    key: ArrayLike,
    shape: ShapeLike,
    minval: ArrayLike,
    maxval: ArrayLike,
    dtype: DtypeLike = None,
    *,
    out_sharding: DeviceLike = None,
) -> Array:
    """Draw integers from ``minval`` to before ``maxval``, all equally likely.

    Args:
        key: one key, typed or plain.
        shape: the global shape, to which the bounds broadcast.
        minval: the lowest, an integer or an array of integers.
        maxval: one beyond the highest; where it is not above ``minval``, that is what comes out.
            Bounds beyond the dtype's range count as its ends.
        dtype: an integer dtype, int64 by default.
        out_sharding: how the result is laid out, each piece drawn where it is; None for the key's
            place.

    Raises:
        ArgumentError: if ``dtype`` is not an integer dtype.
        DtypeError: if a bound is not an integer.
        ShapeError: if a bound does not broadcast to ``shape``.
        ShardingError: if the result cannot be laid out so.

    >>> import meshard
    >>> from meshard import P, random
    >>> with meshard.make_mesh((1,), ("i",)):
    ...     x = random.randint(random.key(0), (8,), 0, 10, out_sharding=P("i"))
    >>> x.sharding.spec, int(x.max()) < 10
    (P('i',), True)
    """
    what = "randint"
    wanted = INTEGER(dtype, what)
    low, high = _bound("minval", minval), _bound("maxval", maxval)
    arrays = [v for v in (low, high) if not isinstance(v, int)]
    sizes = result_shape(what, shape, {"minval": low, "maxval": high})
    info = np.iinfo(wanted)
    first, beyond = int(info.min), int(info.max) + 1
    if not arrays:
        low = min(max(low, first), beyond - 1)
        span = max(min(high, beyond) - low, 1)
        return Request(what, key, sizes, wanted, out_sharding).drawn("range", low, span)
    if is_traced(*arrays):
        refuse_place(what, out_sharding)
    request = Request(what, key, sizes, wanted, out_sharding).beside(*arrays)
    words = [request.words(part) for part in (0, 1)]
    wide = np.dtype(np.uint64 if wanted == np.uint64 else np.int64)
    limits = (int(info.max), min(beyond, int(np.iinfo(wide).max)))
    bounds = [
        as_array(np.asarray(min(max(v, first), most), wide))
        if isinstance(v, int)
        else bind("random_within", v, dtype=wide, low=first, high=most)
        for v, most in zip((low, high), limits, strict=True)
    ]
    return finished(what, bind("random_range_of", *words, *bounds, dtype=wanted), out_sharding)
