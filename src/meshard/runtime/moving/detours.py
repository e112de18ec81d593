"""Detours: the layouts that an array passes through where the direct way would burden one host.

In: an array's type, and that of what it becomes. Out: the planner's route, if it pays between
hosts: within one, each sender copies straight to its place, and replicas are one memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from meshard.plan.figures.window import between
from meshard.plan.hops.hop import unit_map
from meshard.plan.hops.route import Route
from meshard.plan.move.assemble import Source, assemble
from meshard.runtime.memo import memoized
from meshard.runtime.moving.execute import ArrayMove, run_moves
from meshard.runtime.types import ArrayType, Blocks
from meshard.runtime.world import RuntimeWorld
from meshard.tuning import DETOUR_GAIN, LARGE


def route_between(world: RuntimeWorld, source: ArrayType, type_: ArrayType) -> Route | None:
    """Return the route by which an array of one type becomes another; None for the direct way."""
    if world.process_count == 1 or type_.nbytes < LARGE:
        return None
    return _route(world, source, type_)


@memoized(most=1 << 13)
def _route(world: RuntimeWorld, source: ArrayType, type_: ArrayType) -> Route | None:
    hosts = {d.id: _host(world, d.process_index) for d in world.devices}
    ends = source.layout, type_.layout
    if len({hosts[i] for layout in ends for i in layout.device_ids}) == 1:
        return None
    # A program that moves nothing between hosts does without the planner.
    from meshard.plan.figures.choice import PlanLeaf
    from meshard.plan.planner import PlanCache, make_plan

    if world.plans is None:
        world.plans = PlanCache()
    plan = make_plan([PlanLeaf("x", *ends, type_.dtype.itemsize)], cache=world.plans)
    (route,) = plan.routes
    if len(route.layouts) < 3:
        return None
    units = unit_map(hosts)
    direct, found = [
        sum(max(hop.sent.most, hop.received.most) for hop in way.between(units))
        for way in (Route("direct", ends), route)
    ]
    return route if found < DETOUR_GAIN * direct else None


def _host(world: RuntimeWorld, process: int) -> int:
    """Return the number of a process's host, or its own where no memory is shared."""
    return process if world.sharing is None else world.sharing[process]


@final
@dataclass(frozen=True)
class RoutedMove:
    """One array's way by other layouts.

    Attributes:
        route: the layouts that it passes through.
        blocks: the blocks that this process has of the first one.
        type_: what it becomes.
    """

    route: Route
    blocks: Blocks
    type_: ArrayType


def run_routes(
    world: RuntimeWorld, moves: Sequence[RoutedMove], max_bytes: int | None = None
) -> list[Blocks]:
    """Bring arrays to their destinations hop by hop: their first hops together, and so on.

    Args:
        world: this process.
        moves: the arrays; a single one if there is a limit.
        max_bytes: the most bytes in flight from and to this process at once.
    """
    known = {d.id: d.process_index for d in world.devices}
    window = max_bytes
    if window is not None:
        (move,) = moves
        window -= between(move.route, move.type_.dtype.itemsize, unit_map(known))
    found = [move.blocks for move in moves]
    for number in range(max([len(move.route.layouts) for move in moves], default=1) - 1):
        going = [i for i, move in enumerate(moves) if number + 1 < len(move.route.layouts)]
        hops = []
        for i in going:
            before, after = moves[i].route.layouts[number : number + 2]
            ids = before.device_ids | after.device_ids
            owners = {d: known.get(d, -1) for d in ids}  # of those that are gone nothing is read
            living = moves[i].route.alive if number == 0 else None
            source = Source(before, alive=None if living is None else frozenset(living))
            part = assemble(after, [source], owners, world.process_index, world.sharing)
            hops.append(ArrayMove(part, found[i], moves[i].type_.dtype))
        for i, blocks in zip(going, run_moves(world, hops, window), strict=True):
            found[i] = blocks
    return found
