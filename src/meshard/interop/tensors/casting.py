"""`mxn_cast`: from the buffers of some ranks to those of others, laid out by meshes and placements.

In: on each rank a buffer, and the shapes of what it holds before and after. Out: filled buffers.
The whole tensor's shape is found from what the ranks tell each other; all else is a `reshard`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

from meshard.algebra.arguments import integer_of, shown
from meshard.errors import ArgumentError, ShapeError
from meshard.interop.tensors.agreeing import check_group, checked_by_all, known_ranks
from meshard.interop.tensors.convert import dtensor
from meshard.interop.tensors.placed import Placed
from meshard.interop.tensors.reshard import Job
from meshard.interop.tensors.specs import DTensor, distributed, mesh_of, placed, torch
from meshard.interop.tensors.wanted import Options, dtype_name, dtype_of, group_ranks, kind_of

Shape = tuple[int, ...]


@final
@dataclass(frozen=True)
class _End:
    """One end of a cast, as this rank was told of it."""

    name: str
    shape: Any
    mesh: Any
    placements: Any

    def checked(self, what: str) -> Shape | None:
        """Return the shape of this rank's part; None if the mesh does not have the rank."""
        mesh = mesh_of(self.mesh, what, f"{self.name}_mesh")
        if mesh.get_coordinate() is None:
            return None
        name = f"{self.name}_local_shape"
        given = self.shape
        if not isinstance(given, (tuple, list)):
            raise ArgumentError(f"{what}: {name} must be a shape, not {shown(given)}.")
        found = tuple([integer_of(n, what, name) for n in given])
        if min(found, default=0) < 0:
            raise ArgumentError(f"{what}: {name} is {found}; a dim has 0 elements or more.")
        placed(found, mesh, self.placements, what)
        return found

    def whole(self, told: Mapping[int, Shape], group: Any, what: str) -> Shape:
        """Return the shape of the tensor of which ranks hold parts of the shapes told.

        Raises:
            ShapeError: if there is none, naming a rank.
        """
        ndims = {len(shape) for shape in told.values()}
        if len(ndims) != 1:
            raise ShapeError(
                f"{what}: the ranks of {self.name}_mesh gave {self.name}_local_shape of "
                f"{' and '.join(map(str, sorted(ndims)))} dims."
            )
        ranks = group_ranks(group)
        some = placed(next(iter(told.values())), self.mesh, self.placements, what, ranks=ranks)
        shape = tuple([_size(some, dim, told) for dim in range(ndims.pop())])
        place = placed(shape, self.mesh, self.placements, what, ranks=ranks)
        for rank, own in told.items():
            if place.local_shape(rank) != own:
                raise ShapeError(
                    f"{what}: rank {rank} gave {self.name}_local_shape={own}, but by {place.text} "
                    f"on a mesh of shape {place.sizes} it holds {place.local_shape(rank)} of a "
                    f"tensor of shape {shape}, which is what the shapes of all ranks amount to."
                )
        return shape


def _size(place: Placed, dim: int, told: Mapping[int, Shape]) -> int:
    """Return the size of a dim: the sum over the places of the mesh dims that cut it."""
    cutting = {m for m, _ in place.steps[dim]}
    corners = [
        rank
        for rank, at in zip(place.ranks, np.ndindex(*place.sizes), strict=True)
        if not any(i for m, i in enumerate(at) if m not in cutting)
    ]
    return sum([told[rank][dim] for rank in corners if rank in told])


def mxn_cast(
    buf: Any,
    src_local_shape: Sequence[int],
    src_mesh: Any,
    src_placements: Any,
    dst_local_shape: Sequence[int],
    dst_mesh: Any,
    dst_placements: Any,
    group: Any = None,
) -> None:
    """Move a tensor from the buffers of one mesh's ranks to those of another's.

    The signature is that of PyTorch's RFC on casting from M ranks to N
    (https://github.com/pytorch/pytorch/issues/181061). What a rank does follows from the meshes. A
    rank of ``src_mesh`` gives what its buffer begins with; it is not written to. That of a rank of
    ``dst_mesh`` begins with its part afterwards, written there directly. That of a rank of both is
    read first, and overwritten. Ranks of neither mesh take part, and hold nothing.

    Args:
        buf: a contiguous tensor of as many elements as the larger of the rank's two parts, or more.
            Its dtype may differ between the meshes, as from float32 to bfloat16.
        src_local_shape: the shape of this rank's part of the source, by the rule of `torch.chunk`
            where a dim is not divided evenly.
        src_mesh: the mesh that holds the tensor.
        src_placements: how it is laid out there.
        dst_local_shape: the shape of this rank's part of the destination.
        dst_mesh: the mesh that is to hold it: another one, the same one, or one with some ranks of
            it.
        dst_placements: how it is to be laid out there.
        group: the process group that has all ranks of both meshes; None for the whole job's.

    Raises:
        ArgumentError: if an argument is not what is said here.
        ShapeError: if the local shapes are not those of one tensor, naming a rank.
        ShardingError: if a placement is ``Partial``.
        ConfigError: if there is no process group.
        AgreementError: on all other ranks if one of them refuses.
        ProcessLostError: if a rank fails on the way; it names the rank.

    >>> import torch.distributed as dist
    >>> from torch.distributed.tensor import Replicate, Shard, init_device_mesh
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> mesh = init_device_mesh("cpu", (1,))  # torchrun starts more ranks
    >>> buf = torch.arange(6.0)
    >>> mxn_cast(buf, (2, 3), mesh, [Shard(0)], (2, 3), mesh, [Replicate()])
    >>> buf
    tensor([0., 1., 2., 3., 4., 5.])
    >>> dist.destroy_process_group()
    """
    what = "mxn_cast"
    check_group(what, group)
    ends = (
        _End("src", src_local_shape, src_mesh, src_placements),
        _End("dst", dst_local_shape, dst_mesh, dst_placements),
    )
    with known_ranks(group, what).call():
        told = checked_by_all(partial(_roles, buf, ends, what), group, what)
    ranks = group_ranks(group)
    given, wanted = ({r: t[n] for r, t in zip(ranks, told, strict=True) if t[n]} for n in (0, 1))
    for end, parts in zip(ends, (given, wanted), strict=True):
        if not parts:
            raise ArgumentError(f"{what}: no rank of {end.name}_mesh is in the process group.")
    sent, dtype = _dtype("src", given, what), _dtype("dst", wanted, what)
    if kind_of(sent) != kind_of(dtype):
        raise ArgumentError(
            f"{what}: the buffers of src_mesh are of {sent} and those of dst_mesh of {dtype}; "
            "floats can be cast to floats, and integers to integers."
        )
    me = distributed.get_rank()
    before, after = (_part(buf, parts.get(me)) for parts in (given, wanted))
    source = torch.empty(0, dtype=sent, device=src_mesh.device_type) if before is None else before

    def moving() -> tuple[Any, Any]:
        shape = _shape(ends, given, wanted, group, what)
        return dtensor(source, src_mesh, src_placements, shape), (dst_mesh, dst_placements)

    options = Options(None, False, False, dtype, False, group, None, what)
    landing = after if before is None else None
    moved = Job(moving, options, landing).run().to_local()
    if after is not None and landing is None:
        with torch.no_grad():
            after.copy_(moved)


def _roles(buf: Any, ends: Sequence[_End], what: str) -> list[Any]:
    """Return what this rank holds at both ends: a shape and a dtype, or None."""
    shapes = [end.checked(what) for end in ends]
    needed = [math.prod(shape) for shape in shapes if shape is not None]
    name = _checked(buf, max(needed), what) if needed else ""
    return [None if shape is None else (shape, name) for shape in shapes]


def _checked(buf: Any, need: int, what: str) -> str:
    """Return the name of a buffer's dtype, if the buffer is one."""
    if not isinstance(buf, torch.Tensor) or isinstance(buf, DTensor):
        raise ArgumentError(f"{what}: buf must be a tensor of this rank, not {shown(buf)}.")
    if not buf.is_contiguous():
        raise ArgumentError(
            f"{what}: buf of shape {tuple(buf.shape)} has strides {tuple(buf.stride())}, and parts "
            "are read from contiguous memory. Pass a contiguous tensor."
        )
    if buf.numel() < need:
        raise ArgumentError(
            f"{what}: buf has {buf.numel():,} elements, and this rank's part has {need:,}."
        )
    return dtype_name(buf.dtype)


def _shape(
    ends: Sequence[_End],
    given: Mapping[int, Any],
    wanted: Mapping[int, Any],
    group: Any,
    what: str,
) -> Shape:
    """Return the shape of the tensor, which both ends must be of."""
    shapes = []
    for end, parts in zip(ends, (given, wanted), strict=True):
        shapes.append(end.whole({r: shape for r, (shape, _) in parts.items()}, group, what))
    if shapes[0] != shapes[1]:
        raise ShapeError(
            f"{what}: the parts of src_mesh are of a tensor of shape {shapes[0]}, and those of "
            f"dst_mesh of one of shape {shapes[1]}."
        )
    return shapes[0]


def _dtype(name: str, parts: Mapping[int, Any], what: str) -> Any:
    """Return the one dtype of the buffers at one end."""
    names = {dtype: rank for rank, (_, dtype) in parts.items()}
    if len(names) > 1:
        each = " and ".join([f"{dtype} (rank {rank})" for dtype, rank in sorted(names.items())])
        raise ArgumentError(f"{what}: the buffers of {name}_mesh are of {each}. Pass one dtype.")
    return dtype_of(*names)


def _part(buf: Any, part: Any) -> Any:
    """Return the beginning of a buffer as this rank's part; None if it has none."""
    if part is None:
        return None
    shape, _ = part
    return buf.detach().view(-1)[: math.prod(shape)].view(shape)
