"""Global shapes from local ones and back, by arithmetic alone.

In: a sharding, and one of the two shapes. Out: the other. A process's local shape is that of the
data which `make_array_from_process_local_data` takes: along each dim the shards that its devices
hold, joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import instance_of, shape_of
from meshard.algebra.boxed import BoxSharding
from meshard.algebra.device import Device
from meshard.algebra.layout import Layout
from meshard.algebra.sharding import NamedSharding
from meshard.errors import ShapeError, ShardingError, SpecError
from meshard.runtime.world import here

Spans = tuple[tuple[int, int], ...]


def local_to_global_shape(sharding: Sharding, local_shape: Sequence[int]) -> tuple[int | None, ...]:
    """Return the global shape of data that has the same local shape on each process.

    Nothing is communicated and no array is made.

    Args:
        sharding: how the global array is laid out.
        local_shape: the shape of each process's data.

    Returns:
        The global size of each dim; None if it is not determined, since processes hold different
        numbers of its shards, or share some of them but not all.

    Raises:
        ArgumentError: if ``sharding`` is not a sharding.
        SpecError: if its spec is longer than the rank.
        ShapeError: if ``local_shape`` is not a shape, or cannot belong to a sharding of explicit
            boxes.

    >>> import numpy as np, meshard
    >>> from meshard.multihost_utils import local_to_global_shape
    >>> from meshard import NamedSharding
    >>> mesh = meshard.make_mesh((len(meshard.devices()),), ("x",))
    >>> local_to_global_shape(NamedSharding(mesh, meshard.P("x")), (16, 3))
    (16, 3)
    """
    what = "local_to_global_shape"
    place: Sharding = instance_of(sharding, Sharding, what, "sharding")  # type: ignore[type-abstract]
    shape = shape_of(local_shape, what, "local_shape")
    devices: dict[int, list[Device]] = {}
    for device in place.device_order:
        devices.setdefault(device.process_index, []).append(device)
    if len(devices) == 1:
        return shape
    if isinstance(place, BoxSharding):
        return _boxed(place, shape)
    # Only the shards of each process are needed, and any shape that is cut shows them.
    probe, uneven = (place.num_devices,) * len(shape), None
    if isinstance(place, NamedSharding):
        if len(place.spec) > len(shape):
            raise SpecError(
                f"{what}: the spec {place.spec} has {len(place.spec)} entries, but the local "
                f"shape {shape} has rank {len(shape)}. Remove entries from the spec."
            )
        probe, uneven = place.shards(len(shape)), place.uneven
        place = NamedSharding(place.mesh, place.spec)
    layout = place.layout(probe)
    held = zip(*[_held(layout, own) for own in devices.values()], strict=True)
    found: list[int | None] = []
    for dim, (size, spans) in enumerate(zip(shape, held, strict=True)):
        distinct = set(spans)
        cuts = uneven[dim : dim + 1] if isinstance(uneven, tuple) else ()
        uniform = len(set(map(len, distinct))) == 1
        disjoint = sum(map(len, distinct)) == len(set().union(*distinct))
        if len(distinct) == 1:
            found.append(size)
        elif cuts and cuts[0] is not None:
            found.append(cuts[0][-1])
        elif isinstance(uneven, str) or not (uniform and disjoint):
            found.append(None)
        else:
            found.append(size * len(distinct))
    return tuple(found)


def global_to_local_shape(
    sharding: Sharding, global_shape: Sequence[int]
) -> tuple[int | None, ...]:
    """Return the shape of this process's data of an array.

    Nothing is communicated and no array is made.

    Args:
        sharding: how the global array is laid out.
        global_shape: its shape.

    Returns:
        For each dim the joined length of the shards that this process's devices hold; None if they
        overlap in part, so that they cannot be joined.

    Raises:
        ArgumentError: if ``sharding`` is not a sharding.
        ShardingError: if this process has no device of it, or the shape cannot be laid out so.

    >>> import numpy as np, meshard
    >>> from meshard.multihost_utils import global_to_local_shape
    >>> from meshard import NamedSharding
    >>> mesh = meshard.make_mesh((len(meshard.devices()),), ("x",))
    >>> global_to_local_shape(NamedSharding(mesh, meshard.P(None, "x")), (3, 16 * mesh.size)) == (
    ...     3,
    ...     16 * len(meshard.local_devices()),
    ... )
    True
    """
    what, me = "global_to_local_shape", here().process_index
    place: Sharding = instance_of(sharding, Sharding, what, "sharding")  # type: ignore[type-abstract]
    shape = shape_of(global_shape, what, "global_shape")
    own = [d for d in place.device_order if d.process_index == me]
    if not own:
        raise ShardingError(
            f"{what}: process {me} has no device of {place!r}, and so no local shape."
        )
    return tuple(map(_joined, _held(place.layout(shape), own)))


def _held(layout: Layout, devices: Sequence[Device]) -> list[Spans]:
    """Return for each dim the spans that devices hold, in order."""
    pieces = list({layout.piece_of[d.id] for d in devices})
    if layout.regular and layout.ndim:
        numbers = zip(layout.cuts, np.unravel_index(pieces, layout.grid), strict=True)
        return [tuple([(c[i], c[i + 1]) for i in np.unique(held)]) for c, held in numbers]
    boxes = [layout.box(piece) for piece in pieces]
    return [
        tuple(sorted({(b.starts[dim], b.stops[dim]) for b in boxes})) for dim in range(layout.ndim)
    ]


def _joined(spans: Spans) -> int | None:
    """Return the length of spans laid end to end; None if they overlap."""
    if any(after[0] < before[1] for before, after in pairwise(spans)):
        return None
    return sum(stop - start for start, stop in spans)


def _boxed(sharding: BoxSharding, local_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the one shape of a sharding's boxes, if local data of a shape can belong to it."""
    shape, me = sharding.global_shape, here().process_index
    mine = [d for d in sharding.device_order if d.process_index == me]
    own = tuple(map(_joined, _held(sharding.layout(shape), mine)))
    sizes = zip(local_shape, own, shape, strict=False)
    if len(shape) != len(local_shape) or (
        mine and any(n not in (held, size) for n, held, size in sizes)
    ):
        raise ShapeError(
            f"local_to_global_shape: the boxes of {sharding!r} are those of an array of shape "
            f"{shape}, of which process {me} holds {own}; local_shape is {local_shape}."
        )
    return shape
