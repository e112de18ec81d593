"""Medians and quantiles: elements of given ranks, and what is between two of them.

In: an array, dims, and parts from 0 to 1. Out: of each part the element that stands there when all
are sorted, or a number between two elements, by one of NumPy's thirteen methods.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from meshard.algebra.arguments import choice_of
from meshard.errors import ArgumentError, DtypeError, ShapeError
from meshard.ops.array import elementwise
from meshard.ops.array.join import concatenate
from meshard.ops.array.samplesort import known, sort_split
from meshard.ops.array.shape import broadcast_to, expand_dims, moveaxis, reshape
from meshard.ops.array.take import take_along_axis
from meshard.ops.checked import Axis, checked, normalised_axes
from meshard.ops.dtypes.laws import (
    SMALL_FLOATS,
    accumulator,
    common_dtype,
    default_float,
    is_float,
    kind_of,
    same_dtype,
)
from meshard.ops.engine.later import is_traced, weak_of
from meshard.ops.reductions.moments import mean, warn_of_few, warn_where
from meshard.ops.reductions.reduce import all as all_
from meshard.ops.reductions.reduce import any as any_
from meshard.ops.reductions.reduce import count_nonzero
from meshard.ops.reductions.reduce import sum as sum_
from meshard.ops.reductions.scan import cumsum
from meshard.ops.reductions.select import behind, selected, selected_at
from meshard.ops.reductions.sort import argsort, sort
from meshard.ops.row import Dtype, Op, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array
from meshard.runtime.types import ArrayLike, Block, dtype_name

# the methods: Hyndman and Fan, "Sample quantiles in statistical packages", 1996, and NumPy's own


def _discrete(at: Any, onto: Any, xp: Any) -> Any:
    """Return the place after a position, or the position itself where a condition holds."""
    low = xp.floor(at)
    return xp.maximum(xp.where(onto(at - low, low), low, low + 1), 0)


_EXACT: dict[str, Callable[[Any, Any, Any], Any]] = {
    "inverted_cdf": lambda n, q, xp: _discrete(n * q - 1, lambda part, low: part == 0, xp),
    "closest_observation": lambda n, q, xp: _discrete(
        n * q - 1.5, lambda part, low: xp.logical_and(part == 0, low % 2 == 1), xp
    ),
    "lower": lambda n, q, xp: xp.floor((n - 1) * q),
    "higher": lambda n, q, xp: xp.ceil((n - 1) * q),
    "nearest": lambda n, q, xp: xp.rint((n - 1) * q),
}
"""Methods that pick an element: its place among n."""

_SHIFTS = {
    "interpolated_inverted_cdf": (0.0, 1.0),
    "hazen": (0.5, 0.5),
    "weibull": (0.0, 0.0),
    "median_unbiased": (1 / 3, 1 / 3),
    "normal_unbiased": (3 / 8, 3 / 8),
}
_ALL_NAN = "All-NaN slice encountered"
_METHODS = (*_EXACT, *_SHIFTS, "linear", "midpoint", "averaged_inverted_cdf")


def _neighbours(method: str, n: Any, q: Any, xp: Any) -> tuple[Any, Any, Any]:
    """Return the places of two elements among n, and how far between them a quantile is.

    Args:
        method: one of NumPy's.
        n: how many elements there are.
        q: the part, from 0 to 1.
        xp: the functions to compute with: NumPy's, or those of arrays.
    """
    last = xp.maximum(n - 1, 0)
    if method in _EXACT:
        place = xp.minimum(xp.maximum(_EXACT[method](n, q, xp), 0), last)
        return place, place, 0.0
    if method in _SHIFTS:
        alpha, beta = _SHIFTS[method]
        at = n * q + (alpha + q * (1 - alpha - beta)) - 1
    else:
        at = n * q - 1 if method == "averaged_inverted_cdf" else (n - 1) * q
    low = xp.floor(at)
    part = at - low
    if method == "midpoint":
        part = xp.where(part == 0, 0.0, 0.5)
    elif method == "averaged_inverted_cdf":
        part = xp.where(part == 0, 0.5, 1.0)
    ends = [xp.minimum(xp.maximum(place, 0), last) for place in (low, low + 1)]
    return ends[0], ends[1], part


def _interpolate(below: Block, above: Block, part: Any) -> Any:
    """Return a value between two elements; next to an infinite one it is infinite, too."""
    with np.errstate(invalid="ignore", over="ignore"):
        step = above - below
        found = np.where(part >= 0.5, above - step * (1 - part), below + step * part)
        found = np.where(np.isinf(step), below * (1 - part) + above * part, found)
    found = np.where(part == 1, above, np.where(part == 0, below, found))
    return np.where(above == below, above, found).astype(below.dtype, copy=False)


register(Op("interpolate", "..., ..., ... -> ...", _interpolate, dtypes=same_dtype))


# what is asked for


class _Asked(NamedTuple):
    """What is asked of an array.

    Attributes:
        name: the function, for errors.
        q: parts from 0 to 1, an array or a NumPy array.
        method: one of NumPy's.
        weak: whether the parts leave a float its dtype.
        keepdims: whether dims stay, with size one.
        without_nan: whether NaN is left out.
    """

    name: str
    q: Any
    method: str = "linear"
    weak: bool = True
    keepdims: bool = False
    without_nan: bool = False

    @property
    def exact(self) -> bool:
        """Whether the results are elements of the array."""
        at_ends = self.method == "linear" and self.q.dtype.kind in "biu"
        return self.method in _EXACT or at_ends

    def law(self, dtype: Dtype) -> Dtype:
        """Return the results' dtype, of elements of a dtype."""
        if self.exact:
            return dtype
        own = dtype if is_float(dtype) or dtype.kind == "c" else default_float()
        if self.weak:
            return own
        wide = self.q.dtype if own.itemsize > 1 and is_float(self.q.dtype) else own
        return common_dtype(self.name, (own, default_float() if wide == np.float64 else wide))


class _Rows(NamedTuple):
    """An array, and the dims of which each row is made.

    Attributes:
        x: the array.
        axis: the dims of it.
        dims: the dims that were asked for.
    """

    x: Any
    axis: tuple[int, ...]
    dims: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of elements of a row."""
        return math.prod(self.x.shape[d] for d in self.axis)


def _rows(name: str, a: Any, axis: Axis, ordered: bool = True) -> _Rows:
    """Return an array, and some of its dims; complex ones where an order by parts will do.

    Raises:
        DtypeError: if the elements are complex.
    """
    x = as_array(a)
    if x.dtype.kind == "c" and ordered:
        raise DtypeError(f"{name}: complex numbers have no order; the dtype is {x.dtype}.")
    own = normalised_axes(axis, x.ndim, name)
    kept = [n for d, n in enumerate(x.shape) if d not in own]
    if own and (math.prod(kept) or math.prod(x.shape[d] for d in own)):
        return _Rows(x, own, own)
    return _Rows(reshape(x, (*kept, 1)), (len(kept),), own)


def _wide(found: Any, law: Dtype, exact: bool) -> Any:
    """Return elements in the dtype in which quantiles are computed."""
    return found if exact else found.astype(accumulator(law), copy=False)


def _finished(found: Any, rows: _Rows, asked: _Asked, law: Dtype, lead: int) -> Any:
    """Restore dims behind some leading ones, and give a result its dtype."""
    if asked.keepdims:
        found = expand_dims(found, tuple(d + lead for d in rows.dims))
    return found.astype(law, copy=False)


def _or_nan(found: Any, greatest: Any) -> Any:
    """Put NaN where the greatest element is one."""
    if greatest.dtype.kind in "biu":
        return found
    return bind("where", bind("isnan", greatest), greatest, found)


def _at_known(rows: _Rows, asked: _Asked) -> Any:
    """Return quantiles at known places: of the elements only those are looked for."""
    x, size = rows.x, rows.size
    law = asked.law(x.dtype)
    parts = asked.q.reshape(-1)
    if not parts.size:
        raise ArgumentError(f"{asked.name}: q is empty.")
    lows, highs, between = _neighbours(asked.method, size, parts, np)
    between = np.broadcast_to(between, parts.shape)
    ranks = sorted({size - 1, *lows.astype(int).tolist(), *highs.astype(int).tolist()})
    elements = _wide(selected(x, rows.axis, ranks), law, asked.exact)
    one = {rank: elements[(..., i)] for i, rank in enumerate(ranks)}
    results = []
    for low, high, part in zip(lows.astype(int), highs.astype(int), between.tolist(), strict=True):
        found = one[low]
        if part and low != high:
            found = bind("interpolate", found, one[high], part)
        results.append(_finished(_or_nan(found, one[size - 1]), rows, asked, law, 0))
    if not asked.q.ndim:
        return results[0]
    joined = concatenate([expand_dims(r, 0) for r in results], axis=0)
    return reshape(joined, (*asked.q.shape, *results[0].shape))


def _at_computed(rows: _Rows, asked: _Asked) -> Any:
    """Return quantiles at places that are computed: traced ones, or behind which NaN is left out.

    Traced places cannot be checked to be inside.
    """
    x, size = rows.x, rows.size
    law = asked.law(x.dtype)
    kept = tuple([n for d, n in enumerate(x.shape) if d not in rows.axis])
    count: Any = size
    if asked.without_nan:
        valid = bind("logical_not", bind("isnan", x))
        counted = count_nonzero(valid, rows.axis)
        warn_of_few(counted, 0, _ALL_NAN)
        count = expand_dims(counted, -1)
    q = reshape(as_array(asked.q), (-1,))
    low, high, part = _neighbours(asked.method, count, q.astype(np.float64), elementwise)
    wanted = [low] if asked.exact else [low, high]
    ranks = [broadcast_to(r.astype(np.int64), (*kept, q.shape[0])) for r in wanted]
    if not asked.without_nan:  # the greatest of all is the only one that says whether there is NaN
        ranks.append(broadcast_to(as_array(np.int64(size - 1)), (*kept, 1)))
    found = selected_at(x, rows.axis, concatenate(ranks, axis=-1))
    found = _wide(found, law, asked.exact)
    width = q.shape[0]
    ends = [found[..., i * width : (i + 1) * width] for i in range(len(wanted))]
    result = ends[0] if asked.exact else bind("interpolate", *ends, part)
    found = result if asked.without_nan else _or_nan(result, found[..., -1:])
    found = moveaxis(found, -1, 0)
    found = reshape(found, (*asked.q.shape, *found.shape[1:]))
    return _finished(found, rows, asked, law, asked.q.ndim)


def _ranked(rows: _Rows, ranks: list[int]) -> Any:
    """Return elements of known ranks; complex numbers are sorted, by their real parts first."""
    if rows.x.dtype.kind == "c":
        return sort(behind(rows.x, rows.axis))[..., np.asarray(ranks)]
    return selected(rows.x, rows.axis, ranks)


def _middle_of_complex(name: str, a: Any, axis: Axis, keepdims: bool) -> Any:
    """Return the median of complex numbers without NaN, which stands behind the others."""
    rows = _rows(name, a, axis, ordered=False)
    ordered = sort(behind(rows.x, rows.axis))
    valid = bind("logical_not", bind("isnan", ordered))
    count = expand_dims(count_nonzero(valid, -1), -1)
    places = bind("maximum", (count - 1) // 2, 0), count // 2
    low, high = (take_along_axis(ordered, at, -1, "clip")[..., 0] for at in places)
    found = bind("where", bind("equal", count[..., 0] % 2, 0), (low + high) / 2, low)
    asked = _Asked(name, np.asarray(0.5), keepdims=keepdims)
    return _finished(found, rows, asked, asked.law(rows.x.dtype), 0)


def _at_weighted(rows: _Rows, asked: _Asked, weights: Any) -> Any:
    """Return the least elements up to which the weights are a part of all weights."""
    x, w = behind(rows.x, rows.axis), weights
    law = x.dtype
    if x.ndim == 1:
        ordered, w = sort_split(x, w)
    else:
        order = argsort(x)
        ordered, w = (take_along_axis(v, order, -1, "clip") for v in (x, w))
    running = cumsum(w, -1, np.dtype(np.float64))
    _check_weights(asked, w, running[..., -1:], ordered)
    running = running / running[..., -1:]
    running = bind("where", running == 0, -1.0, running)
    q = reshape(as_array(asked.q).astype(np.float64), (-1,))
    before = bind("less", expand_dims(running, -2), expand_dims(q, -1))
    at = bind("minimum", sum_(before, -1, np.dtype(np.int64)), x.shape[-1] - 1)
    found = take_along_axis(ordered, at, -1, "clip")
    found = found if asked.without_nan else _or_nan(found, ordered[..., -1:])
    found = moveaxis(found, -1, 0)
    found = reshape(found, (*asked.q.shape, *found.shape[1:]))
    return _finished(found, rows, asked, law, asked.q.ndim)


def _check_weights(asked: _Asked, w: Any, total: Any, ordered: Any) -> None:
    """Refuse weights of which no part can be taken; traced ones cannot be checked.

    Raises:
        ArgumentError: if one is negative or not finite, or those of a row are all zero.
    """
    if is_traced(w):
        return
    if bool(any_(bind("less", w, 0))):
        raise ArgumentError(f"{asked.name}: weights must not be negative, but some are.")
    usable = bind("logical_and", bind("greater", total, 0), bind("isfinite", total))
    if asked.without_nan:  # rows of nothing but NaN need none
        usable = bind("logical_or", usable, bind("isnan", ordered[..., :1]))
    if not bool(all_(usable)):
        raise ArgumentError(
            f"{asked.name}: weights include NaN or infinity, or are all zero, so that no part of "
            "them can be taken."
        )


def _weights_of(name: str, a: Any, axis: Axis, weights: Any) -> Any:
    """Return weights, merged as their array is.

    Raises:
        ShapeError: if they have neither the array's shape nor that of the dim.
    """
    x, w = as_array(a), as_array(weights)
    if w.shape != x.shape:
        dims = normalised_axes(axis, x.ndim, name)
        if axis is None or len(dims) != 1 or w.shape != (x.shape[dims[0]],):
            raise ShapeError(
                f"{name}: weights of shape {w.shape} for an array of shape {x.shape}, over "
                f"axis={axis}; they must have the array's shape, or that of one dim."
            )
        w = broadcast_to(reshape(w, (-1,) + (1,) * (x.ndim - dims[0] - 1)), x.shape)
    rows = _rows(name, w, axis)
    return behind(rows.x, rows.axis)


def _parts_of(name: str, q: Any, most: int) -> Any:
    """Return parts from 0 to 1, of what was given up to ``most``.

    Raises:
        DtypeError: if they are complex.
        ArgumentError: if they are beyond.
    """
    if is_traced(q):
        return bind("divide", q, most) if most != 1 else q
    parts = known(q)
    if kind_of(parts.dtype) not in "biuf":
        raise DtypeError(f"{name}: q must be real, but its dtype is {dtype_name(parts.dtype)}.")
    if parts.dtype in SMALL_FLOATS:
        parts = parts.astype(np.float64)
    if not ((parts >= 0) & (parts <= most)).all():
        raise ArgumentError(f"{name}: q must be from 0 to {most}; got {parts.tolist()}.")
    return np.asarray(parts / most if most != 1 else parts)


def _quantile(a: Any, axis: Axis, asked: _Asked, weights: Any) -> Any:
    name, method = asked.name, choice_of(asked.method, tuple(_METHODS), asked.name, "method")
    if weights is not None and method != "inverted_cdf":
        raise ArgumentError(
            f"{name}: weights go with method='inverted_cdf' only, not with {method!r}."
        )
    rows = _rows(name, a, axis)
    if not rows.size:
        return _of_nothing(rows, asked)
    without_nan = asked.without_nan and rows.x.dtype.kind not in "biu"
    asked = asked._replace(without_nan=without_nan)
    if weights is not None:
        w = _weights_of(name, a, axis, weights)
        if without_nan:  # they come last, and count for nothing
            w = bind("where", bind("isnan", behind(rows.x, rows.axis)), 0, w)
        found = _at_weighted(rows, asked, w)
        if without_nan:  # elements all: NaN only where there is nothing else
            warn_where(found, np.isnan, _ALL_NAN)
        return found
    if without_nan or is_traced(asked.q):
        return _at_computed(rows, asked)
    return _at_known(rows, asked)


def _of_nothing(rows: _Rows, asked: _Asked) -> Any:
    """Return NaN for quantiles that leave NaN out, and warn of it.

    Raises:
        ShapeError: for others, as there is nothing to choose from.
    """
    if not asked.without_nan:
        raise ShapeError(
            f"{asked.name}: dims {rows.axis} of the shape {rows.x.shape} are empty; the "
            f"{asked.name} of no elements is undefined."
        )
    found = mean(rows.x, rows.axis, keepdims=asked.keepdims)
    return broadcast_to(found, (*asked.q.shape, *found.shape))


def _is_weak(q: Any) -> bool:
    """Whether parts are a number of Python's, traced ones too, which leaves floats their dtype."""
    return type(q) in (int, float) or (is_traced(q) and weak_of(q) is not None)


# the functions


@checked
def median(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    keepdims: bool = False,
) -> Array:
    """Return the median over dims, all by default; NaN where an element is.

    Of dims that are split nothing is sorted: devices count elements, and bring few together.

    Args:
        a: the array; complex numbers are ordered by their real parts, then by the imaginary ones.
        axis: the dims.
        out: None; arrays are immutable.
        overwrite_input: accepted as in NumPy; the array stays as it is.
        keepdims: keep the dims, with size one.

    Warns:
        RuntimeWarning: if it is the median of nothing, which is NaN.

    >>> import meshard.numpy as mnp
    >>> float(mnp.median(mnp.asarray([4, 1, 2, 3])))
    2.5
    """
    rows, x = _rows("median", a, axis, ordered=False), as_array(a)
    if not math.prod(x.shape[d] for d in rows.dims):
        return mean(x, rows.dims, keepdims=keepdims)
    size, law = rows.size, _Asked("median", np.asarray(0.5)).law(rows.x.dtype)
    half = size // 2
    ranks = sorted({max(half - 1, 0), half, size - 1})
    elements = _wide(_ranked(rows, ranks), law, False)
    one = {rank: elements[(..., i)] for i, rank in enumerate(ranks)}
    found = one[half] if size % 2 else (one[half - 1] + one[half]) / 2
    asked = _Asked("median", np.asarray(0.5), keepdims=bool(keepdims))
    return _finished(_or_nan(found, one[size - 1]), rows, asked, law, 0)


@checked
def nanmedian(
    a: ArrayLike,
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    keepdims: bool = False,
) -> Array:
    """Return the median over dims, NaN left out; NaN where all elements are. Arguments as `median`.

    Warns:
        RuntimeWarning: if nothing is left, as far as this process has the result; never inside
            transformations.

    >>> import meshard.numpy as mnp
    >>> float(mnp.nanmedian(mnp.asarray([4.0, mnp.nan, 1.0])))
    2.5
    """
    if as_array(a).dtype.kind in "biu":
        return median(a, axis, keepdims=keepdims)
    if as_array(a).dtype.kind == "c":
        return _middle_of_complex("nanmedian", a, axis, keepdims)
    asked = _Asked("nanmedian", np.asarray(0.5), keepdims=keepdims, without_nan=True)
    return _quantile(a, axis, asked, None)


@checked
def quantile(
    a: ArrayLike,
    q: ArrayLike,
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
) -> Array:
    """Return quantiles over dims, all by default; NaN where an element is.

    Args:
        a: the array.
        q: numbers from 0 to 1; its dims come first in the result.
        axis: the dim or dims.
        out: None; arrays are immutable.
        overwrite_input: accepted as in NumPy; the array stays as it is.
        method: which element it is, or what between two: ``"linear"``, ``"lower"``, ``"higher"``,
            ``"midpoint"``, ``"nearest"``, ``"inverted_cdf"``, ``"averaged_inverted_cdf"``,
            ``"closest_observation"``, ``"interpolated_inverted_cdf"``, ``"hazen"``, ``"weibull"``,
            ``"median_unbiased"`` or ``"normal_unbiased"``.
        keepdims: whether the dims stay, with size one.
        weights: how much each element counts, of the array's shape or the dim's, not negative;
            with ``method="inverted_cdf"``.

    Raises:
        ArgumentError: if ``q`` is not from 0 to 1, or the method is unknown, or weights are
            negative, not finite or all zero. Traced ``q`` beyond them give the extremes.
        ShapeError: if a dim is empty, or the weights have another shape.
        DtypeError: if the elements are complex.

    >>> import meshard.numpy as mnp
    >>> mnp.quantile(mnp.arange(5), [0.0, 0.3, 1.0]).tolist()
    [0.0, 1.2, 4.0]
    """
    parts = _parts_of("quantile", q, 1)
    asked = _Asked("quantile", parts, method, _is_weak(q), keepdims)
    return _quantile(a, axis, asked, weights)


@checked
def percentile(
    a: ArrayLike,
    q: ArrayLike,
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
) -> Array:
    """Return percentiles over dims: as `quantile`, with ``q`` from 0 to 100.

    >>> import meshard.numpy as mnp
    >>> mnp.percentile(mnp.arange(5.0), 25).item()
    1.0
    """
    parts = _parts_of("percentile", q, 100)
    asked = _Asked("percentile", parts, method, _is_weak(q), keepdims)
    return _quantile(a, axis, asked, weights)


@checked
def nanquantile(
    a: ArrayLike,
    q: ArrayLike,
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
) -> Array:
    """Return quantiles over dims, NaN left out; NaN where all elements are.

    Takes what `quantile` takes, and warns as `nanmedian` does.

    >>> import meshard.numpy as mnp
    >>> mnp.nanquantile(mnp.asarray([1.0, mnp.nan, 3.0]), 0.5).item()
    2.0
    """
    parts = _parts_of("nanquantile", q, 1)
    asked = _Asked("nanquantile", parts, method, _is_weak(q), keepdims, without_nan=True)
    return _quantile(a, axis, asked, weights)


@checked
def nanpercentile(
    a: ArrayLike,
    q: ArrayLike,
    axis: Axis = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
) -> Array:
    """Return percentiles over dims, NaN left out: as `nanquantile`, with ``q`` from 0 to 100.

    >>> import meshard.numpy as mnp
    >>> mnp.nanpercentile(mnp.asarray([1.0, mnp.nan, 3.0]), 100).item()
    3.0
    """
    parts = _parts_of("nanpercentile", q, 100)
    asked = _Asked("nanpercentile", parts, method, _is_weak(q), keepdims, without_nan=True)
    return _quantile(a, axis, asked, weights)
