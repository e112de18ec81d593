"""What an expert writes without a library: blocks that are made once, two threads, `out=`."""

import functools
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from bench.machine import usable_cores

T = TypeVar("T")
R = TypeVar("R")
Array = NDArray[Any]
Box = tuple[slice, ...]
Piece = tuple[Array, Array]


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, usable_cores() - 1))


@functools.cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def each(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """`work` of all items, a run of them on every core, one of them in the calling thread.

    One hand-over per core instead of one per item: a hand-over costs about 45 us.
    """
    cores = min(usable_cores(), len(items))
    cuts = [len(items) * k // cores for k in range(cores + 1)]
    runs = [items[a:b] for a, b in itertools.pairwise(cuts)]

    def go(run: Sequence[T]) -> list[R]:
        return [work(item) for item in run]

    others = [_pool().submit(go, run) for run in runs[1:]]
    done = go(runs[0])
    return done + [result for other in others for result in other.result()]


def one_blas_thread() -> AbstractContextManager[object]:
    """While it is open, products run on the thread that calls them."""
    limit: AbstractContextManager[object] = _blas().limit(limits=1, user_api="blas")
    return limit


class Blocks:
    """An array as a grid of contiguous buffers, one for every box.

    Example:
        >>> blocks = Blocks((8, 8), (4, 2))
        >>> blocks.buffers[0].shape
        (2, 4)
    """

    def __init__(self, shape: tuple[int, ...], parts: tuple[int, ...]) -> None:
        """Make buffers for `shape` in `parts` equal parts per dim, in row-major order."""
        lengths = [size // count for size, count in zip(shape, parts, strict=True)]
        self.shape = shape
        self.boxes: list[Box] = [
            tuple(slice(k * n, (k + 1) * n) for k, n in zip(place, lengths, strict=True))
            for place in itertools.product(*map(range, parts))
        ]
        self.buffers = [np.zeros(lengths, np.float32) for _ in self.boxes]

    def load(self, whole: Array) -> None:
        """Write `whole` into the buffers."""
        each(copy, [(b, whole[box]) for b, box in zip(self.buffers, self.boxes, strict=True)])

    def whole(self) -> Array:
        """The array in one piece."""
        result = np.empty(self.shape, np.float32)
        for box, buffer in zip(self.boxes, self.buffers, strict=True):
            result[box] = buffer
        return result


def copy(piece: Piece) -> None:
    """Write the second array of `piece` into the first."""
    np.copyto(*piece)


def pieces(source: Blocks, target: Blocks) -> list[Piece]:
    """Views (into a target buffer, into a source buffer) of all overlaps of two grids."""
    found = []
    for box, buffer in zip(target.boxes, target.buffers, strict=True):
        for other, data in zip(source.boxes, source.buffers, strict=True):
            both = [
                (max(a.start, b.start), min(a.stop, b.stop))
                for a, b in zip(box, other, strict=True)
            ]
            if all(start < stop for start, stop in both):
                found.append((buffer[_within(both, box)], data[_within(both, other)]))
    return found


def _within(region: Sequence[tuple[int, int]], box: Box) -> Box:
    """The index of `region` inside `box`."""
    return tuple(
        slice(start - s.start, stop - s.start) for (start, stop), s in zip(region, box, strict=True)
    )
