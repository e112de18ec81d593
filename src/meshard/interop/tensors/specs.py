"""PyTorch's meshes and placements, read and checked.

In: a `DTensor`, or a mesh, placements and a shape. Out: a `Placed`, which knows nothing of PyTorch.

PyTorch, imported once for all modules of the room, with a hint where it is missing.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

from meshard.algebra.arguments import shown
from meshard.errors import ArgumentError, MeshardError, ShapeError, ShardingError
from meshard.interop.tensors.placed import Placed, Step

try:
    import torch as torch
    import torch.distributed as distributed
    from torch.distributed.device_mesh import DeviceMesh as DeviceMesh
    from torch.distributed.device_mesh import _mesh_resources as mesh_resources
    from torch.distributed.tensor import DTensor as DTensor
    from torch.distributed.tensor import placement_types as placement_types
except ImportError as error:
    raise ImportError(
        f"meshard.interop.torch needs PyTorch, which cannot be imported here ({error}). Install it "
        "with pip install 'meshard[torch]'; meshard itself never needs it."
    ) from error

__all__ = ["DTensor", "DeviceMesh", "distributed", "mesh_resources", "placement_types", "torch"]


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


def placed_of(x: Any, what: str, ranks: Collection[int] | None = None) -> Placed:
    """Return how a DTensor is laid out; see `placed` for ``ranks``.

    Raises:
        ShardingError: if it is a sum that is still to be taken.
    """
    spec = x._spec
    order = getattr(spec, "shard_order", None)
    strided = any(isinstance(p, _STRIDED) for p in x.placements)
    given = None if order is None or strided else tuple([(e[0], tuple(e[1])) for e in order])
    return placed(tuple(x.shape), x.device_mesh, x.placements, what, order=given, ranks=ranks)


Order = tuple[tuple[int, tuple[int, ...]], ...]
"""Dims of a tensor, and for each the mesh dims that cut it, in order."""


def placed(
    shape: tuple[int, ...],
    mesh: Any,
    placements: Any,
    what: str,
    *,
    order: Order | None = None,
    ranks: Collection[int] | None = None,
) -> Placed:
    """Return how tensors of a shape are laid out by placements on a mesh.

    A mesh that is a part of another one, such as ``mesh["tp"]``, has other ranks on each group of
    ranks. It counts as the whole one, with replicas along the dims that were left out.

    Args:
        shape: the tensor's shape.
        mesh: the mesh.
        placements: one for each dim of the mesh.
        what: the function that was called, for messages.
        order: the order in which mesh dims cut; by default left to right.
        ranks: those that take part, if not all do; the whole mesh counts only if it is of these.

    Raises:
        ArgumentError: if they are not placements, or not as many as the mesh has dims.
        ShapeError: if a dim does not exist.
        ShardingError: if they say that a sum is still to be taken.
    """
    frame, alone = _frames(mesh_of(mesh, what))
    if ranks is not None and not all(r in ranks for r in frame.ranks):
        frame = alone
    try:
        return _placed(shape, frame, tuple(placements), order)
    except (TypeError, MeshardError):  # they cannot be iterated over, or hashed, or are refused
        return _read(shape, frame, placements, order, what)


@final
@dataclass(frozen=True)
class _Frame:
    """What is known of a mesh, or of a part of one, without holding on to it.

    Attributes:
        ranks: the ranks of the whole mesh in C order.
        sizes: the shape of the whole mesh.
        names: the names of its dims.
        dims: which of its dims the mesh has.
    """

    ranks: tuple[int, ...]
    sizes: tuple[int, ...]
    names: tuple[str, ...]
    dims: tuple[int, ...]


_FRAMES: dict[int, tuple[weakref.ref[Any], tuple[_Frame, _Frame]]] = {}
"""What is known of meshes, by their ids: PyTorch's meshes hold process groups, with threads and
sockets, so that nothing here may keep them. Those that compare equal may be parts of others."""


def _frames(mesh: Any) -> tuple[_Frame, _Frame]:
    """Return what is known of a mesh as a part of a whole one, and of it alone."""
    key = id(mesh)
    known = _FRAMES.get(key)
    if known is not None and known[0]() is mesh:
        return known[1]
    root = _root(mesh)
    found = _frame(mesh, root), _frame(mesh, None)
    _FRAMES[key] = weakref.ref(mesh, lambda gone: _forget(key, gone)), found
    return found


def _forget(key: int, gone: weakref.ref[Any]) -> None:
    if key in _FRAMES and _FRAMES[key][0] is gone:
        del _FRAMES[key]


def _frame(mesh: Any, root: Any) -> _Frame:
    tensor = (mesh if root is None else root).mesh
    sizes, ranks = tuple(tensor.shape), tuple(tensor.flatten().tolist())
    names = tuple((mesh if root is None else root).mesh_dim_names or ())
    if len(set(names)) != len(sizes):
        names = tuple([f"mesh{i}" for i in range(len(sizes))])
    return _Frame(ranks, sizes, names, tuple(_dims(mesh, root)))


def _root(mesh: Any) -> Any:
    """Return the mesh that another one is a part of, by the names of its dims; None if of none."""
    get: Any = getattr(mesh, "_get_root_mesh", None)
    root = mesh_resources.get_root_mesh(mesh) if get is None else get()
    if root is None or root is mesh:
        return None
    names, every = mesh.mesh_dim_names or (), root.mesh_dim_names or ()
    if not names or len(every) <= len(names) or not set(names) <= set(every):
        return None
    return root


@lru_cache(maxsize=1 << 13)
def _placed(shape: tuple[int, ...], frame: _Frame, placements: Any, order: Order | None) -> Placed:
    return _read(shape, frame, placements, order, "")


def _read(
    shape: tuple[int, ...], frame: _Frame, placements: Any, order: Order | None, what: str
) -> Placed:
    steps: list[list[Step]] = [[] for _ in shape]
    entries = _entries(tuple([frame.sizes[dim] for dim in frame.dims]), placements, what)
    for number, placement in zip(frame.dims, entries, strict=True):
        dim = _cut_dim(placement, number, shape, what)
        if dim is None:
            continue
        factor = int(placement.split_factor) if isinstance(placement, _STRIDED) else 1
        steps[dim].append((number, factor))
    for dim, wanted in order or ():
        places = [frame.dims[m] for m in wanted]
        steps[dim].sort(key=lambda step, places=places: places.index(step[0]))  # type: ignore[misc]
    text = "[" + ", ".join([_text(p) for p in entries]) + "]"
    return Placed(shape, frame.ranks, frame.sizes, frame.names, tuple(map(tuple, steps)), text)


def _cut_dim(placement: Any, number: int, shape: tuple[int, ...], what: str) -> int | None:
    """Return which dim of a tensor a placement cuts; None if none."""
    if placement.is_partial():
        raise ShardingError(
            f"{what}: {placement} on mesh dim {number} says that each rank holds a part of a "
            "sum. Pass reduce=True to take the sum first, or x.redistribute(placements=...) "
            "with Replicate or Shard there."
        )
    dim: int | None = getattr(placement, "dim", None)
    if dim is not None and not -len(shape) <= dim < len(shape):
        raise ShapeError(
            f"{what}: {placement} on mesh dim {number} cuts dim {dim}, but the tensor of shape "
            f"{shape} has {len(shape)} dims."
        )
    return dim


def _dims(mesh: Any, root: Any) -> list[int]:
    """Return which dims of the whole mesh the dims of a mesh are."""
    if root is None:
        return list(range(mesh.ndim))
    return [root.mesh_dim_names.index(name) for name in mesh.mesh_dim_names]


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
