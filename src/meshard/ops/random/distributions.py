"""Distributions whose numbers are a formula of uniform ones: a row each.

In: uniform numbers and parameters. Out: numbers of the distribution, in float64, converted at the
end. SciPy's special functions invert distribution functions where no formula does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from meshard.algebra.arguments import shape_of
from meshard.errors import DtypeError
from meshard.ops.array import elementwise as element
from meshard.ops.checked import DtypeLike
from meshard.ops.random.table import (
    BOOL,
    FLOAT_OR_COMPLEX,
    INTEGER,
    SIGNED,
    Distribution,
    Formula,
    ShapeLaw,
    elementwise_row,
    parameter,
    result_shape,
    to_dtype,
)
from meshard.ops.random.tiles import Request
from meshard.ops.row import Dtype
from meshard.runtime.types import ArrayLike, Block, DeviceLike, ShapeLike

_TABLE = 1 << 12
"""The mean up to which one table of a distribution function serves all elements."""
_FAR = 1e10
"""The mean from which the search for a quantile ends at its first guess."""


def normal_of(u: Any) -> Any:
    """Return the normal numbers of uniform ones."""
    from scipy.special import ndtri

    return ndtri(u)


elementwise_row("normal_of", normal_of, 1)


# without parameters


def _length(*u: Any) -> Any:
    return np.sqrt(sum(normal_of(v) ** 2 for v in u))


@Distribution(Formula(lambda u: np.tan(np.pi * (u - 0.5))))
def cauchy(
    key: ArrayLike,
    shape: ShapeLike = (),
    dtype: DtypeLike = None,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw from the Cauchy distribution."""


@Distribution(Formula(lambda u: -np.log(-np.log(u))))
def gumbel(
    key: ArrayLike,
    shape: ShapeLike = (),
    dtype: DtypeLike = None,
    mode: str | None = None,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw from the Gumbel distribution of scale 1."""


@Distribution(Formula(lambda u: np.where(u < 0.5, np.log(2 * u), -np.log(2 * (1 - u)))))
def laplace(
    key: ArrayLike,
    shape: ShapeLike = (),
    dtype: DtypeLike = None,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw from the Laplace distribution of scale 1."""


@Distribution(Formula(lambda u: np.log(u) - np.log1p(-u)))
def logistic(
    key: ArrayLike,
    shape: ShapeLike = (),
    dtype: DtypeLike = None,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw from the logistic distribution of scale 1."""


@Distribution(Formula(_length, uniforms=3))
def maxwell(
    key: ArrayLike,
    shape: ShapeLike = (),
    dtype: DtypeLike = None,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw from the Maxwell distribution of scale 1."""


@Distribution(Formula(lambda u: np.where(u < 0.5, -1.0, 1.0)), dtypes=SIGNED)
def rademacher(
    key: ArrayLike,
    shape: ShapeLike = (),
    dtype: DtypeLike = None,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw -1 and 1, equally likely."""


# with parameters


@Distribution(
    Formula(lambda u, b: np.exp(-np.log(u) / b)),
    {"b": "the distribution's shape, a number or array"},
    "2.0",
)
def pareto(
    key: ArrayLike,
    b: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DtypeLike = None,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw from the Pareto distribution of shape ``b``."""


@Distribution(
    Formula(lambda u, scale: scale * np.sqrt(-2 * np.log(u))),
    {"scale": "the distribution's scale, a number or array"},
    "2.0",
)
def rayleigh(
    key: ArrayLike,
    scale: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DtypeLike = None,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw from the Rayleigh distribution."""


def _wald(u: Any, v: Any, mean: Any) -> Any:
    """Return inverse Gaussian numbers, by the method of Michael, Schucany and Haas."""
    y = normal_of(u) ** 2
    x = mean + mean * mean * y / 2 - mean / 2 * np.sqrt(4 * mean * y + mean * mean * y * y)
    return np.where(v <= mean / (mean + x), x, mean * mean / x)


@Distribution(Formula(_wald, uniforms=2), {"mean": "the mean, a number or array"}, "2.0")
def wald(
    key: ArrayLike,
    mean: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DtypeLike = None,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw from the Wald (inverse Gaussian) distribution of scale 1."""


def _complex_lognormal(request: Request, sigma: Any) -> Any:
    return element.exp(request.beside(sigma).drawn("normal") * sigma)


@Distribution(
    Formula(lambda u, sigma: np.exp(sigma * normal_of(u))),
    {"sigma": "the standard deviation of the logarithms, a number or array"},
    "0.5",
    dtypes=FLOAT_OR_COMPLEX,
    sample=_complex_lognormal,
)
def lognormal(
    key: ArrayLike,
    sigma: ArrayLike = 1.0,
    shape: ShapeLike | None = None,
    dtype: DtypeLike = None,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw exponentials of ``sigma`` times normal numbers."""


def _triangular(u: Any, left: Any, mode: Any, right: Any) -> Any:
    rise, fall, span = mode - left, right - mode, right - left
    below = left + np.sqrt(u * span * rise)
    above = right - np.sqrt((1 - u) * span * fall)
    return np.where(u * span < rise, below, above)


@Distribution(
    Formula(_triangular),
    {
        "left": "where the density begins, a number or array",
        "mode": "where it is highest, likewise",
        "right": "where it ends, likewise",
    },
    "0.0, 1.0, 3.0",
)
def triangular(
    key: ArrayLike,
    left: ArrayLike,
    mode: ArrayLike,
    right: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DtypeLike = None,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw from the distribution whose density is a triangle with its top at ``mode``."""


def _before(what: str, shape: Any, parameters: Mapping[str, Any]) -> tuple[int, ...]:
    return (*shape_of(shape, what), *result_shape(what, None, parameters))


def _double_sided(u: Any, v: Any, w: Any, side: Any, loc: Any, scale: Any) -> Any:
    length = _length(u, v, w)
    return loc + scale * np.where(side < 0.5, -length, length)


@Distribution(
    Formula(_double_sided, uniforms=4),
    {"loc": "the middle, a number or array", "scale": "the scale, likewise"},
    "0.0, 1.0, (8,)",
    shapes=ShapeLaw("the dims of the result that come before those of the parameters", _before),
)
def double_sided_maxwell(
    key: ArrayLike, loc: ArrayLike, scale: ArrayLike, shape: ShapeLike = (), dtype: DtypeLike = None
) -> None:
    """Draw Maxwell numbers of either sign, scaled and moved."""


def _together(what: str, shape: Any, parameters: Mapping[str, Any]) -> tuple[int, ...]:
    try:
        together = result_shape(what, None, parameters)
        return np.broadcast_shapes(shape_of(shape, what), together)
    except ValueError:
        return result_shape(what, shape, parameters)


def _weibull(u: Any, scale: Any, concentration: Any) -> Any:
    return scale * np.exp(np.log(-np.log(u)) / concentration)


@Distribution(
    Formula(_weibull),
    {"scale": "the scale, a number or array", "concentration": "the shape, likewise"},
    "1.0, 2.0, (8,)",
    shapes=ShapeLaw("what broadcasts with the parameters to the result's shape", _together),
)
def weibull_min(
    key: ArrayLike,
    scale: ArrayLike,
    concentration: ArrayLike,
    shape: ShapeLike = (),
    dtype: DtypeLike = None,
) -> None:
    """Draw from the Weibull distribution."""


def _truncated(u: Any, lower: Any, upper: Any) -> Any:
    """Return normal numbers between bounds, by logarithms, so that far tails keep their digits."""
    from scipy.special import log_ndtr, ndtri_exp

    lower, upper = np.asarray(lower, u.dtype), np.asarray(upper, u.dtype)
    flip = lower + upper > 0  # the lower tail is the one with digits
    low, high = np.where(flip, -upper, lower), np.where(flip, -lower, upper)
    chance = np.logaddexp(log_ndtr(low) + np.log1p(-u), log_ndtr(high) + np.log(u))
    x = np.clip(ndtri_exp(np.minimum(chance, 0.0)), low, high)
    return np.where(low <= high, np.where(flip, -x, x), np.nan)


def _inside(values: Any, dtype: Dtype, u: Any, lower: Any, upper: Any) -> Block:
    """Convert truncated numbers: rounding to a short dtype must not step over the bounds."""
    found = to_dtype(values, dtype)
    if dtype.itemsize == 8:
        return found
    low, high = _rounded(lower, dtype, np.inf), _rounded(upper, dtype, -np.inf)
    return np.asarray(np.minimum(np.maximum(found, low), high), dtype)


def _rounded(value: Any, dtype: Dtype, way: float) -> Block:
    """Return a bound in a shorter dtype, rounded inwards."""
    exact = np.asarray(value, np.float64)
    short = exact.astype(dtype)
    outside = short.astype(np.float64) < exact if way > 0 else short.astype(np.float64) > exact
    return np.asarray(np.where(outside, np.nextafter(short, dtype.type(way)), short), dtype)


@Distribution(
    Formula(_truncated, cast=_inside),
    {
        "lower": "the lower bound, a number or array, which may be infinite",
        "upper": "the upper bound, likewise; one below the lower gives NaN",
    },
    "-1.0, 1.0",
)
def truncated_normal(
    key: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DtypeLike = None,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw normal numbers between two bounds."""


# integers, by their distribution functions


def _smallest(u: Block, k: Block, below: Callable[[Any, Any], Any], last: Any) -> Block:
    """Return the least integers whose distribution function reaches ``u``.

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
    z = normal_of(u)
    return np.maximum(np.rint(mean + np.sqrt(variance) * z + skew * (z * z - 1) / 6 - 0.5), 0.0)


def _spread_out(u: Any, *parameters: Any) -> tuple[tuple[int, ...], list[Block]]:
    together = np.broadcast_arrays(u, *parameters)
    return together[0].shape, [np.array(x, np.float64).ravel() for x in together]


def _poisson(u: Any, lam: Any) -> Any:
    from scipy.special import pdtr

    if np.ndim(lam) == 0 and 0 < float(lam) < _TABLE:
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


def _probability(what: str, name: str, given: Any) -> Any:
    kind = getattr(given, "dtype", None)
    if isinstance(given, int) or (kind is not None and np.dtype(kind).kind in "biu"):
        found = "int" if kind is None else np.dtype(kind).name
        raise DtypeError(f"{what}: the probability {name} must have a floating dtype, got {found}.")
    return parameter(what, name, given)


elementwise_row("binomial_share", _binomial, 3)


@Distribution(
    Formula(lambda u, p: u < p),
    {"p": "the probability of True, a float or an array of such, exact to 52 bits"},
    "0.3",
    dtypes=BOOL,
    accept=_probability,
)
def bernoulli(
    key: ArrayLike,
    p: ArrayLike = 0.5,
    shape: ShapeLike | None = None,
    mode: str = "low",
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw bools that are True with probability ``p``."""


@Distribution(
    Formula(_poisson),
    {"lam": "the mean, a number or array; a negative one gives -1, as in JAX"},
    "3.5",
    dtypes=INTEGER,
)
def poisson(
    key: ArrayLike,
    lam: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DtypeLike = None,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw from the Poisson distribution of mean ``lam``."""


@Distribution(
    Formula(_geometric),
    {"p": "the probability of success, a number or array; what is not one gives -1"},
    "0.2",
    dtypes=INTEGER,
)
def geometric(
    key: ArrayLike,
    p: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DtypeLike = None,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw the number of tries up to the first success."""


@Distribution(
    Formula(_binomial),
    {
        "n": "the number of tries, a number or array; a negative one gives NaN",
        "p": "the probability of success, likewise; what is not a probability gives NaN",
    },
    "10, 0.2, (8,)",
)
def binomial(
    key: ArrayLike,
    n: ArrayLike,
    p: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DtypeLike = None,
) -> None:
    """Draw the number of successes in ``n`` tries, as floats."""
