"""Moving between the buffers of JAX arrays, on CPU devices of one process.

In: arrays and the JAX shardings that they are to have. Out: arrays made of pieces that were read as
views, or written once into memory that JAX takes without a copy.

Conversion of shardings between JAX and meshard.

Devices with equal ids are the same.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.box import Index
from meshard.algebra.device import Device
from meshard.algebra.layout import Layout
from meshard.algebra.mesh import AxisType, Mesh
from meshard.algebra.sharding import BoxSharding, NamedSharding, SingleDeviceSharding
from meshard.algebra.spec import PartitionSpec
from meshard.algebra.world import current
from meshard.errors import ArgumentError, IndivisibleError, NotAddressableError, ShardingError
from meshard.plan.move.assemble import Source, assemble
from meshard.plan.move.part import Part
from meshard.plan.move.wires import Move, Wire, move_wire
from meshard.runtime.types import Block
from meshard.runtime.world import Memo, RuntimeWorld

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

try:
    import jax as jax
except ImportError as error:
    raise ImportError(
        f"meshard.interop.jax needs JAX, which cannot be imported here ({error}). Install it with "
        "pip install 'meshard[jax]'; meshard itself never needs it."
    ) from error


def to_meshard(sharding: Any, shape: Sequence[int] | None = None) -> Sharding:
    """Return the meshard sharding that lays arrays out as a JAX sharding does.

    Args:
        sharding: a `jax.sharding.NamedSharding` on a mesh of devices, a `SingleDeviceSharding`, or
            any other JAX sharding, which needs ``shape``.
        shape: the arrays' shape, for a sharding that is not made of a mesh and a spec; it then
            becomes a `BoxSharding` of that shape.

    Returns:
        The sharding. A JAX device becomes the device of this world with its id or, if there is
        none, a virtual device, for which plans can be made.

    Raises:
        ArgumentError: if it is not a JAX sharding, or ``shape`` is needed, or meshard does not have
            the memory kind.
        ShardingError: if the mesh has no devices, or the spec says that values are partial sums.
        IndivisibleError: if JAX's sharding does not divide ``shape``.

    >>> mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
    >>> to_meshard(jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))).spec
    P('x',)
    """
    _check_is_jax(sharding, "to_meshard")
    if isinstance(sharding, jax.sharding.SingleDeviceSharding):
        (device,) = sharding.device_set
        return SingleDeviceSharding(_device(device), memory_kind=sharding.memory_kind)
    if _is_named(sharding):
        return _named(sharding)
    if shape is None:
        raise ArgumentError(
            f"to_meshard: {sharding!r} is a {type(sharding).__name__}, which has no mesh and spec; "
            "what it means depends on the shape. Pass shape=, the shape of the arrays."
        )
    whole = tuple(shape)
    boxes, kind = _boxed(sharding, whole), sharding.memory_kind
    return boxes if kind is None else boxes.with_memory_kind(kind)


def to_jax(
    sharding: Sharding, shape: Sequence[int] | None = None, *, devices: Sequence[Any] | None = None
) -> Any:
    """Return the JAX sharding that lays arrays out as a meshard sharding does.

    Args:
        sharding: a meshard sharding.
        shape: the arrays' shape; needed if ``uneven=`` or a custom sharding leaves open whether all
            shards have one shape, which JAX requires.
        devices: the JAX devices to choose from by id; JAX's CPU devices by default.

    Returns:
        A `jax.sharding.NamedSharding` or `SingleDeviceSharding`. Boxes that form an even grid
        become a `NamedSharding` with axes ``dim0``, ``dim1``, ... and ``replica``.

    Raises:
        ArgumentError: if it is not a meshard sharding, or ``shape`` is needed.
        ShardingError: if a device has no JAX device of its id, or shards differ in shape.

    >>> to_jax(SingleDeviceSharding(Device(0))).num_devices
    1
    """
    if not isinstance(sharding, Sharding):
        raise ArgumentError(
            f"to_jax: expected a meshard sharding, got {sharding!r} of type "
            f"{type(sharding).__name__}."
        )
    known = {d.id: d for d in (jax.devices("cpu") if devices is None else devices)}
    _check_known(sharding, known)
    if isinstance(sharding, SingleDeviceSharding):
        alone = known[sharding.device.id]
        return jax.sharding.SingleDeviceSharding(alone, memory_kind=sharding.memory_kind)
    layout = _even_layout(sharding, shape)
    if isinstance(sharding, NamedSharding):
        mesh = _jax_mesh(known, sharding.mesh.device_ids, sharding.mesh.axis_names, sharding.mesh)
        spec = jax.sharding.PartitionSpec(*sharding.spec)
        return jax.sharding.NamedSharding(mesh, spec, memory_kind=sharding.memory_kind)
    assert layout is not None
    names = (*(f"dim{i}" for i in range(layout.ndim)), "replica")
    mesh = _jax_mesh(known, layout.tensor, names, None)
    spec = jax.sharding.PartitionSpec(*names[:-1])
    return jax.sharding.NamedSharding(mesh, spec, memory_kind=sharding.memory_kind)


def _check_known(sharding: Sharding, known: Mapping[int, Any]) -> None:
    """Refuse devices that JAX does not have."""
    for device in sharding.device_order:
        if device.id not in known:
            raise ShardingError(
                f"to_jax: {device!r} of {sharding!r} has no JAX device of id {device.id}; JAX has "
                f"the ids {_brief(sorted(known))}. Give JAX more devices with "
                "XLA_FLAGS=--xla_force_host_platform_device_count=8 before its first use, reshard "
                "onto devices that it has, or pass devices=."
            )


def _even_layout(sharding: Sharding, shape: Sequence[int] | None) -> Layout | None:
    """Return the layout of arrays of a shape, all of whose shards have one shape.

    None where no shape is given and none is needed.
    """
    if isinstance(sharding, BoxSharding) and shape is None:
        shape = sharding.global_shape
    if shape is None:
        if isinstance(sharding, NamedSharding) and sharding.uneven is None:
            return None
        raise ArgumentError(
            f"to_jax: JAX's shards have one shape, and whether those of {sharding!r} do depends on "
            "the array. Pass shape=, the array's shape."
        )
    layout = sharding.layout(tuple(shape))
    if layout.regular and layout.even:
        return layout
    sizes = sorted({box.shape for box in layout.boxes})
    why = (
        f"JAX's shards have one shape, and these have {_brief(sizes)}"
        if len(sizes) > 1
        else "JAX's shards form a grid, and these boxes do not"
    )
    raise ShardingError(
        f"to_jax: {sharding!r} has no JAX form for shape {layout.shape}: {why}. Reshard to an "
        "even NamedSharding first, or pad the array."
    )


def layout_of(sharding: Any, shape: tuple[int, ...]) -> Layout:
    """Return the layout of an array under a JAX sharding of any memory kind.

    Raises:
        ShardingError: if the array cannot be laid out this way; the message says why.
    """
    if _is_named(sharding) or isinstance(sharding, jax.sharding.SingleDeviceSharding):
        return to_meshard(sharding).layout(shape)
    return _boxed(sharding, shape).layout(shape)


def _check_is_jax(sharding: Any, what: str) -> None:
    if not isinstance(sharding, jax.sharding.Sharding):
        raise ArgumentError(
            f"{what}: expected a JAX sharding, got {sharding!r} of type {type(sharding).__name__}."
        )


def _is_named(sharding: Any) -> bool:
    """Whether a mesh and a spec describe a sharding; JAX itself makes some in another order."""
    return (
        isinstance(sharding, jax.sharding.NamedSharding)
        and getattr(sharding, "_logical_device_ids", None) is None
    )


def _named(sharding: Any) -> NamedSharding:
    given, spec = sharding.mesh, sharding.spec
    if not isinstance(given, jax.sharding.Mesh):
        raise ShardingError(
            f"to_meshard: {sharding!r} is made of a {type(given).__name__}, which has no devices. "
            "Give the NamedSharding a jax.sharding.Mesh."
        )
    partial = sorted(map(str, getattr(spec, "unreduced", ())))
    if partial:
        raise ShardingError(
            f"to_meshard: {sharding!r} leaves values unreduced over {', '.join(partial)}: each "
            "device holds a part of a sum, and a layout cannot express that. Reduce it first, "
            "with jax.sharding.reshard to a spec without unreduced axes."
        )
    devices = np.empty(given.devices.shape, object)
    devices.reshape(-1)[:] = [_device(d) for d in given.devices.flat]
    types = [AxisType[kind.name] for kind in given.axis_types]
    entries = [
        PartitionSpec.UNCONSTRAINED if entry is jax.sharding.PartitionSpec.UNCONSTRAINED else entry
        for entry in spec
    ]
    return NamedSharding(
        Mesh(devices, given.axis_names, types),
        PartitionSpec(*entries),
        memory_kind=sharding.memory_kind,
    )


def _boxed(sharding: Any, shape: tuple[int, ...]) -> BoxSharding:
    try:
        indices = sharding.devices_indices_map(shape)
    except ValueError as error:
        raise IndivisibleError(
            f"to_meshard: JAX's {sharding!r} does not lay out the shape {shape}: "
            f"{str(error).rstrip('.')}. Pad the array, or choose another sharding."
        ) from error
    return BoxSharding(shape, {_device(d): index for d, index in indices.items()})


def _device(device: Any) -> Device:
    """Return this world's device of the same id, or a virtual one."""
    for own in current().devices:
        if own.id == device.id:
            return own
    return Device(device.id, device.process_index, "virtual", "virtual")


def _jax_mesh(
    known: dict[int, Any], ids: NDArray[np.int64], names: Sequence[str], like: Mesh | None
) -> Any:
    devices = np.empty(ids.shape, object)
    devices.reshape(-1)[:] = [known[i] for i in ids.reshape(-1).tolist()]
    auto = (AxisType.Auto,) * len(names)
    kinds = auto if like is None else like.axis_types
    types = tuple(jax.sharding.AxisType[kind.name] for kind in kinds)
    return jax.sharding.Mesh(devices, tuple(names), axis_types=types)


def _brief(values: Sequence[object]) -> str:
    """Return a list for a sentence, shortened if it is long."""
    shown = ", ".join(map(str, values[:8]))
    return f"{shown}, ... ({len(values)} in all)" if len(values) > 8 else shown


_LINE = 64
_BYTE = np.dtype(np.uint8)
"""The alignment in bytes of memory that JAX's CPU devices take without a copy."""
_SMALL = 256 * 1024
"""Bytes from which a piece has pages of its own; smaller ones of one array share an allocation."""
_CHUNK = 4 << 20

Copying = Callable[[], None]
Asked = tuple[tuple[int | None, int | None], ...]


@final
class BufferRoute:
    """The way of arrays of one shape between two shardings; one object for all of them.

    Attributes:
        source: the layout before.
        destination: the layout after.
        part: the copies.
        places: the piece at each index that JAX asks for, by `_ask`.
    """

    def __init__(self, name: str, shape: tuple[int, ...], origin: Any, target: Any) -> None:
        for sharding, role in ((origin, "source"), (target, "destination")):
            check_local(sharding, f"{name} ({role})")
            for device in sharding.device_set:
                if device.platform != "cpu":
                    raise ShardingError(
                        f"{name} cannot be moved from {origin!r} to {target!r}: buffers are read "
                        f"and filled in the host's memory, and {device} is not a CPU device. Use "
                        "jax.device_put for it; plan_reshard says what that must move."
                    )
        self.source, self.destination = layout_of(origin, shape), layout_of(target, shape)
        self.part: Part = assemble(self.destination, [Source(self.source)])
        self.places = places_of(target, self.destination)


_ROUTES: Memo[tuple[Any, Any, tuple[int, ...]], BufferRoute] = Memo(
    "routes of JAX's arrays", 1 << 12
)


@final
class Moving:
    """One array on its way."""

    def __init__(self, world: RuntimeWorld, x: Any, target: Any, what: str) -> None:
        self.x, self.target, self.shape = x, target, tuple(x.shape)
        key = (x.sharding, target, self.shape)
        route = _ROUTES.table(world).get(key)
        if route is None:
            route = BufferRoute(f"{what}: {x.aval.str_short()}", self.shape, x.sharding, target)
            _ROUTES.keep(world, key, route)
        self.route = route
        self.pieces: list[Block] = []

    def wire(self) -> Wire:
        """Return the move's communication, for ledgers."""
        move = Move(
            to_meshard(self.target, self.shape),
            (to_meshard(self.x.sharding, self.shape),),
            self.route.destination,
            (Source(self.route.source),),
            self.x.dtype.itemsize,
        )
        return move_wire(self.x.aval.str_short(), move)

    def begin(self, world: RuntimeWorld, tasks: list[Copying]) -> None:
        """Make the pieces: views, small ones filled now, large ones by the tasks that are added."""
        values = jax.random.key_data(self.x) if is_key(self.x) else self.x
        blocks = read(values, self.route.source)
        rest, dtype = values.shape[self.x.ndim :], blocks[0].dtype
        room, used = None, 0
        for recipe in self.route.part.recipes:
            assert recipe is not None
            shape = (*recipe.shape, *rest)
            if recipe.alias is not None:
                view = _view(blocks[recipe.alias.origin], recipe.alias.region)
                if is_taken(view):
                    self.pieces.append(view)
                    continue
            size = math.prod(shape) * dtype.itemsize
            if size < _SMALL:
                least = min(_SMALL, self.x.nbytes + 16 * _LINE)
                if room is None or room.nbytes - used < size:
                    room, used = _aligned(world, max(size, least)), 0
                piece = np.ndarray(shape, dtype, room, used)
                used += -(-size // _LINE) * _LINE
                for copy in recipe.copies:
                    piece[copy.target] = blocks[copy.origin][copy.region]
            else:
                piece = world.memory.allocate(shape, dtype)
                for copy in recipe.copies:
                    origin = _view(blocks[copy.origin], copy.region)
                    tasks += _copies(world, _view(piece, copy.target), origin)
            self.pieces.append(piece)

    def finish(self) -> Any:
        """Return the array made of the pieces."""
        if is_key(self.x):
            return self._finish_keys()
        result = made(self.shape, self.target, self.route.places, self.pieces)
        return _weakly_typed(result) if self.x.weak_type else result

    def _finish_keys(self) -> Any:
        """Return the array of typed keys, which JAX makes of single-device arrays only."""
        impl, kind = jax.random.key_impl(self.x), self.target.memory_kind
        arrays = []
        for device in self.target.devices_indices_map(self.shape):
            piece = self.pieces[self.route.destination.piece_of[device.id]]
            alone = jax.sharding.SingleDeviceSharding(device, memory_kind=kind)
            arrays.append(jax.random.wrap_key_data(jax.device_put(piece, alone), impl=impl))
        return jax.make_array_from_single_device_arrays(self.shape, self.target, arrays)


def _ask(index: tuple[slice, ...]) -> Asked:
    """Return an index as a hashable value; slices are not hashable in every Python."""
    return tuple([(s.start, s.stop) for s in index])


def places_of(sharding: Any, layout: Layout) -> dict[Asked, int]:
    """Return the piece at each index of a JAX sharding, and at that of the whole array."""
    whole: Asked = ((None, None),) * layout.ndim
    places = {whole: 0} if layout.replicated else {}
    for device, index in sharding.devices_indices_map(layout.shape).items():
        places[_ask(index)] = layout.piece_of[device.id]
    return places


def made(
    shape: tuple[int, ...], sharding: Any, places: dict[Asked, int], pieces: Sequence[Block]
) -> Any:
    """Return the JAX array of pieces, each shared by all devices that hold it."""
    with _wide(pieces[0].dtype):
        return jax.make_array_from_callback(
            shape, sharding, lambda index: pieces[places[_ask(index)]]
        )


def _weakly_typed(x: Any) -> Any:
    """Return an array of the same buffers with a weak dtype, which yields to other operands.

    No public function of JAX makes one, and newer releases refuse to change the type of an array.
    """
    shards = [shard.data for shard in x.addressable_shards]
    return type(x)(x.aval.update(weak_type=True), x.sharding, shards, committed=True)


def _wide(dtype: np.dtype[Any]) -> AbstractContextManager[Any]:
    """Keep JAX from storing 64-bit numbers in 32 bits, since arrays are to keep theirs."""
    if dtype.itemsize < 8 or jax.dtypes.canonicalize_dtype(dtype) == dtype:
        return contextlib.nullcontext()
    wide: AbstractContextManager[Any] = jax.enable_x64(True)
    return wide


def read(x: Any, layout: Layout) -> list[Block]:
    """Return each piece as a read-only NumPy array, a view if NumPy knows its format."""
    blocks: dict[int, Block] = {}
    piece_of = layout.piece_of
    for shard in x.addressable_shards:
        piece = piece_of[shard.device.id]
        if piece not in blocks:
            blocks[piece] = np.asarray(shard.data)
    return [blocks[piece] for piece in range(layout.piece_count)]


def _view(block: Block, index: Index) -> Block:
    """Return a box of a block as a view; without the dots NumPy gives a scalar for 0-d."""
    place: tuple[Any, ...] = (*index, ...)
    view: Block = block[place]
    return view


def is_taken(block: Block) -> bool:
    """Whether JAX takes a block's memory without a copy."""
    return block.flags.c_contiguous and _address(block) % _LINE == 0


def _aligned(world: RuntimeWorld, size: int) -> Block:
    """Return uninitialised bytes that begin on a cache line."""
    room = world.memory.allocate((size + _LINE,), _BYTE)
    start = -_address(room) % _LINE
    return room[start : start + size]


def _address(block: Block) -> int:
    # Several times as fast as block.ctypes.data.
    return int(block.__array_interface__["data"][0])


def copied(world: RuntimeWorld, block: Block, tasks: list[Copying]) -> Block:
    """Return memory that JAX takes without a copy; the added tasks fill it with a block."""
    small = block.nbytes < _SMALL
    piece = (
        np.ndarray(block.shape, block.dtype, _aligned(world, block.nbytes))
        if small
        else world.memory.allocate(block.shape, block.dtype)
    )
    tasks += _copies(world, piece, block)
    return piece


def _copies(world: RuntimeWorld, target: Block, origin: Block) -> list[Copying]:
    """Return the tasks of one copy: one, or several of a large one."""
    rows = target.shape[0] if target.ndim else 1
    parts = max(1, min(rows, target.nbytes // _CHUNK))
    if parts == 1:
        return [partial(world.memory.copy, target, origin)]
    spans = [slice(rows * i // parts, rows * (i + 1) // parts) for i in range(parts)]
    return [partial(world.memory.copy, target[span], origin[span]) for span in spans]


def is_key(x: Any) -> bool:
    """Return whether a JAX array holds typed random keys."""
    if isinstance(x.dtype, np.dtype):
        return False
    return bool(jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key))


def check_local(sharding: Any, name: str) -> None:
    """Refuse a JAX sharding with devices of other processes."""
    if not sharding.is_fully_addressable:
        mine = sum(1 for _ in sharding.addressable_devices)
        raise NotAddressableError(
            f"{name} is on {sharding.num_devices} devices, of which this process has {mine}; "
            "buffers of other processes cannot be reached. Convert x.addressable_shards one by "
            "one, or reshard with jax.jit(..., out_shardings=...)."
        )
