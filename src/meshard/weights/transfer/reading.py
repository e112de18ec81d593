"""Reading plans: which process reads what of some files, so that no byte is read twice.

In: tensors to be made, how they are to be laid out, and their recipes. Out: for each tensor either
*direct* reads, every process its own pieces, or *slabs* that one process each reads and passes on.
All processes derive the same plan, so that nothing is negotiated.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.box import Box
from meshard.runtime.types import Block
from meshard.weights.catalogue.stored import Catalogue, Stored
from meshard.weights.maps.recipe import Recipe
from meshard.weights.transfer.exchange import pieces_of
from meshard.weights.transfer.slabs import dim_order, marks_of, slabs_of

SLAB = 4 << 20
"""Bytes that are read at a time where they are passed on, if memory is not limited further."""
_RUN = 1 << 15
"""Bytes that lie side by side in a file from which it pays to read them to their places at once."""
_UNBALANCED = 1.1
_SHARES = 16
"""Slabs of each of several processes at least, so that they read about equally much."""


def slab_bytes_of(window: int | None, processes: int, threads: int) -> int:
    """Return the bytes of a slab where memory is limited, the same in all processes.

    Args:
        window: the most bytes that a process holds besides the arrays; None for no limit.
        processes: how many take part.
        threads: how many threads this one has; others may have more or fewer.
    """
    if window is None:
        return SLAB
    return max(1, window // (4 * threads if processes == 1 else 8))


@final
@dataclass(frozen=True)
class Wanted:
    """A tensor to be made.

    Attributes:
        name: its name.
        recipe: how it is made.
        sharding: how it is to be laid out.
        pieces: the pieces with elements: number, box, and the processes that hold each.
        itemsize: bytes of a stored element.
    """

    name: str
    recipe: Recipe
    sharding: Sharding
    pieces: tuple[tuple[int, Box, tuple[int, ...]], ...]
    itemsize: int

    @property
    def nbytes(self) -> int:
        """The bytes of all elements as they are stored."""
        return math.prod(self.recipe.shape) * self.itemsize


def wanted_of(name: str, recipe: Recipe, sharding: Sharding, catalogue: Catalogue) -> Wanted:
    """Return a tensor to be made of what files hold."""
    pieces = tuple(pieces_of(sharding.layout(recipe.shape), sharding))
    sizes = [catalogue.tensors[n].dtype.itemsize for n in recipe.sources]
    return Wanted(name, recipe, sharding, pieces, max(sizes, default=recipe.dtype.itemsize))


@final
@dataclass(frozen=True)
class Direct:
    """A piece that one process reads to its place.

    Attributes:
        tensor: the number of the tensor.
        piece: the number of the piece.
        box: the elements.
        process: who reads and keeps them.
    """

    tensor: int
    piece: int
    box: Box
    process: int


@final
@dataclass(frozen=True)
class Slab:
    """A box that one process reads and passes on.

    Attributes:
        tensor: the number of the tensor.
        box: the elements.
        reader: who reads them.
    """

    tensor: int
    box: Box
    reader: int


@final
@dataclass(frozen=True)
class ReadingPlan:
    """Who reads what.

    Attributes:
        wanted: the tensors.
        processes: more than the number of any process that takes part.
        direct: pieces that are read to their places, in order.
        slabs: boxes that are passed on, in order.
        slab_bytes: the most bytes of a slab.
    """

    wanted: tuple[Wanted, ...]
    processes: int
    direct: tuple[Direct, ...]
    slabs: tuple[Slab, ...]
    slab_bytes: int

    @property
    def round_bytes(self) -> int:
        """The most bytes that a process reads before it passes them on, but for one slab."""
        return 2 * self.slab_bytes

    def rounds(self) -> list[list[Slab]]:
        """Return the slabs that all processes read, and then pass on together, in order.

        Small tensors share a round, so that they do not cost an exchange each.
        """
        found: list[list[Slab]] = []
        places = [(-1, self.round_bytes)] * self.processes
        for slab in self.slabs:
            number, filled = places[slab.reader]
            size = slab.box.volume * self.wanted[slab.tensor].itemsize
            if filled + size > self.round_bytes:
                number, filled = number + 1, 0
            if number == len(found):
                found.append([])
            found[number].append(slab)
            places[slab.reader] = number, filled + size
        return found

    @cached_property
    def bytes_read(self) -> tuple[int, ...]:
        """The bytes of elements that each process reads."""
        found = [0] * self.processes
        for d in self.direct:
            found[d.process] += d.box.volume * self.wanted[d.tensor].itemsize
        for s in self.slabs:
            found[s.reader] += s.box.volume * self.wanted[s.tensor].itemsize
        return tuple(found)

    @cached_property
    def bytes_needed(self) -> tuple[int, ...]:
        """The bytes of elements, in the dtype wanted, that each process is to have."""
        found = [0] * self.processes
        for wanted in self.wanted:
            for _, box, holders in wanted.pieces:
                for process in holders:
                    found[process] += box.volume * wanted.recipe.dtype.itemsize
        return tuple(found)

    @cached_property
    def lower_bound_bytes(self) -> int:
        """The least bytes that pass between processes if each byte is read once."""
        return sum(
            [
                (_needed_elements(w) - math.prod(w.recipe.shape)) * w.recipe.dtype.itemsize
                for w in self.wanted
            ]
        )

    @cached_property
    def bytes_moved(self) -> int:
        """The bytes that pass between processes."""
        return sum(
            [
                part.volume * wanted.recipe.dtype.itemsize * sum(p != slab.reader for p in holders)
                for wanted, slabs in self.by_tensor()
                for _, box, holders in wanted.pieces
                for slab in slabs
                if (part := box.intersect(slab.box)).volume
            ]
        )

    def by_tensor(self) -> list[tuple[Wanted, list[Slab]]]:
        """Return the tensors that are read in slabs, and their slabs."""
        found: dict[int, list[Slab]] = {}
        for slab in self.slabs:
            found.setdefault(slab.tensor, []).append(slab)
        return [(self.wanted[k], slabs) for k, slabs in found.items()]


def _needed_elements(wanted: Wanted) -> int:
    """Return how many elements all processes need, each counted once for each process."""
    layout = wanted.sharding.layout(wanted.recipe.shape)
    if layout.regular:
        return sum([box.volume * len(holders) for _, box, holders in wanted.pieces])
    sizes: Block = np.ones((), np.int64)
    for cuts in layout.cuts:
        sizes = np.multiply.outer(sizes, np.diff(cuts))
    needed: dict[int, Block] = {}
    for _, box, holders in wanted.pieces:
        cells = tuple(
            [
                slice(bisect_left(cuts, a), bisect_left(cuts, b))
                for cuts, a, b in zip(layout.cuts, box.starts, box.stops, strict=True)
            ]
        )
        for process in holders:
            needed.setdefault(process, np.zeros(sizes.shape, bool))[cells] = True
    return sum([int(np.sum(sizes, where=mask)) for mask in needed.values()])


def plan_reading(
    readers: Sequence[int], wanted: Sequence[Wanted], catalogue: Catalogue, slab_bytes: int = SLAB
) -> ReadingPlan:
    """Return who reads what: each element of the files once, all processes about equally much.

    Args:
        readers: the processes that take part.
        wanted: the tensors.
        catalogue: the files.
        slab_bytes: the most bytes of a slab.
    """
    ways = [_is_direct(w, catalogue) for w in wanted]
    plan = _planned(readers, wanted, ways, catalogue.tensors, slab_bytes)
    load = plan.bytes_read
    if len(readers) > 1 and max(load) * len(readers) > _UNBALANCED * sum(load):
        ways = [False] * len(ways)
        plan = _planned(readers, wanted, ways, catalogue.tensors, slab_bytes)
    return plan


def _is_direct(wanted: Wanted, catalogue: Catalogue) -> bool:
    """Whether each process had best read its own pieces: no byte twice, and in long runs."""
    layout = wanted.sharding.layout(wanted.recipe.shape)
    if not layout.regular or any(len(holders) > 1 for *_, holders in wanted.pieces):
        return False
    if _repeats(wanted.recipe):
        return len({p for *_, holders in wanted.pieces for p in holders}) == 1
    return all(_run(wanted.recipe, box, catalogue) >= _RUN for _, box, _ in wanted.pieces)


def _repeats(recipe: Recipe) -> bool:
    """Whether elements of a source are in several places of the result."""
    return any(s.source is None for t in recipe.terms for s in t.strides)


def _run(recipe: Recipe, box: Box, catalogue: Catalogue) -> int:
    """Return the least bytes that lie side by side in a file, of those that make up a box."""
    least = 1 << 62
    for term in recipe.terms:
        tensor = catalogue.tensors[term.source]
        for part in term.within_target(box):
            least = min(least, _run_of(part.source_box, tensor))
            if least < _RUN:
                return least
    return least


def _run_of(box: Box, tensor: Stored) -> int:
    """Return the bytes that lie side by side of a box; a box that is all of a tensor is one run."""
    run = tensor.dtype.itemsize
    for size, length in zip(reversed(tensor.shape), reversed(box.shape), strict=True):
        run *= length
        if length != size:
            return run
    return 1 << 62


def _planned(
    readers: Sequence[int],
    wanted: Sequence[Wanted],
    ways: Sequence[bool],
    tensors: Mapping[str, Stored],
    slab_bytes: int,
) -> ReadingPlan:
    direct: list[Direct] = []
    count = max(readers) + 1
    load = [0] * count
    for number, w in enumerate(wanted):
        if ways[number]:
            for piece, box, (process, *_) in w.pieces:
                direct.append(Direct(number, piece, box, process))
                load[process] += box.volume * w.itemsize
    slabs: list[Slab] = []
    shared = sum([w.nbytes for w, direct_ in zip(wanted, ways, strict=True) if not direct_])
    fair = slab_bytes if len(readers) == 1 else max(_RUN, shared // (_SHARES * len(readers)))
    for number, w in enumerate(wanted):
        if ways[number] or not w.nbytes:
            continue
        most = min(slab_bytes, fair) // w.itemsize
        shapes = {n: tensors[n].shape for n in w.recipe.sources}
        order, marks = dim_order(w.recipe, shapes), marks_of(w.recipe, tensors)
        for box in slabs_of(Box.whole(w.recipe.shape), order, max(1, most), marks):
            process = _reader(w, box, load, readers)
            slabs.append(Slab(number, box, process))
            load[process] += box.volume * w.itemsize
    return ReadingPlan(tuple(wanted), count, tuple(direct), tuple(slabs), slab_bytes)


def _reader(wanted: Wanted, box: Box, load: Sequence[int], readers: Sequence[int]) -> int:
    """Return who reads a slab: of those that have read least, the one that needs most of it."""
    if len(readers) == 1:
        return readers[0]
    most = min([load[p] for p in readers]) + box.volume * wanted.itemsize // 2
    needs = [0] * len(load)
    for _, piece, holders in wanted.pieces:
        common = piece.intersect(box).volume
        if common:
            for process in holders:
                needs[process] += common
    return min(readers, key=lambda p: (load[p] > most, -needs[p], load[p], p))
