"""Resharding plans as values: what moving arrays to other layouts will do.

In: arrays' layouts before and after, and for each distinct pair the route that was chosen. Out: a
`Plan`, whose figures are counted from the exchanges of its routes, beside the least that any plan
could move. A plan prints as a table, is drawn as HTML, is written as JSON, and proves by a replay
that every element arrives. It does not run itself: the floor above installs a runner.

Replays: a plan is run on labelled boxes, which proves what each device ends with.

The arithmetic that made the jobs is not used: here the boxes that each unit must get follow from
the two layouts' cells and holders alone, and the jobs are compared with them. If there are too many
jobs to list, this is done for some of the units, at both ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast, final

import numpy as np

from meshard.algebra.arguments import flag_of, shown
from meshard.algebra.box import Box
from meshard.errors import ArgumentError, MeshardError, PlanError, did_you_mean
from meshard.plan.captions import count_text
from meshard.plan.figures.choice import PlanLeaf
from meshard.plan.figures.footprint import jobs_at_most
from meshard.plan.figures.plan_figures import PlanFigures
from meshard.plan.figures.simulate import Simulation
from meshard.plan.figures.topology import Topology
from meshard.plan.hops.cells import CellGrid, consecutive, distinct
from meshard.plan.hops.hop import Hop, Route
from meshard.plan.hops.jobs import Jobs, flat_boxes
from meshard.plan.show.page import Markup
from meshard.plan.show.pictured import Drawn
from meshard.plan.views.plan_json import json_text, read_json, refusing
from meshard.plan.views.plan_page import page_parts, page_title
from meshard.plan.views.plan_picture import plan_picture
from meshard.plan.views.plan_text import plan_table, why_text
from meshard.tuning import FOLLOWED_ELEMENTS, SAMPLED_UNITS, TABLE_JOBS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True)
class Report:
    """The result of a replay; it exists only if everything was right.

    Attributes:
        routes: the number of routes replayed.
        hops: the number of their hops.
        jobs: the number of jobs that were compared with what is needed.
        elements: how many hops were also followed element by element.
        devices: the number of devices that were checked, summed over the hops.
        complete: whether those were all devices.
    """

    routes: int = 0
    hops: int = 0
    jobs: int = 0
    elements: int = 0
    devices: int = 0
    complete: bool = True

    def __add__(self, other: Report) -> Report:
        return Report(
            self.routes + other.routes,
            self.hops + other.hops,
            self.jobs + other.jobs,
            self.elements + other.elements,
            self.devices + other.devices,
            self.complete and other.complete,
        )

    def __str__(self) -> str:
        how = "all devices" if self.complete else f"a sample of {self.devices:,} devices"
        numbers = ((self.routes, "route"), (self.hops, "hop"), (self.jobs, "part"))
        told = ", ".join(f"{n:,} {word}{'s' * (n != 1)}" for n, word in numbers)
        return f"every element arrives once: {told}, {how}"


def check_route(route: Route) -> Report:
    """Replay a route, and return a report of what was checked.

    Raises:
        PlanError: naming the first box that is missing, doubled, sent by a device that does not
            hold it, or sent to one that does not need it.
    """
    found = Report(routes=1)
    for number, hop in enumerate(route.hops):
        found += _check_hop(hop, f"{route.name}, hop {number + 1} of {len(route.hops)}")
    return found


def _check_hop(hop: Hop, where: str) -> Report:
    receivers = distinct(hop.after.held[0])
    rows = jobs_at_most(hop)
    if rows <= TABLE_JOBS:
        jobs = hop.jobs()
        check_jobs(hop, jobs, where)
        small = math.prod(hop.shape) * len(receivers) <= FOLLOWED_ELEMENTS
        if small:
            check_elements(hop, jobs, where)
        return Report(hops=1, jobs=len(jobs), elements=int(small), devices=len(receivers))
    each = max(1, rows // max(1, len(receivers)))
    sample = min(len(receivers), SAMPLED_UNITS, max(2, TABLE_JOBS // each))
    some = receivers[np.linspace(0, len(receivers) - 1, sample).astype(np.int64)]
    jobs = hop.receives(some.tolist())
    check_jobs(hop, jobs, where, some)
    _check_other_end(hop, jobs, where)
    return Report(hops=1, jobs=len(jobs), devices=sample, complete=False)


def check_jobs(hop: Hop, jobs: Jobs, where: str = "the plan", units: Ints | None = None) -> None:
    """Prove that jobs bring every unit, or some, exactly what they lack of the destination.

    Args:
        hop: the layouts.
        jobs: the jobs of all units, or those that ``units`` receive.
        where: what is checked, for messages.
        units: the receivers to check; None for all.

    Raises:
        PlanError: as for `check_route`.
    """
    before, after = hop.before, hop.after
    unheld = ~(before.holders[jobs.source] == jobs.sender[:, None]).any(axis=1)
    if unheld.any():
        row = int(np.flatnonzero(unheld)[0])
        _refuse(hop, jobs, row, where, "is to be sent by device {sender}, which does not hold it")
    needs = _needs(hop, units)
    known = np.argsort(needs.key, kind="stable")
    keys = _keys(hop, jobs.source, jobs.destination, jobs.receiver)
    order = np.lexsort((jobs.first, keys))
    place = np.minimum(np.searchsorted(needs.key[known], keys), max(len(known) - 1, 0))
    strange = np.ones(len(keys), bool)
    if len(known):
        strange = needs.key[known][place] != keys
    if strange.any():
        row = int(np.flatnonzero(strange)[0])
        receiver = int(jobs.receiver[row])
        cell = int(jobs.destination[row])
        if receiver not in after.holders[cell]:
            text = "is sent to device {receiver}, which does not need it"
        else:
            text = "arrives twice: device {receiver} already holds it, and device {sender} sends it"
        _refuse(hop, jobs, row, where, text)
    # The parts of one pair of cells that a unit gets must follow each other without gaps.
    sorted_keys, first, last = keys[order], jobs.first[order], jobs.last[order]
    new = np.ones(len(order), bool)
    new[1:] = sorted_keys[1:] != sorted_keys[:-1]
    reached = np.where(new, 0, np.roll(last, 1))
    for wrong, text in (
        (first < reached, "arrives twice: it reaches device {receiver} again from device {sender}"),
        (last > needs.volume[known][place[order]], "reaches beyond what both cells share"),
    ):
        if wrong.any():
            _refuse(hop, jobs, int(order[np.flatnonzero(wrong)[0]]), where, text)
    got = np.zeros(len(known), jobs.last.dtype)
    np.add.at(got, place, jobs.elements)
    short = got < needs.volume[known]
    if short.any():
        need = int(known[np.flatnonzero(short)[0]])
        raise PlanError(_missing(hop, needs, need, jobs, where))


@final
@dataclass(frozen=True)
class _Needs:
    """What units lack: pairs of cells whose shared elements a unit needs."""

    key: Ints
    source: Ints
    destination: Ints
    receiver: Ints
    volume: Ints


def _keys(hop: Hop, source: Ints, destination: Ints, unit: Ints) -> Ints:
    scale = 1 + max(int(g.holders.max(initial=0)) for g in (hop.before, hop.after))
    return (source * max(hop.after.count, 1) + destination) * scale + unit


def _along(hop: Hop, dim: int) -> tuple[Ints, Ints]:
    """Return the pairs of shards of one dim that overlap."""
    a, b = hop.before.cuts[dim], hop.after.cuts[dim]
    first = np.searchsorted(b[1:], a[:-1], side="right")
    last = np.searchsorted(b[:-1], a[1:], side="left")
    counts = np.where(a[1:] > a[:-1], np.maximum(last - first, 0), 0)
    rows, other = np.repeat(np.arange(len(a) - 1), counts), consecutive(first, counts)
    some = b[other + 1] > b[other]
    return rows[some], other[some]


def _needs(hop: Hop, units: Ints | None) -> _Needs:
    before, after = hop.before, hop.after
    wanted = after.holders >= 0 if units is None else np.isin(after.holders, units)
    cells = np.flatnonzero(wanted.any(axis=1))
    # All pairs of a source cell and one of these, dim by dim.
    rows, source = np.arange(len(cells)), np.zeros(len(cells), np.int64)
    places = after.places(cells)
    for dim, n in enumerate(before.sizes):
        mine, theirs = _along(hop, dim)
        order = np.argsort(theirs, kind="stable")
        mine, theirs = mine[order], theirs[order]
        begin = np.searchsorted(theirs, places[dim][rows])
        counts = np.searchsorted(theirs, places[dim][rows], side="right") - begin
        source = np.repeat(source, counts) * n + mine[consecutive(begin, counts)]
        rows = np.repeat(rows, counts)
    destination = cells[rows]
    pair, column = np.nonzero(wanted[destination])
    receiver = after.holders[destination[pair], column]
    source, destination = source[pair], destination[pair]
    lacks = ~(before.holders[source] == receiver[:, None]).any(axis=1)
    source, destination, receiver = source[lacks], destination[lacks], receiver[lacks]
    volume = hop.overlap(source, destination)
    key = _keys(hop, source, destination, receiver)
    # A unit that holds a cell as a part of several pieces needs it once.
    _, once = np.unique(key, return_index=True)
    return _Needs(key[once], source[once], destination[once], receiver[once], volume[once])


def _box(grid: CellGrid, cell: int) -> Box:
    places = [int(p[0]) for p in grid.places(np.array([cell]))]
    starts = [int(c[i]) for c, i in zip(grid.cuts, places, strict=True)]
    stops = [int(c[i + 1]) for c, i in zip(grid.cuts, places, strict=True)]
    return Box(tuple(starts), tuple(stops))


def _part(hop: Hop, source: int, destination: int, first: int, last: int) -> list[Box]:
    """Return the boxes of a range, in C order, of the elements that two cells share."""
    both = _box(hop.before, source).intersect(_box(hop.after, destination))
    return [
        Box(
            tuple([s + i for s, i in zip(both.starts, starts, strict=True)]),
            tuple([s + i for s, i in zip(both.starts, stops, strict=True)]),
        )
        for starts, stops in flat_boxes(both.shape, first, last)
    ]


def _refuse(hop: Hop, jobs: Jobs, row: int, where: str, text: str) -> None:
    first, last = int(jobs.first[row]), int(jobs.last[row])
    boxes = _part(hop, int(jobs.source[row]), int(jobs.destination[row]), first, last)
    box = boxes[0] if boxes else _box(hop.before, int(jobs.source[row]))
    said = text.format(sender=int(jobs.sender[row]), receiver=int(jobs.receiver[row]))
    raise PlanError(f"{where}: the box {box} of an array of shape {hop.shape} {said}.")


def _missing(hop: Hop, needs: _Needs, need: int, jobs: Jobs, where: str) -> str:
    source, destination = int(needs.source[need]), int(needs.destination[need])
    receiver = int(needs.receiver[need])
    same = (jobs.source == source) & (jobs.destination == destination) & (jobs.receiver == receiver)
    at = 0
    for first, last in sorted(
        zip(jobs.first[same].tolist(), jobs.last[same].tolist(), strict=True)
    ):
        if first > at:
            break
        at = last
    later = [int(f) for f in jobs.first[same] if f > at]
    box = _part(hop, source, destination, at, min([*later, int(needs.volume[need])]))[0]
    holders = [int(d) for d in hop.before.holders[source] if d >= 0]
    return (
        f"{where}: the box {box} of an array of shape {hop.shape} is missing on device {receiver}, "
        f"which needs it; no device sends it, though device {holders[0]} holds it."
    )


def _check_other_end(hop: Hop, jobs: Jobs, where: str) -> None:
    """Prove that two of the senders list the same jobs as their receivers do."""
    for sender in np.unique(jobs.sender)[:2].tolist():
        theirs = hop.sends([sender])
        theirs = theirs.where(np.isin(theirs.receiver, jobs.receiver)).in_order()
        ours = jobs.where(jobs.sender == sender).in_order()
        same = len(ours) == len(theirs) and all(
            np.array_equal(getattr(ours, name), getattr(theirs, name))
            for name in ("receiver", "source", "destination", "first", "last")
        )
        if not same:
            raise PlanError(
                f"{where}: device {sender} would send {len(theirs):,} boxes, but its receivers "
                f"expect {len(ours):,}, or different ones."
            )


def check_elements(hop: Hop, jobs: Jobs, where: str = "the plan") -> None:
    """Move labelled elements as jobs say, and prove that each device ends with its own.

    Every element is labelled with its place; devices begin with their part of the source.

    Raises:
        PlanError: naming the first box with a wrong element, and the device.
    """
    labels = np.arange(math.prod(hop.shape)).reshape(hop.shape)
    before = _memories(hop.before, labels)
    after = {unit: np.full(hop.shape, -1, np.int64) for unit in _memories(hop.after, labels)}
    counts = {unit: np.zeros(hop.shape, np.int64) for unit in after}
    for unit, memory in after.items():
        if unit in before:
            here = before[unit] >= 0
            memory[here], counts[unit][here] = before[unit][here], 1
    for row in range(len(jobs)):
        sender, receiver = int(jobs.sender[row]), int(jobs.receiver[row])
        for box in hop.boxes(jobs, row):
            if sender not in before or receiver not in after:
                raise PlanError(
                    f"{where}: the box {box} goes from device {sender} to device {receiver}, but "
                    "one of the two takes no part in the move."
                )
            after[receiver][box.slices] = before[sender][box.slices]
            counts[receiver][box.slices] += 1
    _check_arrived(hop, {u: (after[u] == labels, counts[u]) for u in after}, where)


def _check_arrived(
    hop: Hop, arrived: Mapping[int, tuple[NDArray[np.bool_], Ints]], where: str
) -> None:
    """Refuse elements that a unit of the destination did not get exactly once.

    Args:
        hop: the layouts.
        arrived: for each unit which elements are right, and how often each arrived.
        where: what is checked, for messages.
    """
    for cell in range(hop.after.count):
        box = _box(hop.after, cell)
        for unit in hop.after.holders[cell].tolist():
            if unit < 0 or not box.volume:
                continue
            right, counts = (x[box.slices] for x in arrived[unit])
            wrong = ~right | (counts != 1)
            if wrong.any():
                place = np.argwhere(wrong)[0] + np.array(box.starts, np.int64)
                at = tuple(int(i) for i in place)
                one = Box(at, tuple(i + 1 for i in at))
                times = int(arrived[unit][1][at])
                raise PlanError(
                    f"{where}: the box {one} of {box} reaches device {unit} {times} times, but "
                    "must reach it once."
                )


def _memories(grid: CellGrid, labels: Ints) -> dict[int, Ints]:
    """Return what each unit holds of a labelled array; -1 for the rest."""
    found: dict[int, Ints] = {}
    for unit, cell in zip(grid.held[0].tolist(), grid.held[1].tolist(), strict=True):
        memory = found.setdefault(unit, np.full(labels.shape, -1, np.int64))
        slices = _box(grid, cell).slices
        memory[slices] = labels[slices]
    return found


PlanRunner = Callable[["Plan", object], object]
"""What runs a plan on a tree of arrays."""


T = TypeVar("T")


class _Installed:
    """What the floor above has installed, once, at import."""

    def __init__(self) -> None:
        self.runner: PlanRunner | None = None


_INSTALLED = _Installed()


def install_runner(runner: PlanRunner) -> None:
    """Install the function that `Plan.run` calls with the plan and the tree of arrays."""
    _INSTALLED.runner = runner


@final
@dataclass(frozen=True, init=False, repr=False)
class Plan(PlanFigures, Drawn):
    """What a reshard of one or more arrays will move.

    Args:
        leaves: the arrays.
        choices: the route of each distinct triple of source, destination and element size among
            the leaves, in the order in which they first occur; by default all are direct.
        max_bytes: the most bytes in flight from and to one process at once, besides source and
            destination; None for no limit.
        donate: whether the sources are freed as they go.
        alive: the ids of the devices that have their data; None for all.
        rounds: how many times the window opens; by default as often as `max_bytes` demands.

    >>> import numpy as np
    >>> from meshard.algebra.layout import Layout, even_cuts
    >>> from meshard.resharding import Plan
    >>> rows = Layout((8,), (even_cuts(8, 4),), np.arange(4).reshape(4, 1))
    >>> whole = Layout((8,), ((0, 8),), np.arange(4).reshape(1, 4))
    >>> from meshard.plan.figures.choice import PlanLeaf
    >>> plan = Plan([PlanLeaf("x", rows, whole, 4)])
    >>> plan.bytes_moved, plan.lower_bound_bytes, plan.peak_bytes
    (96, 96, 40)
    """

    @classmethod
    def direct(cls, leaves: Sequence[PlanLeaf], *, donate: bool = False) -> Plan:
        """Return the plan in which every array goes to its destination in one hop."""
        return cls(leaves, donate=donate)

    # what can be asked of it

    def check(self) -> Report:
        """Replay the plan on labelled boxes, and return a report of what was checked.

        Raises:
            PlanError: naming the first box that is missing or doubled, and the device.

        >>> import numpy as np
        >>> from meshard.algebra.layout import Layout
        >>> ids = np.arange(2).reshape(2, 1)
        >>> a, b = (Layout((4,), ((0, n, 4),), ids) for n in (2, 3))
        >>> print(Plan([PlanLeaf("x", a, b, 4)]).check())
        every element arrives once: 1 route, 1 hop, 1 part, all devices
        """
        return sum(map(check_route, dict.fromkeys(self.routes)), Report())

    def simulate(self, topology: Topology | str) -> Simulation:
        """Return the time and the traffic of each level that a topology predicts.

        Args:
            topology: where the devices are, or the name of a preset, as in ``"8-gpu hosts"``.

        Raises:
            ArgumentError: if there is no such topology, or a device has no place in it.
        """
        return self._simulated(topology)

    def why(self, group: int | str = 1) -> str:
        """Return why some arrays go as they do: their steps, and the routes that were not taken.

        Args:
            group: the number of the arrays in the printed table, from 1 on, or the name of one.

        Raises:
            ArgumentError: if there is no such group, or no array of that name.

        >>> import numpy as np
        >>> from meshard.algebra.layout import Layout
        >>> ids = np.arange(2).reshape(2, 1)
        >>> a, b = (Layout((4,), ((0, n, 4),), ids) for n in (2, 3))
        >>> print(Plan([PlanLeaf("x", a, b, 4)]).why("x").splitlines()[0])
        Group 1: x
        """
        return why_text(self, self._group(group))

    def _group(self, group: object) -> int:
        """Return the number of a choice, from 0 on, that a user names."""
        count = len(self.choices)
        if isinstance(group, str):
            places = {p: n for n, x in enumerate(self.leaves) for p in (x.path, *x.also) if p}
            places |= {x.name: n for n, x in enumerate(self.leaves)}
            if group in places:
                return self.choice_of[places[group]]
            meant = did_you_mean(group, places)
            raise ArgumentError(f"Plan.why: the plan has no array named {shown(group)}.{meant}")
        if type(group) is not int or not 0 < group <= count:
            numbers = f"a number from 1 to {count:,}" if count else "none, since nothing moves"
            raise ArgumentError(
                f"Plan.why: group must be {numbers}, or the name of an array, not {shown(group)}."
            )
        return group - 1

    def run(self, x: T) -> T:
        """Move a tree of arrays as planned, without planning again.

        Args:
            x: a tree with an array for each leaf of the plan, in order, laid out as its source.

        Raises:
            MeshardError: if no runner is installed.
        """
        if _INSTALLED.runner is None:
            raise MeshardError("Plan.run: nothing is installed that moves arrays; import meshard.")
        return cast("T", _INSTALLED.runner(self, x))

    def to_json(self, *, transfers: bool = False) -> str:
        """Return the plan as JSON, which `from_json` reads without planning again.

        Args:
            transfers: also list every box with its sender and receiver, so that another program
                can run the plan; there may be many.
        """
        return json_text(self, transfers=flag_of(transfers, "Plan.to_json", "transfers"))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan that `to_json` wrote.

        Raises:
            PlanError: if the text was cut, edited, or written by another version.
        """
        read = read_json(text)
        with refusing():
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

    def _title(self) -> str:
        return page_title(self)

    def _parts(self) -> Iterator[Markup]:
        return page_parts(self)

    def _svg(self) -> Markup:
        return plan_picture(self)

    def __str__(self) -> str:
        return plan_table(self)

    def __repr__(self) -> str:
        arrays = count_text(len(self.leaves), "array")
        return f"Plan({arrays}, {self.bytes_moved} bytes moved)"
