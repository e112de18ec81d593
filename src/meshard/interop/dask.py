"""Dask's arrays: each device computes the chunks that it needs, and each shard is a chunk.

Neither way puts an array together in one place.

>>> import dask.array as da, meshard
>>> from meshard.interop.dask import from_dask, to_dask
>>> meshard.config.update("num_devices", 4)
>>> x = from_dask(da.arange(12, chunks=3))
>>> [shard.data.tolist() for shard in x.addressable_shards]
[[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
>>> to_dask(x).chunks
((3, 3, 3, 3),)
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, final

import numpy as np

from meshard.algebra.arguments import instance_of
from meshard.algebra.boundary import bound_all
from meshard.errors import ArgumentError, DtypeError, NotAddressableError, ShapeError
from meshard.interop.partitioned import fitting, sizes
from meshard.runtime.array.array import Array
from meshard.runtime.array.partitioned import grid_of
from meshard.runtime.moving.make import make_array_from_callback
from meshard.runtime.moving.place import as_sharding, checked_dtype
from meshard.runtime.types import KEY, Block
from meshard.runtime.world import here

try:
    import dask
    import dask.array as da
except ImportError as error:
    raise ImportError(
        f"meshard.interop.dask needs Dask, which cannot be imported here ({error}). Install it "
        "with pip install 'dask[array]'; meshard itself never needs it."
    ) from error

__all__ = ["from_dask", "to_dask"]
_Box = tuple[slice, ...]


def from_dask(x: Any, sharding: Any = None) -> Array:
    """Compute a Dask array on the devices that are to hold it.

    Each process computes the chunks that its own devices need, each chunk once, and copies every
    chunk into place as it is done. With a client of ``dask.distributed`` the workers compute, and
    chunks come one by one.

    Args:
        x: a Dask array.
        sharding: a Sharding, a Device, or a spec where a mesh is set. By default the dim with the
            most chunks is split over all devices, where chunks begin.

    Raises:
        ArgumentError: if ``x`` is not a Dask array.
        ShapeError: if the sizes of its chunks are not known, or a chunk turns out to have another
            shape.
        DtypeError: if arrays cannot have its dtype.
        ShardingError: if it cannot be laid out so.

    >>> import dask.array as da, meshard
    >>> from meshard.interop.dask import from_dask
    >>> meshard.config.update("num_devices", 4)
    >>> columns = meshard.NamedSharding(meshard.make_mesh((4,), ("i",)), meshard.P(None, "i"))
    >>> from_dask(da.ones((6, 8), chunks=(2, 3)), columns).sharding.spec
    P(None, 'i')
    """
    what = "from_dask"
    instance_of(x, da.Array, what, "x", advice="Of other arrays dask.array.from_array makes one.")
    if any(np.isnan(n) for chunks in x.chunks for n in chunks):
        raise ShapeError(
            f"{what}: the sizes of some chunks are not known: {x.chunks}. Compute them first, with "
            "x.compute_chunk_sizes()."
        )
    try:
        dtype = checked_dtype(np.dtype(x.dtype), what)
    except DtypeError as error:
        raise DtypeError(f"{error} The Dask array is of dtype {x.dtype}.") from None
    cuts = [tuple(np.cumsum((0, *chunks)).tolist()) for chunks in x.chunks]
    place = fitting(cuts) if sharding is None else as_sharding(sharding, what)
    assert place is not None
    me = here().process_index
    boxes: dict[Any, _Box] = {}
    for device, index in place.devices_indices_map(x.shape).items():
        if device.process_index == me and index is not None:
            boxes[_key(index, x.shape)] = index
    blocks = {key: np.empty([b - a for a, b in key], dtype) for key in boxes}
    _compute(x, boxes, blocks)
    return make_array_from_callback(
        x.shape, place, lambda index: blocks.pop(_key(index, x.shape)), dtype
    )


def _key(index: _Box, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple([s.indices(n)[:2] for s, n in zip(index, shape, strict=True)])


def _compute(x: Any, boxes: Mapping[Any, _Box], blocks: Mapping[Any, Block]) -> None:
    """Fill blocks with parts of a Dask array."""
    client = _client()
    parts = [x[box] if box else x for box in boxes.values()]
    targets = [_Place(blocks[key]) for key in boxes]
    if client is None:
        da.store(parts, targets, lock=False)
        return
    from dask.distributed import as_completed

    # What is optimised together shares the chunks that several parts need.
    chunks = [(n, at) for n, part in enumerate(parts) for at in _places(part)]
    wanted: Any = dask.base.optimize(*parts)
    delayed = [wanted[n].blocks[place].to_delayed().item() for n, (place, _) in chunks]
    futures = client.compute(delayed)
    where: dict[str, list[tuple[_Place, _Box]]] = {future.key: [] for future in futures}
    for future, (n, (_, slices)) in zip(futures, chunks, strict=True):
        where[future.key].append((targets[n], slices))
    unique = {future.key: future for future in futures}.values()
    del futures
    done: Any = as_completed(unique, with_results=True)
    for future, value in done:
        for target, slices in where[future.key]:
            target[slices] = value


@final
class _Place:
    """Where chunks are put; NumPy would repeat those that have other shapes than they should.

    Args:
        block: the elements.
    """

    def __init__(self, block: Block) -> None:
        self._block = block
        self.shape, self.dtype = block.shape, block.dtype

    def __setitem__(self, index: Any, value: Any) -> None:
        wanted = self._block[index].shape
        if np.shape(value) != wanted:
            raise ShapeError(
                f"from_dask: a chunk has shape {np.shape(value)} when it is computed, but by "
                f"x.chunks it should have {wanted}. Tell what makes it, such as map_blocks, the "
                "shapes by chunks=, or find them by x.compute_chunk_sizes()."
            )
        self._block[index] = value


def _places(part: Any) -> Iterator[tuple[tuple[int, ...], _Box]]:
    """Return the place of each chunk in the grid of chunks, and where its elements are."""
    edges = [np.cumsum((0, *chunks)) for chunks in part.chunks]
    for place in itertools.product(*[range(len(c)) for c in part.chunks]):
        yield place, tuple([slice(e[p], e[p + 1]) for e, p in zip(edges, place, strict=True)])


def _client() -> Any:
    """Return the client of ``dask.distributed`` that is in use; None if there is none."""
    try:
        from dask.distributed import get_client
    except ImportError:
        return None
    try:
        return get_client()
    except ValueError:
        return None


def to_dask(x: Array) -> Any:
    """Return a Dask array whose chunks are an array's shards.

    Nothing is copied: a chunk is a read-only view of a shard. Where shards are replicas of each
    other, one of them is the chunk.

    Args:
        x: an array, all of whose shards this process holds.

    Raises:
        ArgumentError: if it is not an array.
        DtypeError: if it holds random keys.
        ShardingError: if its shards are not a grid.
        NotAddressableError: if other processes hold some of them.

    >>> import meshard, meshard.numpy as mnp
    >>> from meshard.interop.dask import to_dask
    >>> meshard.config.update("num_devices", 4)
    >>> tiles = meshard.NamedSharding(meshard.make_mesh((2, 2), ("i", "j")), meshard.P("i", "j"))
    >>> to_dask(mnp.ones((4, 6), device=tiles)).chunks
    ((2, 2), (3, 3))
    """
    what = "to_dask"
    if not isinstance(x, Array):
        raise ArgumentError(
            f"{what}: x must be an array of meshard's, got {type(x).__name__}; dask.array takes "
            "others with from_array."
        )
    if not x.is_fully_addressable:
        raise NotAddressableError(
            f"{what}: other processes hold parts of {x.aval.str_short()}. Read "
            "x.__partitioned__, or make a Dask array of each process's shards."
        )
    if x._type.dtype == KEY:
        raise DtypeError(
            f"{what}: {x.aval.str_short()} holds random keys, which mean nothing to Dask. Pass "
            "meshard.random.key_data(x) for their bits."
        )
    cuts, grid = grid_of(x, what)
    name = f"meshard-{next(_NUMBERS)}-{uuid.uuid4().hex}"
    graph = {(name, *place): np.asarray(some[0].data) for place, some in grid.items()}
    return da.Array(graph, name, chunks=sizes(cuts), dtype=x.dtype)


_NUMBERS = itertools.count()
bound_all(globals())
