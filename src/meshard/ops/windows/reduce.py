"""Reductions of windows of split arrays, by extremes and sums, or by any operation.

In: arrays of one shape, and how windows slide along dims. Out: one element for each window, where
its middle is; of the neighbours' elements just those pass that windows reach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshard.ops.array.shape import broadcast_to, reshape
from meshard.ops.dtypes.laws import is_float
from meshard.ops.dtypes.promotion import limits_of
from meshard.ops.engine.later import relaid, when_laid_out
from meshard.ops.windows.convolve import Way, dilated, reached, span_of
from meshard.ops.windows.kernels import taps
from meshard.ops.windows.tiles import Tiles
from meshard.runtime.doors import bind
from meshard.runtime.world import here


class Window(NamedTuple):
    """How windows of a size slide along a dim; otherwise as in `Way`."""

    size: int
    low: int
    high: int
    stride: int
    between: int
    dilation: int

    @property
    def way(self) -> Way:
        """The same without the size."""
        return Way(*self[1:])


def least_of(dtype: Any, how: str) -> Any:
    """Return the value of a dtype that changes no extreme of others."""
    sign = -1 if how == "max" else 1
    if is_float(dtype):
        return np.asarray(sign * np.inf).astype(dtype)[()]
    if dtype.kind == "b":
        return np.bool_(how == "min")
    limits = limits_of(dtype)
    return np.asarray(limits.least if how == "max" else limits.greatest).astype(dtype)[()]


def reduced(x: Any, work: Any, how: str) -> Any:
    """Return the sum or an extreme of each window.

    Args:
        x: the array.
        work: pairs of a dim and a `Window`.
        how: ``"add"``, ``"max"`` or ``"min"``.
    """
    return when_laid_out("reduce_window", _reduced, x, work=work, how=how)


def _tiled(xs: Sequence[Any], work: Any) -> tuple[list[Any], Any, Tiles, list[Any]]:
    """Return arrays in tiles, which elements of these are theirs, the tiles, and their windows.

    Args:
        xs: arrays of one shape.
        work: pairs of a dim and a `Window`.
    """
    dims, windows = [d for d, _ in work], [Window(*w) for _, w in work]
    spans, own = [], {}
    for d, window in zip(dims, windows, strict=True):
        n = xs[0].shape[d]
        spans.append((d, span_of(n, window.size, window.way)))
        if window.between > 1:
            own[d] = np.arange(reached(n, window.between)) % window.between == 0
    wide = []
    for x in xs:
        for d, window in zip(dims, windows, strict=True):
            x = dilated(x, d, window.between)
        wide.append(x)
    first = wide[0].aval
    for i, x in enumerate(wide[1:], 1):
        if x.aval.layout != first.layout:
            kind = here().type_of(x.shape, x.dtype, first.sharding, first.committed)
            wide[i] = relaid(x, kind, "reduce_window")
    tiles = Tiles(wide[0], spans)
    ways = [
        (tiles.at[d], w.size, w.stride, w.dilation, tiles.count(d))
        for d, w in zip(dims, windows, strict=True)
    ]
    return [Tiles(x, spans).x for x in wide], tiles.inside(own), tiles, ways


def _places(tiles: Tiles) -> dict[int, int]:
    return {d: tiles.at[d] - 1 for d in tiles.split}


def _reduced(x: Any, *, work: Any, how: str) -> Any:
    (placed,), inside, tiles, ways = _tiled([x], work)
    if how == "add":
        found = bind("sum_windows", placed, dims=tuple(ways))
    else:
        if inside is not None:
            placed = bind("where", inside, placed, least_of(x.dtype, how))
        found = bind("reduce_windows", placed, dims=tuple(ways), how=how)
    return tiles.joined(found, _places(tiles))


def folded(
    xs: Sequence[Any], begin: Sequence[Any], work: Any, combine: Callable[..., list[Any]]
) -> list[Any]:
    """Return what an operation makes of each window's elements, one after another.

    Args:
        xs: arrays of one shape.
        begin: for each of them the value to begin with, which is around it, too.
        work: pairs of a dim and a `Window`.
        combine: from two lists of arrays to a list of arrays.
    """
    operands = (*xs, *begin)
    found: list[Any] = when_laid_out("fold_window", _folded, *operands, work=work, combine=combine)
    return found


def _folded(*operands: Any, work: Any, combine: Callable[..., list[Any]]) -> list[Any]:
    half = len(operands) // 2
    placed, inside, tiles, ways = _tiled(operands[:half], work)
    rank = placed[0].ndim
    total = [reshape(v, (*v.shape, *(1,) * (rank - v.ndim))) for v in operands[half:]]
    if inside is not None:
        placed = [bind("where", inside, x, v) for x, v in zip(placed, total, strict=True)]
    sizes, strides, dilations, counts = ([way[i] for way in ways] for i in range(1, 5))
    size = list(placed[0].shape)
    for d, *_, count in ways:
        size[d] = count
    total = [broadcast_to(v, tuple(size)) for v in total]
    for _, place in taps(sizes, counts, (strides, dilations)):
        index = [slice(None)] * rank
        for (d, *_), at in zip(ways, place, strict=True):
            index[d] = at
        total = combine(total, [x[tuple(index)] for x in placed])
    return [tiles.joined(x, _places(tiles)) for x in total]
