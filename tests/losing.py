"""Processes that are lost: what recovery leaves behind, set by hand; random layouts to lose.

The programs run in simulated processes. Those that are lost return; the others go on in a world
in which they do not take part.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.box import Box
from meshard.algebra.device import Device
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import BoxSharding, NamedSharding
from meshard.algebra.spec import PartitionSpec as P
from meshard.runtime.world import here


def lose(*processes: int) -> bool:
    """Go on without some processes; return whether this one does."""
    world = here()
    world.take_part([p for p in world.processes if p not in processes])
    return world.process_index in world.processes


def random_sharding(
    pick: random.Random, shape: tuple[int, ...], devices: Sequence[Device]
) -> Sharding:
    """Return a layout on some of the devices: uneven, replicated, or boxes that overlap."""
    some = pick.sample(list(devices), pick.randint(1, len(devices)))
    if pick.random() < 0.35:
        return BoxSharding(shape, _boxes(pick, shape, some))
    factors = [f for f in range(1, len(some) + 1) if len(some) % f == 0]
    first = pick.choice(factors)
    grid = np.empty(len(some), object)
    grid[:] = some
    axes: list[str | None] = [pick.choice([None, "a", "b"]) for _ in shape]
    spec = [a if a is None or a not in axes[:i] else None for i, a in enumerate(axes)]
    return NamedSharding(
        Mesh(grid.reshape(first, -1), ("a", "b")),
        P(*spec),
        uneven=pick.choice(["balanced", "ceil"]),
    )


def _boxes(
    pick: random.Random, shape: tuple[int, ...], devices: Sequence[Device]
) -> dict[Device, Box]:
    """Return boxes that cover an array, some of them twice, some overlapping others."""
    parts = [Box.whole(shape)]
    owned = pick.randint(1, len(devices))
    while len(parts) < owned:
        box = parts.pop(pick.randrange(len(parts)))
        dim = pick.randrange(len(shape))
        low, high = box.starts[dim], box.stops[dim]
        cut = pick.randint(low, high)
        starts, stops = list(box.starts), list(box.stops)
        stops[dim] = starts[dim] = cut
        parts += [Box(box.starts, tuple(stops)), Box(tuple(starts), box.stops)]
    found = dict(zip(devices, parts, strict=False))
    for device in devices[owned:]:
        ends = [sorted((pick.randint(0, n), pick.randint(0, n))) for n in shape]
        found[device] = Box(tuple(a for a, _ in ends), tuple(b for _, b in ends))
    return found


def held_mask(
    sharding: Sharding, shape: tuple[int, ...], alive: Collection[int]
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return by counting which elements some devices hold."""
    found = np.zeros(shape, bool)
    for device, index in sharding.devices_indices_map(shape).items():
        if device.id in alive and index is not None:
            found[index] = True
    return found


def box_mask(
    shape: tuple[int, ...], boxes: Collection[Box]
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return the elements of some boxes, which must not share any."""
    found = np.zeros(shape, int)
    for box in boxes:
        found[box.slices] += 1
    assert found.max(initial=0) <= 1
    return found > 0
