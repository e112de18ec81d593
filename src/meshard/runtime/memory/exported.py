"""Blocks shown to the outside: views of the same memory that cannot be made writeable.

In: a block. Out: a NumPy array. A read-only view of an array can be made writeable again, since
its base is; a view of a read-only buffer cannot.
"""

from __future__ import annotations

import numpy as np

from meshard.runtime.types import Block

# What `dtype.isbuiltin` is for bfloat16 and its kind, for which buffers have no name. It is 1 only
# for NumPy's own instances: equal dtypes that were unpickled, or come from SciPy, have 0.
_ADDED = 2
_STAND_INS = {1: np.uint8, 2: np.uint16}


def exported(block: Block) -> Block:
    """Return a view of a block that is read-only for good."""
    dtype = block.dtype
    if dtype.isbuiltin != _ADDED:
        # A buffer of a view, not of the block, whose references are counted for its reuse.
        return np.asarray(block.view().data.toreadonly())
    return exported(block.view(_STAND_INS[dtype.itemsize])).view(dtype)
