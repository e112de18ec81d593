"""Global shapes from local ones and back, by arithmetic alone.

A process's local shape is that of the data which `make_array_from_process_local_data` takes: along
each dim the shards that its devices hold, joined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import refusal, shape_of
from meshard.algebra.boxed import BoxSharding
from meshard.algebra.layout import Layout
from meshard.algebra.sharding import NamedSharding
from meshard.errors import ArgumentError, ShapeError, ShardingError, SpecError
from meshard.runtime.world import here

Held = list[dict[int, frozenset[int]]]
"""For each dim: the numbers of the shards that each process holds of it."""


def local_to_global_shape(sharding: Sharding, local_shape: Sequence[int]) -> tuple[int | None, ...]:
    """Return the global shape that local data of a shape, the same on each process, joins to.

    Nothing is communicated and no array is made.

    Args:
        sharding: how the global array lies.
        local_shape: the shape of each process's data.

    Returns:
        For each dim its global size; None where it does not follow, since processes hold different
        numbers of its shards, or share some of them but not all.

    Raises:
        ArgumentError: if ``sharding`` is no sharding.
        SpecError: if its spec is longer than the rank.
        ShapeError: if ``local_shape`` is no shape, or cannot belong to a sharding of explicit
            boxes.

    >>> import meshard
    >>> mesh = meshard.make_mesh((len(meshard.devices()),), ("x",))
    >>> local_to_global_shape(NamedSharding(mesh, meshard.P("x")), (16, 3))
    (16, 3)
    """
    what = "local_to_global_shape"
    place, shape = _checked(sharding, what), shape_of(local_shape, what, "local_shape")
    if len({d.process_index for d in place.device_order}) == 1:
        return shape
    if isinstance(place, BoxSharding):
        return _boxed(place, shape)
    if isinstance(place, NamedSharding):
        _check_rank(place, shape, what)
        held = _held_named(place, len(shape))
    else:
        # The shape is as good as any on which so many devices can cut a dim evenly: only which
        # process holds which shards is asked for.
        held = _held_spans(place, place.layout((place.num_devices,) * len(shape)))
    uneven = place.uneven if isinstance(place, NamedSharding) else None
    found: list[int | None] = []
    for dim, (size, shards) in enumerate(zip(shape, held, strict=True)):
        distinct = set(shards.values())
        uniform = len({len(s) for s in distinct}) == 1
        disjoint = sum(map(len, distinct)) == len(frozenset().union(*distinct))
        if len(distinct) == 1:
            found.append(size)
        elif isinstance(uneven, tuple) and dim < len(uneven) and uneven[dim] is not None:
            cuts = uneven[dim]
            assert cuts is not None
            found.append(cuts[-1])
        elif uneven in ("balanced", "ceil") or not (uniform and disjoint):
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
        sharding: how the global array lies.
        global_shape: its shape.

    Returns:
        For each dim the length of the shards that this process's devices hold, joined; None where
        they overlap in part, so that they cannot be joined.

    Raises:
        ArgumentError: if ``sharding`` is no sharding.
        ShardingError: if this process has no device of it, or the shape cannot lie so.

    >>> import meshard
    >>> mesh = meshard.make_mesh((len(meshard.devices()),), ("x",))
    >>> global_to_local_shape(NamedSharding(mesh, meshard.P(None, "x")), (3, 16 * mesh.size)) == (
    ...     3,
    ...     16 * len(meshard.local_devices()),
    ... )
    True
    """
    what = "global_to_local_shape"
    place, shape, me = (
        _checked(sharding, what),
        shape_of(global_shape, what, "global_shape"),
        here(),
    )
    if all(d.process_index != me.process_index for d in place.device_order):
        raise ShardingError(
            f"{what}: process {me.process_index} has no device of {place!r}, and so no local shape."
        )
    if isinstance(place, NamedSharding):
        cuts = place.dim_cuts(shape)
        return tuple(
            sum(c[i + 1] - c[i] for i in shards[me.process_index])
            for c, shards in zip(cuts, _held_named(place, len(shape)), strict=True)
        )
    layout = place.layout(shape)
    return tuple(_joined(spans) for spans in _spans(place, layout, me.process_index))


def _checked(sharding: object, what: str) -> Sharding:
    if not isinstance(sharding, Sharding):
        raise ArgumentError(refusal(what, "sharding", "a Sharding", sharding))
    return sharding


def _check_rank(sharding: NamedSharding, shape: tuple[int, ...], what: str) -> None:
    if len(sharding.spec) > len(shape):
        raise SpecError(
            f"{what}: the spec {sharding.spec} has {len(sharding.spec)} entries, but the local "
            f"shape {shape} has rank {len(shape)}. Remove entries from the spec."
        )


def _held_named(sharding: NamedSharding, ndim: int) -> Held:
    """Return which shards of each dim the processes of a mesh hold."""
    mesh = sharding.mesh
    owner = np.array([d.process_index for d in mesh.flat_devices], np.int64)
    place = dict(zip(mesh.axis_names, np.indices(mesh.axis_sizes), strict=True))
    found: Held = []
    for axes in sharding.spec.axes(ndim):
        number = np.zeros(mesh.axis_sizes, np.int64)
        for axis in axes:
            number = number * mesh.shape[axis] + place[axis]
        flat = number.reshape(-1)
        found.append({p: frozenset(flat[owner == p].tolist()) for p in mesh.processes})
    return found


def _spans(sharding: Sharding, layout: Layout, process: int) -> list[list[tuple[int, int]]]:
    """Return for each dim the spans that a process's devices hold, in order."""
    held = {layout.piece_of[d.id] for d in sharding.device_order if d.process_index == process}
    boxes = [layout.box(piece) for piece in held]
    return [sorted({(b.starts[i], b.stops[i]) for b in boxes}) for i in range(layout.ndim)]


def _held_spans(sharding: Sharding, layout: Layout) -> Held:
    """Return which spans of each dim the processes hold, numbered as they are met."""
    found: Held = [{} for _ in range(layout.ndim)]
    numbers: list[Mapping[tuple[int, int], int]] = [
        {
            span: i
            for i, span in enumerate(sorted({(b.starts[d], b.stops[d]) for b in layout.boxes}))
        }
        for d in range(layout.ndim)
    ]
    for process in sorted({d.process_index for d in sharding.device_order}):
        for dim, spans in enumerate(_spans(sharding, layout, process)):
            found[dim][process] = frozenset(numbers[dim][s] for s in spans)
    return found


def _joined(spans: Sequence[tuple[int, int]]) -> int | None:
    """Return the length of spans laid end to end; None if they overlap."""
    if any(after[0] < before[1] for before, after in pairwise(spans)):
        return None
    return sum(stop - start for start, stop in spans)


def _boxed(sharding: BoxSharding, local_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the one shape that the boxes are of, if local data of a shape can belong to it."""
    shape = sharding.global_shape
    layout = sharding.layout(shape)
    me = here().process_index
    own = tuple(_joined(spans) for spans in _spans(sharding, layout, me))
    if len(shape) != len(local_shape) or (
        sharding.addressable_devices
        and any(
            n not in (held, size) for n, held, size in zip(local_shape, own, shape, strict=True)
        )
    ):
        raise ShapeError(
            f"local_to_global_shape: the boxes of {sharding!r} are those of an array of shape "
            f"{shape}, of which process {me} holds {own}; local_shape is {local_shape}."
        )
    return shape
