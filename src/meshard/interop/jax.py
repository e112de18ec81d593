"""JAX's arrays: resharding them, and converting to and from meshard's arrays without a copy.

A JAX array's shards are read in place, as NumPy views; new pieces are written once, into memory
that JAX takes without a copy and that all devices of a process share. On CPU devices `reshard`
can replace `jax.device_put`, which gathers the whole array on the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meshard.algebra.boundary import bound_all
from meshard.errors import (
    ArgumentError,
    ConcretizationError,
    DeletedArrayError,
    DtypeError,
    NotAddressableError,
    ShardingError,
    TreeError,
)
from meshard.interop.jax_buffers import (
    Copying,
    Moving,
    check_local,
    copied,
    is_key,
    is_taken,
    jax,
    layout_of,
    made,
    places_of,
    read,
    to_jax,
    to_meshard,
)
from meshard.plan.figures.choice import PlanLeaf
from meshard.plan.plan import Plan
from meshard.runtime.array.array import Array
from meshard.runtime.moving.place import check_devices_exist, checked_dtype
from meshard.runtime.types import KEY, Block
from meshard.runtime.watching.ledger import wired
from meshard.runtime.world import here

if TYPE_CHECKING:
    pass

__all__ = ["as_jax", "from_jax", "plan_reshard", "reshard", "to_jax", "to_meshard"]


def reshard(x: Any, sharding: Any, *, donate: bool = False) -> Any:
    """Move JAX arrays to other shardings, between any CPU devices of this process.

    Args:
        x: a JAX array, or a tree of them; typed random keys are arrays too.
        sharding: a tree of JAX shardings or devices that is a prefix of ``x``; None leaves an
            array where it is.
        donate: delete the source arrays when all have been moved.

    Returns:
        The tree of JAX arrays, committed to the given shardings, with the same bits. An array that
        is already laid out this way is returned itself. A piece that is a whole shard of the
        source, or a contiguous run that makes up half of one, shares that shard's memory: neither
        array sees a change of the other, since JAX never writes into shared memory, and each
        outlives the other's deletion.

    Raises:
        ArgumentError: if a leaf is not a JAX array, or its target is not a sharding.
        ShardingError: if a shape cannot be laid out as asked, or devices are not CPU devices.
        DeletedArrayError: if an array was deleted or donated.
        NotAddressableError: if other processes hold parts of an array, or are to hold them.
        ConcretizationError: if an array is inside a transformation.
        TreeError: if ``sharding`` is not a prefix of ``x``.

    No array has been deleted when one of these is raised.

    >>> x = jax.numpy.arange(4)
    >>> reshard(x, jax.devices("cpu")[0]).committed
    True
    """
    what = "reshard"
    structure, leaves, targets = _paired(x, sharding, what)
    world = here()
    moves: list[Moving | None] = []
    for leaf, target in zip(leaves, targets, strict=True):
        _check_array(leaf, what)
        if target is None or (leaf.sharding == target and leaf.committed):
            moves.append(None)
            continue
        moves.append(Moving(world, leaf, target, what))
    if world.ledgers:
        wired(world, "jax reshard", [move.wire() for move in moves if move is not None])
    tasks: list[Copying] = []
    for move in moves:
        if move is not None:
            move.begin(world, tasks)
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
        x: a JAX array, or a tree of arrays or of `jax.ShapeDtypeStruct` with shardings.
        sharding: a tree of JAX shardings or devices that is a prefix of ``x``; None leaves an
            array where it is.

    Raises:
        ArgumentError: if a leaf has no sharding.
        ShardingError: if a shape cannot be laid out as asked.
        TreeError: if ``sharding`` is not a prefix of ``x``.

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
        target = source if target is None else target
        shape, size = tuple(leaf.shape), leaf.dtype.itemsize
        found.append(PlanLeaf(name, layout_of(source, shape), layout_of(target, shape), size))
    return Plan(found)


def from_jax(x: Any) -> Array:
    """Return a JAX array as a meshard array of the same sharding, on the devices of the same ids.

    Args:
        x: a JAX array on devices of this process.

    Returns:
        The array, whose blocks are the shards' own memory if NumPy can read it. It stays valid when
        the JAX array is deleted or donated.

    Raises:
        ArgumentError: if it is not a JAX array.
        DtypeError: if it holds typed keys, which belong to another generator.
        ShardingError: if there is no meshard device of an id.
        DeletedArrayError: if it was deleted or donated.
        NotAddressableError: if other processes hold parts of it.
        ConcretizationError: if it is inside a transformation.

    >>> from_jax(jax.numpy.arange(3, dtype="int32"))
    Array([0, 1, 2], dtype=int32)
    """
    what, world = "from_jax", here()
    _check_array(x, what)
    if is_key(x):
        raise DtypeError(
            f"{what}: {x.aval.str_short()} holds random keys of JAX's generator, which mean "
            "nothing to meshard's. Pass jax.random.key_data(x) for their bits, or make keys with "
            "meshard.random.key."
        )
    check_local(x.sharding, f"{what}: {x.aval.str_short()}")
    dtype = checked_dtype(x.dtype, what)
    sharding = to_meshard(x.sharding, x.shape)
    missing = sorted(d.id for d in sharding.device_set if d not in world.device_set)
    if missing:
        count = max(d.id for d in sharding.device_set) + 1
        raise ShardingError(
            f"{what}: {x.aval.str_short()} is on JAX's device {missing[0]}, and meshard has no "
            f"device of that id among its {len(world.devices)}. Set MESHARD_NUM_DEVICES={count}, "
            f"or meshard.config.update('num_devices', {count}) before the first use of meshard, or "
            "move the array to other devices with meshard.interop.jax.reshard."
        )
    check_devices_exist(world, sharding, what)
    kind = world.type_of(tuple(x.shape), dtype, sharding, bool(x.committed))
    blocks = read(x, kind.layout)
    local = frozenset(kind.local)
    return Array(kind, tuple(b if i in local else None for i, b in enumerate(blocks)))


def as_jax(x: Array) -> Any:
    """Return a meshard array as a JAX array of the same sharding, on the CPU devices of its ids.

    Args:
        x: a meshard array of which this process holds every piece.

    Returns:
        The JAX array, committed. Blocks that are contiguous and begin on a cache line, as large
        ones do, become its memory; others are copied once, for any number of replicas.

    Raises:
        ArgumentError: if it is not a meshard array.
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
    check_local(target, f"{what}: {kind.str_short()}")
    pieces: list[Block] = []
    tasks: list[Copying] = []
    for block in blocks:
        assert block is not None
        pieces.append(block if is_taken(block) else copied(world, block, tasks))
    world.workers.run(tasks)
    return made(kind.shape, target, places_of(target, kind.layout), pieces)


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
    # A None in `x` is not a leaf, so the sharding above it is not used.
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


def _check_dtype(dtype: np.dtype[Any], name: str, what: str) -> None:
    """Refuse a dtype that JAX would store in another."""
    if dtype.char in "gG":
        raise DtypeError(
            f"{what}: {name} is of C's long double, which JAX does not have. Convert it with "
            "x.astype('float64') first."
        )
    stored = jax.dtypes.canonicalize_dtype(dtype)
    if stored != dtype:
        raise DtypeError(
            f"{what}: JAX would store {name} as {stored}, since its 64-bit numbers are off. Turn "
            "them on with jax.config.update('jax_enable_x64', True), or convert with "
            f"x.astype('{stored}') first."
        )


bound_all(globals()[name] for name in __all__)
