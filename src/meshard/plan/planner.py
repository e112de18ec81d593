"""The planner, which chooses the best route between two layouts and remembers it.

In: arrays' layouts before and after, and limits on the move. Out: a `Plan`. Routes are found
once for each pair of layouts *up to renaming of devices*, so that all layers of a model, and the
same layer on other devices, share a few plans.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np

from meshard.algebra.arguments import count_of
from meshard.algebra.layout import Layout
from meshard.plan.figures.choice import Candidate, Choice, Figures, PlanLeaf, figures_of
from meshard.plan.figures.footprint import between, checked_window
from meshard.plan.figures.plan_figures import checked_ids
from meshard.plan.figures.schedule import batches
from meshard.plan.figures.simulate import simulate_many
from meshard.plan.figures.topology import Topology, as_topology
from meshard.plan.hops.cells import each_device
from meshard.plan.hops.hop import Route, unit_map
from meshard.plan.plan import Plan
from meshard.plan.routes.relay import chained, striped
from meshard.plan.routes.two_phase import candidates
from meshard.plan.show.progress import telling
from meshard.tuning import (
    DETOUR_GAIN,
    LINK_BANDWIDTH,
    LINK_LATENCY,
    MOST_DETOURS,
    VAST_DETOURS,
    VAST_DEVICES,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


@final
@dataclass(frozen=True)
class CacheStatistics:
    """How often a plan was found in the cache.

    Attributes:
        hits: found for exactly the same layouts.
        renamed: found for the same layouts on other devices.
        misses: not found, and made.
        size: the number of plans kept.
        limit: the most plans that are kept.
    """

    hits: int
    renamed: int
    misses: int
    size: int
    limit: int


@final
class PlanCache:
    """Choices by pairs of layouts; the least recently used is forgotten first."""

    def __init__(self, limit: int = 4096) -> None:
        self._limit = count_of(limit, "PlanCache", "limit", least=1)
        self._same: OrderedDict[Hashable, Choice] = OrderedDict()
        self._alike: OrderedDict[Hashable, tuple[Choice, Ints]] = OrderedDict()
        self._counts = [0, 0, 0]

    @property
    def statistics(self) -> CacheStatistics:
        """How often a plan was found, and how many are kept."""
        hits, renamed, misses = self._counts
        return CacheStatistics(hits, renamed, misses, len(self._alike), self._limit)

    def __repr__(self) -> str:
        return f"PlanCache({self.statistics})"

    def clear(self) -> None:
        """Forget all plans and counts."""
        self._same.clear()
        self._alike.clear()
        self._counts = [0, 0, 0]

    def resize(self, limit: int) -> None:
        """Set the largest number of plans that are kept.

        Raises:
            ArgumentError: if it is less than one.
        """
        self._limit = count_of(limit, "PlanCache.resize", "limit", least=1)
        self._trim()

    def find(self, leaf: PlanLeaf, options: Hashable, make: Callable[[], Choice]) -> Choice:
        """Return the choice for a leaf's layouts, and make it if it is not known."""
        key = (leaf.source, leaf.destination, leaf.itemsize, options)
        found = self._same.get(key)
        if found is not None:
            self._counts[0] += 1
            self._same.move_to_end(key)
            return found
        pattern, ids = _pattern(leaf.source, leaf.destination)
        alike_key = (pattern, leaf.itemsize, options)
        alike = self._alike.get(alike_key)
        if alike is None:
            self._counts[2] += 1
            found = make()
            self._alike[alike_key] = found, ids
        else:
            self._counts[1] += 1
            self._alike.move_to_end(alike_key)
            found = _renamed(alike[0], alike[1], ids, leaf)
        self._same[key] = found
        self._trim()
        return found

    def _trim(self) -> None:
        for kept in (self._same, self._alike):
            while len(kept) > self._limit:
                kept.popitem(last=False)


def _ids(layout: Layout) -> Ints:
    """Return the device ids of a layout, piece by piece."""
    if layout.regular:
        return layout.tensor.reshape(-1)
    return np.array([d for i in range(layout.piece_count) for d in layout.holders(i)], np.int64)


def _pattern(source: Layout, destination: Layout) -> tuple[Hashable, Ints]:
    """Return two layouts without the names of their devices, and the names as they first occur."""
    numbers, names = _numbered(np.concatenate([_ids(source), _ids(destination)]))
    shapes = tuple(
        (x.shape, tuple([c.tobytes() for c in x.points]), x.grid)
        if x.regular
        else (x.shape, x.boxes, _counts(x))
        for x in (source, destination)
    )
    return (shapes, numbers.tobytes()), names


def _numbered(ids: Ints) -> tuple[Ints, Ints]:
    """Return ids as numbers in the order in which they first occur, and the id of each number.

    >>> [x.tolist() for x in _numbered(np.array([7, 5, 7, 6, 5]))]
    [[0, 1, 0, 2, 1], [7, 5, 6]]
    """
    low, high = int(ids.min(initial=0)), int(ids.max(initial=0))
    if high - low >= 4 * len(ids):
        every, ids = np.unique(ids, return_inverse=True)
    else:
        every, ids = np.arange(low, high + 1), ids - low
    first = np.full(len(every), len(ids), np.int64)
    # Of several values for one place the last is written, so the ids come in backwards.
    first[ids[::-1]] = np.arange(len(ids) - 1, -1, -1)
    new = np.zeros(len(ids) + 1, bool)
    new[first] = True
    found = ids[np.flatnonzero(new[:-1])]
    rank = np.empty(len(every), np.int64)
    rank[found] = np.arange(len(found))
    return rank[ids], every[found]


def _counts(layout: Layout) -> tuple[int, ...]:
    return tuple([len(layout.holders(i)) for i in range(layout.piece_count)])


def _renamed(choice: Choice, before: Ints, after: Ints, leaf: PlanLeaf) -> Choice:
    """Return a choice for the same layouts on other devices."""
    order = np.argsort(before)
    known, names = before[order], after[order]

    def rename(layout: Layout) -> Layout:
        ids = _ids(layout)
        fresh = names[np.searchsorted(known, ids)]
        if layout.regular:
            return Layout(layout.shape, layout.cuts, fresh.reshape(layout.tensor.shape))
        holders, at = [], 0
        for count in _counts(layout):
            holders.append(tuple(fresh[at : at + count].tolist()))
            at += count
        return Layout(
            layout.shape, layout.cuts, None, boxes=layout.boxes, box_holders=tuple(holders)
        )

    route = choice.route
    middle = [rename(x) for x in route.layouts[1:-1]]
    return replace(choice, route=replace(route, layouts=(leaf.source, *middle, leaf.destination)))


@final
@dataclass(frozen=True, init=False)
class PlanOptions:
    """The limits and costs of a move, and the devices that take part in it.

    Args:
        max_bytes: the most bytes in flight from and to one process at once, besides source and
            destination (`window`); None for no limit.
        donate: whether the sources may be given up as they are read.
        alive: the ids of the devices that still have their data; None for all.
        topology: what links cost, or the name of a preset, as in ``"8-gpu hosts"``; by default all
            devices are equally far from each other.
        split: whether a box may be cut between two senders.

    Raises:
        ArgumentError: if ``max_bytes`` is not a positive integer, or there is no such topology.

    >>> PlanOptions(alive=[3, 1]).alive
    (1, 3)
    """

    max_bytes: int | None
    donate: bool
    alive: tuple[int, ...] | None
    topology: Topology | None
    split: bool

    def __init__(
        self,
        *,
        max_bytes: int | None = None,
        donate: bool = False,
        alive: Collection[int] | None = None,
        topology: Topology | str | None = None,
        split: bool = True,
    ) -> None:
        what = "plan_reshard"
        for name, value in (
            ("max_bytes", checked_window(max_bytes, what)),
            ("donate", donate),
            ("alive", None if alive is None else checked_ids(alive, what)),
            ("topology", None if topology is None else as_topology(topology, what)),
            ("split", split),
        ):
            object.__setattr__(self, name, value)


_FREE = PlanOptions()


def make_plan(
    leaves: Sequence[PlanLeaf], options: PlanOptions = _FREE, *, cache: PlanCache | None = None
) -> Plan:
    """Choose the route of each leaf to its destination.

    Args:
        leaves: the arrays.
        options: the limits of the move; by default there are none.
        cache: plans that are already known; None to start with none.

    Raises:
        DataLoss: if no live device holds a part that is needed.
    """
    known = cache if cache is not None else PlanCache()
    choices: dict[Hashable, Choice] = {}
    alike = _alike_together(leaves, options.donate)
    with telling(None if len(leaves) > 1 else False, "planning", unit="arrays") as tell:
        for number, (leaf, more) in enumerate(zip(leaves, alike, strict=True)):
            key = (leaf.source, leaf.destination, leaf.itemsize)
            found = choices.get(key)
            if found is None:
                make = functools.partial(_choice, leaf, options, more)
                found = known.find(leaf, (options, more), make)
                choices[key] = replace(found, count=1)
            else:
                choices[key] = replace(found, count=found.count + 1)
            if tell is not None:
                tell(number + 1, len(leaves))
    make_one = functools.partial(
        Plan,
        tuple(leaves),
        max_bytes=options.max_bytes,
        donate=options.donate,
        alive=options.alive,
    )
    plan = make_one(tuple(choices.values()))
    kept = [_within(plan, number) for number in range(len(plan.choices))]
    plan = plan if all(map(operator.is_, kept, plan.choices)) else make_one(kept)
    return plan if options.topology is None else plan.on(options.topology)


def _alike_together(leaves: Sequence[PlanLeaf], donate: bool) -> list[int]:
    """Return for each leaf how many arrays move with it between the same devices, roughly.

    They share messages, so that each pays for a part of them only. The numbers are powers of two,
    lest a tree that is a little longer be planned anew.
    """
    if len(leaves) == 1:
        return [1]
    known: dict[int, Hashable] = {}
    ways = [tuple([_arrangement(x, known) for x in (y.source, y.destination)]) for y in leaves]
    together: Counter[Hashable] = Counter()
    parts: Counter[Hashable] = Counter()
    for numbers in batches(leaves, donate=donate):
        own = [ways[n] for n in numbers]
        together.update(own)
        parts.update(set(own))
    return [1 << (together[way] // parts[way]).bit_length() - 1 for way in ways]


def _arrangement(layout: Layout, known: dict[int, Hashable]) -> Hashable:
    """Return on which devices the pieces of a layout are, whatever their sizes."""
    found = known.get(id(layout))
    if found is None:
        found = known[id(layout)] = (layout.grid, _ids(layout).tobytes())
    return found


def _within(plan: Plan, number: int) -> Choice:
    """Return a choice, or the direct route if a process would hold too much between its hops."""
    choice, leaf = plan.choices[number], plan.groups[number][0]
    if plan.max_bytes is None or len(choice.route.layouts) < 3:
        return choice
    units = each_device if plan.process_of is None else unit_map(plan.process_of)
    kept = between(choice.route, leaf.itemsize, units)
    if kept <= plan.max_bytes // 2:
        return choice
    route = replace(choice.route, name="direct", layouts=(leaf.source, leaf.destination), why="")
    figures = figures_of(route, leaf.itemsize, donate=plan.donate)
    other = Candidate(
        choice.route.name,
        choice.figures,
        f"between its hops a process would hold {kept:,} bytes, more than half of max_bytes",
    )
    why = "every byte goes once, straight to where it is needed"
    return Choice(route, figures, why, (other,), choice.count)


def _choice(leaf: PlanLeaf, options: PlanOptions, alike: int = 1) -> Choice:
    """Return the best of all routes for one leaf, of which some alike move together."""
    direct = Route(
        "direct", (leaf.source, leaf.destination), split=options.split, alive=options.alive
    )
    detours, reason = [], None
    if options.topology is None:
        reason = _no_detour(direct, leaf.itemsize, options.donate, alike)
    if reason is None:
        detours = _detours(direct, leaf.itemsize, options)
    costed = [_costed(route, leaf.itemsize, options, alike) for route in (direct, *detours)]
    best = _best(costed, options)
    route, figures, _ = costed[best]
    others = [n for n in range(len(costed)) if n != best]
    others.sort(key=lambda n: (n > 0, costed[n].time))
    beaten = tuple([costed[n].beaten_by(costed[best]) for n in others])
    if reason is not None:
        beaten = (Candidate("any detour", None, reason),)
    why = route.why if best else "every byte goes once, straight to where it is needed"
    return Choice(route, figures, why, beaten, 1)


DETOURS = (striped, chained)
"""What may find a route between two layouts, or None: each is told the direct hop."""


def _detours(direct: Route, itemsize: int, options: PlanOptions) -> list[Route]:
    """Return the routes that may be better than the direct one."""
    ends, alive, split = (direct.source, direct.destination), options.alive, options.split
    found = [make(*ends, direct=direct.hops[0], split=split, alive=alive) for make in DETOURS]
    limit = MOST_DETOURS if direct.source.device_count < VAST_DEVICES else VAST_DETOURS
    most = None if options.max_bytes is None else options.max_bytes // itemsize
    return [route for route in found if route is not None] + candidates(
        *ends, limit=limit, most=most, split=split, alive=alive
    )


@final
class _Costed(NamedTuple):
    """A route, its figures, and the seconds that it is predicted to take."""

    route: Route
    figures: Figures
    time: float

    def beaten_by(self, best: _Costed) -> Candidate:
        """Return why a better one was taken: its time in relation to the best, and its bytes."""
        ratio = self.time / best.time if best.time else 1.0
        more = self.figures.bytes_moved > best.figures.bytes_moved
        parts = [f"{ratio:.2f}x the time", "but more bytes" if ratio < 1 and more else ""]
        told = "; ".join([p for p in (*parts, self.route.why) if p])
        return Candidate(self.route.name, self.figures, told)


def _costed(route: Route, itemsize: int, options: PlanOptions, alike: int) -> _Costed:
    figures = figures_of(route, itemsize, donate=options.donate)
    return _Costed(route, figures, _time(route, figures, itemsize, options.topology, alike))


def _best(costed: Sequence[_Costed], options: PlanOptions) -> int:
    """Return which route is best; the first is the direct one.

    A detour must be quicker by a margin, and must not take more memory than the window. Without a
    topology it is unknown whether messages cost more than bytes, so it must not move more.
    """
    straight, best = costed[0], 0
    for number, (_, figures, time) in enumerate(costed[1:], 1):
        extra = figures.peak_bytes - straight.figures.peak_bytes
        within = options.max_bytes is None or extra <= options.max_bytes
        if options.topology is None:
            within = within and figures.bytes_moved <= straight.figures.bytes_moved
        if within and time < DETOUR_GAIN * min(straight.time, costed[best].time):
            best = number
    return best


def _no_detour(direct: Route, itemsize: int, donate: bool, alike: int) -> str | None:
    """Return why no detour can be better than the direct route; None if one might be."""
    (hop,) = direct.hops
    if not hop.moved:
        return "nothing moves"
    if hop.sent.most > hop.received.most:
        return None
    figures = figures_of(direct, itemsize, donate=donate)
    time = _time(direct, figures, itemsize, None, alike)
    least = hop.received.most * itemsize / LINK_BANDWIDTH
    if least < DETOUR_GAIN * time:
        return None
    return (
        f"what one device receives takes {least / time:.0%} of the direct way's time, and no "
        "detour reduces that"
    )


def _time(
    route: Route, figures: Figures, itemsize: int, topology: Topology | None, alike: int
) -> float:
    """Return the predicted seconds of a route for one array of some that move together."""
    if topology is not None:
        moves = [(route, itemsize, alike)]
        return simulate_many(moves, topology, together={frozenset([0]): 1}).seconds / alike
    most = sum(max(hop.sent.most, hop.received.most) for hop in route.hops) * itemsize
    devices = max(1, route.destination.device_count)
    return most / LINK_BANDWIDTH + LINK_LATENCY * figures.messages / devices / alike
