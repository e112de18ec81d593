"""The basic samplers: bits, uniform, normal and exponential numbers, straight from the words."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from meshard.algebra.arguments import shape_of
from meshard.errors import ArgumentError
from meshard.ops.engine.arguments import DtypeLike, checked
from meshard.ops.engine.dtypes import as_dtype, is_float
from meshard.ops.engine.row import Dtype
from meshard.ops.random.drawing import Draw, drawn, register_sampler
from meshard.runtime.types import Block


def open_uniform(words: Block) -> Block:
    """Return float64 numbers strictly between 0 and 1, of 52 bits, in the words' own memory."""
    numbers = words.view(np.float64)
    words >>= np.uint64(12)
    np.add(words, 0.5, out=numbers)  # exact: 53 bits
    numbers *= 2.0**-52
    return numbers


def _positive(words: Block) -> Block:
    """Return float32 numbers above 0 and at most 1, of each half of a word.

    They are fine near 0, where logarithms are steep: down to 2^-33.
    """
    halves = words.view(np.uint32)
    numbers = halves.view(np.float32)
    np.add(halves, np.float32(0.5), out=numbers, dtype=np.float32, casting="unsafe")
    numbers *= np.float32(2.0**-32)
    return numbers


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
        out[...] = scaled(out, dtype.type(low), dtype.type(high))


def scaled(numbers: Any, low: Any, high: Any) -> Any:
    """Return numbers of [0, 1) stretched to [low, high); ``low`` where there is nothing between."""
    stretched = numbers * (high - low) + low
    below = np.nextafter(high, low)
    return np.where(high > low, np.maximum(np.minimum(stretched, below), low), low)


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
    size = out.size
    if out.dtype.itemsize > 4:
        numbers = open_uniform(draw.words(size))
    else:
        numbers = _positive(draw.words(-(-size // 2)))[:size]
    np.log(numbers, out=numbers)
    np.negative(numbers, out=out, casting="unsafe")


def _fill_open(draw: Draw, out: Block, part: int) -> None:
    out[...] = open_uniform(draw.words(out.size, part))


def _fill_words(draw: Draw, out: Block, part: int) -> None:
    out[...] = draw.words(out.size, part)


register_sampler("bits", _fill_bits)
register_sampler("uniform", _fill_uniform)
register_sampler("normal", _fill_normal)
register_sampler("exponential", _fill_exponential)
register_sampler("open", _fill_open)
register_sampler("words", _fill_words)


def float_dtype(dtype: Any, what: str, *, complex: bool = False) -> Dtype:
    """Return the dtype of a float result, by default the default float.

    Raises:
        ArgumentError: if it is of another kind.
    """
    wanted = as_dtype(dtype)
    # The one float dtype of powers of two alone can hold no distribution.
    usable = wanted.kind == "f" or (is_float(wanted) and wanted != ml_dtypes.float8_e8m0fnu)
    if not usable and not (complex and wanted.kind == "c"):
        kinds = "float or complex" if complex else "float"
        raise ArgumentError(f"dtype argument to {what} must be a {kinds} dtype, got {wanted.name}.")
    return wanted


@checked
def bits(key: Any, shape: Any = (), dtype: DtypeLike = None, *, out_sharding: Any = None) -> Any:
    """Draw random bits as unsigned integers.

    Args:
        key: one key, typed or plain.
        shape: the global shape.
        dtype: an unsigned dtype; uint64 by default.
        out_sharding: how the result lies, each piece drawn where it is; None for the key's place.

    Raises:
        ArgumentError: if ``dtype`` is not unsigned.
        ShardingError: if the shape cannot lie so.

    >>> from meshard import random
    >>> random.bits(random.key(0), (3,), "uint8").shape
    (3,)
    """
    wanted = np.dtype(np.uint64) if dtype is None else as_dtype(dtype)
    if wanted.kind != "u":
        raise ArgumentError(
            f"dtype argument to bits must be an unsigned int dtype, got {wanted.name}."
        )
    return drawn("bits", key, "bits", shape_of(shape, "bits"), wanted, out_sharding)


@checked
def normal(key: Any, shape: Any = (), dtype: DtypeLike = None, *, out_sharding: Any = None) -> Any:
    """Draw from the normal distribution of mean 0 and variance 1.

    Of a complex dtype real and imaginary part have variance 1/2 each.

    Args:
        key: one key, typed or plain.
        shape: the global shape.
        dtype: a float or complex dtype; the default float by default.
        out_sharding: how the result lies, each piece drawn where it is; None for the key's place.

    Raises:
        ArgumentError: if ``dtype`` is of another kind.
        ShardingError: if the shape cannot lie so.

    >>> from meshard import random
    >>> random.normal(random.key(0), (2, 3)).shape
    (2, 3)
    """
    wanted, sizes = float_dtype(dtype, "normal", complex=True), shape_of(shape, "normal")
    return drawn("normal", key, "normal", sizes, wanted, out_sharding)


@checked
def exponential(
    key: Any, shape: Any = (), dtype: DtypeLike = None, *, out_sharding: Any = None
) -> Any:
    """Draw from the exponential distribution of mean 1.

    Args:
        key: one key, typed or plain.
        shape: the global shape.
        dtype: a float dtype; the default float by default.
        out_sharding: how the result lies, each piece drawn where it is; None for the key's place.

    Raises:
        ArgumentError: if ``dtype`` is of another kind.
        ShardingError: if the shape cannot lie so.

    >>> from meshard import random
    >>> random.exponential(random.key(0), (2, 3)).shape
    (2, 3)
    """
    wanted, sizes = float_dtype(dtype, "exponential"), shape_of(shape, "exponential")
    return drawn("exponential", key, "exponential", sizes, wanted, out_sharding)
