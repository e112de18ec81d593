"""`Memory`: the one way in which blocks are made, filled, and brought to and from the host.

In: shapes, and values of the host. Out: blocks. Kernels make their own small results; all blocks
that the runtime and the engine make come from the world's memory.

Blocks shown to the outside: views of the same memory that cannot be made writeable.

In: a block. Out: a NumPy array. A read-only view of an array can be made writeable again, since
its base is; a view of a read-only buffer cannot.

Slabs: boxes cut into parts of limited size, in the same way at both ends of a message.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from meshard.runtime.types import Block


class Memory(ABC):
    """The memory that the blocks of one world are in.

    A block is a NumPy array, or behaves like one: boxes of it are views that can be assigned to.
    """

    @abstractmethod
    def allocate(
        self, shape: Sequence[int], dtype: np.dtype[Any], *, filled_in: int | None = None
    ) -> Block:
        """Return an uninitialised C-ordered block.

        Args:
            shape: its shape.
            dtype: its dtype.
            filled_in: at how many places it is filled gradually while other memory is given back.
                If given, the memory is fresh, and counts only once it is written to.

        Raises:
            AllocationError: if the system has no memory for it.
        """

    @abstractmethod
    def reachable(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Block:
        """Return an uninitialised C-ordered block; neighbours can write into a large one."""

    @abstractmethod
    def zeros(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Block:
        """Return a C-ordered block of zeros, whose pages may be untouched."""

    @abstractmethod
    def copy(self, target: Block, origin: Block) -> None:
        """Fill a block, or a box of one, with another of this memory."""

    @abstractmethod
    def from_host(self, target: Block, value: Block) -> None:
        """Fill a block, or a box of one, with a NumPy array."""

    @abstractmethod
    def to_host(self, block: Block) -> Block:
        """Return a block as a NumPy array, which is the block itself where that is one."""

    @abstractmethod
    def trim(self, most: int = 0) -> None:
        """Give idle memory back to the system.

        Args:
            most: bytes of private memory that may stay.
        """

    @abstractmethod
    def close(self) -> None:
        """Give all idle memory back, now and whenever the last view of a block dies."""


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
