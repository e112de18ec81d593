"""Ownership: whether anything but its array can see a block.

In: an array and the number of a piece, or a value that was just handed over. Out: whether its
memory may be overwritten, or given back to the system, without being noticed.

CPython counts the references to an object, and the count says how many holders there are. What a
sole holder's count is depends on the version of Python (3.14 borrows references where 3.13 counted
them), so it is measured here, once, on samples that are known to have one holder, by the very
expressions that are used later. Where counts are not exact, as without the global interpreter lock,
the answer is always no: memory is then not reused, rather than reused by a guess.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol, final

import numpy as np
from numpy._core.multiarray import get_handler_name

from meshard.runtime.memory.arena import SharedLease
from meshard.runtime.memory.pages import Lease, give_back
from meshard.runtime.types import Block, Blocks


class _Array(Protocol):
    """What holds a tuple of blocks: an array."""

    _blocks: Blocks | None


Count = Callable[[object], int]


def _exact_count() -> Count | None:
    """Return the function that counts references exactly; None where there is none."""
    with_lock: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    if sys.implementation.name != "cpython" or not with_lock():
        return None
    return sys.getrefcount


_count = _exact_count()


def held_alone(x: _Array, piece: int) -> bool:
    """Whether nothing but an array refers to its tuple of blocks, one of them, or its memory.

    Args:
        x: the array; any number of references to it may exist.
        piece: the number of a block that this process has.
    """
    if _count is None:
        return False
    block: Any = x._blocks[piece]  # type: ignore[index]
    root = block.base
    owning = root is None and block.flags.owndata
    private = owning or memory_of(block) is not None
    del block, root
    if not private:
        return False
    if owning:
        return _holders(x, piece) == _ALONE_OWNING
    return (*_holders(x, piece), _holders_of_base(x, piece)) == _ALONE_VIEWING


@final
class _Owned:
    """Memory that NumPy has allocated for a block."""

    def give_back(self, start: int, nbytes: int) -> None:
        give_back(start, nbytes)


Memory = Lease | SharedLease | _Owned
_OWNED = _Owned()


def memory_of(block: Block) -> Memory | None:
    """Return the owner that can free the pages of a block; None for memory of another process.

    Pages that were given back read as zeros, so ask `held_alone` first. A block whose elements do
    not follow each other has more bytes than memory, or other elements between its own.
    """
    if not block.flags.c_contiguous:
        return None
    base: Any = block
    while isinstance(base, np.ndarray):
        if base.base is None and base.flags.owndata:
            return _OWNED if get_handler_name(base) == "default_allocator" else None
        base = base.base
    if isinstance(base, SharedLease):
        return None if base.seen_elsewhere else base
    return base if isinstance(base, Lease) else None


def give_back_owned(x: _Array) -> None:
    """Give the pages of a dying array to the system, unless the pool keeps them.

    Memory that NumPy has allocated returns to an allocator that may keep it.
    """
    for piece in range(len(x._blocks or ())):
        block: Any = x._blocks[piece]  # type: ignore[index]
        owned = block is not None and memory_of(block) is _OWNED
        del block
        if owned and held_alone(x, piece):
            block = x._blocks[piece]  # type: ignore[index]
            _OWNED.give_back(block.__array_interface__["data"][0], block.nbytes)


def _holders(x: _Array, piece: int) -> tuple[int, int]:
    """Return the counts of an array's tuple of blocks, and of one of them."""
    assert _count is not None
    return _count(x._blocks), _count(x._blocks[piece])  # type: ignore[index]


def _holders_of_base(x: _Array, piece: int) -> int:
    """Return the count of the NumPy array that a block is a view of."""
    assert _count is not None
    return _count(x._blocks[piece].base)  # type: ignore[index, union-attr]


def handed_over(value: Block) -> bool:
    """Whether a value in one local variable of the caller is referred to only there.

    The value must be the argument itself, by its name, as in ``handed_over(value)``.
    """
    return (
        value.base is None
        and value.flags.owndata
        and value.flags.c_contiguous
        and value.flags.writeable
        and _passed(value) <= _ALONE_PASSED
    )


def _passed(value: Block) -> int:
    return sys.maxsize if _count is None else _count(value)


class _Sample:
    """Holds blocks as an array does."""

    __slots__ = ("_blocks",)
    _blocks: Blocks | None


def _owning() -> tuple[int, int]:
    sample = _Sample()
    sample._blocks = (np.zeros(1), None)
    return _holders(sample, 0)


def _viewing() -> tuple[int, int, int]:
    sample = _Sample()
    sample._blocks = (np.frombuffer(bytearray(64), np.uint8)[:32].view(np.float64), None)
    return (*_holders(sample, 0), _holders_of_base(sample, 0))


def _passing() -> int:
    def like_handed_over(value: Block) -> int:
        return _passed(value)

    value = np.zeros(1)
    return like_handed_over(value)


_ALONE_OWNING = _owning() if _count is not None else None
_ALONE_VIEWING = _viewing() if _count is not None else None
_ALONE_PASSED = _passing() if _count is not None else -1
