"""Rows of windows: convolutions and their transposes, extremes and sums of windows, tiles.

A convolution is linear in each of two operands, and so is its transpose. Of the two rows
``convolve`` and ``convolve_back`` all their derivatives are made, so that each is split as the
other is. Dims along which windows slide are whole in a cell; `tiles` gives each device one of its
own, with what it needs of its neighbours.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshard.algebra.dimmap import DimMap
from meshard.ops.dtypes.laws import operand_dtype, same_dtype
from meshard.ops.dtypes.promotion import SMALL_FLOATS, cast, promoted
from meshard.ops.row import Dtype, MoveOp, Op, Operand, Params, Partial, RuleText, register
from meshard.ops.windows.kernels import Terms, convolved, convolved_back
from meshard.runtime.types import Block

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
