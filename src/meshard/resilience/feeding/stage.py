"""Stages: memory in which a version is assembled, and which senders of this host can write to.

In: shapes. Out: blocks in one memory file without a name. A sender opens it through this process's
entry in ``/proc`` and puts each box to its place: one copy. The memory is used again when nothing
refers to its blocks any more, but never while a sender may still write to it.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from meshard.runtime.lines.letters import sent
from meshard.runtime.settings import HOST
from meshard.runtime.types import Block

_NAME = "meshard-feed"
_ALIGNED = 4096
_MARK = 16

Shapes = tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]


@sent
@final
@dataclass(frozen=True)
class Door:
    """What a process of the same host needs in order to open a stage.

    Attributes:
        pid: the process that has it.
        number: the number of its file there.
        identity: what the system says of the file, so that another one is not taken for it.
        nbytes: its size.
        mark: what its last bytes are, so that a file of another host is not taken for it.
        host: the host's name.
    """

    pid: int
    number: int
    identity: tuple[int, int]
    nbytes: int
    mark: bytes
    host: str


def _host() -> str:
    return HOST.value or os.uname().nodename


def _places(shapes: Shapes) -> tuple[list[int], int]:
    """Return where each block begins, and the size of all."""
    offsets, end = [], 0
    for shape, dtype in shapes:
        offsets.append(end)
        nbytes = math.prod(shape) * dtype.itemsize
        end += -(-nbytes // _ALIGNED) * _ALIGNED
    return offsets, end + _ALIGNED  # the last page has the mark


@final
class _Memory:
    """A memory file, mapped; or plain memory where there are no memory files."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self.offsets, self.nbytes = _places(shapes)
        self.door: Door | None = None
        self._file = -1
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create(_NAME, os.MFD_CLOEXEC)
            os.ftruncate(self._file, self.nbytes)
            self.map = mmap.mmap(self._file, self.nbytes)
            told, mark = os.fstat(self._file), secrets.token_bytes(_MARK)
            self.map[-_MARK:] = mark
            identity = told.st_dev, told.st_ino
            self.door = Door(os.getpid(), self._file, identity, self.nbytes, mark, _host())
        else:
            self.map = mmap.mmap(-1, self.nbytes)

    def __del__(self) -> None:
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.close(self._file)


@final
class _Lease:
    """The memory of one version; it returns to the stages when nothing refers to it any more."""

    def __init__(self, memory: _Memory, stages: Stages) -> None:
        self._memory = memory
        self._stages = stages
        self.is_clean = False
        start = np.frombuffer(memory.map, np.uint8).__array_interface__["data"][0]
        self.__array_interface__ = {
            "shape": (memory.nbytes,),
            "typestr": "|u1",
            "data": (start, False),
            "version": 3,
        }

    def __del__(self) -> None:
        if self.is_clean:
            self._stages.spare.append(self._memory)
            del self._stages.spare[:-1]


@final
class Stage:
    """The blocks of a version that is being assembled.

    Attributes:
        blocks: the blocks, in the order of the shapes.
        door: how senders of this host reach it; None if they cannot.
        offsets: where each block begins in the memory.
    """

    def __init__(self, memory: _Memory, stages: Stages) -> None:
        self._lease = _Lease(memory, stages)
        self.door = memory.door
        self.offsets = memory.offsets
        memory_bytes = np.asarray(self._lease)
        self.blocks: list[Block] = []
        for (shape, dtype), offset in zip(memory.shapes, memory.offsets, strict=True):
            nbytes = math.prod(shape) * dtype.itemsize
            self.blocks.append(memory_bytes[offset : offset + nbytes].view(dtype).reshape(shape))

    def keep(self) -> None:
        """Say that all senders have finished, so that the memory may be used again later."""
        self._lease.is_clean = True


@final
class Stages:
    """Where stages come from: memory that is used again, or new memory.

    Attributes:
        spare: memory that nothing refers to: one version's at most.
    """

    def __init__(self) -> None:
        self.spare: list[_Memory] = []

    def new(self, shapes: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> Stage:
        """Return a stage for blocks of some shapes; what is in it is undefined."""
        wanted = tuple(shapes)
        memory = self.spare.pop() if self.spare else None
        if memory is None or memory.shapes != wanted:
            memory = _Memory(wanted)
        return Stage(memory, self)


@final
class Opened:
    """A stage of another process of this host, to be written to.

    Args:
        door: how to open it.

    Raises:
        OSError: if it cannot be opened, or is another file here: the process is not on this host.
    """

    def __init__(self, door: Door) -> None:
        if door.host != _host():
            raise OSError(f"the memory of a feed on {door.host} is out of reach")
        path = f"/proc/{door.pid}/fd/{door.number}"
        if not os.readlink(path).startswith(f"/memfd:{_NAME}"):
            raise OSError(f"{path} is not the memory of a feed")
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            told = os.fstat(file)
            if (told.st_dev, told.st_ino) != door.identity or told.st_size != door.nbytes:
                raise OSError(f"{path} is another feed's memory")
            self._map = mmap.mmap(file, door.nbytes)
        finally:
            os.close(file)
        if self._map[-_MARK:] != door.mark:
            raise OSError(f"{path} is the memory of a feed of another host")

    def block(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Block:
        """Return a block of it."""
        nbytes = math.prod(shape) * dtype.itemsize
        flat = np.frombuffer(self._map, np.uint8, nbytes, offset)
        return flat.view(dtype).reshape(shape)
