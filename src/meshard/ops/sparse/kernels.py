"""Products of one block of rows, by SciPy.

In: the values, the columns among those that the block needs, and where rows begin, as SciPy's CSR
format has them; and dense blocks. Out: dense blocks. A row is added up from left to right whatever
the devices, so that products have the bits of SciPy's on one array.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshard.errors import DtypeError
from meshard.runtime.types import Block


def check_dtype(dtype: np.dtype[Any], what: str) -> None:
    """Refuse dtypes that SciPy has no sparse products of.

    Raises:
        DtypeError: if it is none of bool, integers of NumPy, float32 and longer floats.
    """
    if dtype.kind in "biu" and dtype.char in "?bBhHiIlLqQ":
        return
    if dtype.char in "fdgFDG":
        return
    raise DtypeError(
        f"{what}: SciPy has no sparse products of {dtype}; use float32 or float64, complex64 or "
        "complex128, bool, or integers."
    )


def csr(values: Block, columns: Block, starts: Block, width: int) -> Any:
    """Return a block of rows as SciPy's sparse array, without copying."""
    from scipy.sparse import csr_array

    shape = (len(starts) - 1, width)
    return csr_array((values, columns, starts), shape=shape, copy=False)


def times(values: Block, columns: Block, starts: Block, x: Block) -> Block:
    """Return the product of a block of rows and the entries that it needs."""
    found: Block = csr(values, columns, starts, len(x)) @ np.ascontiguousarray(x)
    return found


def transposed_times(values: Block, columns: Block, starts: Block, y: Block, width: int) -> Block:
    """Return what a block of rows adds to each entry that it has a column for."""
    found: Block = csr(values, columns, starts, width).T @ np.ascontiguousarray(y)
    return found


def sampled(columns: Block, starts: Block, y: Block, x: Block) -> Block:
    """Return for each value that is stored the product of its row of y and its column of x.

    Of matrices the products of all columns are added up.
    """
    rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    if x.ndim == 1:
        found: Block = y[rows] * x[columns]
        return found
    total: Block = np.zeros(len(columns), x.dtype)
    for k in range(x.shape[1]):
        total += y[rows, k] * x[columns, k]
    return total
