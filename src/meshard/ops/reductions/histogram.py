"""Counts in bins: each device counts its own elements, and the counts are added.

How many bins a histogram has, by NumPy's rules.

In: an array and a rule's name. Out: a number of equal bins. What a rule needs to know of the array
(its size, deviation, quartiles) is computed where its elements are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshard.algebra.arguments import choice_of, shown
from meshard.errors import ArgumentError, DtypeError, ShapeError
from meshard.ops.array.create import linspace
from meshard.ops.array.samplesort import known
from meshard.ops.array.shape import ravel
from meshard.ops.checked import checked
from meshard.ops.dtypes.laws import common_dtype, default_float, is_whole
from meshard.ops.engine.later import concrete, is_array, is_traced
from meshard.ops.engine.operand_mesh import replicated_beside
from meshard.ops.reductions.moments import mean, std
from meshard.ops.reductions.quantiles import percentile
from meshard.ops.reductions.reduce import max as max_
from meshard.ops.reductions.reduce import min as min_
from meshard.ops.reductions.reduce import sum as sum_
from meshard.ops.reductions.sets import extract
from meshard.ops.row import Dtype, Op, Operand, Params, Partial, RuleText, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.moving.place import as_array, as_host
from meshard.runtime.types import ArrayLike, Block

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


def _bins_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    names = " ".join(f"d{i}" for i in range(len(operands[0][0])))
    weights = f", {names}" if params["weighted"] else ""
    return f"{names}, !e{weights} -> b", {"b": params["bins"]}


def _bins_law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    if not params["weighted"]:
        return (np.dtype(np.int64),)
    dtype = operands[-1][1]
    complex_ = isinstance(dtype, np.dtype) and dtype.kind == "c"
    return (np.dtype(np.complex128 if complex_ else np.float64),)


def _in_bins(x: Block, edges: Block, *weights: Block, bins: int, weighted: bool) -> Block:
    law = _bins_law([(w.shape, w.dtype) for w in weights], {"weighted": weighted})[0]
    if not weighted and x.dtype.kind == edges.dtype.kind == "f" and _are_equal(edges):
        return _in_equal_bins(x.reshape(-1), edges)
    own = weights[0].astype(law) if weighted else None
    found: Block = np.histogram(x, edges, weights=own)[0].astype(law)
    return found


def _are_equal(edges: Block) -> bool:
    """Whether bins differ in width by so little that a place can be computed, but for one bin."""
    if not 2 <= edges.size <= _MOST_COMPUTED or edges.dtype.itemsize < 4:
        return False
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        width = (edges[-1] - edges[0]) / (edges.size - 1)
        scale = np.divide(edges.size - 1, edges[-1] - edges[0])
        finite = 0 < width < np.inf and scale < np.inf
        return bool(finite and (abs(np.diff(edges) - width) < width / 64).all())


def _in_equal_bins(flat: Block, edges: Block) -> Block:
    """Count elements by bins whose places are computed, then moved to where the edges say."""
    last = edges.size - 2
    total = np.zeros(last + 1, np.int64)
    scale = (last + 1) / (edges[-1] - edges[0])
    for start in range(0, flat.size, _COUNTED_AT_ONCE):
        x = flat[start : start + _COUNTED_AT_ONCE]
        inside = (x >= edges[0]) & (x <= edges[-1])
        x = x if inside.all() else x[inside]
        place = np.minimum(((x - edges[0]) * scale).astype(np.int64), last)
        place -= x < edges[place]
        place += (x >= edges[place + 1]) & (place < last)
        total += np.bincount(place, minlength=last + 1)
    return total


_MOST_COMPUTED = 1 << 12
_COUNTED_AT_ONCE = 1 << 14


def _counts(x: Block, none: Block, *weights: Block, bins: int, weighted: bool) -> Block:
    flat = x.reshape(-1)
    found = np.bincount(flat, weights[0].reshape(-1) if weighted else None, bins)
    return found.astype(_bins_law([(w.shape, w.dtype) for w in weights], {"weighted": weighted})[0])


register(Op("histogram", _bins_rule, _in_bins, dtypes=_bins_law, partial=Partial(np.add, "counts")))
register(Op("bincount", _bins_rule, _counts, dtypes=_bins_law, partial=Partial(np.add, "counts")))


@checked
def histogram_bin_edges(
    a: ArrayLike,
    bins: ArrayLike = 10,
    range: Sequence[float] | None = None,
    weights: ArrayLike | None = None,
) -> Array:
    """Return the edges of bins that cover an array; ``bins`` are as of `histogram`.

    Raises:
        ArgumentError: if ``bins`` is neither a positive integer, a rule, nor rising edges.
        ConcretizationError: if a rule has to look at elements that are traced.

    >>> import meshard.numpy as mnp
    >>> mnp.histogram_bin_edges(mnp.asarray([0, 4]), 2).tolist()
    [0.0, 2.0, 4.0]
    """
    x = _subtractable(as_array(a))
    _no_rule("histogram_bin_edges", bins, weights)
    if weights is not None:
        _weights("histogram_bin_edges", x, weights)
    return _edges("histogram_bin_edges", x, bins, range)


def _traced_edges(name: str, x: Any, bins: Any, limits: Any) -> Any:
    """Return the edges of equal bins over the extremes of traced elements, as NumPy does."""
    if is_traced(bins):
        if bins.ndim == 1:
            return bins
        bins = concrete(bins, name, "The number of bins is the result's size. Give an int.")
    low, high = (min_(x), max_(x)) if limits is None else limits
    kinds = [v.dtype if is_array(v) else type(v) for v in (low, high)]
    wanted = common_dtype(name, [x.dtype, *kinds])
    wanted = default_float() if is_whole(wanted) else wanted
    same = bind("equal", low, high)
    low, high = (as_array(v).astype(wanted, copy=False) for v in (low, high))
    half = bind("where", same, 0.5, 0.0).astype(wanted)
    if np.asarray(bins).dtype.kind not in "iu":
        raise ArgumentError(f"{name}: bins must be an integer or edges, got {shown(bins)}.")
    return linspace(low - half, high + half, int(bins) + 1)


def _edges(name: str, x: Any, bins: Any, limits: Any) -> Any:
    """Return the edges of bins, laid out beside the array."""
    if is_traced(bins) or (limits is not None and is_traced(*limits)):
        return _traced_edges(name, x, bins, limits)
    given = [v for v in (bins, *(limits or ())) if is_array(v)]
    bins, limits = _host_bins(name, x, bins, limits)
    sample = np.zeros(0, x.dtype)
    if limits is None and np.ndim(bins) == 0 and x.size:  # equal bins over the elements' range
        if is_traced(x):
            return _traced_edges(name, x, bins, limits)
        sample = np.stack([known(min_(x)), known(max_(x))])
    try:
        edges = np.histogram_bin_edges(sample, bins, limits)
    except (ValueError, TypeError) as error:
        raise ArgumentError(
            f"{name}: bins={bins!r} and range={limits!r} do not define bins: {error}"
        ) from error
    return replicated_beside(name, np.array(edges), x, *given)


def _host_bins(name: str, x: Any, bins: Any, limits: Any) -> tuple[Any, Any]:
    """Return bins that are not traced as a number or as NumPy's edges, and limits known here."""
    if limits is not None:
        limits = [known(v) if is_array(v) else v for v in limits]
    if isinstance(bins, str):
        return estimated_bins(name, x, bins, limits)
    if isinstance(bins, (int, np.integer)):
        return bins, limits
    return (known(bins) if is_array(bins) else as_host(bins, f"{name}: bins")), limits


@checked
def histogram(
    a: ArrayLike,
    bins: ArrayLike = 10,
    range: Sequence[float] | None = None,
    density: bool = False,
    weights: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Return how many elements fall into each bin, and the bins' edges.

    Each device counts its own elements; the counts, which are few, are added.

    Args:
        a: the array.
        bins: a number of equal bins, rising edges, or a rule that chooses their number by the
            elements: ``"auto"``, ``"doane"``, ``"fd"``, ``"rice"``, ``"scott"``, ``"sqrt"``,
            ``"stone"`` or ``"sturges"``.
        range: the first and the last edge of equal bins; by default the extremes.
        density: whether to divide so that the integral is one.
        weights: what each element counts, in the array's shape.

    Raises:
        ArgumentError: if ``bins`` or ``range`` give no bins.
        ShapeError: if the weights have another shape.

    >>> import meshard.numpy as mnp
    >>> mnp.histogram(mnp.asarray([1, 2, 1]), bins=[0, 1, 2, 3])[0].tolist()
    [0, 2, 1]
    """
    x = _subtractable(as_array(a))
    _no_rule("histogram", bins, weights)
    edges = _edges("histogram", x, bins, range)
    operands = [x, edges]
    if weights is not None:
        operands.append(_weights("histogram", x, weights))
    found = bind("histogram", *operands, bins=edges.shape[0] - 1, weighted=weights is not None)
    if weights is not None and operands[2].dtype.kind != "b":
        found = found.astype(operands[2].dtype, copy=False)
    if density:
        widths = edges[1:] - edges[:-1]
        found = bind("divide", bind("divide", found, widths), sum_(found))
    return found, edges


def _subtractable(x: Any) -> Any:
    return x.astype(np.uint8) if x.dtype.kind == "b" else x


def _no_rule(name: str, bins: Any, weights: Any) -> None:
    if weights is not None and isinstance(bins, str):
        raise ArgumentError(
            f"{name}: bins={bins!r} chooses the bins by the elements alone, without weights; give "
            "a number of bins, or their edges."
        )


def _weights(name: str, x: Any, weights: Any) -> Any:
    found = as_array(weights)
    if found.shape != x.shape:
        raise ShapeError(
            f"{name}: weights of shape {found.shape} for an array of shape {x.shape}; "
            "each element must have one."
        )
    return found


@checked
def bincount(
    x: ArrayLike, weights: ArrayLike | None = None, minlength: int = 0, *, length: int | None = None
) -> Array:
    """Return how often each non-negative integer occurs in an array.

    Args:
        x: non-negative integers, of one dim.
        weights: what each element counts.
        minlength: the least length of the result, which otherwise ends with the greatest number;
            it has no effect beside ``length``.
        length: the result's length, if it is known, as it must be of traced numbers; numbers from
            there on are not counted, and negative traced ones count as zero.

    Raises:
        DtypeError: if the elements are not integers.
        ArgumentError: if one is negative.
        ShapeError: if there is not one dim, or the weights have another shape.

    >>> import meshard.numpy as mnp
    >>> mnp.bincount(mnp.asarray([0, 3, 3])).tolist()
    [1, 0, 0, 2]
    """
    values = as_array(x)
    if not is_whole(values.dtype):
        raise DtypeError(
            f"bincount: the elements must be integers, but their dtype is {values.dtype}."
        )
    if values.ndim != 1:
        raise ShapeError(f"bincount: takes an array of one dim, got shape {values.shape}.")
    values = values.astype(np.int64, copy=False)
    none = np.empty(0, np.int64)
    operands = [values, none]
    if weights is not None:
        operands.append(_weights("bincount", values, weights))
    weighted = weights is not None
    if is_traced(values) and length is not None:  # those outside are counted behind, and cut off
        most = int(length)
        inside = bind("minimum", bind("maximum", values, 0), most)
        return bind("bincount", inside, *operands[1:], bins=most + 1, weighted=weighted)[:most]
    if is_traced(values):
        values = concrete(
            values,
            "bincount",
            "The result's size depends on the values. Give length=, a Python integer; numbers "
            "from there on are not counted.",
        )
        operands[0] = values
    low, high = (int(min_(values)), int(max_(values))) if values.size else (0, -1)
    if low < 0:
        raise ArgumentError(f"bincount: the elements must not be negative, but the least is {low}.")
    if minlength < 0:
        raise ArgumentError(f"bincount: minlength must not be negative, got {minlength}.")
    bins = max(high + 1, int(minlength)) if length is None else int(length)
    counted = bind("bincount", *operands, bins=max(bins, high + 1), weighted=weighted)
    return counted[:bins] if bins <= high else counted
