"""Resharding plans as values: what moving arrays to other layouts will do, before it does.

In: arrays' layouts before and after, and for each distinct pair the route that was chosen. Out: a
`Plan`, whose figures are counted from the exchanges of its routes, beside the least that any plan
could move. A plan prints as a table, is drawn as HTML, is written as JSON, and proves by a replay
that every element arrives. Running it is another's business: the floor above installs a runner.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np

from meshard.algebra.box import Box
from meshard.algebra.layout import Layout
from meshard.errors import MeshardError

from .bounds import bounds_of, receive_bound
from .choice import Candidate, Choice, Figures, Leaf, direct_choice, figures_of
from .footprint import added, footprint, union, windows
from .hop import Hop
from .html import page, plan_html
from .jobs import Tally
from .json_form import json_text, read_json
from .replay import Report, check_route
from .route import Route
from .table import plan_table

if TYPE_CHECKING:
    from .simulate import Simulation
    from .topology import Topology

__all__ = [
    "Candidate",
    "Choice",
    "Figures",
    "Leaf",
    "Plan",
    "Transfer",
    "figures_of",
    "install_runner",
]

Runner = Callable[["Plan", object], object]
"""What runs a plan on a tree of arrays."""


class _Doors:
    """What the floor above has installed: written once, while it is imported."""

    def __init__(self) -> None:
        self.runner: Runner | None = None


_DOORS = _Doors()


def install_runner(runner: Runner) -> None:
    """Install what `Plan.run` calls with the plan and the tree of arrays."""
    _DOORS.runner = runner


class Transfer(NamedTuple):
    """One box that passes from one device to another.

    Attributes:
        choice: the number of the choice: all arrays that share it have this transfer.
        hop: the number of the hop; the next begins when all of this one have arrived.
        sender: the id of the device that sends.
        receiver: the id of the device that receives.
        box: the region of the array.
    """

    choice: int
    hop: int
    sender: int
    receiver: int
    box: Box


@final
@dataclass(frozen=True, init=False, repr=False)
class Plan:
    """What a reshard of one or more arrays will move.

    Args:
        leaves: the arrays.
        choices: for each distinct triple of source, destination and element size among the leaves,
            in the order in which they first occur, the route; by default all go directly.
        max_bytes: the most bytes in flight on any device, and between two hops; None for no limit.
        donate: whether the sources are freed as they go.
        alive: the ids of the devices that have their data; None for all.
        rounds: how many times the window opens; by default as often as `max_bytes` demands.

    >>> from meshard.algebra.layout import even_cuts
    >>> rows = Layout((8,), (even_cuts(8, 4),), np.arange(4).reshape(4, 1))
    >>> whole = Layout((8,), ((0, 8),), np.arange(4).reshape(1, 4))
    >>> plan = Plan([Leaf("x", rows, whole, 4)])
    >>> plan.bytes_moved, plan.lower_bound_bytes, plan.peak_bytes
    (96, 96, 40)
    """

    leaves: tuple[Leaf, ...]
    choices: tuple[Choice, ...]
    max_bytes: int | None
    donate: bool
    alive: tuple[int, ...] | None
    given_rounds: int | None

    def __init__(
        self,
        leaves: Sequence[Leaf],
        choices: Sequence[Choice] | None = None,
        *,
        max_bytes: int | None = None,
        donate: bool = False,
        alive: Iterable[int] | None = None,
        rounds: int | None = None,
    ) -> None:
        kinds = Counter([_kind(leaf) for leaf in leaves])
        if choices is None:
            choices = [direct_choice(*k, donate=donate, count=n) for k, n in kinds.items()]
        assert [c.count for c in choices] == list(kinds.values())
        living = None if alive is None else tuple(sorted(set(alive)))
        for name, value in (
            ("leaves", tuple(leaves)),
            ("choices", tuple(choices)),
            ("max_bytes", max_bytes),
            ("donate", donate),
            ("alive", living),
            ("given_rounds", rounds),
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def direct(cls, leaves: Sequence[Leaf], *, donate: bool = False) -> Plan:
        """Return the plan in which every array goes to its destination in one hop."""
        return cls(leaves, donate=donate)

    # which array goes which way

    @cached_property
    def choice_of(self) -> tuple[int, ...]:
        """For each leaf the number of its choice."""
        known: dict[tuple[Layout, Layout, int], int] = {}
        return tuple([known.setdefault(_kind(leaf), len(known)) for leaf in self.leaves])

    @cached_property
    def groups(self) -> tuple[tuple[Leaf, ...], ...]:
        """For each choice its leaves."""
        found: list[list[Leaf]] = [[] for _ in self.choices]
        for leaf, number in zip(self.leaves, self.choice_of, strict=True):
            found[number].append(leaf)
        return tuple(map(tuple, found))

    @cached_property
    def weights(self) -> tuple[int, ...]:
        """For each choice the bytes that one element of its layouts stands for, over all leaves."""
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
        """The bytes that each device gets from others, by device id."""
        return self.received_tally.as_dict()

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
        """Bytes moved, divided by the lower bound; 1 is the best there can be."""
        bound = self.lower_bound_bytes
        if not bound:
            return math.inf if self.bytes_moved else 1.0
        return self.bytes_moved / bound

    @cached_property
    def send_bound_bytes(self) -> int:
        """The least bytes that the largest sender must send where every array goes directly.

        The holders of a shard must send what others need of it; shards of several arrays that the
        same devices hold add up.
        """
        sums: dict[int, tuple[list[np.ndarray], list[np.ndarray]]] = {}
        for route, weight in zip(self.routes, self.weights, strict=True):
            hop = route.hops[0]
            if len(route.hops) > 1:
                hop = Hop(route.source, route.destination, alive=route.alive)
            holders = np.sort(hop.before.holders, axis=1)
            rows, amounts = sums.setdefault(holders.shape[1], ([], []))
            rows.append(holders)
            amounts.append(hop.wanted * weight)
        step = reduce(math.gcd, [leaf.itemsize for leaf in self.leaves], 0) or 1
        most = 0
        for width, (rows, amounts) in sums.items():
            every, wanted = np.concatenate(rows), np.concatenate(amounts)
            kinds = every[:, 0] if width == 1 else every
            groups, place = np.unique(kinds, axis=0, return_inverse=True)
            totals = np.zeros(len(groups), np.int64)
            np.add.at(totals, place.reshape(-1), wanted)
            copies = np.maximum((groups.reshape(-1, width) >= 0).sum(axis=1), 1)
            most = max(most, int((-(-totals // (copies * step)) * step).max(initial=0)))
        return most

    @cached_property
    def peak_tally(self) -> Tally:
        """The most bytes of these arrays that live on each device at once.

        Arrays go one after another. A source that is not donated stays; a donated one goes as its
        destination comes. What is in flight, at most ``max_bytes``, comes on top.
        """
        if not self.leaves:
            return added([])
        prints = [footprint(route, donate=self.donate) for route in self.routes]
        units = reduce(lambda a, b: union([a, b]), [f.units for f in prints])
        amounts = [
            f.over(units) * group[0].itemsize for f, group in zip(prints, self.groups, strict=True)
        ]
        live = sum(a[0] * c.count for a, c in zip(amounts, self.choices, strict=True))
        most = np.array(live)
        # Over a run of arrays with one choice memory grows or shrinks evenly.
        for number, run in groupby(self.choice_of):
            before, peak, after = amounts[number]
            count = len(list(run))
            np.maximum(most, live - before + peak, out=most)
            live = live + (count - 1) * (after - before)
            np.maximum(most, live - before + peak, out=most)
            live = live + (after - before)
        return Tally(units, most)

    @cached_property
    def rounds(self) -> int:
        """How many times the window of ``max_bytes`` opens; one per hop where it has no limit."""
        if self.given_rounds is not None:
            return self.given_rounds
        found = 0
        for stage in range(max([len(r.layouts) for r in self.routes], default=1) - 1):
            pairs = [
                (r.hops[stage], w)
                for r, w in zip(self.routes, self.weights, strict=True)
                if stage < len(r.hops)
            ]
            most = max(added((getattr(h, way), w) for h, w in pairs).most for way in _WAYS)
            found += windows(most, self.max_bytes)
        return found

    @property
    def peak_bytes(self) -> int:
        """The most bytes of these arrays that live on one device at once."""
        return self.peak_tally.most

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, replicas not counted."""
        return sum(leaf.nbytes for leaf in self.leaves)

    @cached_property
    def device_count(self) -> int:
        """The number of devices that hold a part before, between or afterwards."""
        ends = [g.held[0] for r in self.routes for h in r.hops for g in (h.before, h.after)]
        return len(reduce(lambda a, b: union([np.unique(a), np.unique(b)]), ends)) if ends else 0

    @property
    def alternatives(self) -> tuple[Candidate, ...]:
        """The routes that were considered and not taken, over all choices."""
        return tuple([other for choice in self.choices for other in choice.others])

    # what can be asked of it

    def transfers(self) -> Iterator[Transfer]:
        """Yield every box that passes between devices, choice by choice and hop by hop."""
        for number, route in enumerate(self.routes):
            for stage, hop in enumerate(route.hops):
                jobs = hop.jobs()
                ends = zip(jobs.sender.tolist(), jobs.receiver.tolist(), strict=True)
                for row, (sender, receiver) in enumerate(ends):
                    for box in hop.boxes(jobs, row):
                        yield Transfer(number, stage, sender, receiver, box)

    def check(self) -> Report:
        """Go through the plan on labelled boxes, and return what was looked at.

        Raises:
            PlanError: naming the first box that is missing or doubled, and the device.

        >>> ids = np.arange(2).reshape(2, 1)
        >>> a, b = (Layout((4,), ((0, n, 4),), ids) for n in (2, 3))
        >>> print(Plan([Leaf("x", a, b, 4)]).check())
        every element arrives once: 1 route, 1 hop, 1 part, all devices
        """
        return sum(map(check_route, dict.fromkeys(self.routes)), Report())

    def simulate(self, topology: Topology) -> Simulation:
        """Return the time and the traffic of each level that a topology predicts."""
        from .simulate import simulate_many

        pairs = zip(self.choices, self.groups, strict=True)
        return simulate_many([(c.route, g[0].itemsize, c.count) for c, g in pairs], topology)

    def run(self, x: object) -> object:
        """Move a tree of arrays as planned, without planning again.

        Args:
            x: a tree with an array for each leaf of the plan, in order, laid out as its source.

        Raises:
            MeshardError: if nothing is installed that moves arrays.
        """
        if _DOORS.runner is None:
            raise MeshardError("Plan.run: nothing is installed that moves arrays; import meshard.")
        return _DOORS.runner(self, x)

    def to_json(self, *, transfers: bool = False) -> str:
        """Return the plan as JSON, which `from_json` reads without planning again.

        Args:
            transfers: list every box with its sender and receiver too, so that another program
                can do what the plan says; there may be many.
        """
        return json_text(self, transfers=transfers)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan that `to_json` wrote.

        Raises:
            PlanError: if the text was cut, edited, or written by another version.
        """
        read = read_json(text)
        plan = cls(
            read.leaves,
            read.choices,
            max_bytes=read.max_bytes,
            donate=read.donate,
            alive=read.alive,
            rounds=read.rounds,
        )
        read.compare(plan)
        return plan

    def save_html(self, path: str | Path) -> None:
        """Write the plan as one HTML page that needs nothing else."""
        Path(path).write_text(page(self), encoding="utf-8")

    def _repr_html_(self) -> str:
        return plan_html(self)

    def __str__(self) -> str:
        return plan_table(self)

    def __repr__(self) -> str:
        return f"Plan({len(self.leaves)} arrays, {self.bytes_moved} bytes moved)"


_WAYS = ("sent", "received")


def _kind(leaf: Leaf) -> tuple[Layout, Layout, int]:
    return leaf.source, leaf.destination, leaf.itemsize
