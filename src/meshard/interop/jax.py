"""JAX's arrays and meshard's: resharding the one, and passing between both without a copy.

A JAX array's shards are read where they are, as NumPy views; what has to be made anew is written
once, into memory that JAX takes as it is, and that all devices of a process share. On CPU devices
`reshard` so replaces `jax.device_put`, which gathers the whole array on the host.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from meshard.algebra.box import Box
from meshard.algebra.layout import Layout
from meshard.errors import (
    ArgumentError,
    ConcretizationError,
    DeletedArrayError,
    DtypeError,
    NotAddressableError,
    ShardingError,
    TreeError,
)
from meshard.plan.assemble import Part, Source, assemble
from meshard.plan.reshard import Leaf, Plan
from meshard.plan.traffic import Move
from meshard.runtime.array import Array
from meshard.runtime.ledger import wired
from meshard.runtime.place import check_devices_exist, checked_dtype
from meshard.runtime.types import KEY, Block
from meshard.runtime.world import RuntimeWorld, here

from .jax_shardings import jax, layout_of, to_jax, to_meshard

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["as_jax", "from_jax", "plan_reshard", "reshard", "to_jax", "to_meshard"]

_LINE = 64
"""The alignment in bytes of memory that JAX's CPU devices take without a copy."""
_POOLED = 256 * 1024
_CHUNK = 4 << 20
_MOST_DEVICES = "XLA_FLAGS=--xla_force_host_platform_device_count"


def reshard(x: Any, sharding: Any, *, donate: bool = False) -> Any:
    """Move JAX arrays to other shardings, between any CPU devices of this process.

    Args:
        x: a JAX array, or a tree of them; typed random keys are arrays too.
        sharding: a tree of JAX shardings or devices that is a prefix of ``x``; None leaves an
            array where it is.
        donate: delete the source arrays when all have been moved.

    Returns:
        The tree of JAX arrays, committed to the shardings asked for, with the same bits. One that
        lies so already is returned itself. A piece that is a whole shard of the source, or a
        contiguous run of one that makes up half of it, shares that shard's memory: no array sees
        a change of the other, since JAX never writes into memory that is shared, and each outlives
        the other's deletion.

    Raises:
        ArgumentError: if a leaf is no JAX array, or what it shall lie as no sharding.
        ShardingError: if a shape cannot lie as asked, or devices are not CPU devices.
        DeletedArrayError: if an array was deleted or donated.
        NotAddressableError: if other processes hold parts of an array, or shall do so.
        ConcretizationError: if an array is inside a transformation.
        TreeError: if ``sharding`` is no prefix of ``x``.

    No array has been deleted when one of these is raised.

    >>> x = jax.numpy.arange(4)
    >>> reshard(x, jax.devices("cpu")[0]).committed
    True
    """
    what = "reshard"
    structure, leaves, targets = _paired(x, sharding, what)
    world = here()
    moves = []
    for leaf, target in zip(leaves, targets, strict=True):
        _check_array(leaf, what)
        if target is None or (leaf.sharding == target and leaf.committed):
            moves.append(None)
            continue
        _check_reachable(leaf, target, what)
        moves.append(_Move(world, leaf, target))
    if world.ledgers:
        for move in moves:
            if move is not None:
                wired(world, "jax reshard", (move.wire(),))
    tasks = list(chain.from_iterable(move.begin(world) for move in moves if move is not None))
    world.workers.run(tasks)
    results = [
        leaf if move is None else move.finish() for leaf, move in zip(leaves, moves, strict=True)
    ]
    if donate:
        kept = {id(result) for result in results}
        for leaf in leaves:
            if id(leaf) not in kept and not leaf.is_deleted():
                leaf.delete()
    return jax.tree.unflatten(structure, results)


def plan_reshard(x: Any, sharding: Any) -> Plan:
    """Return what `reshard` would do with a tree of JAX arrays, without moving anything.

    Args:
        x: a JAX array, or a tree of them or of `jax.ShapeDtypeStruct` that carry shardings.
        sharding: a tree of JAX shardings or devices that is a prefix of ``x``.

    Raises:
        ArgumentError: if a leaf carries no sharding, or none is given for it.
        ShardingError: if a shape cannot lie as asked.
        TreeError: if ``sharding`` is no prefix of ``x``.

    >>> plan_reshard(jax.numpy.arange(4), jax.devices()[0]).nbytes
    16
    """
    what = "plan_reshard"
    paths = [path for path, _ in jax.tree.leaves_with_path(x)]
    _, leaves, targets = _paired(x, sharding, what)
    found = []
    for path, leaf, target in zip(paths, leaves, targets, strict=True):
        name = jax.tree_util.keystr(path, simple=True, separator=".") or "x"
        source = getattr(leaf, "sharding", None)
        if isinstance(leaf, jax.core.Tracer) or not isinstance(source, jax.sharding.Sharding):
            raise ArgumentError(
                f"{what}: {name} is a {type(leaf).__name__} that carries no sharding; give JAX "
                "arrays, or jax.ShapeDtypeStruct(shape, dtype, sharding=...)."
            )
        if target is None:
            raise ArgumentError(f"{what}: no sharding is given for {name}.")
        shape, size = tuple(leaf.shape), leaf.dtype.itemsize
        found.append(Leaf(name, layout_of(source, shape), layout_of(target, shape), size))
    return Plan(found)


def from_jax(x: Any) -> Array:
    """Return a JAX array as a meshard array of the same sharding, on the devices of the same ids.

    Args:
        x: a JAX array on devices of this process.

    Returns:
        The array, whose blocks are the shards' own memory wherever NumPy can read it so. It stays
        valid when the JAX array is deleted or donated.

    Raises:
        ArgumentError: if it is no JAX array.
        DtypeError: if it holds typed keys: another generator's mean nothing here.
        ShardingError: if there is no meshard device of an id.
        DeletedArrayError: if it was deleted or donated.
        NotAddressableError: if other processes hold parts of it.
        ConcretizationError: if it is inside a transformation.

    >>> from_jax(jax.numpy.arange(3, dtype="int32"))
    Array([0, 1, 2], dtype=int32)
    """
    what, world = "from_jax", here()
    _check_array(x, what)
    if _is_key(x):
        raise DtypeError(
            f"{what}: {x.aval.str_short()} holds random keys of JAX's generator, which mean "
            "nothing to meshard's. Pass jax.random.key_data(x) for their bits, or make keys with "
            "meshard.random.key."
        )
    _check_local(x.sharding, f"{what}: {x.aval.str_short()}")
    dtype = checked_dtype(x.dtype, what)
    sharding = to_meshard(x.sharding, x.shape)
    missing = sorted(d.id for d in sharding.device_set if d not in world.device_set)
    if missing:
        count = max(d.id for d in sharding.device_set) + 1
        raise ShardingError(
            f"{what}: {x.aval.str_short()} lies on JAX's device {missing[0]}, and meshard has no "
            f"device of that id among its {len(world.devices)}. Set MESHARD_NUM_DEVICES={count}, "
            f"or meshard.config.update('num_devices', {count}) before the first use of meshard, or "
            "move the array to other devices with meshard.interop.jax.reshard."
        )
    check_devices_exist(world, sharding, what)
    kind = world.type_of(tuple(x.shape), dtype, sharding, bool(x.committed))
    blocks = _read(x, kind.layout)
    local = frozenset(kind.local)
    return Array(kind, tuple(b if i in local else None for i, b in enumerate(blocks)))


def as_jax(x: Array) -> Any:
    """Return a meshard array as a JAX array of the same sharding, on the CPU devices of its ids.

    Args:
        x: a meshard array of which this process holds every piece.

    Returns:
        The JAX array, committed. Blocks that are contiguous and begin on a cache line, as large
        ones do, become its memory; others are copied once, whatever the number of replicas.

    Raises:
        ArgumentError: if it is no meshard array.
        DtypeError: if JAX would store another dtype, or it holds typed keys.
        ShardingError: if there is no JAX device of an id, or the shards differ in shape.
        DeletedArrayError: if it was deleted or donated.
        NotAddressableError: if other processes hold parts of it.

    >>> import meshard
    >>> as_jax(meshard.numpy.arange(3, dtype="int32")).dtype
    dtype('int32')
    """
    what, world = "as_jax", here()
    if type(x) is not Array:
        raise ArgumentError(f"{what}: expected a meshard Array, got a {type(x).__name__}.")
    blocks, kind = x._live(), x._type
    if kind.dtype == KEY:
        raise DtypeError(
            f"{what}: {kind.str_short()} holds random keys of meshard's generator, which mean "
            "nothing to JAX's. Pass meshard.random.key_data(x) for their bits, or make keys with "
            "jax.random.key."
        )
    if not kind.complete:
        raise NotAddressableError(
            f"{what}: process {world.process_index} holds {len(kind.local)} of the "
            f"{kind.layout.piece_count} pieces of {kind.str_short()}, and JAX's devices here need "
            "all of them. Reshard it to a layout that this process holds, or convert the data of "
            "x.addressable_shards."
        )
    _check_dtype(kind.dtype, kind.str_short(), what)
    target = to_jax(kind.sharding, kind.shape)
    _check_local(target, f"{what}: {kind.str_short()}")
    pieces: list[Block] = []
    tasks: list[Callable[[], None]] = []
    for block in blocks:
        assert block is not None
        pieces.append(block if _is_taken(block) else _copied(world, block, tasks))
    world.workers.run(tasks)
    return _made(kind.shape, target, kind.layout, pieces)


class _Move:
    """One array on its way."""

    def __init__(self, world: RuntimeWorld, x: Any, target: Any) -> None:
        self.x, self.target, self.shape = x, target, tuple(x.shape)
        self.source = _layout(world, x.sharding, self.shape)
        self.destination = _layout(world, target, self.shape)
        key = ("jax reshard", self.source, self.destination)
        part: Part | None = world.decisions.get(key)
        if part is None:
            part = assemble(self.destination, [Source(self.source)])
            world.decided(key, part)
        self.part = part
        self.pieces: list[Block] = []

    def wire(self) -> Move:
        """Return what the move is called in a ledger."""
        return Move(
            self.x.aval.str_short(),
            to_meshard(self.target, self.shape),
            (to_meshard(self.x.sharding, self.shape),),
            self.destination,
            (Source(self.source),),
            self.x.dtype.itemsize,
        )

    def begin(self, world: RuntimeWorld) -> list[Callable[[], None]]:
        """Lay out the pieces and return the copies that fill them."""
        values = jax.random.key_data(self.x) if _is_key(self.x) else self.x
        blocks = _read(values, self.source)
        rest, dtype = tuple(values.shape[len(self.shape) :]), np.dtype(values.dtype)
        tasks: list[Callable[[], None]] = []
        for recipe in self.part.recipes:
            assert recipe is not None
            if recipe.alias is not None:
                view = blocks[recipe.alias.origin][(*recipe.alias.region, ...)]
                if view.shape == (*recipe.shape, *rest):
                    self.pieces.append(view if _is_taken(view) else _copied(world, view, tasks))
                    continue
            piece = _empty(world, (*recipe.shape, *rest), dtype)
            for copy in recipe.copies:
                origin = blocks[copy.origin][(*copy.region, ...)]
                tasks += _copies(piece[(*copy.target, ...)], origin)
            self.pieces.append(piece)
        return tasks

    def finish(self) -> Any:
        """Return the array made of the pieces."""
        if _is_key(self.x):
            return self._finish_keys()
        result = _made(self.shape, self.target, self.destination, self.pieces)
        if self.x.weak_type:
            result.aval = result.aval.update(weak_type=True)
        return result

    def _finish_keys(self) -> Any:
        """Return the array of typed keys, which JAX makes of single-device arrays only."""
        impl, kind = jax.random.key_impl(self.x), self.target.memory_kind
        arrays = []
        for device in self.target.devices_indices_map(self.shape):
            piece = self.pieces[self.destination.piece_of[device.id]]
            alone = jax.sharding.SingleDeviceSharding(device, memory_kind=kind)
            arrays.append(jax.random.wrap_key_data(jax.device_put(piece, alone), impl=impl))
        return jax.make_array_from_single_device_arrays(self.shape, self.target, arrays)


def _made(shape: tuple[int, ...], sharding: Any, layout: Layout, pieces: Sequence[Block]) -> Any:
    """Return the JAX array of pieces, which all devices that hold one share."""
    place = {layout.box(number): piece for number, piece in enumerate(pieces)}
    with _wide(pieces[0].dtype):
        return jax.make_array_from_callback(
            shape, sharding, lambda index: place[Box.from_index(index, shape)]
        )


def _wide(dtype: np.dtype[Any]) -> AbstractContextManager[Any]:
    """Keep JAX from storing 64-bit numbers in 32 bits; an array that has them shall keep them."""
    if jax.dtypes.canonicalize_dtype(dtype) == dtype:
        return contextlib.nullcontext()
    wide: AbstractContextManager[Any] = jax.enable_x64(True)
    return wide


def _read(x: Any, layout: Layout) -> list[Block]:
    """Return each piece as a read-only NumPy array: a view, where NumPy knows how it is stored."""
    blocks: dict[int, Block] = {}
    for shard in x.addressable_shards:
        piece = layout.piece_of[shard.device.id]
        if piece not in blocks:
            blocks[piece] = np.asarray(shard.data)
    return [blocks[piece] for piece in range(layout.piece_count)]


def _layout(world: RuntimeWorld, sharding: Any, shape: tuple[int, ...]) -> Layout:
    key = ("jax layout", sharding, shape)
    found: Layout | None = world.decisions.get(key)
    if found is None:
        found = layout_of(sharding, shape)
        world.decided(key, found)
    return found


# memory


def _is_taken(block: Block) -> bool:
    """Whether JAX takes a block's memory as it is."""
    return block.flags.c_contiguous and block.ctypes.data % _LINE == 0


def _empty(world: RuntimeWorld, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Block:
    """Return uninitialised memory that JAX takes as it is; large pieces are whole pages."""
    size = math.prod(shape) * dtype.itemsize
    if size >= _POOLED:
        return world.pages.empty(shape, dtype)
    room = np.empty(size + _LINE, np.uint8)
    start = -room.ctypes.data % _LINE
    return room[start : start + size].view(dtype).reshape(shape)


def _copied(world: RuntimeWorld, block: Block, tasks: list[Callable[[], None]]) -> Block:
    piece = _empty(world, block.shape, block.dtype)
    tasks += _copies(piece, block)
    return piece


def _copies(target: Block, origin: Block) -> list[Callable[[], None]]:
    """Return the tasks of one copy: one, or several of a large one."""
    rows = target.shape[0] if target.ndim else 1
    parts = max(1, min(rows, target.nbytes // _CHUNK))
    if parts == 1:
        return [partial(np.copyto, target, origin)]
    spans = [slice(rows * i // parts, rows * (i + 1) // parts) for i in range(parts)]
    return [partial(np.copyto, target[span], origin[span]) for span in spans]


# arguments


def _paired(x: Any, sharding: Any, what: str) -> tuple[Any, list[Any], list[Any]]:
    """Return a tree's structure, its leaves, and for each the JAX sharding above it or None."""
    leaves, structure = jax.tree.flatten(x)
    try:
        spread = jax.tree.broadcast(sharding, x, is_leaf=lambda leaf: leaf is None)
    except ValueError as error:
        raise TreeError(
            f"{what}: the tree of shardings must be a prefix of the tree of arrays: "
            f"{' '.join(str(error).split())}"
        ) from error
    # A None of `x` is no leaf of it, and what stands above it is for nothing.
    targets = structure.flatten_up_to(spread)
    return structure, leaves, [_target(given, what) for given in targets]


def _target(given: Any, what: str) -> Any:
    if given is None or isinstance(given, jax.sharding.Sharding):
        return given
    if isinstance(given, jax.Device):
        return jax.sharding.SingleDeviceSharding(given)
    raise ArgumentError(
        f"{what}: sharding holds {given!r} of type {type(given).__name__}; give JAX shardings or "
        "devices. A meshard sharding becomes one with meshard.interop.jax.to_jax, a bare spec "
        "with jax.sharding.NamedSharding(mesh, spec)."
    )


def _is_key(x: Any) -> bool:
    return bool(jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key))


def _check_array(x: Any, what: str) -> None:
    if isinstance(x, jax.core.Tracer):
        raise ConcretizationError(
            f"{what}: {x.aval.str_short()} is inside a transformation of JAX and has no buffers "
            "yet. Call it outside of jit, or use jax.lax.with_sharding_constraint inside."
        )
    if not isinstance(x, jax.Array):
        raise ArgumentError(
            f"{what}: expected JAX arrays, got a {type(x).__name__}. Values of the host are placed "
            "with jax.device_put(x, sharding); a meshard array becomes one of JAX with "
            "meshard.interop.jax.as_jax."
        )
    if x.is_deleted():
        raise DeletedArrayError(
            f"{what}: the JAX array {x.aval.str_short()} has been deleted or donated, and nothing "
            "is left to read. Keep it until it has been moved."
        )


def _check_reachable(x: Any, target: Any, what: str) -> None:
    name = f"{what}: {x.aval.str_short()}"
    _check_local(x.sharding, name)
    _check_local(target, f"{name}, as it shall lie,")
    for sharding in (x.sharding, target):
        for device in sharding.device_set:
            if device.platform != "cpu":
                raise ShardingError(
                    f"{name} cannot be moved between {x.sharding!r} and {target!r}: buffers are "
                    f"read and filled in the host's memory, and {device} is no CPU device. Use "
                    "jax.device_put for it; plan_reshard says what that has to move."
                )


def _check_local(sharding: Any, name: str) -> None:
    if not sharding.is_fully_addressable:
        mine = sum(1 for _ in sharding.addressable_devices)
        raise NotAddressableError(
            f"{name} lies on {sharding.num_devices} devices, of which this process has {mine}; "
            "buffers of other processes cannot be reached. Convert x.addressable_shards one by "
            "one, or reshard with jax.jit(..., out_shardings=...)."
        )


def _check_dtype(dtype: np.dtype[Any], name: str, what: str) -> None:
    """Refuse a dtype that JAX would store in another."""
    try:
        stored = jax.dtypes.canonicalize_dtype(dtype)
    except TypeError as error:
        raise DtypeError(f"{what}: {name} has a dtype that JAX does not have: {error}") from error
    if stored != dtype:
        raise DtypeError(
            f"{what}: JAX would store {name} as {stored}, since its 64-bit numbers are off. Turn "
            "them on with jax.config.update('jax_enable_x64', True), or convert with "
            f"x.astype('{stored}') first."
        )
