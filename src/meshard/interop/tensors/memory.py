"""Where tensors are made and given up, and what is waited for before their bytes are read.

On CPUs there is nothing to wait for. On other devices copies and messages are put on the current
stream, on which PyTorch orders them; only what the host reads is waited for. That side is written
against PyTorch's documentation and has not been run on such a device.

PyTorch frees a storage as a whole, so one is given up when all tensors of the tree that are in it
have arrived everywhere, and if they are all of it: what others may share stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, final

import numpy as np

from meshard.interop.tensors.loading import distributed, torch
from meshard.runtime.memory.pages import Pages
from meshard.tuning import POOLED_BYTES

_PAGES = Pages()
"""The memory of large tensors of this process, used again when they are gone."""
_BYTE = np.dtype(np.uint8)


class Memory(Protocol):
    """Makes tensors on one device."""

    device: Any

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        """Return a tensor whose elements are not set."""

    def ready(self) -> None:
        """Wait until the host can read what was written."""


@final
class HostMemory:
    """The host's memory."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        """Return a tensor whose elements are not set; a large one is of memory that is kept.

        Fresh memory costs several times as much as filling it.
        """
        count = math.prod(shape) * dtype.itemsize
        if count < POOLED_BYTES:
            return torch.empty(tuple(shape), dtype=dtype)
        memory = torch.from_numpy(_PAGES.allocate((count,), _BYTE))
        return memory.view(dtype).view(tuple(shape))

    def ready(self) -> None:
        """Do nothing: what was written can be read."""


@final
class StreamMemory:
    """The memory of a device with streams."""

    def __init__(self, kind: str) -> None:
        module = torch.get_device_module(kind)
        self.device = torch.device(kind, module.current_device())
        self._stream = module.current_stream

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        """Return a tensor whose elements are not set."""
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def ready(self) -> None:
        """Wait for the current stream."""
        self._stream().synchronize()


def memory_of(kind: str) -> Memory:
    """Return the memory of devices of a kind, such as ``"cpu"``."""
    return HostMemory() if kind == "cpu" else StreamMemory(kind)


def wire_kind(group: Any, kinds: Sequence[str]) -> str:
    """Return on which kind of device messages start and end: the tensors', if the backend can."""
    others = [kind for kind in kinds if kind != "cpu"]
    config = str(distributed.get_backend_config(group))
    return others[0] if others and f"{others[0]}:nccl" in config else "cpu"


# giving it up


@final
class Donated:
    """The tensors that are given up on one rank.

    Args:
        going: those that move, and for each the tensors of the caller's that are of its memory.
        staying: others of the tree, which keep their storages.
    """

    def __init__(self, going: Sequence[tuple[Any, Sequence[Any]]], staying: Sequence[Any]) -> None:
        kept = {_storage(x) for x in staying}
        self._in: dict[int, list[Any]] = {}
        self._owners: dict[int, list[Any]] = {}
        self._left: dict[int, int] = {}
        for x, owners in going:
            key = _storage(x)
            if key and key not in kept:
                self._in.setdefault(key, []).append(x)
                self._owners.setdefault(key, []).extend(owners)
                self._left[key] = self._left.get(key, 0) + 1

    def arrived(self, x: Any) -> int:
        """Take note that a tensor is everywhere where it is to be; return the bytes given up."""
        key = _storage(x)
        if key not in self._left:
            return 0
        self._left[key] -= 1
        if self._left[key]:
            return 0
        tensors, owners, storage = self._in.pop(key), self._owners.pop(key), x.untyped_storage()
        del self._left[key]
        nbytes = int(storage.nbytes())
        if _covered(tensors) < nbytes:
            return 0
        if storage.resizable():
            storage.resize_(0)
        else:  # PyTorch does not own this memory; other references keep it alive
            for owner in owners:
                _empty(owner)
        return nbytes


def _empty(x: Any) -> None:
    """Let a tensor go of its memory; its storage is empty then."""
    bare = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    bare.untyped_storage().resize_(0)
    x.data = bare


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
