"""Scratch: memory that tasks use one after the other, so that its pages are touched once.

In: shapes. Out: blocks, for as long as a ``with`` statement runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import numpy as np

from meshard.runtime.types import Block


@final
class Scratch:
    """Buffers that are free, as many as tasks have run at once; any thread may use it."""

    def __init__(self) -> None:
        self._free: list[np.ndarray[Any, np.dtype[np.uint8]]] = []

    @contextmanager
    def block(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Iterator[Block]:
        """Give a block of any values, which must not be used afterwards."""
        size = math.prod(shape) * dtype.itemsize
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = np.empty(size, np.uint8)
        if buffer.nbytes < size:
            buffer = np.empty(size, np.uint8)
        try:
            yield buffer[:size].view(dtype).reshape(shape)
        finally:
            self._free.append(buffer)
