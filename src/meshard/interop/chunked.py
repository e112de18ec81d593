"""Arrays that other libraries hold in chunks, and layouts that fit their chunks.

In: the cuts of each dim. Out: a sharding that cuts where they do, or the sizes of the chunks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import NamedSharding, SingleDeviceSharding
from meshard.algebra.spec import PartitionSpec
from meshard.runtime.world import here

Cuts = tuple[int, ...]


def fitting(cuts: Sequence[Cuts]) -> NamedSharding | SingleDeviceSharding:
    """Return a sharding over all devices that cuts no chunk.

    The dim with the most chunks is split, as evenly as its cuts allow.

    Args:
        cuts: for each dim where its chunks begin and end.
    """
    devices = list(here().devices)
    counts = [len(c) - 1 for c in cuts]
    if not counts or max(counts) < 2 or len(devices) < 2:
        return SingleDeviceSharding(devices[0])
    dim = counts.index(max(counts))
    spec = PartitionSpec(*[None] * dim, "chunks")
    uneven = (*[None] * dim, _shared(cuts[dim], len(devices)))
    return NamedSharding(Mesh(devices, "chunks"), spec, uneven=uneven)


def _shared(points: Cuts, count: int) -> Cuts:
    """Return cuts for that many devices, at some of the points and as even as these allow.

    >>> _shared((0, 5, 10, 15, 20, 25, 30, 35, 37), 8)
    (0, 5, 10, 15, 20, 25, 30, 35, 37)
    >>> _shared((0, 4, 8), 3)
    (0, 4, 8, 8)
    """
    last, found = len(points) - 1, [0]
    for device in range(1, count):
        wanted = points[-1] * device / count
        nearest = min(range(last + 1), key=lambda i: abs(points[i] - wanted))
        # Each device gets a chunk as long as there are some, and none takes those of the others.
        most = max(last - (count - device), min(device, last))
        found.append(min(max(nearest, min(found[-1] + 1, last)), most))
    return tuple([points[i] for i in [*found, last]])


def sizes(cuts: Sequence[Cuts]) -> tuple[tuple[int, ...], ...]:
    """Return the sizes of the chunks of each dim."""
    return tuple([tuple(np.diff(c).tolist()) for c in cuts])
