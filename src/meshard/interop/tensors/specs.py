"""PyTorch's meshes and placements, read and checked.

In: a `DTensor`, or a mesh, placements and a shape. Out: a `Placed`, which knows nothing of PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from meshard.algebra.arguments import shown
from meshard.errors import ArgumentError, MeshardError, ShapeError, ShardingError
from meshard.interop.tensors.loading import DeviceMesh, DTensor, placement_types
from meshard.interop.tensors.placed import Placed, Step

_STRIDED: Any = getattr(placement_types, "_StridedShard", ())


def mesh_of(mesh: Any, what: str, name: str = "device_mesh") -> Any:
    """Return a mesh of ranks.

    Raises:
        ArgumentError: if it is not a DeviceMesh.
    """
    if not isinstance(mesh, DeviceMesh):
        raise ArgumentError(
            f"{what}: {name} must be a torch.distributed.device_mesh.DeviceMesh, not {shown(mesh)} "
            f"of type {type(mesh).__name__}."
        )
    return mesh


def placed_of(x: Any, what: str) -> Placed:
    """Return how a DTensor is laid out.

    Raises:
        ShardingError: if it is a sum that is still to be taken.
    """
    spec = x._spec
    order = getattr(spec, "shard_order", None)
    strided = any(isinstance(p, _STRIDED) for p in x.placements)
    given = None if order is None or strided else tuple([(e[0], tuple(e[1])) for e in order])
    return placed(tuple(x.shape), x.device_mesh, x.placements, what, given)


Order = tuple[tuple[int, tuple[int, ...]], ...]
"""Dims of a tensor, and for each the mesh dims that cut it, in order."""


def placed(
    shape: tuple[int, ...], mesh: Any, placements: Any, what: str, order: Order | None = None
) -> Placed:
    """Return how tensors of a shape are laid out by placements on a mesh.

    Args:
        shape: the tensor's shape.
        mesh: the mesh.
        placements: one for each dim of the mesh.
        what: the function that was called, for messages.
        order: the order in which mesh dims cut; by default left to right.

    Raises:
        ArgumentError: if they are not placements, or not as many as the mesh has dims.
        ShapeError: if a dim does not exist.
        ShardingError: if they say that a sum is still to be taken.
    """
    try:
        return _placed(shape, mesh_of(mesh, what), tuple(placements), order)
    except TypeError:  # they cannot be iterated over, or hashed
        return _read(shape, mesh, placements, what, order)
    except MeshardError:
        return _read(shape, mesh, placements, what, order)


@lru_cache(maxsize=1 << 13)
def _placed(shape: tuple[int, ...], mesh: Any, placements: Any, order: Order | None) -> Placed:
    return _read(shape, mesh, placements, "", order)


def _read(
    shape: tuple[int, ...], mesh: Any, placements: Any, what: str, order: Order | None
) -> Placed:
    steps: list[list[Step]] = [[] for _ in shape]
    tensor = mesh.mesh
    sizes, ranks = tuple(tensor.shape), tuple(tensor.flatten().tolist())
    entries = _entries(sizes, placements, what)
    for number, placement in enumerate(entries):
        if placement.is_partial():
            raise ShardingError(
                f"{what}: {placement} on mesh dim {number} says that each rank holds a part of a "
                "sum. Pass reduce=True to take the sum first, or x.redistribute(placements=...) "
                "with Replicate or Shard there."
            )
        dim = getattr(placement, "dim", None)
        if dim is None:
            continue
        if not -len(shape) <= dim < len(shape):
            raise ShapeError(
                f"{what}: {placement} on mesh dim {number} cuts dim {dim}, but the tensor of shape "
                f"{shape} has {len(shape)} dims."
            )
        factor = int(placement.split_factor) if isinstance(placement, _STRIDED) else 1
        steps[dim].append((number, factor))
    for dim, wanted in order or ():
        steps[dim].sort(key=lambda step, wanted=wanted: wanted.index(step[0]))  # type: ignore[misc]
    names = tuple(mesh.mesh_dim_names or ())
    if len(set(names)) != len(sizes):
        names = tuple([f"mesh{i}" for i in range(len(sizes))])
    text = "[" + ", ".join([_text(p) for p in entries]) + "]"
    return Placed(shape, ranks, sizes, names, tuple(map(tuple, steps)), text)


def _entries(sizes: tuple[int, ...], placements: Any, what: str) -> Sequence[Any]:
    if isinstance(placements, placement_types.Placement):
        placements = (placements,)
    entries = list(placements) if isinstance(placements, (tuple, list)) else [placements]
    for entry in entries:
        if not isinstance(entry, placement_types.Placement):
            raise ArgumentError(
                f"{what}: placements holds {shown(entry)} of type {type(entry).__name__}; give one "
                "of Shard(dim), Replicate() for each dim of the mesh."
            )
    if len(entries) != len(sizes):
        raise ArgumentError(
            f"{what}: {len(entries)} placements for a mesh of shape {sizes}; give {len(sizes)}, "
            "one for each of its dims."
        )
    return entries


def _text(placement: Any) -> str:
    """Return a placement in a table, as in ``S(0)``; strided ones with their factor."""
    dim = getattr(placement, "dim", None)
    if dim is None:
        return "R" if placement.is_replicate() else str(placement)
    if isinstance(placement, _STRIDED):
        return f"S({dim}, {placement.split_factor})"
    return f"S({dim})"


def is_partial(x: Any) -> bool:
    """Whether a DTensor is a sum that is still to be taken."""
    return isinstance(x, DTensor) and any(p.is_partial() for p in x.placements)


def without_sums(placements: Sequence[Any]) -> tuple[Any, ...]:
    """Return placements in which sums have been taken."""
    return tuple([placement_types.Replicate() if p.is_partial() else p for p in placements])
