"""Boxes as MPI messages: packed or in place, with a window of them in flight at a time.

In: the boxes that pass between this process and a peer. Out: generators that move them, and yield
while they wait. Both ends cut the boxes in the same way, by their shapes and the agreed table.

A step that is left early leaves messages behind. MPI may still read or write their memory, so it is
kept until they are done; messages that arrive for such a step are received and dropped.

MPI datatypes of strided boxes: built once for each kind of box, kept, and freed.

In: a box of a block. Out: a message for mpi4py, which is sent from the block in place.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from functools import partial
from typing import Any, final

import numpy as np
from mpi4py import MPI

from meshard.mpi.mailbox import unpack
from meshard.runtime.memory.memory import slabs
from meshard.runtime.processes.agreement import Stamp
from meshard.runtime.settings import Table
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


Waiting = Generator[None, None, None]
_DATA, _SIZE, _OBJECT, _LAST, _KINDS = range(5)
_MOST_LEFT = 3 * 1024
"""Tags of left steps, whose messages are still received."""


@final
class Communicator:
    """What joins the processes of an MPI job.

    Args:
        communicator: the processes; a duplicate of it is used.

    Attributes:
        size: how many there are.
    """

    def __init__(self, communicator: MPI.Intracomm) -> None:
        self._comm = communicator.Dup()
        self._comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.size: int = self._comm.Get_size()

    def __call__(self, table: Table, stamp: Callable[[int], Stamp]) -> Messages:
        """Return the messages of this process."""
        return Messages(self._comm, table, stamp)


@final
class Messages:
    """The messages of one process.

    Args:
        communicator: the processes.
        table: the sizes that decide how blocks are moved.
        stamp: returns the stamp of messages to and from a process at this place in the program;
            those of a process that is elsewhere are not received.
    """

    def __init__(
        self, communicator: MPI.Intracomm, table: Table, stamp: Callable[[int], Stamp]
    ) -> None:
        self._comm = communicator
        self._stamp = stamp
        highest = communicator.Get_attr(MPI.TAG_UB)
        self._stamps = ((1 << 15) - 1 if highest is None else int(highest)) // _KINDS
        self._table = table
        self.datatypes = Datatypes()
        self._stray: list[tuple[MPI.Request, object]] = []
        self._coming: list[tuple[MPI.Request, object]] = []
        self._left: deque[tuple[int, int]] = deque(maxlen=_MOST_LEFT)

    def leave(self, peers: Sequence[int]) -> None:
        """Record that messages of this step with processes are no longer waited for."""
        for peer in peers:
            for kind in range(_KINDS):
                entry = peer, self._tag(peer, kind)
                if entry not in self._left:
                    self._left.append(entry)

    def sweep(self) -> None:
        """Receive and drop messages of steps that were left, and free those that are done."""
        # A process that has not left that step may still send to it, and waits until that is taken.
        for peer, tag in tuple(self._left):
            try:
                while message := self._comm.Improbe(peer, tag, status=(status := MPI.Status())):
                    buffer = np.empty(status.Get_count(MPI.BYTE), np.uint8)
                    self._stray.append((message.Irecv([buffer, MPI.BYTE]), buffer))
            except MPI.Exception:  # it has died: nothing arrives from it
                self._left.remove((peer, tag))
        self._stray = [one for one in self._stray if not _is_done(one[0])]
        self._coming = [one for one in self._coming if not _is_done(one[0])]

    def refused(self, peer: int) -> Stamp | None:
        """Return None: MPI keeps what does not belong to this step."""
        return None

    def complaint(self, error: BaseException) -> str | None:
        """Return what MPI reports; None if it is not an error of MPI."""
        return (
            f"MPI reports: {error.Get_error_string()}" if isinstance(error, MPI.Exception) else None
        )

    def renew(self, gone: Collection[int]) -> None:
        """Receive no messages of steps before any more."""
        for request, _ in self._coming:
            if not _is_done(request):
                request.Cancel()
        self._left.clear()

    def flushed(self, peer: int) -> Waiting:
        """Receive and drop all that a process has sent before it called this too."""
        window, tag = _Window(0, self._stray), _LAST
        mark, status = np.zeros(1, np.uint8), MPI.Status()
        request = self._comm.Isend([mark, MPI.BYTE], peer, tag)
        while True:
            message = self._comm.Improbe(peer, MPI.ANY_TAG, status=status)
            if message is None:
                yield
                continue
            buffer = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            yield from window.add(message.Irecv([buffer, MPI.BYTE]), 1, partial(_nothing, buffer))
            if status.Get_tag() == tag:
                break
        yield from window.add(request, 1, partial(_nothing, mark))

    def talk(self, peer: int, going: Sequence[Block], coming: Sequence[Block]) -> list[Waiting]:
        """Return a generator that receives boxes from a peer, and one that sends boxes to it."""
        # Receives come first: MPI copies a message once more if it arrives before its receive.
        return [self._receive(peer, coming), self._send(peer, going)]

    def _send(self, peer: int, boxes: Sequence[Block]) -> Waiting:
        """Send boxes; finish when their memory is no longer read."""
        window, tag = _Window(self._table.window, self._stray), self._tag(peer, _DATA)
        for piece in self._pieces(boxes):
            message: Any
            if isinstance(piece, list):
                message = [np.concatenate([_bytes(b) for b in piece]), MPI.BYTE]
            elif not piece.flags.c_contiguous and self._table.typed <= run_bytes(piece):
                message = self.datatypes.message(piece)
            else:
                message = [_bytes(piece), MPI.BYTE]
            request = self._comm.Isend(message, peer, tag)
            # The message is kept until then, and with it the packed bytes.
            yield from window.add(request, _size(piece), partial(_nothing, message))
        yield from window.rest()

    def _receive(self, peer: int, boxes: Sequence[Block]) -> Waiting:
        """Fill boxes; contiguous ones are received in place."""
        window, tag = _Window(self._table.window, self._coming), self._tag(peer, _DATA)
        for piece in self._pieces(boxes):
            then: Callable[[], None]
            if isinstance(piece, list):
                buffer = np.empty(_size(piece), np.uint8)
                then = partial(unpack, buffer, piece)
            elif piece.flags.c_contiguous:
                buffer = _bytes(piece)
                then = partial(_nothing, buffer)
            else:
                buffer = np.empty(piece.nbytes, np.uint8)
                then = partial(unpack, buffer, [piece])
            request = self._comm.Irecv([buffer, MPI.BYTE], peer, tag)
            yield from window.add(request, buffer.nbytes, then)
        yield from window.rest()

    def _tag(self, peer: int, kind: int) -> int:
        # Set, step and hash all enter the sum, so that a message of another step, or of a process
        # that has diverged, matches no receive of this one: MPI keeps it until its step comes or
        # `sweep` drops it. Tags are few (32,768 are sure to exist), so that two steps may share
        # one; MPI then delivers their messages in the order in which they were sent.
        return sum(self._stamp(peer)) % self._stamps * _KINDS + kind

    def tell(self, peer: int, letter: Block) -> Waiting:
        """Send some bytes; the peer does not know how many."""
        # A window of no bytes: each message is waited for before the next.
        window = _Window(0, self._stray)
        size = np.array([len(letter)], np.int64)
        for message, kind in (size, _SIZE), ([letter, MPI.BYTE], _OBJECT):
            request = self._comm.Isend(message, peer, self._tag(peer, kind))
            yield from window.add(request, 0, partial(_nothing, message))
        yield from window.rest()

    def hear(self, peer: int, found: dict[int, Block]) -> Waiting:
        """Receive the bytes that a peer sends, into ``found[peer]``."""
        window = _Window(0, self._coming)
        size = np.empty(1, np.int64)
        request = self._comm.Irecv(size, peer, self._tag(peer, _SIZE))
        yield from window.add(request, 1, partial(_nothing, size))
        letter = np.empty(int(size[0]), np.uint8)
        request = self._comm.Irecv([letter, MPI.BYTE], peer, self._tag(peer, _OBJECT))
        yield from window.add(request, 1, partial(_nothing, letter))
        found[peer] = letter

    def _pieces(self, boxes: Sequence[Block]) -> Iterator[list[Block] | Block]:
        """Yield the content of each message: several small boxes, or one slab of a large one."""
        # Small boxes come first and large ones after, in any case: both ends do the same.
        together: list[Block] = []
        size = 0
        for box in boxes:
            if 0 < box.nbytes < self._table.packed:
                together.append(box)
                size += box.nbytes
                if size >= self._table.slab:
                    yield together
                    together, size = [], 0
        if together:
            yield together
        for box in boxes:
            if box.nbytes >= self._table.packed:
                yield from slabs(box, self._table.slab)


@final
class _Window:
    """The messages that are in flight to or from a peer.

    Args:
        most: the most bytes in flight.
        stray: the list for messages that are no longer waited for.
    """

    def __init__(self, most: int, stray: list[tuple[MPI.Request, object]]) -> None:
        self._most = most
        self._stray = stray
        self._bytes = 0
        self._waiting: deque[tuple[MPI.Request, int, Callable[[], None]]] = deque()

    def add(self, request: MPI.Request, nbytes: int, then: Callable[[], None]) -> Waiting:
        """Count a message; wait until the window has room for the next."""
        self._waiting.append((request, nbytes, then))
        self._bytes += nbytes
        while self._bytes > self._most:
            yield from self._first()

    def rest(self) -> Waiting:
        """Wait for all messages."""
        while self._waiting:
            yield from self._first()

    def _first(self) -> Waiting:
        request, nbytes, then = self._waiting[0]
        try:
            while not request.Test():
                yield
        except BaseException:
            # Also when the generator is closed, where its step is left: MPI goes on with the rest.
            self._stray += [(request, kept) for request, _, kept in self._waiting]
            raise
        self._waiting.popleft()
        self._bytes -= nbytes
        then()


def _is_done(request: MPI.Request) -> bool:
    try:
        return bool(request.Test())
    except MPI.Exception:  # with a process that has died
        return True


def _nothing(kept: object) -> None:
    """Do nothing; the argument keeps an object alive until now."""


def _size(piece: list[Block] | Block) -> int:
    return sum([b.nbytes for b in piece]) if isinstance(piece, list) else piece.nbytes


def _bytes(block: Block) -> Block:
    """Return the elements as bytes in C order, as a view if they are stored that way."""
    return np.ascontiguousarray(block).reshape(-1).view(np.uint8)
