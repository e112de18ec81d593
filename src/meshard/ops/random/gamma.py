"""The gamma distribution and those made of it.

In: a key and the distribution's shapes. Out: gamma numbers, or what operations make of them.

Marsaglia and Tsang's method tries until it accepts. Each try has a stream of its own, so that an
element's numbers do not depend on what its neighbours needed, and any part of an array can be drawn
alone, whatever the parameters.

How gamma numbers follow the distribution's shape: the slope of their logarithms.

In: logarithms of gamma numbers ``x``, and the shapes ``a``. Out: how ``log(x)`` changes with ``a``
while the part of the distribution below ``x`` stays the same, which is

    -(d/da P(a, x)) / (x p(x)),

where ``P`` is the regularized incomplete gamma function and ``p`` the density (Figurnov, Mohamed
and Mnih, "Implicit Reparameterization Gradients", 2018). Below the mean ``P`` is a series, above it
``1 - P`` is a continued fraction; both are differentiated term by term, and nothing cancels. For
great shapes the expansion of Cornish and Fisher is as accurate, and short.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from meshard.algebra.arguments import integer_of, shape_of
from meshard.algebra.box import Box
from meshard.errors import ArgumentError
from meshard.ops.array import elementwise as element
from meshard.ops.array.create import full
from meshard.ops.array.formulas import in_pieces
from meshard.ops.array.shape import broadcast_to
from meshard.ops.checked import DtypeLike
from meshard.ops.dtypes.laws import same_dtype
from meshard.ops.engine.later import in_program
from meshard.ops.nn.functions import softmax
from meshard.ops.random.keys import DOMAINS, Stream, key_term, key_value, single_key
from meshard.ops.random.table import Distribution, ShapeLaw, parameter, result_shape, with_dims
from meshard.ops.random.tiles import Draw, Request, asked_dtype, tiling
from meshard.ops.reductions.reduce import sum as total
from meshard.ops.row import Bounds, Dtype, Op, Operand, Params, RuleText, register
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array, as_sharding, placed
from meshard.runtime.types import ArrayLike, Block, DeviceLike, ShapeLike

_FLOAT64 = np.dtype(np.float64)
_GAMMA = 1 << 32
"""Parts of a tile's stream that one gamma distribution may take."""
_SIGN, _RADIUS = 1 << 40, 1 << 41


def _log_gamma(draw: Draw, size: int, where: Any, a: Block, part: int) -> Block:
    """Return logarithms of gamma numbers for the region of a tile where ``a`` are the shapes."""
    from scipy.special import ndtri

    def numbers(i: int) -> Block:
        return draw.uniforms(size, part + i)

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
        for tile in tiling(shape).overlaps(box):
            size = math.prod(tile.shape)
            places = np.arange(size).reshape(tile.shape)[tile.of_tile].ravel()
            shapes = np.array(a[tile.of_box], np.float64, order="C")
            draw = Draw(stream, tile.number)
            found = _log_gamma(draw, size, places, shapes.ravel(), part * _GAMMA)
            block[tile.of_box] = (found if log else np.exp(found)).reshape(shapes.shape)
    return block


def _rule(operands: Sequence[Operand], params: Params) -> RuleText:
    dims = " ".join(f"d{i}" for i in range(len(operands[1][0])))
    return f"{key_term(operands[0])}, {dims} -> {dims}"


def _cell(params: Params, bounds: Bounds, shape: tuple[int, ...]) -> Params:
    return {**params, "starts": tuple([bounds[f"d{i}"][0] for i in range(len(shape))])}


register(Op("random_gamma", _rule, _kernel, dtypes=asked_dtype, local=_cell))


def _gamma(request: Request, a: Any, part: int = 0, *, log: bool = False) -> Any:
    """Draw gamma numbers, or their logarithms, for shapes that broadcast to the result's."""
    what, shape, dtype, place = request.what, request.shape, request.dtype, request.place
    one = single_key(request.key, what)
    if isinstance(a, float) and in_program():  # made where the result is wanted
        shapes = full(shape, np.float64(a))
    else:
        shapes = broadcast_to(as_array(np.float64(a) if isinstance(a, float) else a), shape)
    if place is not None:
        shapes = placed(shapes, as_sharding(place, what))
    params = {"shape": shape, "dtype": dtype, "domain": DOMAINS[what], "part": part, "log": log}
    return bind("random_gamma", one, shapes, **params)


_SHAPE = "the distribution's shape, a number or array; a negative one gives NaN"
_FREEDOM = "the degrees of freedom, a number or array"


@Distribution(None, {"a": _SHAPE}, "2.5", sample=_gamma)
def gamma(
    key: ArrayLike,
    a: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DtypeLike = None,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw from the gamma distribution of shape ``a`` and scale 1."""


def _loggamma(request: Request, a: Any) -> Any:
    return _gamma(request._replace(what="gamma"), a, log=True)


@Distribution(None, {"a": _SHAPE}, "0.001", sample=_loggamma)
def loggamma(
    key: ArrayLike,
    a: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DtypeLike = None,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw logarithms of what `gamma` draws; accurate also where that is 0, for small ``a``."""


# All others are computed in float64, and then converted.


def _beta(request: Request, a: Any, b: Any) -> Any:
    work = request.double().beside(a, b)
    x, y = _gamma(work, a, log=True), _gamma(work, b, 1, log=True)
    return element.exp(x - element.logaddexp(x, y))


@Distribution(
    None,
    {"a": "the first shape, a number or array", "b": "the second, likewise"},
    "2.0, 3.0",
    sample=_beta,
)
def beta(
    key: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DtypeLike = None,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw from the beta distribution."""


def _chisquare(request: Request, df: Any) -> Any:
    return 2 * _gamma(request.double(), df / 2)


@Distribution(None, {"df": _FREEDOM}, "3", sample=_chisquare)
def chisquare(
    key: ArrayLike,
    df: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DtypeLike = None,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw from the chi-square distribution of ``df`` degrees of freedom."""


def _f(request: Request, dfnum: Any, dfden: Any) -> Any:
    work = request.double().beside(dfnum, dfden)
    above = _gamma(work, dfnum / 2) / dfnum
    return above / (_gamma(work, dfden / 2, 1) / dfden)


@Distribution(
    None, {"dfnum": f"{_FREEDOM}, above", "dfden": "those below, likewise"}, "3, 4", sample=_f
)
def f(
    key: ArrayLike,
    dfnum: ArrayLike,
    dfden: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DtypeLike = None,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw from the F distribution of ``dfnum`` and ``dfden`` degrees of freedom."""


def _t(request: Request, df: Any) -> Any:
    work = request.double().beside(df)
    square = _gamma(work, df / 2)
    numbers = bind("random_normal_of", work.uniforms(_SIGN), dtype=_FLOAT64)
    return numbers * element.sqrt(df / 2 / square)


@Distribution(None, {"df": _FREEDOM}, "3", sample=_t)
def t(
    key: ArrayLike,
    df: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DtypeLike = None,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw from Student's t distribution of ``df`` degrees of freedom."""


def _generalized_normal(request: Request, p: Any) -> Any:
    return _generalized(request.double().beside(p), p)


def _generalized(work: Request, p: Any) -> Any:
    magnitude = element.exp(_gamma(work, 1 / p, log=True) / p)
    return element.where(work.uniforms(_SIGN) < 0.5, magnitude, -magnitude)


@Distribution(None, {"p": "the power, a number or array"}, "3.0", sample=_generalized_normal)
def generalized_normal(
    key: ArrayLike,
    p: ArrayLike,
    shape: ShapeLike = (),
    dtype: DtypeLike = None,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw from the distribution whose density falls as ``exp(-abs(x) ** p)``."""


# vectors


def _rows_whole(request: Request) -> Request:
    """Return where to draw numbers that are summed over the last dim, each sum on one device."""
    return request.arranged(request.shape, (*range(len(request.shape) - 1), None))


def _with_last(what: str, shape: Any, parameters: Mapping[str, Any]) -> tuple[int, ...]:
    alpha = with_dims(what, "alpha", parameters["alpha"])
    asked = None if shape is None else (*shape_of(shape, what), alpha.shape[-1])
    return result_shape(what, asked, parameters)


def _dirichlet(request: Request, alpha: Any) -> Any:
    return softmax(_gamma(_rows_whole(request), alpha, log=True), axis=-1)


@Distribution(
    None,
    {"alpha": "the concentrations, the last dim"},
    "[1.0, 2.0, 3.0]",
    shapes=ShapeLaw("the result's without its last dim, to which ``alpha`` broadcasts", _with_last),
    sample=_dirichlet,
)
def dirichlet(
    key: ArrayLike,
    alpha: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DtypeLike = None,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw from the Dirichlet distribution; the last dim of the result sums to 1."""


def _ball_parameter(what: str, name: str, given: Any) -> Any:
    if name == "d":
        return integer_of(given, what, name, least=0)
    power = parameter(what, name, given)
    if isinstance(power, float) and not power > 0:
        raise ArgumentError(f"{what}: {name}={power} is not above 0, as the order of a norm is.")
    return power


def _ball(request: Request, d: int, p: Any) -> Any:
    if isinstance(p, float) and p == np.inf:
        return 2 * request.uniforms() - 1
    lead = request.shape[:-1]
    g = _generalized(_rows_whole(request), p)
    e = -element.log(request.arranged(lead, range(len(lead))).uniforms(_RADIUS))
    norms = (total(element.absolute(g) ** p, axis=-1) + e) ** (1 / p)
    return g / norms[..., None]


@Distribution(
    None,
    {
        "d": "the number of dimensions of the ball, the last dim of the result",
        "p": "the order of the norm, above 0; infinity for the cube",
    },
    "3",
    shapes=ShapeLaw(
        "the result's shape without its last dim",
        lambda what, shape, parameters: (*shape_of(shape, what), parameters["d"]),
    ),
    sample=_ball,
    accept=_ball_parameter,
)
def ball(
    key: ArrayLike,
    d: ArrayLike,
    p: ArrayLike = 2,
    shape: ShapeLike = (),
    dtype: DtypeLike = None,
    *,
    out_sharding: DeviceLike = None,
) -> None:
    """Draw points of the unit ball of the p-norm, all equally likely."""


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
