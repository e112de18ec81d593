"""Making arrays with `device_put`, from callbacks or from single-device arrays; fetching them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, overload

import numpy as np

from meshard.algebra.abstract import Sharding
from meshard.algebra.arguments import described, flag_of, function_of, shape_of
from meshard.algebra.box import Box, Index
from meshard.algebra.device import Device
from meshard.algebra.where import Where
from meshard.errors import ArgumentError, ShardingError, TreeError
from meshard.runtime.agree import agree_to_make
from meshard.runtime.array.array import Array, to_numpy
from meshard.runtime.array.traced import Traced
from meshard.runtime.moving.place import (
    as_host,
    as_sharding,
    check_devices_exist,
    dtype_of,
    made_of,
    placed,
)
from meshard.runtime.moving.same_values import check_same_values
from meshard.runtime.trees.trees import (
    broadcast_leaves,
    flatten,
    flatten_with_none,
    mismatch,
    unflatten,
)
from meshard.runtime.types import ArrayLike, Block, SupportsArray
from meshard.runtime.world import here

T = TypeVar("T")
K = TypeVar("K")
Host = np.ndarray[Any, Any] | np.generic | complex
"""A value on the host: a tree of such becomes one of arrays; others keep their type."""

H = TypeVar("H", bound=Host)


@overload
def device_put(
    x: ArrayLike, device: Any = None, *, src: Any = None, donate: Any = False, may_alias: Any = None
) -> Array: ...
@overload
def device_put(
    x: list[H], device: Any = None, *, src: Any = None, donate: Any = False, may_alias: Any = None
) -> list[Array]: ...
@overload
def device_put(
    x: tuple[Host, Host],
    device: Any = None,
    *,
    src: Any = None,
    donate: Any = False,
    may_alias: Any = None,
) -> tuple[Array, Array]: ...
@overload
def device_put(
    x: tuple[Host, ...],
    device: Any = None,
    *,
    src: Any = None,
    donate: Any = False,
    may_alias: Any = None,
) -> tuple[Array, ...]: ...
@overload
def device_put(
    x: dict[K, H],
    device: Any = None,
    *,
    src: Any = None,
    donate: Any = False,
    may_alias: Any = None,
) -> dict[K, Array]: ...
@overload
def device_put(
    x: T, device: Any = None, *, src: Any = None, donate: Any = False, may_alias: Any = None
) -> T: ...
def device_put(
    x: Any,
    device: Any = None,
    *,
    src: Any = None,
    donate: Any = False,
    may_alias: Any = None,
) -> Any:
    """Lay values or arrays out on devices.

    Args:
        x: an array, anything that NumPy converts to one, or a tree of such leaves. Of a memory map,
            or a data set of h5py or zarr, each process reads only what its devices hold.
        device: a Sharding, a Device, or a spec where a mesh is set, for all leaves; or a tree of
            them that is a prefix of ``x``. None leaves arrays where they are and puts values on
            the default device.
        src: accepted as in JAX, and not needed: an array knows where it is.
        donate: whether to delete the given arrays, once all have been placed; or a tree of bools.
        may_alias: False gives arrays that outlive the given ones, also where nothing moves, as
            `Array.copy` does; or a tree of bools. Blocks are immutable and shared wherever they can
            be, but never with the memory of a NumPy array.

    Returns:
        The tree with each leaf an `Array`, committed where a device was given.

    Raises:
        ShardingError: if a leaf's shape cannot be laid out as asked, or a device does not exist.
            Nothing has then been deleted.
        UnequalError: if a value is to be laid out on devices of several processes, and these give
            different values: each must give the whole array.
        TreeError: if ``device`` is not a prefix of ``x``.
        ArgumentError: if a leaf is both to be donated and to be aliased.

    >>> import meshard, numpy as np
    >>> meshard.config.update("num_devices", 8)
    >>> mesh = meshard.make_mesh((4, 2), ("x", "y"))
    >>> rows = meshard.NamedSharding(mesh, meshard.P("x"))
    >>> tree = meshard.device_put({"w": np.ones((8, 6)), "b": np.zeros(4)}, rows)
    >>> tree["w"].sharding.spec, [shard.data.shape for shard in tree["b"].addressable_shards[:2]]
    (P('x',), [(1,), (1,)])
    >>> meshard.device_put(np.arange(4), meshard.devices()[3]).device
    CpuDevice(id=3)
    """
    what = "device_put"
    if (type(x) is Array or isinstance(x, np.ndarray)) and donate is False:
        target = as_sharding(device, what, x.shape)
        check_same_values(x, [x], [target], what)
        return _outliving(x, placed(x, target), may_alias)
    if isinstance(x, (Sharding, Device)):
        raise ArgumentError(
            "device_put: the first argument is the array and the second says where; got "
            f"{described(x)} first. Write device_put(x, sharding)."
        )
    leaves, structure = flatten_with_none(x)
    targets = _targets(device, x, leaves, what)
    given_up = _given_up(donate, may_alias, x, what)
    check_same_values(x, leaves, targets, what)
    results: dict[tuple[int, Any], Any] = {}  # an array in two places of a tree is placed once
    staying: list[tuple[Array, Sharding | None]] = []
    leaving: list[tuple[Array, Sharding | None]] = []
    for leaf, target, gone in zip(leaves, targets, given_up, strict=True):
        if type(leaf) is Array:
            (leaving if gone else staying).append((leaf, target))
        elif leaf is not None and (id(leaf), target) not in results:
            results[id(leaf), target] = placed(leaf, target)
    for together, donate in (staying, False), (leaving, True):
        if together:
            from meshard.runtime.moving.moved import (
                moved_together,  # not loaded where arrays are kept
            )

            moved = moved_together(together, donate, what)
            for (leaf, target), result in zip(together, moved, strict=True):
                results[id(leaf), target] = result
    apart = prefix_leaves(may_alias, x, what, "may_alias")
    return unflatten(
        structure,
        [
            _outliving(leaf, results.get((id(leaf), target)), aliased)
            for leaf, target, aliased in zip(leaves, targets, apart, strict=True)
        ],
    )


def _outliving(leaf: Any, result: Any, aliased: Any) -> Any:
    """Return a result; not the given array itself if that must not be aliased."""
    return result.copy() if aliased is False and result is leaf and result is not None else result


def _targets(device: Any, x: Any, leaves: Sequence[Any], what: str) -> list[Sharding | None]:
    """Return for each leaf of a tree the sharding that it is to have."""
    return [
        as_sharding(place, what, np.shape(leaf) if type(place) is Where else None)
        for leaf, place in zip(leaves, prefix_leaves(device, x, what), strict=True)
    ]


def _given_up(donate: Any, may_alias: Any, x: Any, what: str) -> list[bool]:
    """Return for each leaf of a tree whether it is donated; such a leaf cannot be aliased."""
    found = [flag_of(gone, what, "donate") for gone in prefix_leaves(donate, x, what, "donate")]
    for gone, aliased in zip(found, prefix_leaves(may_alias, x, what, "may_alias"), strict=True):
        shared = aliased is not None and flag_of(aliased, what, "may_alias")
        if gone and shared:
            raise ArgumentError(
                f"{what}: donate and may_alias are both True; a donated array is deleted, so that "
                "nothing can share its memory. Choose one."
            )
    return found


def prefix_leaves(prefix: Any, tree: Any, what: str, name: str = "devices") -> list[Any]:
    """Return for each leaf of ``tree``, None included, the leaf of ``prefix`` above it.

    Raises:
        TreeError: if it is not a prefix.
    """
    try:
        return broadcast_leaves(prefix, tree, none_is_leaf=True)
    except TreeError:
        raise
    except ValueError as error:
        raise TreeError(
            f"{what}: the tree of {name} must be a prefix of the tree of values: {mismatch(error)}."
        ) from error


@overload
def device_get(x: SupportsArray) -> Block: ...
@overload
def device_get(x: Any) -> Any: ...
def device_get(x: Any) -> Any:
    """Return a tree with each array fetched whole as a NumPy array; other leaves stay.

    Raises:
        NotAddressableError: if an array spans processes and is not replicated.

    >>> import meshard, meshard.numpy as mnp
    >>> meshard.device_get({"w": mnp.arange(3), "name": "layer"})
    {'w': array([0, 1, 2]), 'name': 'layer'}
    """

    def fetch(leaf: Any) -> Any:
        if type(leaf) is Array:
            return to_numpy(leaf, "device_get")
        if isinstance(leaf, Traced):
            return leaf._concrete("device_get")
        return np.asarray(leaf) if hasattr(leaf, "__array__") else leaf

    leaves, structure = flatten(x)
    return unflatten(structure, [fetch(leaf) for leaf in leaves])


def block_until_ready(x: T) -> T:
    """Return the tree. There is nothing to wait for: arrays are complete as soon as they exist.

    Raises:
        DeletedArrayError: if an array of it was deleted.

    >>> import meshard, meshard.numpy as mnp
    >>> meshard.block_until_ready({"w": mnp.ones(2)})
    {'w': Array([1., 1.], dtype=float64)}
    """
    for leaf in flatten(x)[0]:
        if type(leaf) is Array:
            leaf._live()
    return x


def needed_sharding(given: Any, what: str) -> Sharding:
    """Return the sharding that is meant, on devices that exist.

    Raises:
        ArgumentError: if none is given.
        ShardingError: if a device does not exist.
    """
    found = as_sharding(given, what)
    if found is None:
        raise ArgumentError(f"{what}: a sharding is needed, got None.")
    check_devices_exist(here(), found, what)
    return found


def make_array_from_callback(
    shape: Sequence[int],
    sharding: Any,
    data_callback: Callable[[Index], Any],
    dtype: Any = None,
) -> Array:
    """Make an array whose pieces a callback gives.

    Args:
        shape: the global shape.
        sharding: a Sharding, a Device, or a spec where a mesh is set.
        data_callback: called with a tuple of slices into the global array, once for each distinct
            index of this process's devices; returns anything that NumPy converts to an array.
            Values that can still be changed elsewhere are copied.
        dtype: the dtype to convert the pieces to, within one kind of numbers; needed by a process
            that holds none. By default all pieces must have that of the first one.

    Returns:
        The array. If the callback raises, no array is made.

    Raises:
        ShardingError: if a piece has another shape or dtype than it should; the index is named.
        ArgumentError: if ``dtype`` is needed and not given.

    >>> import meshard, numpy as np
    >>> meshard.config.update("num_devices", 8)
    >>> rows = meshard.NamedSharding(meshard.make_mesh((4, 2), ("x", "y")), meshard.P("x"))
    >>> def read(index):
    ...     print("reads rows", index[0].start, "to", index[0].stop)
    ...     return np.arange(16).reshape(8, 2)[index]
    >>> x = meshard.make_array_from_callback((8, 2), rows, read)
    reads rows 0 to 2
    reads rows 2 to 4
    reads rows 4 to 6
    reads rows 6 to 8
    >>> x.sharding.spec, x.dtype
    (P('x',), dtype('int64'))
    """
    what = "make_array_from_callback"
    function_of(data_callback, what, "data_callback")
    whole, place, world = shape_of(shape, what), needed_sharding(sharding, what), here()
    me = world.process_index
    indices: dict[int, Index] = {}
    layout = place.layout(whole)
    for device, index in place.devices_indices_map(whole).items():
        if device.process_index == me and index is not None:
            indices.setdefault(layout.piece_of[device.id], index)
    first: list[Block] = []
    empty: dict[Box, Block] = {}
    asked_for = None if dtype is None else dtype_of(dtype, what)
    wanted = asked_for

    def value(piece: int) -> Block:
        if piece == probe and first:
            return first.pop()
        box = layout.boxes[piece]
        if box.volume:
            return asked(piece)
        if box not in empty:  # several pieces without elements may have one index
            empty[box] = asked(piece)
        return empty[box]

    def asked(piece: int) -> Block:
        given = as_host(data_callback(indices[piece]), what)
        fits = asked_for is not None and np.can_cast(given.dtype, asked_for, "same_kind")
        return given.astype(asked_for, copy=False) if fits else given

    agree_to_make(world, what, whole, wanted, place)
    probe = min(indices, default=-1)
    if wanted is None:
        if not indices:
            raise ArgumentError(f"{what}: a process without devices of the sharding needs dtype=.")
        first.append(as_host(data_callback(indices[probe]), what))
        wanted = first[0].dtype
    type_ = world.type_of(whole, wanted, place, True)
    return made_of(world, type_, value, what)


def make_array_from_single_device_arrays(
    shape: Sequence[int], sharding: Any, arrays: Sequence[Array], *, dtype: Any = None
) -> Array:
    """Make one array from arrays that are on single devices, without copying.

    Args:
        shape: the global shape.
        sharding: a Sharding, a Device, or a spec where a mesh is set.
        arrays: one array per device of this process, in any order. Replicas must be equal; the
            first in device order is taken.
        dtype: the arrays' dtype; needed by a process that holds none.

    Raises:
        ShardingError: if arrays are missing, too many, of another shape, dtype or device.
        ArgumentError: if a value is not an Array, or ``dtype`` is needed and not given.
        DeletedArrayError: if one was deleted.

    >>> import meshard, numpy as np
    >>> meshard.config.update("num_devices", 8)
    >>> rows = meshard.NamedSharding(meshard.make_mesh((4,), ("x",)), meshard.P("x"))
    >>> pieces = [meshard.device_put(np.full(2, float(d.id)), d) for d in meshard.devices()[:4]]
    >>> meshard.make_array_from_single_device_arrays((8,), rows, pieces).tolist()
    [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
    """
    what = "make_array_from_single_device_arrays"
    whole, place, world = shape_of(shape, what), needed_sharding(sharding, what), here()
    needed = [d for d in place.device_order if d.process_index == world.process_index]
    given = _by_device(arrays, what)
    _check_devices(given, needed, what)
    if not needed and dtype is None:
        raise ArgumentError(f"{what}: a process without devices of the sharding needs dtype=.")
    wanted = dtype_of(dtype, what) if dtype is not None else arrays[0].dtype
    type_ = world.type_of(whole, wanted, place, True)
    blocks: list[Block | None] = [None] * type_.layout.piece_count
    for device in needed:
        x = given[device]
        piece = type_.layout.piece_of[device.id]
        box = type_.layout.box(piece)
        if x.shape != box.shape:
            raise ShardingError(
                f"{what}: expected shard shape {box.shape} on {device!r} (index {box}), but its "
                f"array has shape {x.shape}. The result is {type_.str_short()} with {place!r}."
            )
        if x.dtype != wanted:
            raise ShardingError(
                f"{what}: all arrays must have one dtype; {device!r} has {x.dtype}, where "
                f"{wanted} is expected."
            )
        if blocks[piece] is None:
            blocks[piece] = x._live()[0]
    return Array(type_, tuple(blocks))


def _by_device(arrays: Any, what: str) -> dict[Device, Array]:
    """Return arrays by the devices that they are on, one on each."""
    if not isinstance(arrays, (list, tuple)):
        raise ArgumentError(
            f"{what}: arrays is a {type(arrays).__name__}; give a list or tuple of Arrays."
        )
    given: dict[Device, Array] = {}
    for x in arrays:
        if type(x) is not Array:
            raise ArgumentError(
                f"{what}: expected Arrays on one device each, got a {type(x).__name__}."
            )
        if not isinstance(x.device, Device):
            raise ShardingError(
                f"{what}: an array of shape {x.shape} is on {x.sharding.num_devices} devices; "
                "each must be on one."
            )
        if x.device in given:
            raise ShardingError(
                f"{what}: two arrays are on {x.device!r}; the arrays must be on distinct devices."
            )
        x._live()
        given[x.device] = x
    return given


def _check_devices(given: Mapping[Device, Array], needed: Sequence[Device], what: str) -> None:
    """Refuse arrays that are not one for each device of this process."""
    if len(given) != len(needed):
        raise ShardingError(
            f"{what}: expected {len(needed)} per-device arrays (this is how many devices are "
            f"addressable by the sharding), but got {len(given)}."
        )
    for device in needed:
        if device not in given:
            foreign = [d for d in given if d.process_index != device.process_index]
            whose = "".join(f" {d!r} belongs to process {d.process_index}." for d in foreign[:1])
            raise ShardingError(
                f"{what}: no array is on {device!r}; the arrays are on {list(given)}.{whose} "
                "Each process must give one array for each of its own devices."
            )
