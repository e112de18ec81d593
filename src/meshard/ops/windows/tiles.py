"""Windows along split dims: each device gets its part, and just the edges of its neighbours.

In: an array, and for some dims how windows slide along them. Out: an array in which each of these
dims that is split is two, the parts and what each part's windows reach; and the way back, from the
results of all parts to one dim. Each window is computed where its middle is, whatever the cuts.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from meshard.ops.array.shape import reshape
from meshard.ops.windows.kernels import Pieces
from meshard.runtime.doors import bind


@final
@dataclass(frozen=True, slots=True)
class Span:
    """How windows slide along a dim.

    Attributes:
        low: how many elements are added before the first; negative ones are taken away.
        high: the same at the end.
        reach: how many elements a window reaches over.
        stride: how far it is from one window to the next.
        count: the number of windows.
    """

    low: int
    high: int
    reach: int
    stride: int
    count: int


@final
@dataclass(frozen=True, slots=True)
class _Tiling:
    """A split dim in tiles of one size.

    Attributes:
        parts: the number of tiles.
        each: the size of a tile.
        into: from the dim to all tiles in a row.
        most: the most windows that a tile has.
        back: from the windows of all tiles in a row to those that there are.
    """

    parts: int
    each: int
    into: Pieces
    most: int
    back: Pieces


def _tiling(cuts: Sequence[int], span: Span) -> _Tiling:
    """Return the tiles of a dim with these cuts."""
    n, parts = cuts[-1], len(cuts) - 1
    middle = span.low - (span.reach - 1) // 2
    inner = [-(-(cut + middle) // span.stride) for cut in cuts[1:-1]]
    ends = [0, *[min(max(end, 0), span.count) for end in inner], span.count]
    most = max(b - a for a, b in itertools.pairwise(ends))
    each = (most - 1) * span.stride + span.reach
    into, back = [], []
    for i, (a, b) in enumerate(itertools.pairwise(ends)):
        if a == b:
            continue
        start = a * span.stride - span.low
        stop = (b - 1) * span.stride - span.low + span.reach
        low, high = max(start, 0), min(stop, n)
        if low < high:
            into.append((i * each + low - start, high - low, low))
        back.append((a, b - a, i * most))
    return _Tiling(parts, each, tuple(into), most, tuple(back))


@final
class Tiles:
    """An array whose windows lie within tiles.

    Attributes:
        shape: the shape with dims of tiles.
        at: for each dim of the array where it is then; of one in tiles, the dim within them.
        spans: how windows slide along dims.
        split: the dims that are in tiles.
    """

    def __init__(self, x: Any, spans: Sequence[tuple[int, Span]]) -> None:
        cuts = x.aval.layout.cuts
        full = all(span.count for _, span in spans)
        self._ways = {
            d: _tiling(cuts[d], span)
            for d, span in spans
            if full and len(cuts[d]) > 2 and x.shape[d]
        }
        self.spans = dict(spans)
        self._source = x
        self.split = sorted(self._ways)
        self._runs = [(d, w.parts * w.each, w.into) for d, w in sorted(self._ways.items())]
        self.at: list[int] = []
        shape: list[int] = []
        for d, n in enumerate(x.shape):
            way = self._ways.get(d)
            shape += [n] if way is None else [way.parts, way.each]
            self.at.append(len(shape) - 1)
        self._cut = tuple(shape)
        self._pads = [
            (self.at[d], (s.low, s.high))
            for d, s in spans
            if d not in self._ways and (s.low or s.high)
        ]
        for d, (low, high) in self._pads:
            shape[d] = max(shape[d] + low + high, 0)
        self.shape = tuple(shape)

    @property
    def x(self) -> Any:
        """The tiles, which are made at every look."""
        x = self._source
        if self._runs:
            x = reshape(bind("tile_runs", x, dims=tuple(self._runs)), self._cut)
        # Last of all, so that no zeros pass between devices.
        return padded(x, self._pads) if self._pads else x

    def laid_back(self, g: Any) -> Any:
        """Return what the elements of tiles add up to where each came from: the transpose of this.

        Args:
            g: an array like ``x``.
        """
        if self._pads:
            g = padded(g, [(d, (-low, -high)) for d, (low, high) in self._pads])
        if not self._runs:
            return g
        shape = list(self._source.shape)
        for d, size, _ in self._runs:
            shape[d] = size
        return runs_back(self._source, reshape(g, tuple(shape)), self._runs)

    def apart(self, g: Any, dims: dict[int, int]) -> Any:
        """Return what is of all windows divided as `joined` finds it: the transpose of that.

        Args:
            g: an array as `joined` returns it.
            dims: for each dim that is in tiles where the dim of its tiles is to be.
        """
        if not self._ways:
            return g
        order = sorted(dims.items(), key=lambda item: item[1])
        moves, shape = [], list(g.shape)
        for number, (d, at) in enumerate(order):
            way = self._ways[d]
            back = tuple([(first, length, start) for start, length, first in way.back])
            moves.append((at - number, way.parts * way.most, back))
        for d, at in order:
            shape[at : at + 1] = [self._ways[d].parts, self._ways[d].most]
        return reshape(bind("tile_runs", g, dims=tuple(moves)), tuple(shape))

    def count(self, dim: int) -> int:
        """Return the number of windows along a dim, in each tile if it is in tiles."""
        way = self._ways.get(dim)
        return self.spans[dim].count if way is None else way.most

    def joined(self, found: Any, dims: dict[int, int]) -> Any:
        """Return results of all tiles as one array.

        Args:
            found: the results, each dim of tiles before that of the windows in them.
            dims: for each dim that is in tiles where the dim of its tiles is in ``found``.
        """
        if not self._ways:
            return found
        order = sorted(dims.items(), key=lambda item: item[1])
        shape, moves = list(found.shape), []
        for d, at in reversed(order):
            way = self._ways[d]
            shape[at : at + 2] = [way.parts * way.most]
        for number, (d, at) in enumerate(order):
            way = self._ways[d]
            moves.append((at - number, self.spans[d].count, way.back))
        found = reshape(found, tuple(shape))
        whole = all(len(p) == 1 or _dense(p) for *_, p in moves)
        if whole and all(shape[d] == n for d, n, _ in moves):
            return found
        return bind("runs", found, dims=tuple(moves))

    def inside(self, own: dict[int, Any]) -> Any:
        """Return which elements of tiles are the array's own; None if all are.

        Args:
            own: for some dims which positions count, as bools.

        Returns:
            bools that broadcast with tiles.
        """
        found: Any = None
        for d, span in self.spans.items():
            n, way = self._source.shape[d], self._ways.get(d)
            line = own.get(d, np.ones(n, bool))
            made: Any
            if way is None:
                last = n + min(span.high, 0)
                kept = line[max(-span.low, 0) : max(last, 0)]
                size = self.shape[self.at[d]]
                made = np.zeros(size, bool)
                start = max(span.low, 0)
                made[start : start + len(kept)] = kept[: max(size - start, 0)]
                width = 1
            else:
                made = np.zeros(way.parts * way.each, bool)
                for start, length, first in way.into:
                    made[start : start + length] = line[first : first + length]
                made, width = made.reshape(way.parts, way.each), 2
            if not made.all():
                behind = len(self.shape) - self.at[d] - 1
                made = made.reshape((*(1,) * (self.at[d] + 1 - width), *made.shape, *(1,) * behind))
                found = made if found is None else found & made
        return found


def _dense(pieces: Pieces) -> bool:
    """Whether runs read all that there is, one after another."""
    return all(start == first for start, _, first in pieces)


def padded(x: Any, pads: Sequence[tuple[int, tuple[int, int]]]) -> Any:
    """Return an array with zeros around some dims, or with less of them."""
    own = []
    for d, (low, high) in pads:
        n = x.shape[d]
        if n and (-low >= n or -high >= n):  # nothing of the dim is left
            x = x[(*(slice(None),) * d, slice(0, 0))]
            low, high = 0, n + low + high
        own.append((d, (low, high)))
    return bind("pad_zeros", x, dims=tuple(own))


def _layers(pieces: Pieces) -> list[list[tuple[int, int, int]]]:
    """Return runs turned round, in lists of which none has two that overlap."""
    found: list[list[tuple[int, int, int]]] = []
    for start, length, first in sorted(pieces, key=lambda p: p[2]):
        for layer in found:
            if layer[-1][0] + layer[-1][1] <= first:
                layer.append((first, length, start))
                break
        else:
            found.append([(first, length, start)])
    return found or [[]]


def runs_back(x: Any, g: Any, dims: Sequence[tuple[int, int, Pieces]]) -> Any:
    """Return what was copied by ``runs``, added up where it came from, and laid out like that.

    Args:
        x: what it was copied from.
        g: an array like the result.
        dims: the parameter of ``runs``.
    """
    layers = [(d, _layers(pieces)) for d, _, pieces in dims]
    found = None
    for chosen in itertools.product(*[own for _, own in layers]):
        own = tuple([(d, tuple(p)) for (d, _), p in zip(layers, chosen, strict=True)])
        part = bind("runs_like", x, g, dims=own)
        found = part if found is None else bind("add", found, part)
    return found
