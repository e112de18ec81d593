"""Boxes of tensors that travel: cut alike at both ends, and packed one behind the other.

In: boxes, and how many bytes may go at once. Out: portions of them, and where each is in a buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

from meshard.runtime.memory.slabs import slabs


@final
@dataclass(frozen=True, slots=True)
class Boxed:
    """A box of a tensor, and the dtype in which it travels."""

    view: Any
    dtype: Any

    @property
    def key(self) -> Any:
        """A value that two boxes share if they are of the same elements."""
        view = self.view
        return view.data_ptr(), view.shape, view.stride(), view.dtype, self.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of it on the wire."""
        return int(self.view.numel() * self.dtype.itemsize)

    def cut(self, most: int) -> Iterator[Boxed]:
        """Yield it in slabs of at most that many bytes on the wire."""
        own = most * self.view.element_size() // self.dtype.itemsize
        for view in slabs(self.view, max(own, self.view.element_size())):
            yield Boxed(view, self.dtype)


def portions(boxes: Sequence[Boxed], most: int) -> Iterator[list[Boxed]]:
    """Cut boxes into slabs, and put these into portions of at most that many bytes."""
    portion: list[Boxed] = []
    size = 0
    for box in boxes:
        for slab in box.cut(most):
            if portion and size + slab.nbytes > most:
                yield portion
                portion, size = [], 0
            portion.append(slab)
            size += slab.nbytes
    if portion:
        yield portion


def ends(boxes: Sequence[Boxed]) -> Iterator[tuple[int, int]]:
    """Yield where each box is in a buffer: behind the one before, where its elements may begin."""
    at = 0
    for box in boxes:
        at = -(-at // box.dtype.itemsize) * box.dtype.itemsize
        yield at, at + box.nbytes
        at += box.nbytes


def parts(boxes: Sequence[Boxed], bits: Any) -> Iterator[tuple[Boxed, Any]]:
    """Yield each box with its part of a buffer, in its dtype on the wire and its shape."""
    for box, (start, stop) in zip(boxes, ends(boxes), strict=True):
        yield box, bits[start:stop].view(box.dtype).view(box.view.shape)


def length(boxes: Sequence[Boxed]) -> int:
    """Return the bytes of a buffer for some boxes."""
    *_, (_, stop) = ends(boxes)
    return stop
