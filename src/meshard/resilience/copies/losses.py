"""Losses that have not happened: what a tree would lose, and what bringing it back would take.

In: a tree laid out on any number of devices, which need not exist, how it is protected, and who
dies. Out: a `LossSimulation`: the boxes that are lost, the plan of the restore, and its time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

from meshard.algebra.arguments import choice_of, count_of, function_of, integer_of, items_of
from meshard.algebra.box import Box
from meshard.algebra.device import Device
from meshard.errors import ArgumentError
from meshard.plan.captions import count_text, time_text, whole_text
from meshard.plan.figures.simulate import Simulation
from meshard.plan.figures.topology import Topology, as_topology
from meshard.plan.show.summary import Fact, Summarized, Summary
from meshard.resilience.copies.placement import Apart, ProtectPlan, plan_copies
from meshard.resilience.copies.restore import plan_kept
from meshard.resilience.copies.restore_plan import RestorePlan
from meshard.resilience.copies.stocks import KeptTree, kept_tree

_WHAT = "elastic.simulate_loss"


@final
@dataclass(frozen=True, repr=False)
class LossSimulation(Summarized):
    """What would happen to a tree if some processes died; it prints as a table.

    Attributes:
        dead: the processes that die, ascending.
        processes: how many there are.
        protected: what the copies take; None if none are kept.
        restored: the plan that brings the tree to those that are left.
        topology: where the devices are; None if nothing is timed.

    >>> import meshard
    >>> from meshard import elastic
    >>> from meshard.testing import virtual_devices
    >>> def place(devices):
    ...     return meshard.NamedSharding(meshard.Mesh(devices, ("x",)), meshard.P())
    >>> whole = place(virtual_devices(8, devices_per_process=1))
    >>> w = meshard.ShapeDtypeStruct((8,), "float32", sharding=whole)
    >>> elastic.simulate_loss(w, place, 7).lost  # one has all of it
    {}
    """

    dead: tuple[int, ...]
    processes: int
    protected: ProtectPlan | None
    restored: RestorePlan
    topology: Topology | None

    @property
    def lost(self) -> dict[str, tuple[Box, ...]]:
        """The boxes that nobody has any more, by the name of the array."""
        return self.restored.lost

    @property
    def lost_bytes(self) -> int:
        """The bytes of these boxes."""
        return self.restored.unheld_bytes

    @cached_property
    def time(self) -> Simulation | None:
        """The time and the traffic of the restore; None without a topology."""
        return None if self.topology is None else self.restored.simulate(self.topology)

    def __repr__(self) -> str:
        dead = f"{len(self.dead)} of {count_text(self.processes, 'process')} die"
        return f"LossSimulation({dead}, {self.lost_bytes} bytes gone, {self.restored!r})"

    def _summary(self) -> Summary:
        die = f"{len(self.dead):,} of {count_text(self.processes, 'process')} die"
        gone = whole_text(self.lost_bytes)
        told = f"Safe: {die}, and nothing is lost"
        if self.lost:
            told = f"Not safe: {die}, and {gone} are lost that nobody else has"
        elif self.time is not None:
            told += f"; it is back in {time_text(self.time.seconds)} on {self.time.topology}"
        shown = ", ".join(map(str, self.dead[:12])) + ", ..." * (len(self.dead) > 12)
        facts = [Fact("lost", gone, "that nobody has any more"), Fact("dead", shown)]
        if self.time is not None:
            facts += self.time.facts
        parts: list[Summarized] = [self.restored]
        if self.protected is not None:
            parts.append(self.protected)
        return Summary(told, facts, more=[part._summary() for part in parts])


def simulate_loss(
    tree: Any,
    place: Callable[[list[Device]], Any],
    deaths: int | Collection[int],
    *,
    copies: int = 0,
    apart: str = "process",
    processes_per_host: int = 1,
    seed: int = 0,
    topology: Topology | str | None = None,
) -> LossSimulation:
    """Return what a tree would lose if some processes died, and what restoring it would take.

    Nothing is allocated, so that any number of devices can be looked at.

    Args:
        tree: a tree of ShapeDtypeStructs with shardings, or of arrays.
        place: called with the devices that are left, it returns the shardings to restore to.
        deaths: how many processes die, chosen at random, or the numbers of those that do.
        copies: how many copies `protect` would keep; 0 for none.
        apart: what they must not share; see `protect`.
        processes_per_host: how many processes run on each host, in the order of their numbers.
        seed: the seed of the random choice.
        topology: where the devices are, or the name of a preset, as in ``"8-gpu hosts"``, if the
            restore is to be timed.

    Raises:
        ArgumentError: if nobody is left, or too few for the copies.
        TreeError, ShardingError: if ``place`` does not return shardings for the tree.

    >>> import meshard
    >>> from meshard.elastic import simulate_loss
    >>> from meshard.testing import virtual_devices
    >>> def place(devices):
    ...     return meshard.NamedSharding(
    ...         meshard.Mesh(devices, ("x",)), meshard.P("x"), uneven="balanced"
    ...     )
    >>> rows = place(virtual_devices(8, devices_per_process=1))
    >>> tree = {"w": meshard.ShapeDtypeStruct((5600,), "float32", sharding=rows)}
    >>> found = simulate_loss(tree, place, [3], copies=1)
    >>> found.lost, found.restored.bytes_lost, found.protected.memory_bytes
    ({}, 2800, 22400)
    """
    kept = kept_tree(tree, _WHAT)
    devices = _devices(kept)
    processes = sorted({d.process_index for d in devices})
    dead = _chosen(deaths, processes, integer_of(seed, _WHAT, "seed"))
    each = count_of(processes_per_host, _WHAT, "processes_per_host", least=1)
    where = None if topology is None else as_topology(topology, _WHAT)
    number = count_of(copies, _WHAT, "copies")
    kind = choice_of(apart, ("process", "host"), _WHAT, "apart")
    protected = None
    if number:
        places = Apart.of(devices, number, kind, lambda process: process // each)
        protected = _protected(kept, places, kind)
        grids = {a.name: a.copies for a in protected.arrays}
        kept = kept.with_copies([grids.get(leaf.name) for leaf in kept.leaves])
    left = [d for d in devices if d.process_index not in dead]
    function_of(place, _WHAT, "place", "It is called with the devices that are left.")
    owners = {d.id: d.process_index for d in devices}
    plan = plan_kept(kept, place(left), owners, [d.id for d in left], _WHAT)
    return LossSimulation(tuple(dead), len(processes), protected, plan, where)


def _devices(kept: KeptTree) -> list[Device]:
    found = {
        d.id: d
        for leaf in kept.leaves
        if leaf.array is not None
        for d in leaf.source.sharding.device_order
    }
    if not found:
        raise ArgumentError(f"{_WHAT}: the tree has no array that is laid out on devices.")
    return [found[i] for i in sorted(found)]


def _chosen(deaths: object, processes: list[int], seed: int) -> list[int]:
    """Return who dies."""
    if isinstance(deaths, int) and not isinstance(deaths, bool):
        count = count_of(deaths, _WHAT, "deaths")
        dead = random.Random(seed).sample(processes, min(count, len(processes)))
    else:
        given = items_of(deaths, _WHAT, "deaths", "numbers of processes")
        dead = [count_of(p, _WHAT, "each of deaths") for p in given]
    if not set(processes) - set(dead):
        raise ArgumentError(f"{_WHAT}: all {len(processes)} processes die; nobody is left.")
    return sorted({*dead})


def _protected(kept: KeptTree, apart: Apart, kind: str) -> ProtectPlan:
    if apart.domains <= apart.copies:
        raise ArgumentError(
            f"{_WHAT}: copies={apart.copies} with apart={kind!r} needs {apart.copies + 1} "
            f"{'processes' if kind == 'process' else 'hosts'}, and there are {apart.domains}."
        )
    arrays = []
    for leaf in kept.leaves:
        if leaf.array is not None and leaf.own is not None:
            arrays.append((leaf.name, leaf.text, leaf.array[1].itemsize, leaf.own))
    return plan_copies(arrays, apart, kind)
