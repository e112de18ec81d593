"""Flows: the bytes that each device, or group of neighbours, sends to each other one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, final

import numpy as np

from meshard.plan.figures.footprint import jobs_at_most, union
from meshard.plan.hops.cells import distinct
from meshard.plan.hops.hop import Hop
from meshard.plan.hops.jobs import Jobs
from meshard.tuning import TABLE_JOBS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meshard.plan.figures.plan_figures import PlanFigures

    Ints = NDArray[np.int64]


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
        jobs, scale, partly = _listed(hop, columns, most_jobs // max(1, len(hops)))
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


def _listed(hop: Hop, index: _Index, most_jobs: int) -> tuple[Jobs, NDArray[np.float64], bool]:
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
