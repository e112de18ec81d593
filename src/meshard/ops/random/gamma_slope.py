"""How gamma numbers follow the distribution's shape: the slope of their logarithms.

In: logarithms of gamma numbers ``x``, and the shapes ``a``. Out: how ``log(x)`` changes with ``a``
while the part of the distribution below ``x`` stays the same, which is

    -(d/da P(a, x)) / (x p(x)),

where ``P`` is the regularized incomplete gamma function and ``p`` the density (Figurnov, Mohamed
and Mnih, "Implicit Reparameterization Gradients", 2018). Below the mean ``P`` is a series, above it
``1 - P`` is a continued fraction; both are differentiated term by term, and nothing cancels. For
great shapes the expansion of Cornish and Fisher is as accurate, and short.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meshard.ops.array.formulas import in_pieces
from meshard.ops.dtypes.laws import same_dtype
from meshard.ops.row import Op, register
from meshard.runtime.types import Block

State = tuple[Block, ...]

_GREAT = 5000.0
_MOST = 10_000  # terms; about six times the root of the shape are needed
_LEAST = 1e-300


def _series(log: Block, a: Block) -> Block:
    """Return the slope for numbers below the mean."""
    from scipy.special import digamma

    x, one, zero = np.exp(log), np.ones_like(a), np.zeros_like(a)

    def turn(n: int, state: State) -> tuple[State, Block]:
        x, a, term, rises, whole, sums = state
        term = term * (x / (a + n))
        rises = rises + 1 / (a + n)
        more = term * rises
        return (x, a, term, rises, whole + term, sums + more), more > 1e-17 * (sums + more)

    *_, whole, sums = _repeated(turn, (x, a, one, zero, one, zero))
    return (sums - whole * (log - digamma(a + 1))) / a


def _fraction(log: Block, a: Block) -> Block:
    """Return the slope for numbers above the mean, by Lentz's method with slopes beside values."""
    from scipy.special import digamma

    x = np.exp(log)
    b = x + 1 - a

    def turn(n: int, state: State) -> tuple[State, Block]:
        a, b, above, above_slope, below, below_slope, found, slope = state
        factor = -n * (n - a)
        b = b + 2
        above_slope = -1 + (n - factor * above_slope / above) / above
        above = b + factor / above
        above = np.where(above == 0, _LEAST, above)
        quotient = factor * below + b
        quotient_slope = n * below + factor * below_slope - 1
        below = 1 / np.where(quotient == 0, _LEAST, quotient)
        below_slope = -quotient_slope * below * below
        ratio = above * below
        change = found * (above_slope * below + above * below_slope)
        slope, found = slope * ratio + change, found * ratio
        still = (abs(ratio - 1) > 2e-16) | (abs(change) > 2e-16 * abs(slope))
        return (a, b, above, above_slope, below, below_slope, found, slope), still

    start = 1 / b
    first = np.full_like(a, 1 / _LEAST), np.zeros_like(a)
    last = _repeated(turn, (a, b, *first, start, start * start, start, start * start))
    return last[-2] * (log - digamma(a)) + last[-1]


def _repeated(turn: Callable[[int, State], tuple[State, Block]], state: State) -> State:
    """Return the state of each element after as many turns as it needs by itself.

    How many others need does not matter, so that results do not depend on how arrays are cut.
    """
    whole = tuple([x.copy() for x in state])
    places = np.arange(len(state[0]))
    for n in range(1, _MOST):
        state, still = turn(n, state)
        if not still.all():
            for own, x in zip(whole, state, strict=True):
                own[places[~still]] = x[~still]
            places, state = places[still], tuple([x[still] for x in state])
            if not len(places):
                break
    for own, x in zip(whole, state, strict=True):
        own[places] = x
    return whole


def _expansion(log: Block, a: Block) -> Block:
    """Return the slope for great shapes."""
    from scipy.special import gammainc, gammaincc, ndtri

    x, root = np.exp(log), np.sqrt(a)
    w = np.where(x < a, ndtri(gammainc(a, x)), -ndtri(gammaincc(a, x)))
    first = w / (2 * root) - (w**3 - 7 * w) / (72 * a * root)
    second = (3 * w**4 + 7 * w**2 - 16) / (810 * a**2)
    third = (9 * w**5 + 256 * w**3 - 433 * w) / (25920 * a**2 * root)
    return (1 + first + second - third) / x


def _slope(log: Block, a: Block) -> Block:
    log, shapes = np.broadcast_arrays(np.asarray(log), np.asarray(a))
    dtype = log.dtype
    y, alpha = log.astype(np.float64), shapes.astype(np.float64)
    found = np.full(y.shape, np.nan)
    valid = (alpha > 0) & np.isfinite(alpha) & (y < np.inf)
    great = valid & (alpha > _GREAT)
    low = valid & ~great & ((y < 0) | (y < np.log(np.where(valid, alpha, 1))))
    with np.errstate(all="ignore"):
        for where, function in (
            (great, _expansion),
            (low, _series),
            (valid & ~great & ~low, _fraction),
        ):
            if where.any():
                found[where] = function(y[where], alpha[where])
    return found.astype(dtype)


register(Op("random_gamma_slope", "..., ... -> ...", in_pieces(_slope), dtypes=same_dtype))
