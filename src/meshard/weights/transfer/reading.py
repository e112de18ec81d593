"""Reading plans: which process reads what of some files, so that no byte is read twice.

In: tensors to be made, how they are to be laid out, and their recipes. Out: for each tensor either
*direct* reads, every process its own pieces, or *slabs* that one process each reads and passes on.
All processes derive the same plan, so that nothing is negotiated.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.box import Box
from meshard.runtime.types import Block
from meshard.weights.catalogue.stored import Catalogue, Stored
from meshard.weights.maps.recipe import Recipe
from meshard.weights.transfer.readers import Holding, Pieces, Readers, holding_of
from meshard.weights.transfer.slabs import dim_order, marks_of, slabs_of

SLAB = 4 << 20
"""Bytes that are read at a time where they are passed on, if memory is not limited further."""
_RUN = 1 << 15
"""Bytes that lie side by side in a file from which it pays to read them to their places at once."""
_UNBALANCED = 1.1
_SHARES, _FEWEST, _MANY = 16, 4, 1 << 16
"""The fewest slabs for each of several processes, so that they read about equally much. Every
process plans all slabs: where 16 each would be more than 65,536 in all, 4 each may do."""


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
        holding: who is to hold what of it.
        itemsize: bytes of a stored element.
    """

    name: str
    recipe: Recipe
    sharding: Sharding
    holding: Holding
    itemsize: int

    @property
    def pieces(self) -> Pieces:
        """The pieces with elements: number, box, and the processes that hold each."""
        return self.holding.pieces

    @property
    def nbytes(self) -> int:
        """The bytes of all elements as they are stored."""
        return math.prod(self.recipe.shape) * self.itemsize


def wanted_of(name: str, recipe: Recipe, sharding: Sharding, catalogue: Catalogue) -> Wanted:
    """Return a tensor to be made of what files hold."""
    sizes = [catalogue.tensors[n].dtype.itemsize for n in recipe.sources]
    holding = holding_of(sharding, recipe.shape)
    return Wanted(name, recipe, sharding, holding, max(sizes, default=recipe.dtype.itemsize))


@final
@dataclass(frozen=True)
class Direct:
    """A piece that one process reads to its place.

    Attributes:
        tensor: the number of the tensor.
        piece: the number of the piece.
        box: the elements.
    """

    tensor: int
    piece: int
    box: Box


@final
@dataclass(frozen=True)
class Slab:
    """A box that one process reads and passes on.

    Attributes:
        tensor: the number of the tensor.
        box: the elements.
        reader: who reads them.
        kept: how many of them the reader is to hold itself, counted for each of its pieces.
    """

    tensor: int
    box: Box
    reader: int
    kept: int


@final
@dataclass(frozen=True)
class ReadingPlan:
    """Who reads what.

    Attributes:
        wanted: the tensors.
        processes: more than the number of any process that takes part.
        direct: the numbers of the tensors of which each process reads its pieces to their places.
        slabs: boxes that are passed on, in order.
        slab_bytes: the most bytes of a slab.
        bytes_read: the bytes of elements that each process reads.
    """

    wanted: tuple[Wanted, ...]
    processes: int
    direct: tuple[int, ...]
    slabs: tuple[Slab, ...]
    slab_bytes: int
    bytes_read: tuple[int, ...]

    def direct_of(self, process: int) -> Iterator[Direct]:
        """Yield the pieces that a process reads to their places, in order."""
        for tensor in self.direct:
            for piece, box in self.wanted[tensor].holding.first_held(process):
                yield Direct(tensor, piece, box)

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
    def bytes_needed(self) -> tuple[int, ...]:
        """The bytes of elements, in the dtype wanted, that each process is to have."""
        found: Block = np.zeros(self.processes, np.int64)
        for wanted in self.wanted:
            counts = wanted.holding.counts
            found[: len(counts)] += counts * wanted.recipe.dtype.itemsize
        return tuple(found.tolist())

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
        kept: dict[int, int] = {}
        for slab in self.slabs:
            kept[slab.tensor] = kept.get(slab.tensor, 0) + slab.kept
        return sum(
            [
                (self.wanted[tensor].holding.volume - count) * w.recipe.dtype.itemsize
                for tensor, count in kept.items()
                for w in (self.wanted[tensor],)
            ]
        )


def _needed_elements(wanted: Wanted) -> int:
    """Return how many elements all processes need, each counted once for each process."""
    layout = wanted.sharding.layout(wanted.recipe.shape)
    if layout.regular:
        return wanted.holding.volume
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
    ways = _balanced(readers, wanted, _ways(wanted, catalogue))
    plan = _planned(readers, wanted, ways, catalogue.tensors, slab_bytes)
    if len(readers) > 1 and any(ways) and not _is_even(plan.bytes_read, readers):
        ways = [False] * len(ways)
        plan = _planned(readers, wanted, ways, catalogue.tensors, slab_bytes)
    return plan


def _is_even(load: Sequence[int] | Block, readers: Sequence[int], total: int | None = None) -> bool:
    """Whether nobody reads much more than the mean."""
    total = int(sum(load)) if total is None else total
    return int(max(load, default=0)) * len(readers) <= _UNBALANCED * total


def _balanced(readers: Sequence[int], wanted: Sequence[Wanted], ways: list[bool]) -> list[bool]:
    """Return which tensors are read to their places, so that all read about equally much.

    If a few processes would read too much, tensors that they hold more of than others are passed on
    instead; the rest may stay.
    """
    total = sum([w.nbytes for w in wanted])
    even = [
        way and _is_even(w.holding.counts, readers) for w, way in zip(wanted, ways, strict=True)
    ]
    for some in (ways, even):
        load: Block = np.zeros(max(readers) + 1, np.int64)
        for w, way in zip(wanted, some, strict=True):
            if way:
                load[: len(w.holding.counts)] += w.holding.counts * w.itemsize
        if len(readers) == 1 or _is_even(load, readers, total):
            return some
    return [False] * len(ways)


def _ways(wanted: Sequence[Wanted], catalogue: Catalogue) -> list[bool]:
    """Return for each tensor whether each process had best read its own pieces.

    Tensors alike, as those of many layers, are looked at once.
    """
    known: dict[tuple[object, ...], bool] = {}
    found = []
    for w in wanted:
        key: tuple[object, ...] = (w.name,)
        if w.recipe.is_identity:
            key = w.holding, w.recipe.shape, catalogue.tensors[w.recipe.sources[0]].dtype
        if key not in known:
            known[key] = _is_direct(w, catalogue)
        found.append(known[key])
    return found


def _is_direct(wanted: Wanted, catalogue: Catalogue) -> bool:
    """Whether each process had best read its own pieces: no byte twice, and in long runs."""
    layout = wanted.sharding.layout(wanted.recipe.shape)
    if not layout.regular or wanted.holding.shared:
        return False
    if _repeats(wanted.recipe):
        return len(wanted.holding.processes) == 1
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
    chosen = Readers(readers)
    direct = [number for number, way in enumerate(ways) if way]
    for number in direct:
        w = wanted[number]
        for process in w.holding.processes:
            chosen.add(process, int(w.holding.counts[process]) * w.itemsize)
    slabs: list[Slab] = []
    shared = sum([w.nbytes for w, direct_ in zip(wanted, ways, strict=True) if not direct_])
    each = max(_FEWEST, min(_SHARES, _MANY // len(readers)))
    fair = slab_bytes if len(readers) == 1 else max(_RUN, shared // (each * len(readers)))
    known: dict[tuple[object, ...], list[tuple[Box, int]]] = {}
    for number, w in enumerate(wanted):
        if ways[number] or not w.nbytes:
            continue
        most = max(1, min(slab_bytes, fair) // w.itemsize)
        shapes = {n: tensors[n].shape for n in w.recipe.sources}
        order, marks = dim_order(w.recipe, shapes), marks_of(w.recipe, tensors)
        key = w.recipe.shape, order, most, tuple(map(tuple, marks))
        if key not in known:  # those of one layer are those of all
            cut = slabs_of(Box.whole(w.recipe.shape), order, most, marks)
            known[key] = [(box, box.volume) for box in cut]
        for box, volume in known[key]:
            process, kept = chosen.choose(w.holding, box, volume * w.itemsize)
            slabs.append(Slab(number, box, process, kept))
    plan = tuple(wanted), max(readers) + 1, tuple(direct), tuple(slabs)
    return ReadingPlan(*plan, slab_bytes, tuple(chosen.load))
