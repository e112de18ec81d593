"""The data of a plan: arrays, their routes, and all figures, counted when they are asked for.

Flows: the bytes that each device, or group of neighbours, sends to each other one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, Self, TypeGuard, TypeVar, final

import numpy as np

from meshard.algebra.arguments import shown
from meshard.algebra.box import Box
from meshard.algebra.layout import Layout
from meshard.errors import ArgumentError
from meshard.plan.figures.bounds import bounds_of, receive_bound
from meshard.plan.figures.choice import Candidate, Choice, PlanLeaf, direct_choice
from meshard.plan.figures.footprint import (
    added,
    checked_window,
    footprint,
    jobs_at_most,
    union,
    windows,
)
from meshard.plan.figures.schedule import batches
from meshard.plan.figures.simulate import Simulation, simulate_many
from meshard.plan.figures.topology import Topology, as_topology
from meshard.plan.hops.cells import distinct
from meshard.plan.hops.hop import Hop, Route, unit_map
from meshard.plan.hops.jobs import Jobs, Tally, counter, product, total
from meshard.plan.show.progress import telling
from meshard.tuning import TABLE_JOBS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

T = TypeVar("T")


@final
class Transfer(NamedTuple):
    """One box that passes from one device to another.

    Attributes:
        choice: the number of the choice: all arrays that share it have this transfer.
        hop: the number of the hop; the next hop begins when all boxes of this one have arrived.
        sender: the id of the device that sends.
        receiver: the id of the device that receives.
        box: the region of the array.
    """

    choice: int
    hop: int
    sender: int
    receiver: int
    box: Box


@dataclass(frozen=True, init=False, repr=False)
class PlanFigures:
    """The arrays of a plan, the routes that they take, and the figures that follow.

    `Plan` is its only subclass, which adds the methods for users.

    Attributes:
        leaves: the arrays.
        choices: the choice of each distinct source, destination and element size.
        max_bytes: the most bytes in flight from and to one process at once, besides source and
            destination (`window`); None for no limit.
        donate: whether the sources are freed as they go.
        alive: the ids of the devices that have their data; None for all.
        given_rounds: how many times the window opens, if that was given.
        topology: what links cost, if the plan was made for one (`on`); it is not written to files,
            and plans that differ only in it are equal.
    """

    leaves: tuple[PlanLeaf, ...]
    choices: tuple[Choice, ...]
    max_bytes: int | None
    donate: bool
    alive: tuple[int, ...] | None
    given_rounds: int | None
    topology: Topology | None = field(compare=False)

    def __init__(
        self,
        leaves: Sequence[PlanLeaf],
        choices: Sequence[Choice] | None = None,
        *,
        max_bytes: int | None = None,
        donate: bool = False,
        alive: Collection[int] | None = None,
        rounds: int | None = None,
    ) -> None:
        listed = _listed(leaves, PlanLeaf, "leaves", "arrays, each a PlanLeaf")
        triples = Counter([_triple(leaf) for leaf in listed])
        if choices is None:
            choices = [direct_choice(*k, donate=donate, count=n) for k, n in triples.items()]
        chosen = _listed(choices, Choice, "choices", "routes, each a Choice")
        if [c.count for c in chosen] != list(triples.values()):
            raise ArgumentError(
                f"Plan: the arrays have {len(triples)} distinct triples of source, destination and "
                f"element size, with {list(triples.values())} arrays each, but the choices are for "
                f"{[c.count for c in chosen]} arrays; give one choice for each triple, with its "
                "count."
            )
        for name, value in (
            ("leaves", listed),
            ("choices", chosen),
            ("max_bytes", checked_window(max_bytes, "Plan")),
            ("donate", donate),
            ("alive", None if alive is None else checked_ids(alive, "Plan")),
            ("given_rounds", rounds),
            ("topology", None),
        ):
            object.__setattr__(self, name, value)

    # which array goes which way

    @cached_property
    def choice_of(self) -> tuple[int, ...]:
        """For each leaf the number of its choice."""
        known: dict[tuple[Layout, Layout, int], int] = {}
        return tuple([known.setdefault(_triple(leaf), len(known)) for leaf in self.leaves])

    @cached_property
    def groups(self) -> tuple[tuple[PlanLeaf, ...], ...]:
        """For each choice its leaves."""
        found: list[list[PlanLeaf]] = [[] for _ in self.choices]
        for leaf, number in zip(self.leaves, self.choice_of, strict=True):
            found[number].append(leaf)
        return tuple(map(tuple, found))

    @cached_property
    def weights(self) -> tuple[int, ...]:
        """For each choice the bytes of one element of its layouts, summed over all leaves."""
        pairs = zip(self.choices, self.groups, strict=True)
        return tuple([c.count * leaves[0].itemsize for c, leaves in pairs])

    @property
    def routes(self) -> tuple[Route, ...]:
        """For each choice its route."""
        return tuple([c.route for c in self.choices])

    # figures

    def _hops(self) -> Iterator[tuple[Hop, int]]:
        for route, weight in zip(self.routes, self.weights, strict=True):
            for hop in route.hops:
                yield hop, weight

    @cached_property
    def received_tally(self) -> Tally:
        """The bytes that each device gets from others."""
        return added((hop.received, weight) for hop, weight in self._hops())

    @cached_property
    def sent_tally(self) -> Tally:
        """The bytes that each device sends to others."""
        return added((hop.sent, weight) for hop, weight in self._hops())

    @property
    def received(self) -> dict[int, int]:
        """The bytes that each device gets from others, by device id.

        Devices of a destination that get nothing are included, with 0.
        """
        nothing = {d: 0 for route in self.routes for d in route.destination.device_ids}
        return dict(sorted((nothing | self.received_tally.as_dict()).items()))

    @property
    def sent(self) -> dict[int, int]:
        """The bytes that each device sends to others, by device id."""
        return self.sent_tally.as_dict()

    @property
    def most_sent(self) -> int:
        """The most bytes that one device sends."""
        return self.sent_tally.most

    @property
    def most_received(self) -> int:
        """The most bytes that one device receives."""
        return self.received_tally.most

    @cached_property
    def bytes_moved(self) -> int:
        """Bytes that enter a device which lacks them, over all hops."""
        return sum(hop.moved * weight for hop, weight in self._hops())

    @cached_property
    def lower_bound_bytes(self) -> int:
        """The least bytes that any plan must bring into devices which lack them."""
        found = 0
        for route, weight in zip(self.routes, self.weights, strict=True):
            ends = route.source, route.destination
            if route.alive is None:
                found += receive_bound(*ends) * weight
            else:
                found += bounds_of(*ends, alive=route.alive).moved * weight
        return found

    @property
    def ratio(self) -> float:
        """Bytes moved, divided by the lower bound; 1 is the best possible."""
        bound = self.lower_bound_bytes
        if not bound:
            return math.inf if self.bytes_moved else 1.0
        return self.bytes_moved / bound

    @cached_property
    def send_bound_bytes(self) -> int:
        """The least bytes that the largest sender must send if every array goes directly.

        The holders of a shard must send what others need of it; shards of several arrays that the
        same devices hold add up.
        """
        sums: dict[int, tuple[list[Ints], list[Ints]]] = {}
        for route, weight in zip(self.routes, self.weights, strict=True):
            hop = route.hops[0]
            if len(route.hops) > 1:
                hop = Hop(route.source, route.destination, alive=route.alive)
            holders = np.sort(hop.before.holders, axis=1)
            rows, amounts = sums.setdefault(holders.shape[1], ([], []))
            rows.append(holders)
            amounts.append(product(hop.wanted, weight))
        # All holders together send no more than the sum of the elements wanted.
        dtype = counter(2 * sum(total(x) for _, amounts in sums.values() for x in amounts))
        step = reduce(math.gcd, [leaf.itemsize for leaf in self.leaves], 0) or 1
        most = 0
        for width, (rows, amounts) in sums.items():
            every, wanted = np.concatenate(rows), np.concatenate(amounts)
            keys = every[:, 0] if width == 1 else every
            groups, place = np.unique(keys, axis=0, return_inverse=True)
            totals = np.zeros(len(groups), dtype)
            np.add.at(totals, place.reshape(-1), wanted.astype(dtype, copy=False))
            copies = np.maximum((groups.reshape(len(groups), width) >= 0).sum(axis=1), 1)
            most = max(most, int((-(-totals // (copies * step)) * step).max(initial=0)))
        return most

    @cached_property
    def peak_tally(self) -> Tally:
        """The most bytes of these arrays that are on each device at once.

        Arrays move batch by batch, in the order of the `schedule`. A source that is not donated
        stays; a donated one is freed with its batch, a large one while its destination is filled.
        The bytes in flight, at most ``max_bytes``, come on top.
        """
        if not self.leaves:
            return added([])
        prints = [
            footprint(choice.route, donate=self.donate, itemsize=group[0].itemsize)
            for choice, group in zip(self.choices, self.groups, strict=True)
        ]
        units = reduce(lambda a, b: union([a, b]), [f.units for f in prints])
        pairs = list(zip(prints, self.weights, strict=True))
        dtype = counter(4 * sum(int(f.peak.max(initial=0)) * weight for f, weight in pairs))
        amounts = [
            f.over(units).astype(dtype) * group[0].itemsize
            for f, group in zip(prints, self.groups, strict=True)
        ]
        live = sum(a[0] * c.count for a, c in zip(amounts, self.choices, strict=True))
        most = np.array(live)
        order = batches(self.leaves, donate=self.donate)
        contents = [sorted(Counter([self.choice_of[i] for i in b]).items()) for b in order]
        for content, run in groupby(contents):
            more = sum((amounts[k][1] - amounts[k][0]) * n for k, n in content)
            left = sum((amounts[k][2] - amounts[k][0]) * n for k, n in content)
            # Over a run of like batches memory grows or shrinks evenly.
            np.maximum(most, live + more, out=most)
            live = live + left * (len(list(run)) - 1)
            np.maximum(most, live + more, out=most)
            live = live + left
        return Tally(units, most)

    @cached_property
    def process_of(self) -> Mapping[int, int] | None:
        """The process of each device; None if only layouts are known."""
        shardings = {s for leaf in self.leaves for s in (leaf.source_sharding, leaf.sharding)}
        found: dict[int, int] = {}
        for sharding in shardings:
            if sharding is None:
                return None
            found.update((d.id, d.process_index) for d in sharding.device_order)
        return found

    @cached_property
    def batches(self) -> Mapping[frozenset[int], int]:
        """The numbers of choices whose arrays share messages, and how many such batches there are.

        Arrays of a batch that go directly move together; then those that make detours do.
        """
        moving = [n for n, leaf in enumerate(self.leaves) if leaf.source != leaf.destination]
        found: Counter[frozenset[int]] = Counter()
        for numbers in batches([self.leaves[n] for n in moving], donate=self.donate):
            chosen = {self.choice_of[moving[i]] for i in numbers}
            direct = frozenset([c for c in chosen if len(self.routes[c].layouts) == 2])
            found.update([some for some in (direct, frozenset(chosen - direct)) if some])
        return found

    @cached_property
    def process_hops(self) -> tuple[tuple[Hop, ...], ...]:
        """For each choice its hops between processes, or between devices if those are not known."""
        if self.max_bytes is None or self.process_of is None:
            return tuple([route.hops for route in self.routes])
        units = unit_map(self.process_of)
        return tuple([route.between(units) for route in self.routes])

    def _opens(self, stage: int, choices: Iterable[int]) -> int:
        """Return how many times the window opens for one stage of some choices, at least.

        A window without a limit opens once, as does one that nothing has to pass because
        everything stays within its process.
        """
        listed = [n for n in choices if stage < len(self.routes[n].hops)]
        if not any(self.routes[n].hops[stage].moved for n in listed):
            return 0
        pairs = [(self.process_hops[n][stage], self.weights[n]) for n in listed]
        most = max(added((getattr(h, way), w) for h, w in pairs).most for way in _WAYS)
        return max(1, windows(most, self.max_bytes))

    @cached_property
    def rounds(self) -> int:
        """How many times the window of ``max_bytes`` opens; once per hop without a limit."""
        if self.given_rounds is not None:
            return self.given_rounds
        stages = max([len(r.layouts) for r in self.routes], default=1) - 1
        return sum(self._opens(stage, range(len(self.routes))) for stage in range(stages))

    def on(self, topology: Topology | str | None) -> Self:
        """Return the same plan, which prints the time that it takes on a topology too.

        Args:
            topology: where the devices are, or the name of a preset, as in ``"8-gpu hosts"``; None
                to tell no time.

        Raises:
            ArgumentError: if there is no such topology.
        """
        found = copy(self)
        vars(found).pop("simulation", None)
        where = None if topology is None else as_topology(topology, f"{type(self).__name__}.on")
        object.__setattr__(found, "topology", where)
        return found

    def _simulated(self, topology: Topology | str) -> Simulation:
        """Return the predicted time and traffic on a topology; see `Plan.simulate`."""
        pairs = zip(self.choices, self.groups, strict=True)
        moves = [(c.route, g[0].itemsize, c.count) for c, g in pairs]
        with telling(None, "simulating", unit="moves") as tell:
            return simulate_many(moves, topology, together=self.batches, tell=tell)

    def _alone_seconds(self, number: int) -> float:
        """Return the seconds that the arrays of one choice would take if nothing else moved.

        The plan is one that was made for a topology.
        """
        assert self.topology is not None
        choice = self.choices[number]
        moves = [(choice.route, self.groups[number][0].itemsize, choice.count)]
        batches = sum(count for some, count in self.batches.items() if number in some)
        return simulate_many(moves, self.topology, together={frozenset([0]): batches}).seconds

    @cached_property
    def simulation(self) -> Simulation | None:
        """The predicted time and traffic on the topology that the plan was made for."""
        return None if self.topology is None else self._simulated(self.topology)

    @property
    def peak_bytes(self) -> int:
        """The most bytes of these arrays that are on one device at once."""
        return self.peak_tally.most

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, replicas not counted."""
        return sum(leaf.nbytes for leaf in self.leaves)

    @cached_property
    def device_count(self) -> int:
        """The number of devices that hold a part before, during or after the move."""
        ends = [g.held[0] for r in self.routes for h in r.hops for g in (h.before, h.after)]
        return len(reduce(lambda a, b: union([a, b]), ends, np.empty(0, np.int64)))

    @property
    def alternatives(self) -> tuple[Candidate, ...]:
        """The routes that were considered and not taken, over all choices."""
        return tuple([other for choice in self.choices for other in choice.others])

    def transfers(self) -> Iterator[Transfer]:
        """Yield every box that passes between devices, choice by choice and hop by hop."""
        for number, route in enumerate(self.routes):
            for stage, hop in enumerate(route.hops):
                jobs = hop.jobs()
                ends = zip(jobs.sender.tolist(), jobs.receiver.tolist(), strict=True)
                for row, (sender, receiver) in enumerate(ends):
                    for box in hop.boxes(jobs, row):
                        yield Transfer(number, stage, sender, receiver, box)


_WAYS = ("sent", "received")


def checked_ids(alive: object, what: str) -> tuple[int, ...]:
    """Return the ids of living devices, ascending.

    Raises:
        ArgumentError: if one is not the id of a device.
    """
    given: list[object] = [None]
    if isinstance(alive, Collection) and getattr(alive, "shape", None) != ():
        given = list(alive)
    ids = [int(d) for d in given if _is_id(d)]
    if len(ids) < len(given):
        raise ArgumentError(
            f"{what}: alive must be a collection of devices or their ids, which are "
            f"non-negative integers, not {shown(alive)}."
        )
    return tuple(sorted(set(ids)))


def _is_id(number: object) -> TypeGuard[int]:
    whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
    return whole and 0 <= int(number) < 1 << 63  # type: ignore[call-overload]


def _listed(given: object, kind: type[T], name: str, told: str) -> tuple[T, ...]:
    found = tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(x, kind) for x in found):
        raise ArgumentError(f"Plan: {name} must be a sequence of {told}, not {shown(given)}.")
    return found


def _triple(leaf: PlanLeaf) -> tuple[Layout, Layout, int]:
    return leaf.source, leaf.destination, leaf.itemsize


@final
@dataclass(frozen=True)
class Places:
    """Groups of devices, between which bytes are counted.

    Attributes:
        name: what a group is: ``"host"``.
        of: the number of the group of each of some devices.
    """

    name: str
    of: Callable[[Ints], Ints]


DEVICES = Places("device", lambda ids: ids)


@final
@dataclass(frozen=True)
class Flow:
    """Bytes from senders to receivers.

    Attributes:
        senders: the first and the last number of each row, of a device or of a group.
        receivers: the same for each column.
        amounts: the bytes, ``[sender, receiver]``.
        estimated: whether they were inferred from some of the receivers.
        unit: what the numbers are those of: ``"device"``, ``"host"``.
    """

    senders: tuple[tuple[int, int], ...]
    receivers: tuple[tuple[int, int], ...]
    amounts: NDArray[np.float64]
    estimated: bool
    unit: str = "device"


def stages(plan: PlanFigures) -> int:
    """Return the most hops that any array of a plan takes."""
    return max([len(r.layouts) - 1 for r in plan.routes], default=0)


def hosts_of(plan: PlanFigures) -> Places | None:
    """Return which devices are near each other: the hosts of the topology, or the processes.

    None if nothing says so, or if all devices are together.
    """
    topology, owners = plan.topology, plan.process_of
    if topology is not None and len(topology.levels) > 1:
        return Places(topology.levels[0].name, partial(topology.group, 0))
    if owners is None or len(set(owners.values())) < 2:
        return None
    ids = np.array(sorted(owners), np.int64)
    processes = np.array([owners[d] for d in ids.tolist()], np.int64)
    return Places("process", lambda some: processes[np.searchsorted(ids, some)])


def flow_of(
    plan: PlanFigures,
    stage: int,
    *,
    places: Places = DEVICES,
    most: int = 64,
    most_jobs: int = TABLE_JOBS,
) -> Flow:
    """Return what passes between devices, or groups of them, in one stage of a plan.

    Args:
        plan: the plan.
        stage: which hop; routes with fewer take no part.
        places: the groups; by default each device is one.
        most: the most rows and columns; with more groups, neighbours share a row or column.
        most_jobs: if all hops together have more jobs than this, only some receivers are counted.
    """
    hops = [
        (r.hops[stage], w)
        for r, w in zip(plan.routes, plan.weights, strict=True)
        if stage < len(r.hops)
    ]
    ends = [
        union([g.held[0] for g in grids]) if grids else np.empty(0, np.int64)
        for grids in ([h.before for h, _ in hops], [h.after for h, _ in hops])
    ]
    bins = [_bins(distinct(places.of(units)), most) for units in ends]
    rows, columns = [_Index(own, places) for own in bins]
    amounts = np.zeros((len(bins[0]), len(bins[1])))
    estimated = False
    for hop, weight in hops:
        jobs, scale, partly = _listed_jobs(hop, columns, most_jobs // max(1, len(hops)))
        estimated |= partly
        at = columns.of(jobs.receiver)
        sizes = jobs.elements.astype(np.float64) * scale[at] * weight
        cells = rows.of(jobs.sender) * columns.count + at
        amounts += np.bincount(cells, sizes, amounts.size).reshape(amounts.shape)
    return Flow(bins[0], bins[1], amounts, estimated, places.name)


@final
class _Index:
    """In which row, or column, each device is."""

    def __init__(self, bins: tuple[tuple[int, int], ...], places: Places) -> None:
        self._firsts = np.array([first for first, _ in bins], np.int64)
        self._places = places
        self.count = len(bins)

    def of(self, units: Ints) -> Ints:
        return np.searchsorted(self._firsts, self._places.of(units), side="right") - 1


def _bins(units: Ints, most: int) -> tuple[tuple[int, int], ...]:
    # Equal groups: a larger one would look busier than its neighbours.
    step = max(1, -(-len(units) // most))
    parts = [units[at : at + step] for at in range(0, len(units), step)]
    return tuple([(int(p[0]), int(p[-1])) for p in parts])


def _listed_jobs(hop: Hop, index: _Index, most_jobs: int) -> tuple[Jobs, NDArray[np.float64], bool]:
    """Return jobs, how many times each column's jobs count, and whether that is an estimate."""
    units = distinct(hop.after.held[0])
    rows = jobs_at_most(hop)
    if rows <= most_jobs:
        return hop.jobs(), np.ones(index.count), False
    each = max(1, rows // max(1, len(units)))
    columns = index.of(units)
    shown, first, counts = np.unique(columns, return_index=True, return_counts=True)
    take = max(1, most_jobs // each)
    picked = np.linspace(0, len(shown) - 1, min(take, len(shown))).astype(np.int64)
    scale = np.zeros(index.count)
    scale[shown[picked]] = counts[picked]
    return hop.receives(units[first[picked]].tolist()), scale, True
