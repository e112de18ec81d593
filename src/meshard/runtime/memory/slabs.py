"""Slabs: boxes cut into parts of limited size, in the same way at both ends of a message."""

from __future__ import annotations

from collections.abc import Iterator

from meshard.runtime.types import Block


def slabs(box: Block, most: int) -> Iterator[Block]:
    """Yield a box in slabs of at most ``most`` bytes, or of one element, in C order.

    It is cut along its first dims, by its shape alone.

    >>> import numpy as np
    >>> [slab.shape for slab in slabs(np.zeros((2, 3), np.int64), 16)]
    [(1, 2), (1, 1), (1, 2), (1, 1)]
    """
    if box.nbytes <= most or max(box.shape, default=1) == 1:
        yield box
        return
    dim = next(d for d, n in enumerate(box.shape) if n > 1)
    each = max(1, most * box.shape[dim] // box.nbytes)
    for first in range(0, box.shape[dim], each):
        slab = box[(slice(None),) * dim + (slice(first, first + each),)]
        if each == 1:
            yield from slabs(slab, most)
        else:
            yield slab
