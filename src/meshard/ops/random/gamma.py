"""The gamma distribution and those made of it.

In: a key and the distribution's shapes. Out: gamma numbers, or what operations make of them.

Marsaglia and Tsang's method tries until it accepts. Each try has a stream of its own, so that an
element's numbers do not depend on what its neighbours needed, and any part of an array can be drawn
alone, whatever the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

import meshard.ops.random.gamma_slope  # noqa: F401  (its row is bound by derivatives)
from meshard.algebra.arguments import integer_of, shape_of
from meshard.algebra.box import Box
from meshard.errors import ArgumentError
from meshard.ops.array import elementwise as element
from meshard.ops.array.create import full
from meshard.ops.array.shape import broadcast_to
from meshard.ops.checked import DtypeLike
from meshard.ops.engine.later import in_program
from meshard.ops.nn.functions import softmax
from meshard.ops.random.keys import DOMAINS, Stream, key_term, key_value, single_key
from meshard.ops.random.table import (
    Distribution,
    ShapeLaw,
    parameter,
    result_shape,
    with_dims,
)
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
