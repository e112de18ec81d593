"""The gamma distribution and those made of it.

Marsaglia and Tsang's method tries until it accepts. Each try has a stream of its own, so that an
element's numbers do not depend on what its neighbours needed, and any part of an array can be drawn
alone, whatever the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np

from meshard.algebra.arguments import integer_of, shape_of
from meshard.algebra.box import Box
from meshard.errors import ArgumentError, ShapeError
from meshard.ops.array import elementwise as element
from meshard.ops.array.create import full
from meshard.ops.array.shape import broadcast_to
from meshard.ops.engine.arguments import DtypeLike, checked
from meshard.ops.engine.concrete import is_traced
from meshard.ops.engine.later import in_program
from meshard.ops.engine.row import Bounds, Dtype, Op, Operand, Params, RuleText, register
from meshard.ops.nn.functions import softmax
from meshard.ops.random.basic import float_dtype, open_uniform
from meshard.ops.random.drawing import draw_box, refuse_place
from meshard.ops.random.keys import DOMAINS, Stream, key_term, key_value, single_key
from meshard.ops.random.transform import arranged, finished, like, parameter, result_shape, uniforms
from meshard.ops.reductions.reduce import sum as total
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array, as_sharding, placed
from meshard.runtime.types import Block

_FLOAT64 = np.dtype(np.float64)
_GAMMA = 1 << 32
"""Parts of a tile's stream that one gamma distribution may take."""
_SIGN, _RADIUS = 1 << 40, 1 << 41


def _log_gamma(stream: Stream, number: int, size: int, where: Any, a: Block, part: int) -> Block:
    """Return logarithms of gamma numbers for the region of a tile where ``a`` are the shapes."""
    from scipy.special import ndtri

    def numbers(i: int) -> Block:
        return open_uniform(stream.words(size, number, part + i))

    valid = np.isfinite(a) & (a > 0)
    given = np.where(valid, a, 1.0)
    alpha = np.where(given < 1, given + 1, given)
    d = alpha - 1 / 3
    c = 1 / np.sqrt(9 * d)
    result = np.full(a.shape, np.nan)
    pending = np.arange(a.size)
    for i in count(1, 2):
        if not pending.size:
            break
        x = ndtri(numbers(i)[where[pending]])
        u = numbers(i + 1)[where[pending]]
        dp, t = d[pending], 1 + c[pending] * x
        v = np.where(t > 0, t, 1.0) ** 3
        taken = (t > 0) & (np.log(u) < 0.5 * x * x + dp - dp * v + dp * np.log(v))
        result[pending[taken]] = (np.log(dp) + np.log(v))[taken]
        pending = pending[~taken]
    if (given < 1).any():
        u = numbers(0)[where]
        result = np.where(given < 1, result + np.log(u) / given, result)
    limits = np.where(a == 0, -np.inf, np.where(a == np.inf, np.inf, np.nan))
    return np.where(valid, result, limits)


def _kernel(
    key: Block,
    a: Block,
    *,
    shape: tuple[int, ...],
    dtype: Dtype,
    domain: int,
    part: int,
    log: bool,
    starts: tuple[int, ...],
) -> Block:
    """Draw the box of an array of ``shape`` that begins at ``starts`` and is as long as ``a``."""
    block = np.empty(a.shape, dtype)
    box = Box(starts, tuple(s + n for s, n in zip(starts, a.shape, strict=True)))
    stream = Stream(key_value(key), domain)
    with np.errstate(all="ignore"):
        for number, sizes, where, of in draw_box(shape, box):
            size = int(np.prod(sizes))
            places = np.arange(size).reshape(sizes)[of].ravel()
            shapes = np.array(a[where], np.float64, order="C")
            found = _log_gamma(stream, number, size, places, shapes.ravel(), part * _GAMMA)
            block[where] = (found if log else np.exp(found)).reshape(shapes.shape)
    return block


def _rule(operands: Sequence[Operand], params: Params) -> RuleText:
    dims = " ".join(f"d{i}" for i in range(len(operands[1][0])))
    return f"{key_term(operands[0])}, {dims} -> {dims}"


def _law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    return (params["dtype"],)


def _cell(params: Params, bounds: Bounds, shape: tuple[int, ...]) -> Params:
    return {**params, "starts": tuple([bounds[f"d{i}"][0] for i in range(len(shape))])}


register(Op("random_gamma", _rule, _kernel, dtypes=_law, local=_cell))


def _gamma(
    what: str,
    key: Any,
    a: Any,
    shape: tuple[int, ...],
    place: Any,
    *,
    dtype: Dtype = _FLOAT64,
    part: int = 0,
    log: bool = False,
) -> Any:
    """Draw gamma numbers, or their logarithms, for shapes that broadcast to ``shape``."""
    one = single_key(key, what)
    if is_traced(one, a):
        refuse_place(what, place)
    if isinstance(a, float) and in_program():  # made where the result is wanted
        shapes = full(shape, np.float64(a))
    else:
        shapes = broadcast_to(as_array(np.float64(a) if isinstance(a, float) else a), shape)
    if place is not None:
        shapes = placed(shapes, as_sharding(place, what))
    domain = DOMAINS[what]
    return bind(
        "random_gamma", one, shapes, shape=shape, dtype=dtype, domain=domain, part=part, log=log
    )


@checked
def gamma(
    key: Any, a: Any, shape: Any = None, dtype: DtypeLike = None, *, out_sharding: Any = None
) -> Any:
    """Draw from the gamma distribution of shape ``a`` and scale 1.

    Args:
        key: one key, typed or plain.
        a: the distribution's shape, a number or array; NaN comes of negative ones.
        shape: the result's shape, to which ``a`` broadcasts; by default that of ``a``.
        dtype: a float dtype; the default float by default.
        out_sharding: how the result lies; None for where the key and ``a`` are.

    Raises:
        ShapeError: if ``a`` does not broadcast to ``shape``.
        ArgumentError: if ``dtype`` is no float.

    >>> from meshard import random
    >>> random.gamma(random.key(0), 2.5, (3,)).shape
    (3,)
    """
    wanted, value = float_dtype(dtype, "gamma"), parameter("gamma", "a", a)
    sizes = result_shape("gamma", shape, {"a": value})
    return finished(
        "gamma", _gamma("gamma", key, value, sizes, out_sharding, dtype=wanted), out_sharding
    )


@checked
def loggamma(
    key: Any, a: Any, shape: Any = None, dtype: DtypeLike = None, *, out_sharding: Any = None
) -> Any:
    """Draw logarithms of what `gamma` draws, exact for small ``a`` too, where that is 0.

    >>> from meshard import random
    >>> random.loggamma(random.key(0), 0.001, (3,)).shape
    (3,)
    """
    wanted, value = float_dtype(dtype, "loggamma"), parameter("loggamma", "a", a)
    sizes = result_shape("loggamma", shape, {"a": value})
    found = _gamma("gamma", key, value, sizes, out_sharding, dtype=wanted, log=True)
    return finished("loggamma", found, out_sharding)


@checked
def beta(
    key: Any,
    a: Any,
    b: Any,
    shape: Any = None,
    dtype: DtypeLike = None,
    *,
    out_sharding: Any = None,
) -> Any:
    """Draw from the beta distribution.

    >>> from meshard import random
    >>> random.beta(random.key(0), 2.0, 3.0, (3,)).shape
    (3,)
    """
    wanted = float_dtype(dtype, "beta")
    first, second = parameter("beta", "a", a), parameter("beta", "b", b)
    sizes = result_shape("beta", shape, {"a": first, "b": second})
    where = out_sharding if out_sharding is not None else like(key, sizes, first, second)
    x = _gamma("beta", key, first, sizes, where, log=True)
    y = _gamma("beta", key, second, sizes, where, part=1, log=True)
    found = element.exp(x - element.logaddexp(x, y))
    return finished("beta", found.astype(wanted), out_sharding)


@checked
def dirichlet(
    key: Any, alpha: Any, shape: Any = None, dtype: DtypeLike = None, *, out_sharding: Any = None
) -> Any:
    """Draw from the Dirichlet distribution; the last dim of the result sums to 1.

    Args:
        key: one key, typed or plain.
        alpha: the concentrations, the last dim.
        shape: the result's shape without its last dim, to which ``alpha``'s other dims broadcast.
        dtype: a float dtype; the default float by default.
        out_sharding: how the result lies.

    Raises:
        ShapeError: if ``alpha`` has no dims, or does not broadcast.

    >>> import meshard.numpy as mnp
    >>> from meshard import random
    >>> random.dirichlet(random.key(0), mnp.ones(3), (4,)).shape
    (4, 3)
    """
    wanted, value = float_dtype(dtype, "dirichlet"), parameter("dirichlet", "alpha", alpha)
    if isinstance(value, float) or not value.ndim:
        raise ShapeError("dirichlet requires alpha.ndim >= 1, got alpha.ndim == 0.")
    lead = None if shape is None else (*shape_of(shape, "dirichlet"), value.shape[-1])
    sizes = result_shape("dirichlet", lead, {"alpha": value})
    where = _whole_last("dirichlet", out_sharding, sizes)
    found = _gamma("dirichlet", key, value, sizes, where, log=True)
    return finished("dirichlet", softmax(found, axis=-1).astype(wanted), out_sharding)


def _whole_last(what: str, place: Any, sizes: tuple[int, ...]) -> Any:
    """Return where numbers lie that are summed over the last dim, each sum on one device."""
    rank = len(sizes)
    return arranged(what, place, rank, (*range(rank - 1), None))


def _half(value: Any) -> Any:
    return value / 2


@checked
def chisquare(
    key: Any, df: Any, shape: Any = None, dtype: DtypeLike = None, *, out_sharding: Any = None
) -> Any:
    """Draw from the chi-square distribution of ``df`` degrees of freedom.

    >>> from meshard import random
    >>> random.chisquare(random.key(0), 3, (2,)).shape
    (2,)
    """
    wanted, value = float_dtype(dtype, "chisquare"), parameter("chisquare", "df", df)
    sizes = result_shape("chisquare", shape, {"df": value})
    found = 2 * _gamma("chisquare", key, _half(value), sizes, out_sharding)
    return finished("chisquare", found.astype(wanted), out_sharding)


@checked
def f(
    key: Any,
    dfnum: Any,
    dfden: Any,
    shape: Any = None,
    dtype: DtypeLike = None,
    *,
    out_sharding: Any = None,
) -> Any:
    """Draw from the F distribution of ``dfnum`` and ``dfden`` degrees of freedom.

    >>> from meshard import random
    >>> random.f(random.key(0), 3, 4, (2,)).shape
    (2,)
    """
    wanted = float_dtype(dtype, "f")
    above, below = parameter("f", "dfnum", dfnum), parameter("f", "dfden", dfden)
    sizes = result_shape("f", shape, {"dfnum": above, "dfden": below})
    where = out_sharding if out_sharding is not None else like(key, sizes, above, below)
    x = _gamma("f", key, _half(above), sizes, where) / above
    y = _gamma("f", key, _half(below), sizes, where, part=1) / below
    return finished("f", (x / y).astype(wanted), out_sharding)


@checked
def t(
    key: Any, df: Any, shape: Any = None, dtype: DtypeLike = None, *, out_sharding: Any = None
) -> Any:
    """Draw from Student's t distribution of ``df`` degrees of freedom.

    >>> from meshard import random
    >>> random.t(random.key(0), 3, (2,)).shape
    (2,)
    """
    wanted, value = float_dtype(dtype, "t"), parameter("t", "df", df)
    sizes = result_shape("t", shape, {"df": value})
    where = out_sharding if out_sharding is not None else like(key, sizes, value)
    square = _gamma("t", key, _half(value), sizes, where)
    numbers = bind("random_normal_of", uniforms("t", key, sizes, where, _SIGN), dtype=_FLOAT64)
    found = numbers * element.sqrt(_half(value) / square)
    return finished("t", found.astype(wanted), out_sharding)


def _generalized(what: str, key: Any, p: Any, shape: tuple[int, ...], place: Any) -> Any:
    magnitude = element.exp(_gamma(what, key, 1 / p, shape, place, log=True) / p)
    upper = uniforms(what, key, shape, place, _SIGN) < 0.5
    return element.where(upper, magnitude, -magnitude)


@checked
def generalized_normal(
    key: Any, p: Any, shape: Any = (), dtype: DtypeLike = None, *, out_sharding: Any = None
) -> Any:
    """Draw from the distribution whose density falls as ``exp(-abs(x) ** p)``.

    >>> from meshard import random
    >>> random.generalized_normal(random.key(0), 3.0, (2,)).shape
    (2,)
    """
    what = "generalized_normal"
    wanted, value = float_dtype(dtype, what), parameter(what, "p", p)
    sizes = result_shape(what, shape, {"p": value})
    where = out_sharding if out_sharding is not None else like(key, sizes, value)
    return finished(what, _generalized(what, key, value, sizes, where).astype(wanted), out_sharding)


@checked
def ball(
    key: Any,
    d: Any,
    p: Any = 2,
    shape: Any = (),
    dtype: DtypeLike = None,
    *,
    out_sharding: Any = None,
) -> Any:
    """Draw points of the unit ball of the p-norm, all equally likely.

    Args:
        key: one key, typed or plain.
        d: the number of dimensions of the ball, the last dim of the result.
        p: the order of the norm, above 0; infinity for the cube.
        shape: the result's shape without its last dim.
        dtype: a float dtype; the default float by default.
        out_sharding: how the result lies.

    Raises:
        ArgumentError: if ``d`` is no count, or ``p`` not above 0.

    >>> from meshard import random
    >>> random.ball(random.key(0), 3, shape=(2,)).shape
    (2, 3)
    """
    wanted = float_dtype(dtype, "ball")
    d = integer_of(d, "ball", "d", least=0)
    power = parameter("ball", "p", p)
    if isinstance(power, float) and not power > 0:
        raise ArgumentError(f"ball: p={power} is not above 0, as the order of a norm is.")
    sizes = (*shape_of(shape, "ball"), d)
    if isinstance(power, float) and power == np.inf:
        found = 2 * uniforms("ball", key, sizes, out_sharding) - 1
        return finished("ball", found.astype(wanted), out_sharding)
    if is_traced(key, power):
        refuse_place("ball", out_sharding)
    where = _whole_last("ball", out_sharding, sizes)
    g = _generalized("ball", key, power, sizes, where)
    rows = arranged("ball", out_sharding, len(sizes), range(len(sizes) - 1))
    e = -element.log(uniforms("ball", key, sizes[:-1], rows, _RADIUS))
    norms = (total(element.absolute(g) ** power, axis=-1) + e) ** (1 / power)
    return finished("ball", (g / norms[..., None]).astype(wanted), out_sharding)
