"""Convolutions of blocks as products of matrices, and their transposes.

In: blocks, what their dims are, steps. Out: the sums of products over windows,
``y[t] = sum_k x[t * stride + k * dilation] * w[k]``, or what their transpose adds up in x. Windows
are copied side by side a few examples at a time, so that the copies stay in the cache.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import numpy as np

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
    rows = [f for f in x if f in y and f not in w]
    columns = [f for f in w if f in y and f not in x]
    inner = [f for f in x if f in w and f not in y]
    orders = []
    for term, own, letter in ((x, (rows, inner), "s"), (w, (columns, inner), "k")):
        names = [*both, *own[0], *own[1], *[f"{letter}{i}" for i in range(count)]]
        orders.append(tuple(map(term.index, names)))
    places = [*both, *rows, *columns, *[f"t{i}" for i in range(count)]]
    sizes = map(len, (both, rows, columns, inner))
    return Roles(*sizes, count, orders[0], orders[1], tuple(map(y.index, places)))


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
    of = _Shapes(roles, x, w, counts)
    x = _merged(x, (r.both, r.rows, r.inner))
    w = _merged(w, (r.both, r.columns, r.inner))
    if not of.c * math.prod(of.k):
        found = np.zeros((of.g, of.n, of.o, *of.t), x.dtype)
    elif of.c == of.o == 1:
        found = _by_taps(x, w, steps, of)
    elif math.prod(of.t) < math.prod(of.k):
        found = _few_windows(x, w, steps, of)
    elif terms[0].split()[-1][0] != "s":
        found = _rows_first(x, w, steps, of)
    else:
        found = _columns_first(x, w, steps, of)
    return _unordered(found.reshape((*groups, *rows, *columns, *of.t)), roles.y)


def _taps(sizes: Sequence[int], counts: Sequence[int], steps: Any) -> Iterator[Any]:
    """Return for each position in a window itself, and where windows have it."""
    for k in np.ndindex(*sizes):
        yield (
            k,
            tuple(
                slice(i * d, i * d + (n - 1) * s + 1, s)
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
            for k, place in _taps(of.k, of.t, steps):
                np.multiply(x[(g, part, 0, *place)], w[(g, 0, 0, *k)], out=some)
                total += some
    return found


def _columns_first(x: Block, w: Block, steps: Any, of: _Shapes) -> Block:
    """Return products with windows in which t comes last, as in x."""
    inner, outer = of.c * math.prod(of.k), math.prod(of.t)
    found = np.empty((of.g, of.n, of.o, outer), x.dtype)
    view = _windows(x, of.k, of.t, steps)
    weights = np.ascontiguousarray(w).reshape(of.g, of.o, inner)
    for g in range(of.g):
        for part in _parts(of.n, inner * outer * x.dtype.itemsize):
            # A copy, even of windows of one element: the order of sums shall not depend on memory.
            copied = np.array(view[g, part], order="C").reshape(-1, inner, outer)
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
    for g in range(of.g):
        for part in _parts(of.n, inner * outer * x.dtype.itemsize):
            copied = np.array(view[g, part], order="C").reshape(-1, inner)
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
    for g in range(of.g):
        for part in _parts(of.c, of.n * long * outer * x.dtype.itemsize):
            for c in range(part.start, part.stop):
                copied = np.array(view[g, c], order="C").reshape(-1, long)
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
    roles = roles_of(terms)
    y, w = y.transpose(roles.y), w.transpose(roles.w)
    count = roles.count
    groups, rows = y.shape[: roles.both], y.shape[roles.both : roles.both + roles.rows]
    inner = w.shape[roles.both + roles.columns : w.ndim - count]
    k, t = w.shape[w.ndim - count :], y.shape[y.ndim - count :]
    y = _merged(y, (roles.both, roles.rows, roles.columns))
    w = _merged(w, (roles.both, roles.columns, roles.inner))
    g, n, o = y.shape[:3]
    c, long, outer = w.shape[2], math.prod(k), math.prod(t)
    last = terms[0].split()[-1][0] != "s"
    found = np.zeros((g, n, *sizes, c) if last else (g, n, c, *sizes), y.dtype)
    if not found.size or not y.size or not w.size:
        pass
    elif last:
        turned = w.transpose((0, 1, *range(3, 3 + count), 2))
        weights = np.ascontiguousarray(turned).reshape(g, o, long * c)
        for i, part in itertools.product(range(g), _parts(n, c * long * outer * y.itemsize)):
            flat = np.array(np.moveaxis(y[i, part], 1, -1), order="C").reshape(-1, o)
            made = (flat @ weights[i]).reshape((part.stop - part.start, *t, *k, c))
            for at, place in _taps(k, t, steps):
                head = (slice(None),) * (1 + count)
                found[(i, part, *place)] += made[(*head, *at)]
    else:
        turned = w.transpose((0, *range(3, 3 + count), 2, 1))
        weights = np.ascontiguousarray(turned).reshape(g, long * c, o)
        for i, part in itertools.product(range(g), _parts(n, c * long * outer * y.itemsize)):
            flat = np.array(y[i, part], order="C").reshape(-1, o, outer)
            made = np.matmul(weights[i], flat).reshape((-1, *k, c, *t))
            for at, place in _taps(k, t, steps):
                found[(i, part, slice(None), *place)] += made[(slice(None), *at)]
    found = np.moveaxis(found, -1, 2) if last else found
    return _unordered(found.reshape((*groups, *rows, *inner, *sizes)), roles.x)
