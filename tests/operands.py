"""Operands of every kind for tests of operations: drawn once, made in any world.

A drawn `Placing` says how one operand lies: by a mesh and a spec, box by box, uncommitted on one
device, or not in meshard at all. It names devices by number, so that one and the same example runs
in one process and in several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from meshard.algebra.box import Box
from meshard.sharding import BoxSharding, Mesh, NamedSharding, Sharding
from meshard.testing.strategies import box_shardings, specs
from meshard.testing.virtual import virtual_devices
from tests.worlds import in_processes

DEVICES = virtual_devices(8)
TEAMS = (
    (0, 1, 2, 3, 4, 5, 6, 7),
    (5, 0, 3, 6, 1, 4, 7, 2),
    (0, 1, 2, 3),
    (6, 3, 5, 4),
    (7, 2),
    (6,),
)
"""Sets of devices; in two processes of four, some are those of one process only."""


@dataclass(frozen=True)
class Placing:
    """How an operand lies: as a sharding says, or ``"one"`` device, or as a ``"numpy"`` array."""

    how: Sharding | str

    def __call__(self, value: Any) -> Any:
        """Return the value laid out so in the current world."""
        if self.how == "numpy":
            return value
        if self.how == "one":
            return mnp.asarray(value)
        return meshard.device_put(value, here_and_now(self.how))


def here_and_now(sharding: Sharding) -> Sharding:
    """Return a sharding of virtual devices on the devices of the current world."""
    devices = np.array(meshard.devices())
    if isinstance(sharding, NamedSharding):
        mesh = Mesh(devices[sharding.mesh.device_ids], sharding.mesh.axis_names)
        return NamedSharding(mesh, sharding.spec, uneven=sharding.uneven)
    boxes = sharding.devices_indices_map(sharding.global_shape)
    return BoxSharding(sharding.global_shape, {devices[d.id]: b for d, b in boxes.items()})


def in_all_worlds(body: Callable[[], Any]) -> Any:
    """Run a body in 1, 2, 4 and 8 processes; check that all return the same bits; return them."""
    return in_processes(body, (2, 4, 8))


@st.composite
def meshes_of(draw: st.DrawFn, team: Sequence[int]) -> Mesh:
    """Draw a mesh over exactly these devices, in any order."""
    sizes: list[int] = []
    left = len(team)
    while left > 1 and len(sizes) < 3:
        divisors = [n for n in range(1, left + 1) if left % n == 0]
        sizes.append(draw(st.sampled_from(divisors[::-1])))
        left //= sizes[-1]
    if left > 1:
        sizes[-1] *= left
    names = draw(st.permutations(("i", "j", "k")))[: max(1, len(sizes))]
    order = draw(st.permutations(team))
    grid = np.empty(len(team), object)
    grid[:] = [DEVICES[d] for d in order]
    return Mesh(grid.reshape(sizes or (1,)), names)


@st.composite
def cuts_of(draw: st.DrawFn, size: int, shards: int) -> tuple[int, ...]:
    """Draw any cut points of a dim; shards may be empty."""
    inner = draw(st.lists(st.integers(0, size), min_size=shards - 1, max_size=shards - 1))
    return (0, *sorted(inner), size)


@st.composite
def named_of(draw: st.DrawFn, shape: Sequence[int], team: Sequence[int]) -> NamedSharding:
    """Draw a sharding by mesh and spec for a shape: even, balanced, ceil, or with any cuts."""
    mesh = draw(meshes_of(team))
    spec = draw(specs(mesh, len(shape)))
    shards = NamedSharding(mesh, spec).shards(len(shape))
    uneven: Any = draw(st.sampled_from(["balanced", "ceil", "cuts"]))
    if uneven == "cuts":
        uneven = tuple(
            draw(cuts_of(size, n)) if n > 1 else None for size, n in zip(shape, shards, strict=True)
        )
    elif all(size % n == 0 for size, n in zip(shape, shards, strict=True)):
        uneven = draw(st.sampled_from([None, uneven]))
    return NamedSharding(mesh, spec, uneven=uneven)


@st.composite
def boxes_of(draw: st.DrawFn, shape: Sequence[int], team: Sequence[int]) -> BoxSharding:
    """Draw a sharding by boxes in which every one of these devices holds something."""
    some = draw(box_shardings(shape, [DEVICES[d] for d in team]))
    boxes: dict[Any, Any] = dict(some.devices_indices_map(tuple(shape)))
    for d in team:
        boxes.setdefault(DEVICES[d], Box.whole(tuple(shape)))
    return BoxSharding(tuple(shape), boxes)


@st.composite
def placings(draw: st.DrawFn, shape: Sequence[int], team: Sequence[int]) -> Placing:
    """Draw how an operand of a shape lies; by a mesh most of the time."""
    kind = draw(st.sampled_from(["mesh"] * 6 + ["boxes", "one", "numpy"]))
    if kind == "mesh":
        return Placing(draw(named_of(shape, team)))
    if kind == "boxes":
        return Placing(draw(boxes_of(shape, team)))
    return Placing(kind)


def teams() -> st.SearchStrategy[tuple[int, ...]]:
    """Draw the devices that an operation's operands share."""
    return st.sampled_from(TEAMS)


@st.composite
def shapes_of(
    draw: st.DrawFn, max_ndim: int = 4, max_size: int = 64, min_ndim: int = 0
) -> tuple[int, ...]:
    """Draw a shape, with dims of size zero and one now and then, of few elements."""
    shape: list[int] = []
    for _ in range(draw(st.integers(min_ndim, max_ndim))):
        most = max(1, max_size // max(1, math.prod(shape)))
        shape.append(draw(st.sampled_from([n for n in (4, 1, 3, 8, 2, 5, 0, 7, 11) if n <= most])))
    return tuple(shape)


@st.composite
def broadcasting(draw: st.DrawFn, shape: Sequence[int]) -> tuple[int, ...]:
    """Draw a shape that broadcasts to another: leading dims left out, others of size one."""
    start = draw(st.sampled_from([0, 0, 0, *range(len(shape) + 1)]))
    return tuple(n if draw(st.integers(0, 3)) else 1 for n in shape[start:])


def numbers(shape: Sequence[int], dtype: Any, seed: int, low: int = -3, high: int = 4) -> Any:
    """Return small whole numbers, exact in every dtype; complex ones with imaginary parts."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind in "ub":
        low = max(low, 0)
    value = rng.integers(low, high, tuple(shape))
    if kind.kind == "c":
        return (value + 1j * rng.integers(low, high, tuple(shape))).astype(kind)
    return value.astype(kind)


def unsigned(value: Any) -> Any:
    """Return an array without minus zeros: whether a sum gives one depends on its order."""
    array = np.asarray(value)
    return array + np.zeros((), array.dtype) if array.dtype.kind in "fc" else array
