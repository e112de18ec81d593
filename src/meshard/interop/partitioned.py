"""The ``__partitioned__`` protocol: arrays of other libraries whose parts are in many places.

The draft of a protocol by which libraries tell each other how an array is cut and who holds which
part (IntelPython's DPPY-Spec). Arrays of meshard have the attribute ``__partitioned__``; this takes
what has one.

>>> import numpy as np, meshard
>>> from meshard.interop.partitioned import from_partitioned
>>> meshard.config.update("num_devices", 2)
>>> parts = {
...     (0,): {"start": (0,), "shape": (3,), "data": np.arange(3), "location": [0]},
...     (1,): {"start": (3,), "shape": (1,), "data": np.arange(3, 4), "location": [0]},
... }
>>> x = from_partitioned(
...     {"shape": (4,), "partition_tiling": (2,), "partitions": parts, "get": lambda handle: handle}
... )
>>> [shard.data.tolist() for shard in x.addressable_shards]
[[0, 1, 2], [3]]

Arrays that other libraries hold in chunks, and layouts that fit their chunks.

In: the cuts of each dim. Out: a sharding that cuts where they do, or the sizes of the chunks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meshard.algebra.arguments import described, shape_of
from meshard.algebra.boundary import bound_all
from meshard.algebra.device import Device
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import BoxSharding, NamedSharding, SingleDeviceSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import ArgumentError, NotAddressableError, ShapeError, ShardingError
from meshard.runtime.array.array import Array
from meshard.runtime.moving.make import device_put, make_array_from_callback
from meshard.runtime.moving.place import as_sharding
from meshard.runtime.types import Block
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
    uneven = (*[None] * dim, _shared_cuts(cuts[dim], len(devices)))
    return NamedSharding(Mesh(devices, "chunks"), spec, uneven=uneven)


def _shared_cuts(points: Cuts, count: int) -> Cuts:
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


__all__ = ["from_partitioned"]
_FIELDS = ("shape", "partition_tiling", "partitions", "get")
Position = tuple[int, ...]


def from_partitioned(x: Any, sharding: Any = None) -> Array:
    """Make an array of what tells its parts by ``__partitioned__``.

    Args:
        x: an object with ``__partitioned__``, as an attribute or a method, or the dict itself.
        sharding: a Sharding, a Device, or a spec where a mesh is set. By default parts stay where
            they are: those of one process on devices of its own, uncut.

    Returns:
        The array. Parts of NumPy's are not copied where one part is one shard and memory allows it.

    Raises:
        ArgumentError: if ``x`` does not tell its parts, or not as the protocol says.
        ShapeError: if a part has another shape than it is said to have.
        ShardingError: if the parts leave a gap, or a process holds more of them than it has devices
            and ``sharding`` is not given.
        NotAddressableError: if a part is on another process, and no handle leads to it.

    >>> import meshard, meshard.numpy as mnp
    >>> from meshard.interop.partitioned import from_partitioned
    >>> x = mnp.arange(6)
    >>> bool((from_partitioned(x) == x).all())
    True
    """
    what = "from_partitioned"
    told = _told(x, what)
    shape = shape_of(told["shape"], what, "shape")
    parts: Mapping[Position, Any] = told["partitions"]
    world = here()
    spread = "locals" in told and world.process_count > 1
    if not spread:
        place = _fitting(shape, parts) if sharding is None else as_sharding(sharding, what)
        read = _Reader(told, parts, what)
        return make_array_from_callback(shape, place, lambda index: read(index, shape))
    boxes: dict[Device, tuple[slice, ...]] = {}
    held: dict[int, Position] = {}
    for position in sorted(parts):
        device = _device(parts[position], boxes, what)
        boxes[device] = _slices(parts[position])
        held[device.id] = position
    layout = BoxSharding(shape, boxes)
    read = _Reader(told, {p: parts[p] for p in told["locals"]}, what)
    dtype = _dtype(told, what)
    found = make_array_from_callback(shape, layout, lambda index: read(index, shape), dtype)
    return found if sharding is None else device_put(found, as_sharding(sharding, what))


def _told(x: Any, what: str) -> Mapping[str, Any]:
    found = getattr(x, "__partitioned__", x)
    if not isinstance(found, Mapping) and callable(found):
        found = found()
    missing = [f for f in _FIELDS if not isinstance(found, Mapping) or f not in found]
    if not isinstance(found, Mapping) or missing:
        told = f"; the fields {', '.join(map(repr, missing))} are missing" if missing else ""
        raise ArgumentError(
            f"{what}: {described(x)} does not tell its parts: it has no __partitioned__, or not "
            f"one as the protocol says{told if isinstance(found, Mapping) else ''}."
        )
    return found


def _slices(part: Mapping[str, Any]) -> tuple[slice, ...]:
    pairs = zip(part["start"], part["shape"], strict=True)
    return tuple([slice(int(a), int(a) + int(n)) for a, n in pairs])


def _fitting(shape: Sequence[int], parts: Mapping[Position, Any]) -> Any:
    """Return a layout of parts that this process can all read."""
    cuts: list[tuple[int, ...]] = []
    for dim, size in enumerate(shape):
        edges = {0, size} | {s[dim].start for s in map(_slices, parts.values())}
        cuts.append(tuple(sorted(edges)))
    return fitting(cuts)


def _device(part: Mapping[str, Any], taken: Mapping[Device, Any], what: str) -> Device:
    """Return a device of the process that holds a part, which has no other part yet."""
    ranks = [r for r in part["location"] if isinstance(r, (int, np.integer))]
    if not ranks:
        raise ArgumentError(
            f"{what}: the part that begins at {tuple(part['start'])} is at {part['location']!r}; "
            "between processes parts are told by the numbers of the processes that hold them."
        )
    own = [d for d in here().devices if d.process_index in ranks]
    free = [d for d in own if d not in taken]
    if not free:
        raise ShardingError(
            f"{what}: process {ranks[0]} holds more parts than its {len(own)} devices. Give it "
            "more with MESHARD_NUM_DEVICES, or join the parts first."
        )
    return free[0]


def _dtype(told: Mapping[str, Any], what: str) -> Any:
    """Return the dtype of the parts, which a process needs that holds none."""
    for position in told["locals"]:
        data = told["get"](told["partitions"][position]["data"])
        return np.asarray(data).dtype
    for part in told["partitions"].values():
        if "dtype" in part:
            return np.dtype(str(part["dtype"]).removeprefix("torch."))
    raise ArgumentError(
        f"{what}: this process holds no part, and none tells its dtype. Give each part a 'dtype'."
    )


Edges = list[tuple[int, int]]


def _shared(one: Edges, other: Edges) -> Edges | None:
    """Return the box that two boxes share; None if they share no element."""
    both = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True)]
    return both if all(a < b for a, b in both) else None


def _within(box: Edges, around: Edges) -> tuple[slice, ...]:
    """Return where a box is within another one."""
    pairs = zip(box, around, strict=True)
    return tuple([slice(a - start, b - start) for (a, b), (start, _) in pairs])


class _Reader:
    """Reads boxes of an array from parts."""

    def __init__(self, told: Mapping[str, Any], parts: Mapping[Position, Any], what: str) -> None:
        self._get, self._parts, self._what = told["get"], parts, what

    def __call__(self, index: Any, shape: tuple[int, ...]) -> Block:
        wanted = [s.indices(n)[:2] for s, n in zip(index, shape, strict=True)]
        found: Block | None = None
        filled = 0
        for part in self._parts.values():
            own = [(s.start, s.stop) for s in _slices(part)]
            both = _shared(wanted, own)
            if both is None:
                continue
            data = self._data(part)
            if own == wanted:
                return data
            if found is None:
                found = np.empty([b - a for a, b in wanted], data.dtype)
            found[_within(both, wanted)] = data[_within(both, own)]
            filled += math.prod([b - a for a, b in both])
        if found is None and any(a >= b for a, b in wanted):
            return np.empty([b - a for a, b in wanted], self._any_dtype())
        if found is None or filled != found.size:
            raise ShardingError(
                f"{self._what}: the parts leave a gap within {wanted} of an array of shape {shape}."
            )
        return found

    def _any_dtype(self) -> Any:
        return self._data(next(iter(self._parts.values()))).dtype

    def _data(self, part: Mapping[str, Any]) -> Block:
        if part["data"] is None:
            raise NotAddressableError(
                f"{self._what}: the part that begins at {tuple(part['start'])} is at "
                f"{part['location']!r}, and no handle leads to it."
            )
        found = np.asarray(self._get(part["data"]))
        if found.shape != tuple(part["shape"]):
            raise ShapeError(
                f"{self._what}: the part that begins at {tuple(part['start'])} is said to have "
                f"shape {tuple(part['shape'])}, but has {found.shape}."
            )
        return found


bound_all(globals())
