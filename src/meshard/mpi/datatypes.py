"""MPI datatypes of strided boxes: built once for each kind of box, kept, and freed.

In: a box of a block. Out: a message for mpi4py, which is sent from the block in place.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, final

from mpi4py import MPI

from meshard.runtime.types import Block
from meshard.tuning import MOST_DATATYPES

_COUNTED = 1 << 31


def run_bytes(block: Block) -> int:
    """Return the bytes that are contiguous at the end of each index, in C order."""
    run = block.itemsize
    for size, stride in zip(reversed(block.shape), reversed(block.strides), strict=True):
        if stride != run and size != 1:
            break
        run *= size
    return run


@final
class Datatypes:
    """The committed datatypes of one process.

    Args:
        most: how many are kept; the least recently used one is freed.
    """

    def __init__(self, most: int = MOST_DATATYPES) -> None:
        self._most = most
        self._kept: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def message(self, block: Block) -> list[Any]:
        """Return a strided block as a message of one element of its datatype."""
        key = (block.shape, block.strides, block.itemsize)
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = _made(block)
            if len(self._kept) > self._most:
                # MPI frees a datatype when the messages that use it are done.
                self._kept.popitem(last=False)[1].Free()
        else:
            self._kept.move_to_end(key)
        address: int = block.__array_interface__["data"][0]
        return [MPI.buffer.fromaddress(address, found.Get_true_extent()[1]), 1, found]

    def free(self) -> None:
        """Free all datatypes."""
        while self._kept:
            self._kept.popitem()[1].Free()


def _made(block: Block) -> Any:
    """Return the committed datatype of a block's bytes, in C order of its elements."""
    run = block.itemsize
    dims = list(zip(block.shape, block.strides, strict=True))
    while dims and (dims[-1][1] == run or dims[-1][0] == 1):
        run *= dims.pop()[0]
    assert run < _COUNTED
    found = MPI.BYTE.Create_contiguous(run)
    for size, stride in reversed(dims):
        inner, found = found, found.Create_hvector(size, 1, stride)
        inner.Free()
    return found.Commit()
