"""Assembly: the copies and messages that build the pieces of one layout from others.

In: the destination's layout and, for each source, its layout and one `DimMap` per dim. Out: a
`Part`, the work of one process. A reshard is the identity map; a slice, a flip, a pad or a
concatenation are other maps. Both ends of a message derive it from the layouts alone, in one
canonical order, so nothing is negotiated.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import final

from meshard.algebra.box import Box, Index
from meshard.algebra.dimmap import DimMap
from meshard.algebra.layout import Cuts, Layout
from meshard.plan.hops.cells import Units
from meshard.plan.hops.hop import Hop, near_hops, unit_map
from meshard.plan.hops.jobs import Jobs, flat_boxes
from meshard.plan.move.part import Copy, Message, Ownership, Part, Recipe, ownership, with_replicas
from meshard.tuning import MANY_PIECES


@final
@dataclass(frozen=True, slots=True)
class Source:
    """An operand of an assembly.

    Attributes:
        layout: how it is laid out.
        maps: how each destination dim reads from it; None for the identity.
        onto: for each dim the destination position of the map's first element, and the distance
            between its elements; None if the map's positions are the destination's.
        flat: whether the destination has one dim, with the elements in C order; no maps are used.
        alive: the devices that still hold their part; None for all.
        near: the host of each device, if holders on the receiver's own give before others; the
            layout is then a grid, and ``alive`` is given.
        load: the elements that each process sends of other arrays; they count if some devices are
            gone.
    """

    layout: Layout
    maps: tuple[DimMap, ...] | None = None
    onto: tuple[tuple[int, int], ...] | None = None
    flat: bool = False
    alive: frozenset[int] | None = None
    near: Mapping[int, int] | None = None
    load: Mapping[int, int] | None = None


@final
class _SourceCells:
    """A source seen as a product grid: the layout's own, or the refinement of an irregular one."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.cuts: tuple[Cuts, ...] = layout.cuts
        self._covers: dict[tuple[int, ...], list[int]] = {}
        if not layout.regular:
            for piece, box in enumerate(layout.boxes):
                spans = [
                    range(bisect_left(c, a), bisect_left(c, b))
                    for c, a, b in zip(self.cuts, box.starts, box.stops, strict=True)
                ]
                for cell in product(*spans):
                    self._covers.setdefault(cell, []).append(piece)

    def pieces(self, cell: tuple[int, ...]) -> list[int]:
        """Return the pieces that hold a cell."""
        if self.layout.regular:
            return [self.layout.piece_at(cell)]
        return self._covers[cell]

    def offset(self, cell: tuple[int, ...], piece: int) -> tuple[int, ...]:
        """Return where a cell begins inside a piece."""
        if self.layout.regular:
            return (0,) * len(cell)
        starts = self.layout.box(piece).starts
        return tuple([c[i] - a for c, i, a in zip(self.cuts, cell, starts, strict=True)])


def _identity_runs(cuts: Cuts, start: int, stop: int) -> list[tuple[int, int, int, int, int]]:
    """Return the runs of ``[start, stop)``: destination, length, shard, source, step."""
    runs = []
    shard = bisect_left(cuts, start + 1) - 1
    while start < stop:
        end = min(stop, cuts[shard + 1])
        if end > start:
            runs.append((start, end - start, shard, start - cuts[shard], 1))
            start = end
        shard += 1
    first = runs[0][0] if runs else 0
    return [(at - first, length, shard, source, step) for at, length, shard, source, step in runs]


def _span(source: int, length: int, step: int) -> slice:
    """Return the slice that reads ``length`` positions, starting at ``source``."""
    if step > 0:
        return slice(source, source + step * (length - 1) + 1, step if step > 1 else None)
    if step == 0:
        return slice(source, source + 1)
    stop = source + step * (length - 1) - 1
    return slice(source, stop if stop >= 0 else None, step)


def _boxes(
    operand: int, source: Source, cells: _SourceCells, piece: int, box: Box
) -> Iterator[list[Copy]]:
    """Yield for each overlapping cell of a source the copies that could provide its part."""
    if not source.flat:
        yield from _box_copies(operand, source, cells, piece, box)
        return
    at = 0
    for starts, stops in flat_boxes(source.layout.shape, box.starts[0], box.stops[0]):
        part = Box(starts, stops)
        yield from _box_copies(operand, source, cells, piece, part, (at, part.shape))
        at += part.volume


def _box_copies(
    operand: int,
    source: Source,
    cells: _SourceCells,
    piece: int,
    box: Box,
    within: tuple[int, tuple[int, ...]] | None = None,
) -> Iterator[list[Copy]]:
    per_dim = []
    strides: list[tuple[int, int]] = []
    for dim, (start, stop) in enumerate(zip(box.starts, box.stops, strict=True)):
        cuts = cells.cuts[dim]
        if source.onto is not None:
            first, step = source.onto[dim]
            size = source.layout.shape[dim] if source.maps is None else source.maps[dim].size
            low, high = (min(max(-((first - p) // step), 0), size) for p in (start, stop))
            strides.append((first + step * low - start, step))
            start, stop = low, max(low, high)
        per_dim.append(
            _identity_runs(cuts, start, stop)
            if source.maps is None
            else source.maps[dim].runs(start, stop, cuts)
        )
    for runs in product(*per_dim):
        cell = tuple([r[2] for r in runs])
        if strides:
            target = tuple(
                [_span(at + s * r[0], r[1], s) for (at, s), r in zip(strides, runs, strict=True)]
            )
        else:
            target = tuple([slice(r[0], r[0] + r[1]) for r in runs])
        shape = tuple([r[1] for r in runs])
        choices = []
        for origin in cells.pieces(cell):
            at = cells.offset(cell, origin)
            region = tuple([_span(o + r[3], r[1], r[4]) for o, r in zip(at, runs, strict=True)])
            choices.append(Copy(operand, origin, region, piece, target, shape, within))
        yield choices


def overlaps(source: Source, destination: Layout, piece: int) -> list[tuple[int, list[int]]]:
    """Return the cells of a source that one piece of a destination reads.

    Each is given as its number of elements and the source's pieces that hold it.
    """
    found = []
    for choices in _boxes(0, source, _SourceCells(source.layout), piece, destination.box(piece)):
        found.append((math.prod(choices[0].shape), [c.origin for c in choices]))
    return found


def assemble(
    destination: Layout,
    sources: Sequence[Source],
    process_of: Mapping[int, int] | None = None,
    me: int = 0,
    hosts: Sequence[int] | None = None,
) -> Part:
    """Return the work of process ``me`` to build its pieces of ``destination``.

    Args:
        destination: the layout to reach.
        sources: where the elements come from. Where they overlap, the later ones win, and
            the first must then be laid out as the destination is.
        process_of: the process of each device id; None when one process holds all.
        me: the process whose part is wanted.
        hosts: the number of each process's host, if the processes of one host can map each
            other's memory; the part then says how replicas on a host can share memory.

    A process copies what it holds itself. If several others hold what it lacks, they share the
    sending evenly for a single source without maps (`Hop`); otherwise receivers take turns.
    """
    part = _alone(destination, sources, process_of, me)
    if hosts is None or process_of is None or len(sources) != 1:
        return part
    owned, volume = _owned(destination, sources[0], process_of, hosts)
    return with_replicas(part, owned, me, volume)


def _owned(
    destination: Layout, source: Source, process_of: Mapping[int, int], hosts: Sequence[int]
) -> tuple[list[Ownership], int]:
    """Return which processes build and map the pieces with replicas, and the largest size."""
    holders = _processes(source.layout, process_of, source.alive)
    cells = _SourceCells(source.layout)
    owned: list[Ownership] = []
    volume = 0
    for piece, wanted in enumerate(_processes(destination, process_of)):
        box = destination.box(piece)
        if len(wanted) < 2 or not box.volume:
            continue
        complete = set(wanted)
        for choices in _boxes(0, source, cells, piece, box):
            complete &= {p for p, _ in _owners(choices, holders)}
        found = ownership(piece, wanted, complete, hosts)
        if found:
            owned += found
            volume = max(volume, box.volume)
    return owned, volume


def _alone(
    destination: Layout,
    sources: Sequence[Source],
    process_of: Mapping[int, int] | None,
    me: int,
) -> Part:
    """Return the work of process ``me`` if every process builds all its pieces itself."""
    holders = [_processes(s.layout, process_of, s.alive) for s in sources]
    wanted = _processes(destination, process_of)
    if process_of is not None and _is_better_as_hop(sources, holders[0], wanted):
        return _exchange(destination, sources[0], process_of, me)
    cells = [_SourceCells(s.layout) for s in sources]
    found = _Found()
    gives = any(me in h for hold in holders for h in hold)
    for piece in range(destination.piece_count):
        box = destination.box(piece)
        if not box.volume or not (gives or me in wanted[piece]):
            continue
        for operand, source in enumerate(sources):
            for choices in _boxes(operand, source, cells[operand], piece, box):
                found.add(_owners(choices, holders[operand]), wanted[piece], me)
    return _part(destination, sources, wanted, me, found)


def _is_better_as_hop(
    sources: Sequence[Source],
    holders: Sequence[tuple[int, ...]],
    wanted: Sequence[tuple[int, ...]],
) -> bool:
    """Whether there are many pieces, or several processes could share the sending to another."""
    if len(sources) != 1 or not _is_plain(sources[0]):
        return False
    if sources[0].alive is not None or max(len(holders), len(wanted)) > MANY_PIECES:
        return True
    every = set.intersection(*map(set, holders)) if holders else set()
    takers = {p for processes in wanted for p in processes}
    return not takers <= every and any(len(h) > 1 for h in holders)


def _owners(choices: Sequence[Copy], holders: Sequence[tuple[int, ...]]) -> list[tuple[int, Copy]]:
    """Return the processes that hold a box, each with the copy that provides it from there."""
    return [(p, c) for c in choices for p in holders[c.origin]]


@final
class _Found:
    """The work of one process, as far as it is known.

    Attributes:
        local: for each piece the copies from blocks of its own.
        elements: for each piece how many elements it gets, from here and from others.
        sends: for each peer the boxes that it is sent.
        receives: for each peer the boxes that it sends.
    """

    def __init__(self) -> None:
        self.local: defaultdict[int, list[Copy]] = defaultdict(list)
        self.elements: defaultdict[int, int] = defaultdict(int)
        self.sends: defaultdict[int, list[Copy]] = defaultdict(list)
        self.receives: defaultdict[int, list[Copy]] = defaultdict(list)

    def add(self, owners: Sequence[tuple[int, Copy]], wanted: Sequence[int], me: int) -> None:
        """Add the work of process ``me`` for one box.

        Args:
            owners: the processes that hold it, each with the copy that provides it from there.
            wanted: the processes that need it. Those that lack it take turns among the owners.
            me: the process.
        """
        for receiver in wanted:
            mine = [o for o in owners if o[0] == receiver]
            sender, copy = mine[0] if mine else owners[receiver % len(owners)]
            if receiver == me:
                self.elements[copy.piece] += math.prod(copy.shape)
                if sender == me:
                    self.local[copy.piece].append(copy)
                else:
                    self.receives[sender].append(copy)
            elif sender == me:
                self.sends[receiver].append(copy)


def _part(
    destination: Layout,
    sources: Sequence[Source],
    wanted: Sequence[tuple[int, ...]],
    me: int,
    found: _Found,
) -> Part:
    """Return the part of process ``me``: a recipe for each of its pieces, and its messages."""
    recipes: list[Recipe | None] = []
    for piece in range(destination.piece_count):
        if me not in wanted[piece]:
            recipes.append(None)
            continue
        shape = destination.box(piece).shape
        copies = tuple(found.local[piece])
        volume, count = math.prod(shape), found.elements[piece]
        alias = copies[0] if len(copies) == 1 and count == volume else None
        if alias is not None and (
            alias.shape != shape or any(s.step not in (None, 1) for s in alias.region)
        ):
            alias = None
        recipes.append(Recipe(shape, alias, copies, count >= volume, count > volume))
    return Part(
        _with_affordable_views(recipes, sources),
        tuple(Message(p, tuple(c)) for p, c in sorted(found.sends.items())),
        tuple(Message(p, tuple(c)) for p, c in sorted(found.receives.items())),
    )


def _is_plain(source: Source) -> bool:
    return source.maps is None and source.onto is None and not source.flat


def _exchange(destination: Layout, source: Source, process_of: Mapping[int, int], me: int) -> Part:
    """Return the work of process ``me`` in a hop from one layout to another."""
    layout, cells = source.layout, _SourceCells(source.layout)
    holders = _processes(layout, process_of, source.alive)
    wanted = _processes(destination, process_of)
    found = _Found()
    for piece, processes in enumerate(wanted):
        if me not in processes:
            continue
        box = destination.box(piece)
        found.elements[piece] = box.volume
        for choices in _boxes(0, source, cells, piece, box) if box.volume else ():
            mine = next((c for c in choices if me in holders[c.origin]), None)
            if mine is not None:
                found.local[piece].append(mine)
    for hop in _hops(source, destination, unit_map(process_of)):
        for row, peer in enumerate((sends := hop.sends([me])).receiver.tolist()):
            found.sends[peer] += _carried(hop, sends, row, holders, wanted)
        for row, peer in enumerate((receives := hop.receives([me])).sender.tolist()):
            found.receives[peer] += _carried(hop, receives, row, holders, wanted)
    return _part(destination, [source], wanted, me, found)


def _hops(source: Source, destination: Layout, units: Units) -> tuple[Hop, ...]:
    """Return the exchanges between processes; several if near holders give before others."""
    ends, alive, load = (source.layout, destination), source.alive, source.load
    if alive is None:
        return (Hop(*ends, units),)
    if source.near is None:
        return (Hop(*ends, units, alive=alive, load=load),)
    return near_hops(*ends, units, alive=alive, hosts=source.near, load=load)


def _carried(
    hop: Hop,
    jobs: Jobs,
    row: int,
    holders: Sequence[tuple[int, ...]],
    wanted: Sequence[tuple[int, ...]],
) -> Iterator[Copy]:
    """Yield the copies that make up one job, for each piece of the receiver with its cell."""
    sender, receiver = int(jobs.sender[row]), int(jobs.receiver[row])
    covering = hop.before.pieces_of[int(jobs.source[row])]
    origin = next(p for p in covering if sender in holders[p])
    start = hop.source.box(origin).starts
    boxes = hop.boxes(jobs, row)
    for piece in hop.after.pieces_of[int(jobs.destination[row])]:
        if receiver not in wanted[piece]:
            continue
        first = hop.destination.box(piece).starts
        for box in boxes:
            yield Copy(0, origin, _within(box, start), piece, _within(box, first), box.shape)


def _within(box: Box, start: tuple[int, ...]) -> Index:
    """Return a box as an index into a block that begins at ``start``."""
    return tuple(
        [slice(a - s, b - s) for a, b, s in zip(box.starts, box.stops, start, strict=True)]
    )


def _processes(
    layout: Layout, process_of: Mapping[int, int] | None, alive: frozenset[int] | None = None
) -> list[tuple[int, ...]]:
    """Return for each piece the processes that hold it, ascending."""
    if process_of is None and alive is None:
        return [(0,)] * layout.piece_count
    holders = map(layout.holders, range(layout.piece_count))
    living = holders if alive is None else [[d for d in ids if d in alive] for ids in holders]
    if process_of is None:
        return [(0,) if ids else () for ids in living]
    return [tuple(sorted({process_of[d] for d in ids})) for ids in living]


def _with_affordable_views(
    recipes: Sequence[Recipe | None], sources: Sequence[Source]
) -> tuple[Recipe | None, ...]:
    """Replace views that would pin a block of which they show less than half."""
    seen: dict[tuple[int, int], int] = {}
    for recipe in recipes:
        if recipe is not None and recipe.alias is not None:
            key = (recipe.alias.operand, recipe.alias.origin)
            seen[key] = seen.get(key, 0) + math.prod(recipe.shape)
    pinned = {
        key
        for key, volume in seen.items()
        if 2 * volume < sources[key[0]].layout.box(key[1]).volume
    }
    return tuple(
        Recipe(r.shape, None, r.copies, r.covered, r.layered)
        if r is not None and r.alias is not None and (r.alias.operand, r.alias.origin) in pinned
        else r
        for r in recipes
    )
