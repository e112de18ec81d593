"""Flows: the bytes that each device, or group of neighbours, sends to each other one."""

from __future__ import annotations

from dataclasses import dataclass
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
class Flow:
    """Bytes from senders to receivers.

    Attributes:
        senders: the first and the last device id of each row.
        receivers: the same for each column.
        amounts: the bytes, ``[sender, receiver]``.
        estimated: whether they were inferred from some of the receivers.
    """

    senders: tuple[tuple[int, int], ...]
    receivers: tuple[tuple[int, int], ...]
    amounts: NDArray[np.float64]
    estimated: bool


def stages(plan: PlanFigures) -> int:
    """Return the most hops that any array of a plan takes."""
    return max([len(r.layouts) - 1 for r in plan.routes], default=0)


def flow_of(plan: PlanFigures, stage: int, *, most: int = 64, most_jobs: int = TABLE_JOBS) -> Flow:
    """Return what passes between devices in one stage of a plan.

    Args:
        plan: the plan.
        stage: which hop; routes with fewer take no part.
        most: the most rows and columns; with more devices, neighbours share a row or column.
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
    bins = [_bins(units, most) for units in ends]
    amounts = np.zeros((len(bins[0]), len(bins[1])))
    estimated = False
    for hop, weight in hops:
        jobs, scale, partly = _listed(hop, bins[1], most_jobs // max(1, len(hops)))
        estimated |= partly
        rows = np.searchsorted(_firsts(bins[0]), jobs.sender, side="right") - 1
        columns = np.searchsorted(_firsts(bins[1]), jobs.receiver, side="right") - 1
        np.add.at(
            amounts, (rows, columns), jobs.elements.astype(np.float64) * scale[columns] * weight
        )
    return Flow(bins[0], bins[1], amounts, estimated)


def _bins(units: Ints, most: int) -> tuple[tuple[int, int], ...]:
    parts = np.array_split(units, min(most, len(units))) if len(units) else []
    return tuple([(int(p[0]), int(p[-1])) for p in parts])


def _firsts(bins: tuple[tuple[int, int], ...]) -> Ints:
    return np.array([first for first, _ in bins], np.int64)


def _listed(
    hop: Hop, bins: tuple[tuple[int, int], ...], most_jobs: int
) -> tuple[Jobs, NDArray[np.float64], bool]:
    """Return jobs, how many times each column's jobs count, and whether that is an estimate."""
    units = distinct(hop.after.held[0])
    rows = jobs_at_most(hop)
    if rows <= most_jobs:
        return hop.jobs(), np.ones(len(bins)), False
    each = max(1, rows // max(1, len(units)))
    columns = np.searchsorted(_firsts(bins), units, side="right") - 1
    shown, first, counts = np.unique(columns, return_index=True, return_counts=True)
    take = max(1, most_jobs // each)
    picked = np.linspace(0, len(shown) - 1, min(take, len(shown))).astype(np.int64)
    scale = np.zeros(len(bins))
    scale[shown[picked]] = counts[picked]
    return hop.receives(units[first[picked]].tolist()), scale, True
