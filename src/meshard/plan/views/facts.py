"""What matters most in a plan: its time and what limits it, its bytes, and where they are.

In: a plan. Out: a headline and the figures below it, which the text and the page share.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from meshard.plan.captions import count_text, device_label, size_text, whole_text
from meshard.plan.hops.jobs import Tally
from meshard.plan.show.summary import Fact
from meshard.plan.views.words import ends_text

if TYPE_CHECKING:
    from meshard.plan.figures.plan_figures import PlanFigures


def headline(plan: PlanFigures) -> str:
    """Return the number of arrays of a plan, their size, and between which devices they move."""
    told = f"Plan: {count_text(len(plan.leaves), 'array')}, {size_text(plan.nbytes)}"
    if not plan.leaves:
        return f"{told}; nothing moves"
    sources, targets = (
        {d for layout in layouts for d in layout.device_ids if d >= 0}
        for layouts in ({r.source for r in plan.routes}, {r.destination for r in plan.routes})
    )
    return f"{told}, {ends_text(sources, targets, device_word(plan))}"


def device_word(plan: PlanFigures) -> str:
    """Return what the devices of a plan are: devices that only plan are called imaginary."""
    return "imaginary device" if is_imaginary(plan) else "device"


def is_imaginary(plan: PlanFigures) -> bool:
    """Return whether none of a plan's devices exist, as far as they are known."""
    shardings = {s for leaf in plan.leaves for s in (leaf.source_sharding, leaf.sharding)}
    known = [s for s in shardings if s is not None]
    return bool(known) and all(d.platform == "virtual" for s in known for d in s.device_set)


def facts_of(plan: PlanFigures) -> Iterator[Fact]:
    """Yield the figures of a plan, those that decide first."""
    if plan.simulation is not None:
        yield from plan.simulation.facts
    moved = plan.bytes_moved
    yield Fact("moved", whole_text(moved), _beside(moved, plan.lower_bound_bytes))
    if moved:
        yield _busiest("received", plan.received_tally)
        relayed = any(len(r.layouts) > 2 for r in plan.routes)
        beside = (
            ""
            if relayed
            else _beside(plan.most_sent, plan.send_bound_bytes).removesuffix(" possible")
        )
        yield _busiest("sent", plan.sent_tally, beside)
    memory = "on one device at once; sources " + ("freed as they go" if plan.donate else "stay")
    yield Fact("memory", whole_text(plan.peak_bytes), memory)
    if plan.max_bytes is not None:
        told = f"at most {whole_text(plan.max_bytes)} in flight besides"
        yield Fact("rounds", f"{plan.rounds:,}", told)
    if plan.alive is not None:
        alive = count_text(len(plan.alive), "device")
        yield Fact("alive", alive, device_label(plan.alive))


def _busiest(way: str, tally: Tally, beside: str = "") -> Fact:
    """Return which device sends or receives most, and how much more than the mean that is."""
    amounts, most = tally.amounts, tally.most
    busy = int((amounts > 0).sum())
    mean = tally.total / busy
    device = int(tally.units[int(np.argmax(amounts))])
    ratio = f"{most / mean:.2f} x the mean of {count_text(busy, 'device')}" if busy > 1 else "alone"
    told = f"at most, by device {device}, {ratio}"
    return Fact(way, whole_text(most), told + f"; {beside}" * bool(beside))


def _beside(amount: int, bound: int) -> str:
    if not bound:
        return "though nothing needs to move" if amount else "nothing needs to move"
    return f"{amount / bound:.3f} x the least possible"
