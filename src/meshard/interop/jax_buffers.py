"""Moving between the buffers of JAX arrays, on CPU devices of one process.

In: arrays and the JAX shardings that they are to have. Out: arrays made of pieces that were read as
views, or written once into memory that JAX takes without a copy.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np

from meshard.algebra.box import Index
from meshard.algebra.layout import Layout
from meshard.errors import NotAddressableError, ShardingError
from meshard.interop.jax_shardings import jax, layout_of, to_meshard
from meshard.plan.move.assemble import Source, assemble
from meshard.plan.move.part import Part
from meshard.plan.move.wires import Move, Wire, move_wire
from meshard.runtime.memo import Memo
from meshard.runtime.types import Block
from meshard.runtime.world import RuntimeWorld

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


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
