"""Blocks shown to the outside: views of the same memory that nobody can make writeable.

In: a block. Out: a NumPy array. A read-only view of an array can be made writeable again, since
its base is; a view of a read-only buffer cannot.
"""

from __future__ import annotations

import numpy as np

from .types import Block

__all__ = ["exported"]

_SAME_SIZE = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def exported(block: Block) -> Block:
    """Return a view of a block that is read-only for good."""
    dtype = block.dtype
    if dtype.isbuiltin == 1:
        # A buffer of a view, not of the block: references to that are counted for its reuse.
        return np.asarray(block.view().data.toreadonly())
    # Buffers have no names for bfloat16 and its kind.
    return exported(block.view(_SAME_SIZE[dtype.itemsize])).view(dtype)
