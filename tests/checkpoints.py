"""Checkpoints in several numbers of processes, and what they read and send."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import meshard
from meshard.algebra.box import Box
from meshard.runtime.simulated import simulate
from meshard.runtime.types import Block
from meshard.runtime.world import here
from meshard.weights.catalogue.stored import Catalogue, Piece, Reader, Stored
from meshard.weights.checkpoint import load as loading
from tests.dying import quick_folder
from tests.worlds import alone

DEVICES = {1: 8, 2: 4, 3: 3, 4: 2}
"""How many devices each process has, by the number of processes: at least eight together."""


def run(processes: int, body: Callable[[], Any]) -> list[Any]:
    """Return what a body returns in each of some processes."""
    if processes == 1:
        return [alone(body)]
    return simulate(processes, DEVICES.get(processes, 1), body, deadline=30)


@contextmanager
def folders() -> Iterator[Path]:
    """Yield a folder in memory that is removed at the end."""
    path = Path(tempfile.mkdtemp(dir=quick_folder()))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@dataclass
class Seen:
    """What loads have done.

    Attributes:
        read: the bytes of elements that each process has read.
        sent: the bytes that each process has sent to others.
        objects: how often each process has exchanged objects with others.
    """

    read: Counter[int] = field(default_factory=Counter)
    sent: Counter[int] = field(default_factory=Counter)
    objects: Counter[int] = field(default_factory=Counter)


class Watched:
    """A reader that counts.

    Args:
        reader: what reads.
        seen: where the bytes are counted.
    """

    def __init__(self, reader: Reader, seen: Seen) -> None:
        self._reader, self._seen = reader, seen

    def read(self, tensor: Stored, piece: Piece, box: Box, out: Block) -> None:
        """Count, and read."""
        assert out.shape == box.shape
        assert piece.box.intersect(box) == box
        self._seen.read[meshard.process_index()] += box.volume * tensor.dtype.itemsize
        self._reader.read(tensor, piece, box, out)

    def close(self) -> None:
        """Close the files."""
        self._reader.close()


@contextmanager
def watched() -> Iterator[Seen]:
    """Yield what the loads of all worlds do from now on; bytes sent only by `watch_transport`."""
    seen, opened = Seen(), loading.opened

    def watching(*args: Any, **kwargs: Any) -> Catalogue:
        found = opened(*args, **kwargs)
        return replace(found, reader=Watched(found.reader, seen))

    with mock.patch.object(loading, "opened", watching):
        yield seen


@contextmanager
def watched_transport(seen: Seen) -> Iterator[None]:
    """Count what this process sends."""
    transport = here().transport
    exchange, gather = transport.exchange, transport.all_gather

    def exchanging(sends: Any, receives: Any) -> None:
        seen.sent[transport.index] += sum(b.nbytes for _, blocks in sends for b in blocks)
        exchange(sends, receives)

    def gathering(value: object, peers: Any) -> Any:
        seen.objects[transport.index] += 1
        return gather(value, peers)

    with (
        mock.patch.object(transport, "exchange", exchanging, create=True),
        mock.patch.object(transport, "all_gather", gathering, create=True),
    ):
        yield
