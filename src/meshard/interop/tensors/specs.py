"""PyTorch's meshes and placements, read and checked.

In: a `DTensor`, or a mesh, placements and a shape. Out: a `Placed`, which knows nothing of PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshard.algebra.arguments import shown
from meshard.errors import ArgumentError, ShapeError, ShardingError
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
    given = None if order is None or strided else {e[0]: tuple(e[1]) for e in order}
    return placed(tuple(x.shape), x.device_mesh, x.placements, what, given)


def placed(
    shape: tuple[int, ...],
    mesh: Any,
    placements: Any,
    what: str,
    order: dict[int, tuple[int, ...]] | None = None,
) -> Placed:
    """Return how tensors of a shape are laid out by placements on a mesh.

    Args:
        shape: the tensor's shape.
        mesh: the mesh.
        placements: one for each dim of the mesh.
        what: the function that was called, for messages.
        order: for dims of the tensor the mesh dims that cut it, in order; by default left to right.

    Raises:
        ArgumentError: if they are not placements, or not as many as the mesh has dims.
        ShapeError: if a dim does not exist.
        ShardingError: if they say that a sum is still to be taken.
    """
    mesh_of(mesh, what)
    steps: list[list[Step]] = [[] for _ in shape]
    entries = _entries(mesh, placements, what)
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
    for dim, wanted in (order or {}).items():
        steps[dim].sort(key=lambda step, wanted=wanted: wanted.index(step[0]))  # type: ignore[misc]
    sizes = tuple(mesh.mesh.shape)
    names = tuple(mesh.mesh_dim_names or ())
    if len(set(names)) != len(sizes):
        names = tuple([f"mesh{i}" for i in range(len(sizes))])
    ranks = tuple(mesh.mesh.flatten().tolist())
    text = "[" + ", ".join([_text(p) for p in entries]) + "]"
    return Placed(shape, ranks, sizes, names, tuple(map(tuple, steps)), text)


def _entries(mesh: Any, placements: Any, what: str) -> Sequence[Any]:
    if isinstance(placements, placement_types.Placement):
        placements = (placements,)
    entries = list(placements) if isinstance(placements, (tuple, list)) else [placements]
    for entry in entries:
        if not isinstance(entry, placement_types.Placement):
            raise ArgumentError(
                f"{what}: placements holds {shown(entry)} of type {type(entry).__name__}; give one "
                "of Shard(dim), Replicate() for each dim of the mesh."
            )
    if len(entries) != mesh.mesh.ndim:
        raise ArgumentError(
            f"{what}: {len(entries)} placements for a mesh of shape {tuple(mesh.mesh.shape)}; give "
            f"{mesh.mesh.ndim}, one for each of its dims."
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


def same_mesh(a: Any, b: Any) -> bool:
    """Whether two meshes are of the same ranks in the same order."""
    return bool(a is b or (a.mesh.shape == b.mesh.shape and bool((a.mesh == b.mesh).all())))
