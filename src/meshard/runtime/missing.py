"""What arrays have lost: the boxes that no device of a process which takes part holds.

In: a type of arrays, and the world. Out: boxes, and the ids of the devices that still hold theirs.
Nobody looks through a layout twice: the world remembers the answers until its processes change.
"""

from __future__ import annotations

from meshard.algebra.abstract import Sharding
from meshard.algebra.box import Box
from meshard.algebra.device import device_ids_of
from meshard.algebra.layout import Layout
from meshard.plan.hops.cells import CellGrid, each_device
from meshard.plan.hops.hop import only_alive
from meshard.runtime.memo import memoized
from meshard.runtime.types import ArrayType
from meshard.runtime.world import RuntimeWorld


@memoized(most=1 << 12)
def living_ids(world: RuntimeWorld, sharding: Sharding) -> frozenset[int] | None:
    """Return the ids of a sharding's devices whose processes take part; None if all of them do."""
    processes = frozenset(world.processes)
    order = sharding.device_order
    found = frozenset([d.id for d in order if d.process_index in processes])
    return None if len(found) == len(order) else found


@memoized(most=1 << 12)
def missing_boxes(world: RuntimeWorld, type_: ArrayType) -> tuple[Box, ...]:
    """Return the boxes of arrays of a type that no process which takes part holds."""
    living = living_ids(world, type_.sharding)
    return () if living is None else lost_boxes(type_.layout, living)


def alive_ids(given: object, what: str) -> frozenset[int] | None:
    """Return the ids of devices that were given as those that are alive; None if none were given.

    Raises:
        ArgumentError: if they are not devices, or ids of devices.
    """
    return None if given is None else frozenset(device_ids_of(given, what, "alive"))


def alive_part(
    world: RuntimeWorld, type_: ArrayType, given: frozenset[int] | None
) -> frozenset[int] | None:
    """Return the devices that still hold their part of an array; None if all of them do.

    Args:
        world: this process's world.
        type_: the array's type.
        given: the devices that are said to be alive; None for those of all that take part.
    """
    found = living_ids(world, type_.sharding)
    if given is None or type_.unplaced:
        return found
    ids = frozenset(type_.layout.device_ids) if found is None else found
    return found if ids <= given else ids & given


def lost_boxes(layout: Layout, alive: frozenset[int]) -> tuple[Box, ...]:
    """Return the boxes of a layout that none of some devices holds.

    >>> import numpy as np
    >>> rows = Layout((8,), ((0, 4, 8),), np.array([[0], [1]]))
    >>> lost_boxes(rows, frozenset([0]))
    (Box(starts=(4,), stops=(8,)),)
    """
    return CellGrid(layout, only_alive(each_device, alive)).lost
