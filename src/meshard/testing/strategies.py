"""Hypothesis strategies that draw meshes, specs, shapes and shardings.

They shrink towards one axis, one device, whole dims and devices in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
from hypothesis import strategies as st

from meshard.algebra.arguments import (
    count_of,
    flag_of,
    instance_of,
    items_of,
    refusal,
    shape_of,
)
from meshard.algebra.boundary import bounded
from meshard.algebra.box import Box
from meshard.algebra.device import Device, devices_of
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import BoxSharding, NamedSharding, Uneven
from meshard.algebra.spec import PartitionSpec
from meshard.errors import ArgumentError
from meshard.testing.virtual import virtual_devices

_NAMES = ("x", "y", "z", "w")
_MOST_DIMS = 32
_MOST_SIZE = 1 << 40


def _devices(given: object, what: str) -> tuple[Device, ...]:
    """Return the devices to choose from, eight virtual ones by default."""
    found = tuple(virtual_devices(8)) if given is None else devices_of(given, what)
    if not found:
        raise ArgumentError(f"{what}: devices is empty; give one device at least.")
    return found


def _choices(given: object, what: str) -> tuple[Uneven, ...]:
    """Return the values of ``uneven`` to choose from; shardings check them when drawn."""
    found = items_of(given, what, "uneven", "None, 'balanced' or 'ceil'")
    wrong = [u for u in found if not (u is None or isinstance(u, (str, tuple)))]
    if wrong or not found:
        allowed = "a list of what NamedSharding takes as uneven, such as [None, 'balanced'],"
        raise ArgumentError(refusal(what, "uneven", allowed, given))
    return cast(tuple[Uneven, ...], found)


def meshes(devices: Sequence[Device] | None = None, max_axes: int = 4) -> st.SearchStrategy[Mesh]:
    """Draw a mesh of one to ``max_axes`` axes, some of size one, over some devices in any order.

    Args:
        devices: the devices to choose from; eight virtual devices by default.
        max_axes: the most axes, at most four.

    >>> from hypothesis import given, strategies as st
    >>> from meshard import testing
    >>> @given(testing.meshes(max_axes=2))
    ... def test(mesh):
    ...     assert len(mesh.axis_names) <= 2 and mesh.size <= 8
    >>> test()
    """
    what = "testing.meshes"
    have = _devices(devices, what)
    most = count_of(max_axes, what, "max_axes", least=1, most=len(_NAMES))
    return _meshes(have, most)


@st.composite
@bounded
def _meshes(draw: st.DrawFn, devices: Sequence[Device], max_axes: int) -> Mesh:
    have = list(devices)
    names = draw(st.permutations(_NAMES[: draw(st.integers(1, max_axes))]))
    sizes: list[int] = []
    for _ in names:
        sizes.append(draw(st.integers(1, len(have) // math.prod(sizes))))
    grid = np.empty(math.prod(sizes), object)
    grid[:] = draw(st.permutations(have))[: grid.size]
    return Mesh(grid.reshape(sizes), names)


def specs(mesh: Mesh, ndim: int) -> st.SearchStrategy[PartitionSpec]:
    """Draw a spec for arrays of rank ``ndim``, also with tuples of axes and trailing Nones.

    Args:
        mesh: the mesh whose axes it names.
        ndim: the rank; the spec may be shorter.

    >>> from hypothesis import given
    >>> from meshard import Mesh, testing
    >>> mesh = Mesh(testing.virtual_devices(4), "x")
    >>> @given(testing.specs(mesh, 2))
    ... def test(spec):
    ...     assert len(spec) <= 2
    >>> test()
    """
    what = "testing.specs"
    instance_of(mesh, Mesh, what, "mesh")
    return _specs(mesh, count_of(ndim, what, "ndim", most=_MOST_DIMS))


@st.composite
@bounded
def _specs(draw: st.DrawFn, mesh: Mesh, ndim: int) -> PartitionSpec:
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


def shapes(
    shards: Sequence[int], divides: bool = True, min_size: int = 0
) -> st.SearchStrategy[tuple[int, ...]]:
    """Draw a shape for dims that are cut into given numbers of shards.

    Args:
        shards: the number of shards of each dim.
        divides: whether each dim must divide; otherwise it may or may not.
        min_size: the least size of a shard, or of a dim where it need not divide.

    >>> from hypothesis import given
    >>> from meshard import testing
    >>> @given(testing.shapes((4, 2)))
    ... def test(shape):
    ...     assert shape[0] % 4 == 0 and shape[1] % 2 == 0
    >>> test()
    """
    what = "testing.shapes"
    numbers = shape_of(shards, what, "shards")
    least = count_of(min_size, what, "min_size", most=_MOST_SIZE)
    return _shapes(numbers, flag_of(divides, what, "divides"), least)


@st.composite
@bounded
def _shapes(
    draw: st.DrawFn, shards: Sequence[int], divides: bool, min_size: int
) -> tuple[int, ...]:
    if divides:
        return tuple(n * draw(st.integers(min_size, max(3, min_size))) for n in shards)
    return tuple(draw(st.integers(min_size, 2 * n + 3 + min_size)) for n in shards)


def named_shardings(
    ndim: int,
    mesh: Mesh | None = None,
    uneven: Sequence[Uneven] = (None,),
    devices: Sequence[Device] | None = None,
) -> st.SearchStrategy[NamedSharding]:
    """Draw a sharding by mesh and spec for arrays of rank ``ndim``.

    Args:
        ndim: the rank.
        mesh: the mesh; any by default.
        uneven: the values of ``uneven`` to choose from.
        devices: the devices of the mesh, if no mesh is given.

    >>> from hypothesis import given
    >>> from meshard import testing
    >>> @given(testing.named_shardings(2, uneven=("balanced",)))
    ... def test(sharding):
    ...     assert sharding.shard_shape((7, 5)) <= (7, 5)
    >>> test()
    """
    what = "testing.named_shardings"
    rank = count_of(ndim, what, "ndim", most=_MOST_DIMS)
    if mesh is not None:
        instance_of(mesh, Mesh, what, "mesh")
    return _named_shardings(rank, mesh, _choices(uneven, what), _devices(devices, what))


@st.composite
@bounded
def _named_shardings(
    draw: st.DrawFn,
    ndim: int,
    mesh: Mesh | None,
    uneven: Sequence[Uneven],
    devices: Sequence[Device],
) -> NamedSharding:
    chosen = draw(meshes(devices)) if mesh is None else mesh
    return NamedSharding(chosen, draw(specs(chosen, ndim)), uneven=draw(st.sampled_from(uneven)))


def placed_shapes(
    max_ndim: int = 3,
    min_size: int = 0,
    uneven: Sequence[Uneven] = (None,),
    devices: Sequence[Device] | None = None,
) -> st.SearchStrategy[tuple[NamedSharding, tuple[int, ...]]]:
    """Draw a sharding together with a shape that it can lay out.

    Args:
        max_ndim: the greatest rank.
        min_size: the least size of a shard, or of a dim where it need not divide.
        uneven: the values of ``uneven`` to choose from; if it is not None, dims need not divide.
        devices: the devices of the mesh; eight virtual devices by default.

    >>> from hypothesis import given
    >>> from meshard import testing
    >>> @given(testing.placed_shapes())
    ... def test(placed):
    ...     sharding, shape = placed
    ...     assert len(sharding.devices_indices_map(shape)) == len(sharding.device_set)
    >>> test()
    """
    what = "testing.placed_shapes"
    rank = count_of(max_ndim, what, "max_ndim", most=_MOST_DIMS)
    least = count_of(min_size, what, "min_size", most=_MOST_SIZE)
    return _placed_shapes(rank, least, _choices(uneven, what), _devices(devices, what))


@st.composite
@bounded
def _placed_shapes(
    draw: st.DrawFn,
    max_ndim: int,
    min_size: int,
    uneven: Sequence[Uneven],
    devices: Sequence[Device],
) -> tuple[NamedSharding, tuple[int, ...]]:
    ndim = draw(st.integers(0, max_ndim))
    sharding = draw(named_shardings(ndim, uneven=uneven, devices=devices))
    divides = sharding.uneven is None
    return sharding, draw(shapes(sharding.shards(ndim), divides, min_size))


def box_shardings(
    shape: Sequence[int], devices: Sequence[Device] | None = None
) -> st.SearchStrategy[BoxSharding]:
    """Draw a sharding of explicit boxes, cut at random; some devices get overlapping boxes.

    Args:
        shape: the shape of the arrays that it lays out.
        devices: the devices to choose from; eight virtual devices by default.

    >>> from hypothesis import given
    >>> from meshard import testing
    >>> @given(testing.box_shardings((6, 4)))
    ... def test(sharding):
    ...     assert sharding.devices_indices_map((6, 4))
    >>> test()
    """
    what = "testing.box_shardings"
    return _box_shardings(shape_of(shape, what), _devices(devices, what))


@st.composite
@bounded
def _box_shardings(draw: st.DrawFn, shape: Sequence[int], devices: Sequence[Device]) -> BoxSharding:
    have = draw(st.permutations(list(devices)))
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
