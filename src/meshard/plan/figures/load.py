"""Loads: how much passes between the groups of a topology while an array hops.

In: a hop between devices, and a topology. Out: what each device sends and receives, and how much of
it stays inside each group of each level. A few jobs are counted one by one. Many are
summed cells over cells (`spread`), which gives the same numbers if each cell of the source is on
one device. If a cell is on several, jobs are counted as long as they can be listed at all; beyond
that, each holder is assumed to send an equal part of everything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, cast, final

import numpy as np

from meshard.plan.figures.topology import Topology
from meshard.plan.hops.cells import distinct
from meshard.plan.hops.hop import Hop
from meshard.plan.hops.jobs import counter, product, sums_at, total
from meshard.plan.hops.spread import HeldCells, shared
from meshard.tuning import ESTIMATED_JOBS, LISTED_JOBS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Amounts = Floats | Ints


_KEPT_PAIRS = 1 << 14  # of one hop: more are found anew, since a plan has hundreds of hops


@final
class DevicePlaces:
    """Where some devices are in a topology.

    Args:
        topology: the topology.
        hops: the hops whose layouts' devices are meant.
        more: further devices.

    Attributes:
        ids: the devices' ids, ascending.
        groups: for each level the numbers of the groups with any of the devices, ascending.
        at: for each level the place in ``groups`` of each device's group.

    Raises:
        ArgumentError: if a device has no place in the topology.
    """

    def __init__(self, topology: Topology, hops: Iterable[Hop], more: Sequence[int] = ()) -> None:
        held = [grid.held[0] for hop in hops for grid in (hop.before, hop.after)]
        self.topology = topology
        self.ids: Ints = distinct(np.concatenate([np.array(more, np.int64), *held]))
        self.groups: list[Ints] = []
        self.at: list[Ints] = []
        for level in range(len(topology.levels)):
            groups, at = np.unique(topology.group(level, self.ids), return_inverse=True)
            self.groups.append(groups)
            self.at.append(at)

    def of(self, ids: Ints) -> Ints:
        """Return the places of devices among ``ids``."""
        return np.searchsorted(self.ids, ids)


@final
@dataclass(frozen=True, eq=False)
class Load:
    """What passes between devices at one time.

    Amounts are integers where they are exact, and floats where they are estimated.

    Attributes:
        sent: bytes that each device sends.
        received: bytes that each device receives.
        inside: for each level, the bytes that pass between devices of each group, the levels below
            included.
        messages_sent: for each level, ``[level, device]``, how many messages each device sends to
            others of its group, the levels below included.
        messages_received: the same for messages received.
        exact: whether the amounts are those of the jobs, and not estimated from shares.
        pairs: the senders and receivers, as numbers, ascending; None if they are not kept.
    """

    sent: Amounts
    received: Amounts
    inside: tuple[Amounts, ...]
    messages_sent: Floats
    messages_received: Floats
    exact: bool
    pairs: Ints | None = None

    def __add__(self, other: Load) -> Load:
        return Load(
            _both(self.sent, other.sent),
            _both(self.received, other.received),
            tuple([_both(a, b) for a, b in zip(self.inside, other.inside, strict=True)]),
            self.messages_sent + other.messages_sent,
            self.messages_received + other.messages_received,
            self.exact and other.exact,
        )

    def silent(self) -> Load:
        """Return the same load without messages, which are counted otherwise."""
        none = np.zeros_like(self.messages_sent)
        return replace(self, messages_sent=none, messages_received=none)

    def times(self, bytes_each: int, count: int = 1) -> Load:
        """Return the load of several arrays whose elements have a size, from that of bytes."""
        by = bytes_each * count
        return Load(
            _times(self.sent, by),
            _times(self.received, by),
            tuple([_times(x, by) for x in self.inside]),
            self.messages_sent * float(count),
            self.messages_received * float(count),
            self.exact,
        )

    @classmethod
    def none(cls, places: DevicePlaces) -> Load:
        """Return the load of nothing at all."""
        levels, devices = len(places.groups), len(places.ids)
        inside = tuple([np.zeros(len(groups), np.int64) for groups in places.groups])
        messages, none = np.zeros((levels, devices)), np.zeros(devices, np.int64)
        return cls(none, none, inside, messages, messages, True)


def _integers(amounts: Amounts) -> Ints:
    """Return the same amounts, which are integers."""
    return cast("Ints", amounts)


def _estimated(amounts: Amounts) -> bool:
    return amounts.dtype.kind == "f"


def _both(a: Amounts, b: Amounts) -> Amounts:
    """Return sums: exact ones of integers, floats if either are floats."""
    if _estimated(a) or _estimated(b):
        return as_floats(a) + as_floats(b)
    most = sum(int(x.max(initial=0)) for x in (a, b))
    found: Ints = a.astype(counter(most), copy=False) + _integers(b)
    return found


def added_up(amounts: Sequence[Amounts]) -> Amounts:
    """Return the sums, place by place, of arrays of amounts."""
    return reduce(_both, amounts)


def _times(amounts: Amounts, by: int) -> Amounts:
    if _estimated(amounts):
        return as_floats(amounts) * float(by)
    return product(_integers(amounts), by)


def as_floats(amounts: Amounts) -> Floats:
    """Return amounts as floats."""
    return amounts.astype(np.float64, copy=False)


def messages_together(
    hops: Sequence[Hop], loads: Sequence[Load], places: DevicePlaces, *, most_jobs: int
) -> tuple[Floats, Floats]:
    """Return the messages sent and received if hops happen together, as `Load` counts them.

    Everything that a device sends to another is then one message. Where the pairs are too many to
    be listed, a device has as many messages as in the hop in which it has most.

    Args:
        hops: the hops.
        loads: the load of each.
        places: where the devices are.
        most_jobs: as for `load_of`.
    """
    if len(hops) == 1 or not all(_is_listed(hop, most_jobs) for hop in hops):
        return (
            np.maximum.reduce([load.messages_sent for load in loads]),
            np.maximum.reduce([load.messages_received for load in loads]),
        )
    pairs = [
        _pairs(hop, places) if load.pairs is None else load.pairs
        for hop, load in zip(hops, loads, strict=True)
    ]
    return _counted(distinct(np.concatenate(pairs)), places)


def load_of(hop: Hop, places: DevicePlaces, *, most_jobs: int = ESTIMATED_JOBS) -> Load:
    """Return the load of a hop between devices, in elements.

    Args:
        hop: the hop; its units are devices.
        places: where the devices are.
        most_jobs: with more jobs than this they are summed, even if that is an estimate.
    """
    return _listed(hop, places) if _is_listed(hop, most_jobs) else _summed(hop, places)


def _is_listed(hop: Hop, most_jobs: int) -> bool:
    """Whether the jobs of a hop are counted one by one."""
    pairs = math.prod([len(merge.lengths) for merge in hop.merges])
    jobs = pairs * hop.after.holders.shape[1] + hop.before.holders.size
    return jobs <= most_jobs and (jobs <= LISTED_JOBS or not _sums_are_exact(hop))


def _pairs(hop: Hop, places: DevicePlaces) -> Ints:
    """Return the pairs of a sender and a receiver, as numbers, ascending."""
    jobs = hop.jobs()
    # Everything that one device sends to another in a hop is one message.
    return distinct(places.of(jobs.sender) * len(places.ids) + places.of(jobs.receiver))


def _counted(pairs: Ints, places: DevicePlaces) -> tuple[Floats, Floats]:
    """Return how many messages each device sends, and receives, within its group of each level."""
    count = len(places.ids)
    source, target = np.divmod(pairs, max(count, 1))
    near = [at[source] == at[target] for at in places.at]
    sent, received = (
        np.array([_counts(ends[inside], count) for inside in near]) for ends in (source, target)
    )
    return sent, received


def _sums_are_exact(hop: Hop) -> bool:
    """Whether each cell of the source is on one device, and no device has two cells."""
    alone = int(hop.before.copies.max(initial=0)) <= 1
    held = [grid.held[0] for grid in (hop.before, hop.after)]
    return alone and all(len(distinct(units)) == len(units) for units in held)


def summed(amounts: Amounts) -> float:
    """Return the sum of amounts, an integer where they are integers."""
    return float(amounts.sum()) if _estimated(amounts) else total(_integers(amounts))


def summed_at(places: Ints, amounts: Amounts, count: int) -> Amounts:
    """Return the sums of amounts at each of some places."""
    if _estimated(amounts):
        return np.asarray(np.bincount(places, amounts, count), np.float64)
    return sums_at(places, _integers(amounts), count)


def _counts(places: Ints, count: int) -> Floats:
    """Return how often each place occurs."""
    return np.bincount(places, minlength=count).astype(np.float64)


def _listed(hop: Hop, places: DevicePlaces) -> Load:
    """Return the load from all jobs, one by one."""
    jobs = hop.jobs()
    count = len(places.ids)
    sender, receiver = places.of(jobs.sender), places.of(jobs.receiver)
    elements = jobs.elements
    inside = []
    for at, groups in zip(places.at, places.groups, strict=True):
        here = at[sender] == at[receiver]
        inside.append(sums_at(at[sender[here]], elements[here], len(groups)))
    pairs = distinct(sender * count + receiver)
    return Load(
        sums_at(sender, elements, count),
        sums_at(receiver, elements, count),
        tuple(inside),
        *_counted(pairs, places),
        exact=True,
        pairs=pairs if len(pairs) <= _KEPT_PAIRS else None,
    )


def _summed(hop: Hop, places: DevicePlaces) -> Load:
    """Return the load from sums over cells."""
    count = len(places.ids)
    before, after = hop.before, hop.after
    unit, cell, column = before.held
    copies = before.copies[cell]
    elements = hop.shares(cell, column)
    mine, needs = places.of(unit), places.of(after.held[0])
    sent = sums_at(mine, elements, count)
    received = np.zeros(count, hop.received.amounts.dtype)
    received[places.of(hop.received.units)] = hop.received.amounts
    exact = _sums_are_exact(hop)
    share = 1.0 / np.maximum(before.copies, 1)
    keeper, kept_cell, _, _, kept = hop.stays
    keepers = places.of(keeper)
    inside, out, into = [], [], []
    for at, groups in zip(places.at, places.groups, strict=True):

        def group_of(ids: Ints, at: Ints = at) -> Ints:
            return at[places.of(ids)]

        have, need = HeldCells(before, group_of), HeldCells(after, group_of)
        held = have.count * share[have.cell]
        # Devices of a group that hold the cell themselves need nothing of it.
        stay = have.at(at[keepers], kept_cell)
        lacking = shared(have, need, need.count.astype(counter(hop.most)))
        np.subtract.at(lacking, stay, kept)
        within = lacking if exact else as_floats(lacking) * held
        inside.append(summed_at(have.group, within, len(groups)))
        peers = shared(have, need, need.count, counting=True)
        peers -= _counts(stay, len(peers))
        rows = have.at(at[mine], cell)
        out.append(np.bincount(mine, peers[rows] / copies, count))
        senders = shared(need, have, held, counting=True)
        rows = need.at(at[needs], after.held[1])
        amounts = np.bincount(needs, senders[rows], count)
        into.append(amounts - np.bincount(keepers, held[stay], count))
    return Load(sent, received, tuple(inside), np.array(out), np.array(into), exact)
