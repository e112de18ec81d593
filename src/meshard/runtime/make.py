"""Making arrays: `device_put`, and from callbacks, single-device arrays or process-local data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast, final

import numpy as np
import optree

from meshard.algebra.box import Box, Index
from meshard.algebra.sharding import NamedSharding, Sharding, SingleDeviceSharding
from meshard.algebra.world import Device, current
from meshard.errors import ArgumentError, CoverageError, ShapeError, ShardingError, TreeError

from .array import Array, to_numpy
from .place import as_host, as_sharding, checked_dtype, filled, placed
from .types import ArrayType, Block
from .world import here

T = TypeVar("T")

__all__ = [
    "ShapeDtypeStruct",
    "block_until_ready",
    "device_count",
    "device_get",
    "device_put",
    "devices",
    "local_device_count",
    "local_devices",
    "make_array_from_callback",
    "make_array_from_process_local_data",
    "make_array_from_single_device_arrays",
    "prefix_leaves",
    "process_count",
    "process_index",
    "typeof",
]


def _platform(backend: str | None, what: str) -> None:
    if backend not in (None, "cpu"):
        raise ArgumentError(f"{what}: there is no backend {backend!r}; it is 'cpu'.")


def devices(backend: str | None = None) -> list[Device]:
    """Return all devices of all processes, grouped by process."""
    _platform(backend, "devices")
    return list(current().devices)


def local_devices(process_index: int | None = None, backend: str | None = None) -> list[Device]:
    """Return the devices of one process, this one by default."""
    _platform(backend, "local_devices")
    world = current()
    if process_index is None:
        return list(world.local_devices)
    if not 0 <= process_index < world.process_count:
        raise ArgumentError(
            f"local_devices: there is no process {process_index}; there are {world.process_count}."
        )
    return [d for d in world.devices if d.process_index == process_index]


def device_count(backend: str | None = None) -> int:
    """Return the number of devices of all processes."""
    return len(devices(backend))


def local_device_count(backend: str | None = None) -> int:
    """Return the number of this process's devices."""
    return len(local_devices(backend=backend))


def process_index(backend: str | None = None) -> int:
    """Return this process's number."""
    _platform(backend, "process_index")
    return current().process_index


def process_count(backend: str | None = None) -> int:
    """Return the number of processes."""
    _platform(backend, "process_count")
    return current().process_count


@final
class ShapeDtypeStruct:
    """Shape, dtype and, if wanted, sharding of an array that need not exist.

    >>> ShapeDtypeStruct((2, 3), "float32")
    ShapeDtypeStruct(shape=(2, 3), dtype=float32)
    """

    __slots__ = ("dtype", "shape", "sharding")

    def __init__(
        self, shape: Sequence[int], dtype: Any, *, sharding: Sharding | None = None
    ) -> None:
        self.shape = tuple(shape)
        self.dtype = checked_dtype(np.dtype(dtype), "ShapeDtypeStruct")
        self.sharding = as_sharding(sharding, "ShapeDtypeStruct")

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dims")
        return self.shape[0]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShapeDtypeStruct):
            return NotImplemented
        mine = (self.shape, self.dtype, self.sharding)
        return mine == (other.shape, other.dtype, other.sharding)

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype, self.sharding))

    def __repr__(self) -> str:
        lies = f", sharding={self.sharding!r}" if self.sharding is not None else ""
        return f"ShapeDtypeStruct(shape={self.shape}, dtype={self.dtype.name}{lies})"


def typeof(x: Any) -> ArrayType:
    """Return all that is known of an array, or of what would become one, but its data."""
    return placed(x, None)._type


def device_put(
    x: Any,
    device: Any = None,
    *,
    src: Any = None,
    donate: bool = False,
    may_alias: bool | None = None,
) -> Any:
    """Lay values or arrays out on devices.

    Args:
        x: an array, anything that NumPy makes one of, or a tree of such leaves.
        device: a Sharding or Device for all leaves, or a tree of them that is a prefix of ``x``;
            None leaves arrays where they are and puts values on the default device.
        src: accepted as in JAX; where an array lies is known.
        donate: delete the arrays given, after their data has been moved.
        may_alias: accepted as in JAX; blocks are immutable and shared wherever they can be.

    Returns:
        The tree with each leaf an `Array`, committed where a device was given.

    Raises:
        ShardingError: if a leaf's shape cannot lie as asked, or a device does not exist.
        TreeError: if ``device`` is not a prefix of ``x``.

    >>> import meshard
    >>> x = device_put(np.arange(4), meshard.devices()[0])
    >>> x
    Array([0, 1, 2, 3], dtype=int64)
    """
    if type(x) is Array or isinstance(x, np.ndarray):
        return placed(x, as_sharding(device, "device_put"), donate=donate)
    leaves, structure = optree.tree_flatten(x, none_is_leaf=True)
    targets = [as_sharding(d, "device_put") for d in prefix_leaves(device, x, "device_put")]
    return optree.tree_unflatten(
        structure,
        [
            None if leaf is None else placed(leaf, target, donate=donate)
            for leaf, target in zip(leaves, targets, strict=True)
        ],
    )


def prefix_leaves(prefix: Any, tree: Any, what: str) -> list[Any]:
    """Return for each leaf of ``tree`` the leaf of ``prefix`` above it."""
    try:
        return optree.broadcast_prefix(prefix, tree, none_is_leaf=True)
    except ValueError as error:
        raise TreeError(
            f"{what}: the tree of devices must be a prefix of the tree of values: "
            f"{str(error).split('; ')[0]}."
        ) from error


def device_get(x: Any) -> Any:
    """Return a tree with each array fetched as a whole, as a NumPy array.

    Raises:
        NotAddressableError: if an array spans processes and is not replicated.
    """

    def fetch(leaf: Any) -> Any:
        if type(leaf) is Array:
            return to_numpy(leaf)
        return leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf)

    return optree.tree_map(fetch, x)


def block_until_ready(x: T) -> T:
    """Return the tree; arrays are complete as soon as they exist."""
    leaves: list[Any] = optree.tree_leaves(cast(Any, x))
    for leaf in leaves:
        if type(leaf) is Array:
            leaf._live()
    return x


def _sharding(sharding: Any, what: str) -> Sharding:
    found = as_sharding(sharding, what)
    if found is None:
        raise ShardingError(f"{what}: a sharding is needed, got None.")
    return found


def _shape(shape: Any, what: str) -> tuple[int, ...]:
    given = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(not hasattr(n, "__index__") or n < 0 for n in given):
        raise ShapeError(f"{what}: {shape!r} is not a shape.")
    return tuple(int(n) for n in given)


def make_array_from_callback(
    shape: Sequence[int],
    sharding: Any,
    data_callback: Callable[[Index], Any],
    *,
    dtype: Any = None,
) -> Array:
    """Make an array whose pieces a callback gives.

    Args:
        shape: the global shape.
        sharding: a Sharding or Device.
        data_callback: called with a tuple of slices into the global array, once for each distinct
            index of this process's devices; returns anything that NumPy makes an array of.
        dtype: what to convert the pieces to; needed by a process that holds none.

    Returns:
        The array. If the callback raises, no array is made.

    Raises:
        ShardingError: if a piece has another shape or dtype than it should; the index is named.

    >>> import meshard
    >>> rows = np.arange(6).reshape(3, 2)
    >>> x = make_array_from_callback((3, 2), meshard.devices()[0], lambda index: rows[index])
    >>> x.shape, x.dtype
    ((3, 2), dtype('int64'))
    """
    what = "make_array_from_callback"
    whole, place, world = _shape(shape, what), _sharding(sharding, what), here()
    me = world.process_index
    indices: dict[int, Index] = {}
    piece_of = place.layout(whole).piece_of
    for device, index in place.devices_indices_map(whole).items():
        if device.process_index == me and index is not None:
            indices.setdefault(piece_of[device.id], index)
    first: list[Block] = []

    def value(piece: int) -> Block:
        if piece == probe and first:
            return first.pop()
        return as_host(data_callback(indices[piece]), what, dtype)

    probe = min(indices, default=-1)
    if dtype is None:
        if not indices:
            raise ArgumentError(f"{what}: a process without devices of the sharding needs dtype=.")
        first.append(as_host(data_callback(indices[probe]), what))
        dtype = first[0].dtype
    kind = world.type_of(whole, checked_dtype(np.dtype(dtype), what), place, True)
    return filled(world, kind, value, what)


def make_array_from_single_device_arrays(
    shape: Sequence[int], sharding: Any, arrays: Sequence[Array], *, dtype: Any = None
) -> Array:
    """Make one array of arrays that lie on single devices, without copying.

    Args:
        shape: the global shape.
        sharding: how the result lies.
        arrays: one array per device of this process, in any order.
        dtype: needed by a process that holds none.

    Raises:
        ShardingError: if arrays are missing, too many, of another shape, dtype or device.
    """
    what = "make_array_from_single_device_arrays"
    whole, place, world = _shape(shape, what), _sharding(sharding, what), here()
    needed = [d for d in place.device_order if d.process_index == world.process_index]
    given: dict[Device, Array] = {}
    for x in arrays:
        if type(x) is not Array:
            raise ArgumentError(
                f"{what}: expected Arrays that lie on one device each, got a {type(x).__name__}."
            )
        if not isinstance(x.device, Device):
            raise ShardingError(
                f"{what}: an array of shape {x.shape} lies on {x.sharding.num_devices} devices; "
                "each must lie on one."
            )
        if x.device in given:
            raise ShardingError(f"{what}: two arrays lie on {x.device!r}.")
        given[x.device] = x
    if len(arrays) != len(needed):
        raise ShardingError(
            f"{what}: expected {len(needed)} per-device arrays (this is how many devices are "
            f"addressable by the sharding), but got {len(arrays)}."
        )
    for device in needed:
        if device not in given:
            raise ShardingError(
                f"{what}: no array lies on {device!r}; the arrays lie on {list(given)}."
            )
    if not needed and dtype is None:
        raise ArgumentError(f"{what}: a process without devices of the sharding needs dtype=.")
    wanted = np.dtype(dtype) if dtype is not None else arrays[0].dtype
    kind = world.type_of(whole, wanted, place, True)
    blocks: list[Block | None] = [None] * kind.layout.piece_count
    for device in needed:
        x = given[device]
        piece = kind.layout.piece_of[device.id]
        box = kind.layout.box(piece)
        if x.shape != box.shape:
            raise ShardingError(
                f"{what}: expected shard shape {box.shape} on {device!r} (index {box}), but its "
                f"array has shape {x.shape}. The result is {kind.str_short()} with {place!r}."
            )
        if x.dtype != wanted:
            raise ShardingError(
                f"{what}: all arrays must have one dtype; {device!r} has {x.dtype}, where "
                f"{wanted} is expected."
            )
        if blocks[piece] is None:
            blocks[piece] = x._live()[0]
    return Array(kind, tuple(blocks))


def make_array_from_process_local_data(
    sharding: Any, local_data: Any, global_shape: Sequence[int] | None = None
) -> Array:
    """Make a global array of what each process holds.

    Args:
        sharding: how the global array lies.
        local_data: this process's part: along each dim the shards that its devices hold, joined;
            or, where it equals ``global_shape``, the whole.
        global_shape: the global shape; by default what the local parts join to.

    Raises:
        CoverageError: if the data does not fill this process's shards exactly.
    """
    what = "make_array_from_process_local_data"
    place, world = _sharding(sharding, what), here()
    value = as_host(local_data, what)
    shape = _shape(global_shape, what) if global_shape is not None else None
    if shape is not None and len(shape) != value.ndim:
        raise CoverageError(
            f"{what}: the local data has shape {value.shape}, the global shape is {shape}."
        )
    if shape is None:
        shape = _joined_shape(place, value.shape, world.process_index, what)
    kind = world.type_of(shape, value.dtype, place, True)
    boxes = [kind.layout.box(p) for p in kind.local]
    held = [
        sorted({(b.starts[d], b.stops[d]) for b in boxes if b.volume or not kind.size})
        for d in range(kind.ndim)
    ]
    local_shape = tuple(sum(b - a for a, b in spans) for spans in held)
    offsets: list[dict[int, int]] = []
    for spans in held:
        at, known = 0, {}
        for a, b in spans:
            known[a] = at
            at += b - a
        offsets.append(known)
    if value.shape == shape:
        return filled(world, kind, lambda p: value[kind.layout.box(p).slices], what)
    if value.shape != local_shape:
        raise CoverageError(
            f"{what}: process {world.process_index} holds {local_shape} of the global shape "
            f"{shape}, but its data has shape {value.shape}."
        )

    def part(piece: int) -> Block:
        box = kind.layout.box(piece)
        starts = tuple(known.get(a, 0) for known, a in zip(offsets, box.starts, strict=True))
        stops = tuple(a + n for a, n in zip(starts, box.shape, strict=True))
        return value[Box(starts, stops).slices]

    return filled(world, kind, part, what)


def _joined_shape(
    sharding: Sharding, local: tuple[int, ...], me: int, what: str
) -> tuple[int, ...]:
    """Return the global shape that equal local parts of every process join to."""
    if isinstance(sharding, SingleDeviceSharding):
        return local
    if not isinstance(sharding, NamedSharding):
        raise ArgumentError(f"{what}: a sharding without a mesh needs global_shape=.")
    probe = tuple(n for n in sharding.shards(len(local)))
    layout = NamedSharding(sharding.mesh, sharding.spec).layout(probe)
    mine = [
        layout.coordinate(p)
        for p in range(layout.piece_count)
        if any(d.process_index == me for d in sharding.device_order if d.id in layout.holders(p))
    ]
    shape = []
    for dim, (size, shards) in enumerate(zip(local, probe, strict=True)):
        held = len({c[dim] for c in mine})
        if held == 0 or (size * shards) % held:
            raise CoverageError(
                f"{what}: dim {dim} of the local data is {size}, which the {held} shards of this "
                "process do not divide; say global_shape=."
            )
        shape.append(size * shards // held)
    return tuple(shape)
