"""Elementwise kernels of several steps, run on a few elements at a time.

In: a kernel that makes temporaries. Out: one that also takes ``out=``, as ufuncs do, and fills that
in pieces, so that what the steps pass on stays in the cache, and no large temporary is made. And
copies of what is repeated, made of pieces that grow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from meshard.runtime.types import Block
from meshard.tuning import CACHE_PIECE, KERNEL_PIECE


def in_pieces(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel like a given one that may write its result to ``out``.

    Args:
        kernel: from blocks that broadcast, and parameters, to a block; elementwise.
    """

    @wraps(kernel)
    def in_pieces_of(*blocks: Any, out: Block | None = None, **params: Any) -> Any:
        if out is None:
            return kernel(*blocks, **params)
        if out.nbytes <= KERNEL_PIECE or not out.ndim:
            out[...] = kernel(*blocks, **params)
            return out
        whole, flat = out, list(blocks)
        if all(_is_straight(x, out.shape) for x in (out, *blocks)):
            whole = out.reshape(-1)
            flat = [x.reshape(-1) if np.ndim(x) else x for x in blocks]
        _fill(kernel, flat, whole, params)
        return out

    return in_pieces_of


def _is_straight(x: Any, shape: tuple[int, ...]) -> bool:
    return not np.ndim(x) or (x.shape == shape and x.flags.c_contiguous)


def _fill(
    kernel: Callable[..., Any], blocks: list[Any], out: Block, params: dict[str, Any]
) -> None:
    """Fill a block along its first dim."""
    n = len(out)
    step = max(1, KERNEL_PIECE * n // out.nbytes)
    along = [np.ndim(x) == out.ndim and x.shape[0] == n for x in blocks]
    for start in range(0, n, step):
        piece = slice(start, start + step)
        given = [x[piece] if cut else x for x, cut in zip(blocks, along, strict=True)]
        out[piece] = kernel(*given, **params)


_OFTEN = 16
"""Repetitions from which copying what was copied before is quicker than NumPy's own way."""


def repeated_copy(x: Block) -> Block:
    """Return a broadcast block as one with an element for each position; others unchanged.

    NumPy copies each repetition by itself, which takes long where they are short. Here as many are
    copied at once as have been made, up to what the cache holds.
    """
    repeated = [
        d for d, (n, s) in enumerate(zip(x.shape, x.strides, strict=True)) if n > 1 and not s
    ]
    if not repeated or x.shape[repeated[0]] < _OFTEN or not x.size:
        return x
    dim = repeated[0]
    outer = 1
    for n in x.shape[:dim]:
        outer *= n
    inner = x.nbytes // x.shape[dim] // outer
    if outer > _OFTEN or inner >= CACHE_PIECE:
        return x
    out = np.empty(x.shape, x.dtype)
    head = (slice(None),) * dim
    out[(*head, slice(0, 1))] = x[(*head, slice(0, 1))]
    done, most, n = 1, max(1, CACHE_PIECE // inner), x.shape[dim]
    while done < n:
        more = min(done, most, n - done)
        out[(*head, slice(done, done + more))] = out[(*head, slice(0, more))]
        done += more
    return out
