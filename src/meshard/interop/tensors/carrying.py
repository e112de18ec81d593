"""Boxes carried between ranks by `torch.distributed`: one message for each peer and round.

Both ends derive the same boxes in the same order from the plan, and cut them alike. A box that is
one run of memory is sent from where it is and received where it belongs; others go through a
buffer, together with all boxes of the same peer that fit into a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from meshard.interop.tensors.loading import distributed, torch
from meshard.interop.tensors.memory import Memory
from meshard.runtime.memory.slabs import slabs

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
