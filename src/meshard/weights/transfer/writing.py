"""Writing: pieces of files, filled with elements of blocks.

In: tensors with their recipes and where their sources are, a writer, and who writes each piece.
Out: files with data, and the checksums of the pieces that this process has written. Pieces whose
elements are in their writer's memory are written from where they are, which a thread may do later;
the others are brought to their writers first, slab by slab.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import numpy as np
import xxhash

from meshard.algebra.box import Box
from meshard.runtime.moving.execute import view_of
from meshard.runtime.types import Block
from meshard.runtime.world import RuntimeWorld
from meshard.weights.catalogue.stored import Piece, Stored, Writer
from meshard.weights.maps.recipe import Recipe
from meshard.weights.transfer.exchange import Exchange, Held, Part
from meshard.weights.transfer.gather import Gatherer
from meshard.weights.transfer.reading import SLAB, slabs_of

_AT_ONCE = 8 << 20
"""Bytes that are written at a time from where they are."""

Sums = dict[tuple[str, int], int]
"""Checksums of pieces, by tensor and number of the piece."""


@final
@dataclass(frozen=True)
class Output:
    """A tensor to be written.

    Attributes:
        stored: what the files will hold.
        recipe: how it is made.
        sources: where the recipe's sources are.
        owners: for each piece the process that writes it.
        files: what reads the recipe's sources, if they are in files.
    """

    stored: Stored
    recipe: Recipe
    sources: Mapping[str, Held]
    owners: tuple[int, ...]
    files: Gatherer | None = None

    def source_of(self, piece: Piece, process: int) -> Part | None:
        """Return the part in a process's memory of which a piece is a box; None without one."""
        if self.files is not None or not self.recipe.is_identity:
            return None
        (source,) = [self.sources[name] for name in self.recipe.sources]
        if source.dtype != self.stored.dtype:
            return None
        for part in source.parts:
            if process in part.holders and part.box.intersect(piece.box) == piece.box:
                return part
        return None


def with_owners(output: Output, load: dict[int, int]) -> Output:
    """Return a tensor with who writes each piece: one who has it, or who has the least to write.

    Args:
        output: the tensor, without owners.
        load: the bytes that each process writes; they are added to.
    """
    found, everybody = [], list(load)
    for piece in output.stored.pieces:
        having = [p for p in everybody if output.source_of(piece, p) is not None]
        owner = min(having or everybody, key=lambda p: (load[p], p))
        load[owner] += piece.box.volume * output.stored.dtype.itemsize
        found.append(owner)
    return replace(output, owners=tuple(found))


@final
class Writing:
    """The writing of some tensors by this process.

    Args:
        world: this process's world.
        writer: the files.
        outputs: all tensors, the same on all processes.
        slab_bytes: the most bytes that are brought to a writer at a time.
        told: called with the bytes that have been written here since the last call.

    Attributes:
        sums: the checksums of what has been written.
    """

    def __init__(
        self,
        world: RuntimeWorld,
        writer: Writer,
        outputs: Sequence[Output],
        slab_bytes: int = SLAB,
        told: Callable[[int], None] | None = None,
    ) -> None:
        self.sums: Sums = {}
        self._world = world
        self._writer = writer
        self._slab_bytes = slab_bytes
        self._told = told
        self._near: list[tuple[Output, int, Part]] = []
        self._read: list[tuple[Output, int]] = []
        self._far: list[list[tuple[Output, int]]] = [[] for _ in range(world.process_count)]
        for output in outputs:
            for number, (piece, owner) in enumerate(
                zip(output.stored.pieces, output.owners, strict=True)
            ):
                part = output.source_of(piece, owner)
                if output.files is not None:
                    if owner == world.process_index:
                        self._read.append((output, number))
                elif part is None:
                    self._far[owner].append((output, number))
                elif owner == world.process_index:
                    self._near.append((output, number, part))

    @property
    def communicates(self) -> bool:
        """Whether elements must be brought to their writers."""
        return self._world.process_count > 1 and any(self._far)

    def write_far(self) -> None:
        """Write what must be brought here first, together with all other processes."""
        me = self._world.process_index
        if self._world.process_count == 1:
            self._world.workers.run([partial(self._make, *one) for one in self._far[me]])
            return
        queues = [_slabs(queue, self._slab_bytes) for queue in self._far]
        hashes: dict[tuple[str, int], xxhash.xxh3_64] = {}
        for k in range(max(map(len, queues), default=0)):
            exchange = Exchange(self._world)
            mine: tuple[Output, int, Part] | None = None
            for owner, queue in enumerate(queues):
                if k >= len(queue):
                    continue
                output, number, box = queue[k]
                dtype = output.stored.dtype
                block = np.empty(box.shape, dtype) if owner == me else None
                part = Part(box, (owner,), block)
                exchange.add(output.recipe, part, output.sources)
                if owner == me:
                    mine = output, number, part
            exchange.run()
            if mine is not None:
                output, number, part = mine
                key = output.stored.name, number
                hash_ = hashes.setdefault(key, xxhash.xxh3_64())
                self._put(output.stored, number, part, hash_)
                self.sums[key] = hash_.intdigest()

    def write_near(self) -> None:
        """Write what is in this process's memory."""
        copies = [partial(self._copy, *one) for one in self._near]
        made = [partial(self._make, *one) for one in self._read]
        self._world.workers.run([*copies, *made])

    def write_alone(self, pause: Callable[[float], object]) -> None:
        """Write everything in this thread, without the world's workers; all of it is here.

        Args:
            pause: called after each piece with the seconds of a core that it took.
        """
        for output, number, part in self._near:
            begun = time.thread_time()
            self._copy(output, number, part)
            pause(time.thread_time() - begun)
        for output, number in self._far[self._world.process_index]:
            begun = time.thread_time()
            self._make(output, number)
            pause(time.thread_time() - begun)

    def _copy(self, output: Output, number: int, source: Part) -> None:
        """Write a piece from where it is."""
        stored, hash_ = output.stored, xxhash.xxh3_64()
        piece = stored.pieces[number]
        assert source.block is not None
        most = _AT_ONCE // stored.dtype.itemsize
        for box in _cut(piece, most):
            block = view_of(source.block, box.within(source.box).slices)
            self._put(stored, number, Part(box, source.holders, block), hash_)
        self.sums[stored.name, number] = hash_.intdigest()

    def _make(self, output: Output, number: int) -> None:
        """Write a piece that is made of what is here, or in files."""
        stored, hash_ = output.stored, xxhash.xxh3_64()
        most = max(1, self._slab_bytes // stored.dtype.itemsize)
        for box in _cut(stored.pieces[number], most):
            part = Part(box, (0,), np.empty(box.shape, stored.dtype))
            if output.files is not None and part.block is not None:
                output.files.fill(output.recipe, box, part.block)
            else:
                exchange = Exchange(self._world)
                exchange.add(output.recipe, part, output.sources)
                exchange.run_here()
            self._put(stored, number, part, hash_)
        self.sums[stored.name, number] = hash_.intdigest()

    def _put(self, stored: Stored, number: int, part: Part, hash_: xxhash.xxh3_64) -> None:
        block = part.block
        assert block is not None
        if not block.flags.c_contiguous:
            block = np.ascontiguousarray(block)
        hash_.update(_bytes(block))
        self._writer.write(stored, stored.pieces[number], part.box, block)
        if self._told is not None:
            self._told(block.nbytes)


def _cut(piece: Piece, most: int) -> list[Box]:
    """Return the boxes in which a piece is written: whole rows, or all of it."""
    if piece.offset < 0 or not piece.box.volume:
        return [piece.box]
    return list(slabs_of(piece.box, range(len(piece.box.starts)), max(1, most)))


def _slabs(queue: Sequence[tuple[Output, int]], slab_bytes: int) -> list[tuple[Output, int, Box]]:
    """Return the slabs of one writer's pieces."""
    return [
        (output, number, box)
        for output, number in queue
        for box in _cut(output.stored.pieces[number], slab_bytes // output.stored.dtype.itemsize)
    ]


def _bytes(block: Block) -> memoryview:
    """Return a contiguous block's bytes."""
    return block.reshape(-1).view(np.uint8).data
