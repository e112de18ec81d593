"""Plans of restores, as values: what comes from where, beside the least that any plan could move.

In: for each array what is still held of it, by whom, and where it is to be. Out: a `RestorePlan`.
Every process derives the same plan from layouts alone.

What a checkpoint gives: the boxes that nobody has in memory, and who reads each of them.

In: what is still held of an array, and where it is to be. Out: a grid with one reader for each lost
cell, among the processes that need it; and its elements, read from just those byte ranges.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import xxhash

from meshard.algebra.arguments import path_of
from meshard.algebra.box import Box
from meshard.algebra.layout import Layout, balanced_cuts
from meshard.errors import CheckpointError, did_you_mean
from meshard.plan.captions import count_text, size_unit, whole_text
from meshard.plan.figures.simulate import Simulation, simulate_many
from meshard.plan.figures.topology import Topology
from meshard.plan.hops.cells import Units, each_device
from meshard.plan.hops.hop import Hop, near_hops, unit_map
from meshard.plan.hops.jobs import Tally, total
from meshard.plan.show.report import Table
from meshard.plan.show.summary import Fact, Summarized, Summary
from meshard.resilience.copies.stocks import Stock, gridded, left, onto, refined, united
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


_ROWS = 12
_ROUNDS = 2
"""How often each array's donors look at what they send of others."""
ARRAYS, COPIES, CHECKPOINT = "arrays", "copies", "checkpoint"
KINDS = (ARRAYS, COPIES, CHECKPOINT)
"""Where boxes come from, the cheapest first."""


@final
@dataclass(frozen=True)
class Wanted:
    """An array that is to be brought to a layout.

    Attributes:
        name: its name in the tree.
        text: its type, as in ``"float32[4,8]"``.
        itemsize: bytes of an element.
        own: what the array's own devices held, as a grid.
        copies: what was kept on purpose, as a grid; None for nothing.
        destination: where it is to be.
    """

    name: str
    text: str
    itemsize: int
    own: Layout
    copies: Layout | None
    destination: Layout


@final
@dataclass(frozen=True)
class RestoredArray:
    """One array of a plan: its sources in one layout, and what they give.

    Attributes:
        wanted: the array, and where it is to be.
        whole: all its sources that are left, as one grid.
        columns: how many holders of each cell are the array's own devices, and how many others
            have a copy; the rest reads it from the checkpoint.
        cells: the cells that are read, with the device of the reader of each; None for none.
        process_of: the process of each device that takes part.
        unit: what sends and receives: ``"process"`` or ``"device"``.
        hosts: the host of each process; None if all are on one.
        known: the exchanges of all arrays of the plan, as far as they were asked for.
        loads: for each layout before and after what processes send of other arrays.
    """

    wanted: Wanted
    whole: Layout
    columns: tuple[int, int]
    cells: Layout | None
    process_of: Mapping[int, int]
    unit: str
    hosts: Mapping[int, int] | None
    known: dict[tuple[str, Layout, Layout], tuple[Hop, ...]] = field(compare=False, repr=False)
    loads: dict[tuple[Layout, Layout], dict[int, int]] = field(compare=False, repr=False)

    @cached_property
    def alive(self) -> frozenset[int]:
        """The devices that hold, or read, some cell."""
        ids = np.unique(self.whole.tensor)
        return frozenset(ids[ids >= 0].tolist())

    @property
    def hops(self) -> tuple[Hop, ...]:
        """The exchanges between processes; between devices, if there is one process only.

        There is one for the receivers of each host, if there are several hosts.
        """
        if self.unit == "device":
            return self.device_hops
        return self._known("process", lambda: unit_map(self.process_of), self.load)

    @property
    def load(self) -> Mapping[int, int] | None:
        """The elements that each process sends of other arrays, for one of all alike ones."""
        return self.loads.get((self.whole, self.wanted.destination))

    @property
    def device_hops(self) -> tuple[Hop, ...]:
        """The exchanges between devices."""
        return self._known("device", lambda: each_device)

    @property
    def near(self) -> dict[int, int] | None:
        """The host of each device; None if all processes are on one."""
        if self.hosts is None:
            return None
        return {d: self.hosts[p] for d, p in self.process_of.items()}

    def _known(
        self, unit: str, units: Callable[[], Units], load: Mapping[int, int] | None = None
    ) -> tuple[Hop, ...]:
        """Return the exchanges of all arrays that are laid out as this one, before and after."""
        ends = self.whole, self.wanted.destination
        found = self.known.get((unit, *ends))
        if found is None:
            found = near_hops(*ends, units(), alive=self.alive, hosts=self.near, load=load)
            self.known[unit, *ends] = found
        return found

    @cached_property
    def received(self) -> dict[int, int]:
        """The bytes that each device lacks."""
        return self._sums([hop.received for hop in self.device_hops])

    @cached_property
    def sent(self) -> dict[int, int]:
        """The bytes that each process sends; each device, if there is one process only."""
        return self._sums([hop.sent for hop in self.hops])

    @cached_property
    def alone(self) -> dict[int, int]:
        """The bytes that each process must send, since nobody else holds them."""
        found: list[dict[int, int]] = []
        for hop in self.hops:
            units, cells, _ = hop.before.held
            only = hop.before.copies[cells] == 1
            found.append({})
            pairs = zip(units[only].tolist(), hop.wanted[cells[only]].tolist(), strict=True)
            for unit, count in pairs:
                found[-1][unit] = found[-1].get(unit, 0) + count * self.wanted.itemsize
        return _added(found)

    def forget(self) -> None:
        """Forget the exchange: what others send has changed."""
        self.known.pop((self.unit, self.whole, self.wanted.destination), None)
        vars(self).pop("sent", None)

    def _sums(self, tallies: Sequence[Tally]) -> dict[int, int]:
        size = self.wanted.itemsize
        return _added([{u: n * size for u, n in t.as_dict().items()} for t in tallies])

    @property
    def bytes_moved(self) -> int:
        """The bytes that enter processes which lack them."""
        return sum(hop.moved for hop in self.hops) * self.wanted.itemsize

    @cached_property
    def kinds(self) -> Ints:
        """For each cell where it comes from, as a number in `KINDS`."""
        own, copies = self.columns
        held = self.whole.tensor.reshape(self.whole.piece_count, -1) >= 0
        found = np.full(len(held), KINDS.index(CHECKPOINT))
        found[held[:, own : own + copies].any(axis=1)] = KINDS.index(COPIES)
        found[held[:, :own].any(axis=1)] = KINDS.index(ARRAYS)
        return found

    @cached_property
    def moved(self) -> dict[str, int]:
        """The bytes that enter processes which lack them, by where they come from."""
        every = [hop.wanted for hop in self.hops]
        return {
            kind: sum(total(n[self.kinds == number]) for n in every) * self.wanted.itemsize
            for number, kind in enumerate(KINDS)
        }

    @cached_property
    def read(self) -> dict[int, int]:
        """The bytes that each process reads from the checkpoint."""
        found: dict[int, int] = {}
        if self.cells is not None:
            for piece, reader in enumerate(self.cells.tensor.reshape(-1).tolist()):
                if reader >= 0:
                    process = self.process_of[reader]
                    nbytes = self.cells.box(piece).volume * self.wanted.itemsize
                    found[process] = found.get(process, 0) + nbytes
        return found

    @cached_property
    def unheld(self) -> tuple[Box, ...]:
        """The boxes that nobody has in memory."""
        if self.cells is None:
            return ()
        readers = self.cells.tensor.reshape(-1).tolist()
        return tuple([self.cells.box(i) for i, reader in enumerate(readers) if reader >= 0])

    @cached_property
    def lost_bytes(self) -> int:
        """The bytes that the array has lost: those that none of its own devices holds."""
        volumes = self.hops[0].volumes[0]
        return total(volumes[self.kinds != KINDS.index(ARRAYS)]) * self.wanted.itemsize

    @property
    def needed(self) -> int:
        """The bytes that all processes together are to hold."""
        volumes = [total(hop.volumes[1][hop.after.held[1]]) for hop in self.hops]
        return sum(volumes) * self.wanted.itemsize


@final
@dataclass(frozen=True, repr=False)
class RestorePlan(Summarized):
    """What a restore will do; it prints as a table.

    Attributes:
        arrays: each array with its sources.
        checkpoint: the checkpoint that boxes are read from; None if none was given.
        unit: what sends and receives: ``"process"``, or ``"device"`` if there is one process only.

    >>> import meshard
    >>> from meshard import elastic
    >>> devices = meshard.devices()
    >>> x = meshard.device_put(meshard.numpy.arange(8.0), devices[0])
    >>> elastic.plan_restore({"x": x}, devices[0]).bytes_moved  # it is there already
    0
    """

    arrays: tuple[RestoredArray, ...]
    checkpoint: str | None = None
    unit: str = "process"

    @cached_property
    def lost(self) -> dict[str, tuple[Box, ...]]:
        """The boxes that nobody has, by the name of the array; empty if all can be restored."""
        if self.checkpoint is not None:
            return {}
        return {a.wanted.name: a.unheld for a in self.arrays if a.unheld}

    @cached_property
    def moved(self) -> dict[str, int]:
        """The bytes that move, by where they come from: arrays, copies, checkpoint."""
        return {kind: sum(a.moved[kind] for a in self.arrays) for kind in KINDS}

    @cached_property
    def bytes_moved(self) -> int:
        """Bytes that pass between processes."""
        return sum(a.bytes_moved for a in self.arrays)

    @cached_property
    def bound(self) -> int:
        """The least bytes that must enter processes which lack them; stored bytes are read once."""
        return sum(h.received.total * a.wanted.itemsize for a in self.arrays for h in a.hops)

    @cached_property
    def bytes_lost(self) -> int:
        """Bytes that the arrays have lost, replicas not counted."""
        return sum(a.lost_bytes for a in self.arrays)

    @cached_property
    def bytes_read(self) -> int:
        """Bytes that are read from the checkpoint, each once."""
        return sum(self.read.values())

    @cached_property
    def read(self) -> dict[int, int]:
        """The bytes that each process reads."""
        return _added([a.read for a in self.arrays])

    @cached_property
    def sent(self) -> dict[int, int]:
        """The bytes that each process sends."""
        return _added([a.sent for a in self.arrays])

    @property
    def largest_sender_bytes(self) -> int:
        """The most bytes that one process sends."""
        return max(self.sent.values(), default=0)

    @cached_property
    def least_sender_bytes(self) -> int:
        """The bytes that the largest sender sends at least: what it alone holds, or the mean."""
        alone = _added([a.alone for a in self.arrays])
        mean = -(-self.bytes_moved // max(1, len(self.sent)))
        return max([mean, *alone.values()])

    @property
    def balance(self) -> float:
        """What the largest sender sends, divided by what it must send at least."""
        return self.largest_sender_bytes / self.least_sender_bytes if self.bytes_moved else 1.0

    @property
    def digest(self) -> str:
        """A short text that stands for the plan: the same on all processes."""
        told = [
            (a.wanted.name, a.wanted.text, a.whole.tensor.tobytes(), a.whole.cuts, a.columns)
            for a in self.arrays
        ]
        ends = [_told(a.wanted.destination) for a in self.arrays]
        return xxhash.xxh3_64_hexdigest(repr((told, ends, self.checkpoint is None)).encode())

    def simulate(self, topology: Topology | str) -> Simulation:
        """Return the time and the traffic of each level that a topology predicts.

        Args:
            topology: where the devices are, or the name of a preset, as in ``"8-gpu hosts"``.

        Raises:
            ArgumentError: if there is no such topology, or a device has no place in it.
        """
        moves = [(hop, a.wanted.itemsize, 1) for a in self.arrays for hop in a.device_hops]
        return simulate_many(moves, topology)

    def __repr__(self) -> str:
        arrays, lost = count_text(len(self.arrays), "array"), len(self.lost)
        told = f", {lost} of them with lost boxes" if lost else ""
        return f"RestorePlan({arrays}, {self.bytes_moved} bytes moved{told})"

    @cached_property
    def unheld_bytes(self) -> int:
        """The bytes that nobody has and no checkpoint gives: they cannot be restored."""
        sizes = {a.wanted.name: a.wanted.itemsize for a in self.arrays}
        return sum(b.volume * sizes[n] for n, boxes in self.lost.items() for b in boxes)

    def _summary(self) -> Summary:
        arrays, moved = count_text(len(self.arrays), "array"), whole_text(self.bytes_moved)
        if self.lost:
            told = (
                f"Not safe: {whole_text(self.unheld_bytes)} of {arrays} are lost; nobody has them"
            )
        else:
            told = f"Safe: {arrays} can be restored, and {moved} move"
        least = self.bytes_moved / self.bound if self.bound else 1.0
        kinds = [f"{whole_text(n)} from {kind}" for kind, n in self.moved.items() if n]
        sent = f"by one {self.unit} at most, {self.balance:.2f} x the least possible"
        facts = [
            Fact("gone", whole_text(self.bytes_lost), "that the arrays' own devices do not hold"),
            Fact("moved", moved, ", ".join([f"{least:.2f} x the least possible", *kinds])),
            Fact("sent", whole_text(self.largest_sender_bytes), sent),
        ]
        if self.checkpoint is not None:
            facts.append(Fact("read", whole_text(self.bytes_read), f"of {self.checkpoint}"))
        tables = [self._table()]
        if self.lost:
            rows = [
                (name, ", ".join(map(str, boxes[:4])) + ", ..." * (len(boxes) > 4))
                for name, boxes in list(self.lost.items())[:_ROWS]
            ]
            rest = len(self.lost) - len(rows)
            notes = [f"and parts of {count_text(rest, 'more array')}"] if rest else []
            tables.insert(0, Table(("nobody has", "boxes"), rows, "<~", notes))
        return Summary(told, facts, tables)

    def _table(self) -> Table:
        order = sorted(self.arrays, key=lambda a: -a.needed)
        figures = []
        for a in order[:_ROWS]:
            came = (a.moved[ARRAYS], a.moved[COPIES], a.moved[CHECKPOINT])
            read = sum(a.read.values()) if self.checkpoint is not None else 0
            figures.append((a.needed - a.bytes_moved, *came, read))
        unit = size_unit([n for row in figures for n in row])
        rows = [
            (a.wanted.name, a.wanted.text, *map(unit.text, row))
            for a, row in zip(order, figures, strict=False)
        ]
        more = len(order) - len(rows)
        notes = [f"in {unit.name}"] + ([f"and {more:,} smaller arrays"] if more > 0 else [])
        head = ("array", "type", "in place", "from arrays", "from copies", "passed on", "read")
        return Table(head, rows, "<<>>>>>", notes)


def _told(layout: Layout) -> object:
    if layout.regular:
        return layout.cuts, layout.tensor.tobytes()
    return [(b, layout.holders(i)) for i, b in enumerate(layout.boxes)]


def _added(counts: Sequence[Mapping[int, int]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for each in counts:
        for unit, n in each.items():
            found[unit] = found.get(unit, 0) + n
    return dict(sorted(found.items()))


def plan_arrays(
    wanted: Sequence[Wanted],
    alive: frozenset[int],
    process_of: Mapping[int, int],
    checkpoint: str | None,
    unit: str,
    hosts: Mapping[int, int] | None = None,
) -> RestorePlan:
    """Return what brings arrays to where they are wanted.

    Args:
        wanted: the arrays.
        alive: the devices whose memory is still there.
        process_of: the process of each device that is alive, or that is to hold something.
        checkpoint: where the boxes are read from that nobody has in memory; None if there is none.
        unit: what sends and receives: ``"process"``, or ``"device"`` if there is one process only.
        hosts: the host of each process; None if all are equally near.
    """
    readers = Readers(process_of)
    found: list[RestoredArray] = []
    known: dict[tuple[str, Layout, Layout], tuple[Hop, ...]] = {}
    loads: dict[tuple[Layout, Layout], dict[int, int]] = {}
    for one in wanted:
        whole, columns, cells = _sources(one, alive, readers)
        there = np.unique(whole.tensor).tolist()
        used = {d for d in there if d >= 0} | one.destination.device_ids
        owners = {d: process_of[d] for d in sorted(used)}
        array = RestoredArray(one, whole, columns, cells, owners, unit, hosts, known, loads)
        found.append(array)
    if unit == "process":
        _share_among(found, loads)
    return RestorePlan(tuple(found), checkpoint, unit)


def _share_among(
    arrays: Sequence[RestoredArray], loads: dict[tuple[Layout, Layout], dict[int, int]]
) -> None:
    """Let the donors of each array take into account what they send of others.

    What a process must send, as nobody else has it, counts from the beginning; what it sends by
    choice counts for the arrays behind. Arrays that are laid out alike are one.
    """
    groups: dict[tuple[Layout, Layout], list[RestoredArray]] = {}
    for array in arrays:
        groups.setdefault((array.whole, array.wanted.destination), []).append(array)
    if len(groups) < 2:
        return
    sent = _added([a.alone for a in arrays])
    chosen: dict[tuple[Layout, Layout], dict[int, int]] = {}
    for ends, alike in [*groups.items()] * _ROUNDS:
        first, size = alike[0], sum(a.wanted.itemsize for a in alike)
        each, before = first.wanted.itemsize, chosen.get(ends, {})
        alone = {u: n // each * size for u, n in first.alone.items()}
        others = {u: n - before.get(u, 0) - alone.get(u, 0) for u, n in sent.items()}
        loads[ends] = {u: n // size for u, n in others.items()}
        first.forget()
        found = {u: n // each * size - alone.get(u, 0) for u, n in first.sent.items()}
        sent = _added([others, alone, found])
        chosen[ends] = found


def _sources(
    wanted: Wanted, alive: frozenset[int], readers: Readers
) -> tuple[Layout, tuple[int, int], Layout | None]:
    """Return an array's sources as one grid, their columns, and the cells that are read."""
    parts = [left(wanted.own, alive)]
    if wanted.copies is not None:
        parts.append(left(wanted.copies, alive))
    whole = united(parts)
    cells = readers.cells(whole, wanted.destination, wanted.itemsize)
    if cells is not None:
        whole = united([*parts, cells])
    counts = [int(part.tensor.shape[-1]) for part in parts]
    return whole, (counts[0], sum(counts[1:])), cells
