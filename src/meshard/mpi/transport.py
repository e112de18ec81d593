"""The transport between the processes of an MPI job.

Boxes go as bytes. Large ones are sent from where they lie and received in place, if they are
contiguous there; small ones to the same peer are packed into one message. Both ends know all shapes
from the same plan, so that nothing but data is sent. Every wait polls, with a deadline.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np
from mpi4py import MPI

from meshard.errors import TransportError
from meshard.runtime.types import Block

__all__ = ["MpiTransport"]

_DATA, _SIZE, _OBJECT = 11, 12, 13
_LARGE = 1 << 16
"""Bytes from which a box is a message of its own."""
_MOST = 1 << 30
"""Bytes of one message: MPI counts them in 32 bits."""
_EAGER_SECONDS = 2e-3
"""How long to give the core away between two looks, before sleeping."""


@final
class MpiTransport:
    """One process's end of an MPI communicator.

    Args:
        communicator: the processes; a duplicate of it is used.
        deadline: seconds that a process waits for the others.
    """

    def __init__(self, communicator: MPI.Intracomm, deadline: float) -> None:
        self._comm = communicator.Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.deadline = deadline
        self.index: int = self._comm.Get_rank()
        self.count: int = self._comm.Get_size()

    def exchange(
        self,
        sends: Sequence[tuple[int, Sequence[Block]]],
        receives: Sequence[tuple[int, Sequence[Block]]],
    ) -> None:
        """Send blocks to peers, and fill writable blocks from peers.

        Raises:
            TransportError: if a peer fails or does not answer before the deadline.
        """
        requests: list[MPI.Request] = []
        arriving: list[tuple[Block, Block]] = []
        packed: list[tuple[Sequence[Block], Block]] = []
        kept: list[Block] = []
        for peer, blocks in receives:
            small = [b for b in blocks if 0 < b.nbytes < _LARGE]
            if small:
                buffer = np.empty(sum(b.nbytes for b in small), np.uint8)
                packed.append((small, buffer))
                requests.append(self._comm.Irecv([buffer, MPI.BYTE], peer, _DATA))
            for block in blocks:
                if block.nbytes >= _LARGE:
                    target = block if block.flags.c_contiguous else _like(block)
                    if target is not block:
                        arriving.append((block, target))
                    for part in _portions(target):
                        requests.append(self._comm.Irecv([part, MPI.BYTE], peer, _DATA))
        for peer, blocks in sends:
            small = [b for b in blocks if 0 < b.nbytes < _LARGE]
            if small:
                buffer = np.concatenate([_bytes(b) for b in small])
                kept.append(buffer)
                requests.append(self._comm.Isend([buffer, MPI.BYTE], peer, _DATA))
            for block in blocks:
                if block.nbytes >= _LARGE:
                    for part in _portions(block):
                        kept.append(part)
                        requests.append(self._comm.Isend([part, MPI.BYTE], peer, _DATA))
        peers = sorted({p for p, _ in (*sends, *receives)})
        self._wait(requests, peers)
        for block, target in arriving:
            block[...] = target
        for targets, buffer in packed:
            at = 0
            for block in targets:
                part = buffer[at : at + block.nbytes]
                block[...] = part.view(block.dtype).reshape(block.shape)
                at += block.nbytes

    def all_gather(self, value: object, peers: Sequence[int]) -> list[object]:
        """Return every peer's small object, in the order of ``peers``, this process included."""
        letter = np.frombuffer(pickle.dumps(value), np.uint8)
        size = np.array([len(letter)], np.int64)
        others = [p for p in peers if p != self.index]
        sizes = {p: np.empty(1, np.int64) for p in others}
        requests = [self._comm.Irecv(sizes[p], p, _SIZE) for p in others]
        requests += [self._comm.Isend(size, p, _SIZE) for p in others]
        self._wait(requests, others)
        letters = {p: np.empty(int(sizes[p][0]), np.uint8) for p in others}
        requests = [self._comm.Irecv([letters[p], MPI.BYTE], p, _OBJECT) for p in others]
        requests += [self._comm.Isend([letter, MPI.BYTE], p, _OBJECT) for p in others]
        self._wait(requests, others)
        letters[self.index] = letter
        return [pickle.loads(letters[p].tobytes()) for p in peers]

    def barrier(self, peers: Sequence[int]) -> None:
        """Wait until all ``peers`` have come here."""
        self.all_gather(None, peers)

    def _wait(self, requests: list[MPI.Request], peers: Sequence[int]) -> None:
        """Poll until all requests are done.

        Raises:
            TransportError: if MPI reports a failure, or the deadline has passed.
        """
        begun = time.monotonic()
        try:
            while not MPI.Request.Testall(requests):
                waited = time.monotonic() - begun
                if waited > self.deadline:
                    raise TransportError(
                        f"Process {self.index} has waited {self.deadline:g} s for processes "
                        f"{', '.join(map(str, peers))}. Is one of them dead or hanging, or do "
                        "they run other operations? MESHARD_TIMEOUT sets the seconds."
                    )
                if waited < _EAGER_SECONDS and hasattr(os, "sched_yield"):
                    os.sched_yield()
                else:
                    time.sleep(1e-4)
        except MPI.Exception as error:
            raise TransportError(
                f"Process {self.index}: MPI failed in a message with processes "
                f"{', '.join(map(str, peers))}: {error.Get_error_string()}."
            ) from error


def _like(block: Block) -> Block:
    return np.empty(block.shape, block.dtype)


def _bytes(block: Block) -> Block:
    """Return the elements as bytes in C order, as a view if they lie so."""
    return np.ascontiguousarray(block).reshape(-1).view(np.uint8)


def _portions(block: Block) -> Iterator[Any]:
    flat = _bytes(block)
    for first in range(0, len(flat), _MOST):
        yield flat[first : first + _MOST]
