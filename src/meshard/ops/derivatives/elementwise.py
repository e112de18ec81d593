"""Partial derivatives of the elementwise rows."""

from __future__ import annotations

import functools
import math
from typing import Any, final

import numpy as np

from meshard.errors import DerivativeError
from meshard.ops.derivatives.kinds import (
    Derivative,
    Linear,
    Partials,
    Pulls,
    Site,
    Tangents,
    Values,
    dtype_of,
)
from meshard.runtime.doors import bind


@final
class _Operations:
    """The rows as functions: ``o.exp(x)`` binds exp."""

    def __getattr__(self, name: str) -> Any:
        return lambda *operands, **params: bind(name, *operands, **params)


o = _Operations()


def _mul(a: Any, b: Any) -> Any:
    return o.multiply(a, b)


def _over(a: Any, b: Any) -> Any:
    return o.divide(a, b)


def is_complex(x: Any) -> bool:
    """Whether a value is complex."""
    return dtype_of(x).kind == "c"


def _half_where_tied(mine: Any, chosen: Any, other: Any) -> Any:
    """Return where a value was chosen: one, and a half where both are equal, as JAX has it."""
    found = o.where(o.equal(mine, chosen), 1.0, 0.0)
    return o.where(o.equal(other, chosen), _mul(found, 0.5), found)


def _power_of_base(y: Any, a: Any, b: Any) -> Any:
    """Return b * a ** (b - 1), and zero where b is zero."""
    if isinstance(b, (int, float)) and not isinstance(b, bool):
        if b in (0, 1):
            return float(b)
        return _mul(b, a if b == 2 else o.power(a, b - 1))
    less = o.where(o.equal(b, 0), 0, o.subtract(o.where(o.equal(b, 0), 1, b), 1))
    return _mul(b, o.power(a, less))


def _power_of_exponent(y: Any, a: Any, b: Any) -> Any:
    """Return log(a) * a ** b, and zero where a is zero."""
    safe = o.where(o.equal(a, 0), 1, a)
    return _mul(o.log(safe), y)


def _absolute(site: Site, tangents: Values) -> list[Any]:
    (t,) = tangents
    if not is_complex(site.x):
        return [_mul(t, o.where(o.less(site.x, 0), -1.0, 1.0))]
    return [o.real(_mul(t, o.conjugate(o.sign(site.x))))]


def _sign(site: Site, tangents: Values) -> list[Any]:
    (t,) = tangents
    if not is_complex(site.x):
        return [None]
    turn = o.imag(_mul(o.conjugate(site.y), t))
    size = o.absolute(site.x)
    return [_over(_mul(_mul(site.y, 1j), turn), o.where(o.equal(size, 0), 1, size))]


def _real(site: Site, number: int, cotangents: Values) -> Any:
    (g,) = cotangents
    return o.complex(g, 0.0) if is_complex(site.x) else g


def _imag(site: Site, number: int, cotangents: Values) -> Any:
    (g,) = cotangents
    return o.complex(0.0, o.negative(g)) if is_complex(site.x) else None


def _complex(site: Site, number: int, cotangents: Values) -> Any:
    (g,) = cotangents
    return o.imag(o.negative(g)) if number else o.real(g)


def _where(site: Site, number: int, cotangents: Values) -> Any:
    (g,) = cotangents
    chosen = site.operands[0]
    return o.where(chosen, g, 0) if number == 1 else o.where(chosen, 0, g)


def _divmod(site: Site, tangents: Values) -> list[Any]:
    a, b = tangents
    less = None if b is None else o.negative(_mul(b, site.results[0]))
    return [None, a if less is None else less if a is None else o.add(a, less)]


def _trigamma(y: Any, x: Any) -> Any:
    """Return the derivative of digamma, by recurrence and an asymptotic series."""
    mirrored = o.less(x, 0.5)
    z = o.where(mirrored, o.subtract(1, x), x)
    terms = [o.reciprocal(o.square(o.add(z, k))) for k in range(10)]
    r = o.reciprocal(o.add(z, 10))
    squared, series = o.square(r), 5 / 66
    for c in (1 / 30, 1 / 42, 1 / 30, 1 / 6):
        series = o.subtract(c, _mul(squared, series))
    series = o.add(o.add(r, _mul(squared, 0.5)), _mul(_mul(r, squared), series))
    found = functools.reduce(o.add, terms, series)
    sine = o.where(mirrored, o.sin(_mul(x, math.pi)), 1)
    return o.where(mirrored, o.subtract(o.square(_over(math.pi, sine)), found), found)


def _gamma_density(a: Any, x: Any) -> Any:
    """Return the density of the gamma distribution, times x."""
    return o.exp(o.subtract(o.subtract(_mul(a, o.log(x)), x), o.lgamma(a)))


def _igamma_of_shape(y: Any, a: Any, x: Any) -> Any:
    some = o.greater(x, 0)
    safe = o.where(some, x, 1)
    found = _mul(_gamma_density(a, safe), o.random_gamma_slope(o.log(safe), a))
    return o.where(some, o.negative(found), 0)


def _igamma_of_place(y: Any, a: Any, x: Any) -> Any:
    power = _mul(o.subtract(a, 1), o.log(x))
    return o.exp(o.subtract(o.subtract(power, x), o.lgamma(a)))


def _betainc(y: Any, a: Any, b: Any, x: Any) -> Any:
    beta = o.subtract(o.add(o.lgamma(a), o.lgamma(b)), o.lgamma(o.add(a, b)))
    rise = _mul(o.subtract(a, 1), o.log(x))
    fall = _mul(o.subtract(b, 1), o.log1p(o.negative(x)))
    return o.exp(o.subtract(o.add(rise, fall), beta))


def _i1e(y: Any, x: Any) -> Any:
    tiny = o.less_equal(o.absolute(x), 1e-15 if dtype_of(x).itemsize == 8 else 1e-7)
    safe = o.where(tiny, 1, x)
    change = o.add(o.sign(safe), o.reciprocal(safe))
    return o.where(tiny, 0.5, o.subtract(o.bessel_i0e(x), _mul(y, change)))


def _unknown(row: str, operand: str) -> Any:
    """Return a factor that is not known."""

    def factor(*_: Any) -> Any:
        raise DerivativeError(
            f"{row} has no derivative with respect to {operand}. Keep {operand} constant with "
            "lax.stop_gradient."
        )

    return factor


_INVERSE_LOG2, _LN2, _LN10 = 1 / math.log(2), math.log(2), math.log(10)
_ERF = 2 / math.sqrt(math.pi)
_ONE = Partials((1.0,))
_SUM = Partials((1.0, 1.0))


def _unit(x: Any) -> Any:
    return o.subtract(1, o.square(x))


UNARY: dict[str, Any] = {
    "exp": lambda y, x: y,
    "exp2": lambda y, x: _mul(y, _LN2),
    "expm1": lambda y, x: o.add(y, 1),
    "log": lambda y, x: o.reciprocal(x),
    "log2": lambda y, x: _over(_INVERSE_LOG2, x),
    "log10": lambda y, x: _over(1 / _LN10, x),
    "log1p": lambda y, x: o.reciprocal(o.add(x, 1)),
    "sqrt": lambda y, x: _over(0.5, y),
    "cbrt": lambda y, x: _over(1 / 3, o.square(y)),
    "square": lambda y, x: _mul(x, 2),
    "reciprocal": lambda y, x: o.negative(o.square(y)),
    "sin": lambda y, x: o.cos(x),
    "cos": lambda y, x: o.negative(o.sin(x)),
    "tan": lambda y, x: o.add(o.square(y), 1),
    "arcsin": lambda y, x: o.reciprocal(o.sqrt(_unit(x))),
    "arccos": lambda y, x: o.negative(o.reciprocal(o.sqrt(_unit(x)))),
    "arctan": lambda y, x: o.reciprocal(o.add(o.square(x), 1)),
    "sinh": lambda y, x: o.cosh(x),
    "cosh": lambda y, x: o.sinh(x),
    "tanh": lambda y, x: _unit(y),
    "arcsinh": lambda y, x: o.reciprocal(o.sqrt(o.add(o.square(x), 1))),
    "arccosh": lambda y, x: o.reciprocal(_mul(o.sqrt(o.subtract(x, 1)), o.sqrt(o.add(x, 1)))),
    "arctanh": lambda y, x: o.reciprocal(_unit(x)),
    "deg2rad": math.pi / 180,
    "rad2deg": 180 / math.pi,
    "positive": 1.0,
    "negative": lambda y, x: -1.0,
    "erf": lambda y, x: _mul(o.exp(o.negative(o.square(x))), _ERF),
    "erfc": lambda y, x: _mul(o.exp(o.negative(o.square(x))), -_ERF),
    "erfinv": lambda y, x: _mul(o.exp(o.square(y)), 1 / _ERF),
    "lgamma": lambda y, x: o.digamma(x),
    "digamma": _trigamma,
    "logistic": lambda y, x: _mul(y, o.subtract(1, y)),
    "nan_to_num": lambda y, x, **_: o.isfinite(x),
    "bessel_i0e": lambda y, x: o.subtract(o.bessel_i1e(x), _mul(o.sign(x), y)),
    "bessel_i1e": _i1e,
    "reduce_precision": 1.0,
    "again": 1.0,
    "checkpoint_name": 1.0,
}
"""For each row of one operand its derivative, from the result and the operand."""

BINARY: dict[str, tuple[Any, Any]] = {
    "add": (1.0, 1.0),
    "subtract": (1.0, -1.0),
    "multiply": (lambda y, a, b: b, lambda y, a, b: a),
    "divide": (
        lambda y, a, b: _over(1, b),
        lambda y, a, b: o.negative(_over(_over(a, b), b)),
    ),
    "truncated_divide": (
        lambda y, a, b: _over(1, b),
        lambda y, a, b: o.negative(_over(_over(a, b), b)),
    ),
    "remainder": (1.0, lambda y, a, b: o.negative(o.floor_divide(a, b))),
    "fmod": (1.0, lambda y, a, b: o.negative(o.trunc(_over(a, b)))),
    "power": (_power_of_base, _power_of_exponent),
    "float_power": (_power_of_base, _power_of_exponent),
    "arctan2": (
        lambda y, a, b: _over(b, o.add(o.square(a), o.square(b))),
        lambda y, a, b: o.negative(_over(a, o.add(o.square(a), o.square(b)))),
    ),
    "hypot": (lambda y, a, b: _side(a, y), lambda y, a, b: _side(b, y)),
    "maximum": (
        lambda y, a, b: _half_where_tied(a, y, b),
        lambda y, a, b: _half_where_tied(b, y, a),
    ),
    "minimum": (
        lambda y, a, b: _half_where_tied(a, y, b),
        lambda y, a, b: _half_where_tied(b, y, a),
    ),
    "fmax": (
        lambda y, a, b: o.logical_or(o.greater(a, b), o.isnan(b)),
        lambda y, a, b: o.logical_not(o.logical_or(o.greater(a, b), o.isnan(b))),
    ),
    "fmin": (
        lambda y, a, b: o.logical_or(o.less(a, b), o.isnan(b)),
        lambda y, a, b: o.logical_not(o.logical_or(o.less(a, b), o.isnan(b))),
    ),
    "logaddexp": (
        lambda y, a, b: _share(o.exp, a, y),
        lambda y, a, b: _share(o.exp, b, y),
    ),
    "logaddexp2": (
        lambda y, a, b: _share(o.exp2, a, y),
        lambda y, a, b: _share(o.exp2, b, y),
    ),
    "copysign": (
        lambda y, a, b: o.where(o.equal(o.signbit(a), o.signbit(b)), 1.0, -1.0),
        None,
    ),
    "nextafter": (1.0, None),
    "igamma": (_igamma_of_shape, _igamma_of_place),
    "igammac": (
        lambda y, a, x: o.negative(_igamma_of_shape(y, a, x)),
        lambda y, a, x: o.negative(_igamma_of_place(y, a, x)),
    ),
    "zeta": (
        _unknown("zeta", "x"),
        lambda y, x, q: o.negative(_mul(x, o.zeta(o.add(x, 1), q))),
    ),
    "polygamma": (_unknown("polygamma", "m"), lambda y, m, x: o.polygamma(o.add(m, 1), x)),
    "heaviside": (None, lambda y, a, b: o.equal(a, 0)),
    "ldexp": (lambda y, a, b: o.ldexp(np.ones((), dtype_of(y)), b), None),
}
"""For each row of two operands its partial derivatives, from the result and the operands."""


def _side(mine: Any, y: Any) -> Any:
    """Return the share of one side in a hypotenuse; a half where both are zero, as JAX has it."""
    zero = o.equal(y, 0)
    return o.where(zero, 0.5, _over(mine, o.where(zero, 1, y)))


def _share(exp: Any, mine: Any, whole: Any) -> Any:
    """Return exp(mine - whole); where both are infinite, one."""
    same = o.equal(mine, whole)
    return exp(o.where(same, 0.0, o.subtract(mine, o.where(same, 0.0, whole))))


def _within(y: Any, x: Any, low: Any, high: Any) -> Any:
    return o.logical_and(o.greater(x, low), o.less(x, high))


OTHERS: dict[str, Derivative] = {
    "betainc": Partials((_unknown("betainc", "a"), _unknown("betainc", "b"), _betainc)),
    "absolute": Tangents(_absolute),
    "sign": Tangents(_sign),
    "real": Linear(_real),
    "imag": Linear(_imag),
    "conjugate": Linear(lambda site, i, g: o.conjugate(g[0])),
    "complex": Linear(_complex),
    "where": Linear(_where, of=(1, 2)),
    "astype": Pulls(lambda site, t: t, lambda site, g, wanted: g),
    "divmod": Tangents(_divmod),
    "modf": Tangents(lambda site, t: [t[0], None]),
    "frexp": Tangents(lambda site, t: [_mul(t[0], o.exp2(o.negative(site.results[1]))), None]),
    "clip": Partials(
        (
            _within,
            lambda y, x, low, high: o.greater(low, x),
            lambda y, x, low, high: o.less(high, x),
        )
    ),
    "interpolate": Partials(
        (
            lambda y, a, b, part: o.subtract(1, part),
            lambda y, a, b, part: part,
            lambda y, a, b, part: o.subtract(b, a),
        )
    ),
}

ELEMENTWISE: dict[str, Derivative] = {
    **{name: Partials((factor,)) for name, factor in UNARY.items()},
    **{name: Partials(factors) for name, factors in BINARY.items()},
    **OTHERS,
}
"""The derivative of each elementwise row that has one."""
