"""Convolutions of split arrays: where the cuts are, the edges of tiles pass, and nothing else.

In: operands in canonical order, and for each dim along which windows slide how they do. Out: the
convolution, split as the rule of its row says, and along windows as the first operand is.

Reductions of windows of split arrays, by extremes and sums, or by any operation.

In: arrays of one shape, and how windows slide along dims. Out: one element for each window, where
its middle is; of the neighbours' elements just those pass that windows reach.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from meshard.ops.array.shape import broadcast_to, reshape
from meshard.ops.dtypes.laws import is_float, limits_of
from meshard.ops.engine.later import relaid, when_laid_out
from meshard.ops.windows.kernels import Terms, lettered, taps
from meshard.ops.windows.tiles import Span, Tiles, padded
from meshard.runtime.doors import bind
from meshard.runtime.world import here


class Way(NamedTuple):
    """How windows slide along a dim.

    Attributes:
        low: how many zeros are added before the first element; negative ones are taken away.
        high: the same at the end.
        stride: how far it is from one window to the next.
        between: how many zeros are added between two elements, plus one.
        dilation: how far it is from one element of a window to the next.
    """

    low: int
    high: int
    stride: int
    between: int
    dilation: int


def reached(size: int, dilation: int) -> int:
    """Return how many positions elements reach over that are so far from each other."""
    return (size - 1) * dilation + 1 if size else 0


def span_of(n: int, size: int, way: Way) -> Span:
    """Return how windows of a size slide along a dim with n elements."""
    reach = reached(size, way.dilation)
    room = reached(n, way.between) + way.low + way.high - reach
    count = room // way.stride + 1 if room >= 0 else 0
    return Span(way.low, way.high, max(reach, 1), way.stride, count)


def convolution(x: Any, w: Any, terms: Terms, ways: Sequence[Way], dtype: Any) -> Any:
    """Return sums of products over windows.

    Args:
        x: what windows slide along.
        w: what they are multiplied with.
        terms: the dims of x, w and the result, by the roles that `kernels.roles_of` tells apart.
        ways: how windows slide along each of x's dims s0, s1 and so on.
        dtype: the result's dtype; None for that of both.
    """
    names = terms[0].split()
    work = tuple([(names.index(f"s{i}"), way) for i, way in enumerate(ways)])
    plain = all(way.between == 1 for way in ways)
    find, name = (_laid, "conv") if plain else (_spread, "conv_dilated")
    return when_laid_out(name, find, x, w, work=work, terms=terms, dtype=dtype)


def _of_many(terms: Terms, work: Any) -> Terms:
    """Return the dims of operands that have dims in front, for many examples."""
    lead = work[0][0] - terms[0].split().index("s0")
    if not lead:
        return terms
    many = " ".join([f"e{i}" for i in range(lead)])
    return f"{many} {terms[0]}", f"{many} {terms[1]}", f"{many} {terms[2]}"


@final
class _Placed:
    """A convolution whose first operand is in tiles.

    Attributes:
        tiles: these.
        terms: the dims of all three, in tiles.
        steps: the strides of windows, and the dilations in them.
        counts: how many windows there are along each dim of a tile.
        places: for each dim in tiles where these are in the result.
    """

    def __init__(self, x: Any, kernel: Sequence[int], work: Any, terms: Terms) -> None:
        terms = _of_many(terms, work)
        dims, ways = [d for d, _ in work], [Way(*way) for _, way in work]
        spans = [span_of(x.shape[d], k, v) for d, k, v in zip(dims, kernel, ways, strict=True)]
        self.tiles = Tiles(x, list(zip(dims, spans, strict=True)))
        first, last = terms[0].split(), terms[2].split()
        for i, d in enumerate(dims):
            if d in self.tiles.split:
                first.insert(first.index(f"s{i}"), f"p{i}")
                last.insert(last.index(f"t{i}"), f"p{i}")
        self.terms = (" ".join(first), terms[1], " ".join(last))
        self.steps = (tuple([v.stride for v in ways]), tuple([v.dilation for v in ways]))
        self.counts = tuple([self.tiles.count(d) for d in dims])
        split = self.tiles.split
        self.places = {d: last.index(f"p{i}") for i, d in enumerate(dims) if d in split}


def _kernel_sizes(w: Any, work: Any, terms: Terms) -> list[int]:
    own = _of_many(terms, work)[1].split()
    return [w.shape[own.index(f"k{i}")] for i in range(len(work))]


def _laid(x: Any, w: Any, *, work: Any, terms: Terms, dtype: Any) -> Any:
    own = _Placed(x, _kernel_sizes(w, work, terms), work, terms)
    found = bind(
        "convolve",
        own.tiles.x,
        w,
        terms=own.terms,
        steps=own.steps,
        sizes=own.counts,
        dtype=dtype,
    )
    return own.tiles.joined(found, own.places)


def to_first(x: Any, w: Any, g: Any, params: Mapping[str, Any]) -> Any:
    """Return the cotangent of a convolution's first operand, from that of the result.

    Args:
        x: the first operand.
        w: the second.
        g: the cotangent.
        params: what the convolution was put off with.
    """
    own = {k: params[k] for k in ("work", "terms")}
    return when_laid_out("conv_to_first", _to_first, x, w, g, **own)


def _to_first(x: Any, w: Any, g: Any, *, work: Any, terms: Terms) -> Any:
    own = _Placed(x, _kernel_sizes(w, work, terms), work, terms)
    names = own.terms[0].split()
    found = bind(
        "convolve_back",
        own.tiles.apart(g, own.places),
        w,
        terms=own.terms,
        steps=own.steps,
        sizes=tuple([own.tiles.shape[names.index(f"s{i}")] for i in range(len(work))]),
        dtype=None,
    )
    return own.tiles.laid_back(found)


def to_second(x: Any, w: Any, g: Any, params: Mapping[str, Any]) -> Any:
    """Return the cotangent of a convolution's second operand; see `to_first`."""
    own = {k: params[k] for k in ("work", "terms")}
    sizes = tuple(_kernel_sizes(w, **own))
    return when_laid_out("conv_to_second", _to_second, x, g, sizes=sizes, **own)


def _to_second(x: Any, g: Any, *, work: Any, terms: Terms, sizes: tuple[int, ...]) -> Any:
    own = _Placed(x, sizes, work, terms)
    first, second, last = own.terms
    turned = (first, lettered(last, "t", "k"), lettered(second, "k", "t"))
    given = own.tiles.apart(g, own.places)
    steps = own.steps[::-1]
    return bind("convolve", own.tiles.x, given, terms=turned, steps=steps, sizes=sizes, dtype=None)


def _spread(x: Any, w: Any, *, work: Any, terms: Terms, dtype: Any) -> Any:
    """Return a convolution of what has zeros between its elements."""
    kernel = _kernel_sizes(w, work, terms)
    dims, ways = [d for d, _ in work], [Way(*way) for _, way in work]
    cuts = x.aval.layout.cuts
    whole = all(len(cuts[d]) == 2 and x.shape[d] for d in dims) and all(kernel)
    if whole and all(way.stride == 1 for way in ways):
        spans = [span_of(x.shape[d], k, v) for d, k, v in zip(dims, kernel, ways, strict=True)]
        return _turned(x, w, _of_many(terms, work), ways, spans, dtype)
    for d, way in zip(dims, ways, strict=True):
        x = dilated(x, d, way.between)
    plain = tuple([(d, way._replace(between=1)) for d, way in zip(dims, ways, strict=True)])
    return _laid(x, w, work=plain, terms=terms, dtype=dtype)


def dilated(x: Any, dim: int, between: int) -> Any:
    """Return the array with zeros between its elements along a dim."""
    n = x.shape[dim]
    if between == 1 or n < 2:
        return x
    before, after = x.shape[:dim], x.shape[dim + 1 :]
    wide = reshape(x, (*before, n, 1, *after))
    wide = bind("pad_zeros", wide, dims=((dim + 1, (0, between - 1)),))
    flat = reshape(wide, (*before, n * between, *after))
    return bind("pad_zeros", flat, dims=((dim, (0, 1 - between)),))


def _turned(
    x: Any, w: Any, terms: Terms, ways: Sequence[Way], spans: Sequence[Span], dtype: Any
) -> Any:
    """Return a convolution of what has zeros in between, as the transpose of one without them."""
    names = [term.split() for term in terms]
    back = tuple([(names[1].index(f"k{i}"), ()) for i in range(len(ways))])
    own = (lettered(terms[2], "t", "s"), terms[1], lettered(terms[0], "s", "t"))
    sizes = [x.shape[names[0].index(f"s{i}")] for i in range(len(ways))]
    full = [(n - 1) * v.between + s.reach for n, v, s in zip(sizes, ways, spans, strict=True)]
    found = bind(
        "convolve_back",
        x,
        bind("flip", w, dims=back),
        terms=own,
        steps=(tuple([v.between for v in ways]), tuple([v.dilation for v in ways])),
        sizes=tuple(full),
        dtype=dtype,
    )
    pads = []
    for i, (n, span) in enumerate(zip(full, spans, strict=True)):
        low = span.low - (span.reach - 1)
        high = span.count - n - low
        if low or high:
            pads.append((names[2].index(f"t{i}"), (low, high)))
    return padded(found, pads)


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
