"""Elements of given ranks, without sorting all others.

In: an array and the positions that elements would have if it were sorted along a dim. Out: these
elements. Where the dim is whole each cell partitions its block. Of an array of one dim that is
split, samples give two elements between which each wanted one is expected; all cells count what
comes before them, and only the few elements between them are brought together. If the count says
that the samples were misleading, the array is sorted.

Whatever depends on values is the same on every process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshard.ops.array.join import stack
from meshard.ops.array.samplesort import compress, known, regular, sort_split
from meshard.ops.array.shape import reshape
from meshard.ops.dtypes.laws import same_dtype
from meshard.ops.engine.concrete import is_traced
from meshard.ops.engine.later import at_run_time, when_laid_out
from meshard.ops.ordering import select_block
from meshard.ops.reductions.sort import Way, sort, way_to_sort
from meshard.ops.row import Dtype, Op, Operand, Params, Partial, RuleText, register
from meshard.runtime.array.array import Array
from meshard.runtime.doors import bind
from meshard.runtime.types import Block

_MOST_RANKS = 16
"""Ranks up to which counting costs less than sorting: there are up to four passes for each."""


_COUNTED = 1 << 15
"""Elements from which counting costs less than sorting: of fewer, many are between the samples."""
_GATHERED = 1 << 15
"""Elements that may be brought together even if they are more than a device's share."""


def _select_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    return "... !d -> ... k", {"k": len(params["kth"])}


register(Op("select", _select_rule, select_block, dtypes=same_dtype))


def selected(x: Array, kth: Sequence[int]) -> Any:
    """Return the elements that sorting puts at some positions of the last dim; NaN is the greatest.

    Args:
        x: the array; not complex.
        kth: the positions, ascending, each from 0 to the size of the dim, less one.
    """
    return when_laid_out("select", _selected, x, kth=tuple(kth))


def _selected(x: Array, *, kth: tuple[int, ...]) -> Any:
    x = regular(x)
    way = way_to_sort(x, x.ndim - 1)
    if way in (Way.WHOLE, Way.GATHERED):
        return bind("select", x, kth=kth)
    if way is Way.SPREAD:
        if len(kth) > _MOST_RANKS or x.size < _COUNTED or x.dtype.kind not in "biuf":
            return sort(x)[np.asarray(kth)]
        return at_run_time("select", _select_split, x, kth=kth)
    rows = reshape(x, (-1, x.shape[-1]))
    if way is Way.MERGED:
        found = bind("select", rows, kth=kth)
    else:
        found = stack([_selected(rows[i], kth=kth) for i in range(len(rows))])
    return reshape(found, (*x.shape[:-1], len(kth)))


# of one dim that is split


def _ranks_law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    return (np.dtype(np.int64),)


def _bool_law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    return (np.dtype(bool),)


def _told_law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    return same_dtype(operands[1:], params)


def _told(counts: Block, values: Block) -> Block:
    return values.copy()


def _before(x: Block, end: Any, equal: bool) -> Block:
    """Return which elements come before another one, or are equal to it; NaN is the greatest."""
    if end != end:
        return np.ones(x.shape, bool) if equal else x == x
    return x <= end if equal else x < end


def _ranks(x: Block, ends: Block) -> Block:
    """Count the elements before each end, and those up to it."""
    return np.array(
        [[np.count_nonzero(_before(x, e, equal)) for equal in (False, True)] for e in ends],
        np.int64,
    ).reshape(len(ends), 2)


def _between(x: Block, ends: Block) -> Block:
    """Return which elements are strictly between any two ends that follow each other."""
    found = np.zeros(x.shape, bool)
    for low, high in ends.reshape(-1, 2):
        found |= _before(x, high, False) & ~_before(x, low, True)
    return found


register(
    Op(
        "ranks",
        lambda operands, params: ("d, !e -> e two", {"two": 2}),
        _ranks,
        dtypes=_ranks_law,
        partial=Partial(np.add, "counts"),
    )
)
register(Op("between", "d, !e -> d", _between, dtypes=_bool_law))
# Values that all processes know, where the counts are.
register(Op("told", "!e !two, k -> k", _told, dtypes=_told_law))


def _select_split(x: Array, *, kth: tuple[int, ...]) -> Any:
    """Return elements of an array of one dim that is split, on all devices of its mesh."""
    if is_traced(x) or not x.aval.local:  # only the type is asked for
        return bind("told", bind("ranks", x, np.zeros(2, x.dtype)), np.zeros(len(kth), x.dtype))
    ends = _ends(x, kth)
    counts = bind("ranks", x, ends)
    found = _found(x, kth, ends, known(counts))
    values = known(sort_split(x)[0][np.asarray(kth)]) if found is None else found
    return bind("told", counts, values)


def _ends(x: Array, kth: Sequence[int]) -> Block:
    """Return pairs of elements; the wanted ones are expected to be between those of some pair."""
    size = x.shape[0]
    # Floyd and Rivest: the two thirds power, so that samples and what they leave open are few.
    samples = np.sort(known(x[:: _prime_from(round(size ** (1 / 3)))]))
    count = len(samples)
    low, high = _limits(x.dtype)
    ends: list[Any] = []
    reached = -1
    for k in kth:
        at = k * count // size
        # Three times the standard deviation of a rank among random samples.
        margin = 2 + math.ceil(3 * math.sqrt(at * (count - at) / count))
        first, last = at - margin, at + margin + 1
        if ends and first <= reached:
            ends.pop()
        else:
            ends.append(samples[first] if first >= 0 else low)
        ends.append(samples[last] if last < count else high)
        reached = last
    return np.array(ends, x.dtype)


def _prime_from(n: int) -> int:
    """Return the first prime from n on: a step that hardly meets what repeats in an array."""
    n = max(n, 1)
    while any(n % d == 0 for d in range(2, math.isqrt(n) + 1)):
        n += 1
    return n


def _limits(dtype: Dtype) -> tuple[Any, Any]:
    """Return the least and the greatest element that there may be; NaN is greater than all."""
    if dtype.kind == "f":
        return -np.inf, np.nan
    if dtype.kind == "b":
        return False, True
    return np.iinfo(dtype).min, np.iinfo(dtype).max


def _found(x: Array, kth: Sequence[int], ends: Block, counts: Block) -> Block | None:
    """Return the wanted elements; None if one of them is not between a pair of ends."""
    pair_of: list[int] = []
    for k in kth:
        pairs = [i for i in range(0, len(ends), 2) if counts[i, 0] <= k < counts[i + 1, 1]]
        if not pairs:
            return None
        pair_of.append(pairs[0])
    widths = counts[1::2, 0] - counts[::2, 1]
    if widths.sum() > max(_GATHERED, x.shape[0] // (len(x.aval.layout.cuts[0]) - 1)):
        return None
    inside = any(counts[i, 1] <= k < counts[i + 1, 0] for k, i in zip(kth, pair_of, strict=True))
    between = np.sort(known(compress(bind("between", x, ends), x)[0])) if inside else None
    values = np.empty(len(kth), x.dtype)
    for place, (k, i) in enumerate(zip(kth, pair_of, strict=True)):
        if k < counts[i, 1]:
            values[place] = ends[i]
        elif k >= counts[i + 1, 0]:
            values[place] = ends[i + 1]
        else:
            assert between is not None
            start = np.searchsorted(between, ends[i], "right")
            values[place] = between[start + k - counts[i, 1]]
    return values
