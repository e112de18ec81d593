"""Positions of extremes along a short last dim, column by column.

In: a block. Out: what `numpy.argmin` and `numpy.argmax` give. NumPy looks at one row at a time,
which costs more than the row where rows are short; here each operation sees a whole column.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshard.runtime.types import Block
from meshard.tuning import ARGMAX_COLUMNS, ARGMAX_ELEMENTS, ARGMAX_ROWS


def argmin(x: Block, axis: int | None = None, keepdims: bool = False) -> Any:
    """Return the position of the first least element, or of the first NaN."""
    return _position(np.argmin, np.less, np.minimum, x, axis, keepdims)


def argmax(x: Block, axis: int | None = None, keepdims: bool = False) -> Any:
    """Return the position of the first greatest element, or of the first NaN."""
    return _position(np.argmax, np.greater, np.maximum, x, axis, keepdims)


def _position(
    find: Callable[..., Any],
    better: np.ufunc,
    best_of: np.ufunc,
    x: Block,
    axis: int | None,
    keepdims: bool,
) -> Any:
    if (
        axis is None
        or axis % max(x.ndim, 1) != x.ndim - 1
        or x.ndim < 2
        or not 2 <= x.shape[-1] <= ARGMAX_COLUMNS
        or x.size < ARGMAX_ELEMENTS
        or x.dtype.char not in "fdbhilqBHILQ"
    ):
        return find(x, axis=axis, keepdims=keepdims)
    rows = x.reshape(-1, x.shape[-1])
    found = np.empty(len(rows), np.int64)
    for start in range(0, len(rows), ARGMAX_ROWS):
        part = rows[start : start + ARGMAX_ROWS]
        columns = np.ascontiguousarray(part.T)
        best = columns[0].copy()
        place = np.zeros(len(part), np.int8)
        for number in range(1, len(columns)):
            # A later position is the larger number, so that the last improvement wins.
            mark = better(columns[number], best).view(np.int8)
            np.maximum(place, mark * np.int8(number), out=place)
            best_of(best, columns[number], out=best)
        if best.dtype.kind == "f" and np.isnan(best).any():
            found[start : start + ARGMAX_ROWS] = find(part, axis=1)
        else:
            found[start : start + ARGMAX_ROWS] = place
    return found.reshape(*x.shape[:-1], 1) if keepdims else found.reshape(x.shape[:-1])
