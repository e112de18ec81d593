"""How many bins a histogram has, by NumPy's rules.

In: an array and a rule's name. Out: a number of equal bins. What a rule needs to know of the array
(its size, deviation, quartiles) is computed where its elements are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from meshard.algebra.arguments import choice_of
from meshard.ops.array.samplesort import known
from meshard.ops.array.shape import ravel
from meshard.ops.engine.concrete import concrete
from meshard.ops.reductions.moments import mean, std
from meshard.ops.reductions.quantiles import percentile
from meshard.ops.reductions.reduce import max as max_
from meshard.ops.reductions.reduce import min as min_
from meshard.ops.reductions.sets import extract
from meshard.runtime.doors import bind

_MOST_TRIED = 100


def _number(x: Any) -> float:
    return float(known(x))


def _span(x: Any) -> float:
    return float(int(known(max_(x))) - int(known(min_(x)))) if _whole(x) else _real_span(x)


def _real_span(x: Any) -> float:
    return float(known(max_(x)) - known(min_(x)))


def _whole(x: Any) -> bool:
    return bool(x.dtype.kind in "iu")


def _sturges(x: Any) -> float:
    return _span(x) / (math.log2(x.size) + 1)


def _doane(x: Any) -> float:
    n = x.size
    spread = _number(std(x)) if n > 2 else 0.0
    if not spread > 0:
        return 0.0
    skewness = abs(_number(mean(((x - mean(x)) / spread) ** 3)))
    expected = math.sqrt(6.0 * (n - 2) / ((n + 1.0) * (n + 3)))
    return _span(x) / (1.0 + math.log2(n) + math.log2(1.0 + skewness / expected))


def _freedman_diaconis(x: Any) -> float:
    high, low = known(percentile(x, np.array([75, 25])))
    return float(2.0 * (high - low) * x.size ** (-1 / 3))


def _stone(x: Any, limits: Any = None) -> float:
    """Return the width by which leaving one element out is estimated to cost least."""
    n, span = x.size, _span(x)
    if n <= 1 or not span:
        return 0.0
    first, last = (_number(min_(x)), _number(max_(x))) if limits is None else limits

    def loss(bins: int) -> float:
        edges = np.linspace(first, last, bins + 1)
        counts = known(bind("histogram", x, edges, bins=bins, weighted=False)) / n
        return float((2 - (n + 1) * counts.dot(counts)) * bins / span)

    return span / min(range(1, max(_MOST_TRIED, math.isqrt(n)) + 1), key=loss)


_WIDTHS: dict[str, Callable[[Any], float]] = {
    "auto": lambda x: min(
        max(_freedman_diaconis(x), _span(x) / math.sqrt(x.size) / 2), _sturges(x)
    ),
    "doane": _doane,
    "fd": _freedman_diaconis,
    "rice": lambda x: _span(x) / (2 * x.size ** (1 / 3)),
    "scott": lambda x: (24 * math.pi**0.5 / x.size) ** (1 / 3) * _number(std(x)),
    "sqrt": lambda x: _span(x) / math.sqrt(x.size),
    "stone": _stone,
    "sturges": _sturges,
}
"""By each rule's name the width of a bin."""


def estimated_bins(name: str, x: Any, rule: str, limits: Any) -> tuple[int, Any]:
    """Return how many bins a rule gives an array, and the limits, if there are any.

    Args:
        name: the function, for errors.
        x: the array.
        rule: the rule.
        limits: the first and the last edge, beyond which elements do not count; None for the
            extremes.

    Raises:
        ArgumentError: if there is no such rule.
        ConcretizationError: if the array is traced.
    """
    width_of = _WIDTHS[choice_of(rule, tuple(_WIDTHS), name, "bins")]
    x = ravel(concrete(x, name, "The number of bins is the result's size. Give an int."))
    if limits is not None:
        limits = tuple(float(v) for v in limits)
        inside = bind("logical_and", x >= limits[0], x <= limits[1])
        x = extract(inside, x)
    if not x.size:
        return 1, limits
    width = _stone(x, limits) if rule == "stone" else width_of(x)
    if not width:
        return 1, limits
    if _whole(x):
        width = max(width, 1)
    span = _span(x) if limits is None else limits[1] - limits[0]
    return max(math.ceil((span or 1) / width), 1), limits
