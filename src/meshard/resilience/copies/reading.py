"""What a checkpoint gives: the boxes that nobody has in memory, and who reads each of them.

In: what is still held of an array, and where it is to be. Out: a grid with one reader for each lost
cell, among the processes that need it; and its elements, read from just those byte ranges.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from meshard.algebra.arguments import path_of
from meshard.algebra.layout import Layout, balanced_cuts
from meshard.errors import CheckpointError, did_you_mean
from meshard.resilience.copies.stocks import Stock, gridded, onto, refined
from meshard.runtime.types import Block, dtype_name
from meshard.runtime.world import RuntimeWorld
from meshard.weights.catalogue.stored import Catalogue
from meshard.weights.checkpoint.opening import opened
from meshard.weights.maps.recipe import identity
from meshard.weights.transfer.gather import Gatherer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_DIVIDED = 1 << 20
"""Lost bytes from which all processes that need them read a part each."""


@contextlib.contextmanager
def checkpoint_of(path: str | Path | None, what: str) -> Iterator[Catalogue | None]:
    """Open a checkpoint, or the newest step of a run; None stays None.

    Raises:
        MissingFileError: if there is none.
        CorruptFileError: if it is cut off, or was changed.
    """
    if path is None:
        yield None
        return
    found = opened(path_of(path, what, "checkpoint"), None, what)
    try:
        yield found
    finally:
        found.reader.close()


def check_tree(
    catalogue: Catalogue, arrays: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]], what: str
) -> None:
    """Refuse a checkpoint of another tree, before anything is read.

    Args:
        catalogue: the checkpoint.
        arrays: shape and dtype of each array of the tree, by name.
        what: the function that was called, for messages.

    Raises:
        CheckpointError: if an array is not in it, or has another shape or dtype.
    """
    told = f"{what}: {catalogue.path} is a checkpoint of another tree"
    for name, (shape, dtype) in arrays.items():
        stored = catalogue.tensors.get(catalogue.tied.get(name, name))
        if stored is None:
            known = sorted(catalogue.tensors)
            raise CheckpointError(
                f"{told}: it does not hold {name!r}. It holds {len(known)} arrays, such as "
                f"{known[0]!r}.{did_you_mean(name, known)}"
                if known
                else f"{told}: it does not hold {name!r}, nor any other array."
            )
        if (stored.shape, stored.dtype) != (shape, dtype):
            held, wanted = (
                f"{dtype_name(d)}[{','.join(map(str, s))}]"
                for d, s in ((stored.dtype, stored.shape), (dtype, shape))
            )
            raise CheckpointError(
                f"{told}: {name!r} is {held} there, and {wanted} in the tree. Nothing was read."
            )


@final
class Readers:
    """Who reads what: each lost cell one of the processes that need it, all about equally much."""

    def __init__(self, process_of: Mapping[int, int]) -> None:
        self._process_of = process_of
        self._read: dict[int, int] = {}

    def cells(self, held: Layout, destination: Layout, itemsize: int) -> Layout | None:
        """Return a grid with the device of the reader of each cell that has no holder.

        Args:
            held: what is in memory; -1 where nobody holds a cell.
            destination: where the array is to be.
            itemsize: bytes of an element.
        """
        if held.tensor.size and not (held.tensor < 0).all(axis=-1).any():
            return None
        wanted = gridded(destination)
        cuts = refined([held.points, wanted.points])
        lost = self._lost(held, cuts)
        if not lost.any():
            return None
        cuts = self._divided(cuts, lost, onto(wanted, cuts), itemsize)
        lost, takers = self._lost(held, cuts), onto(wanted, cuts)
        readers = np.full((*lost.shape, 1), -1, np.int64)
        sizes = [np.diff(c) for c in cuts]
        for place in np.argwhere(lost):
            at = tuple(place.tolist())
            volume = math.prod([int(n[i]) for n, i in zip(sizes, at, strict=True)])
            readers[(*at, 0)] = self._reader(takers[at], volume * itemsize)
        return Layout(held.shape, cuts, readers)

    def _lost(self, held: Layout, cuts: Sequence[Ints]) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = np.all(onto(held, cuts) < 0, axis=-1)
        for dim, points in enumerate(cuts):
            shape = [1] * found.ndim
            shape[dim] = -1
            found = np.logical_and(found, (np.diff(points) > 0).reshape(shape))
        return found

    def _divided(
        self, cuts: tuple[Ints, ...], lost: NDArray[np.bool_], takers: Ints, itemsize: int
    ) -> tuple[Ints, ...]:
        """Return finer cuts, where a lost cell is large and several processes need it."""
        lengths = [np.diff(c) for c in cuts]
        for dim, points in enumerate(cuts):
            others = tuple(d for d in range(lost.ndim) if d != dim)
            extra: list[int] = []
            for i in np.flatnonzero(lost.any(axis=others)).tolist():
                near = np.take(takers, i, axis=dim)[np.take(lost, i, axis=dim)]
                count = len({self._process_of[d] for d in near[near >= 0].tolist()})
                inner = math.prod([int(n.max()) for d, n in enumerate(lengths) if d != dim])
                length = int(lengths[dim][i])
                if 1 < count <= length and length * inner * itemsize >= _DIVIDED:
                    extra += [int(points[i]) + c for c in balanced_cuts(length, count)]
            if extra:
                finer = np.unique(np.concatenate([points, np.asarray(extra, np.int64)]))
                return (*cuts[:dim], finer, *cuts[dim + 1 :])
        return cuts

    def _reader(self, takers: Ints, nbytes: int) -> int:
        """Return the device for which a cell is read: its process has read least so far."""
        ids: list[int] = [d for d in takers.tolist() if d >= 0]
        found = min(ids, key=lambda d: (self._read.get(self._process_of[d], 0), ids.index(d)))
        process = self._process_of[found]
        self._read[process] = self._read.get(process, 0) + nbytes
        return found


def read_stock(
    world: RuntimeWorld,
    catalogue: Catalogue,
    cells: Layout,
    name: str,
    dtype: np.dtype[Any],
    mine: Sequence[int],
) -> Stock:
    """Read this process's cells of an array from a checkpoint.

    Raises:
        CheckpointError: if a file cannot be read.
    """
    gatherer = Gatherer(catalogue)
    recipe = identity(catalogue.tied.get(name, name), cells.shape, dtype)
    blocks: list[Block | None] = [None] * cells.piece_count
    tasks = []
    for cell in np.flatnonzero(np.isin(cells.tensor.reshape(-1), mine)).tolist():
        box = cells.box(cell)
        block = blocks[cell] = world.memory.allocate(box.shape, dtype)
        tasks.append(partial(gatherer.fill, recipe, box, block))
    world.workers.run(tasks)
    return Stock(cells, blocks)
