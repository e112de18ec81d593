"""Whole numbers: ranges, and the discrete distributions, by their distribution functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshard.algebra.arguments import shape_of
from meshard.errors import ArgumentError, DtypeError, ShapeError
from meshard.ops.array import elementwise as element
from meshard.ops.array.join import stack
from meshard.ops.array.shape import broadcast_to
from meshard.ops.engine.arguments import DtypeLike, checked
from meshard.ops.engine.concrete import is_traced
from meshard.ops.engine.dtypes import as_dtype
from meshard.ops.engine.row import Dtype, Op, register
from meshard.ops.random.basic import float_dtype
from meshard.ops.random.drawing import Draw, drawn, refuse_place, register_sampler
from meshard.ops.random.transform import (
    elementwise_row,
    finished,
    integer_dtype,
    like,
    parameter,
    register_transform,
    result_shape,
    transformed,
    uniforms,
)
from meshard.ops.reductions.reduce import sum as total
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import Block, dtype_name

_WORD = 1 << 64
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_TABLE = 1 << 16
"""The longest table of a distribution function that is made for one parameter."""


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


def _below(words: Block, more: Callable[[], Block] | None, span: Any) -> Block:
    """Return whole numbers from 0 to before ``span``; 0 stands for 2^64.

    They are ``floor(word * span / 2^64)``. The chances of two of them differ by one part in
    ``2^64 / span`` at most; where that is not below 2^-32, a second word makes it 2^-64.
    """
    found = _high_product(words, span)
    wide = span > _LOW
    if np.any(wide):
        assert more is not None
        low = words * span
        carry = low + _high_product(more(), span) < low
        found = found + (carry & wide)
    return np.where(span == 0, words, found)


def _fill_range(draw: Draw, out: Block, low: int, span: int) -> None:
    words = draw.words(out.size)
    size = np.uint64(span % _WORD)
    found = _below(words, lambda: draw.words(out.size, 1), size) if span else np.zeros_like(words)
    out[...] = (found + np.uint64(low % _WORD)).astype(out.dtype)


register_sampler("range", _fill_range)


def _range_of(words: Block, more: Block, low: Any, high: Any) -> Block:
    first, last = np.asarray(low), np.asarray(high)
    span = np.where(last > first, last.astype(np.uint64) - first.astype(np.uint64), np.uint64(1))
    return _below(words, lambda: more, span) + first.astype(np.uint64)


elementwise_row("range_of", _range_of, 4)


def _within(value: Any, *, dtype: Dtype, low: int, high: int) -> Block:
    """Return bounds as int64 or uint64, no further out than ``low`` and ``high``."""
    info = np.iinfo(np.asarray(value).dtype)
    limited = np.clip(value, max(low, int(info.min)), min(high, int(info.max)))
    return np.asarray(limited, dtype)


register(
    Op("random_within", "... -> ...", _within, dtypes=lambda operands, params: (params["dtype"],))
)


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
    key: Any,
    shape: Any,
    minval: Any,
    maxval: Any,
    dtype: DtypeLike = None,
    *,
    out_sharding: Any = None,
) -> Any:
    """Draw integers from ``minval`` to before ``maxval``, all equally likely.

    Args:
        key: one key, typed or plain.
        shape: the global shape, to which the bounds broadcast.
        minval: the lowest, an integer or an array of integers.
        maxval: one beyond the highest; where it is not above ``minval``, that is what comes out.
            Bounds beyond the dtype's range count as its ends.
        dtype: an integer dtype, int64 by default.
        out_sharding: how the result lies, each piece drawn where it is; None for the key's place.

    Raises:
        ArgumentError: if ``dtype`` is no integer.
        DtypeError: if a bound is no integer.
        ShapeError: if a bound does not broadcast to ``shape``.

    >>> from meshard import random
    >>> random.randint(random.key(0), (3,), 0, 10).dtype
    dtype('int64')
    """
    what = "randint"
    wanted = integer_dtype(dtype, what)
    low, high = _bound("minval", minval), _bound("maxval", maxval)
    arrays = {n: v for n, v in (("minval", low), ("maxval", high)) if not isinstance(v, int)}
    sizes = result_shape(what, shape, arrays)
    info = np.iinfo(wanted)
    first, beyond = int(info.min), int(info.max) + 1
    if not arrays:
        low = min(max(low, first), beyond - 1)
        span = max(min(high, beyond) - low, 0)
        return drawn(what, key, "range", sizes, wanted, out_sharding, (low, span or 1))
    if is_traced(*arrays.values()):
        refuse_place(what, out_sharding)
    where = out_sharding if out_sharding is not None else like(key, sizes, *arrays.values())
    words = [
        drawn(what, key, "words", sizes, np.dtype(np.uint64), where, (part,)) for part in (0, 1)
    ]
    wide = np.dtype(np.uint64 if wanted == np.uint64 else np.int64)
    limits = (int(info.max), min(beyond, int(np.iinfo(wide).max)))
    bounds = [
        as_array(np.asarray(min(max(v, first), most), wide))
        if isinstance(v, int)
        else bind("random_within", v, dtype=wide, low=first, high=most)
        for v, most in zip((low, high), limits, strict=True)
    ]
    return finished(what, bind("random_range_of", *words, *bounds, dtype=wanted), out_sharding)


# distribution functions, inverted


_FAR = 1e10
"""The mean from which the search for a quantile ends at its first guess."""


def _smallest(u: Block, k: Block, below: Callable[[Any, Any], Any], last: Any) -> Block:
    """Return the least whole numbers whose distribution function reaches ``u``.

    Args:
        u: the chances.
        k: guesses.
        below: the distribution function, of numbers and of the places whose parameters it takes.
        last: the greatest numbers there are.
    """
    places = np.arange(u.size)
    down = places[(k > 0) & (below(np.maximum(k - 1, 0), places) >= u)]
    up = places[(k < last) & (below(k, places) < u)]
    while down.size:
        k[down] -= 1
        down = down[k[down] > 0]
        down = down[below(k[down] - 1, down) >= u[down]]
    while up.size:
        k[up] += 1
        up = up[k[up] < last[up]]
        up = up[below(k[up], up) < u[up]]
    return k


def _guess(u: Block, mean: Any, variance: Any, skew: Any) -> Any:
    """Return about where the distribution function is ``u``, after Cornish and Fisher."""
    from scipy.special import ndtri

    z = ndtri(u)
    return np.maximum(np.rint(mean + np.sqrt(variance) * z + skew * (z * z - 1) / 6 - 0.5), 0.0)


def _spread_out(u: Any, *parameters: Any) -> tuple[tuple[int, ...], list[Block]]:
    together = np.broadcast_arrays(u, *parameters)
    return together[0].shape, [np.array(x, np.float64).ravel() for x in together]


def _poisson(u: Any, lam: Any) -> Any:
    from scipy.special import pdtr

    if np.ndim(lam) == 0 and 0 < float(lam) < _TABLE / 16:
        # One table serves all elements, and gives what the search below would.
        mean = float(lam)
        table = pdtr(np.arange(int(mean + 12 * np.sqrt(mean) + 64)), mean)
        inside = np.maximum.accumulate(table)
        return np.searchsorted(inside, u).astype(np.float64)
    shape, (chance, means) = _spread_out(u, lam)
    valid = means > 0
    near: Any = np.where(valid & (means < _FAR), means, 1.0)
    k = _smallest(
        chance,
        _guess(chance, near, near, 1.0),
        lambda k, places: pdtr(k, near[places]),
        np.full(chance.shape, np.inf),
    )
    k = np.where(means >= _FAR, _guess(chance, means, means, 1.0), k)
    return np.where(valid, k, np.where(means == 0, 0.0, -1.0)).reshape(shape)


def _binomial(u: Any, n: Any, p: Any) -> Any:
    from scipy.special import betainc

    shape, (chance, number, rate) = _spread_out(u, n, p)
    number = np.floor(number)
    valid = (number >= 0) & np.isfinite(number) & (rate >= 0) & (rate <= 1)
    far = valid & (number * rate >= _FAR)  # where steps of one are lost in rounding
    near = valid & ~far
    count, share = np.where(near, number, 0.0), np.where(near, rate, 0.0)

    def below(k: Any, places: Any) -> Any:
        left = count[places] - k
        inside = betainc(np.where(left > 0, left, 1.0), k + 1, 1 - share[places])
        return np.where(left > 0, inside, 1.0)

    variance = count * share * (1 - share)
    guess = np.minimum(_guess(chance, count * share, variance, 1 - 2 * share), count)
    k = _smallest(chance, guess, below, count)
    mean = np.where(far, number * rate, 0.0)
    about = _guess(chance, mean, mean * np.where(far, 1 - rate, 0.0), 1 - 2 * share)
    k = np.where(far, np.minimum(about, number), k)
    return np.where(valid, k, np.nan).reshape(shape)


def _geometric(u: Any, p: Any) -> Any:
    rate = np.asarray(p)
    found = np.maximum(np.ceil(np.log(u) / np.log1p(-np.clip(rate, 0.0, 1.0))), 1.0)
    return np.where((rate >= 0) & (rate <= 1), found, -1.0)


register_transform("poisson", _poisson, 1)
register_transform("binomial", _binomial, 2)
register_transform("geometric", _geometric, 1)
register_transform("bernoulli", lambda u, p: u < p, 1)
register_transform("rademacher", lambda u: np.where(u < 0.5, -1.0, 1.0), 0)
elementwise_row("binomial_share", _binomial, 3)


@checked
def bernoulli(
    key: Any,
    p: Any = 0.5,
    shape: Any = None,
    mode: str = "low",
    *,
    out_sharding: Any = None,
) -> Any:
    """Draw bools that are True with probability ``p``.

    Args:
        key: one key, typed or plain.
        p: the probability, a float or an array of such.
        shape: the result's shape; by default that of ``p``.
        mode: ``"low"`` or ``"high"``, as in JAX; the probability is exact to 52 bits in both.
        out_sharding: how the result lies.

    Raises:
        DtypeError: if ``p`` is no float.
        ShapeError: if ``p`` does not broadcast to ``shape``.

    >>> from meshard import random
    >>> random.bernoulli(random.key(0), 0.3, (4,)).dtype
    dtype('bool')
    """
    if mode not in ("low", "high"):
        raise ArgumentError(f"bernoulli: got mode={mode!r}, expected 'high' or 'low'.")
    kind = getattr(p, "dtype", None)
    if isinstance(p, int) or (kind is not None and np.dtype(kind).kind in "biu"):
        name = "int" if kind is None else np.dtype(kind).name
        raise DtypeError(f"bernoulli: the probability p must have a floating dtype, got {name}.")
    return transformed("bernoulli", key, {"p": p}, shape, np.dtype(bool), out_sharding)


@checked
def rademacher(
    key: Any, shape: Any = (), dtype: DtypeLike = None, *, out_sharding: Any = None
) -> Any:
    """Draw -1 and 1, equally likely.

    >>> from meshard import random
    >>> random.rademacher(random.key(0), (4,)).dtype
    dtype('int64')
    """
    wanted = np.dtype(np.int64) if dtype is None else as_dtype(dtype)
    if wanted.kind in "ub":
        raise ArgumentError(
            f"dtype argument to rademacher must hold -1, which {wanted.name} does not."
        )
    sizes = shape_of(shape, "rademacher")
    return transformed("rademacher", key, {}, sizes, wanted, out_sharding)


@checked
def poisson(
    key: Any, lam: Any, shape: Any = None, dtype: DtypeLike = None, *, out_sharding: Any = None
) -> Any:
    """Draw from the Poisson distribution of mean ``lam``; -1 comes of no mean, as in JAX.

    >>> from meshard import random
    >>> random.poisson(random.key(0), 3.5, (4,)).dtype
    dtype('int64')
    """
    wanted = integer_dtype(dtype, "poisson")
    return transformed("poisson", key, {"lam": lam}, shape, wanted, out_sharding)


@checked
def geometric(
    key: Any, p: Any, shape: Any = None, dtype: DtypeLike = None, *, out_sharding: Any = None
) -> Any:
    """Draw the number of tries up to the first success, each with probability ``p``.

    >>> from meshard import random
    >>> random.geometric(random.key(0), 0.2, (4,)).dtype
    dtype('int64')
    """
    wanted = integer_dtype(dtype, "geometric")
    return transformed("geometric", key, {"p": p}, shape, wanted, out_sharding)


@checked
def binomial(key: Any, n: Any, p: Any, shape: Any = None, dtype: DtypeLike = None) -> Any:
    """Draw the number of successes in ``n`` tries, each with probability ``p``, as floats.

    NaN comes of a negative ``n``, or of a ``p`` that is no probability.

    >>> from meshard import random
    >>> random.binomial(random.key(0), 10, 0.2, (4,)).shape
    (4,)
    """
    wanted = float_dtype(dtype, "binomial")
    return transformed("binomial", key, {"n": n, "p": p}, shape, wanted, None)


@checked
def multinomial(
    key: Any,
    n: Any,
    p: Any,
    *,
    shape: Any = None,
    dtype: DtypeLike = None,
    unroll: int | bool = 1,
) -> Any:
    """Draw how often each of some outcomes comes up in ``n`` tries.

    Args:
        key: one key, typed or plain.
        n: the tries; it broadcasts to the result's shape without its last dim.
        p: the outcomes' probabilities, the last dim.
        shape: the result's shape, its last dim included; by default that of ``p``.
        dtype: the result's dtype; the default float by default.
        unroll: accepted as in JAX; there is no loop to unroll.

    Raises:
        ShapeError: if ``p`` or ``n`` does not broadcast.

    >>> import meshard.numpy as mnp
    >>> from meshard import random
    >>> random.multinomial(random.key(0), 6, mnp.full(3, 1 / 3)).sum().item()
    6.0
    """
    what = "multinomial"
    tries, chances = parameter(what, "n", n), parameter(what, "p", p)
    if isinstance(chances, float) or not chances.ndim:
        raise ShapeError(f"{what} requires p.ndim >= 1, got p.ndim == 0.")
    sizes = result_shape(what, chances.shape if shape is None else shape, {"p": chances})
    result_shape(what, sizes[:-1], {"n": tries})
    wanted: Dtype = as_dtype(dtype)
    chances = broadcast_to(chances, sizes).astype(np.float64)
    given = as_array(np.float64(tries)) if isinstance(tries, float) else tries
    left = broadcast_to(given, sizes[:-1])
    found = []
    # Each outcome takes its share of the tries that the earlier ones have left.
    for i in range(sizes[-1]):
        rest = total(chances[..., i:], axis=-1)
        share = element.clip(chances[..., i] / element.where(rest == 0, 1.0, rest), 0.0, 1.0)
        if i + 1 == sizes[-1]:
            found.append(element.where(chances[..., i] > 0, left, 0.0))
            break
        numbers = uniforms(what, key, sizes[:-1], like(key, sizes[:-1], share, left), i)
        taken = bind("random_binomial_share", numbers, left, share, dtype=np.dtype(np.float64))
        found.append(taken)
        left = left - taken
    if not found:
        return chances.astype(wanted)
    return stack(found, axis=-1).astype(wanted)
