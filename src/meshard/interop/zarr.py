"""Zarr's arrays, shard by shard: each process reads and writes the chunks of its own devices.

Reading needs nothing: a Zarr array is placed as any other, ``meshard.device_put(z, sharding)``, and
each process reads its share. `store` writes.

>>> import tempfile, zarr, meshard, meshard.numpy as mnp
>>> from meshard.interop.zarr import store
>>> meshard.config.update("num_devices", 4)
>>> rows = meshard.NamedSharding(meshard.make_mesh((4,), ("i",)), meshard.P("i"))
>>> with tempfile.TemporaryDirectory() as folder:
...     z = zarr.create_array(folder + "/z", shape=(8, 6), chunks=(3, 6), dtype="f8")
...     store(mnp.ones((8, 6), device=rows), z)
...     back = meshard.device_put(z, rows)
>>> back.sum().item()
48.0
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshard.algebra.boundary import bound_all
from meshard.algebra.mesh import Mesh
from meshard.algebra.sharding import NamedSharding
from meshard.algebra.spec import PartitionSpec
from meshard.errors import ArgumentError, ShapeError, StorageError
from meshard.runtime.agree import meet
from meshard.runtime.array.array import Array
from meshard.runtime.moving.make import device_put
from meshard.runtime.world import here

try:
    import zarr
except ImportError as error:
    raise ImportError(
        f"meshard.interop.zarr needs Zarr, which cannot be imported here ({error}). Install it "
        "with pip install 'meshard[checkpoint]'; meshard itself never needs it."
    ) from error

__all__ = ["store"]


def store(x: Array, target: Any) -> None:
    """Write an array into a Zarr array of its shape; all processes of a job write it together.

    Each chunk, or shard of chunks where the Zarr array has those, is written whole, by one process
    only: the array is moved first to a layout that ends where chunks do, which moves at most the
    rows at the edges of its shards.

    Args:
        x: the array, in any layout.
        target: the Zarr array, open for writing.

    Raises:
        ArgumentError: if ``target`` is not a Zarr array.
        ShapeError: if it has another shape.
        StorageError: on all processes, if one of them cannot write; it names that process.

    >>> import zarr, meshard.numpy as mnp
    >>> from meshard.interop.zarr import store
    >>> z = zarr.create_array({}, shape=(3,), dtype="i8")
    >>> store(mnp.arange(3), z)
    >>> z[:].tolist()
    [0, 1, 2]
    """
    what = "store"
    if not isinstance(target, zarr.Array):
        raise ArgumentError(
            f"{what}: target must be a zarr.Array, got {type(target).__name__}. Make one with "
            "zarr.create_array."
        )
    if not isinstance(x, Array):
        raise ArgumentError(
            f"{what}: x must be an array of meshard's, got {type(x).__name__}; Zarr takes others "
            "with target[...] = x."
        )
    if x.shape != target.shape:
        raise ShapeError(f"{what}: x has shape {x.shape}, but the Zarr array has {target.shape}.")
    if x.ndim:
        x = device_put(x, _aligned(x, target.shards or target.chunks))
    own = _written(x, target)
    world = here()
    told: list[object] = [None if own is None else str(own)]
    if world.process_count > 1:
        meet(world, world.processes, "`store`")
        told = world.transport.all_gather(told[0], world.processes)
    for process, why in zip(world.processes, told, strict=True):
        if why is not None:
            raise StorageError(
                f"{what}: {target.store_path} cannot be written by process {process}: {why}."
            ) from own


def _written(x: Array, target: Any) -> Exception | None:
    """Write the shards of this process; return what went wrong."""
    for shard in x.addressable_shards:
        if shard.replica_id == 0 and (shard.data.size or not x.ndim):
            try:
                target[shard.index if x.ndim else ...] = np.asarray(shard.data)
            except (OSError, ValueError, TypeError) as error:
                return error
    return None


def _aligned(x: Array, chunks: tuple[int, ...]) -> NamedSharding:
    """Return a layout like the array's that ends where chunks do."""
    own = x.sharding
    axes: tuple[tuple[str, ...], ...]
    if isinstance(own, NamedSharding):
        mesh, axes = own.mesh, own.spec.axes(x.ndim)
    else:
        widest = max(range(x.ndim), key=lambda d: x.shape[d] // chunks[d])
        mesh = Mesh(list(own.device_order), "chunks")
        axes = tuple([("chunks",) if d == widest else () for d in range(x.ndim)])
    uneven: list[tuple[int, ...] | None] = []
    for size, chunk, dim in zip(x.shape, chunks, axes, strict=True):
        count = int(np.prod([mesh.shape[a] for a in dim], dtype=int))
        if count == 1:
            uneven.append(None)
            continue
        ends = np.rint(np.linspace(0, size, count + 1)[:-1] / chunk).astype(int) * chunk
        uneven.append((*np.minimum(ends, size).tolist(), size))
    return NamedSharding(mesh, PartitionSpec(*axes), uneven=tuple(uneven))


bound_all(globals())
