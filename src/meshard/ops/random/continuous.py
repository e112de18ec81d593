"""Continuous distributions: uniform numbers on an interval, and functions of uniform numbers.

All are computed in float64 and converted; SciPy's special functions invert where no formula does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshard.algebra.arguments import shape_of
from meshard.errors import ArgumentError
from meshard.ops.array import elementwise as element
from meshard.ops.engine.arguments import DtypeLike, checked
from meshard.ops.engine.concrete import is_traced
from meshard.ops.engine.row import Dtype, Op, register
from meshard.ops.random.basic import float_dtype, scaled
from meshard.ops.random.drawing import drawn, refuse_place
from meshard.ops.random.transform import (
    elementwise_row,
    finished,
    like,
    parameter,
    register_transform,
    result_shape,
    transformed,
)
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import Block


def _normal_of(u: Any) -> Any:
    from scipy.special import ndtri

    return ndtri(u)


def _cauchy(u: Any) -> Any:
    return np.tan(np.pi * (u - 0.5))


def _gumbel(u: Any) -> Any:
    return -np.log(-np.log(u))


def _laplace(u: Any) -> Any:
    return np.where(u < 0.5, np.log(2 * u), -np.log(2 * (1 - u)))


def _logistic(u: Any) -> Any:
    return np.log(u) - np.log1p(-u)


def _lognormal(u: Any, sigma: Any) -> Any:
    return np.exp(sigma * _normal_of(u))


def _length(*u: Any) -> Any:
    return np.sqrt(sum(_normal_of(v) ** 2 for v in u))


def _double_sided(u: Any, v: Any, w: Any, side: Any, loc: Any, scale: Any) -> Any:
    length = _length(u, v, w)
    return loc + scale * np.where(side < 0.5, -length, length)


def _pareto(u: Any, b: Any) -> Any:
    return np.exp(-np.log(u) / b)


def _rayleigh(u: Any, scale: Any) -> Any:
    return scale * np.sqrt(-2 * np.log(u))


def _weibull(u: Any, scale: Any, concentration: Any) -> Any:
    return scale * np.exp(np.log(-np.log(u)) / concentration)


def _triangular(u: Any, left: Any, mode: Any, right: Any) -> Any:
    rise, fall, span = mode - left, right - mode, right - left
    below = left + np.sqrt(u * span * rise)
    above = right - np.sqrt((1 - u) * span * fall)
    return np.where(u * span < rise, below, above)


def _wald(u: Any, v: Any, mean: Any) -> Any:
    """Return inverse Gaussian numbers, by the method of Michael, Schucany and Haas."""
    y = _normal_of(u) ** 2
    x = mean + mean * mean * y / 2 - mean / 2 * np.sqrt(4 * mean * y + mean * mean * y * y)
    return np.where(v <= mean / (mean + x), x, mean * mean / x)


def _truncated(u: Any, lower: Any, upper: Any) -> Any:
    """Return normal numbers between bounds, by logarithms, so that far tails keep their digits."""
    from scipy.special import log_ndtr, ndtri_exp

    lower, upper = np.asarray(lower, u.dtype), np.asarray(upper, u.dtype)
    flip = lower + upper > 0  # the lower tail is the one with digits
    low, high = np.where(flip, -upper, lower), np.where(flip, -lower, upper)
    chance = np.logaddexp(log_ndtr(low) + np.log1p(-u), log_ndtr(high) + np.log(u))
    x = np.clip(ndtri_exp(np.minimum(chance, 0.0)), low, high)
    return np.where(low <= high, np.where(flip, -x, x), np.nan)


register_transform("cauchy", _cauchy, 0)
register_transform("gumbel", _gumbel, 0)
register_transform("laplace", _laplace, 0)
register_transform("logistic", _logistic, 0)
register_transform("lognormal", _lognormal, 1)
register_transform("maxwell", _length, 0, draws=3)
register_transform("double_sided_maxwell", _double_sided, 2, draws=4)
register_transform("pareto", _pareto, 1)
register_transform("rayleigh", _rayleigh, 1)
register_transform("weibull_min", _weibull, 2)
register_transform("triangular", _triangular, 3)
register_transform("wald", _wald, 1, draws=2)
register_transform("truncated_normal", _truncated, 2)
elementwise_row("normal_of", _normal_of, 1)
elementwise_row("inside", lambda x, low, high: np.minimum(np.maximum(x, low), high), 3)


def _scaled_of(numbers: Block, low: Any, high: Any) -> Any:
    kind = numbers.dtype
    return scaled(numbers, np.asarray(low).astype(kind), np.asarray(high).astype(kind))


elementwise_row("scaled", _scaled_of, 3)


@checked
def uniform(
    key: Any,
    shape: Any = (),
    dtype: DtypeLike = None,
    minval: Any = 0.0,
    maxval: Any = 1.0,
    *,
    out_sharding: Any = None,
) -> Any:
    """Draw numbers from ``minval`` to before ``maxval``, all equally likely.

    Args:
        key: one key, typed or plain.
        shape: the global shape, to which the bounds broadcast.
        dtype: a float dtype; the default float by default.
        minval: the lower bound, a number or array.
        maxval: the upper bound; where it is not above the lower, that is what comes out.
        out_sharding: how the result lies, each piece drawn where it is; None for the key's place.

    Raises:
        ArgumentError: if ``dtype`` is no float.
        ShapeError: if a bound does not broadcast to ``shape``.

    >>> from meshard import random
    >>> random.uniform(random.key(0), (2, 3), minval=-1).shape
    (2, 3)
    """
    wanted = float_dtype(dtype, "uniform")
    bounds = {"minval": minval, "maxval": maxval}
    low, high = (parameter("uniform", n, v) for n, v in bounds.items())
    sizes = result_shape("uniform", shape, {"minval": low, "maxval": high})
    if isinstance(low, float) and isinstance(high, float):
        return drawn("uniform", key, "uniform", sizes, wanted, out_sharding, (low, high))
    if is_traced(low, high):
        refuse_place("uniform", out_sharding)
    where = out_sharding if out_sharding is not None else like(key, sizes, low, high)
    numbers = drawn("uniform", key, "uniform", sizes, wanted, where)
    return finished(
        "uniform", bind("random_scaled", numbers, low, high, dtype=wanted), out_sharding
    )


@checked
def truncated_normal(
    key: Any,
    lower: Any,
    upper: Any,
    shape: Any = None,
    dtype: DtypeLike = None,
    *,
    out_sharding: Any = None,
) -> Any:
    """Draw normal numbers between two bounds, which may be infinite.

    Args:
        key: one key, typed or plain.
        lower: the lower bound, a number or array.
        upper: the upper bound, likewise; NaN comes of one below the lower.
        shape: the result's shape; by default that of the bounds.
        dtype: a float dtype; the default float by default.
        out_sharding: how the result lies.

    Raises:
        ShapeError: if the bounds do not broadcast to ``shape``.

    >>> from meshard import random
    >>> random.truncated_normal(random.key(0), -1, 1, (3,)).shape
    (3,)
    """
    what = "truncated_normal"
    wanted, bounds = float_dtype(dtype, what), {"lower": lower, "upper": upper}
    found = transformed(what, key, bounds, shape, wanted, out_sharding)
    if wanted.itemsize == 8:
        return found
    # Rounding to a short dtype must not step over the bounds.
    low, high = (
        _short(parameter(what, n, v), wanted, way)
        for (n, v), way in zip(bounds.items(), (np.inf, -np.inf), strict=True)
    )
    return finished(what, bind("random_inside", found, low, high, dtype=wanted), out_sharding)


def _short(value: Any, dtype: Dtype, way: float) -> Any:
    """Return a bound in a shorter dtype, rounded inwards."""
    if isinstance(value, float):
        value = as_array(np.float64(value))
    return bind("random_rounded", value, dtype=dtype, way=way)


def _rounded(value: Any, dtype: Dtype, way: float) -> Block:
    with np.errstate(all="ignore"):
        exact = np.asarray(value, np.float64)
        short = exact.astype(dtype)
        outside = short.astype(np.float64) < exact if way > 0 else short.astype(np.float64) > exact
        return np.asarray(np.where(outside, np.nextafter(short, dtype.type(way)), short), dtype)


register(
    Op(
        "random_rounded",
        "... -> ...",
        _rounded,
        dtypes=lambda operands, params: (params["dtype"],),
    )
)


def _without_parameters(name: str, text: str) -> Any:
    def function(
        key: Any, shape: Any = (), dtype: DtypeLike = None, *, out_sharding: Any = None
    ) -> Any:
        wanted = float_dtype(dtype, name)
        return transformed(name, key, {}, shape_of(shape, name), wanted, out_sharding)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""Draw from {text}.

    Args:
        key: one key, typed or plain.
        shape: the global shape.
        dtype: a float dtype; the default float by default.
        out_sharding: how the result lies, each piece drawn where it is; None for the key's place.

    Raises:
        ArgumentError: if ``dtype`` is no float.

    >>> from meshard import random
    >>> random.{name}(random.key(0), (2, 3)).shape
    (2, 3)
    """
    return checked(function)


cauchy = _without_parameters("cauchy", "the Cauchy distribution")
laplace = _without_parameters("laplace", "the Laplace distribution of scale 1")
logistic = _without_parameters("logistic", "the logistic distribution of scale 1")
maxwell = _without_parameters("maxwell", "the Maxwell distribution of scale 1")


@checked
def gumbel(
    key: Any,
    shape: Any = (),
    dtype: DtypeLike = None,
    mode: str | None = None,
    *,
    out_sharding: Any = None,
) -> Any:
    """Draw from the Gumbel distribution of scale 1.

    Args:
        key: one key, typed or plain.
        shape: the global shape.
        dtype: a float dtype; the default float by default.
        mode: None, ``"low"`` or ``"high"``, as in JAX; all numbers are precise here.
        out_sharding: how the result lies.

    Raises:
        ArgumentError: if ``dtype`` is no float, or ``mode`` another word.

    >>> from meshard import random
    >>> random.gumbel(random.key(0), (2, 3)).shape
    (2, 3)
    """
    check_mode("gumbel", mode)
    wanted = float_dtype(dtype, "gumbel")
    return transformed("gumbel", key, {}, shape_of(shape, "gumbel"), wanted, out_sharding)


def check_mode(what: str, mode: str | None) -> None:
    """Refuse a mode that is none of JAX's; all give the full precision here."""
    if mode not in (None, "low", "high"):
        raise ArgumentError(f"{what}: got mode={mode!r}, expected 'high' or 'low'.")


@checked
def pareto(
    key: Any, b: Any, shape: Any = None, dtype: DtypeLike = None, *, out_sharding: Any = None
) -> Any:
    """Draw from the Pareto distribution of shape ``b``.

    Args:
        key: one key, typed or plain.
        b: the parameter, a number or array.
        shape: the result's shape, to which the parameter broadcasts; by default the parameter's.
        dtype: a float dtype; the default float by default.
        out_sharding: how the result lies; None for where the key and the parameter are.

    Raises:
        ArgumentError: if ``dtype`` is no float.
        ShapeError: if the parameter does not broadcast to ``shape``.

    >>> from meshard import random
    >>> random.pareto(random.key(0), 2.0, (3,)).shape
    (3,)
    """
    wanted = float_dtype(dtype, "pareto")
    return transformed("pareto", key, {"b": b}, shape, wanted, out_sharding)


@checked
def rayleigh(
    key: Any, scale: Any, shape: Any = None, dtype: DtypeLike = None, *, out_sharding: Any = None
) -> Any:
    """Draw from the Rayleigh distribution.

    Args:
        key: one key, typed or plain.
        scale: the parameter, a number or array.
        shape: the result's shape, to which the parameter broadcasts; by default the parameter's.
        dtype: a float dtype; the default float by default.
        out_sharding: how the result lies; None for where the key and the parameter are.

    Raises:
        ArgumentError: if ``dtype`` is no float.
        ShapeError: if the parameter does not broadcast to ``shape``.

    >>> from meshard import random
    >>> random.rayleigh(random.key(0), 2.0, (3,)).shape
    (3,)
    """
    wanted = float_dtype(dtype, "rayleigh")
    return transformed("rayleigh", key, {"scale": scale}, shape, wanted, out_sharding)


@checked
def wald(
    key: Any, mean: Any, shape: Any = None, dtype: DtypeLike = None, *, out_sharding: Any = None
) -> Any:
    """Draw from the Wald (inverse Gaussian) distribution.

    Args:
        key: one key, typed or plain.
        mean: the parameter, a number or array.
        shape: the result's shape, to which the parameter broadcasts; by default the parameter's.
        dtype: a float dtype; the default float by default.
        out_sharding: how the result lies; None for where the key and the parameter are.

    Raises:
        ArgumentError: if ``dtype`` is no float.
        ShapeError: if the parameter does not broadcast to ``shape``.

    >>> from meshard import random
    >>> random.wald(random.key(0), 2.0, (3,)).shape
    (3,)
    """
    wanted = float_dtype(dtype, "wald")
    return transformed("wald", key, {"mean": mean}, shape, wanted, out_sharding)


@checked
def lognormal(
    key: Any,
    sigma: Any = 1.0,
    shape: Any = None,
    dtype: DtypeLike = None,
    *,
    out_sharding: Any = None,
) -> Any:
    """Draw exponentials of ``sigma`` times normal numbers.

    >>> from meshard import random
    >>> random.lognormal(random.key(0), 0.5, (3,)).shape
    (3,)
    """
    wanted = float_dtype(dtype, "lognormal", complex=True)
    if wanted.kind != "c":
        return transformed("lognormal", key, {"sigma": sigma}, shape, wanted, out_sharding)
    value = parameter("lognormal", "sigma", sigma)
    sizes = result_shape("lognormal", shape, {"sigma": value})
    if is_traced(value):
        refuse_place("lognormal", out_sharding)
    where = out_sharding if out_sharding is not None else like(key, sizes, value)
    numbers = drawn("lognormal", key, "normal", sizes, wanted, where)
    return finished("lognormal", element.exp(numbers * value).astype(wanted), out_sharding)


@checked
def triangular(
    key: Any,
    left: Any,
    mode: Any,
    right: Any,
    shape: Any = None,
    dtype: DtypeLike = None,
    *,
    out_sharding: Any = None,
) -> Any:
    """Draw from the distribution whose density is a triangle with its top at ``mode``.

    >>> from meshard import random
    >>> random.triangular(random.key(0), 0.0, 1.0, 3.0, (3,)).shape
    (3,)
    """
    wanted = float_dtype(dtype, "triangular")
    corners = {"left": left, "mode": mode, "right": right}
    return transformed("triangular", key, corners, shape, wanted, out_sharding)


@checked
def double_sided_maxwell(
    key: Any, loc: Any, scale: Any, shape: Any = (), dtype: DtypeLike = None
) -> Any:
    """Draw Maxwell numbers of either sign, scaled and moved.

    The result has ``shape`` and then the dims of the parameters together.

    >>> from meshard import random
    >>> random.double_sided_maxwell(random.key(0), 0.0, 1.0, (3,)).shape
    (3,)
    """
    what = "double_sided_maxwell"
    values = {n: parameter(what, n, v) for n, v in (("loc", loc), ("scale", scale))}
    sizes = (*shape_of(shape, what), *result_shape(what, None, values))
    return transformed(what, key, values, sizes, float_dtype(dtype, what), None)


@checked
def weibull_min(
    key: Any, scale: Any, concentration: Any, shape: Any = (), dtype: DtypeLike = None
) -> Any:
    """Draw from the Weibull distribution; ``shape`` and the parameters broadcast together.

    >>> from meshard import random
    >>> random.weibull_min(random.key(0), 1.0, 2.0, (3,)).shape
    (3,)
    """
    what, given = "weibull_min", {"scale": scale, "concentration": concentration}
    values = {n: parameter(what, n, v) for n, v in given.items()}
    together = result_shape(what, None, values)
    try:
        sizes = np.broadcast_shapes(shape_of(shape, what), together)
    except ValueError:
        sizes = result_shape(what, shape, values)
    return transformed(what, key, values, sizes, float_dtype(dtype, what), None)
