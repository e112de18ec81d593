"""Ways for an array to lie, drawn without a world: each test world builds its own from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import meshard
import meshard.numpy as mnp
from meshard.algebra.device import Device
from meshard.sharding import BoxSharding, Mesh, NamedSharding, P, Sharding
from meshard.testing.strategies import box_shardings

calm = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
"""For tests whose arguments take long to draw, such as layouts."""
GRIDS = [(8,), (4, 2), (2, 2, 2), (2, 4), (3,), (5,), (3, 2), (1, 7)]
DTYPES = [np.dtype(d) for d in ("f8", "i4", "f4", "u1", "bool", "c8")]


@dataclass(frozen=True)
class Lay:
    """How an array lies: on a mesh of some devices, in boxes, on one device, or nowhere yet."""

    ids: tuple[int, ...] = ()
    grid: tuple[int, ...] = ()
    spec: tuple[Any, ...] = ()
    uneven: Any = None
    boxes: tuple[tuple[int, tuple[slice, ...]], ...] = ()

    def sharding(self, shape: Sequence[int]) -> Sharding | Device | None:
        """Return the sharding on the devices of the current world."""
        devices = meshard.devices()
        if self.boxes:
            return BoxSharding(tuple(shape), {devices[i]: box for i, box in self.boxes})
        if self.grid:
            chosen = np.empty(len(self.ids), object)
            chosen[:] = [devices[i] for i in self.ids]
            mesh = Mesh(chosen.reshape(self.grid), tuple("ijk"[: len(self.grid)]))
            return NamedSharding(mesh, P(*self.spec), uneven=self.uneven)
        return devices[self.ids[0]] if self.ids else None

    def put(self, value: Any) -> meshard.Array:
        """Return a value as an array that lies so."""
        sharding = self.sharding(np.shape(value))
        return mnp.asarray(value) if sharding is None else meshard.device_put(value, sharding)


@st.composite
def on_meshes(draw: st.DrawFn, shape: Sequence[int], full: bool = False) -> Lay:
    """Draw a mesh and a spec for arrays of a shape; uneven by a rule or by cuts of its own.

    A ``full`` mesh has all eight devices, and so some of every process.
    """
    grid = draw(st.sampled_from([g for g in GRIDS if math.prod(g) == 8] if full else GRIDS))
    ids = tuple(draw(st.permutations(range(8)))[: math.prod(grid)])
    dims: list[list[str]] = [[] for _ in shape]
    for axis in draw(st.permutations("ijk"[: len(grid)])):
        place = draw(st.integers(-1, len(shape) - 1))
        if place >= 0:
            dims[place].append(axis)
    size = dict(zip("ijk", grid, strict=False))
    shards = [math.prod(size[a] for a in dim) for dim in dims]
    uneven: Any = draw(st.sampled_from(["balanced", "ceil", "cuts"]))
    if uneven == "cuts":
        uneven = tuple(
            (0, *sorted(draw(st.lists(st.integers(0, n), min_size=k - 1, max_size=k - 1))), n)
            for n, k in zip(shape, shards, strict=True)
        )
    return Lay(ids, grid, tuple(tuple(d) if d else None for d in dims), uneven)


@st.composite
def in_boxes(draw: st.DrawFn, shape: Sequence[int]) -> Lay:
    """Draw boxes, which may overlap, for arrays of a shape."""
    found = draw(box_shardings(shape, [Device(i) for i in range(8)]))
    boxes = found.devices_indices_map(tuple(shape)).items()
    return Lay(boxes=tuple((device.id, box) for device, box in boxes))


def lays(shape: Sequence[int]) -> st.SearchStrategy[Lay]:
    """Draw any way for arrays of a shape to lie."""
    alone = st.sampled_from([Lay(), Lay((0,)), Lay((5,))])
    return st.one_of(on_meshes(shape), on_meshes(shape), alone, in_boxes(shape))


def shapes(min_dims: int = 0, max_dims: int = 3, most: int = 9) -> st.SearchStrategy[Any]:
    """Draw shapes: mostly with elements, some dims of size one or zero."""
    sizes = st.one_of(st.integers(2, most), st.integers(1, most), st.integers(0, 2))
    return st.lists(sizes, min_size=min_dims, max_size=max_dims).map(tuple)


def numbered(shape: Sequence[int], dtype: Any = np.int64) -> np.ndarray:
    """Return an array whose elements differ from each other, as far as the dtype can."""
    return (np.arange(math.prod(shape)) + 1).reshape(shape).astype(dtype)


def fetched(x: Any) -> Any:
    """Return the value of an array, or of a list or tuple of them, in every process."""
    if isinstance(x, (list, tuple)):
        return type(x)(fetched(v) for v in x)
    if isinstance(x, meshard.Array) and x.committed:
        every = NamedSharding(Mesh(meshard.devices(), "all"), P())
        x = meshard.device_put(x, every)
    return np.array(x)


def same(found: Any, expected: Any) -> None:
    """Check that values are the same bit by bit, in dtype, shape and elements."""
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            same(a, b)
        return
    wanted = np.asarray(expected)
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert found.tobytes() == wanted.tobytes(), (found, wanted)
