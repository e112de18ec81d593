"""Derivatives of random numbers with respect to the parameters of their distributions.

The uniform numbers that they are made of stay, so that a number follows its parameters as the
formula says: the reparametrization that gradients of expectations are estimated with. Where a
number was tried for until it was accepted, its place in the distribution stays. Each factor is the
derivative of the number at its own place, in terms of itself.
"""

from __future__ import annotations

from typing import Any

from meshard.ops.derivatives.elementwise import o
from meshard.ops.derivatives.kinds import FLAT, Derivative, Partials, Refused


def _density_at(x: Any, y: Any) -> Any:
    """Return a normal density in relation to that at another place."""
    return o.exp(o.multiply(o.subtract(o.square(y), o.square(x)), 0.5))


def _share(u: Any, low: Any, high: Any) -> Any:
    """Return how far from the lower bound a number is; the sampler turns those right of zero."""
    return o.where(o.greater(o.add(low, high), 0), o.subtract(1, u), u)


def _lower(y: Any, u: Any, low: Any, high: Any, **_: Any) -> Any:
    return o.multiply(o.subtract(1, _share(u, low, high)), _density_at(low, y))


def _upper(y: Any, u: Any, low: Any, high: Any, **_: Any) -> Any:
    return o.multiply(_share(u, low, high), _density_at(high, y))


def _triangle(which: str) -> Any:
    """Return the derivative of triangular numbers by their left end, mode or right end."""

    def factor(y: Any, u: Any, left: Any, mode: Any, right: Any, **_: Any) -> Any:
        rise, fall, span = (
            o.subtract(a, b) for a, b in ((mode, left), (right, mode), (right, left))
        )
        rest = o.subtract(1, u)
        below = o.divide(u, o.multiply(2, o.subtract(y, left)))
        above = o.divide(rest, o.multiply(2, o.subtract(right, y)))
        before = {
            "left": o.subtract(1, o.multiply(below, o.add(rise, span))),
            "mode": o.multiply(below, span),
            "right": o.multiply(below, rise),
        }[which]
        behind = {
            "left": o.multiply(above, fall),
            "mode": o.multiply(above, span),
            "right": o.subtract(1, o.multiply(above, o.add(fall, span))),
        }[which]
        return o.where(o.less(y, mode), before, behind)

    return factor


def _own(x: Any) -> Any:
    """Return x * log(x), which is zero at zero."""
    return o.multiply(x, o.log(o.where(o.equal(x, 0), 1, x)))


def _wald(y: Any, u: Any, v: Any, mean: Any, **_: Any) -> Any:
    # Both roots of (y - mean)**2 == z**2 * mean**2 * y follow the mean in this way.
    return o.divide(o.multiply(2, o.square(y)), o.multiply(mean, o.add(y, mean)))


def _gamma(y: Any, key: Any, a: Any, *, log: bool, **_: Any) -> Any:
    if log:
        return o.random_gamma_slope(y, a)
    zero = o.equal(y, 0)
    slope = o.random_gamma_slope(o.log(o.where(zero, 1, y)), a)
    return o.where(zero, 0, o.multiply(y, slope))


_FLAT = """
    split fold_in seed wrap unwrap open words bits uniform normal exponential range range_of within
    normal_of cauchy gumbel laplace logistic maxwell rademacher pareto rayleigh wald lognormal
    triangular double_sided_maxwell weibull_min truncated_normal binomial_share bernoulli
    bernoulli_of poisson poisson_of geometric geometric_of binomial binomial_of
"""
"""Rows that only read keys and constants, and those that count."""

RANDOM: dict[str, Derivative] = {
    **{f"random_{name}": FLAT for name in _FLAT.split()},
    "random_scaled": Partials(
        (
            lambda y, u, low, high, **_: o.subtract(high, low),
            lambda y, u, low, high, **_: o.subtract(1, u),
            lambda y, u, low, high, **_: u,
        )
    ),
    "random_gumbel_score": Partials((None, 1.0)),
    "random_chance_score": Partials((None, lambda y, u, p, **_: o.reciprocal(p))),
    "random_pareto_of": Partials((None, lambda y, u, b, **_: o.negative(o.divide(_own(y), b)))),
    "random_rayleigh_of": Partials((None, lambda y, u, scale, **_: o.divide(y, scale))),
    "random_wald_of": Partials((None, None, _wald)),
    "random_lognormal_of": Partials((None, lambda y, u, s, **_: o.divide(_own(y), s))),
    "random_triangular_of": Partials(
        (None, _triangle("left"), _triangle("mode"), _triangle("right"))
    ),
    "random_double_sided_maxwell_of": Partials(
        (
            *(None, None, None, None),
            1.0,
            lambda y, u, v, w, side, loc, scale, **_: o.divide(o.subtract(y, loc), scale),
        )
    ),
    "random_weibull_min_of": Partials(
        (
            None,
            lambda y, u, scale, k, **_: o.divide(y, scale),
            lambda y, u, scale, k, **_: o.negative(
                o.divide(o.multiply(scale, _own(o.divide(y, scale))), k)
            ),
        )
    ),
    "random_truncated_normal_of": Partials((None, _lower, _upper)),
    "random_gamma": Partials((None, _gamma)),
    "random_gamma_slope": Refused(
        "second derivatives of gamma numbers by their shape are not known here. Keep the shape "
        "constant in one of the two with lax.stop_gradient."
    ),
}
"""The derivative of each row of random numbers."""
