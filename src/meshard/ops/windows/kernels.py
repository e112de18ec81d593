"""Convolutions of blocks as products of matrices, and their transposes.

In: blocks, what their dims are, steps. Out: the sums of products over windows,
``y[t] = sum_k x[t * stride + k * dilation] * w[k]``, or what their transpose adds up in x. Windows
are copied side by side a few examples at a time, so that the copies stay in the cache.

Rows of windows: convolutions and their transposes, extremes and sums of windows, tiles.

A convolution is linear in each of two operands, and so is its transpose. Of the two rows
``convolve`` and ``convolve_back`` all their derivatives are made, so that each is split as the
other is. Dims along which windows slide are whole in a cell; `tiles` gives each device one of its
own, with what it needs of its neighbours.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import numpy as np

from meshard.algebra.dimmap import DimMap
from meshard.ops.dtypes.laws import SMALL_FLOATS, cast, operand_dtype, promoted, same_dtype
from meshard.ops.row import Dtype, MoveOp, Op, Operand, Params, Partial, RuleText, register
from meshard.runtime.types import Block
from meshard.tuning import WINDOWS_BYTES

Terms = tuple[str, str, str]
"""The dims of what windows slide along, of what is multiplied with them, and of the sums."""


@final
@dataclass(frozen=True, slots=True)
class Roles:
    """The dims of a convolution, by what becomes of them.

    Attributes:
        both: dims that all three have.
        rows: dims of x and y.
        columns: dims of w and y.
        inner: dims of x and w, which are summed over.
        count: the number of dims that windows slide along.
        x: the dims of x in the order both, rows, inner, windows.
        w: the dims of w in the order both, columns, inner, windows.
        y: the dims of y in the order both, rows, columns, windows.
    """

    both: int
    rows: int
    columns: int
    inner: int
    count: int
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]


@lru_cache(maxsize=1024)
def roles_of(terms: Terms) -> Roles:
    """Return what the dims that terms name are for; those along windows are s0, k0 and t0 on."""
    x, w, y = (term.split() for term in terms)
    count = sum(f[0] == "s" for f in x)
    both = [f for f in x if f in w and f in y]
    rows, columns, inner = _common(x, y, w), _common(w, y, x), _common(x, w, y)
    s, k, t = ([f"{letter}{i}" for i in range(count)] for letter in "skt")
    return Roles(
        len(both),
        len(rows),
        len(columns),
        len(inner),
        count,
        tuple(map(x.index, (*both, *rows, *inner, *s))),
        tuple(map(w.index, (*both, *columns, *inner, *k))),
        tuple(map(y.index, (*both, *rows, *columns, *t))),
    )


def _common(first: Sequence[str], second: Sequence[str], other: Sequence[str]) -> list[str]:
    """Return what two have and a third has not, as it is in the first."""
    return [f for f in first if f in second and f not in other]


def _is_last(terms: Terms) -> bool:
    """Whether what is not along windows comes last in x."""
    return terms[0].split()[-1] not in {f"s{i}" for i in range(len(terms[0]))}


def lettered(term: str, old: str, new: str) -> str:
    """Return a term whose dims along windows have another letter."""
    named = {f"{old}{i}": f"{new}{i}" for i in range(len(term.split()))}
    return " ".join([named.get(f, f) for f in term.split()])


def _unordered(x: Block, order: Sequence[int]) -> Block:
    """Return a block whose dim ``order[i]`` is dim i of another one."""
    return x.transpose(np.argsort(order))


def _windows(x: Block, sizes: Sequence[int], counts: Sequence[int], steps: Any) -> Block:
    """Return a view with two dims for each of the last ones: all of k, then all of t."""
    strides, dilations = steps
    own = x.strides[x.ndim - len(sizes) :]
    inside = [step * d for step, d in zip(own, dilations, strict=True)]
    outside = [step * s for step, s in zip(own, strides, strict=True)]
    lead = x.ndim - len(sizes)
    if not math.prod(x.shape):  # then no address may be computed
        return np.empty((*x.shape[:lead], *sizes, *counts), x.dtype)
    return np.lib.stride_tricks.as_strided(
        x,
        (*x.shape[:lead], *sizes, *counts),
        (*x.strides[:lead], *inside, *outside),
        writeable=False,
    )


def _merged(x: Block, roles: Sequence[int]) -> Block:
    """Return a block with neighbouring dims merged, as many as each number says."""
    ends = [0, *itertools.accumulate(roles)]
    groups = [math.prod(x.shape[a:b]) for a, b in itertools.pairwise(ends)]
    return x.reshape((*groups, *x.shape[ends[-1] :]))


def _parts(rows: int, each: int) -> Iterator[slice]:
    """Return slices of rows that take a bounded number of bytes."""
    step = max(WINDOWS_BYTES // max(each, 1), 1)
    return (slice(i, min(i + step, rows)) for i in range(0, rows, step))


@final
class _Buffer:
    """Memory for one block after another."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def of(self, shape: Sequence[int], dtype: Any) -> Block:
        """Return a block without values, in place of the last one."""
        size = math.prod(shape) * dtype.itemsize
        if self._bytes.nbytes < size:
            self._bytes = np.empty(size, np.uint8)
        found: Block = self._bytes[:size].view(dtype).reshape(shape)
        return found


@final
class _Copies:
    """Windows of one part after another, in memory that is asked for once."""

    def __init__(self) -> None:
        self._buffer = _Buffer()

    def of(self, windows: Block) -> Block:
        """Return windows side by side; also of one element, so that sums have one order."""
        found = self._buffer.of(windows.shape, windows.dtype)
        np.copyto(found, windows)
        return found


@final
class _Shapes:
    """The merged dims of one convolution.

    Attributes:
        g: the size of what all have.
        n: that of rows.
        o: that of columns.
        c: that of what is summed over.
        k: the sizes of windows.
        t: their numbers.
    """

    def __init__(self, roles: Roles, x: Block, w: Block, counts: Sequence[int]) -> None:
        at = roles.both
        self.g = math.prod(x.shape[:at])
        self.n = math.prod(x.shape[at : at + roles.rows])
        self.c = math.prod(x.shape[at + roles.rows : x.ndim - roles.count])
        self.o = math.prod(w.shape[at : at + roles.columns])
        self.k, self.t = w.shape[w.ndim - roles.count :], tuple(counts)


def convolved(x: Block, w: Block, terms: Terms, steps: Any, counts: Sequence[int]) -> Block:
    """Return sums of products over windows; arguments as the row ``convolve`` has them.

    Args:
        x: what windows slide along.
        w: what they are multiplied with.
        terms: the names of the dims of x, w and the result.
        steps: the strides of windows, and the dilations in them.
        counts: how many windows there are along each dim.
    """
    roles = roles_of(terms)
    x, w = x.transpose(roles.x), w.transpose(roles.w)
    r = roles
    groups, rows = x.shape[: r.both], x.shape[r.both : r.both + r.rows]
    columns = w.shape[r.both : r.both + r.columns]
    of, last = _Shapes(roles, x, w, counts), _is_last(terms)
    x = _merged(x, (r.both, r.rows, r.inner))
    w = _merged(w, (r.both, r.columns, r.inner))
    if not of.c * math.prod(of.k):
        found = np.zeros((of.g, of.n, of.o, *of.t), x.dtype)
    elif math.prod(of.t) < math.prod(of.k):
        alone = of.n == of.o == 1
        found = (_window_by_window if alone else _few_windows)(x, w, steps, of)
    elif of.c == of.o == 1:
        found = (_rows_by_taps if last else _by_taps)(x, w, steps, of)
    elif last:
        found = _rows_first(x, w, steps, of)
    else:
        found = _columns_first(x, w, steps, of)
    return _unordered(found.reshape((*groups, *rows, *columns, *of.t)), roles.y)


def taps(sizes: Sequence[int], counts: Sequence[int], steps: Any) -> Iterator[Any]:
    """Return for each position in a window itself, and where windows have it."""
    for k in np.ndindex(*sizes):
        yield (
            k,
            tuple(
                slice(i * d, i * d + (n - 1) * s + 1, s) if n else slice(0)
                for i, d, n, s in zip(k, steps[1], counts, steps[0], strict=True)
            ),
        )


def _by_taps(x: Block, w: Block, steps: Any, of: _Shapes) -> Block:
    """Multiply shifted copies by one number each, for each group."""
    found = np.zeros((of.g, of.n, *of.t), x.dtype)
    if not found.size:
        return found
    each = math.prod(of.t) * x.dtype.itemsize
    for g in range(of.g):
        for part in _parts(of.n, each):
            total, some = found[g, part], np.empty((part.stop - part.start, *of.t), x.dtype)
            for k, place in taps(of.k, of.t, steps):
                np.multiply(x[(g, part, 0, *place)], w[(g, 0, 0, *k)], out=some)
                total += some
    return found


def _rows_by_taps(x: Block, w: Block, steps: Any, of: _Shapes) -> Block:
    """Multiply shifted copies by one number for each group, where groups come last in x."""
    x, w = np.moveaxis(x[:, :, 0], 0, -1), np.moveaxis(w[:, 0, 0], 0, -1)
    found = np.zeros((of.n, *of.t, of.g), x.dtype)
    if found.size:
        for part in _parts(of.n, math.prod(of.t) * of.g * x.dtype.itemsize):
            total = found[part]
            some = np.empty_like(total)
            for k, place in taps(of.k, of.t, steps):
                np.multiply(x[(part, *place)], w[k], out=some)
                total += some
    return np.moveaxis(found, -1, 0)[:, :, None]


def _window_by_window(x: Block, w: Block, steps: Any, of: _Shapes) -> Block:
    """Multiply each window, of which there are few, with all that it meets."""
    found = np.zeros((of.g, 1, 1, *of.t), x.dtype)
    products = np.empty((of.g, of.c, *of.k), x.dtype)
    for t in np.ndindex(*of.t):
        inside: Any = tuple(
            [
                slice(i * s, i * s + (n - 1) * d + 1, d)
                for i, s, d, n in zip(t, *steps, of.k, strict=True)
            ]
        )
        np.multiply(x[:, 0][(..., *inside)], w[:, 0], out=products)
        found[:, 0, 0][(..., *t)] = products.reshape(of.g, -1).sum(1)
    return found


def _columns_first(x: Block, w: Block, steps: Any, of: _Shapes) -> Block:
    """Return products with windows in which t comes last, as in x."""
    inner, outer = of.c * math.prod(of.k), math.prod(of.t)
    found = np.empty((of.g, of.n, of.o, outer), x.dtype)
    view = _windows(x, of.k, of.t, steps)
    weights = np.ascontiguousarray(w).reshape(of.g, of.o, inner)
    copies = _Copies()
    for g in range(of.g):
        for part in _parts(of.n, inner * outer * x.dtype.itemsize):
            copied = copies.of(view[g, part]).reshape(-1, inner, outer)
            np.matmul(weights[g], copied, out=found[g, part])
    return found.reshape((of.g, of.n, of.o, *of.t))


def _rows_first(x: Block, w: Block, steps: Any, of: _Shapes) -> Block:
    """Return products with windows in which c comes last, as in x."""
    count = len(of.k)
    inner, outer = of.c * math.prod(of.k), math.prod(of.t)
    found = np.empty((of.g, of.n * outer, of.o), x.dtype)
    view = _windows(x, of.k, of.t, steps)
    kept, shifted = range(3, 3 + count), range(3 + count, 3 + 2 * count)
    view = view.transpose((0, 1, *shifted, *kept, 2))
    turned = w.transpose((0, *range(3, 3 + count), 2, 1))
    weights = np.ascontiguousarray(turned).reshape(of.g, inner, of.o)
    copies = _Copies()
    for g in range(of.g):
        for part in _parts(of.n, inner * outer * x.dtype.itemsize):
            copied = copies.of(view[g, part]).reshape(-1, inner)
            rows = slice(part.start * outer, part.stop * outer)
            np.matmul(copied, weights[g], out=found[g, rows])
    found = found.reshape((of.g, of.n, *of.t, of.o))
    return np.moveaxis(found, -1, 2)


def _few_windows(x: Block, w: Block, steps: Any, of: _Shapes) -> Block:
    """Return products of few long windows, added up over parts of what is summed over."""
    count = len(of.k)
    long, outer = math.prod(of.k), math.prod(of.t)
    view = _windows(x, of.k, of.t, steps)
    kept, shifted = range(3, 3 + count), range(3 + count, 3 + 2 * count)
    view = view.transpose((0, 2, 1, *shifted, *kept))  # g c n t k
    weights = np.ascontiguousarray(w)
    found = np.zeros((of.g, of.n * outer, of.o), x.dtype)
    copies = _Copies()
    for g in range(of.g):
        for part in _parts(of.c, of.n * long * outer * x.dtype.itemsize):
            for c in range(part.start, part.stop):
                copied = copies.of(view[g, c]).reshape(-1, long)
                found[g] += copied @ weights[g, :, c].reshape(of.o, long).T
    return np.moveaxis(found.reshape((of.g, of.n, *of.t, of.o)), -1, 2)


def convolved_back(y: Block, w: Block, terms: Terms, steps: Any, sizes: Sequence[int]) -> Block:
    """Return what the transpose of `convolved` makes of its result: sums where windows overlap.

    Args:
        y: what `convolved` returns.
        w: what windows are multiplied with.
        terms: the names of the dims of x, w and y.
        steps: the strides of windows, and the dilations in them.
        sizes: those of the dims of x along which windows slide.
    """
    if all(stride == 1 for stride in steps[0]) and y.size and w.size:
        return _turned(y, w, terms, steps, sizes)
    roles = roles_of(terms)
    y, w = y.transpose(roles.y), w.transpose(roles.w)
    count = roles.count
    groups, rows = y.shape[: roles.both], y.shape[roles.both : roles.both + roles.rows]
    inner = w.shape[roles.both + roles.columns : w.ndim - count]
    y = _merged(y, (roles.both, roles.rows, roles.columns))
    w = _merged(w, (roles.both, roles.columns, roles.inner))
    shape = (*y.shape[:2], w.shape[2], *sizes)
    if not (y.size and w.size and math.prod(sizes)):
        found = np.zeros(shape, y.dtype)
    elif _is_last(terms):
        found = _rows_back(y, w, steps, shape)
    else:
        found = _columns_back(y, w, steps, shape)
    return _unordered(found.reshape((*groups, *rows, *inner, *sizes)), roles.x)


def _turned(y: Block, w: Block, terms: Terms, steps: Any, sizes: Sequence[int]) -> Block:
    """Return a transpose without strides as a convolution of what has zeros around it."""
    x, second, third = terms
    names, letters = third.split(), second.split()
    around, turned = [(0, 0)] * y.ndim, [slice(None)] * w.ndim
    for i, n in enumerate(sizes):
        at, own = names.index(f"t{i}"), letters.index(f"k{i}")
        before = (w.shape[own] - 1) * steps[1][i]
        around[at] = (before, max(n - y.shape[at], 0))
        turned[own] = slice(None, None, -1)
    wide = np.pad(y, around)
    turned_terms = (lettered(third, "t", "s"), second, lettered(x, "s", "t"))
    return convolved(wide, w[tuple(turned)], turned_terms, steps, sizes)


def _columns_back(y: Block, w: Block, steps: Any, shape: tuple[int, ...]) -> Block:
    g, n, c = shape[:3]
    o, t, k = y.shape[2], y.shape[3:], w.shape[3:]
    found = np.zeros(shape, y.dtype)
    long, outer, count = math.prod(k), math.prod(t), len(t)
    turned = w.transpose((0, *range(3, 3 + count), 2, 1))
    weights = np.ascontiguousarray(turned).reshape(g, long * c, o)
    copies, products = _Copies(), _Buffer()
    for i, part in itertools.product(range(g), _parts(n, c * long * outer * y.itemsize)):
        flat = copies.of(y[i, part]).reshape(-1, o, outer)
        made = products.of((flat.shape[0], long * c, outer), y.dtype)
        np.matmul(weights[i], flat, out=made)
        made = made.reshape((-1, *k, c, *t))
        for at, place in taps(k, t, steps):
            found[(i, part, slice(None), *place)] += made[(slice(None), *at)]
    return found


def _rows_back(y: Block, w: Block, steps: Any, shape: tuple[int, ...]) -> Block:
    g, n, c, *sizes = shape
    o, t, k = y.shape[2], y.shape[3:], w.shape[3:]
    found = np.zeros((g, n, *sizes, c), y.dtype)
    long, outer, count = math.prod(k), math.prod(t), len(t)
    turned = w.transpose((0, *range(3, 3 + count), 2, 1))  # g k c o
    weights = np.ascontiguousarray(turned).reshape(g, long, c, o)
    copies, products = _Copies(), _Buffer()
    for i, part in itertools.product(range(g), _parts(n, c * outer * y.itemsize)):
        flat = copies.of(np.moveaxis(y[i, part], 1, -1)).reshape(-1, o)
        made = products.of((flat.shape[0], c), y.dtype)
        for number, (_, place) in enumerate(taps(k, t, steps)):
            np.matmul(flat, weights[i, number].T, out=made)
            found[(i, part, *place)] += made.reshape((-1, *t, c))
    return np.moveaxis(found, -1, 2)


# convolutions


def _inputs(*terms: str) -> str:
    """Return terms of operands, whose dims along windows are whole."""
    return ", ".join(
        " ".join([f"!{f}" if f[0] in "skt" else f for f in term.split()]) for term in terms
    )


def _new_sizes(letter: str, params: Params) -> dict[str, int]:
    return {f"{letter}{i}": n for i, n in enumerate(params["sizes"])}


def _convolve_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    x, w, y = params["terms"]
    return f"{_inputs(x, w)} -> {y}", _new_sizes("t", params)


def _back_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    x, w, y = params["terms"]
    return f"{_inputs(y, w)} -> {x}", _new_sizes("s", params)


def _product_law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    if params["dtype"] is not None:
        return (params["dtype"],)
    return (promoted([operand_dtype(x) for x in operands]),)


def _wide(x: Block, dtype: Dtype) -> Block:
    return x if x.dtype == dtype else cast(x, dtype)


def _ways(given: Params) -> tuple[Terms, Any, tuple[int, ...]]:
    return given["terms"], given["steps"], given["sizes"]


def _convolve(x: Block, w: Block, *, accumulator: Dtype, **given: Any) -> Block:
    return convolved(_wide(x, accumulator), _wide(w, accumulator), *_ways(given))


def _convolve_back(y: Block, w: Block, *, accumulator: Dtype, **given: Any) -> Block:
    return convolved_back(_wide(y, accumulator), _wide(w, accumulator), *_ways(given))


for _name, _rule, _kernel in (
    ("convolve", _convolve_rule, _convolve),
    ("convolve_back", _back_rule, _convolve_back),
):
    _law = Partial(np.add, "wide")
    register(Op(_name, _rule, _kernel, dtypes=_product_law, partial=_law, style="blas"))


# reductions of windows


def _reduce_rule(operands: Sequence[Operand], params: Params) -> RuleText:
    rank, dims = len(operands[0][0]), {d: i for i, (d, *_) in enumerate(params["dims"])}
    given = [f"!s{dims[d]}" if d in dims else f"x{d}" for d in range(rank)]
    made = [f"t{dims[d]}" if d in dims else f"x{d}" for d in range(rank)]
    sizes = {f"t{i}": way[-1] for i, (_, *way) in enumerate(params["dims"])}
    return f"{' '.join(given)} -> {' '.join(made)}", sizes


_JOIN = {"max": np.maximum, "min": np.minimum, "add": np.add}


def _along(dim: int, at: slice) -> tuple[slice, ...]:
    return (*(slice(None),) * dim, at)


def _reduce_windows(x: Block, *, dims: tuple[tuple[int, ...], ...], how: str = "add") -> Block:
    """Reduce windows along one dim after another."""
    own, join = x.dtype, _JOIN[how]
    short = own == np.float16 or own in SMALL_FLOATS
    found = x.astype(np.float32) if short else x
    for dim, size, stride, dilation, count in dims:
        spans = [
            found[_along(dim, slice(k * dilation, k * dilation + (count - 1) * stride + 1, stride))]
            if count
            else found[_along(dim, slice(0, 0))]
            for k in range(size)
        ]
        total = spans[0].copy()
        for span in spans[1:]:
            join(total, span, out=total)
        found = total
    return found.astype(own, copy=False) if dims else found.copy()


def _first_law(operands: Sequence[Operand], params: Params) -> tuple[Dtype, ...]:
    return (np.dtype(np.int64),)


def _window_first(x: Block, *, dims: tuple[tuple[int, ...], ...], how: str) -> Block:
    """Return the place in each window, counted in C order, of the first extreme; NaN is one."""
    beyond = np.greater if how == "max" else np.less
    sizes = [way[1] for way in dims]
    best: Any = None
    first: Any = None
    for number, at in enumerate(itertools.product(*map(range, sizes))):
        index = [slice(None)] * x.ndim
        for k, (dim, _, stride, dilation, count) in zip(at, dims, strict=True):
            stop = k * dilation + (count - 1) * stride + 1 if count else 0
            index[dim] = slice(k * dilation if count else 0, stop, stride)
        part = x[tuple(index)]
        if best is None:
            best, first = part.copy(), np.zeros(part.shape, np.int64)
            continue
        new = beyond(part, best) | ((part != part) & (best == best))
        np.copyto(best, part, where=new)
        np.copyto(first, number, where=new)
    found: Block = first
    return found


register(Op("reduce_windows", _reduce_rule, _reduce_windows, dtypes=same_dtype))
register(Op("sum_windows", _reduce_rule, _reduce_windows, dtypes=same_dtype, sums=True))
register(Op("window_first", _reduce_rule, _window_first, dtypes=_first_law))


# tiles: what each device needs of a dim, one after another

Pieces = tuple[tuple[int, int, int], ...]
"""Runs, in rising order: where each begins in the result, how long it is, what it reads first."""


def map_of(source: int, size: int, pieces: Pieces) -> DimMap:
    """Return the map of a dim that runs are copied to; what none of them reaches is zero."""
    return DimMap(size, source, [(start, length, first, 1) for start, length, first in pieces])


def _runs_maps(shapes: Sequence[tuple[int, ...]], params: Params) -> list[tuple[DimMap, ...]]:
    arguments = {d: rest for d, *rest in params["dims"]}
    return [
        tuple(
            map_of(n, *arguments[d]) if d in arguments else DimMap.identity(n)
            for d, n in enumerate(shapes[0])
        )
    ]


def _laid_back_maps(shapes: Sequence[tuple[int, ...]], params: Params) -> list[tuple[DimMap, ...]]:
    arguments = dict(params["dims"])
    like, given = shapes
    none = tuple(DimMap(n, n, ()) for n in like)
    back = [
        map_of(m, n, arguments[d]) if d in arguments else DimMap.identity(n)
        for d, (n, m) in enumerate(zip(like, given, strict=True))
    ]
    return [none, tuple(back)]


register(MoveOp("runs", _runs_maps))
register(MoveOp("tile_runs", _runs_maps, even=True))
register(MoveOp("runs_like", _laid_back_maps, follow=True))
