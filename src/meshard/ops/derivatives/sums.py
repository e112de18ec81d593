"""Derivatives of products, sums, extremes and transforms.

Derivatives of products of sparse matrices: each is linear in the values, and in the vector.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshard.ops.array.shape import broadcast_to, reshape
from meshard.ops.array.take import take_along_axis
from meshard.ops.derivatives.elementwise import o
from meshard.ops.derivatives.kinds import (
    FLAT,
    Derivative,
    Linear,
    Pulls,
    Site,
    Tangents,
    Values,
    dtype_of,
    times,
    total,
)
from meshard.ops.reductions.scan import cummax, cumsum
from meshard.ops.reductions.select import behind
from meshard.ops.reductions.sort import argsort


def _contract(site: Site, number: int, g: Values) -> Any:
    """Return the product with the terms of the rule permuted."""
    terms, out = site.params["rule"].split("->")
    own, other = terms.split(",")[:: -1 if number else 1]
    rule = f"{out.strip()}, {other.strip()} -> {own.strip()}"
    x = site.operands[number]
    return o.contract(g[0], site.operands[1 - number], rule=rule, dtype=None) if x.shape else g[0]


def _kept(site: Site) -> tuple[int, ...]:
    """Return the shape of a reduction's result with the reduced dims of size one."""
    axes = site.params["axis"]
    return tuple([1 if d in axes else n for d, n in enumerate(site.x.shape)])


def _spread(site: Site, g: Any) -> Any:
    """Return a reduced value for each element that was reduced."""
    return broadcast_to(reshape(g, _kept(site)), site.x.shape)


def _sum(site: Site, number: int, g: Values) -> Any:
    return _spread(site, g[0])


def _total(site: Site, x: Any) -> Any:
    """Return a sum over the dims that were reduced."""
    axis, keepdims = site.params["axis"], site.params["keepdims"]
    return o.sum(x, axis=axis, keepdims=keepdims, dtype=None)


def _chosen(site: Site) -> Any:
    """Return the share of each element in an extreme: those that are equal share it."""
    here = o.astype(o.equal(site.x, _spread(site, site.y)), dtype=dtype_of(site.x))
    return o.divide(here, _spread(site, _total(site, here)))


def _others(site: Site) -> Any:
    """Return the product of all other elements, for each.

    That of those that are not zero, times the other zeros, of which each has a derivative.
    """
    zero = o.equal(site.x, 0)
    rest = o.where(zero, 1, site.x)
    zeros = _spread(site, _total(site, o.astype(zero, dtype=np.dtype(np.int64))))
    axis, keepdims = site.params["axis"], site.params["keepdims"]
    whole = o.prod(rest, axis=axis, keepdims=keepdims, dtype=site.params.get("dtype"))
    whole, own = _spread(site, whole), o.where(zero, site.x, 0)
    others = o.subtract(_spread(site, _total(site, own)), own)
    left = o.subtract(zeros, o.astype(zero, dtype=np.dtype(np.int64)))
    factor = o.where(o.equal(left, 0), 1, o.where(o.equal(left, 1), others, 0))
    return o.multiply(o.divide(whole, rest), factor)


def _weighted(weights: Any) -> Derivative:
    """Return the derivative of a reduction to which each element contributes by a weight."""
    return Pulls(
        lambda site, t: [_total(site, times(t[0], weights(site)))],
        lambda site, g, wanted: [times(_spread(site, g[0]), weights(site))],
    )


def _cross(site: Site, number: int, g: Values) -> Any:
    x, y = site.operands
    return o.cross(g[0], x) if number else o.cross(y, g[0])


_SWAPPED = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


def _fitted(x: Any, dim: int, size: int) -> Any:
    """Return a value cut, or filled with zeros, to a size."""
    return o.pad_zeros(x, dims=((dim, (0, size - x.shape[dim])),))


def _fft(site: Site, number: int, g: Values) -> Any:
    how, dim, n, norm = (site.params[k] for k in ("how", "dim", "n", "norm"))
    size = site.x.shape[dim]
    (g,) = g
    if how in ("fft", "ifft"):
        return _fitted(o.fft(g, how=how, dim=dim, n=n, norm=norm), dim, size)
    if how == "rfft":
        return _fitted(o.real(o.fft(g, how="fft", dim=dim, n=n, norm=norm)), dim, size)
    half = n // 2 + 1
    found = o.conjugate(o.fft(g, how="rfft", dim=dim, n=n, norm=_SWAPPED[norm]))
    twice = np.full(half, 2.0)
    twice[0] = 1
    if n % 2 == 0:
        twice[-1] = 1
    shape = [half if d == dim else 1 for d in range(site.x.ndim)]
    weights = twice.reshape(shape).astype(site.y.dtype)
    return _fitted(times(found, weights), dim, size)


def _sorted(site: Site, t: Values) -> list[Any]:
    """Return tangents in the order of the first operand; others are sorted along with it."""
    dim = site.params.get("dim", 0)
    order = argsort(site.x, dim, descending=site.params["descending"])
    return [None if x is None else take_along_axis(x, order, dim) for x in t]


def _selected(site: Site, t: Values) -> list[Any]:
    """Return the tangents of elements of given ranks, which are params or the second operand."""
    if t[0] is None:
        return [None]
    axis = site.params["axis"]
    order = argsort(behind(site.x, axis), -1)
    if len(site.operands) > 1:
        at = take_along_axis(order, site.operands[1], -1)
    else:
        at = order[..., np.asarray(site.params["kth"])]
    return [take_along_axis(behind(t[0], axis), at, -1)]


def _top(site: Site, t: Values) -> list[Any]:
    return [take_along_axis(t[0], site.results[1], site.params.get("dim", -1)), None]


def _interp(site: Site, t: Values) -> list[Any]:
    """Return the tangent of straight lines between points."""
    x, xp, fp = site.operands
    last = xp.shape[0] - 1
    at = o.clip(o.searchsorted(xp, x, side="right"), 1, last)
    before = o.subtract(at, 1)

    def both(values: Any) -> tuple[Any, Any]:
        return values[before], values[at]

    (x0, x1), (y0, y1) = both(xp), both(fp)
    width = o.subtract(x1, x0)
    safe = o.where(o.equal(width, 0), 1, width)
    part, slope = o.divide(o.subtract(x, x0), safe), o.divide(o.subtract(y1, y0), safe)
    outside = o.logical_or(o.less(x, xp[0]), o.greater(x, xp[last]))
    parts = []
    if t[0] is not None:
        parts.append(o.where(outside, 0, times(t[0], slope)))
    if t[1] is not None:
        a, b = both(t[1])
        moved = o.add(times(a, o.subtract(1, part)), times(b, part))
        parts.append(o.where(outside, 0, o.negative(times(moved, slope))))
    if t[2] is not None:
        a, b = both(t[2])
        inner = o.add(times(a, o.subtract(1, part)), times(b, part))
        left = t[2][0] if site.params["left"] is None else 0
        right = t[2][last] if site.params["right"] is None else 0
        ends = o.where(o.less(x, xp[0]), left, o.where(o.greater(x, xp[last]), right, inner))
        parts.append(ends)
    return [total(parts)]


def _flipped(x: Any, dim: int) -> Any:
    return o.flip(x, dims=((dim, ()),))


def _partitioned(site: Site, t: Values) -> list[Any]:
    """Return tangents in the order of a result in which equal elements are in any order."""
    dim = site.params["dim"]
    ordered = take_along_axis(t[0], argsort(site.x, dim), dim)
    return [take_along_axis(ordered, argsort(argsort(site.y, dim), dim), dim)]


def _cumprod(site: Site, t: Values) -> list[Any]:
    """Return the sum over all factors so far of the product of the others."""
    dim = site.params["dim"]
    zero = o.equal(site.x, 0)
    rest = o.where(zero, 1, site.x)
    (product,) = site.again(rest)
    zeros = cumsum(o.astype(zero, dtype=np.dtype(np.int64)), axis=dim)
    # Of the zeros so far all but one are factors: they have derivatives, though they are zero.
    shares = cumsum(o.where(zero, 0, o.divide(t[0], rest)), axis=dim)
    x, change = o.where(zero, site.x, 0), o.where(zero, t[0], 0)
    sum_x, sum_t = cumsum(x, axis=dim), cumsum(change, axis=dim)
    one = o.add(sum_t, o.multiply(sum_x, shares))
    two = o.subtract(o.multiply(sum_x, sum_t), cumsum(o.multiply(x, change), axis=dim))
    factor = o.where(o.equal(zeros, 1), one, o.where(o.equal(zeros, 2), two, 0))
    return [o.multiply(product, o.where(o.equal(zeros, 0), shares, factor))]


def _cumextreme(site: Site, t: Values) -> list[Any]:
    """Return the tangent of the last element that became the extreme."""
    dim = site.params["dim"]
    shape = [site.x.shape[dim] if d == dim else 1 for d in range(site.x.ndim)]
    steps = np.arange(site.x.shape[dim]).reshape(shape)
    new = o.where(o.equal(site.x, site.y), steps, 0)
    return [take_along_axis(t[0], cummax(new, axis=dim), dim)]


def _cumlogsumexp(site: Site, t: Values) -> list[Any]:
    dim = site.params["dim"]
    most = o.max(site.x, axis=(dim,), keepdims=True)
    most = o.where(o.isfinite(most), most, 0)
    terms = o.multiply(t[0], o.exp(o.subtract(site.x, most)))
    return [o.multiply(cumsum(terms, axis=dim), o.exp(o.subtract(most, site.y)))]


def _cumsum(site: Site, number: int, g: Values) -> Any:
    dim = site.params["dim"]
    (found,) = site.again(_flipped(g[0], dim))
    return _flipped(found, dim)


def _correlate(site: Site, number: int, g: Values) -> Any:
    """Return the cotangent of a row of windows, or of what slides along it."""
    x, v = site.operands
    if number:
        return o.correlate(x, g[0])
    beyond = v.shape[-1] - 1
    last = g[0].ndim - 1
    wide = o.pad_zeros(g[0], dims=((last, (beyond, beyond)),)) if beyond else g[0]
    return o.correlate(wide, o.flip(v, dims=((v.ndim - 1, ()),)))


SUMS: dict[str, Derivative] = {
    "correlate": Linear(_correlate, together=False),
    "contract": Linear(_contract, together=False),
    "sum": Linear(_sum),
    "prod": _weighted(_others),
    "max": _weighted(_chosen),
    "min": _weighted(_chosen),
    "nanmax": _weighted(_chosen),
    "nanmin": _weighted(_chosen),
    "cross": Linear(_cross, together=False),
    "fft": Linear(_fft),
    "sort": Tangents(_sorted),
    "select": Tangents(_selected),
    "select_at": Tangents(_selected),
    "top_k": Tangents(_top),
    "partition": Tangents(_partitioned),
    "interp": Tangents(_interp),
}
"""The derivative of each row that sums, compares or transforms."""
LATE_SUMS: dict[str, Derivative] = {
    "sort": Tangents(_sorted),
    "select": Tangents(_selected),
    "select_at": Tangents(_selected),
    "top_k": Tangents(_top),
    "cumsum": Linear(_cumsum),
    "cumulative_sum": Linear(_cumsum),
    "cumprod": Tangents(_cumprod),
    "cumulative_prod": Tangents(_cumprod),
    "cummax": Tangents(_cumextreme),
    "cummin": Tangents(_cumextreme),
    "cumlogsumexp": Tangents(_cumlogsumexp),
    "partition": Tangents(_partitioned),
    "argsort": FLAT,
    "argpartition": FLAT,
    "full_like": FLAT,
}
"""The derivatives of sums, sorts and the like that are put off until layouts are known."""


def _times(site: Site, number: int, g: Values) -> Any:
    *where, values, x = site.operands
    if number == len(where):
        return o.sparse_sampled(*where, g[0], x, **site.params)
    return o.sparse_times_transposed(*where, values, g[0], **site.params)


def _transposed(site: Site, number: int, g: Values) -> Any:
    *where, values, y = site.operands
    if number == len(where):
        return o.sparse_sampled(*where, y, g[0], **site.params)
    return o.sparse_times(*where, values, g[0], **site.params)


def _sampled(site: Site, number: int, g: Values) -> Any:
    *where, y, x = site.operands
    if number == len(where):
        return o.sparse_times(*where, g[0], x, **site.params)
    return o.sparse_times_transposed(*where, g[0], y, **site.params)


SPARSE: dict[str, Derivative] = {
    "sparse_times": Linear(_times, of=(4, 5), together=False),
    "sparse_times_transposed": Linear(_transposed, of=(4, 5), together=False),
    "sparse_sampled": Linear(_sampled, of=(4, 5), together=False),
}
"""The derivative of each row."""
