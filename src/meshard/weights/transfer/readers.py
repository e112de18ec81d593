"""Choosing readers: who reads a slab, so that all read about equally much and pass on little.

In: which process holds which pieces, and slabs one after the other. Out: a process for each.
Tensors of one shape and sharding share what is known of them, and processes that need the same of a
slab are one group, so that the time hardly depends on how many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from heapq import heapify, heapreplace
from typing import final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.box import Box
from meshard.runtime.types import Block
from meshard.weights.transfer.exchange import pieces_of

Pieces = tuple[tuple[int, Box, tuple[int, ...]], ...]
"""The pieces with elements: number, box, and the processes that hold each."""

_Groups = list[tuple[int, tuple[int, ...]]]
"""How much of a slab processes need, and which these are; those that need most come first."""

_Heap = list[tuple[int, int]]
"""Loads and processes, the least first; a load may be one from before."""


@final
class Holding:
    """Who is to hold what of tensors of one shape.

    Args:
        pieces: the pieces.
    """

    def __init__(self, pieces: Pieces) -> None:
        self._known: dict[tuple[tuple[int, int], ...], _Groups] = {}
        self._same = {holders: holders for *_, holders in pieces}
        self.pieces = tuple([(n, box, self._same[holders]) for n, box, holders in pieces])

    @cached_property
    def shared(self) -> bool:
        """Whether several processes hold the same piece."""
        return any(len(holders) > 1 for *_, holders in self.pieces)

    @cached_property
    def volume(self) -> int:
        """Elements that all processes hold, each counted for each piece and process."""
        return sum([box.volume * len(holders) for _, box, holders in self.pieces])

    @cached_property
    def processes(self) -> frozenset[int]:
        """Those that hold a piece."""
        return frozenset([p for *_, holders in self.pieces for p in holders])

    @cached_property
    def counts(self) -> Block:
        """For each process the elements that it holds."""
        found: Block = np.zeros(max(self.processes, default=-1) + 1, np.int64)
        for _, box, holders in self.pieces:
            found[list(holders)] += box.volume
        return found

    @cached_property
    def _of(self) -> dict[int, list[tuple[int, Box]]]:
        found: dict[int, list[tuple[int, Box]]] = {}
        for number, box, holders in self.pieces:
            found.setdefault(holders[0], []).append((number, box))
        return found

    def first_held(self, process: int) -> Sequence[tuple[int, Box]]:
        """Return the numbers and boxes of the pieces of which a process is the first holder."""
        return self._of.get(process, ())

    @cached_property
    def _bounds(self) -> tuple[Block, Block]:
        """Where pieces start and stop along each dim."""
        starts: Block = np.array([box.starts for _, box, _ in self.pieces], np.int64)
        return starts, np.array([box.stops for _, box, _ in self.pieces], np.int64)

    @cached_property
    def _cut(self) -> tuple[int, ...]:
        """The dims along which pieces differ."""
        starts, stops = self._bounds
        differ = (starts != starts[:1]).any(0) | (stops != stops[:1]).any(0)
        return tuple(np.flatnonzero(differ).tolist())

    @cached_property
    def _uncut(self) -> tuple[int, ...]:
        return tuple([d for d in range(self._bounds[0].shape[1]) if d not in self._cut])

    def groups(self, slab: Box) -> tuple[_Groups, int]:
        """Return how much processes need of a slab, in units, and the elements of a unit."""
        if not self.pieces:
            return [], 1
        starts, stops = slab.starts, slab.stops
        unit = 1
        for d in self._uncut:
            unit *= stops[d] - starts[d]
        key = tuple([(starts[d], stops[d]) for d in self._cut])
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._grouped(key)
        return found, unit

    def _grouped(self, extents: Sequence[tuple[int, int]]) -> _Groups:
        starts, stops = self._bounds
        common: Block = np.ones(len(starts), np.int64)
        for d, (a, b) in zip(self._cut, extents, strict=True):
            common *= np.maximum(np.minimum(stops[:, d], b) - np.maximum(starts[:, d], a), 0)
        meeting = np.flatnonzero(common).tolist()
        if len(meeting) == 1:
            return [(int(common[meeting[0]]), self.pieces[meeting[0]][2])]
        needs: dict[int, int] = {}
        for k in meeting:
            for process in self.pieces[k][2]:
                needs[process] = needs.get(process, 0) + int(common[k])
        found: dict[int, list[int]] = {}
        for process, need in needs.items():
            found.setdefault(need, []).append(process)
        every = [(need, tuple(sorted(found[need]))) for need in sorted(found, reverse=True)]
        return [(need, self._same.setdefault(those, those)) for need, those in every]


@lru_cache(maxsize=64)
def holding_of(sharding: Sharding, shape: tuple[int, ...]) -> Holding:
    """Return who holds what of tensors of a shape; the last ones are kept."""
    return Holding(tuple(pieces_of(sharding.layout(shape), sharding)))


@final
class Readers:
    """The processes that read, and how many bytes each has been given.

    Args:
        readers: the processes.
    """

    def __init__(self, readers: Sequence[int]) -> None:
        self.load = [0] * (max(readers) + 1)
        self._readers = frozenset(readers)
        self._all = tuple(readers)
        self._heaps: dict[tuple[int, ...], _Heap] = {}
        # By identity too, as hashing long tuples is slow; a holding has one for the same processes.
        self._heap_of: dict[int, tuple[tuple[int, ...], _Heap]] = {}

    def add(self, process: int, nbytes: int) -> None:
        """Give a process bytes to read."""
        self.load[process] += nbytes

    def choose(self, holding: Holding, slab: Box, nbytes: int) -> tuple[int, int]:
        """Give a slab to one of those that have read least: the one that needs most of it.

        Returns:
            The process, and how many elements of the slab it needs.
        """
        least = self._least(self._all)
        assert least is not None
        groups, unit = holding.groups(slab)
        most = least[0] + nbytes // 2
        needed, process = 0, least[1]
        for need, processes in groups:
            found = self._least(processes)
            if found is not None and found[0] <= most:
                needed, process = need, found[1]
                break
        self.load[process] += nbytes
        return process, needed * unit

    def _least(self, processes: tuple[int, ...]) -> tuple[int, int] | None:
        """Return the least load of some processes, and who has it; None if none of them reads.

        Loads only grow, so what is first in a heap is brought up to date until it is true.
        """
        known = self._heap_of.get(id(processes))
        if known is None:
            if processes not in self._heaps:
                heap = [(self.load[p], p) for p in processes if p in self._readers]
                heapify(heap)
                self._heaps[processes] = heap
            known = self._heap_of[id(processes)] = processes, self._heaps[processes]
        heap, load = known[1], self.load
        if not heap:
            return None
        found = heap[0]
        while found[0] != load[found[1]]:
            heapreplace(heap, (load[found[1]], found[1]))
            found = heap[0]
        return found
