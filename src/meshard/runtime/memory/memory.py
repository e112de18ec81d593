"""`Memory`: the one way in which blocks are made, filled, and brought to and from the host.

In: shapes, and values of the host. Out: blocks. Kernels make their own small results; all blocks
that the runtime and the engine make come from the world's memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
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
