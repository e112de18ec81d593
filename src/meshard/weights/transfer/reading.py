"""Reading plans: which process reads what of some files, so that no byte is read twice.

In: tensors to be made, how they are to be laid out, and their recipes. Out: for each tensor either
*direct* reads, every process its own pieces, or *slabs* that one process each reads and passes on.
All processes derive the same plan, so that nothing is negotiated.

Choosing readers: who reads a slab, so that all read about equally much and pass on little.

In: which process holds which pieces, and slabs one after the other. Out: a process for each.
Tensors of one shape and sharding share what is known of them, and processes that need the same of a
slab are one group, so that the time hardly depends on how many there are.

Slabs: boxes of bounded size, cut so that what a file holds side by side stays together.

In: a recipe, a box of its result, and how many bytes a slab may have. Out: boxes.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from heapq import heapify, heapreplace
from typing import final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.box import Box
from meshard.runtime.types import Block
from meshard.weights.catalogue.stored import Catalogue, Stored
from meshard.weights.maps.recipe import Recipe
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


def dim_order(recipe: Recipe, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the result's dims, those along which its sources lie furthest apart first.

    >>> from meshard.weights.maps.recipe import Stride, Term
    >>> import numpy as np
    >>> turned = (Stride(3, 1, 1, 0, 1), Stride(2, 0, 1, 1, 1))
    >>> recipe = Recipe((3, 2), np.dtype("f4"), (Term("w", turned, (0, 0), (0, 0)),))
    >>> dim_order(recipe, {"w": (2, 3)})
    (1, 0)
    """
    steps = [0] * len(recipe.shape)
    term = max(recipe.terms, key=lambda t: t.volume, default=None)
    if term is None:
        return tuple(range(len(steps)))
    shape = shapes[term.source]
    for s in term.strides:
        if s.source is not None:
            far = s.source_step * math.prod(shape[s.source + 1 :])
            steps[s.target] = max(steps[s.target], far)
    return tuple(sorted(range(len(steps)), key=lambda d: (-steps[d], d)))


def marks_of(recipe: Recipe, tensors: Mapping[str, Stored]) -> tuple[list[int], ...]:
    """Return where the pieces of a recipe's source begin along each dim; nothing unless it is one.

    Slabs that end there hold whole pieces, whose checksums are then looked at.
    """
    if not recipe.is_identity:
        return ()
    boxes = [p.box for p in tensors[recipe.sources[0]].pieces]
    return tuple([sorted({0, *column}) for column in zip(*[b.starts for b in boxes], strict=True)])


def slabs_of(
    box: Box, order: Sequence[int], most: int, marks: Sequence[Sequence[int]] = ()
) -> Iterator[Box]:
    """Yield boxes of at most that many elements, cut along the dims in the order given.

    Args:
        box: what is cut.
        order: the dims.
        most: elements of a box; it has one at least.
        marks: for each dim, in ascending order, where it had best be cut: where what has one
            checksum begins.

    >>> [str(b) for b in slabs_of(Box((0,), (9,)), (0,), 4, [[0, 3, 6]])]
    ['[0:3]', '[3:6]', '[6:9]']
    >>> [str(b) for b in slabs_of(Box((0, 0), (4, 3)), (0, 1), 6)]
    ['[0:2, 0:3]', '[2:4, 0:3]']
    """
    if box.volume <= most or not order:
        yield box
        return
    dim, rest = order[0], order[1:]
    start, stop = box.starts[dim], box.stops[dim]
    row = box.volume // (stop - start)
    step, a = max(1, most // row), start
    while a < stop:
        b = min(a + step, stop)
        if marks and b < stop:
            mark = marks[dim][max(bisect_right(marks[dim], b) - 1, 0)]
            b = mark if mark > a else b
        part = Box(_at(box.starts, dim, a), _at(box.stops, dim, b))
        if row > most:
            yield from slabs_of(part, rest, most, marks)
        else:
            yield part
        a = b


def _at(index: tuple[int, ...], dim: int, value: int) -> tuple[int, ...]:
    return (*index[:dim], value, *index[dim + 1 :])


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
