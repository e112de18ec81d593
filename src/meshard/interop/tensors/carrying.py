"""Boxes carried between ranks by `torch.distributed`: one message for each peer and round.

Both ends derive the same boxes in the same order from the plan, and cut them alike. A box that is
one run of memory is sent from where it is and received where it belongs; others go through a
buffer, together with all boxes of the same peer that fit into a round.

Where tensors are made and given up, and what is waited for before their bytes are read.

On CPUs there is nothing to wait for. On other devices copies and messages are put on the current
stream, on which PyTorch orders them; only what the host reads is waited for. That side is written
against PyTorch's documentation and has not been run on such a device.

PyTorch frees a storage as a whole, so one is given up when all tensors of the tree that are in it
have arrived everywhere, and if they are all of it: what others may share stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np

from meshard.interop.tensors.specs import distributed, torch
from meshard.runtime.memory.memory import slabs
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


MOST = 8 << 20
"""Bytes of a message if memory is not limited: large enough that its start does not count."""


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
    """Yield where each box is in a buffer: after the one before, aligned for its elements."""
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


@final
class LostError(Exception):
    """A rank that does not answer.

    Args:
        reason: what is known of it, as the rest of a sentence.
        rank: the rank; None if it is not known which.
    """

    def __init__(self, reason: str, rank: int | None = None) -> None:
        super().__init__(reason)
        self.rank = rank


@final
class Carrier:
    """Sends and receives within a process group.

    Args:
        group: the process group; None for that of the whole job.
        memory: where buffers are, and where messages can start and end.
    """

    def __init__(self, group: Any, memory: Memory) -> None:
        self._group = group
        self._memory = memory

    def exchange(
        self,
        sends: Mapping[int, Sequence[Boxed]],
        receives: Mapping[int, Sequence[Boxed]],
        most: int,
        told: Callable[[int], None],
    ) -> None:
        """Send boxes to peers and fill boxes from them, in rounds of at most some bytes per peer.

        Raises:
            LostError: if a peer fails.
        """
        out = {peer: list(portions(boxes, most)) for peer, boxes in sorted(sends.items())}
        back = {peer: list(portions(boxes, most)) for peer, boxes in sorted(receives.items())}
        rounds = max([len(q) for q in (*out.values(), *back.values())], default=0)
        for number in range(rounds):
            self._round(
                {peer: q[number] for peer, q in out.items() if number < len(q)},
                {peer: q[number] for peer, q in back.items() if number < len(q)},
                told,
            )

    def _round(
        self,
        out: Mapping[int, list[Boxed]],
        back: Mapping[int, list[Boxed]],
        told: Callable[[int], None],
    ) -> None:
        landing = {peer: self._place(boxes) for peer, boxes in back.items()}
        ops = [self._op(distributed.irecv, bits, peer) for peer, bits in landing.items()]
        peers = [*landing, *out]
        ops += [self._op(distributed.isend, self._packed(boxes), p) for p, boxes in out.items()]
        try:
            works = distributed.batch_isend_irecv(ops)
        except (RuntimeError, ValueError) as error:
            raise LostError(str(error), peers[0]) from error
        if len(works) != len(peers):  # one work stands for all, as NCCL coalesces them
            peers = peers[:1] * len(works)
        for work, peer in zip(works, peers, strict=True):
            try:
                work.wait()
            except RuntimeError as error:
                raise LostError(str(error), peer) from error
        for peer, boxes in back.items():
            self._unpack(boxes, landing[peer])
            told(sum([box.nbytes for box in boxes]))

    def _op(self, way: Any, bits: Any, peer: int) -> Any:
        return distributed.P2POp(way, bits, peer, self._group)

    def _whole(self, boxes: Sequence[Boxed]) -> Any:
        """Return the bits of a box that needs no buffer; None if there are several, or it does."""
        if len(boxes) != 1:
            return None
        ((view, dtype),) = [(box.view, box.dtype) for box in boxes]
        if view.dtype != dtype or view.device != self._memory.device or not view.is_contiguous():
            return None
        return bits_of(view)

    def _place(self, boxes: Sequence[Boxed]) -> Any:
        """Return where the bytes of some boxes are received."""
        whole = self._whole(boxes)
        if whole is not None:
            return whole
        return self._memory.empty((length(boxes),), torch.uint8)

    def _packed(self, boxes: Sequence[Boxed]) -> Any:
        """Return the bytes of some boxes as one contiguous buffer."""
        whole = self._whole(boxes)
        if whole is not None:
            return whole
        bits = self._memory.empty((length(boxes),), torch.uint8)
        for box, part in parts(boxes, bits):
            part.copy_(box.view)
        return bits

    def _unpack(self, boxes: Sequence[Boxed], bits: Any) -> None:
        if self._whole(boxes) is None:
            for box, part in parts(boxes, bits):
                box.view.copy_(part)


def bits_of(x: Any) -> Any:
    """Return the bytes of a tensor whose elements follow each other, as a tensor of one dim."""
    flat = x.detach().reshape(-1)
    return flat if flat.dtype is torch.uint8 else flat.view(torch.uint8)
