"""Giving up the memory of tensors that have been moved.

PyTorch frees a storage as a whole, so one is given up when all tensors of the tree that are in it
have arrived everywhere, and if they are all of it: what others may share stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final


@final
class Donated:
    """The tensors that are given up on one rank.

    Args:
        going: those that move.
        staying: others of the tree, which keep their storages.
    """

    def __init__(self, going: Sequence[Any], staying: Sequence[Any]) -> None:
        kept = {_storage(x) for x in staying}
        self._in: dict[int, list[Any]] = {}
        self._left: dict[int, int] = {}
        for x in going:
            key = _storage(x)
            if key and key not in kept:
                self._in.setdefault(key, []).append(x)
                self._left[key] = self._left.get(key, 0) + 1

    def arrived(self, x: Any) -> int:
        """Take note that a tensor is everywhere where it is to be; return the bytes given up."""
        key = _storage(x)
        if key not in self._left:
            return 0
        self._left[key] -= 1
        if self._left[key]:
            return 0
        tensors, storage = self._in.pop(key), x.untyped_storage()
        del self._left[key]
        nbytes = int(storage.nbytes())
        if not storage.resizable() or _covered(tensors) < nbytes:
            return 0
        storage.resize_(0)
        return nbytes


def _storage(x: Any) -> int:
    return int(x.untyped_storage().data_ptr())


def _covered(tensors: Sequence[Any]) -> int:
    """Return the bytes of a storage that some tensors are, those with gaps not counted."""
    spans = []
    for x in tensors:
        size = x.element_size()
        extent = sum([(n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)]) + 1
        if x.numel() == extent:
            start = x.storage_offset() * size
            spans.append((start, start + extent * size))
    covered = end = 0
    for start, stop in sorted(spans):
        covered += max(stop - max(start, end), 0)
        end = max(end, stop)
    return covered
