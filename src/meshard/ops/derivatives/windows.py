"""Derivatives of windows and groups: of products each other, of moves what is moved back."""

from __future__ import annotations

import itertools
from typing import Any

from meshard.ops.array.create import ones
from meshard.ops.array.shape import matrix_transpose
from meshard.ops.derivatives.elementwise import o
from meshard.ops.derivatives.kinds import Derivative, Linear, Site, Tangents, Values, dtype_of
from meshard.ops.windows.kernels import lettered
from meshard.ops.windows.tiles import runs_back
from meshard.ops.windows.windows import to_first, to_second


def _sizes(shape: Any, term: str, letter: str) -> tuple[int, ...]:
    return tuple([n for n, f in zip(shape, term.split(), strict=True) if f[0] == letter])


def _of_kernel(site: Site, x: Any, y: Any) -> Any:
    """Return what windows of x, times y, add up to for each position in a window.

    That is a convolution, too: y slides along x, with the strides as dilations.
    """
    first, second, made = site.params["terms"]
    terms = (first, lettered(made, "t", "k"), lettered(second, "k", "t"))
    sizes = _sizes(site.operands[1].shape, second, "k")
    steps = site.params["steps"][::-1]
    return o.convolve(x, y, terms=terms, steps=steps, sizes=sizes, dtype=None)


def _convolve(site: Site, number: int, g: Values) -> Any:
    x, w = site.operands
    if number:
        return _of_kernel(site, x, g[0])
    own = {k: site.params[k] for k in ("terms", "steps")}
    sizes = _sizes(x.shape, own["terms"][0], "s")
    return o.convolve_back(g[0], w, sizes=sizes, dtype=None, **own)


def _convolve_back(site: Site, number: int, g: Values) -> Any:
    y, w = site.operands
    if number:
        return _of_kernel(site, g[0], y)
    own = {k: site.params[k] for k in ("terms", "steps")}
    sizes = _sizes(y.shape, own["terms"][2], "t")
    return o.convolve(g[0], w, sizes=sizes, dtype=None, **own)


def _extreme(site: Site, t: Values) -> list[Any]:
    """Return the tangent of the first element that is the extreme."""
    dims = site.params["dims"]
    first = o.window_first(site.x, **site.params)
    found = None
    for number, at in enumerate(itertools.product(*[range(size) for _, size, *_ in dims])):
        index = [slice(None)] * t[0].ndim
        for k, (dim, _, stride, dilation, count) in zip(at, dims, strict=True):
            start = k * dilation if count else 0
            index[dim] = slice(start, start + (count - 1) * stride + 1 if count else 0, stride)
        part = t[0][tuple(index)]
        found = part if found is None else o.where(o.equal(first, number), part, found)
    return [found]


def _sum_windows(site: Site, number: int, g: Values) -> Any:
    dims = {d: (i, way) for i, (d, *way) in enumerate(site.params["dims"])}
    x = " ".join([f"s{dims[d][0]}" if d in dims else f"x{d}" for d in range(site.x.ndim)])
    y = x.replace("s", "t")
    w = " ".join([f"k{i}" for i in range(len(dims))])
    ways = [way for _, way in dims.values()]
    sizes, strides, dilations = (tuple([way[i] for way in ways]) for i in range(3))
    own = tuple([site.x.shape[d] for d in dims])
    kernel = ones(sizes, dtype_of(g[0]))
    steps = (strides, dilations)
    return o.convolve_back(g[0], kernel, terms=(x, w, y), steps=steps, sizes=own, dtype=None)


def _runs(site: Site, number: int, g: Values) -> Any:
    return runs_back(site.x, g[0], site.params["dims"])


def _runs_like(site: Site, number: int, g: Values) -> Any:
    given = site.operands[1]
    dims = tuple(
        [
            (d, given.shape[d], tuple([(a, n, b) for b, n, a in sorted(p, key=lambda q: q[2])]))
            for d, p in site.params["dims"]
        ]
    )
    return o.tile_runs(g[0], dims=dims)


def _ragged_dot(site: Site, number: int, g: Values) -> Any:
    x, w, sizes = site.operands
    if number:
        return o.ragged_outer(x, g[0], sizes, dtype=None)
    return o.ragged_dot(g[0], matrix_transpose(w), sizes, dtype=None)


def _ragged_outer(site: Site, number: int, g: Values) -> Any:
    x, y, sizes = site.operands
    if number:
        return o.ragged_dot(x, g[0], sizes, dtype=None)
    return o.ragged_dot(y, matrix_transpose(g[0]), sizes, dtype=None)


def _tiled(site: Site, number: int, g: Values) -> Any:
    x, w = site.operands
    return (to_second if number else to_first)(x, w, g[0], site.params)


WINDOWS: dict[str, Derivative] = {
    "convolve": Linear(_convolve, together=False),
    "convolve_back": Linear(_convolve_back, together=False),
    "reduce_windows": Tangents(_extreme),
    "sum_windows": Linear(_sum_windows),
    "ragged_dot": Linear(_ragged_dot, of=(0, 1), together=False),
    "ragged_outer": Linear(_ragged_outer, of=(0, 1), together=False),
    "runs": Linear(_runs),
    "tile_runs": Linear(_runs),
    "runs_like": Linear(_runs_like, of=(1,)),
}
"""The derivative of each row of windows."""
WINDOWS_LATE: dict[str, Derivative] = {"conv": Linear(_tiled, together=False)}
"""The derivative of what is put off until layouts are known."""
