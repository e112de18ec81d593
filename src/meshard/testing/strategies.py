"""Hypothesis strategies that draw meshes, specs, shapes and shardings.

They shrink towards one axis, one device, whole dims and devices in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from meshard.algebra.box import Box
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import BoxSharding, NamedSharding, Uneven
from meshard.algebra.spec import PartitionSpec
from meshard.algebra.world import Device

from .virtual import virtual_devices

__all__ = ["box_shardings", "meshes", "named_shardings", "placed_shapes", "shapes", "specs"]

_NAMES = ("x", "y", "z", "w")


@st.composite
def meshes(draw: st.DrawFn, devices: Sequence[Device] | None = None, max_axes: int = 4) -> Mesh:
    """Draw a mesh of one to ``max_axes`` axes, some of size one, over some devices in any order.

    Args:
        draw: given by Hypothesis.
        devices: what to choose from; eight virtual devices by default.
        max_axes: at most four.
    """
    have = list(virtual_devices(8) if devices is None else devices)
    names = draw(st.permutations(_NAMES[: draw(st.integers(1, max_axes))]))
    sizes: list[int] = []
    for _ in names:
        sizes.append(draw(st.integers(1, len(have) // math.prod(sizes))))
    grid = np.empty(math.prod(sizes), object)
    grid[:] = draw(st.permutations(have))[: grid.size]
    return Mesh(grid.reshape(sizes), names)


@st.composite
def specs(draw: st.DrawFn, mesh: Mesh, ndim: int) -> PartitionSpec:
    """Draw a spec for arrays of rank ``ndim``, with tuples of axes and with trailing None or not.

    Args:
        draw: given by Hypothesis.
        mesh: the mesh whose axes it names.
        ndim: the rank; the spec may be shorter.
    """
    dims: list[list[str]] = [[] for _ in range(ndim)]
    for name in draw(st.permutations(mesh.axis_names)):
        place = draw(st.integers(0, ndim))
        if place:
            dims[place - 1].append(name)
    entries: list[object] = [
        tuple(d) if len(d) > 1 or (d and draw(st.booleans())) else (d[0] if d else None)
        for d in dims
    ]
    while entries and entries[-1] is None and draw(st.booleans()):
        entries.pop()
    return PartitionSpec(*entries)


@st.composite
def shapes(
    draw: st.DrawFn, shards: Sequence[int], divides: bool = True, min_size: int = 0
) -> tuple[int, ...]:
    """Draw a shape for dims that are cut into so many shards.

    Args:
        draw: given by Hypothesis.
        shards: the number of shards of each dim.
        divides: whether each dim must divide; otherwise it may or may not.
        min_size: the least size of a shard, or of a dim where it need not divide.
    """
    if divides:
        return tuple(n * draw(st.integers(min_size, max(3, min_size))) for n in shards)
    return tuple(draw(st.integers(min_size, 2 * n + 3 + min_size)) for n in shards)


@st.composite
def named_shardings(
    draw: st.DrawFn,
    ndim: int,
    mesh: Mesh | None = None,
    uneven: Sequence[Uneven] = (None,),
    devices: Sequence[Device] | None = None,
) -> NamedSharding:
    """Draw a sharding by mesh and spec for arrays of rank ``ndim``.

    Args:
        draw: given by Hypothesis.
        ndim: the rank.
        mesh: the mesh; any by default.
        uneven: what to choose ``uneven`` from.
        devices: what to make the mesh of, where none is given.
    """
    chosen = draw(meshes(devices)) if mesh is None else mesh
    return NamedSharding(chosen, draw(specs(chosen, ndim)), uneven=draw(st.sampled_from(uneven)))


@st.composite
def placed_shapes(
    draw: st.DrawFn,
    max_ndim: int = 3,
    min_size: int = 0,
    uneven: Sequence[Uneven] = (None,),
    devices: Sequence[Device] | None = None,
) -> tuple[NamedSharding, tuple[int, ...]]:
    """Draw a sharding together with a shape that it can lay out.

    Args:
        draw: given by Hypothesis.
        max_ndim: the greatest rank.
        min_size: the least size of a shard, or of a dim where it need not divide.
        uneven: what to choose ``uneven`` from; where it is not None, dims need not divide.
        devices: what to make the mesh of; eight virtual devices by default.
    """
    ndim = draw(st.integers(0, max_ndim))
    sharding = draw(named_shardings(ndim, uneven=uneven, devices=devices))
    divides = sharding.uneven is None
    return sharding, draw(shapes(sharding.shards(ndim), divides, min_size))


@st.composite
def box_shardings(
    draw: st.DrawFn, shape: Sequence[int], devices: Sequence[Device] | None = None
) -> BoxSharding:
    """Draw a sharding of explicit boxes: cut up at random, some devices with other boxes on top.

    Args:
        draw: given by Hypothesis.
        shape: the shape of the arrays that it lays out.
        devices: what to choose from; eight virtual devices by default.
    """
    have = draw(st.permutations(virtual_devices(8) if devices is None else list(devices)))
    count = draw(st.integers(1, len(have)))
    needed = draw(st.integers(1, count))
    boxes = [Box.whole(shape)]
    while len(boxes) < needed:
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        dim = draw(st.integers(0, len(shape) - 1)) if shape else 0
        if not shape or box.shape[dim] < 2:
            boxes.append(box)
            break
        at = draw(st.integers(box.starts[dim] + 1, box.stops[dim] - 1))
        for start, stop in ((box.starts[dim], at), (at, box.stops[dim])):
            starts, stops = list(box.starts), list(box.stops)
            starts[dim], stops[dim] = start, stop
            boxes.append(Box(tuple(starts), tuple(stops)))
    for _ in range(count - len(boxes)):
        if draw(st.booleans()):
            boxes.append(draw(st.sampled_from(boxes)))
        else:
            ends = [sorted(draw(st.tuples(*[st.integers(0, n)] * 2))) for n in shape]
            boxes.append(Box(tuple([e[0] for e in ends]), tuple([e[1] for e in ends])))
    return BoxSharding(shape, dict(zip(have, boxes, strict=False)))
